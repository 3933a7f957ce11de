//! What an engine's threads and handles share. Rule: nothing here owns a thread, so that whoever holds it keeps none alive.

use crate::admission::{Admission, Permit};
use crate::batch::{Batch, announce};
use crate::clock;
use crate::command::Command;
use crate::config::Config;
use crate::control::{self, Target};
use crate::error::Error;
use crate::features;
use crate::grants::Exposed;
use crate::letters::Voice;
use crate::mailbox::Inbox;
use crate::notification::Notification;
use crate::peer::Peer;
use crate::pending::{Pending, thread_waker};
use crate::receipt::Requests;
use crate::retention::Retention;
use crate::route::{MAX_ROUTES, Reason, ReasonCounts, RouteId, RouteSet};
use crate::router::Reach;
use crate::segment::{Inner, Segment};
use crate::serving::{Held, Server};
use crate::session::Session;
use crate::transfer::{Part, Timing, Transfer, TransferState};
use crate::worker::Worker;
use crate::world::World;
use orbit_te_memory::{Domain, Registry, RemoteKey};
use orbit_te_tcp::Identity;
use orbit_te_transport::Counterpart;
use orbit_te_wire::{Control, Incarnation, PeerId, RegionDescriptor, SessionId, TransportAddress};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// The longest wait for lanes to be closed.
pub(crate) const EVICTION: Duration = Duration::from_secs(1);

const ROOM: &str = "waiting for room for a batch";

/// Held by whoever calls a peer.
pub(crate) type Turn = Arc<tokio::sync::Mutex<()>>;

/// What the engine's threads and handles share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    pub(crate) registry: Arc<Registry>,
    pub(crate) domains: Vec<Arc<dyn Domain>>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) workers: Vec<Arc<Worker>>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) next_worker: AtomicUsize,
    pub(crate) servers: Vec<Arc<Server>>,
    pub(crate) control: Handle,
    pub(crate) world: Arc<dyn World>,
    /// How long the serving threads may take to close lanes.
    pub(crate) eviction: Duration,
    pub(crate) exposed: RwLock<HashMap<String, Exposed>>,
    pub(crate) retention: Arc<Retention>,
    /// What peers reach beside the lanes; none where nobody is let in.
    pub(crate) counterparts: Vec<Arc<dyn Counterpart>>,
    /// The routes that peers are joined by, which is all but the base.
    pub(crate) joined: RouteSet,
    /// How often routes were not taken.
    pub(crate) counts: Arc<ReasonCounts>,
    /// Peers that this side opened a session to.
    pub(crate) peers: Mutex<Vec<Arc<Peer>>>,
    /// For each address that is being called, a lock that is held meanwhile.
    pub(crate) opening: Mutex<HashMap<SocketAddr, Turn>>,
    /// Sessions that peers opened to this side.
    pub(crate) admitted: Mutex<BTreeMap<SessionId, Arc<Session>>>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) receiver: Mutex<Option<mpsc::Receiver<Notification>>>,
    pub(crate) closed: AtomicBool,
}

