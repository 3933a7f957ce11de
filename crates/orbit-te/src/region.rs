//! Registered memory as the facade's users hold it: a region with the key by which its transports know it. Rule: all transports know it
//! by the same key, so that an op is made once, whatever route it takes.

use orbit_te_memory::{Access, Domain, LocalKey, MemoryError, Region as RawRegion};
use orbit_te_wire::{RegionDescriptor, RegionId, TransportKey};
use std::fmt;
use std::sync::Arc;

/// Registered memory. Cheap to clone; all clones are the same region.
#[derive(Clone)]
pub struct Region {
    pub(crate) raw: RawRegion,
    pub(crate) key: LocalKey,
}

impl Region {
    /// Its number at this engine; never reused.
    pub fn id(&self) -> RegionId {
        self.raw.id()
    }

    /// Its length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.raw.len()
    }

    /// Who may do what with it.
    pub fn access(&self) -> Access {
        self.raw.access()
    }

    /// How many requests, ours or peers', may touch it right now.
    pub fn leases(&self) -> u64 {
        self.raw.leases()
    }

    /// Copies `into.len()` bytes from `offset` on. Bytes that a peer writes meanwhile come old or new, in any mixture.
    ///
    /// # Errors
    /// [`MemoryError`]: outside of the region, length zero, or retired.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        self.raw.read_at(offset, into)
    }

    /// Copies `from` to `offset` on. A peer that reads meanwhile sees old and new bytes in any mixture.
    ///
    /// # Errors
    /// As [`Region::read_at`].
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        self.raw.write_at(offset, from)
    }

    /// A counted range of it, for requests.
    ///
    /// # Errors
    /// [`MemoryError`]: outside of the region, or length zero.
    pub fn slice(&self, offset: u64, length: u64) -> Result<Slice, MemoryError> {
        Ok(Slice { raw: self.raw.slice(offset, length)?, key: self.key })
    }

    /// All of it, for requests.
    pub fn whole(&self) -> Slice {
        Slice { raw: self.raw.whole(), key: self.key }
    }

    /// The region's own type of `orbit-te-memory`, for what only that has: its address and its backing.
    pub fn raw(&self) -> &RawRegion {
        &self.raw
    }

    /// Its description for a peer that has this key.
    pub(crate) fn describe(&self, domains: &[Arc<dyn Domain>], key: u64) -> RegionDescriptor {
        let key_of = |domain: &Arc<dyn Domain>| TransportKey {
            transport: domain.name().to_string(),
            bytes: domain.remote_key(&self.raw, key),
        };
        self.raw.describe(domains.iter().map(key_of).collect())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

/// A counted range of a region: what requests carry. It keeps the memory alive, and is no right to touch it.
#[derive(Clone)]
pub struct Slice {
    pub(crate) raw: orbit_te_memory::Slice,
    pub(crate) key: LocalKey,
}

impl Slice {
    /// Its length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.raw.len()
    }

    /// Where it begins in its region, in bytes.
    pub fn offset(&self) -> u64 {
        self.raw.offset()
    }

    /// A range of this range.
    ///
    /// # Errors
    /// [`MemoryError`]: outside of the slice, or length zero.
    pub fn slice(&self, offset: u64, length: u64) -> Result<Slice, MemoryError> {
        Ok(Slice { raw: self.raw.slice(offset, length)?, key: self.key })
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}
