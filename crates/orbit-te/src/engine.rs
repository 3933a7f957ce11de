//! The engine: what a process makes one of. Rule: its threads end with it; whatever is shared with them knows no thread.

use crate::batch::Batch;
use crate::builder::{EngineBuilder, check, reachable_at};
use crate::clock;
use crate::config::Config;
use crate::control::{ControlThread, Target};
use crate::counterparts::Counterparts;
use crate::error::Error;
use crate::features::Features;
use crate::list::Layout;
use crate::mailbox::Inbox;
use crate::notification::Notifications;
use crate::pending::{Pending, block_on};
use crate::place::{WorkerPlace, of_worker};
use crate::prepared::Prepared;
use crate::region::Slice;
use crate::retention::Retention;
use crate::route::ReasonCounts;
use crate::router::Router;
use crate::segment::Segment;
use crate::serving::{Door, Server};
use crate::session::Session;
use crate::shared::{EVICTION, Parts, Shared};
use crate::transfer::Transfer;
use crate::worker::Worker;
use crate::world::Os;
use orbit_te_memory::Registry;
use orbit_te_tcp::{Identity, Listener};
use orbit_te_transport::{Mailbox, OpKind, TransportError};
use orbit_te_wire::limits::MAX_NAME_BYTES;
use orbit_te_wire::{PeerId, SegmentToken};
use parking_lot::Mutex;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// What peers are told last, and the longest wait for that to be written.
const FAREWELL: &str = "its engine was shut down";
const FAREWELL_LIMIT: Duration = Duration::from_millis(100);

struct Threads {
    control: ControlThread,
    door: Option<Door>,
    counterparts: Counterparts,
    joins: Vec<JoinHandle<()>>,
}

struct Owner {
    shared: Arc<Shared>,
    threads: Mutex<Option<Threads>>,
}

/// A process's transfer engine. Cheap to clone; all clones are the same engine, and it ends with the last of them.
///
/// Its calls may come from any thread, inside of any async runtime or none; none of them needs one.
#[derive(Clone)]
pub struct Engine {
    owner: Arc<Owner>,
}

impl Engine {
    /// Makes an engine with the default settings, unless they are changed.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    pub(crate) fn start(config: Config) -> Result<Engine, Error> {
        check(&config)?;
        let identity = Identity::random()?;
        let registry = Registry::with_limit(config.registration_limit.clone());
        let features = Arc::new(Features::of(&config)?);
        let listener = config.listen.map(|at| Listener::bind(at, &config.tcp)).transpose()?;
        let addresses = match &listener {
            Some(listener) if config.advertise.is_empty() => reachable_at(listener.address()?)?,
            _ => config.advertise.clone(),
        };
        let control = ControlThread::start()?;
        let retention = Arc::<Retention>::default();
        let (inbox, receiver) = Inbox::new(config.queued_notifications);
        let inbox = Arc::new(inbox);
        let counts = Arc::<ReasonCounts>::default();
        let met = match &listener {
            Some(_) => features.counterparts(identity, &registry, &(inbox.clone() as Arc<dyn Mailbox>))?,
            // Who is not listened for is not met either: sessions are opened at the listening port.
            None => Vec::new(),
        };
        let counterparts = Counterparts::start(&met)?;
        let mut joins = Vec::new();
        let mut workers = Vec::new();
        let mut servers = Vec::new();
        // What was started ends by itself when this function fails half-way: nobody holds it.
        let result = (|| -> Result<(), Error> {
            for n in 0..config.workers {
                let name = format!("orbit-te-work-{n}");
                let cpus = of_worker(&config, n).cloned();
                let make = router(&features, &config, (identity, &registry), &counts);
                let (worker, join) = Worker::start(name.clone(), cpus, &config, retention.clone(), make)?;
                if let WorkerPlace { cpus: Some(cpus), node, near } = worker.place() {
                    tracing::info!(worker = name, %cpus, ?node, ?near, "a worker keeps to its CPUs");
                }
                workers.push(worker);
                joins.push(join);
            }
            for n in 0..if listener.is_some() { config.serving_workers } else { 0 } {
                let (server, join) =
                    Server::start(format!("orbit-te-serve-{n}"), &config, identity, &registry, &inbox)?;
                servers.push(server);
                joins.push(join);
            }
            Ok(())
        })();
        let shared = Shared::new(Parts {
            config,
            identity,
            registry,
            domains: features.domains(),
            addresses,
            workers,
            servers,
            control: control.handle.clone(),
            world: Arc::new(Os),
            eviction: EVICTION,
            retention,
            counterparts: met,
            counts,
            mail: (inbox, receiver),
        });
        let door = listener.map(|listener| Door::open(listener, Arc::downgrade(&shared))).transpose();
        let (failed, door) = match (result, door) {
            (Ok(()), Ok(door)) => (None, door),
            (Err(error), door) => (Some(error), door.ok().flatten()),
            (Ok(()), Err(error)) => (Some(error), None),
        };
        let threads = Mutex::new(Some(Threads { control, door, counterparts, joins }));
        let engine = Engine { owner: Arc::new(Owner { shared, threads }) };
        match failed {
            // Dropping the engine ends the threads that did start.
            Some(error) => Err(error),
            None => {
                let shared = engine.shared();
                tracing::info!(peer = %shared.identity.peer, addresses = ?shared.addresses, "engine started");
                Ok(engine)
            }
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.owner.shared
    }

