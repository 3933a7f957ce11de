//! What an engine's threads and handles share. Rule: nothing here owns a thread, so that whoever holds it keeps none alive.

use crate::batch::Batch;
use crate::config::Config;
use crate::control::{self, Target};
use crate::core::Command;
use crate::error::Error;
use crate::grants::Exposed;
use crate::notification::Notification;
use crate::peer::Peer;
use crate::retention::Retention;
use crate::segment::{Inner, Segment};
use crate::serving::{Held, Server};
use crate::session::Session;
use crate::transfer::{Part, Transfer};
use crate::worker::Worker;
use orbit_te_memory::{Domain, Registry};
use orbit_te_tcp::Identity;
use orbit_te_wire::{Control, Incarnation, PeerId, SessionId};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// The longest wait for lanes to be closed.
const EVICTION: Duration = Duration::from_secs(1);

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
    pub(crate) next_worker: AtomicUsize,
    pub(crate) servers: Vec<Arc<Server>>,
    pub(crate) control: Handle,
    pub(crate) exposed: RwLock<HashMap<String, Exposed>>,
    pub(crate) retention: Arc<Retention>,
    /// Peers that this side opened a session to.
    pub(crate) peers: Mutex<Vec<Arc<Peer>>>,
    /// For each address that is being called, a lock that is held meanwhile.
    pub(crate) opening: Mutex<HashMap<SocketAddr, Turn>>,
    /// Sessions that peers opened to this side.
    pub(crate) admitted: Mutex<HashMap<SessionId, Arc<Session>>>,
    /// None once the engine is shut down, so that the receiver ends.
    pub(crate) notifications: Mutex<Option<mpsc::Sender<Notification>>>,
    pub(crate) receiver: Mutex<Option<mpsc::Receiver<Notification>>>,
    pub(crate) closed: AtomicBool,
}

impl Shared {
    pub(crate) fn queue_notification(
        &self,
        session: &Session,
        name: String,
        payload: Vec<u8>,
    ) -> Result<(), &'static str> {
        let notification = Notification { peer: session.peer, name, payload };
        let sender = self.notifications.lock().clone();
        let sender = sender.ok_or("the engine is shutting down")?;
        sender.try_send(notification).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => "the queue of notifications is full; try again later",
            mpsc::error::TrySendError::Closed(_) => "nobody takes notifications there any more",
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
    }

    /// Closes the lanes of peers that hold such memory; how long that may take at most. The serving threads never wait for
    /// a peer, so it is a matter of their turn.
    pub(crate) fn evict(&self, held: Held) -> Duration {
        self.servers.iter().for_each(|server| server.evict(held));
        if self.servers.is_empty() { Duration::ZERO } else { EVICTION }
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

    pub(crate) fn submit(self: &Arc<Self>, batch: Batch) -> Result<Transfer, Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let state = batch.prepare(self)?;
        for (part, Part { worker, .. }) in state.parts.iter().enumerate() {
            let command = Command::Submit { transfer: state.clone(), part };
            // Once its first part has begun the transfer is admitted: the others wait for room.
            if part > 0 {
                worker.admit_always(command);
            } else if worker.admit(command).is_err() {
                return Err(Error::Full { limit: self.config.queued_transfers });
            }
        }
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
        let key = self.domains[0].import(&descriptor)?;
        Ok(Segment { inner: Arc::new(Inner { shared: self, peer, name, descriptor, key }) })
    }
}
