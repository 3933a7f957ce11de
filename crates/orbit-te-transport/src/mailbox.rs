//! Notifications: what a transport carries beside bytes for regions. Rule: the transport hands a notification to the receiving side's
//! mailbox and tells the sender what became of it; order, and that each is taken once, are made of numbers by those two.

use crate::op::{LinkId, Op, OpKind, RemoteSpan, Token, Verify};
use crate::priority::Priority;
use orbit_te_memory::{LocalSpan, RemoteKey};
use orbit_te_wire::SessionId;

/// A notification that is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// To whom.
    pub link: LinkId,
    /// The name that its completion comes back under, as that of an [`crate::Op`].
    pub token: Token,
    /// Its number, which rises within a link. One that was not answered may be sent again under the same number.
    pub number: u64,
    /// Its bytes, an [`orbit_te_wire::notification`]. Whoever submits it keeps them alive and unchanged until the completion.
    pub bytes: LocalSpan,
}

impl Notice {
    /// The op as which a transport may keep it: a write of its bytes to no region.
    pub fn as_op(&self) -> Op {
        Op {
            kind: OpKind::Write,
            link: self.link,
            local: self.bytes,
            remote: RemoteSpan { offset: 0, key: RemoteKey::default() },
            pieces: None,
            token: self.token,
            // In front of what waits: it tells of bytes that are in place.
            priority: Priority::High,
            verify: Verify::Off,
        }
    }
}

/// Why a notification was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Undelivered {
    /// The queue is full.
    QueueFull,
    /// Nobody takes notifications.
    NobodyListens,
    /// The engine is shutting down.
    ShuttingDown,
}

/// Where a transport hands in the notifications that come.
pub trait Mailbox: Send + Sync {
    /// Takes a notification of this session. Called by the thread that polls the transport; it must not wait. A number that is not
    /// higher than one that came before is an old one that came again: it is not taken twice, and the answer is that of then.
    ///
    /// # Errors
    /// [`Undelivered`]; the sender is told.
    fn deliver(&self, session: SessionId, number: u64, name: &str, payload: &[u8])
    -> Result<(), Undelivered>;
}
