//! What can go wrong with an op or a link. Rule: an error says what is broken now (the op, the link, the device), so that
//! the caller knows whether another way may help; codes are stable.

use orbit_te_wire::{Status, WireError};
use std::fmt;
use thiserror::Error;

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// This op alone: it would fail on another link too.
    Op,
    /// The link: other ops on it fail as well, another link may do.
    Link,
    /// The device or library under the transport: another transport may do.
    Device,
}

/// Why an op failed. The numbers are stable; see [`OpErrorCode::number`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpErrorCode {
    /// The target has no such region, or withdrew it.
    UnknownRegion,
    /// The descriptor is of an older generation.
    StaleGeneration,
    /// The range reaches past the region's end.
    OutOfRange,
    /// The region's rights do not include it.
    AccessDenied,
    /// The region key is wrong.
    BadKey,
    /// The grant was revoked or has expired at the target.
    GrantEnded,
    /// The length is zero or over a limit.
    BadLength,
    /// The target could not touch its memory.
    RemoteMemoryFault,
    /// Our own memory could not be touched.
    LocalMemoryFault,
    /// The payload came damaged.
    Checksum,
    /// The target is shutting down.
    PeerShuttingDown,
    /// The caller cancelled it, and neither side can touch the memory any more.
    Cancelled,
    /// The caller cancelled it, this side can't touch its memory any more, but the peer could not be asked to fence: bytes
    /// already under way may still land there.
    CancelledUnfenced,
    /// The link is not known, or was closed.
    NoLink,
    /// The link broke while the op was under way. Neither side can touch the memory any more; how many of the bytes
    /// landed is not known.
    LinkBroken,
    /// The link broke while the op was under way, and the peer could not be asked to fence: bytes already under way may
    /// still land there.
    LinkBrokenUnfenced,
    /// The peer could not be reached.
    Unreachable,
    /// The peer broke the protocol, and its link was closed.
    Protocol,
    /// The transport was closed.
    Closed,
    /// The transport does not do this.
    Unsupported,
    /// Pieces of the op overlap where they are written, or are not in the order of their offsets.
    Overlap,
    /// The peer's queue of notifications is full.
    QueueFull,
    /// Nobody takes notifications at the peer.
    NobodyListens,
    /// No route may be taken: the one that was demanded can't, or a rule leaves none.
    NoRoute,
}

impl OpErrorCode {
    /// The code's number in receipts, in logs and in other languages. Never reused.
    pub fn number(self) -> u16 {
        match self {
            OpErrorCode::UnknownRegion => 1,
            OpErrorCode::StaleGeneration => 2,
            OpErrorCode::OutOfRange => 3,
            OpErrorCode::AccessDenied => 4,
            OpErrorCode::BadKey => 5,
            OpErrorCode::BadLength => 6,
            OpErrorCode::RemoteMemoryFault => 7,
            OpErrorCode::LocalMemoryFault => 8,
            OpErrorCode::Checksum => 9,
            OpErrorCode::PeerShuttingDown => 10,
            OpErrorCode::Cancelled => 11,
            OpErrorCode::CancelledUnfenced => 12,
            OpErrorCode::NoLink => 13,
            OpErrorCode::LinkBroken => 14,
            OpErrorCode::Unreachable => 15,
            OpErrorCode::Protocol => 16,
            OpErrorCode::Closed => 17,
            OpErrorCode::Unsupported => 18,
            OpErrorCode::LinkBrokenUnfenced => 19,
            OpErrorCode::GrantEnded => 20,
            OpErrorCode::Overlap => 21,
            OpErrorCode::QueueFull => 22,
            OpErrorCode::NobodyListens => 23,
            OpErrorCode::NoRoute => 24,
        }
    }

