//! The primitives by which threads meet here. Rule: code of this crate takes them from here, so that the model checkers
//! (`cargo xtask loom`, `cargo xtask shuttle`) run the very code that ships.
//!
//! The switches are not called `loom` and `shuttle`, since some dependencies have a meaning of their own for `loom`.

#[cfg(any(orbit_loom, orbit_shuttle))]
mod model;

#[cfg(any(orbit_loom, orbit_shuttle))]
pub(crate) use model::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
#[cfg(not(any(orbit_loom, orbit_shuttle)))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(any(orbit_loom, orbit_shuttle)))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
