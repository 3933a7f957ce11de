//! The control plane: opening sessions to peers, letting peers in, and what follows when a session ends. Rule: everything here
//! runs on one thread with a runtime of its own, apart from the data plane and from the application's runtime.

use crate::command::Command;
use crate::error::Error;
use crate::features::is_of_one_host;
use crate::letters::Addressee;
use crate::peer::{LinkStatus, Peer};
use crate::route::{RouteId, RouteSet};
use crate::session::{self, Session};
use crate::shared::Shared;
use crate::worker::Worker;
use crate::world::{Accepted, ControlLink};
use orbit_te_tcp::{Incoming, TcpAddress};
use orbit_te_transport::{LinkId, TransportError};
use orbit_te_wire::hello::PRELUDE_BYTES;
use orbit_te_wire::negotiate;
use orbit_te_wire::{
    AuthSlot, Control, Features, Hello, HelloReply, Incarnation, PeerId, Role, SegmentToken,
};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long opening a session waits for a peer's other routes.
const JOINING: Duration = Duration::from_millis(500);

/// The control thread.
pub(crate) struct ControlThread {
    pub(crate) handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlThread {
    pub(crate) fn start() -> Result<ControlThread, Error> {
        let io = |what: &'static str| move |source| TransportError::Io { what: what.to_string(), source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(io("the control plane's runtime"))?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("orbit-te-control".to_string())
            .spawn(move || {
                // Ends when told, and also when the engine is gone without having told.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_timeout(Duration::from_millis(100));
            })
            .map_err(io("the control plane's thread"))?;
        Ok(ControlThread { handle, stop: Some(stop), thread: Some(thread) })
    }

    pub(crate) fn stop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("the control thread panicked");
            }
        }
    }
}

/// What a segment is opened by.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Address { host: String, name: String },
    Token(Box<SegmentToken>),
}

/// A session with whoever answers there, an open one if there is one.
pub(crate) async fn reach(shared: &Arc<Shared>, target: &Target) -> Result<Arc<Peer>, Error> {
    let (addresses, expected) = match target {
        Target::Address { host, .. } => {
            let unresolved = |cause| Error::Unreachable { address: host.clone(), cause };
            let limit = shared.config.control_timeout;
            let found = timeout(limit, tokio::net::lookup_host(host.as_str()))
                .await
                .map_err(|_| unresolved(format!("the name was not resolved in {limit:?}")))?
                .map_err(|e| unresolved(format!("the name can't be resolved: {e}")))?;
            (found.collect::<Vec<_>>(), None)
        }
        Target::Token(token) => (token.addresses.clone(), Some((token.peer, token.incarnation))),
    };
    // One at a time to each peer: two callers that open its segments get one session. Others are not held up.
    let turn = addresses.first().map(|first| shared.turn(*first));
    let limit = shared.config.control_timeout;
    let _mine =
        match &turn {
            Some(turn) => Some(timeout(limit, turn.lock()).await.map_err(|_| Error::TimedOut {
                what: "waiting for an earlier call of the same peer",
                limit,
            })?),
            None => None,
        };
    if let Some(peer) = shared.known_peer(&addresses, expected) {
        return Ok(peer);
    }
    let mut failures = Vec::new();
    for address in &addresses {
        match timeout(shared.config.control_timeout, connect(shared, *address, expected)).await {
            Ok(Ok(peer)) => return Ok(peer),
            Ok(Err(Error::Unreachable { cause, .. })) => failures.push(format!("{address}: {cause}")),
            // The owner may still answer at another of its addresses.
            Ok(Err(Error::OtherPeer { found, .. })) if addresses.len() > 1 => {
                failures.push(format!("{address}: another peer, {found}, answers there"));
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let waited = shared.config.control_timeout;
                failures.push(format!("{address}: no answer after {waited:?}; does OrbitTE listen there?"));
            }
        }
    }
    let address = match target {
        Target::Address { host, .. } => host.clone(),
        Target::Token(token) => format!("the owner of segment `{}`", token.name),
    };
    let cause = match failures.as_slice() {
        [] => "it has no address".to_string(),
        // Not to name the address twice.
        [only] => only.strip_prefix(&format!("{address}: ")).unwrap_or(only).to_string(),
        several => several.join("; "),
    };
    Err(Error::Unreachable { address, cause })
}

