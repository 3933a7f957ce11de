//! Memory that is kept although its owner let it go, because somebody may still touch it. Rule: it is listed with the reason, and
//! never freed while it is listed.

use crate::clock;
use crate::engine::Engine;
use orbit_te_memory::{Lease, Region as RawRegion, WeakRegion};
use orbit_te_wire::RegionId;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A region that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retained {
    /// Which.
    pub region: RegionId,
    /// Its length.
    pub bytes: u64,
    /// Requests that may still touch it.
    pub leases: u64,
    /// Why it is kept.
    pub reason: String,
    /// For how long it has been.
    pub since: Duration,
}

/// The regions that an engine keeps.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    entries: Mutex<Vec<Entry>>,
    ever: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    /// Weak, so that a region whose last request ends is let go without anybody looking at the list.
    region: WeakRegion,
    id: RegionId,
    reason: String,
    since: Instant,
}

impl Retention {
    /// A region was withdrawn and still has leases; it leaves the list with the last of them.
    pub(crate) fn withdrawn(&self, region: &RawRegion) {
        self.add(region, "it was withdrawn, and requests for it are still under way");
    }

    /// Nobody can say when these leases end: they never do.
    pub(crate) fn for_ever(&self, leases: Vec<Lease>, reason: &str) {
        for lease in leases {
            self.add(lease.region(), reason);
            // Also when the engine is dropped: what may still be touched is better lost than used again.
            std::mem::forget(lease);
        }
    }

    fn add(&self, region: &RawRegion, reason: &str) {
        let mut entries = self.entries.lock();
        entries.retain(Entry::is_held);
        if entries.iter().any(|entry| entry.id == region.id()) {
            return;
        }
        self.ever.fetch_add(1, Ordering::Relaxed);
        tracing::error!(region = %region.id(), bytes = region.len(), reason, "memory is retained");
        let (id, since) = (region.id(), clock::now());
        entries.push(Entry { region: region.downgrade(), id, reason: reason.to_string(), since });
    }

    fn list(&self) -> Vec<Retained> {
        let mut entries = self.entries.lock();
        entries.retain(Entry::is_held);
        entries.iter().filter_map(Entry::describe).collect()
    }
}

impl Entry {
    fn is_held(&self) -> bool {
        self.region.upgrade().is_some_and(|region| region.leases() > 0)
    }

    fn describe(&self) -> Option<Retained> {
        let region = self.region.upgrade()?;
        Some(Retained {
            region: self.id,
            bytes: region.len(),
            leases: region.leases(),
            reason: self.reason.clone(),
            since: self.since.elapsed(),
        })
    }
}

impl Engine {
    /// Memory that is kept although it was withdrawn or its transfers have ended, because it can't be shown that nobody touches it any
    /// more: regions whose [`Engine::retire`] met its limit, until their last request ends, and what the transfers of a worker
    /// held that failed, for ever.
    pub fn retained(&self) -> Vec<Retained> {
        self.shared().retention.list()
    }

    /// How many regions were ever retained since the engine started. For monitoring: it never falls.
    pub fn retained_ever(&self) -> u64 {
        self.shared().retention.ever.load(Ordering::Relaxed)
    }
}
