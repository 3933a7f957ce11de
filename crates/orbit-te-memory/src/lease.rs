//! Leases: who may touch a region's bytes right now. Rule: a gate that was closed gives out no lease, and who closed it
//! is told when the last lease is gone.

use crate::grant::Grant;
use crate::region::Region;
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Closed for good: nothing clears this bit.
const RETIRED: u64 = 1 << 63;
/// Closed for the time of a revocation.
const PAUSED: u64 = 1 << 62;
const CLOSED: u64 = RETIRED | PAUSED;
/// Leases are counted in the low half, holds above them.
const COUNT: u64 = HOLD - 1;
const HOLD: u64 = 1 << 32;
const HELD: u64 = PAUSED - 1;

/// The count of leases and holds of one region, with bits that say it takes no more. Retiring and pausing have a bit each, so
/// that the end of a revocation can't open what was retired meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: AtomicU64,
    lock: Mutex<()>,
    drained: Condvar,
    /// Held by the one revocation that may pause the gate.
    turn: Mutex<()>,
}

/// A paused gate; dropping it lets the gate give out leases again, unless it was retired.
#[derive(Debug)]
pub(crate) struct Pause<'a> {
    gate: &'a Gate,
    _turn: MutexGuard<'a, ()>,
}

impl Gate {
    /// One lease more, or false when the gate is closed.
    pub(crate) fn enter(&self) -> bool {
        // A look first, so that whoever is refused is hardly ever counted, not even for a moment.
        if self.is_closed() {
            return false;
        }
        let before = self.state.fetch_add(1, Ordering::Acquire);
        if before & CLOSED == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// One lease less.
    pub(crate) fn leave(&self) {
        self.less(1);
    }

    /// One hold more. The caller has a lease, so nobody who waits for the gate has passed.
    pub(crate) fn hold(&self) {
        self.state.fetch_add(HOLD, Ordering::Acquire);
    }

    /// One hold less.
    pub(crate) fn let_go(&self) {
        self.less(HOLD);
    }

    fn less(&self, one: u64) {
        let before = self.state.fetch_sub(one, Ordering::Release);
        if before & CLOSED != 0 && before & HELD == one {
            // Taking the lock orders this wake-up after the waiter's look at the count.
            drop(self.lock.lock());
            self.drained.notify_all();
        }
    }

    /// Takes no more leases, ever.
    pub(crate) fn retire(&self) {
        self.state.fetch_or(RETIRED, Ordering::AcqRel);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.state.load(Ordering::Acquire) & RETIRED != 0
    }

    /// Takes no leases until the pause is dropped; none when another pause lasts beyond the deadline.
    pub(crate) fn pause(&self, deadline: Option<Instant>) -> Option<Pause<'_>> {
        let turn = match deadline {
            Some(deadline) => self.turn.try_lock_until(deadline)?,
            None => self.turn.lock(),
        };
        self.state.fetch_or(PAUSED, Ordering::AcqRel);
        Some(Pause { gate: self, _turn: turn })
    }

    /// Waits for the end of the pause that lasts now, if one does. Of a gate that was retired before, nobody does anything in a pause
    /// afterwards.
    pub(crate) fn outlast_pause(&self) {
        drop(self.turn.lock());
    }

    pub(crate) fn count(&self) -> u64 {
        self.state.load(Ordering::Acquire) & COUNT
    }

    pub(crate) fn holds(&self) -> u64 {
        (self.state.load(Ordering::Acquire) & HELD) / HOLD
    }

    /// Waits until no lease and no hold is left, for `limit`, and then calls `evict` and waits as much longer as that says; how many are left.
    pub(crate) fn wait_or(&self, limit: Duration, evict: impl FnOnce() -> Duration) -> u64 {
        match self.wait_drained(Instant::now().checked_add(limit)) {
            0 => 0,
            _ => self.wait_drained(Instant::now().checked_add(evict())),
        }
    }

    /// Waits until no lease and no hold is left, at the latest until `deadline` (none: for ever); the number of those that are
    /// left. The count was zero once when zero is returned: whoever is just being refused is counted for a moment, and
    /// must not be taken for a lease afterwards.
    fn wait_drained(&self, deadline: Option<Instant>) -> u64 {
        let mut guard = self.lock.lock();
        while self.count() + self.holds() > 0 {
            match deadline {
                Some(deadline) if self.drained.wait_until(&mut guard, deadline).timed_out() => {
                    return self.count() + self.holds();
                }
                Some(_) => {}
                None => self.drained.wait(&mut guard),
            }
        }
        0
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.gate.state.fetch_and(!PAUSED, Ordering::AcqRel);
    }
}

/// The right to touch a region's bytes until it is dropped. While it is held the region is not retired, the grant under which
/// it was given is not revoked, and the backing is not dropped.
pub struct Lease {
    region: Region,
    grant: Option<Arc<Grant>>,
}

impl Lease {
    pub(crate) fn take(region: &Region) -> Option<Lease> {
        region.gate().enter().then(|| Lease { region: region.clone(), grant: None })
    }

    /// Counts on the grant's gate too; none when the grant has been revoked.
    pub(crate) fn under(mut self, grant: &Arc<Grant>) -> Option<Lease> {
        if grant.gate().enter() {
            self.grant = Some(grant.clone());
            return Some(self);
        }
        None
    }

    pub(crate) fn shared_grant(&self) -> Option<&Arc<Grant>> {
        self.grant.as_ref()
    }

    /// The region it is a lease on.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The grant under which it was given to a peer; none for our own, and where the region's own key was presented.
    pub fn grant(&self) -> Option<&Grant> {
        self.grant.as_deref()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(grant) = &self.grant {
            grant.gate().leave();
        }
        self.region.gate().leave();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("region", &self.region.id()).finish()
    }
}
