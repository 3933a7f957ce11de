//! Regions and slices. Rule: a region's bytes are reached by copies under a lease, or by raw pointers of whoever holds
//! one; a slice keeps its region's backing alive but is no right to touch it.

#![allow(unsafe_code)]

use crate::backing::Backing;
use crate::domain::{LocalKey, LocalSpan};
use crate::error::MemoryError;
use crate::lease::{Gate, Lease};
use crate::limit::Charge;
use crate::sync::{AtomicU64, Ordering};
use crate::sys;
use orbit_te_wire::{Access, Generation, MemoryKind, RegionDescriptor, RegionId, TransportKey};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Duration;

struct Inner {
    id: RegionId,
    backing: Arc<Backing>,
    offset: usize,
    len: usize,
    access: Access,
    /// What whoever has no grant must present besides the region's number: unguessable, so that a number alone opens nothing.
    /// Another one for each generation, so that an old descriptor can't be made up into a new one.
    key: AtomicU64,
    generation: AtomicU64,
    gate: Gate,
    /// Dropped after the backing: bytes count until they are let go.
    _charge: Arc<Charge>,
}

/// Registered memory. Cheap to clone; all clones are the same region.
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

impl Region {
    pub(crate) fn new(
        id: RegionId,
        backing: Arc<Backing>,
        offset: usize,
        len: usize,
        access: Access,
        key: u64,
        charge: Arc<Charge>,
    ) -> Region {
        Region {
            inner: Arc::new(Inner {
                id,
                backing,
                offset,
                len,
                access,
                key: AtomicU64::new(key),
                generation: AtomicU64::new(1),
                gate: Gate::default(),
                _charge: charge,
            }),
        }
    }

    /// Its number in the registry; never reused.
    pub fn id(&self) -> RegionId {
        self.inner.id
    }

