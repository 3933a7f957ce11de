//! The primitives of the hand-over between callers and a worker. Rule: [`crate::handover`] takes them from here, so that the
//! model checkers (`cargo xtask loom`, `cargo xtask shuttle`) run the very code that ships.
//!
//! The switches are not called `loom` and `shuttle`, since tokio has a meaning of its own for `loom`.

#[cfg(any(orbit_loom, orbit_shuttle))]
mod model;

#[cfg(not(any(orbit_loom, orbit_shuttle)))]
pub(crate) use crossbeam_queue::ArrayQueue;
#[cfg(any(orbit_loom, orbit_shuttle))]
pub(crate) use model::{ArrayQueue, AtomicU64, Mutex, MutexGuard, Ordering, fence};
#[cfg(not(any(orbit_loom, orbit_shuttle)))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(any(orbit_loom, orbit_shuttle)))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
