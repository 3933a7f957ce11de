//! The registry: a process's regions, and the one check that every request of a peer passes. Rule: readers take a
//! snapshot that is replaced whole, so that a request is admitted without a lock.

use crate::backing::Backing;
use crate::error::MemoryError;
use crate::lease::Lease;
use crate::region::Region;
use crate::sync::Mutex;
use arc_swap::ArcSwap;
use orbit_te_wire::{Access, Generation, RegionId, Status};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// A snapshot of the regions by number.
pub type RegionTable = HashMap<RegionId, Region>;

/// A process's regions.
#[derive(Debug, Default)]
pub struct Registry {
    table: Arc<ArcSwap<RegionTable>>,
    /// The last number given out. Held while the table is replaced.
    next: Mutex<u64>,
}

/// What a peer asks to do with a region.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The region's number.
    pub region: RegionId,
    /// The generation of the peer's descriptor.
    pub generation: Generation,
    /// The region's key from the peer's descriptor.
    pub key: u64,
    /// Where, in bytes from the region's base.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// The right that is needed.
    pub access: Access,
}

/// Why a peer's request is refused. Nothing was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AdmitError {
    /// No such region, or it was withdrawn.
    #[error("unknown or withdrawn region")]
    UnknownRegion,
    /// The descriptor is of an older generation, or descriptors are being revoked right now.
    #[error("stale generation")]
    StaleGeneration,
    /// The key is wrong.
    #[error("wrong region key")]
    BadKey,
    /// The range reaches past the end.
    #[error("range outside of the region")]
    OutOfRange,
    /// The length is zero.
    #[error("length zero")]
    BadLength,
    /// The region's rights do not include it.
    #[error("access denied")]
    AccessDenied,
}

impl AdmitError {
    /// The status that tells the peer.
    pub fn status(self) -> Status {
        match self {
            AdmitError::UnknownRegion => Status::UnknownRegion,
            AdmitError::StaleGeneration => Status::StaleGeneration,
            AdmitError::BadKey => Status::BadKey,
            AdmitError::OutOfRange => Status::OutOfRange,
            AdmitError::BadLength => Status::BadLength,
            AdmitError::AccessDenied => Status::AccessDenied,
        }
    }
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Arc<Registry> {
        Arc::new(Registry::default())
    }

    /// Registers all of a backing.
    ///
    /// # Errors
    /// [`MemoryError::NoRandom`] when no key can be drawn.
    pub fn register(&self, backing: impl Into<Arc<Backing>>, access: Access) -> Result<Region, MemoryError> {
        let backing = backing.into();
        let len = backing.len() as u64;
        self.register_range(backing, 0, len, access)
    }

    /// Registers a range of a backing; other regions may be over the same backing, and share it.
    ///
    /// # Errors
    /// [`MemoryError::ZeroLength`], [`MemoryError::OutOfRange`], [`MemoryError::NoRandom`].
    pub fn register_range(
        &self,
        backing: impl Into<Arc<Backing>>,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<Region, MemoryError> {
        let backing = backing.into();
        let size = backing.len() as u64;
        if length == 0 {
            return Err(MemoryError::ZeroLength { what: "region" });
        }
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(MemoryError::OutOfRange { what: "backing", offset, length, size });
        }
        let key = getrandom::u64().map_err(|e| MemoryError::NoRandom(e.to_string()))?;
        let mut next = self.next.lock();
        *next += 1;
        let id = RegionId(*next);
        let region = Region::new(id, backing, offset as usize, length as usize, access, key);
        let mut table = RegionTable::clone(&self.table.load());
        table.insert(id, region.clone());
        self.table.store(Arc::new(table));
        Ok(region)
    }

