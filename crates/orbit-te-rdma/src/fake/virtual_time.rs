//! What a simulation needs that has its own time: when there is something to do, whom it concerns, and what memory is touched. Rule: nothing
//! here changes what a fabric does.

use super::fabric::FakeFabric;
use super::plan::Met;
use super::spec::DeviceId;
use super::state::{Span, State};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a device is about to touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// Which device: that whose memory it is.
    pub device: DeviceId,
    /// Whether it does so for WRs that were posted to it; otherwise for a peer.
    pub asks: bool,
    /// Where.
    pub address: u64,
    /// How many.
    pub length: u64,
    /// Whether they are written.
    pub written: bool,
}

/// Is told of every touch, within the fabric's lock: it must not call the fabric.
pub type Watcher = Arc<dyn Fn(Touch) + Send + Sync>;

impl FakeFabric {
    /// When the next step is to be: now where something can be done, later where something has to wait. None: there is nothing to do until
    /// a program or a test does something.
    pub fn due(&self) -> Option<Duration> {
        let state = self.state();
        let changed = !state.waiting.is_empty() && state.epoch != state.ran_epoch;
        if changed || !state.ready.is_empty() {
            return Some(state.now());
        }
        let patience = state.waiting.iter().filter_map(|qp| {
            let qp = &state.qps[*qp as usize];
            qp.retry_at.into_iter().chain(qp.rnr_at).min()
        });
        let late = state.late.peek().map(|late| late.due);
        patience.chain(late).chain(state.strays.iter().map(|stray| stray.due)).min()
    }

    /// The QPs that have WRs under way, the oldest first.
    pub fn busy(&self) -> Vec<(DeviceId, u32)> {
        let state = self.state();
        let busy = state.qps.iter().filter(|qp| qp.alive && !qp.sq.is_idle());
        busy.map(|qp| (DeviceId(qp.device), qp.number)).collect()
    }

    /// Hosts that got a CQE or an event since this was last asked, the lowest first. Only of hosts below 64.
    pub fn take_told(&self) -> Vec<u32> {
        let told = std::mem::take(&mut self.state().told);
        (0..64).filter(|host| told >> host & 1 == 1).collect()
    }

    /// Has somebody told of every touch of memory by READs and WRITEs.
    pub fn watch(&self, watcher: Option<Watcher>) {
        self.state().watcher = watcher;
    }

    /// How much of what was planned has happened.
    pub fn met(&self) -> Met {
        self.state().plan.met
    }
}

impl State {
    #[inline]
    pub(super) fn tell_touches(&self, (qp, asks): (u32, bool), spans: &[Span], written: bool) {
        if let Some(watcher) = &self.watcher {
            let device = DeviceId(self.qps[qp as usize].device);
            for &(address, length) in spans {
                watcher(Touch { device, asks, address, length, written });
            }
        }
    }

    #[inline]
    pub(super) fn host_bit(&self, context: u32) -> u64 {
        let host = self.devices[self.contexts[context as usize].device as usize].spec.host;
        1u64.checked_shl(host).unwrap_or(0)
    }
}
