//! The primitives of a model checker in the shape of those that ship. Rule: no time passes in a model, so a wait with a
//! limit is a single look.

#[cfg(orbit_loom)]
use loom::sync as checked;
#[cfg(orbit_shuttle)]
use shuttle::sync as checked;
use std::sync::PoisonError;
use std::time::Duration;

pub(crate) use checked::MutexGuard;
use checked::atomic::AtomicUsize;
pub(crate) use checked::atomic::{AtomicU64, Ordering, fence};

/// As `parking_lot::Mutex`.
#[derive(Debug)]
pub(crate) struct Mutex<T>(checked::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(checked::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    pub(crate) fn try_lock_for(&self, _limit: Duration) -> Option<MutexGuard<'_, T>> {
        self.try_lock()
    }
}

/// As `crossbeam_queue::ArrayQueue`, which the checkers can't look into, with its orderings: a value is published by a release
/// and taken by an acquire, and nothing more is promised between two threads. Only what holds the core takes from it.
#[derive(Debug)]
pub(crate) struct ArrayQueue<T> {
    slots: Vec<(AtomicUsize, std::sync::Mutex<Option<T>>)>,
    head: AtomicUsize,
    tail: AtomicUsize,
}

impl<T> ArrayQueue<T> {
    pub(crate) fn new(capacity: usize) -> ArrayQueue<T> {
        let slots = (0..capacity).map(|_| (AtomicUsize::new(0), std::sync::Mutex::new(None))).collect();
        ArrayQueue { slots, head: AtomicUsize::new(0), tail: AtomicUsize::new(0) }
    }

    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        loop {
            let (head, tail) = (self.head.load(Ordering::Acquire), self.tail.load(Ordering::Relaxed));
            if tail - head >= self.slots.len() {
                return Err(value);
            }
            if self.tail.compare_exchange(tail, tail + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                let (turn, slot) = &self.slots[tail % self.slots.len()];
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
                turn.store(tail + 1, Ordering::Release);
                return Ok(());
            }
        }
    }

    /// None also while a value is being pushed.
    pub(crate) fn pop(&self) -> Option<T> {
        let head = self.head.load(Ordering::Relaxed);
        let (turn, slot) = &self.slots[head % self.slots.len()];
        if turn.load(Ordering::Acquire) != head + 1 {
            return None;
        }
        let value = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.head.store(head + 1, Ordering::Release);
        value
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::SeqCst) == self.tail.load(Ordering::SeqCst)
    }
}
