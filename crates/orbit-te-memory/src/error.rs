//! What can go wrong with memory on our own side. Rule: each error says what was asked and what stood in the way.

use crate::RegionId;
use crate::grant::GrantId;
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
    /// The limit on registered bytes.
    #[error(
        "registering {asked_bytes} bytes would pass the limit of {limit_bytes} registered bytes, of which {in_use_bytes} are \
         in use; retire regions and let their handles go, or raise the limit"
    )]
    OverLimit {
        /// How many bytes were to be registered: those of the whole backing.
        asked_bytes: u64,
        /// How many may be.
        limit_bytes: u64,
        /// How many are.
        in_use_bytes: u64,
    },
    /// Registered memory of other rights, where a transport would give both the same rights.
    #[error(
        "the memory overlaps region {other}, which has other rights, and {domain} can't tell them apart; give both the same \
         rights, or retire that region first"
    )]
    Overlap {
        /// The region that is there already.
        other: RegionId,
        /// The domain that would share one registration.
        domain: &'static str,
    },
    /// A holder has as many grants as it may.
    #[error("it has {limit} grants, the limit here; close the session, or open fewer segments")]
    TooManyGrants {
        /// The limit.
        limit: usize,
    },
    /// The session that was to have a grant is over, or has none because it was opened from this side.
    #[error("the session is over, or was opened by this side and gives the other no access")]
    HolderGone,
    /// No grant of this number.
    #[error("there is no grant {grant}, or it ended with its session or region")]
    UnknownGrant {
        /// Which.
        grant: GrantId,
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
