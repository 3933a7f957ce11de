//! The registry: a process's regions, and the one check that every request of a peer passes. Rule: readers take a
//! snapshot that is replaced whole, so that a request is admitted without a lock.

use crate::backing::Backing;
use crate::error::MemoryError;
use crate::grant::{GrantId, Grants, Holder};
use crate::hold::{Recall, Recalled};
use crate::lease::Lease;
use crate::limit::{Charges, RegistrationLimit, Unlimited};
use crate::region::{Region, WeakRegion, random_key};
use crate::registration::Registration;
use crate::sync::Mutex;
use arc_swap::ArcSwap;
use orbit_te_wire::{Access, Generation, RegionId, Status};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use thiserror::Error;

/// A snapshot of the regions by number.
pub type RegionTable = HashMap<RegionId, Region>;

/// A process's regions.
pub struct Registry {
    table: Arc<ArcSwap<RegionTable>>,
    grants: Arc<Grants>,
    /// Who is told what ends.
    recalls: Mutex<Vec<Weak<dyn Recall>>>,
    /// Held while the table is replaced.
    making: Mutex<Making>,
}

#[derive(Debug)]
struct Making {
    /// The last number given out.
    last: u64,
    charges: Charges,
    /// Regions that are not published yet, where overlaps must be found.
    unpublished: Vec<WeakRegion>,
}

/// What a peer asks to do with a region.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The region's number.
    pub region: RegionId,
    /// The generation of the peer's descriptor.
    pub generation: Generation,
    /// The key from the peer's descriptor: the region's own, or that of a grant.
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
    /// The key is neither the region's nor that of a grant which this peer has.
    #[error("wrong region key")]
    BadKey,
    /// The grant was revoked or has expired.
    #[error("the grant was revoked or has expired")]
    GrantEnded,
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
            AdmitError::GrantEnded => Status::GrantEnded,
            AdmitError::OutOfRange => Status::OutOfRange,
            AdmitError::BadLength => Status::BadLength,
            AdmitError::AccessDenied => Status::AccessDenied,
        }
    }
}

impl Registry {
    /// An empty registry without a limit.
    pub fn new() -> Arc<Registry> {
        Registry::with_limit(Arc::new(Unlimited))
    }

    /// An empty registry that counts its bytes against this limit.
    pub fn with_limit(limit: Arc<dyn RegistrationLimit>) -> Arc<Registry> {
        let making = Making { last: 0, charges: Charges::new(limit), unpublished: Vec::new() };
        Arc::new(Registry {
            table: Arc::default(),
            grants: Arc::default(),
            recalls: Mutex::new(Vec::new()),
            making: Mutex::new(making),
        })
    }

    /// Has somebody told, from now on and as long as he lives, what ends.
    pub fn on_recall(&self, who: Weak<dyn Recall>) {
        let mut recalls = self.recalls.lock();
        recalls.retain(|known| known.strong_count() > 0);
        recalls.push(who);
    }

    fn recall(&self, what: Recalled) {
        let recalls: Vec<_> = self.recalls.lock().iter().filter_map(Weak::upgrade).collect();
        recalls.iter().for_each(|who| who.recall(what));
    }

    /// Registers all of a backing, with no domain.
    ///
    /// # Errors
    /// [`MemoryError::NoRandom`] when no key can be drawn, [`MemoryError::OverLimit`].
    pub fn register(&self, backing: impl Into<Arc<Backing>>, access: Access) -> Result<Region, MemoryError> {
        self.register_one(&Registration::new(backing, access))
    }

    /// Registers a range of a backing, with no domain; other regions may be over the same backing, and share it.
    ///
    /// # Errors
    /// [`MemoryError::ZeroLength`], [`MemoryError::OutOfRange`], [`MemoryError::NoRandom`], [`MemoryError::OverLimit`].
    pub fn register_range(
        &self,
        backing: impl Into<Arc<Backing>>,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<Region, MemoryError> {
        self.register_one(&Registration::range(backing, offset, length, access))
    }

    fn register_one(&self, entry: &Registration) -> Result<Region, MemoryError> {
        let region = self.prepare(entry, None)?;
        self.publish([&region]);
        Ok(region)
    }

    /// A region that no peer can reach yet. `sharing` names a domain in which overlapping regions would share their rights.
    pub(crate) fn prepare(
        &self,
        entry: &Registration,
        sharing: Option<&'static str>,
    ) -> Result<Region, MemoryError> {
        let Registration { backing, offset, length, access } = entry;
        let (offset, length, size) = (*offset, *length, backing.len() as u64);
        if length == 0 {
            return Err(MemoryError::ZeroLength { what: "region" });
        }
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(MemoryError::OutOfRange { what: "backing", offset, length, size });
        }
        let key = random_key()?;
        let mut making = self.making.lock();
        let charge = making.charges.of(backing)?;
        making.last += 1;
        let id = RegionId(making.last);
        let region = Region::new(id, backing.clone(), offset as usize, length as usize, *access, key, charge);
        if let Some(domain) = sharing {
            let table = self.table.load();
            making.unpublished.retain(|other| other.upgrade().is_some_and(|r| !r.is_retired()));
            let unpublished = making.unpublished.iter().filter_map(WeakRegion::upgrade);
            let clash = |other: &Region| other.access() != *access && other.overlaps(&region);
            if let Some(other) = table.values().cloned().chain(unpublished).find(clash) {
                return Err(MemoryError::Overlap { other: other.id(), domain });
            }
            making.unpublished.push(region.downgrade());
        }
        Ok(region)
    }