    /// An engine that somebody else steps.
    #[cfg(feature = "simulation")]
    pub(crate) fn without_threads(shared: Arc<Shared>) -> Engine {
        Engine { owner: Arc::new(Owner { shared, threads: Mutex::new(None) }) }
    }

    /// Takes no more work, and tells the peers who ask this engine.
    pub(crate) fn refuse_more(&self) {
        let shared = self.shared();
        shared.closed.store(true, Ordering::Release);
        shared.inbox.close();
        for session in shared.admitted.lock().values() {
            session.goodbye(FAREWELL);
        }
    }

    /// Tells the peers whom this engine asks. Not before its workers are done: a peer that was told closes the lanes, and would not
    /// answer the writes that wait for a fence.
    pub(crate) fn say_farewell(&self) -> Vec<Arc<Session>> {
        let sessions: Vec<_> = self.shared().peers.lock().iter().map(|peer| peer.session.clone()).collect();
        sessions.iter().for_each(|session| session.goodbye(FAREWELL));
        sessions
    }

    /// Its id, new with every start.
    pub fn peer_id(&self) -> PeerId {
        self.shared().identity.peer
    }

    /// Where peers reach it: the first of the addresses that its tokens name; none when it does not listen.
    pub fn address(&self) -> Option<SocketAddr> {
        self.shared().addresses.first().copied()
    }

    /// Opens a peer's segment, by `HOST:PORT/NAME` or by a token. Uses the session with that peer if there is one. By a token,
    /// the owner is not asked for the segment: the token describes it.
    ///
    /// # Errors
    /// [`Error::BadAddress`], [`Error::Wire`] for a bad token or a peer that breaks the protocol, [`Error::Unreachable`],
    /// [`Error::Refused`] (no such segment, say), [`Error::OtherPeer`], [`Error::PeerGone`], [`Error::TimedOut`],
    /// [`Error::Transport`] when there are too many links, [`Error::Memory`] for a segment that no transport here can reach,
    /// [`Error::Full`] when too many questions wait, [`Error::Closed`]; all of them come by the answer.
    pub fn open(&self, segment: &str) -> Pending<Segment> {
        const WHAT: &str = "opening a segment";
        match target(segment) {
            Err(error) => Pending::ready(WHAT, Err(error)),
            Ok(target) => {
                let (sender, pending) = Pending::new(WHAT);
                let shared = self.shared().clone();
                shared.control.clone().spawn(async move {
                    // Nobody listens any more when the answer was given up.
                    let _ = sender.send(shared.open(target).await);
                });
                pending
            }
        }
    }