async fn connect(
    shared: &Arc<Shared>,
    address: SocketAddr,
    expected: Option<(PeerId, Incarnation)>,
) -> Result<Arc<Peer>, Error> {
    let unreachable = |cause: String| Error::Unreachable { address: address.to_string(), cause };
    let mut stream = shared.world.dial(address).await.map_err(|e| unreachable(e.to_string()))?;
    let hello = Hello {
        role: Role::Control,
        peer: shared.identity.peer,
        incarnation: shared.identity.incarnation,
        features: Features::OURS,
        limits: shared.config.tcp.limits,
        auth: AuthSlot::default(),
    };
    stream.writer.write_all(&hello.encode()?).await.map_err(|e| unreachable(e.to_string()))?;
    let no_answer =
        |e: std::io::Error| unreachable(format!("no hello came back ({e}); does OrbitTE listen there?"));
    let mut prelude = [0u8; PRELUDE_BYTES];
    stream.reader.read_exact(&mut prelude).await.map_err(no_answer)?;
    let prelude = HelloReply::decode_prelude(&prelude)?;
    let mut body = vec![0u8; prelude.body_bytes as usize];
    stream.reader.read_exact(&mut body).await.map_err(no_answer)?;
    let accepted = negotiate::answer(&prelude, HelloReply::decode_body(&body)?, &hello)?
        .map_err(|reason| Error::Refused { address: address.to_string(), code: None, reason })?;
    let (peer, incarnation) = (accepted.peer, accepted.incarnation);
    if let Some((wanted, life)) = expected {
        if (peer, incarnation) != (wanted, life) {
            return Err(Error::OtherPeer { expected: wanted, found: peer });
        }
    }
    let (session, queue) = Session::new(accepted.session, peer, address, accepted.terms);
    let worker = shared.next_worker();
    let status = Arc::new(LinkStatus::new(&session));
    let lanes = TcpAddress { addresses: vec![address], session: session.id }.encode()?;
    let (reply, link) = oneshot::channel();
    worker.submit_always(Command::Connect { peer, address: lanes, status: status.clone(), reply });
    worker.attend();
    let link = link.await.map_err(|_| Error::Closed)??;
    let keeper = Keeper { status, worker: worker.clone(), peer, link, routes: shared.joined };
    let heartbeat = shared.config.heartbeat;
    tokio::spawn(keep(Arc::downgrade(shared), keeper, session.clone(), stream, queue, heartbeat));
    let same_host = join(shared, &session, &worker, link).await;
    let peer = Arc::new(Peer { id: peer, incarnation, address, session, worker, link, same_host });
    if let Some(cause) = peer.gone() {
        return Err(Error::PeerGone { peer: peer.id, cause: cause.to_string() });
    }
    shared.peers.lock().push(peer.clone());
    // It may have ended between the two.
    shared.peers.lock().retain(|known| known.gone().is_none());
    tracing::info!(peer = %peer.id, %address, same_host, "session opened");
    Ok(peer)
}

/// Asks a peer where its other transports are met, and reaches it there as well; whether it was met on this host. What does not come of it
/// in a moment comes later or not at all, and the peer is reached over TCP until then.
async fn join(shared: &Arc<Shared>, session: &Arc<Session>, worker: &Arc<Worker>, link: LinkId) -> bool {
    if shared.joined.is_empty() || !session.terms().features.contains(Features::ADDRESSES) {
        return false;
    }
    let question = |request| Control::Addresses { request };
    let addresses = match session.ask("asking for addresses", shared.config.control_timeout, question).await {
        Ok(Control::AddressesAre { addresses, .. }) => addresses,
        Ok(_) => return false,
        Err(error) => {
            tracing::warn!(peer = %session.peer, %error, "the peer does not say where else it is reached");
            return false;
        }
    };
    let limit = shared.config.control_timeout.min(JOINING);
    let (mut answers, mut left) = (Vec::new(), shared.joined);
    for address in addresses {
        // A newer peer may have ways that this side does not know, and each is joined once, but for the base.
        let known = RouteId::named(&address.transport).filter(|route| left.contains(*route));
        let Some(route) = known else { continue };
        left.remove(route);
        let (reply, answer) = oneshot::channel();
        let (peer, address) = (session.peer, address.bytes);
        worker.submit_always(Command::Join { link, peer, route, address, reply });
        answers.push((route, answer));
    }
    worker.attend();
    let mut met = false;
    for (route, answer) in answers {
        let name = route.name();
        match timeout(limit, answer).await {
            // Who is met by the others may be anywhere.
            Ok(Ok(Ok(()))) => met |= is_of_one_host(route),
            Ok(Ok(Err(reason))) => {
                tracing::info!(peer = %session.peer, route = name, %reason, "a route is not there")
            }
            Ok(Err(_)) | Err(_) => {
                tracing::info!(peer = %session.peer, route = name, "a route is not there yet")
            }
        }
    }
    met
}

