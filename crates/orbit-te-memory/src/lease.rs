//! Leases: who may touch a region's bytes right now. Rule: a gate that was closed gives out no lease, and who closed it
//! is told when the last lease is gone.

use crate::region::Region;
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const CLOSED: u64 = 1 << 63;
const COUNT: u64 = CLOSED - 1;

/// The count of leases of one region, with a bit that says it takes no more.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: AtomicU64,
    lock: Mutex<()>,
    drained: Condvar,
}

impl Gate {
    /// One lease more, or false when the gate is closed.
    pub(crate) fn enter(&self) -> bool {
        let before = self.state.fetch_add(1, Ordering::Acquire);
        if before & CLOSED == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// One lease less.
    pub(crate) fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::Release);
        if before == CLOSED | 1 {
            // Taking the lock orders this wake-up after the waiter's look at the count.
            drop(self.lock.lock());
            self.drained.notify_all();
        }
    }

    /// Takes no more leases from here on.
    pub(crate) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Takes leases again.
    pub(crate) fn open(&self) {
        self.state.fetch_and(!CLOSED, Ordering::AcqRel);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }

    pub(crate) fn count(&self) -> u64 {
        self.state.load(Ordering::Acquire) & COUNT
    }

    /// Waits until no lease is left, at the latest until `deadline`; the number of leases that are left.
    pub(crate) fn wait_drained(&self, deadline: Instant) -> u64 {
        let mut guard = self.lock.lock();
        while self.count() > 0 {
            if self.drained.wait_until(&mut guard, deadline).timed_out() {
                break;
            }
        }
        self.count()
    }
}

/// The right to touch a region's bytes until it is dropped. While it is held the region is not retired and its backing
/// not dropped.
pub struct Lease {
    region: Region,
}

impl Lease {
    pub(crate) fn take(region: &Region) -> Option<Lease> {
        region.gate().enter().then(|| Lease { region: region.clone() })
    }

    /// The region it is a lease on.
    pub fn region(&self) -> &Region {
        &self.region
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.region.gate().leave();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("region", &self.region.id()).finish()
    }
}
