//! The hand-over of commands to whoever drives a core: a ring, the core behind a lock, and when the worker's thread wakes by
//! itself. Rule: what was pushed is seen by the thread that holds the core or by the next one; nobody sleeps beyond the time
//! at which the core wants to be looked at.

use crate::sync::{ArrayQueue, AtomicU64, Mutex, MutexGuard, Ordering, fence};

/// Nobody sleeps.
const AWAKE: u64 = 0;
/// Who sleeps does so until it is woken.
pub(crate) const FOREVER: u64 = u64::MAX;

/// A core, and the ring of commands for it.
pub(crate) struct Handover<C, T> {
    core: Mutex<C>,
    ring: ArrayQueue<T>,
    /// When the worker's thread wakes by itself, in nanoseconds of the worker's clock; `AWAKE` or `FOREVER`.
    asleep_until: AtomicU64,
    /// When the caller who naps gets up by itself, likewise.
    nap_until: AtomicU64,
}

impl<C, T> Handover<C, T> {
    pub(crate) fn new(core: C, commands: usize) -> Handover<C, T> {
        Handover {
            core: Mutex::new(core),
            ring: ArrayQueue::new(commands),
            asleep_until: AtomicU64::new(AWAKE),
            nap_until: AtomicU64::new(AWAKE),
        }
    }

    pub(crate) fn core(&self) -> &Mutex<C> {
        &self.core
    }

    pub(crate) fn ring(&self) -> &ArrayQueue<T> {
        &self.ring
    }

    /// Pushes a command, or gives it back when the ring is full. With the core, if that is free: the caller feeds it then, and
    /// parts with it by [`Handover::part`]. Otherwise whoever has it sees the command.
    pub(crate) fn push(&self, command: T) -> Result<Option<MutexGuard<'_, C>>, T> {
        self.ring.push(command)?;
        // Whoever holds the core looks at the ring after letting go of it; the fence pairs with the one before that look.
        fence(Ordering::SeqCst);
        Ok(self.core.try_lock())
    }

    /// Lets go of a core that wants to be looked at again at this time: `kick`s the worker's thread if it would sleep longer, and
    /// `rouse`s the caller who naps likewise, since the worker's thread may be away meanwhile.
    /// Gives the core back when something was pushed meanwhile that nobody else can be relied on to see.
    pub(crate) fn part<'a>(
        &'a self,
        core: MutexGuard<'a, C>,
        wake: u64,
        kick: impl FnOnce(),
        rouse: impl FnOnce(),
    ) -> Option<MutexGuard<'a, C>> {
        drop(core);
        fence(Ordering::SeqCst);
        if wake < self.asleep_until.load(Ordering::SeqCst) {
            kick();
        }
        if wake < self.nap_until.load(Ordering::SeqCst) {
            rouse();
        }
        // Who pushed while the core was held relies on this look.
        if self.ring.is_empty() { None } else { self.core.try_lock() }
    }

    /// Lets go of a core for a sleep of the worker's thread until this time; whether it may sleep. [`Handover::awake`] follows in
    /// any case.
    pub(crate) fn may_sleep(&self, core: MutexGuard<'_, C>, until: u64) -> bool {
        self.asleep_until.store(until, Ordering::SeqCst);
        drop(core);
        fence(Ordering::SeqCst);
        // A command that came before the line above finds this thread awake here; a later one kicks.
        self.ring.is_empty()
    }

    /// The worker's thread has slept, or was not to.
    pub(crate) fn awake(&self) {
        self.asleep_until.store(AWAKE, Ordering::SeqCst);
    }

    /// Says that a caller naps until this time; one at most does at a time. With the core, if that is free, which must be asked when
    /// it wants to be looked at: who let go of it before did not know of the nap. [`Handover::may_nap`] and
    /// [`Handover::end_nap`] follow in any case.
    pub(crate) fn begin_nap(&self, until: u64) -> Option<MutexGuard<'_, C>> {
        self.nap_until.store(until, Ordering::SeqCst);
        // Whoever has the core now lets go of it after this, and finds the nap.
        fence(Ordering::SeqCst);
        self.core.try_lock()
    }

    /// Lets go of the core for a nap; whether the caller may nap. If not, it looks at the core again or parts with it.
    pub(crate) fn may_nap(&self, core: Option<MutexGuard<'_, C>>) -> bool {
        drop(core);
        fence(Ordering::SeqCst);
        // Who pushed while the core was held relies on this look.
        self.ring.is_empty()
    }

    /// The caller has napped, or was not to.
    pub(crate) fn end_nap(&self) {
        self.nap_until.store(AWAKE, Ordering::SeqCst);
    }
}