/// What is to be cleaned up after a session.
struct Keeper {
    peer: PeerId,
    status: Arc<LinkStatus>,
    worker: Arc<Worker>,
    link: LinkId,
    /// Which the worker has beside the base.
    routes: RouteSet,
}

/// Runs a session that this side opened, and cleans up after it.
async fn keep(
    shared: Weak<Shared>,
    keeper: Keeper,
    session: Arc<Session>,
    stream: ControlLink,
    queue: tokio::sync::mpsc::Receiver<session::Outgoing>,
    heartbeat: Duration,
) {
    let Keeper { peer, status, worker, link, routes } = keeper;
    let letters_to = Addressee::Worker { worker: worker.clone(), link, routes, waiting: Arc::default() };
    let cause = session::run(session.clone(), stream, queue, (shared.clone(), letters_to), heartbeat).await;
    tracing::info!(%peer, %cause, unknown_letters = session.deafness.unknown(), "session ended");
    status.fail(&format!("peer {peer} is gone: {cause}"));
    worker.submit_always(Command::Disconnect(link));
    worker.attend();
    if let Some(shared) = shared.upgrade() {
        shared.peers.lock().retain(|known| known.gone().is_none());
    }
}

/// Lets a peer's control link in, and serves it until it ends.
pub(crate) async fn welcome<S: Accepted>(shared: Weak<Shared>, incoming: Incoming<S>) {
    let Incoming { stream, from, hello, terms } = incoming;
    let Some(strong) = shared.upgrade() else { return };
    let mut stream = match stream.into_control() {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(%from, %error, "a control link could not be taken");
            return;
        }
    };
    let id = match strong.world.session_id() {
        Ok(id) => id,
        Err(error) => {
            tracing::error!(%error, "no random bytes for a session");
            return;
        }
    };
    let reply = HelloReply::Accepted {
        version: terms.version,
        peer: strong.identity.peer,
        incarnation: strong.identity.incarnation,
        session: id,
        features: terms.features,
        limits: terms.limits,
        auth: AuthSlot::default(),
    };
    let heartbeat = strong.config.heartbeat;
    let (session, queue) = Session::new(id, hello.peer, from, terms);
    strong.registry.grants().begin(id, hello.peer);
    strong.inbox.begin(id, hello.peer);
    strong.admitted.lock().insert(id, session.clone());
    drop(strong);
    let said = match reply.encode() {
        Ok(bytes) => timeout(heartbeat, stream.writer.write_all(&bytes)).await.is_ok_and(|r| r.is_ok()),
        Err(_) => false,
    };
    if said {
        tracing::info!(peer = %hello.peer, %from, session = %id, "peer connected");
        let letters_to = (shared.clone(), Addressee::Counterparts);
        let cause = session::run(session.clone(), stream, queue, letters_to, heartbeat).await;
        let unknown_letters = session.deafness.unknown();
        tracing::info!(peer = %hello.peer, %from, session = %id, %cause, unknown_letters, "peer left");
    }
    if let Some(shared) = shared.upgrade() {
        shared.admitted.lock().remove(&id);
        shared.registry.grants().end(id);
        shared.inbox.end(id);
        shared.drop_session(id);
    }
}
