//! Registrations of regions: one MR for each part, on every rail. Rule: a region is registered on all rails that are not lost or on none; its MRs live until
//! the region is withdrawn, and nobody uses an MR for a region but that region's own.

#![allow(unsafe_code)]

use crate::access::MrAccess;
use crate::adapter::{Adapter, Adapters};
use crate::attributes;
use crate::error::VerbsError;
use crate::handle::{Mr, NotFreed, Retention};
use arc_swap::ArcSwap;
use orbit_te_memory::{Access, Region};
use orbit_te_wire::RegionId;
use orbit_te_wire::rdma::{KeySet, MAX_PARTS, RailKeys};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shorter regions are pinned sooner than a thread is made.
const APART: u64 = 1 << 20;

/// The keys by which a rail of this side reaches a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalKeys {
    base: u64,
    length: u64,
    part_bytes: u64,
    lkeys: Vec<u32>,
}

impl LocalKeys {
    /// Keys that a test makes up: where the region is and how long, and how much of it each opens.
    #[cfg(test)]
    pub(crate) fn of((base, length): (u64, u64), part_bytes: u64, lkeys: Vec<u32>) -> LocalKeys {
        LocalKeys { base, length, part_bytes, lkeys }
    }

    /// The first address, the length and the key of a region with one key.
    pub(crate) fn single(&self) -> Option<(u64, u64, u32)> {
        match self.lkeys[..] {
            [lkey] => Some((self.base, self.length, lkey)),
            _ => None,
        }
    }

    /// The key for the byte at an address, and how many bytes from there on it reaches.
    pub(crate) fn at(&self, address: u64) -> Option<(u32, u64)> {
        let offset = address.checked_sub(self.base).filter(|offset| *offset < self.length)?;
        let lkey = *self.lkeys.get((offset / self.part_bytes) as usize)?;
        Some((lkey, (self.part_bytes - offset % self.part_bytes).min(self.length - offset)))
    }
}

/// The MRs of one region on one rail.
#[derive(Debug)]
struct OnRail {
    part_bytes: u64,
    mrs: Vec<Mr>,
}

/// An MR that could not be deregistered: its keys may still work.
#[derive(Debug)]
pub(crate) struct Stuck {
    retention: Arc<Retention>,
    why: NotFreed,
}

impl Stuck {
    /// Tries again; whether it is still there.
    pub(crate) fn stays(&self) -> bool {
        self.retention.sweep();
        self.retention.holds(self.why.ticket)
    }
}

/// The MRs of one region.
#[derive(Debug)]
pub(crate) struct Mrs {
    base: u64,
    length: u64,
    /// By the rail's number.
    rails: Vec<OnRail>,
}

impl Mrs {
    /// Registers a region on all rails but those that are lost, each by a thread of its own where there are several. All or nothing.
    pub(crate) fn register(adapters: &Adapters, region: &Region, access: Access) -> Result<Mrs, VerbsError> {
        let flags = flags(region.access(), access);
        let one = |adapter: &Adapter| {
            if adapter.is_lost() {
                return Ok(OnRail::none());
            }
            OnRail::register(adapter, region, flags).or_else(|error| {
                // It may have failed because the device is lost, which is not known yet.
                adapters.take_events();
                if adapter.is_lost() { Ok(OnRail::none()) } else { Err(error) }
            })
        };
        let rails: Vec<_> = match adapters.all() {
            few if few.len() < 2 || region.len() < APART => few.iter().map(one).collect(),
            several => std::thread::scope(|scope| {
                let threads: Vec<_> =
                    several.iter().map(|adapter| scope.spawn(move || one(adapter))).collect();
                let panicked = || VerbsError::new(crate::Verb::RegMr, "a thread panicked", crate::Errno::EIO);
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
            }),
        };
        let rails = rails.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(Mrs { base: region.as_ptr().as_ptr() as u64, length: region.len(), rails })
    }

    /// The keys for this side's own use on a rail.
    pub(crate) fn local(&self, rail: u8) -> Option<LocalKeys> {
        let on = self.rails.get(usize::from(rail)).filter(|on| !on.mrs.is_empty())?;
        let lkeys = on.mrs.iter().map(Mr::lkey).collect();
        Some(LocalKeys { base: self.base, length: self.length, part_bytes: on.part_bytes, lkeys })
    }

    /// The keys for a peer.
    pub(crate) fn remote(&self, access: Access, expires_ns: u64) -> KeySet {
        let rail = |(number, on): (usize, &OnRail)| RailKeys {
            rail: number as u8,
            base: self.base,
            part_bytes: on.part_bytes,
            rkeys: on.mrs.iter().map(Mr::rkey).collect(),
        };
        let rails = self.rails.iter().enumerate().filter(|(_, on)| !on.mrs.is_empty()).map(rail).collect();
        KeySet { length: self.length, access: access.bits(), expires_ns, rails }
    }

    /// Deregisters all, also after some that could not be; those.
    pub(crate) fn deregister(self, adapters: &Adapters) -> Vec<Stuck> {
        let mut stuck = Vec::new();
        for (adapter, rail) in adapters.all().iter().zip(self.rails) {
            let failed = rail.mrs.into_iter().filter_map(|mr| mr.deregister().err());
            stuck
                .extend(failed.map(|why| Stuck { retention: adapter.pd.context().retention().clone(), why }));
        }
        stuck
    }
}

impl OnRail {
    /// What there is on a rail that is lost.
    fn none() -> OnRail {
        OnRail { part_bytes: 1, mrs: Vec::new() }
    }

