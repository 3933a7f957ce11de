//! When a peer was last heard on its control link, and how it is asked for a sign. Rule: asked from any thread, answered by the
//! control thread; asking often costs no more than asking once.

use crate::clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A peer's pulse.
#[derive(Debug)]
pub(crate) struct Pulse {
    epoch: Instant,
    /// In nanoseconds since `epoch`.
    heard_ns: AtomicU64,
    wanted: Notify,
}

impl Pulse {
    /// A pulse that was felt just now.
    pub(crate) fn new() -> Pulse {
        Pulse { epoch: clock::now(), heard_ns: AtomicU64::new(0), wanted: Notify::new() }
    }

    /// The peer has said something.
    pub(crate) fn heard(&self) {
        let ns = clock::now().saturating_duration_since(self.epoch).as_nanos() as u64;
        self.heard_ns.store(ns, Ordering::Relaxed);
    }

    /// How long ago the peer said something.
    pub(crate) fn heard_ago(&self, now: Instant) -> Duration {
        let heard = self.epoch + Duration::from_nanos(self.heard_ns.load(Ordering::Relaxed));
        now.saturating_duration_since(heard)
    }

    /// Wants a sign of life, soon.
    pub(crate) fn ask(&self) {
        self.wanted.notify_one();
    }

    /// Returns when somebody wants a sign.
    pub(crate) async fn asked(&self) {
        self.wanted.notified().await;
    }
}