    /// Its length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.inner.len as u64
    }

    /// Who may do what with it.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Where its bytes are.
    pub fn kind(&self) -> MemoryKind {
        self.inner.backing.kind()
    }

    /// The generation that descriptors made now carry.
    pub fn generation(&self) -> Generation {
        Generation(self.inner.generation.load(Ordering::Acquire))
    }

    /// What a peer without a grant must present besides the number and the generation; each generation has its own.
    pub fn key(&self) -> u64 {
        self.inner.key.load(Ordering::Acquire)
    }

    /// The memory behind it.
    pub fn backing(&self) -> &Arc<Backing> {
        &self.inner.backing
    }

    /// The address of its first byte. To read or write through it is `unsafe` and needs a [`Lease`].
    pub fn as_ptr(&self) -> NonNull<u8> {
        // Wrapping, because memory of a device is no allocation that Rust knows.
        let at = self.inner.backing.base().as_ptr().wrapping_add(self.inner.offset);
        // SAFETY: `offset + len` was checked against the backing's length when the region was made, and a backing's
        // addresses do not wrap, so `at` is not under its base, which is not null.
        unsafe { NonNull::new_unchecked(at) }
    }

    /// How many leases are held right now.
    pub fn leases(&self) -> u64 {
        self.inner.gate.count()
    }

    /// How many peers have a way to touch it by themselves.
    pub fn holds(&self) -> u64 {
        self.inner.gate.holds()
    }

    /// Whether it takes new leases right now: it is neither retired nor being revoked.
    pub fn takes_leases(&self) -> bool {
        !self.inner.gate.is_closed()
    }

    /// Whether it was retired, or is being retired: it takes no new leases, ever.
    pub fn is_retired(&self) -> bool {
        self.inner.gate.is_retired()
    }

    /// The right to touch its bytes.
    ///
    /// # Errors
    /// [`MemoryError::Retired`], and [`MemoryError::BeingRevoked`] while [`crate::Registry::revoke`] waits.
    pub fn lease(&self) -> Result<Lease, MemoryError> {
        Lease::take(self).ok_or_else(|| match self.is_retired() {
            true => MemoryError::Retired { region: self.id() },
            false => MemoryError::BeingRevoked { region: self.id() },
        })
    }

    /// A counted range of it.
    ///
    /// # Errors
    /// [`MemoryError::ZeroLength`], [`MemoryError::OutOfRange`].
    pub fn slice(&self, offset: u64, length: u64) -> Result<Slice, MemoryError> {
        self.check(offset, length)?;
        Ok(Slice { region: self.clone(), offset, length })
    }

    /// All of it.
    pub fn whole(&self) -> Slice {
        Slice { region: self.clone(), offset: 0, length: self.len() }
    }

    /// Copies `into.len()` bytes from `offset` on. Bytes that a peer writes meanwhile come old or new, in any mixture.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], [`MemoryError::ZeroLength`], those of [`Region::lease`], and
    /// [`MemoryError::Refused`] for memory that the CPU can't reach.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        let (from, _lease) = self.reach(offset, into.len())?;
        // SAFETY: `reach` checked that the range is inside the region, and the lease keeps its backing; `into` is an
        // exclusive reference, so it can't be the region's memory, to which no reference exists.
        unsafe { sys::copy_out(from.as_ptr(), into) };
        Ok(())
    }

    /// Copies `from` to `offset` on. A peer that reads meanwhile sees old and new bytes in any mixture.
    ///
    /// # Errors
    /// As [`Region::read_at`], and [`MemoryError::Refused`] for a region without a right by which it is written: its
    /// memory may be mapped read-only.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        if !self.access().intersects(Access::LOCAL | Access::REMOTE_WRITE) {
            let reason = "the region has neither local nor remote write access".to_string();
            return Err(MemoryError::Refused { domain: "host", reason });
        }
        let (into, _lease) = self.reach(offset, from.len())?;
        // SAFETY: as in `read_at`; `from` is a live reference, so it is not the region's memory.
        unsafe { sys::copy_in(into.as_ptr(), from) };
        Ok(())
    }

    /// Another generation with another key.
    pub(crate) fn renew(&self) -> Result<Generation, MemoryError> {
        // First the key: whoever sees the new generation finds the old key wrong.
        self.inner.key.store(random_key()?, Ordering::Release);
        Ok(Generation(self.inner.generation.fetch_add(1, Ordering::AcqRel) + 1))
    }

    /// A handle that keeps nothing alive.
    pub fn downgrade(&self) -> WeakRegion {
        WeakRegion { inner: Arc::downgrade(&self.inner) }
    }

    /// Its description for peers, with these keys.
    pub fn describe(&self, keys: Vec<TransportKey>) -> RegionDescriptor {
        RegionDescriptor {
            region: self.id(),
            generation: self.generation(),
            base_offset: 0,
            length: self.len(),
            kind: self.kind(),
            access: self.access(),
            keys,
        }
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.inner.gate
    }

    /// Whether both are handles of one region, and not of regions of the same number in two registries.
    pub(crate) fn is(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// That leases were left when `limit` had passed.
    pub(crate) fn still_leased(&self, leases: u64, limit: Duration) -> MemoryError {
        let waited_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        MemoryError::StillLeased { region: self.id(), leases, waited_ms }
    }

    /// Whether the two have bytes in common.
    pub(crate) fn overlaps(&self, other: &Region) -> bool {
        let range = |region: &Region| {
            let first = region.as_ptr().as_ptr() as u64;
            (region.kind(), first, first.saturating_add(region.len()))
        };
        let ((kind, first, end), (other_kind, other_first, other_end)) = (range(self), range(other));
        kind == other_kind && first < other_end && other_first < end
    }

    pub(crate) fn check(&self, offset: u64, length: u64) -> Result<(), MemoryError> {
        if length == 0 {
            return Err(MemoryError::ZeroLength { what: "range" });
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(MemoryError::OutOfRange { what: "region", offset, length, size: self.len() }),
        }
    }

    fn reach(&self, offset: u64, length: usize) -> Result<(NonNull<u8>, Lease), MemoryError> {
        self.check(offset, length as u64)?;
        if !self.inner.backing.is_host() {
            let reason = "the CPU can't reach this kind of memory".to_string();
            return Err(MemoryError::Refused { domain: "host", reason });
        }
        let lease = self.lease()?;
        // SAFETY: `check` showed that `offset` is inside the region, which is inside its backing.
        Ok((unsafe { self.as_ptr().add(offset as usize) }, lease))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("id", &self.id())
            .field("len", &self.len())
            .field("access", &self.access())
            .field("generation", &self.generation())
            .finish_non_exhaustive()
    }
}

/// A region's handle that keeps neither it nor its memory alive.
#[derive(Clone)]
pub struct WeakRegion {
    inner: Weak<Inner>,
}

impl WeakRegion {
    /// The region, while anybody still has it.
    pub fn upgrade(&self) -> Option<Region> {
        self.inner.upgrade().map(|inner| Region { inner })
    }
}

impl fmt::Debug for WeakRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeakRegion").field(&self.upgrade()).finish()
    }
}

/// A number that nobody guesses.
pub(crate) fn random_key() -> Result<u64, MemoryError> {
    getrandom::u64().map_err(|e| MemoryError::NoRandom(e.to_string()))
}

/// A counted range of a region: what requests carry.
#[derive(Debug, Clone)]
pub struct Slice {
    region: Region,
    offset: u64,
    length: u64,
}

impl Slice {
    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Where it begins in the region, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// A range of this range.
    ///
    /// # Errors
    /// [`MemoryError::ZeroLength`], [`MemoryError::OutOfRange`].
    pub fn slice(&self, offset: u64, length: u64) -> Result<Slice, MemoryError> {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(MemoryError::OutOfRange { what: "slice", offset, length, size: self.length });
        }
        self.region.slice(self.offset + offset, length)
    }

    /// The addresses for an op, with the key under which a transport knows the region. Good only while a lease on the
    /// region is held.
    pub fn span(&self, key: LocalKey) -> LocalSpan {
        let first = self.region.as_ptr().as_ptr().wrapping_add(self.offset as usize);
        LocalSpan { address: first as u64, length: self.length, key }
    }
}