    /// What is broken.
    pub fn class(self) -> ErrorClass {
        match self {
            OpErrorCode::UnknownRegion
            | OpErrorCode::StaleGeneration
            | OpErrorCode::OutOfRange
            | OpErrorCode::AccessDenied
            | OpErrorCode::BadKey
            | OpErrorCode::GrantEnded
            | OpErrorCode::BadLength
            | OpErrorCode::RemoteMemoryFault
            | OpErrorCode::LocalMemoryFault
            | OpErrorCode::Checksum
            | OpErrorCode::Cancelled
            | OpErrorCode::CancelledUnfenced
            | OpErrorCode::Overlap
            | OpErrorCode::QueueFull
            | OpErrorCode::NobodyListens
            | OpErrorCode::NoRoute
            | OpErrorCode::Unsupported => ErrorClass::Op,
            OpErrorCode::PeerShuttingDown
            | OpErrorCode::NoLink
            | OpErrorCode::LinkBroken
            | OpErrorCode::LinkBrokenUnfenced
            | OpErrorCode::Unreachable
            | OpErrorCode::Protocol => ErrorClass::Link,
            OpErrorCode::Closed => ErrorClass::Device,
        }
    }

    fn words(self) -> &'static str {
        match self {
            OpErrorCode::UnknownRegion => {
                "the peer has no such region, or has withdrawn it; open the segment again"
            }
            OpErrorCode::StaleGeneration => "the descriptor is stale; open the segment again",
            OpErrorCode::OutOfRange => "the range reaches past the end of the peer's region",
            OpErrorCode::AccessDenied => "the peer's region does not permit this",
            OpErrorCode::BadKey => "the region key is wrong; open the segment again",
            OpErrorCode::GrantEnded => {
                "the right to the peer's region was revoked or has expired; open the segment again"
            }
            OpErrorCode::BadLength => "the length is zero or over the peer's limit",
            OpErrorCode::RemoteMemoryFault => {
                "the peer could not touch its memory (a served file cut short, or a full disk)"
            }
            OpErrorCode::LocalMemoryFault => "the local memory could not be touched",
            OpErrorCode::Checksum => "the payload came damaged",
            OpErrorCode::PeerShuttingDown => "the peer is shutting down",
            OpErrorCode::Cancelled => "cancelled",
            OpErrorCode::CancelledUnfenced => {
                "cancelled; the peer could not be asked, so bytes may still land there"
            }
            OpErrorCode::NoLink => "there is no such link",
            OpErrorCode::LinkBroken => "the link to the peer broke",
            OpErrorCode::LinkBrokenUnfenced => {
                "the link to the peer broke, and the peer could not be asked, so bytes may still land there"
            }
            OpErrorCode::Unreachable => "the peer can't be reached",
            OpErrorCode::Protocol => "the peer broke the protocol",
            OpErrorCode::Closed => "the transport is closed",
            OpErrorCode::Unsupported => "the transport does not do this",
            OpErrorCode::Overlap => "pieces overlap where they are written, or are out of order",
            OpErrorCode::QueueFull => "the peer's queue of notifications is full; try again later",
            OpErrorCode::NoRoute => "no route may be taken",
            OpErrorCode::NobodyListens => "nobody takes notifications at the peer any more",
        }
    }
}

impl fmt::Display for OpErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// Bytes that came damaged: where they are, and both sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mismatch {
    /// Where the range begins, in bytes from the op's first; pieces count one after the other.
    pub offset: u64,
    /// Bytes in the range.
    pub length: u64,
    /// The CRC32C that the sender made.
    pub expected: u32,
    /// The CRC32C of the bytes that came.
    pub found: u32,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { offset, length, expected, found } = self;
        write!(f, "{length} bytes from byte {offset} on have CRC32C {found:08x} instead of {expected:08x}")
    }
}

/// Why an op failed: a code and, where the system said something, its error number. Small and `Copy`, so that failing
/// allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub struct OpError {
    /// The reason.
    pub code: OpErrorCode,
    /// The system's error number behind it.
    pub os: Option<i32>,
    /// The first bad piece of an op of many; none where no single piece is to blame.
    pub piece: Option<u32>,
    /// For [`OpErrorCode::Checksum`], the bytes that are to blame and both sums.
    pub mismatch: Option<Mismatch>,
}

impl OpError {
    /// An error with this code alone.
    pub const fn new(code: OpErrorCode) -> OpError {
        OpError { code, os: None, piece: None, mismatch: None }
    }

