//! Bounded queues: transfers under way and ops at a transport keep the limits that were set. Does not check the queues between
//! tasks of the control plane, which are bounded by their types, nor the memory that they use.

use super::{Checker, Report};

/// After each turn of a process.
pub(crate) fn check(life: usize, what: &str, held: usize, most: usize, report: &mut Report) {
    if held > most {
        report.violated(Checker::Queues, format!("life {life} holds {held} {what}, and may hold {most}"));
    }
}
