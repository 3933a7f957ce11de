//! What the engine's calls can answer besides success. Rule: an error names what broke, its first cause and, where there is one,
//! the remedy.

use crate::condition::PeerCondition;
use crate::receipt::Landed;
use orbit_te_memory::{MemoryError, RegistrationError};
use orbit_te_transport::{OpError, OpErrorCode, TransportError};
use orbit_te_wire::{PeerId, RefusalCode, WireError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Why a call on an engine failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration can't be used.
    #[error("{0}")]
    Config(String),
    /// The engine would listen where strangers can reach it.
    #[error(
        "refusing to listen at {0}: the network's machines could reach this process's memory. Say that the network is \
         trusted (`trust_network(true)`, `--trust-network`), or listen on the loopback interface"
    )]
    Untrusted(SocketAddr),
    /// Memory could not be had, registered, reached or retired.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A batch was not registered; nothing of it is.
    #[error(transparent)]
    Registration(#[from] RegistrationError),
    /// A transport could not be opened, or a link not be made.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A token or a message does not decode.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The address of a segment can't be understood.
    #[error("`{text}` is no segment address: {why}; write HOST:PORT/NAME, or give a token")]
    BadAddress {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// No connection to a peer.
    #[error("no connection to {address}: {cause}")]
    Unreachable {
        /// Where to.
        address: String,
        /// The first cause.
        cause: String,
    },
    /// The peer refused.
    #[error("the peer at {address} refused: {reason}")]
    Refused {
        /// Where.
        address: String,
        /// Its code, where it gave one.
        code: Option<RefusalCode>,
        /// Its words.
        reason: String,
    },
    /// Another process answers where a peer was.
    #[error("the owner of this token is gone: {found} answers where {expected} was; ask for a new token")]
    OtherPeer {
        /// Who was expected.
        expected: PeerId,
        /// Who answers.
        found: PeerId,
    },
    /// The session with a peer has ended.
    #[error("peer {peer} is gone: {cause}; open its segment again")]
    PeerGone {
        /// Which peer.
        peer: PeerId,
        /// Why.
        cause: String,
    },
    /// The name is used already.
    #[error("the name `{0}` is taken; withdraw the segment of that name first")]
    NameTaken(String),
    /// A name is not usable.
    #[error("`{name}` can't be a name: {why}")]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A request does not fit the segment or its slice.
    #[error("request {index}: {why}")]
    BadRequest {
        /// Which request of the batch.
        index: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A list of pieces can't be prepared or posted; nothing has started.
    #[error("the list can't be taken: {0}")]
    BadList(#[from] crate::list::ListError),
    /// No more transfers, or questions to a peer, may wait now.
    #[error("the engine holds as many transfers as it may ({limit}); wait for one to end")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// A batch has more requests than may ever be under way.
    #[error("the batch has {requests} requests, and at most {limit} may be under way; divide it")]
    TooLarge {
        /// How many it has.
        requests: usize,
        /// The limit.
        limit: usize,
    },
    /// The call took longer than its limit.
    #[error("{what} took longer than {limit:?}")]
    TimedOut {
        /// What.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The engine is shut down.
    #[error("the engine is shut down")]
    Closed,
}

/// Why a transfer failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A request failed; the first one that did.
    #[error("request {request}: {error}{}", because(cause))]
    Request {
        /// Which request of the batch.
        request: usize,
        /// What went wrong.
        error: OpError,
        /// What is known of the cause.
        cause: Option<Arc<str>>,
    },
    /// The deadline passed. The local memory can't be touched any more.
    #[error(
        "not done after {after:?}{}{}{}", peer.map_or_else(String::new, |peer| format!(": {peer}")), because(cause),
        if *fenced { "" } else { "; the peer could not be asked, so bytes of it may still land there" }
    )]
    Deadline {
        /// The time it had.
        after: Duration,
        /// What became of its bytes.
        landed: Landed,
        /// Whether the peer's memory can't be touched any more either.
        fenced: bool,
        /// What the peer looked like, as far as that is known.
        peer: Option<PeerCondition>,
        /// What is known of the cause.
        cause: Option<Arc<str>>,
    },
    /// It was cancelled. The local memory can't be touched any more.
    #[error(
        "cancelled{}",
        if *fenced { "" } else { "; the peer could not be asked, so bytes of it may still land there" }
    )]
    Cancelled {
        /// What became of its bytes.
        landed: Landed,
        /// Whether the peer's memory can't be touched any more either.
        fenced: bool,
    },
    /// The bytes are in place, but the notification bound to them was not taken.
    #[error("the bytes are in place, but the notification was not delivered: {0}")]
    Notification(Arc<str>),
    /// The worker that carried it out has panicked. Nobody knows what may still touch the memory, so it is kept for ever
    /// ([`crate::Engine::retained`]).
    #[error("the engine's worker has failed ({0}); its memory is kept, start a new engine")]
    WorkerFailed(Arc<str>),
    /// The engine was shut down. The local memory can't be touched any more.
    #[error(
        "the engine is shut down{}",
        if *fenced { "" } else { "; the peer was not asked in time, so bytes of it may still land there" }
    )]
    Closed {
        /// What became of its bytes.
        landed: Landed,
        /// Whether the peer's memory can't be touched any more either.
        fenced: bool,
    },
}

impl TransferError {
    /// The op error behind it, if a request failed.
    pub fn op_error(&self) -> Option<OpError> {
        if let TransferError::Request { error, .. } = self { Some(*error) } else { None }
    }

    /// The code of the op error behind it, if a request failed.
    pub fn op_code(&self) -> Option<OpErrorCode> {
        self.op_error().map(|e| e.code)
    }

    /// The same error, as is known when all of the transfer is over.
    pub(crate) fn at_the_end(mut self, bytes: u64, all_landed: Landed, all_fenced: bool) -> TransferError {
        if let TransferError::Deadline { peer: Some(peer), .. } = &mut self {
            *peer = peer.at_the_end(bytes);
        }
        if let TransferError::Cancelled { landed, fenced }
        | TransferError::Deadline { landed, fenced, .. }
        | TransferError::Closed { landed, fenced } = &mut self
        {
            (*landed, *fenced) = (all_landed, all_fenced);
        }
        self
    }
}

fn because(cause: &Option<Arc<str>>) -> String {
    cause.as_ref().map_or_else(String::new, |c| format!(", because {c}"))
}