    /// An error with this code and the system's answer behind it.
    pub fn io(code: OpErrorCode, error: &std::io::Error) -> OpError {
        OpError { code, os: error.raw_os_error(), piece: None, mismatch: None }
    }

    /// The error of bytes that came damaged.
    pub const fn damaged(mismatch: Mismatch) -> OpError {
        OpError { mismatch: Some(mismatch), ..OpError::new(OpErrorCode::Checksum) }
    }

    /// The error that a target's answer means, or none for [`Status::Ok`].
    pub fn from_status(status: Status) -> Option<OpError> {
        let code = match status {
            Status::Ok => return None,
            Status::UnknownRegion => OpErrorCode::UnknownRegion,
            Status::StaleGeneration => OpErrorCode::StaleGeneration,
            Status::OutOfRange => OpErrorCode::OutOfRange,
            Status::AccessDenied => OpErrorCode::AccessDenied,
            Status::BadKey => OpErrorCode::BadKey,
            Status::GrantEnded => OpErrorCode::GrantEnded,
            Status::BadLength => OpErrorCode::BadLength,
            Status::ShuttingDown => OpErrorCode::PeerShuttingDown,
            Status::MemoryFault => OpErrorCode::RemoteMemoryFault,
            Status::Checksum => OpErrorCode::Checksum,
            Status::QueueFull => OpErrorCode::QueueFull,
            Status::Overlap => OpErrorCode::Overlap,
            Status::NobodyListens => OpErrorCode::NobodyListens,
        };
        Some(OpError::new(code))
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(piece) = self.piece {
            write!(f, "piece {piece}: ")?;
        }
        match (self.os, self.mismatch) {
            (Some(os), _) => write!(f, "{}: {}", self.code, std::io::Error::from_raw_os_error(os)),
            (None, Some(mismatch)) => write!(f, "{}: {mismatch}", self.code),
            (None, None) => write!(f, "{}", self.code),
        }
    }
}

/// What keeps a transport from reaching a peer at all, until somebody changes how the two are set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Barrier {
    /// The peer is met at none of the places that it announced: it is on another host, or shares neither network namespace nor folder.
    #[error(
        "the peer is not met on this host: it is on another one, or shares neither network namespace nor socket folder"
    )]
    OtherHost,
    /// The peer's process belongs to another user.
    #[error("the peer's process belongs to user {user}, to whom this one does not talk")]
    OtherUser {
        /// The user's number.
        user: u32,
    },
    /// The peer's process can't be named here.
    #[error("the peer's process is not visible here: it is in another PID namespace")]
    NotVisible,
    /// The kernel forbids it.
    #[error("the kernel does not permit it ({})", std::io::Error::from_raw_os_error(*os))]
    Forbidden {
        /// The system's error number.
        os: i32,
    },
}

/// Why a transport can't be opened, or a link not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The transport isn't there on this machine.
    #[error("{transport}: unavailable, because {reason}")]
    Unavailable {
        /// Which.
        transport: &'static str,
        /// Why.
        reason: String,
    },
    /// The peer can't be reached by this transport as things are set up.
    #[error("{transport}: {barrier}")]
    Barred {
        /// Which transport.
        transport: &'static str,
        /// Why.
        barrier: Barrier,
    },
    /// A peer's address bytes do not parse or can't be used.
    #[error("{transport}: the peer's address can't be used: {reason}")]
    BadAddress {
        /// Which transport.
        transport: &'static str,
        /// Why.
        reason: String,
    },
    /// All slots for links are in use.
    #[error("{transport}: no more than {limit} links; close one first")]
    TooManyLinks {
        /// Which transport.
        transport: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The link is not known, or was closed.
    #[error("{transport}: there is no such link")]
    NoLink {
        /// Which transport.
        transport: &'static str,
    },
    /// The peer said something that is no part of the protocol.
    #[error("the peer broke the protocol: {0}")]
    Wire(#[from] WireError),
    /// The peer refused the connection.
    #[error("the peer refused the connection: {0}")]
    RefusedByPeer(String),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}