    /// Lets peers reach these regions, all of them at once.
    pub(crate) fn publish<'a>(&self, regions: impl IntoIterator<Item = &'a Region>) {
        let mut making = self.making.lock();
        let mut table = RegionTable::clone(&self.table.load());
        for region in regions {
            making.unpublished.retain(|other| other.upgrade().is_some_and(|r| !r.is(region)));
            table.insert(region.id(), region.clone());
        }
        self.table.store(Arc::new(table));
    }

    /// Withdraws a region: new requests are refused at once, and the call returns when no lease is left, at the latest
    /// after `limit`. Blocks; safe from any thread that does not itself drive transfers.
    ///
    /// # Errors
    /// [`MemoryError::StillLeased`] at the limit: the region stays withdrawn, its backing is kept while any lease
    /// lives, and calling again waits again.
    pub fn retire(&self, region: &Region, limit: Duration) -> Result<(), MemoryError> {
        self.retire_or(region, limit, || Duration::ZERO)
    }

    /// As [`Registry::retire`]. When leases are left at the limit it calls `evict`, which makes what holds them end, and waits
    /// as much longer as that says. Where a revocation has domains renew the region right now, that is waited for as well, however
    /// long they take: afterwards it may be deregistered.
    ///
    /// # Errors
    /// As [`Registry::retire`], after both waits.
    pub fn retire_or(
        &self,
        region: &Region,
        limit: Duration,
        evict: impl FnOnce() -> Duration,
    ) -> Result<(), MemoryError> {
        region.gate().retire();
        {
            let _making = self.making.lock();
            if self.holds(region) {
                let mut table = RegionTable::clone(&self.table.load());
                table.remove(&region.id());
                self.table.store(Arc::new(table));
            }
        }
        self.grants.forget(region.id());
        self.recall(Recalled::Region(region.id()));
        match region.gate().wait_or(limit, evict) {
            0 => {
                region.gate().outlast_pause();
                Ok(())
            }
            leases => Err(region.still_leased(leases, limit)),
        }
    }

    /// Makes all descriptors of a region stale, and its grants with them, and returns when requests that were admitted under them
    /// have ended, at the latest after `limit`. Requests that come meanwhile are refused, our own too; afterwards the region takes
    /// new ones. Revocations of one region wait for each other.
    ///
    /// # Errors
    /// [`MemoryError::StillLeased`] at the limit: descriptors are stale and the region open again, but an old request
    /// may still be under way. [`MemoryError::Retired`] for a region that is not of this registry any more, also when it
    /// was retired meanwhile; it stays retired. [`MemoryError::NoRandom`]: nothing was revoked.
    ///
    /// Domains are not told: for a region that was registered with some, use [`Registry::revoke_or`].
    pub fn revoke(&self, region: &Region, limit: Duration) -> Result<Generation, MemoryError> {
        self.revoke_or(region, limit, || Duration::ZERO, || Ok(()))
    }

    /// As [`Registry::revoke`], with `evict` as in [`Registry::retire_or`]. `renew` has the domains make dead what they had made known to
    /// peers ([`crate::Domain::renew`]); it is called at most once, when nothing that was admitted is left and while the region takes
    /// nothing new, and not at all where leases or holds are left or the region was retired meanwhile. As it runs the region can't be
    /// retired to the end, so it must not wait for that.
    ///
    /// # Errors
    /// As [`Registry::revoke`], after both waits, and what `renew` gives; the region takes requests again then as well, and descriptors
    /// are stale.
    pub fn revoke_or(
        &self,
        region: &Region,
        limit: Duration,
        evict: impl FnOnce() -> Duration,
        renew: impl FnOnce() -> Result<(), MemoryError>,
    ) -> Result<Generation, MemoryError> {
        let begun = Instant::now();
        if region.is_retired() || !self.holds(region) {
            return Err(MemoryError::Retired { region: region.id() });
        }
        // First the generation, then the gate: whoever finds the gate paused finds its own generation stale.
        let generation = region.renew()?;
        self.grants.forget(region.id());
        let Some(pause) = region.gate().pause(begun.checked_add(limit)) else {
            return Err(region.still_leased(region.leases(), limit));
        };
        self.recall(Recalled::Region(region.id()));
        let leases = region.gate().wait_or(limit.saturating_sub(begun.elapsed()), evict);
        if leases > 0 {
            return Err(region.still_leased(leases, limit));
        }
        // Who retires it from here on waits for the end of the pause.
        if !region.is_retired() {
            renew()?;
        }
        drop(pause);
        if region.is_retired() {
            return Err(MemoryError::Retired { region: region.id() });
        }
        Ok(generation)
    }

    /// Makes all descriptors of a region stale, and its grants with them, without waiting: a peer that uses one is refused. Requests that
    /// were admitted before go on, and peers that reach the region by themselves stop soon; use [`Registry::revoke`] to wait for both.
    ///
    /// Domains are not asked to renew the region, since requests may still be under way by what they made known; so it is no way to take
    /// anything back from a peer that presents its key to a device instead of this registry.
    ///
    /// # Errors
    /// [`MemoryError::NoRandom`]: no new key, and nothing has changed.
    pub fn renew(&self, region: &Region) -> Result<Generation, MemoryError> {
        let generation = region.renew()?;
        self.grants.forget(region.id());
        self.recall(Recalled::Region(region.id()));
        Ok(generation)
    }

    /// Ends one grant: requests under it are refused from now on, and the call returns when those that were admitted have ended, at
    /// the latest after `limit`. Others go on. `evict` as in [`Registry::retire_or`]. Blocks. A grant that is over already is
    /// waited for as well.
    ///
    /// # Errors
    /// [`MemoryError::UnknownGrant`], [`MemoryError::StillLeased`] when requests under it are left after both waits.
    pub fn revoke_grant_or(
        &self,
        id: GrantId,
        limit: Duration,
        evict: impl FnOnce() -> Duration,
    ) -> Result<(), MemoryError> {
        let grant = self.grants.get(id).ok_or(MemoryError::UnknownGrant { grant: id })?;
        grant.gate().retire();
        self.recall(Recalled::Grant(id));
        match grant.gate().wait_or(limit, evict) {
            0 => Ok(()),
            leases => Err(MemoryError::StillLeased {
                region: grant.region(),
                leases,
                waited_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            }),
        }
    }

    /// The grants on its regions.
    pub fn grants(&self) -> &Arc<Grants> {
        &self.grants
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

    /// The table for a reader of its own. Whoever keeps a snapshot keeps the memory of regions that are withdrawn meanwhile.
    pub fn table(&self) -> Arc<ArcSwap<RegionTable>> {
        self.table.clone()
    }

    /// Checks the request of a peer that has no grants of its own, and gives the lease under which it may be carried out.
    ///
    /// # Errors
    /// [`AdmitError`], in this order: number and withdrawal, generation, key, the grant's end, rights, length, range. While a
    /// revocation waits, every generation counts as stale.
    pub fn admit(&self, request: &Request) -> Result<Lease, AdmitError> {
        admit(&self.table.load(), self.grants.anybody(), request, Instant::now())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("regions", &self.len()).finish_non_exhaustive()
    }
}

