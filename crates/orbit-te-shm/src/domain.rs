//! Memory for processes of one host. Rule: any host memory will do, as it is; the descriptor says whether a peer can be let in, so that
//! nobody has to ask in vain.

use orbit_te_memory::{Access, Domain, KindSet, LocalKey, MemoryError, Region, RemoteKey};
use orbit_te_wire::RegionDescriptor;
use orbit_te_wire::same_host::{NoEntry, Way};

/// What stands in the way of a peer's memory, as its descriptor tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// The descriptor has no key for this way: the peer does not offer it.
    NotOffered,
    /// The memory is the peer's own ([`NoEntry::NotShareable`]).
    NotShareable,
    /// The region is a part of its buffer ([`NoEntry::PartOfBuffer`]).
    PartOfBuffer,
    /// Peers may write the region and not read it: whoever maps it could do both.
    WriteOnly,
}

/// The [`Domain`] of one way to reach memory on the same host.
#[derive(Debug, Clone, Copy)]
pub struct ShmDomain {
    way: Way,
    share_parts: bool,
}

impl ShmDomain {
    /// That of this way; `share_parts` as in [`crate::ShmConfig::share_parts`].
    pub fn new(way: Way, share_parts: bool) -> ShmDomain {
        ShmDomain { way, share_parts }
    }

    /// Why a peer's region can't be reached in this way, as far as its descriptor tells.
    pub fn obstacle(&self, descriptor: &RegionDescriptor) -> Option<Obstacle> {
        match descriptor.key(self.name()) {
            Some(bytes) if bytes.len() == KEY_BYTES => match bytes[8] {
                OPEN if self.way == Way::Mapping && !may_map(descriptor.access) => Some(Obstacle::WriteOnly),
                OPEN | MORE => None,
                PART => Some(Obstacle::PartOfBuffer),
                _ => Some(Obstacle::NotShareable),
            },
            _ => Some(Obstacle::NotOffered),
        }
    }
}

/// A key and what [`ShmDomain::obstacle`] says.
const KEY_BYTES: usize = 9;
const OPEN: u8 = 0;
const OWN: u8 = 1;
const PART: u8 = 2;
/// Open also to those who would see more by it than their rights give them.
const MORE: u8 = 3;

/// The name of a way, in routes and keys.
pub(crate) const fn name(way: Way) -> &'static str {
    match way {
        Way::Mapping => "shm",
        Way::Kernel => "process_vm",
    }
}

/// Whether whoever has these rights may be given the file: he can read all that he maps.
pub(crate) fn may_map(access: Access) -> bool {
    access.contains(Access::REMOTE_READ)
}

/// Why a peer can't be let in to a region in this way.
pub(crate) fn no_entry(region: &Region, way: Way, share_parts: bool) -> Option<NoEntry> {
    let backing = region.backing();
    match way {
        Way::Kernel => None,
        Way::Mapping if backing.file().is_none() => Some(NoEntry::NotShareable),
        Way::Mapping if !share_parts && region.len() < backing.len() as u64 => Some(NoEntry::PartOfBuffer),
        Way::Mapping => None,
    }
}

impl Domain for ShmDomain {
    fn name(&self) -> &'static str {
        name(self.way)
    }

    fn kinds(&self) -> KindSet {
        KindSet::HOST
    }

    fn register(&self, region: &Region) -> Result<LocalKey, MemoryError> {
        if !self.kinds().contains(region.kind()) {
            let reason = format!("{:?} memory is not reachable by the CPU", region.kind());
            return Err(MemoryError::Refused { domain: self.name(), reason });
        }
        Ok(LocalKey::of_host(region))
    }

    fn remote_key(&self, region: &Region, key: u64) -> Vec<u8> {
        let mut bytes = key.to_le_bytes().to_vec();
        bytes.push(match no_entry(region, self.way, self.share_parts) {
            None if self.share_parts => MORE,
            None => OPEN,
            Some(NoEntry::PartOfBuffer) => PART,
            Some(_) => OWN,
        });
        bytes
    }

    fn deregister(&self, _region: &Region, _key: LocalKey) -> Result<(), MemoryError> {
        Ok(())
    }

    fn import(&self, descriptor: &RegionDescriptor) -> Result<RemoteKey, MemoryError> {
        let bad = |reason: String| MemoryError::BadRemoteKey { domain: self.name(), reason };
        let bytes = descriptor
            .key(self.name())
            .ok_or_else(|| bad(format!("the descriptor has no key for {}", self.name())))?;
        let key: [u8; 8] = bytes
            .get(..8)
            .and_then(|key| key.try_into().ok())
            .ok_or_else(|| bad(format!("the key is not {KEY_BYTES} bytes long")))?;
        Ok(RemoteKey::of_host(descriptor, u64::from_le_bytes(key)))
    }

    fn forget(&self, _key: RemoteKey) {}
}
