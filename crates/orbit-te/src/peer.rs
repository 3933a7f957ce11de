//! A peer as this engine reaches it: its session, its link, and what is known of their state. Rule: a peer is one life of one
//! engine; when its session ends it is gone for good, and opening its segment again makes a new one.

use crate::pulse::Pulse;
use crate::route::RouteId;
use crate::session::Session;
use crate::worker::Worker;
use nix::errno::Errno;
use orbit_te_transport::{LinkId, TransportError};
use orbit_te_wire::{Incarnation, PeerId};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// What is known of a link.
pub(crate) struct LinkStatus {
    cause: Mutex<Option<Arc<str>>>,
    /// That of the peer's control link.
    pub(crate) pulse: Arc<Pulse>,
    /// By which transports speak to the peer; it may have ended.
    session: Weak<Session>,
}

impl LinkStatus {
    pub(crate) fn new(session: &Arc<Session>) -> LinkStatus {
        LinkStatus { cause: Mutex::default(), pulse: session.pulse.clone(), session: Arc::downgrade(session) }
    }

    /// Has something said to the counterpart of a route's transport; whether it will be written. Never waits.
    pub(crate) fn say(&self, route: RouteId, bytes: Vec<u8>) -> bool {
        self.session.upgrade().is_some_and(|session| session.say(route.name(), bytes))
    }

    pub(crate) fn up(&self) {
        *self.cause.lock() = None;
    }

    pub(crate) fn down(&self, error: &TransportError) {
        match error {
            // The system's own verdict on a connection that stood: nothing was acknowledged in time.
            TransportError::Io { source, .. } if source.raw_os_error() == Some(Errno::ETIMEDOUT as i32) => {
                self.fail(&format!(
                    "{error}: its host acknowledged nothing; is it, or the path to it, gone?"
                ));
            }
            _ => self.fail(&error.to_string()),
        }
    }

    /// Keeps a cause that explains what comes after it.
    pub(crate) fn fail(&self, cause: &str) {
        *self.cause.lock() = Some(Arc::from(cause));
    }

    /// Why the link is down; none while it is up.
    pub(crate) fn cause(&self) -> Option<Arc<str>> {
        self.cause.lock().clone()
    }
}

/// A peer with a session and a link.
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) incarnation: Incarnation,
    /// The address that answered.
    pub(crate) address: SocketAddr,
    pub(crate) session: Arc<Session>,
    pub(crate) worker: Arc<Worker>,
    pub(crate) link: LinkId,
    /// Whether it was met on this host.
    pub(crate) same_host: bool,
}

impl Peer {
    /// Why it is gone, if it is.
    pub(crate) fn gone(&self) -> Option<Arc<str>> {
        self.session.gone()
    }
}