    /// Prepares many pieces between a slice of our memory and a segment: to be written there, or read from there. The two layouts
    /// are walked together, the first byte of one being the partner of the first byte of the other; their offsets count from the
    /// begin of the slice and of the segment. Checked here, and posted by [`Batch::list`] and [`Batch::subset`] as often as wanted.
    ///
    /// # Errors
    /// [`Error::BadList`] with the first bad piece, [`Error::BadRequest`] when the region or the segment does not permit it.
    pub fn prepare(
        &self,
        kind: OpKind,
        local: &Slice,
        here: Layout<'_>,
        segment: &Segment,
        there: Layout<'_>,
    ) -> Result<Prepared, Error> {
        Prepared::new(kind, local, segment, here, there)
    }

    /// How many requests have failed since the engine started because their bytes came damaged ([`Batch::verify`]). For monitoring: it
    /// never falls.
    pub fn damaged_ever(&self) -> u64 {
        self.shared().workers.iter().map(|worker| worker.damaged()).sum()
    }

    /// Where each of its workers runs, as [`Config::worker_cpus`] has it.
    pub fn worker_places(&self) -> Vec<WorkerPlace> {
        self.shared().workers.iter().map(|worker| worker.place().clone()).collect()
    }

    /// How often routes were not taken, by the reason, since the engine started. For monitoring: none ever falls. A reason counts once for
    /// each decision; requests of one kind that are submitted together are decided together.
    pub fn route_reasons(&self) -> Vec<(&'static str, u64)> {
        self.shared().counts.snapshot()
    }

    /// Begins to carry out a batch. Checks all of it first, and begins all of it or nothing. Where as much is under way as may be
    /// ([`Config::queued_transfers`], [`Config::queued_requests`]), it blocks until there is room, at the latest until the batch's
    /// deadline; who came first goes first, and the calling thread drives the engine meanwhile. See [`Engine::try_submit`] and
    /// [`Engine::submit_async`] for callers that must not block.
    ///
    /// # Errors
    /// [`Error::BadRequest`] with the first bad request's number, [`Error::TooLarge`] for a batch that never has room,
    /// [`Error::TimedOut`] when there was no room until the deadline, [`Error::PeerGone`], [`Error::Memory`] for a region that is
    /// retired or being revoked, [`Error::BadName`] for the name of a notification, [`Error::Closed`]; nothing has started then.
    pub fn submit(&self, batch: Batch) -> Result<Transfer, Error> {
        self.shared().submit(batch)
    }

    /// As [`Engine::submit`], and never waits.
    ///
    /// # Errors
    /// [`Error::Full`] where there is no room now, or others wait for it; otherwise as [`Engine::submit`].
    pub fn try_submit(&self, batch: Batch) -> Result<Transfer, Error> {
        self.shared().try_submit(batch)
    }

    /// As [`Engine::submit`], and waits for room by a future. Dropping it before it is ready submits nothing.
    ///
    /// # Errors
    /// By the answer, as [`Engine::submit`].
    pub fn submit_async(&self, batch: Batch) -> Pending<Transfer> {
        self.shared().submit_async(batch)
    }

    /// Sends a notification to the owner of a segment; the answer comes when it stands in the owner's queue. In order with other
    /// notifications to the same peer, as they are sent: alone by this call, bound to a batch when its bytes are in place.
    ///
    /// # Errors
    /// By the answer: [`Error::Refused`] (the queue is full, say), [`Error::PeerGone`], [`Error::TimedOut`], [`Error::BadName`] for
    /// a name of more than 255 bytes, [`Error::BadRequest`] for more than 64 KiB, [`Error::Full`] when as much is under way as may be,
    /// [`Error::Closed`]. After [`Error::TimedOut`] and [`Error::PeerGone`] it is not known whether the owner has it.
    pub fn notify(&self, owner_of: &Segment, name: &str, payload: &[u8]) -> Pending<()> {
        const WHAT: &str = "a notification";
        match self.shared().notify(owner_of, name, payload) {
            Ok(transfer) => Pending::announced(WHAT, transfer, owner_of.clone()),
            Err(error) => Pending::ready(WHAT, Err(error)),
        }
    }

