//! Nothing stays behind: when a run is over and all its processes and handles are dropped, no part of an engine is in memory any more.
//! What holds itself in a circle would be. Does not check what knows neither the network nor an engine, nor engines that are
//! still there when the run ends or crash: what is under way in those is taken out of them.

use super::{Checker, Report};
use crate::net::Net;
use parking_lot::Mutex;
use std::sync::Weak;

/// After everything of the run was dropped: transports, streams and control links all hold the network.
pub(crate) fn check(net: &Weak<Mutex<Net>>, report: &mut Report) {
    let holders = net.strong_count();
    if holders > 0 {
        report.violated(Checker::Left, format!("the network of the run still has {holders} holders"));
    }
}
