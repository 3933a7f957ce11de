//! The catalogue of errors: a stable number and name for each, what broke, whether another route may help, and the remedy. Rule: a
//! number is never reused, and `docs/errors.md` says the same, which a test holds.

use crate::condition::PeerCondition;
use crate::error::{Error, TransferError};
use orbit_te_memory::MemoryError;
use orbit_te_transport::{ErrorClass, OpErrorCode, TransportError};
use std::fmt;

mod rows;

use rows::{CATALOGUE, Entry, UNLISTED};

/// The stable code of an error: [`Error::code`] and [`TransferError::code`] give it. Numbers below 100 are those of
/// [`OpErrorCode::number`].
#[derive(Clone, Copy)]
pub struct ErrorCode(&'static Entry);

impl ErrorCode {
    /// Its number. Never reused.
    pub fn number(self) -> u16 {
        self.0.number
    }

    /// Its short name. Never changed.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// What broke, in general; the error's own words say it of this case.
    pub fn what(self) -> &'static str {
        self.0.what
    }

    /// What is broken: the op or call alone, the link to the peer, or something of this host.
    pub fn class(self) -> ErrorClass {
        self.0.class
    }

    /// Whether the same on another link or transport may succeed.
    pub fn another_route_may_help(self) -> bool {
        self.0.class != ErrorClass::Op
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        self.0.remedy
    }

    /// All codes there are, by number.
    pub fn all() -> impl Iterator<Item = ErrorCode> {
        CATALOGUE.iter().map(ErrorCode)
    }

    /// The code of an op's error.
    pub fn of_op(code: OpErrorCode) -> ErrorCode {
        ErrorCode::numbered(code.number())
    }

    fn numbered(number: u16) -> ErrorCode {
        let found = CATALOGUE.binary_search_by_key(&number, |entry| entry.number);
        // A code that a newer transport has and this table lacks; a test holds that there is none.
        ErrorCode(found.map_or(&UNLISTED, |at| &CATALOGUE[at]))
    }
}

impl PartialEq for ErrorCode {
    fn eq(&self, other: &ErrorCode) -> bool {
        self.number() == other.number()
    }
}

impl Eq for ErrorCode {}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As in `E15 unreachable`.
impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "E{} {}", self.number(), self.name())
    }
}

impl Error {
    /// Its code in the catalogue.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::numbered(match self {
            Error::Config(_) => 100,
            Error::Untrusted(_) => 101,
            Error::BadAddress { .. } => 102,
            Error::Unreachable { .. } => 103,
            Error::Refused { .. } => 104,
            Error::OtherPeer { .. } => 105,
            Error::PeerGone { .. } => 106,
            Error::NameTaken(_) => 107,
            Error::BadName { .. } => 108,
            Error::BadRequest { .. } => 109,
            Error::Full { .. } => 110,
            Error::TooLarge { .. } => 111,
            Error::TimedOut { .. } => 112,
            Error::Closed => 113,
            Error::Wire(_) => 114,
            Error::BadList(_) => 115,
            Error::Memory(error) => memory(error),
            Error::Registration(error) => memory(&error.source),
            Error::Transport(error) => match error {
                TransportError::Unavailable { .. } => 401,
                TransportError::BadAddress { .. } => 402,
                TransportError::TooManyLinks { .. } => 403,
                TransportError::NoLink { .. } => 404,
                TransportError::Wire(_) => 114,
                TransportError::RefusedByPeer(_) => 405,
                TransportError::Io { .. } => 406,
                _ => 400,
            },
        })
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        self.code().remedy()
    }
}

fn memory(error: &MemoryError) -> u16 {
    match error {
        MemoryError::ZeroLength { .. } => 301,
        MemoryError::OutOfRange { .. } => 302,
        MemoryError::NoMemory { .. } => 303,
        MemoryError::NoRandom(_) => 304,
        MemoryError::Retired { .. } => 305,
        MemoryError::BeingRevoked { .. } => 306,
        MemoryError::StillLeased { .. } => 307,
        MemoryError::Refused { .. } => 308,
        MemoryError::BadRemoteKey { .. } => 309,
        MemoryError::OverLimit { .. } => 310,
        MemoryError::Overlap { .. } => 311,
        MemoryError::TooManyGrants { .. } => 312,
        MemoryError::HolderGone => 313,
        MemoryError::UnknownGrant { .. } => 314,
        _ => 300,
    }
}

impl TransferError {
    /// Its code in the catalogue. That of a failed request is the code of its op error.
    pub fn code(&self) -> ErrorCode {
        match self {
            TransferError::Request { error, .. } => ErrorCode::of_op(error.code),
            TransferError::Deadline { peer, .. } => ErrorCode::numbered(match peer {
                None => 200,
                Some(PeerCondition::Slow { .. }) => 205,
                Some(PeerCondition::Stalled { .. }) => 206,
                Some(PeerCondition::Unreachable { .. }) => 207,
            }),
            TransferError::Cancelled { .. } => ErrorCode::numbered(201),
            TransferError::Notification(_) => ErrorCode::numbered(202),
            TransferError::Closed { .. } => ErrorCode::numbered(203),
            TransferError::WorkerFailed(_) => ErrorCode::numbered(204),
        }
    }

    /// What is known of the first cause, in words.
    pub fn cause(&self) -> Option<&str> {
        match self {
            TransferError::Request { cause, .. } | TransferError::Deadline { cause, .. } => cause.as_deref(),
            TransferError::Notification(cause) | TransferError::WorkerFailed(cause) => Some(cause),
            TransferError::Cancelled { .. } | TransferError::Closed { .. } => None,
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        self.code().remedy()
    }
}
