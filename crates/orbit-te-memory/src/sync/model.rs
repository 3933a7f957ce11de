//! The primitives of a model checker in the shape of those that ship. Rule: no time passes in a model, so a wait with a
//! limit is a wait without one, and what would wait for ever is found as a deadlock.

#[cfg(orbit_loom)]
use loom::sync as checked;
#[cfg(orbit_shuttle)]
use shuttle::sync as checked;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Instant;

pub(crate) use checked::atomic::{AtomicU64, Ordering};

/// As `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(checked::Mutex<T>);

/// As `parking_lot::MutexGuard`. Empty only while its condition variable has it.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T>(Option<checked::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(checked::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    pub(crate) fn try_lock_until(&self, _deadline: Instant) -> Option<MutexGuard<'_, T>> {
        Some(self.lock())
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(guard) => guard,
            None => unreachable!("a guard is whole outside of a wait"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            Some(guard) => guard,
            None => unreachable!("a guard is whole outside of a wait"),
        }
    }
}

/// As `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub(crate) struct Condvar(checked::Condvar);

/// As `parking_lot::WaitTimeoutResult`.
pub(crate) struct Waited;

impl Waited {
    pub(crate) fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(inner) = guard.0.take() {
            guard.0 = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> Waited {
        self.wait(guard);
        Waited
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
