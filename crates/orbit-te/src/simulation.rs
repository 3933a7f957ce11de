//! One simulated process: the engine with everything of it but its threads, which a simulation steps by itself. Rule: nothing of
//! the engine is done here another way; hidden, and no part of the interface that is kept.

use crate::clock;
use crate::config::Config;
use crate::engine::Engine;
use crate::error::Error;
use crate::mailbox::Inbox;
use crate::place::WorkerPlace;
use crate::retention::Retention;
use crate::router::Router;
use crate::serving::{self, Server};
use crate::shared::{Parts, Shared};
use crate::worker::Worker;
use orbit_te_memory::{Domain, Registry};
use orbit_te_tcp::net::{Net, Stream};
use orbit_te_tcp::{Identity, Incoming, TcpTransport};
use orbit_te_transport::{Counterpart, Mailbox, Transport, TransportError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

pub use crate::world::{Accepted, ControlLink, Dialing, World};

/// What a simulated process is made of.
pub struct Materials {
    /// Its settings.
    pub config: Config,
    /// Who it is.
    pub identity: Identity,
    /// Its regions; the transports were made with the same.
    pub registry: Arc<Registry>,
    /// By which memory becomes reachable.
    pub domains: Vec<Arc<dyn Domain>>,
    /// Where peers reach it.
    pub addresses: Vec<SocketAddr>,
    /// The transports for its own transfers, the one that reaches everybody last.
    pub transports: Vec<Box<dyn Transport>>,
    /// What peers reach beside the lanes; polled by the simulation.
    pub counterparts: Vec<Arc<dyn Counterpart>>,
    /// Its control links and random numbers.
    pub world: Arc<dyn World>,
}

/// An engine without threads.
pub struct Process {
    engine: Engine,
    worker: Arc<Worker>,
    server: Arc<Server>,
}

impl Process {
    /// Called inside of the runtime that stands for the control thread.
    ///
    /// # Errors
    /// [`Error::Transport`] when the system gives no descriptors.
    pub fn new(materials: Materials) -> Result<Process, Error> {
        let Materials { config, identity, registry, domains, addresses, transports, counterparts, world } =
            materials;
        let retention = Arc::<Retention>::default();
        let (inbox, receiver) = Inbox::new(config.queued_notifications);
        let inbox = Arc::new(inbox);
        let router = Router::new(transports, config.policy.clone(), Arc::default(), clock::now());
        let router =
            router.map_err(|source| TransportError::Io { what: "an event queue".to_string(), source })?;
        let worker = Worker::new(router, WorkerPlace::default(), &config, retention.clone())?;
        let server = Server::new(&config)?;
        let shared = Shared::new(Parts {
            config,
            identity,
            registry,
            domains,
            addresses,
            workers: vec![worker.clone()],
            servers: vec![server.clone()],
            control: Handle::current(),
            world,
            // The serving transport gets its turn after the call that asks for it.
            eviction: Duration::ZERO,
            retention,
            counterparts,
            counts: Arc::default(),
            mail: (inbox, receiver),
        });
        Ok(Process { engine: Engine::without_threads(shared), worker, server })
    }

    /// The engine, as its users have it. Calls that block are not for a simulation.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// One step of the worker; whether anything happened, and when to step again at the latest.
    pub fn step(&self) -> (bool, Option<Instant>) {
        self.worker.step()
    }

    /// What the listening thread does with a connection whose hello was read. `adopt` gives a lane to the serving transport.
    pub fn let_in<S>(&self, connection: Incoming<S>, adopt: impl FnOnce(Incoming<S>))
    where
        S: Stream + Accepted,
    {
        serving::let_in(self.engine.shared(), connection, |_, connection| adopt(connection));
    }

    /// Where the serving transport hands in notifications.
    pub fn mailbox(&self) -> Arc<dyn Mailbox> {
        self.engine.shared().inbox.clone()
    }

    /// Does with the serving transport what the engine asks of its serving thread; whether that was anything.
    pub fn serve<N: Net>(&self, transport: &mut TcpTransport<N>, now: Instant) -> bool {
        // Lanes come by `let_in`, from the network of the simulation.
        self.server
            .take_mail(transport, now, |_, lane| lane.refuse("the simulation has no lanes of the system's"))
    }

    /// Transfers that are under way.
    pub fn under_way(&self) -> usize {
        self.engine.shared().admission.transfers()
    }

    /// Begins to shut the engine down as [`Engine::shutdown`] does, but for the threads: step until [`Process::is_idle`] or so much
    /// later, then call [`Process::close`].
    pub fn begin_end(&self) -> Duration {
        self.engine.refuse_more();
        self.worker.give_all_up()
    }

    /// Closes the transport of an engine that ends: step until [`Process::is_idle`].
    pub fn close(&self) {
        self.worker.close();
        self.engine.say_farewell();
    }

    /// Lets go of what is under way without ending it, as when the process is killed. An engine that is not shut down would otherwise
    /// stay in memory: a real one always is, by its last handle. Nothing steps it afterwards.
    pub fn vanish(&self) {
        self.worker.vanish();
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.worker.is_idle()
    }
}
