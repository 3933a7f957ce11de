//! The threads that answer peers: one listens, the others serve data lanes. Rule: nothing here waits for a peer, and a stranger at
//! the listening port delays no lane that stands.

use crate::clock;
use crate::config::Config;
use crate::control;
use crate::error::Error;
use crate::guard;
use crate::mailbox::Inbox;
use crate::shared::Shared;
use crate::sleeper::Sleeper;
use crate::world::Accepted;
use orbit_te_memory::{GrantId, Lease, Registry};
use orbit_te_tcp::net::{Net, Stream};
use orbit_te_tcp::{Identity, Incoming, Listener, TcpTransport};
use orbit_te_transport::{Arm, Progress, Transport, TransportError};
use orbit_te_wire::{RegionId, Role, SessionId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The pause before a serving thread asks the system again for what it needs.
const REMAKE: Duration = Duration::from_millis(100);
/// Lanes that wait to be taken by a serving thread.
const MAX_INBOX: usize = 1024;

enum Errand {
    Adopt(Box<Incoming>),
    Drop(SessionId),
    Evict(Held),
}

/// What a peer may hold by stalling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Region(RegionId),
    Grant(GrantId),
}

impl Held {
    fn by(self, lease: &Lease) -> bool {
        match self {
            Held::Region(region) => lease.region().id() == region,
            Held::Grant(grant) => lease.grant().is_some_and(|g| g.id() == grant),
        }
    }
}

/// One serving thread, as the others see it.
pub(crate) struct Server {
    inbox: Mutex<Vec<Errand>>,
    /// Set with the inbox filled, so that an empty one costs the thread no lock.
    mail: AtomicBool,
    sleeper: Sleeper,
    stop: AtomicBool,
    spin: Duration,
}

impl Server {
    /// A serving thread over a transport of its own.
    pub(crate) fn start(
        name: String,
        config: &Config,
        identity: Identity,
        registry: &Arc<Registry>,
        inbox: &Arc<Inbox>,
    ) -> Result<(Arc<Server>, JoinHandle<()>), Error> {
        let server = Server::new(config)?;
        let (tcp, registry, inbox) = (config.tcp, registry.clone(), inbox.clone());
        let make = move || {
            let mut transport = TcpTransport::new(tcp, identity, &registry)?;
            transport.deliver_to(inbox.clone());
            Ok(transport)
        };
        let first = server.watched(make()?)?;
        let own = server.clone();
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || own.run(first, make))
            .map_err(io("a serving thread"))?;
        Ok((server, thread))
    }

    /// A server that somebody else asks for its errands.
    pub(crate) fn new(config: &Config) -> Result<Arc<Server>, Error> {
        Ok(Arc::new(Server {
            inbox: Mutex::new(Vec::new()),
            mail: AtomicBool::new(false),
            sleeper: Sleeper::new().map_err(io("a serving thread's event queue"))?,
            stop: AtomicBool::new(false),
            spin: Duration::from_micros(config.spin_us),
        }))
    }

    /// Serves this lane from now on.
    pub(crate) fn adopt(&self, incoming: Incoming) {
        if self.inbox.lock().len() >= MAX_INBOX {
            return incoming.refuse("too many lanes wait to be taken; try again");
        }
        self.send(Errand::Adopt(Box::new(incoming)));
    }

    /// Closes a session's lanes.
    pub(crate) fn drop_session(&self, session: SessionId) {
        self.send(Errand::Drop(session));
    }

    /// Closes the lanes whose requests hold this.
    pub(crate) fn evict(&self, held: Held) {
        self.send(Errand::Evict(held));
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.sleeper.kick();
    }

    fn send(&self, errand: Errand) {
        self.inbox.lock().push(errand);
        self.mail.store(true, Ordering::Release);
        self.sleeper.kick();
    }

    /// A transport whose events wake this thread.
    fn watched(&self, mut transport: TcpTransport) -> Result<TcpTransport, TransportError> {
        if let Arm::Sleep { fd: Some(fd), .. } = transport.arm(clock::now()) {
            let what = || "watching a transport".to_string();
            self.sleeper.watch(fd).map_err(|source| TransportError::Io { what: what(), source })?;
        }
        Ok(transport)
    }

    /// Serves until it is told to stop. A panic costs this thread's lanes, and nothing else: with the transport all of its sockets
    /// are closed, so that nothing lands any more and its leases may go; peers make new lanes.
    fn run(&self, first: TcpTransport, make: impl Fn() -> Result<TcpTransport, TransportError>) {
        let mut next = Ok(first);
        while !self.stop.load(Ordering::Acquire) {
            match next {
                Ok(transport) => match guard::caught(|| self.serve(transport)) {
                    Ok(()) => return,
                    Err(panic) => {
                        tracing::error!(panic, "a serving thread lost its lanes; peers make new ones");
                    }
                },
                Err(error) => {
                    tracing::error!(%error, "no transport for a serving thread; trying again");
                    thread::sleep(REMAKE);
                }
            }
            next = make().and_then(|transport| self.watched(transport));
        }
    }

    fn serve(&self, mut transport: TcpTransport) {
        let mut progress = Progress::with_capacity(1);
        let mut now = clock::now();
        let mut quiet_since = now;
        while !self.stop.load(Ordering::Acquire) {
            let mail = self.mail.load(Ordering::Acquire)
                && self.take_mail(&mut transport, now, |transport, incoming| {
                    if let Err(error) = transport.adopt(incoming) {
                        tracing::warn!(%error, "a lane was not taken");
                    }
                });
            if transport.poll(now, 1, &mut progress) || mail {
                quiet_since = now;
            } else if now - quiet_since >= self.spin {
                if let Arm::Sleep { until, .. } = transport.arm(now) {
                    self.sleeper.sleep(until);
                }
                quiet_since = clock::now();
            } else {
                // The thread that would bring what is waited for may want this very CPU.
                thread::yield_now();
            }
            progress.clear();
            now = clock::now();
        }
        transport.close(now);
    }

    /// Does what other threads have asked for; whether that was anything.
    pub(crate) fn take_mail<N: Net>(
        &self,
        transport: &mut TcpTransport<N>,
        now: Instant,
        adopt: impl Fn(&mut TcpTransport<N>, Incoming),
    ) -> bool {
        self.mail.store(false, Ordering::Release);
        let errands = std::mem::take(&mut *self.inbox.lock());
        let any = !errands.is_empty();
        for errand in errands {
            match errand {
                Errand::Adopt(incoming) => adopt(transport, *incoming),
                Errand::Drop(session) => transport.drop_session(session, now),
                Errand::Evict(held) => {
                    let closed = transport.evict(&|lease| held.by(lease), now);
                    tracing::warn!(?held, closed, "peers that hold memory beyond its limit lose their lanes");
                }
            }
        }
        any
    }
}