    /// The receiver of peers' notifications; none when it was taken before. Once it is dropped, further notifications are refused.
    pub fn notifications(&self) -> Option<Notifications> {
        self.shared().receiver.lock().take().map(|queue| Notifications { queue })
    }

    /// Shuts the engine down: takes no more work, fails transfers that are under way, tells peers, closes all connections, and ends
    /// its threads. Blocks until that is done: at once where nothing is under way, otherwise peers have 250 ms to answer writes that
    /// have begun, which then end as fenced. No memory of this side can be touched afterwards; where a peer did not answer,
    /// [`TransferError::Closed`](crate::TransferError::Closed) says that bytes may still land there for a moment.
    pub fn shutdown(&self) {
        let shared = self.shared();
        shared.closed.store(true, Ordering::Release);
        let Some(mut threads) = self.owner.threads.lock().take() else { return };
        if let Some(door) = &mut threads.door {
            door.close();
        }
        self.refuse_more();
        shared.workers.iter().for_each(|w| w.stop());
        shared.servers.iter().for_each(|s| s.stop());
        threads.counterparts.stop();
        for join in threads.joins {
            // The last handle may be dropped by what one of these threads drops; it ends by itself then.
            if join.thread().id() != std::thread::current().id() && join.join().is_err() {
                tracing::error!("a thread of the engine panicked");
            }
        }
        let written = clock::now() + FAREWELL_LIMIT;
        for session in self.say_farewell() {
            block_on(session.ended(), Some(written));
        }
        threads.control.stop();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let threads = Mutex::new(self.threads.lock().take());
        if threads.lock().is_some() {
            // A handle for the time of the shutdown; it finds no threads when it is dropped itself.
            Engine { owner: Arc::new(Owner { shared: self.shared.clone(), threads }) }.shutdown();
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("peer", &self.peer_id())
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

/// What makes the transports of one worker, on the worker's thread.
fn router(
    features: &Arc<Features>,
    config: &Config,
    (identity, registry): (Identity, &Arc<Registry>),
    counts: &Arc<ReasonCounts>,
) -> impl FnOnce(&mut WorkerPlace) -> Result<Router, Error> + Send + use<> {
    let (features, registry, counts) = (features.clone(), registry.clone(), counts.clone());
    let policy = config.policy.clone();
    move |place| {
        place.near = features.near(place.node);
        let transports = features.transports(identity, &registry, place)?;
        let router = Router::new(transports, policy, counts, clock::now());
        Ok(router
            .map_err(|source| TransportError::Io { what: "a worker's event queue".to_string(), source })?)
    }
}

fn target(text: &str) -> Result<Target, Error> {
    let bad = |why: &str| Error::BadAddress { text: text.to_string(), why: why.to_string() };
    if text.trim_start().starts_with("otseg") {
        return Ok(Target::Token(Box::new(text.parse::<SegmentToken>()?)));
    }
    let (host, name) = text.split_once('/').ok_or_else(|| bad("it has no `/` before the segment's name"))?;
    if name.is_empty() {
        return Err(bad("the segment's name is empty"));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(bad("the segment's name has more than 255 bytes"));
    }
    let port = host.rsplit_once(':').map(|(_, port)| port).ok_or_else(|| bad("the port is missing"))?;
    if port.parse::<u16>().is_err() {
        return Err(bad("the port is no number from 0 to 65535"));
    }
    Ok(Target::Address { host: host.to_string(), name: name.to_string() })
}