    /// Withdraws a region: new requests are refused at once, and the call returns when no lease is left, at the latest
    /// after `limit`. Blocks; safe from any thread that does not itself drive transfers.
    ///
    /// # Errors
    /// [`MemoryError::StillLeased`] at the limit: the region stays withdrawn, its backing is kept while any lease
    /// lives, and calling again waits again.
    pub fn retire(&self, region: &Region, limit: Duration) -> Result<(), MemoryError> {
        let deadline = Instant::now().checked_add(limit);
        region.gate().retire();
        {
            let _changing = self.next.lock();
            if self.holds(region) {
                let mut table = RegionTable::clone(&self.table.load());
                table.remove(&region.id());
                self.table.store(Arc::new(table));
            }
        }
        match region.gate().wait_drained(deadline) {
            0 => Ok(()),
            leases => Err(region.still_leased(leases, limit)),
        }
    }

    /// Makes all descriptors of a region stale, and returns when requests that were admitted under them have ended, at
    /// the latest after `limit`. Requests that come meanwhile are refused, our own too; afterwards the region takes new
    /// ones. Revocations of one region wait for each other.
    ///
    /// # Errors
    /// [`MemoryError::StillLeased`] at the limit: descriptors are stale and the region open again, but an old request
    /// may still be under way. [`MemoryError::Retired`] for a region that is not of this registry any more, also when it
    /// was retired meanwhile; it stays retired.
    pub fn revoke(&self, region: &Region, limit: Duration) -> Result<Generation, MemoryError> {
        let deadline = Instant::now().checked_add(limit);
        if region.is_retired() || !self.holds(region) {
            return Err(MemoryError::Retired { region: region.id() });
        }
        // First the generation, then the gate: whoever finds the gate paused finds its own generation stale.
        let generation = region.renew();
        let Some(pause) = region.gate().pause(deadline) else {
            return Err(region.still_leased(region.leases(), limit));
        };
        let leases = region.gate().wait_drained(deadline);
        drop(pause);
        if leases > 0 {
            return Err(region.still_leased(leases, limit));
        }
        if region.is_retired() {
            return Err(MemoryError::Retired { region: region.id() });
        }
        Ok(generation)
    }

    fn holds(&self, region: &Region) -> bool {
        self.table.load().get(&region.id()).is_some_and(|held| held.is(region))
    }

    /// The region of this number.
    pub fn get(&self, id: RegionId) -> Option<Region> {
        self.table.load().get(&id).cloned()
    }

    /// How many regions there are.
    pub fn len(&self) -> usize {
        self.table.load().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The table, for a reader that takes a snapshot for each request. Who keeps one keeps the memory of regions that are retired
    /// meanwhile.
    pub fn table(&self) -> Arc<ArcSwap<RegionTable>> {
        self.table.clone()
    }

    /// Checks a peer's request and gives the lease under which it may be carried out.
    ///
    /// # Errors
    /// [`AdmitError`], in this order: number, key, generation, withdrawal, rights, length, range. While a revocation
    /// waits, every generation counts as stale.
    pub fn admit(&self, request: &Request) -> Result<Lease, AdmitError> {
        admit(&self.table.load(), request)
    }
}

/// [`Registry::admit`] on a snapshot that the caller keeps. A region that was withdrawn after the snapshot was taken is
/// refused all the same: its gate is closed.
///
/// # Errors
/// As [`Registry::admit`].
pub fn admit(table: &RegionTable, request: &Request) -> Result<Lease, AdmitError> {
    let region = table.get(&request.region).ok_or(AdmitError::UnknownRegion)?;
    if request.key != region.key() {
        return Err(AdmitError::BadKey);
    }
    let stale =
        || if request.generation == region.generation() { Ok(()) } else { Err(AdmitError::StaleGeneration) };
    stale()?;
    let lease = Lease::take(region).ok_or_else(|| match region.is_retired() {
        true => AdmitError::UnknownRegion,
        false => AdmitError::StaleGeneration,
    })?;
    // Again, now under the lease: a revocation that began in between waits for this lease, or is seen here.
    stale()?;
    if !region.access().contains(request.access) {
        return Err(AdmitError::AccessDenied);
    }
    if request.length == 0 {
        return Err(AdmitError::BadLength);
    }
    region.check(request.offset, request.length).map_err(|_| AdmitError::OutOfRange)?;
    Ok(lease)
}
