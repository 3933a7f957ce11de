//! The side of a transport that peers reach, as whoever owns sessions sees it. Rule: it is shared and never waits: sessions begin, speak and
//! end on one thread, memory is withdrawn on any other, and one more looks after it where it asks for that.
//!
//! A [`Transport`](crate::Transport) begins its links from one side. The peer's side has no links, but what its own transport of the same
//! name needs there: an address to announce, perhaps an answer to what the other one says ([`Event::Control`](crate::Event::Control)), and
//! something that lets go when a session ends. A transport whose links are made by connections that a listener hands on, as TCP's are,
//! needs none.

use crate::error::TransportError;
use crate::progress::Arm;
use orbit_te_wire::{PeerId, SessionId};
use std::sync::Arc;
use std::time::Instant;

/// Says bytes to the transport of a peer, over the control link of one session.
pub trait Say: Send + Sync {
    /// Has the bytes written behind what was said before, to be given to the peer's [`Transport::deliver`](crate::Transport::deliver).
    /// Never waits. False when they are not written: the session is over, too much waits to be written, or they are more than one message
    /// takes ([`orbit_te_wire::limits::MAX_NOTIFICATION_BYTES`], or less by agreement); what depends on them will not come about then.
    /// True is no proof that they arrive.
    fn say(&self, bytes: Vec<u8>) -> bool;
}

/// The side of a transport that peers reach.
///
/// No call of it blocks: those that name a session are made by the thread that has all control links of the process. Who owns the sessions
/// carries what the two sides say; memory that is withdrawn meanwhile is told by [`orbit_te_memory::Recall`], if it asks for that.
pub trait Counterpart: Send + Sync {
    /// The transports whose counterpart it is, by [`Capabilities::name`](crate::Capabilities::name); at least one. Several that are met in
    /// one place have one counterpart; it speaks in the name of the first.
    fn names(&self) -> &[&'static str];

    /// Lets the peer of this session come: for each transport, its name and the address that the peer's is to connect to, meant for this
    /// session alone. By `say` it speaks to the peer until the session ends; it keeps silent until the peer's transport has said something or
    /// has come, since there is no link yet. A peer that asks again gets new addresses, in place of the old ones.
    ///
    /// # Errors
    /// Why the peer is told of no address now; it is logged, and the session goes on.
    fn admit(
        &self,
        session: SessionId,
        peer: PeerId,
        say: Arc<dyn Say>,
    ) -> Result<Vec<(&'static str, Vec<u8>)>, TransportError>;

    /// Takes bytes that the peer's transport sent by [`Event::Control`](crate::Event::Control), in their order. Whatever of them has to
    /// wait is bounded by the counterpart. The peer's transport makes a link that broke anew, so it may begin from the beginning.
    ///
    /// # Errors
    /// The peer breaks the rules, or is refused. The session's use of the transport ends by it: [`Counterpart::drop_session`] follows, and
    /// nothing more is delivered; the session itself goes on.
    fn deliver(&self, session: SessionId, bytes: &[u8], now: Instant) -> Result<(), TransportError>;

    /// Ends a session: its peer gets nothing more and is made to leave. What the peer may still touch by itself stays held
    /// ([`orbit_te_memory::Hold`]) until it has left. A session that was not admitted is ignored.
    fn drop_session(&self, session: SessionId);

    /// How to wait for what [`Counterpart::poll`] finds; none where it never finds anything, which is asked once, before it is used, and
    /// then no thread looks after it. The descriptor is the same each time.
    fn arm(&self, _now: Instant) -> Option<Arm> {
        None
    }

    /// Takes what has come, without blocking; whether that was anything. One thread at a time calls it.
    fn poll(&self, _now: Instant) -> bool {
        false
    }

    /// Lets nobody in any more, and makes everybody leave.
    fn close(&self);

    /// How much is held because peers may touch it by themselves; whoever has closed it waits a moment for this to be zero.
    fn held(&self) -> usize {
        0
    }
}
