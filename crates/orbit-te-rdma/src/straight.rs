//! Ops that go straight from their submission to a QP. Rule: only where nobody waits before them, and only those that are one WR; all others, and
//! those for which there is no room, take the usual way.
//!
//! One look at the link and at the keys serves all that follow each other between the same two regions, so that an op of a batch costs little.

use crate::carrying::{Chained, Pair, post};
use crate::connecting::LOOK;
use crate::cut::{CutLimits, Range};
use crate::entry::Open;
use crate::lane::{Lane, WrName};
use crate::link::Link;
use crate::ops::Cut;
use crate::send_queue::Posted;
use crate::sys::{CHAIN, Opcode};
use crate::transport::{RdmaTransport, link_of};
use orbit_te_transport::{Op, OpKind};
use std::time::Instant;

/// How ops of one kind go.
struct Way {
    /// Bytes of an op; zero where they have no right.
    most: u64,
    opcode: Opcode,
    /// Bytes that travel in the WR.
    inline: u32,
}

impl Way {
    /// Of each kind, by its number.
    fn of_all(open: &Open, limits: CutLimits) -> [Way; 2] {
        [OpKind::Read, OpKind::Write].map(|kind| Way {
            most: if open.may(kind) { limits.bytes.into() } else { 0 },
            opcode: Opcode::of(kind),
            inline: limits.inline_of(kind),
        })
    }
}

// The kinds are numbered as they stand in it.
const _: () = assert!(OpKind::Read as usize == 0 && OpKind::Write as usize == 1);

impl RdmaTransport {
    /// Takes in and posts ops at the begin of these, at most one chain a lane; how many.
    pub(crate) fn straight(&mut self, all: &[Op], now: Instant) -> usize {
        let Self { links, lanes, ops, chain, local, .. } = self;
        let Some(first) = all.first() else { return 0 };
        // All that follow have its key.
        if first.local.key.may_vanish() {
            return 0;
        }
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
        let ways = Way::of_all(open, attempt.limits);
        let (mut taken, mut failed) = (0, None);
        for _ in 0..attempt.lanes.len() {
            let Some(index) = attempt.next_lane(next_lane) else { break };
            let Some((lane, turn)) = lanes.with_turn(index) else { continue };
            let room = lane.room(CHAIN);
            let Lane { qp: Some(qp), queue, progress, .. } = lane else { continue };
            if queue.is_empty() {
                *progress = now;
            }
            let rest = &all[taken..];
            let mut count = 0;
            let mut tail = queue.tail();
            for (op, node) in rest.iter().zip(&mut chain.nodes()[..room]) {
                let way = &ways[op.kind as usize];
                let length = op.local.length;
                let plain = op.pieces.is_none() && !op.verify.is_on();
                // What is wrong with one that does not fit is told by the usual way.
                let fits = length.wrapping_sub(1) < way.most && whole.fits(op);
                if !plain || op.link != id || !pair.is_of(op) || !fits {
                    break;
                }
                let Some(slot) = ops.insert_posted(op, attempt.number) else { break };
                let bytes = length as u32;
                let name = WrName { lane: index, turn, number: tail.number };
                let range = Range { address: op.local.address, bytes, lkey: whole.lkey };
                let there = (whole.there + op.remote.offset, whole.rkey);
                node.block((way.opcode, bytes <= way.inline), name.to_u64(), there, range);
                tail.push(Posted { op: slot, bytes });
                count += 1;
            }
            drop(tail);
            chain.are_made(count);
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
            // What was not posted waits with the others; and a CQE may never come.
            self.activate(id);
            self.wake_by(now + LOOK);
        }
        if let Some(errno) = failed {
            self.post_failed(id, errno, now);
        }
        taken
    }
}
