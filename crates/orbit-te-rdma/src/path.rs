//! The attributes of two QPs that are wired to each other. Rule: each is the less of what both sides can; the two sides come to the same by
//! themselves, from what they have told each other.
//!
//! Source: InfiniBand Architecture Specification, volume 1, 9.7.6.1.3 (retries), 11.2.5.2 (what a QP is told at each step); annex A17 for
//! RoCEv2, which is addressed by GIDs alone.

use crate::access::MrAccess;
use crate::config::RdmaConfig;
use crate::device::Mtu;
use crate::handle::{Address, Grh, InitStep, RtrStep, RtsStep};
use orbit_te_wire::rdma::{Gid, LinkLayer, Queue, Rail};
use std::time::Duration;

/// One end of a connection: its rail, and the GID it is reached by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End<'a> {
    pub(crate) rail: &'a Rail,
    pub(crate) gid: Gid,
}

/// Two ends, as one of them sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path<'a> {
    pub(crate) ours: End<'a>,
    pub(crate) theirs: End<'a>,
}

/// The first step of a QP on a rail. `access`: what the peer may do.
pub(crate) fn init(port: u8, access: MrAccess) -> InitStep {
    InitStep { port, pkey_index: 0, access }
}

impl Path<'_> {
    /// The step by which a QP knows its peer's.
    pub(crate) fn rtr(&self, theirs: Queue, config: &RdmaConfig) -> RtrStep {
        let mtu = self.ours.rail.mtu.min(self.theirs.rail.mtu);
        RtrStep {
            address: self.address(config),
            path_mtu: Mtu::from_number(mtu.number()).unwrap_or(Mtu::B1024),
            dest_qp_num: theirs.number,
            rq_psn: theirs.psn,
            max_dest_rd_atomic: self.ours.rail.reads_served.min(self.theirs.rail.reads_asked).min(config.reads),
            // 0.64 ms.
            min_rnr_timer: 12,
        }
    }

    /// The step after which a QP sends.
    pub(crate) fn rts(&self, ours: Queue, config: &RdmaConfig) -> RtsStep {
        let (timeout, retry_cnt) = patience(config.ack_budget);
        RtsStep {
            timeout,
            retry_cnt,
            rnr_retry: 6,
            sq_psn: ours.psn,
            max_rd_atomic: self.ours.rail.reads_asked.min(self.theirs.rail.reads_served).min(config.reads),
        }
    }

    fn address(&self, config: &RdmaConfig) -> Address {
        let (ours, theirs) = (self.ours.rail, self.theirs.rail);
        let global = match ours.layer {
            LinkLayer::Ethernet => true,
            LinkLayer::InfiniBand => {
                ours.grh_required || theirs.grh_required || ours_prefix(&self.ours.gid) != ours_prefix(&self.theirs.gid)
            }
        };
        Address {
            port: ours.port,
            dlid: theirs.lid,
            sl: config.service_level,
            src_path_bits: 0,
            grh: global.then_some(Grh {
                dgid: self.theirs.gid.bytes,
                sgid_index: self.ours.gid.index as u8,
                hop_limit: 64,
                traffic_class: config.traffic_class,
                flow_label: 0,
            }),
        }
    }
}

/// The subnet that a GID of InfiniBand is of.
fn ours_prefix(gid: &Gid) -> &[u8] {
    &gid.bytes[..8]
}

/// The timeout and the count of retries whose product comes closest to a budget from below: (count + 1) × 4.096 µs × 2^timeout. Never a
/// timeout of 0 or a count of 7, which some devices take as for ever.
pub(crate) fn patience(budget: Duration) -> (u8, u8) {
    const UNIT_NS: u128 = 4096;
    let (mut best, mut best_ns) = ((1, 1), 0);
    for retries in 2..=6u8 {
        for timeout in 1..=31u8 {
            let whole_ns = (u128::from(retries) + 1) * UNIT_NS << timeout;
            if whole_ns <= budget.as_nanos() && whole_ns >= best_ns {
                (best, best_ns) = ((timeout, retries), whole_ns);
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn patience_keeps_the_budget_and_uses_half_of_it(us in 100u64..100_000_000) {
            let budget = Duration::from_micros(us);
            let (timeout, retries) = patience(budget);
            let whole = Duration::from_nanos((u64::from(retries) + 1) * 4096 << timeout);
            prop_assert!((1..=31).contains(&timeout) && (1..=6).contains(&retries));
            prop_assert!(whole <= budget && whole * 2 >= budget, "{whole:?} of {budget:?}");
        }
    }
}
