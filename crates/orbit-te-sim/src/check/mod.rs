//! The checkers. Rule: each is in a file of its own, whose header says what it does not check.

pub(crate) mod bytes;
pub(crate) mod damage;
pub(crate) mod ends;
pub(crate) mod leases;
pub(crate) mod left;
pub(crate) mod notes;
pub(crate) mod once;
pub(crate) mod queues;
pub(crate) mod touch;

use std::fmt;

/// Which checker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checker {
    /// Each op and each transfer ends once.
    ExactlyOnce,
    /// Success means the bytes that were written, and nothing else is touched.
    Bytes,
    /// Damaged payloads are found, and named.
    Damage,
    /// Every lease comes back.
    Leases,
    /// Memory is touched for live ops and under leases only.
    Touch,
    /// Notifications come once and in order.
    Notifications,
    /// Queues keep their bounds.
    Queues,
    /// Every transfer ends in time.
    Ends,
    /// Engines that have ended leave nothing in memory.
    Left,
    /// RDMA devices are asked for nothing that must not be asked, and nothing is left on them.
    Devices,
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Who saw it.
    pub checker: Checker,
    /// When, in virtual nanoseconds from the start.
    pub at_ns: u64,
    /// What.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:.6} s: {}", self.checker, self.at_ns as f64 / 1e9, self.what)
    }
}

/// Violations of a run so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) now_ns: u64,
    pub(crate) found: Vec<Violation>,
}

/// Enough to see what is wrong; a broken run would fill memory with them.
const MOST: usize = 16;

impl Report {
    pub(crate) fn violated(&mut self, checker: Checker, what: impl Into<String>) {
        if self.found.len() < MOST {
            self.found.push(Violation { checker, at_ns: self.now_ns, what: what.into() });
        }
    }
}
