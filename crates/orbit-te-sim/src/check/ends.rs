//! Every transfer ends: by its deadline and a bound on what follows it. Does not check how it ends, nor transfers of a process
//! that crashed; of transfers whose handle was dropped it sees only that none is left at the end.

use super::{Checker, Report};
use orbit_te_tcp::TcpConfig;

/// What may follow a deadline: the grace of a cancel, a fence, the pardon of a process that was stopped, and the simulation's own
/// coarse steps.
pub(crate) fn bound_ns(tcp: &TcpConfig) -> u64 {
    (tcp.cancel_grace + tcp.fence_timeout).as_nanos() as u64 + 250_000_000 + 200_000_000
}

/// `stalled_ns`: for how long the process stood still since the transfer began.
pub(crate) fn check(number: u64, deadline_ns: u64, bound_ns: u64, stalled_ns: u64, report: &mut Report) {
    // A process that stood still pardons its peers once for each stop, and a stop may come in the middle of each wait.
    let by = deadline_ns + bound_ns + 2 * stalled_ns;
    if report.now_ns > by {
        let late = (report.now_ns - deadline_ns) as f64 / 1e6;
        report.violated(
            Checker::Ends,
            format!("transfer {number} has not ended {late:.1} ms after its deadline"),
        );
    }
}

/// At the end, when everybody has had the time.
pub(crate) fn at_end(life: usize, under_way: usize, report: &mut Report) {
    if under_way > 0 {
        report.violated(Checker::Ends, format!("life {life} still has {under_way} transfers under way"));
    }
}