/// Checks a request on a snapshot of the table and what its sender holds. A region that was withdrawn after the snapshot was taken
/// is refused all the same: its gate is closed. Neither locks nor allocates.
///
/// # Errors
/// As [`Registry::admit`].
pub fn admit(
    table: &RegionTable,
    holder: &Holder,
    request: &Request,
    now: Instant,
) -> Result<Lease, AdmitError> {
    let region = table.get(&request.region).ok_or(AdmitError::UnknownRegion)?;
    let current = || match request.generation == region.generation() {
        _ if region.is_retired() => Err(AdmitError::UnknownRegion),
        true => Ok(()),
        false => Err(AdmitError::StaleGeneration),
    };
    current()?;
    let grant = match request.key == region.key() {
        true => None,
        false => holder.find(request.key).filter(|grant| grant.region() == request.region),
    };
    if grant.is_none() && request.key != region.key() {
        // Who revokes or retires the region takes its grants out after that, perhaps since the look above.
        current()?;
        return Err(AdmitError::BadKey);
    }
    if let Some(grant) = &grant {
        if grant.is_over(now) {
            return Err(AdmitError::GrantEnded);
        }
        // A generation that was made up is not the grant's.
        if grant.generation() != request.generation {
            return Err(AdmitError::StaleGeneration);
        }
    }
    let lease = Lease::take(region).ok_or_else(|| match region.is_retired() {
        true => AdmitError::UnknownRegion,
        false => AdmitError::StaleGeneration,
    })?;
    // Again, now under the lease: a revocation that began in between waits for this lease, or is seen here.
    let (lease, access) = match &grant {
        Some(grant) => (lease.under(grant).ok_or(AdmitError::GrantEnded)?, grant.access()),
        None => (lease, region.access()),
    };
    current()?;
    if grant.is_none() && request.key != region.key() {
        return Err(AdmitError::StaleGeneration);
    }
    if !access.contains(request.access) {
        return Err(AdmitError::AccessDenied);
    }
    if request.length == 0 {
        return Err(AdmitError::BadLength);
    }
    region.check(request.offset, request.length).map_err(|_| AdmitError::OutOfRange)?;
    Ok(lease)
}