/// What [`Shared`] is made of.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    pub(crate) registry: Arc<Registry>,
    pub(crate) domains: Vec<Arc<dyn Domain>>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) workers: Vec<Arc<Worker>>,
    pub(crate) servers: Vec<Arc<Server>>,
    pub(crate) control: Handle,
    pub(crate) world: Arc<dyn World>,
    /// How long the serving threads may take to close lanes.
    pub(crate) eviction: Duration,
    pub(crate) retention: Arc<Retention>,
    pub(crate) counterparts: Vec<Arc<dyn Counterpart>>,
    pub(crate) counts: Arc<ReasonCounts>,
    /// Where notifications come in and go out.
    pub(crate) mail: (Arc<Inbox>, mpsc::Receiver<Notification>),
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Arc<Shared> {
        let Parts {
            config,
            identity,
            registry,
            domains,
            addresses,
            workers,
            servers,
            control,
            world,
            eviction,
            retention,
            counterparts,
            counts,
            mail: (inbox, receiver),
        } = parts;
        let base = domains.len().saturating_sub(1);
        let joined = domains[..base].iter().filter_map(|domain| RouteId::named(domain.name())).collect();
        let admission = Admission::new(config.queued_transfers, config.queued_requests);
        Arc::new(Shared {
            admission,
            config,
            identity,
            registry,
            domains,
            addresses,
            workers,
            next_worker: AtomicUsize::new(0),
            servers,
            control,
            world,
            eviction,
            exposed: RwLock::new(HashMap::new()),
            retention,
            counterparts,
            joined,
            counts,
            peers: Mutex::new(Vec::new()),
            opening: Mutex::new(HashMap::new()),
            admitted: Mutex::new(BTreeMap::new()),
            inbox,
            receiver: Mutex::new(Some(receiver)),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn next_worker(&self) -> Arc<Worker> {
        let turn = self.next_worker.fetch_add(1, Ordering::Relaxed);
        self.workers[turn % self.workers.len()].clone()
    }

    /// The serving thread that has all lanes of this session.
    pub(crate) fn server_for(&self, session: SessionId) -> Option<&Arc<Server>> {
        let count = self.servers.len() as u128;
        if count == 0 { None } else { self.servers.get((session.0 % count) as usize) }
    }

    pub(crate) fn drop_session(&self, session: SessionId) {
        if let Some(server) = self.server_for(session) {
            server.drop_session(session);
        }
        self.counterparts.iter().for_each(|counterpart| counterpart.drop_session(session));
    }

    /// Where the peer of a session, which it opened to this side, meets transports of ours beside the lanes.
    pub(crate) fn addresses_for(&self, session: &Arc<Session>) -> Vec<TransportAddress> {
        let mut all = Vec::new();
        if !self.admitted.lock().contains_key(&session.id) {
            return all;
        }
        for (at, counterpart) in self.counterparts.iter().enumerate() {
            let Some(&name) = counterpart.names().first().filter(|_| !session.deafness.is_deaf(at)) else {
                continue;
            };
            match counterpart.admit(session.id, session.peer, Arc::new(Voice::new(session, name))) {
                Ok(addresses) => {
                    all.extend(addresses.into_iter().map(|(transport, bytes)| TransportAddress {
                        transport: transport.to_string(),
                        bytes,
                    }))
                }
                Err(error) => tracing::warn!(%error, transport = name, "a peer is not told of a way to here"),
            }
        }
        all
    }

    /// Closes the lanes of peers that hold such memory; how long that may take at most. The serving threads never wait for
    /// a peer, so it is a matter of their turn.
    pub(crate) fn evict(&self, held: Held) -> Duration {
        self.servers.iter().for_each(|server| server.evict(held));
        if self.servers.is_empty() { Duration::ZERO } else { self.eviction }
    }

    /// The lock to hold while somebody is called at this address.
    pub(crate) fn turn(&self, address: SocketAddr) -> Turn {
        let mut opening = self.opening.lock();
        opening.retain(|_, turn| Arc::strong_count(turn) > 1);
        opening.entry(address).or_default().clone()
    }

    /// An open session to whoever was reached at one of these addresses.
    pub(crate) fn known_peer(
        &self,
        addresses: &[SocketAddr],
        expected: Option<(PeerId, Incarnation)>,
    ) -> Option<Arc<Peer>> {
        let fits = |p: &&Arc<Peer>| match expected {
            Some(wanted) => (p.id, p.incarnation) == wanted,
            None => addresses.contains(&p.address),
        };
        self.peers.lock().iter().filter(|p| p.gone().is_none()).find(fits).cloned()
    }

    /// Begins a batch if there is room for it now.
    pub(crate) fn try_submit(self: &Arc<Self>, batch: Batch) -> Result<Transfer, Error> {
        let submitted = clock::now();
        self.check(&batch)?;
        let permit = self.admission.enter(batch.len());
        let permit = permit.ok_or(Error::Full { limit: self.config.queued_transfers })?;
        self.begin(batch, submitted, permit)
    }

    /// Begins a batch, and waits for room until its deadline. The waiting thread drives a worker meanwhile.
    pub(crate) fn submit(self: &Arc<Self>, batch: Batch) -> Result<Transfer, Error> {
        let submitted = clock::now();
        self.check(&batch)?;
        if let Some(permit) = self.admission.enter(batch.len()) {
            return self.begin(batch, submitted, permit);
        }
        let timing = Timing { submitted, after: batch.allowed(self) };
        let mut waiting = self.admission.wait(batch.len());
        // Room may come from any worker: this thread drives one, the others' own threads go on.
        self.workers.iter().for_each(|worker| worker.attend());
        if let Some(worker) = batch.first_worker() {
            let tell_me = || waiting.on_granted(&thread_waker());
            worker.drive(
                &|| waiting.is_granted() || self.is_closed(),
                &tell_me,
                clock::now(),
                timing.deadline(),
            );
        }
        match waiting.take() {
            Some(permit) => self.begin(batch, submitted, permit),
            None if self.is_closed() => Err(Error::Closed),
            None => Err(Error::TimedOut { what: ROOM, limit: timing.after }),
        }
    }

    /// As [`Shared::submit`], without holding the caller up. Dropping the answer before it has come submits nothing.
    pub(crate) fn submit_async(self: &Arc<Self>, batch: Batch) -> Pending<Transfer> {
        let submitted = clock::now();
        if let Err(error) = self.check(&batch) {
            return Pending::ready(ROOM, Err(error));
        }
        if let Some(permit) = self.admission.enter(batch.len()) {
            return Pending::ready(ROOM, self.begin(batch, submitted, permit));
        }
        let limit = batch.allowed(self);
        let waiting = self.admission.wait(batch.len());
        self.workers.iter().for_each(|worker| worker.attend());
        let (mut sender, pending) = Pending::new(ROOM);
        let shared = self.clone();
        self.control.spawn(async move {
            let permit = tokio::select! {
                // Whoever asked has given up.
                _ = sender.closed() => return,
                permit = tokio::time::timeout(limit, waiting) => permit,
            };
            let answer = match permit {
                Ok(permit) => shared.begin(batch, submitted, permit),
                Err(_) => Err(Error::TimedOut { what: ROOM, limit }),
            };
            if let Err(Ok(transfer)) = sender.send(answer) {
                transfer.cancel();
            }
        });
        pending
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// What can be said of a batch before there is room for it.
    fn check(&self, batch: &Batch) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        if batch.is_empty() {
            return Err(Error::BadRequest { index: 0, why: "the batch is empty".to_string() });
        }
        let (requests, limit) = (batch.len(), self.config.queued_requests.max(1));
        if requests > limit { Err(Error::TooLarge { requests, limit }) } else { Ok(()) }
    }

    fn begin(self: &Arc<Self>, batch: Batch, submitted: Instant, permit: Permit) -> Result<Transfer, Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let state = batch.prepare(self, submitted, permit)?;
        for (part, Part { worker, .. }) in state.parts.iter().enumerate() {
            worker.submit_always(Command::Submit { transfer: state.clone(), part });
        }
        Ok(Transfer { state })
    }

    /// Sends a notification that belongs to no bytes.
    pub(crate) fn notify(
        self: &Arc<Self>,
        to: &Segment,
        name: &str,
        payload: &[u8],
    ) -> Result<Transfer, Error> {
        let submitted = clock::now();
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let announcement = announce(self, to, name, payload)?;
        let worker = announcement.worker.clone();
        let permit = self.admission.enter(0).ok_or(Error::Full { limit: self.config.queued_transfers })?;
        let timing = Timing { submitted, after: self.config.control_timeout };
        let (records, nothing) = (Requests::new(std::iter::empty()), (Vec::new(), Vec::new()));
        let state =
            TransferState::new(Vec::new(), records, nothing, timing, permit, Some(announcement), None);
        worker.submit_always(Command::Announce(state.clone()));
        Ok(Transfer { state })
    }

    pub(crate) async fn open(self: Arc<Self>, target: Target) -> Result<Segment, Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let peer = control::reach(&self, &target).await?;
        let (name, descriptor) = match target {
            Target::Token(token) => (token.name, token.descriptor),
            Target::Address { name, .. } => {
                let wanted = name.clone();
                let question = |request| Control::OpenSegment { request, name };
                match peer.session.ask("opening a segment", self.config.control_timeout, question).await? {
                    Control::Segment { descriptor, .. } => (wanted, descriptor),
                    _ => {
                        let what = "an answer of another kind than its question";
                        return Err(orbit_te_wire::WireError::Invalid { what }.into());
                    }
                }
            }
        };
        let (key, obstacles) = self.import(&descriptor)?;
        // Whether the peer is on this host is known by now: its routes were joined when it was reached.
        let rules = self.config.policy.ruleset(&name, peer.id, peer.same_host);
        let reach = Arc::new(Reach { obstacles, kind: descriptor.kind, rules });
        peer.worker.submit_always(Command::Learn { link: peer.link, key, reach: reach.clone() });
        Ok(Segment { inner: Arc::new(Inner { shared: self, peer, name, descriptor, key, _reach: reach }) })
    }

    /// Takes a peer's region in at all transports: its key, and what stands in the way of each but the base, which must reach it.
    fn import(
        &self,
        descriptor: &RegionDescriptor,
    ) -> Result<(RemoteKey, [Option<Reason>; MAX_ROUTES]), Error> {
        let mut obstacles = [None; MAX_ROUTES];
        let Some((base, others)) = self.domains.split_last() else { return Err(Error::Closed) };
        let key = base.import(descriptor)?;
        for domain in others {
            let Some(route) = RouteId::named(domain.name()) else { continue };
            // One key for all, so that an op needs no other one when it takes another route.
            let obstacle = match domain.import(descriptor) {
                Ok(same) if same == key => features::obstacle(route, descriptor),
                Ok(_) | Err(_) => Some(Reason::NotOffered),
            };
            obstacles[route.index()] = obstacle;
        }
        Ok((key, obstacles))
    }
}
