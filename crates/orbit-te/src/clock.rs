//! The engine's clock. Rule: the engine reads the time here and nowhere else, so that a simulation can set it.

use std::time::Instant;

/// The time now. In a simulation: that of the runtime in which the simulated process runs.
#[inline]
pub(crate) fn now() -> Instant {
    #[cfg(not(feature = "simulation"))]
    return Instant::now();
    #[cfg(feature = "simulation")]
    return tokio::time::Instant::now().into_std();
}
