//! Lease balance: when all is over, no region has a lease left, and its memory can be had back at once. Does not check who held a
//! lease meanwhile (`touch.rs`), nor regions of a process that crashed.

use super::{Checker, Report};
use orbit_te::Region;

/// At the end.
pub(crate) fn check(life: usize, region: &Region, report: &mut Report) {
    let left = region.leases();
    if left > 0 {
        let id = region.id();
        report.violated(Checker::Leases, format!("region {id} of life {life} still has {left} leases"));
    }
}
