//! The messages between two processes of one host, over a Unix socket that keeps their bounds (`SOCK_SEQPACKET`), and the address at
//! which they meet. Rule: a message is one packet; descriptors travel beside it, and which message carries one is said here.
//!
//! The side that connects has to know two numbers that only the control link tells: it shows one, and is shown the other. So each side
//! knows that the other is the process at the end of that control link, and that both are on one host.

use crate::codec;
use crate::error::WireError;
use crate::frame::Status;
use crate::ids::{Generation, RegionId, SessionId};
use serde::{Deserialize, Serialize};

/// The version of these messages. Each side refuses another.
pub const VERSION: u16 = 1;
/// The most bytes in one message.
pub const MAX_BYTES: usize = 1024;
/// The most bytes in an address.
pub const MAX_ADDRESS_BYTES: usize = 1024;
/// The most places in an address.
pub const MAX_PLACES: usize = 4;
/// The most ways into regions that one connection may have at a time.
pub const MAX_GATES: u32 = 4096;

/// Where a process takes connections from others of its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// A name in the abstract namespace, which processes of one network namespace share.
    Abstract(#[serde(with = "codec::bytes")] Vec<u8>),
    /// A socket in the file system, which processes of one mount namespace, or with a shared folder, share.
    Path(#[serde(with = "codec::bytes")] Vec<u8>),
}

/// What a process announces over the control link so that its peer can meet it on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SameHostAddress {
    /// Where to meet; tried in turn.
    #[serde(deserialize_with = "codec::list::<MAX_PLACES, _, _>")]
    pub places: Vec<Place>,
    /// The session that the connection belongs to.
    pub session: SessionId,
    /// What the side that connects shows.
    pub ask: u128,
    /// What it is shown.
    pub answer: u128,
}

impl SameHostAddress {
    /// The address's bytes.
    ///
    /// # Errors
    /// [`WireError::TooLong`].
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        codec::encode("same-host address", self, MAX_ADDRESS_BYTES)
    }

    /// The address in these bytes.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<SameHostAddress, WireError> {
        codec::decode("same-host address", bytes, MAX_ADDRESS_BYTES)
    }
}

/// How the side that connects reaches the other's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Way {
    /// It maps the pages, from a descriptor that it is given.
    Mapping,
    /// It has the kernel copy, by the address in the owner's process.
    Kernel,
}

/// Why a way into a region is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NoEntry {
    /// The registry refuses the request: a [`Status`].
    Admission(u16),
    /// The memory is the owner's own, and can't be given away.
    NotShareable,
    /// The region is a part of its buffer, and the owner does not show the rest.
    PartOfBuffer,
    /// Too many ways in are given to this connection; give one back first.
    Full,
    /// The owner's system refused something (an error number).
    System(i32),
}

impl NoEntry {
    /// That of a refused admission.
    pub fn admission(status: Status) -> NoEntry {
        NoEntry::Admission(status as u16)
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SameHost {
    /// First, from the side that connects.
    Knock {
        /// [`VERSION`].
        version: u16,
        /// Its session.
        session: SessionId,
        /// [`SameHostAddress::ask`].
        ask: u128,
        /// How it wants to reach memory.
        way: Way,
    },
    /// The answer to a good knock. Carries one descriptor: the file of the gates.
    Welcome {
        /// [`SameHostAddress::answer`].
        answer: u128,
        /// How many gates the file has.
        gates: u32,
        /// For [`Way::Kernel`]: where in the owner's process the 16 bytes of `answer` lie, so that the other side can try.
        proof_address: u64,
    },
    /// The answer to a bad knock, or the end of a connection that stood.
    Farewell {
        /// Why, in words.
        reason: String,
    },
    /// A way into a region, please.
    Enter {
        /// Comes back in the answer.
        request: u32,
        /// The region.
        region: RegionId,
        /// The generation of the descriptor.
        generation: Generation,
        /// The key from the descriptor.
        key: u64,
    },
    /// Here it is. For [`Way::Mapping`] it carries one descriptor: the file of the memory, which can't be written through where the
    /// rights do not include it.
    Entered {
        /// The number of the request.
        request: u32,
        /// The gate to pass at each access.
        gate: u32,
        /// Where the region begins: in the file, or in the owner's process.
        begin: u64,
        /// How long it is in bytes.
        length: u64,
        /// [`crate::Access`] of what is permitted.
        access: u32,
        /// How long it may be used from now on, in nanoseconds; zero: without end.
        expires_ns: u64,
    },
    /// No way in.
    Refused {
        /// The number of the request.
        request: u32,
        /// Why.
        why: NoEntry,
    },
    /// The other side has stopped using a way in, and its gate may be used again.
    Left {
        /// The gate.
        gate: u32,
    },
}

impl SameHost {
    /// The message's bytes.
    ///
    /// # Errors
    /// [`WireError::TooLong`].
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        codec::encode("same-host message", self, MAX_BYTES)
    }

    /// The message in these bytes.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<SameHost, WireError> {
        codec::decode("same-host message", bytes, MAX_BYTES)
    }
}
