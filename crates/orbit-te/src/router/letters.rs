//! What joined transports and their counterparts at peers say to each other, as it passes the router. Rule: a link whose words do not get
//! through is closed, so that nothing waits for an answer that does not come.

use super::{LOOK, Router};
use crate::route::RouteId;
use orbit_te_transport::{Event, LinkId, TransportError};
use std::time::Instant;

/// What a transport says to its counterpart at the peer.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The peer's link: the base's.
    pub(crate) link: LinkId,
    pub(crate) route: RouteId,
    /// The link of the route's transport.
    own: LinkId,
    pub(crate) bytes: Vec<u8>,
}

impl Router {
    /// Gives a transport what its counterpart at a peer has said. One that is not joined there hears nothing; where it does not take it, the
    /// leg goes down and others carry on.
    pub(crate) fn deliver(&mut self, link: LinkId, route: RouteId, bytes: &[u8], now: Instant) {
        let Some(at) = self.routes.iter().position(|known| known.id == route) else { return };
        let leg = self.peer(link).and_then(|legs| legs.legs.get(at)).and_then(Option::as_ref);
        let Some(own) = leg.map(|leg| leg.link) else {
            return tracing::debug!(route = route.name(), "bytes for a route that is not joined are ignored");
        };
        // It may have something to say, or be up.
        self.routes[at].looked = now.checked_sub(LOOK).unwrap_or(now);
        if let Err(error) = self.routes[at].transport.deliver(own, bytes, now) {
            self.cut(at, own, error, now);
        }
    }

    /// Takes down that what a transport says could not be carried: its link is closed.
    pub(crate) fn unsaid(&mut self, letter: &Outgoing, now: Instant) {
        let Some(at) = self.routes.iter().position(|known| known.id == letter.route) else { return };
        let what = "saying something over the control link".to_string();
        let source = std::io::Error::other("the session has ended, or too much waits to be written");
        self.cut(at, letter.own, TransportError::Io { what, source }, now);
    }

    /// What a transport says on a link of its own, for the peer of that link.
    pub(super) fn says(&mut self, at: usize, own: LinkId, bytes: Vec<u8>) {
        let is_own = |legs: &&super::Legs| legs.legs[at].as_ref().is_some_and(|leg| leg.link == own);
        if let Some(legs) = self.peers.iter().flatten().find(is_own) {
            self.letters.push(Outgoing { link: legs.link, route: self.routes[at].id, own, bytes });
        }
    }

    /// Whether a joined route to a peer is down: what it says of an op that finds no link then is of that route alone.
    pub(super) fn is_cut(&mut self, at: usize, link: LinkId) -> bool {
        let is_base = at + 1 == self.routes.len();
        let leg = self.peer(link).and_then(|legs| legs.legs.get(at)).and_then(Option::as_ref);
        !is_base && leg.is_some_and(|leg| leg.down.is_some())
    }

    /// Closes a link of a joined transport. Its ops end with errors of the transport, and what can be tried again is.
    fn cut(&mut self, at: usize, own: LinkId, error: TransportError, now: Instant) {
        let route = &mut self.routes[at];
        tracing::warn!(route = route.id.name(), %error, "the way to a peer is closed");
        // First that it is down: how its ops end is judged by that.
        self.happened(at, &Event::LinkDown { link: own, error }, now);
        let route = &mut self.routes[at];
        route.transport.disconnect(own, now);
        route.looked = now.checked_sub(LOOK).unwrap_or(now);
    }
}