    fn register(adapter: &Adapter, region: &Region, flags: MrAccess) -> Result<OnRail, VerbsError> {
        let (base, length) = (region.as_ptr().as_ptr(), region.len());
        let part_bytes = part_bytes(length, adapter.limits.max_mr_size);
        let mut mrs = Vec::with_capacity(length.div_ceil(part_bytes) as usize);
        let mut offset = 0;
        while offset < length {
            let bytes = part_bytes.min(length - offset);
            let address = base.wrapping_add(offset as usize);
            // SAFETY: the range is inside of the region's backing, which is kept until the device has let go of it; bytes of regions are
            // never Rust references while others may write them.
            let mr = unsafe {
                adapter.pd.register(
                    address,
                    bytes as usize,
                    address as u64,
                    flags,
                    region.backing().clone(),
                )?
            };
            mrs.push(mr);
            offset += bytes;
        }
        Ok(OnRail { part_bytes, mrs })
    }
}

/// How many bytes one MR has, of a region of this length on a device with this limit: equal parts, cut at whole pages.
fn part_bytes(length: u64, limit: u64) -> u64 {
    const PAGE: u64 = 4096;
    if limit == 0 || length <= limit {
        return length;
    }
    let most = (limit / PAGE).max(1) * PAGE;
    most.max(length.div_ceil(MAX_PARTS as u64).next_multiple_of(PAGE))
}

/// What the device lets be done with an MR for these rights, of what the region lets be done. Whether a device honours relaxed ordering is said
/// by no verb, so that it is not asked for.
fn flags(region: Access, access: Access) -> MrAccess {
    // Pages of other regions may be read-only.
    let writable = region.intersects(Access::LOCAL | Access::REMOTE_WRITE);
    attributes::registration(access, writable, false, false)
}

/// The MRs of all regions of a domain.
#[derive(Debug)]
pub(crate) struct Registrations {
    adapters: Arc<Adapters>,
    table: ArcSwap<HashMap<RegionId, Arc<Mrs>>>,
    /// Held while the table is replaced.
    edit: Mutex<()>,
    /// What is left of regions that were to be deregistered.
    stuck: Mutex<HashMap<RegionId, Vec<Stuck>>>,
    /// Changes whenever keys end.
    epoch: AtomicU64,
}

impl Registrations {
    pub(crate) fn new(adapters: Arc<Adapters>) -> Registrations {
        let (table, edit, stuck) = (ArcSwap::default(), Mutex::default(), Mutex::default());
        Registrations { adapters, table, edit, stuck, epoch: AtomicU64::new(0) }
    }

    pub(crate) fn adapters(&self) -> &Arc<Adapters> {
        &self.adapters
    }

    /// Registers a region with the rights that it has.
    pub(crate) fn add(&self, region: &Region) -> Result<(), VerbsError> {
        let mrs = Arc::new(Mrs::register(&self.adapters, region, region.access())?);
        self.replace(|table| table.insert(region.id(), mrs));
        Ok(())
    }

    pub(crate) fn get(&self, region: RegionId) -> Option<Arc<Mrs>> {
        self.table.load().get(&region).cloned()
    }

    /// What changes whenever keys end; keys that were kept are to be looked up again then.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Ends a region's registration. Its keys are dead when this returns, but for what could not be deregistered, which is retained and tried
    /// again when this is called again.
    pub(crate) fn remove(&self, region: RegionId) -> Result<(), NotFreed> {
        let removed = self.replace(|table| table.remove(&region));
        self.epoch.fetch_add(1, Ordering::AcqRel);
        // Without the lock: freeing may drop memory, whose owner has code of his own.
        let mut stuck = self.stuck.lock().remove(&region).unwrap_or_default();
        stuck.retain(Stuck::stays);
        // Whoever looks it up holds it for no longer than that takes.
        if let Some(mrs) = removed.map(unshared) {
            stuck.extend(mrs.deregister(&self.adapters));
        }
        match stuck.first().map(|first| first.why) {
            None => Ok(()),
            Some(why) => {
                self.stuck.lock().insert(region, stuck);
                Err(why)
            }
        }
    }

    fn replace<T>(&self, change: impl FnOnce(&mut HashMap<RegionId, Arc<Mrs>>) -> T) -> T {
        let _editing = self.edit.lock();
        let mut table = HashMap::clone(&self.table.load());
        let changed = change(&mut table);
        self.table.store(Arc::new(table));
        changed
    }
}

fn unshared<T>(mut shared: Arc<T>) -> T {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(own) => return own,
            Err(other) => shared = other,
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_a_region_and_keep_the_limit(length in 1u64..1 << 40, limit in prop_oneof![Just(0u64), 4096u64..1 << 41]) {
            let part = part_bytes(length, limit);
            prop_assert!(part > 0 && length.div_ceil(part) <= MAX_PARTS as u64);
            if limit > 0 && length.div_ceil(limit / 4096 * 4096) <= MAX_PARTS as u64 {
                prop_assert!(part <= limit.max(length.min(limit)));
            }
        }

        #[test]
        fn an_address_finds_its_key(length in 1u64..100_000, part in 1u64..40_000, at in 0u64..120_000) {
            let base = 0x7000_0000;
            let lkeys = (0..length.div_ceil(part) as u32).collect();
            let keys = LocalKeys { base, length, part_bytes: part, lkeys };
            match keys.at(base + at) {
                None => prop_assert!(at >= length),
                Some((key, reach)) => {
                    prop_assert_eq!(u64::from(key), at / part);
                    prop_assert!(reach > 0 && at + reach <= length && (at + reach) <= (u64::from(key) + 1) * part);
                }
            }
            prop_assert!(keys.at(base - 1).is_none());
        }
    }
}
