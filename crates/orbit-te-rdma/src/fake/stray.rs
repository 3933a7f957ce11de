//! WRITEs that land after their QP has failed. Rule: as on a real network, where packets go on without who sent them: as long as the QP at the
//! other side is there and listens, and the key is good when they come.

use super::fabric::FakeFabric;
use super::queue::Wqe;
use super::state::{QpState, Reach, Span, State};
use super::sys::{copy, fill};
use ibverbs_sys::ibv_wr_opcode;
use std::time::Duration;

/// Which WRITEs of QPs that fail are under way already.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strays {
    /// Of a million QPs that fail with WRITEs in flight.
    share: u32,
    /// How much later they land, at most.
    most: Duration,
}

/// A WRITE that nobody will hear of.
pub(super) struct Stray {
    pub(super) due: Duration,
    /// The QP at the other side, and which life of it.
    peer: u32,
    life: u32,
    wqe: Wqe,
    bytes: Vec<u8>,
}

/// More than this is not under way when a QP fails.
const MOST: u64 = 4;

impl FakeFabric {
    /// Has WRITEs of so many of a million QPs that fail land all the same, later by up to a time. They are flushed as all others are.
    pub fn stray_writes(&self, share: u32, most: Duration) {
        self.state().plan.strays = Some(Strays { share, most });
    }
}

impl State {
    /// A QP is about to fail: the first of its WRITEs may have left.
    #[cold]
    pub(super) fn let_stray(&mut self, number: u32) {
        let Some(Strays { share, most }) = self.plan.strays else { return };
        let qp = &self.qps[number as usize];
        if qp.state != QpState::Rts || qp.sq.is_idle() || self.contexts[qp.context as usize].dead {
            return;
        }
        let Reach::Peer(peer) = self.reach(number) else { return };
        if !self.rng.happens(share) {
            return;
        }
        // Mostly soon: before the other side hears of it.
        let most = self.rng.below(most.as_nanos() as u64 + 1);
        let due = self.now() + Duration::from_nanos(self.rng.below(most + 1));
        let count = 1 + self.rng.below(MOST);
        let life = self.qps[peer as usize].life;
        for at in self.qps[number as usize].sq.waiting().take(count as usize) {
            let wqe = self.qps[number as usize].sq.at_number(at);
            let mut local: Vec<Span> = Vec::new();
            let writes = wqe.opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE && !wqe.inline;
            if !writes || !self.find_local_of(number, at, &wqe, &mut local) {
                break;
            }
            let mut bytes = vec![0; wqe.length as usize];
            let mut into = bytes.as_mut_ptr().expose_provenance() as u64;
            for (from, length) in local {
                copy(from, into, length);
                into += length;
            }
            self.strays.push(Stray { due, peer, life, wqe, bytes });
        }
    }

    /// Those land that are due.
    pub(super) fn land_strays(&mut self) {
        if self.strays.is_empty() {
            return;
        }
        let now = self.now();
        let (due, left) = std::mem::take(&mut self.strays).into_iter().partition(|stray| stray.due <= now);
        self.strays = left;
        let due: Vec<Stray> = due;
        for Stray { peer, life, wqe, bytes, .. } in due {
            let qp = &self.qps[peer as usize];
            let dead = !qp.alive || qp.life != life || self.contexts[qp.context as usize].dead;
            if dead || !matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
                continue;
            }
            match self.at_peer(peer, &wqe) {
                Some(there) => {
                    self.plan.met.strays += 1;
                    self.tell_touches((peer, false), &[(there, wqe.length)], true);
                    fill(there, &bytes);
                }
                None => {
                    self.refuse(peer);
                }
            }
        }
    }
}