/// The thread that listens.
pub(crate) struct Door {
    waker: Arc<mio::Waker>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    pub(crate) fn open(listener: Listener, shared: Weak<Shared>) -> Result<Door, Error> {
        let waker = listener.waker();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("orbit-te-listen".to_string())
            .spawn(move || listen(listener, &shared, &stopped))
            .map_err(|source| TransportError::Io { what: "the listening thread".to_string(), source })?;
        Ok(Door { waker, stop, thread: Some(thread) })
    }

    pub(crate) fn close(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            if thread.join().is_err() {
                tracing::error!("the listening thread panicked");
            }
        }
    }
}

fn listen(mut listener: Listener, shared: &Weak<Shared>, stop: &AtomicBool) {
    let mut incoming = Vec::new();
    while !stop.load(Ordering::Acquire) {
        if let Err(error) = listener.accept(Duration::from_secs(60), &mut incoming) {
            tracing::error!(%error, "listening failed; trying again");
            thread::sleep(Duration::from_millis(100));
        }
        for connection in incoming.drain(..) {
            let Some(shared) = shared.upgrade() else { return };
            let_in(&shared, connection, |server, connection| server.adopt(connection));
        }
    }
}

/// Takes or refuses a connection whose hello was read. `adopt` gives a lane to the server of its session.
pub(crate) fn let_in<S: Stream + Accepted>(
    shared: &Arc<Shared>,
    connection: Incoming<S>,
    adopt: impl FnOnce(&Server, Incoming<S>),
) {
    match connection.hello.role {
        Role::Control if shared.admitted.lock().len() >= shared.config.peers => {
            connection.refuse(&format!("{} peers are connected, the limit here", shared.config.peers));
        }
        Role::Control => {
            let weak = Arc::downgrade(shared);
            shared.control.spawn(control::welcome(weak, connection));
        }
        Role::Lane { session, .. } => {
            let peer = shared.admitted.lock().get(&session).map(|s| s.peer);
            if peer != Some(connection.hello.peer) {
                connection.refuse("unknown session; the peer was restarted, or the control link has ended");
            } else if let Some(server) = shared.server_for(session) {
                adopt(server, connection);
                // The session may have ended since it was looked up, and its lanes been dropped before this one came.
                if !shared.admitted.lock().contains_key(&session) {
                    server.drop_session(session);
                }
            }
        }
    }
}

fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> TransportError {
    move |source| TransportError::Io { what: what.to_string(), source }
}
