//! What can go wrong with memory on our own side. Rule: each error says what was asked and what stood in the way.

use crate::RegionId;
use thiserror::Error;

/// Why memory could not be had, registered, reached or retired.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The length is zero.
    #[error("a {what} of length zero is refused; give it at least one byte")]
    ZeroLength {
        /// What was being made.
        what: &'static str,
    },
    /// A range lies outside of its region or buffer.
    #[error("bytes {offset}..{offset}+{length} are outside of a {what} of {size} bytes")]
    OutOfRange {
        /// What the range was in.
        what: &'static str,
        /// Where the range begins.
        offset: u64,
        /// How long it is.
        length: u64,
        /// The size of what it is in.
        size: u64,
    },
    /// The operating system gave no memory.
    #[error("no memory: {length} bytes could not be mapped: {source}")]
    NoMemory {
        /// How many bytes were asked for.
        length: u64,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Random bytes could not be had.
    #[error("no random bytes from the operating system: {0}")]
    NoRandom(String),
    /// The region was retired, or is being retired.
    #[error("region {region} is retired; register its memory again")]
    Retired {
        /// Which region.
        region: RegionId,
    },
    /// The region's descriptors are being revoked.
    #[error("region {region} is being revoked and takes no leases until old requests have ended; try again")]
    BeingRevoked {
        /// Which region.
        region: RegionId,
    },
    /// A retiring or revoked region still had leases at the deadline. What that leaves behind is said where it is returned.
    #[error(
        "region {region} still has {leases} leases after {waited_ms} ms; a transfer that touches it has not ended"
    )]
    StillLeased {
        /// Which region.
        region: RegionId,
        /// How many leases are left.
        leases: u64,
        /// How long was waited.
        waited_ms: u64,
    },
    /// The domain can't take this memory.
    #[error("{domain} can't register this memory: {reason}")]
    Refused {
        /// The domain's name.
        domain: &'static str,
        /// Why.
        reason: String,
    },
    /// A peer's bytes for a region do not parse.
    #[error("{domain} can't use the peer's region key: {reason}")]
    BadRemoteKey {
        /// The domain's name.
        domain: &'static str,
        /// Why.
        reason: String,
    },
}
