//! Ops that go straight from their submission to a QP. Rule: only where nobody waits before them, and only those that are one WR; all others, and
//! those for which there is no room, take the usual way.
//!
//! One look at the link and at the keys serves all that follow each other between the same two regions, so that an op of a batch costs little.

use crate::carrying::{Chained, Pair, post};
use crate::cut::Range;
use crate::lane::{Lane, WrName};
use crate::link::Link;
use crate::ops::Cut;
use crate::send_queue::Posted;
use crate::sys::CHAIN;
use crate::transport::{RdmaTransport, link_of};
use orbit_te_transport::{Op, OpKind};
use std::time::Instant;

impl RdmaTransport {
    /// Takes in and posts ops at the begin of these, at most one chain a lane; how many.
    pub(crate) fn straight(&mut self, all: &[Op], now: Instant) -> usize {
        let Self { links, lanes, ops, chain, local, .. } = self;
        let Some(first) = all.first() else { return 0 };
        let id = first.link;
        let Some(link) = link_of(links, id).filter(|link| link.up && link.ready.is_empty()) else { return 0 };
        let Link { attempt, ready, entries, next_lane, .. } = link;
        let Some(attempt) = attempt else { return 0 };
        let Ok(pair) = Pair::find(entries, local, first, attempt.rail, now) else { return 0 };
        let (Some(whole), Some(open)) = (pair.whole, entries.open_at(pair.place)) else { return 0 };
        // Where not all can go now, who is more urgent goes first, and is found by the usual way.
        let free = |lane: &u16| lanes.get_mut(*lane).map_or(0, |lane| lane.room(CHAIN));
        let room: usize = attempt.lanes.iter().map(free).sum();
        if all.len() > room && all.iter().any(|op| op.priority != first.priority) {
            return 0;
        }
        let limits = attempt.limits;
        let (may_read, may_write) = (open.may(OpKind::Read), open.may(OpKind::Write));
        let (mut taken, mut failed) = (0, None);
        for _ in 0..attempt.lanes.len() {
            let Some(index) = attempt.next_lane(next_lane) else { break };
            let Some((lane, turn)) = lanes.with_turn(index) else { continue };
            let room = lane.room(CHAIN);
            let Lane { qp: Some(qp), queue, progress, .. } = lane else { continue };
            if queue.is_empty() {
                *progress = now;
            }
            chain.clear();
            let rest = &all[taken..];
            for op in &rest[..room.min(rest.len())] {
                let writes = op.kind == OpKind::Write;
                let length = op.local.length;
                let plain = op.pieces.is_none() && !op.verify.is_on() && !op.local.key.may_vanish();
                let alike = op.link == id && pair.is_of(op) && if writes { may_write } else { may_read };
                // What is wrong with one that does not fit is told by the usual way.
                let fits = length.wrapping_sub(1) < u64::from(limits.bytes) && whole.fits(op);
                if !plain || !alike || !fits {
                    break;
                }
                let Some(slot) = ops.insert_posted(op, attempt.number) else { break };
                let bytes = length as u32;
                let name = WrName { lane: index, turn, number: queue.number() };
                let range = Range { address: op.local.address, bytes, lkey: whole.lkey };
                let there = (whole.there + op.remote.offset, whole.rkey);
                chain.push_block(op.kind, writes && bytes <= limits.inline, name.to_u64(), there, range);
                queue.push(Posted { op: slot, bytes });
            }
            if chain.len() == 0 {
                break;
            }
            taken += chain.len();
            // None was cut before.
            if let Chained::Failed(errno) = post(chain, qp, queue, (ops, ready), &[Cut::default(); CHAIN]) {
                failed = Some(errno);
            }
            if !ready.is_empty() {
                break;
            }
        }
        if taken > 0 {
            // What was not posted waits with the others.
            self.activate(id);
        }
        if let Some(errno) = failed {
            self.post_failed(id, errno, now);
        }
        taken
    }
}
