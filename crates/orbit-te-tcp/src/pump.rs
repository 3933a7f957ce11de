//! Giving the parts of waiting ops to lanes. Rule: the most urgent op goes first, one part at a time, to the first lane that has little
//! queued.

use crate::lane::{Asked, Lane, Role};
use crate::link::{LaneSlot, Place};
use crate::net::Net;
use crate::ops::OpSlot;
use crate::transport::{TcpTransport, part_limit};
use orbit_te_transport::{OpError, OpErrorCode, OpKind};
use orbit_te_wire::{Frame, FrameOp, Generation, RegionId, Status};
use std::time::Instant;

impl<N: Net> TcpTransport<N> {
    /// A link's waiting ops may go on.
    pub(crate) fn pump_later(&mut self, link: u32) {
        if !self.to_pump.contains(&link) {
            self.to_pump.push(link);
        }
    }

    /// Gives waiting ops to lanes, for all links where something has changed.
    pub(crate) fn pump_all(&mut self, now: Instant) {
        // A lane that breaks while it is given parts lists its link again: that is for the next poll.
        std::mem::swap(&mut self.to_pump, &mut self.pumping);
        for k in 0..self.pumping.len() {
            let link = self.pumping[k];
            self.pump(link, now);
        }
        self.pumping.clear();
    }

    fn pump(&mut self, link_slot: u32, now: Instant) {
        self.ask_fences(link_slot);
        loop {
            let Some(link) = self.link_mut(link_slot) else { return };
            let Some(&op) = link.queue.peek() else { break };
            let Some(lane) = self.choose_lane(link_slot) else { break };
            // One part a turn: a more urgent op does not wait until a large one is through.
            let last = self.assign(op, lane);
            if let Some(link) = self.link_mut(link_slot) {
                link.queue.take_turn(last);
            }
            if last {
                if let Some(state) = self.ops.get_mut(op) {
                    state.queued = false;
                }
            }
        }
        let Some(link) = self.link_mut(link_slot) else { return };
        for place in 0..link.places.len() {
            let Some(Place::Up { lane: slot }) = self.link_mut(link_slot).map(|l| l.places[place]) else {
                continue;
            };
            self.flush_lane(slot, now);
        }
    }

    /// The lane for the next part: the first that has little queued, otherwise the least loaded one that has room.
    fn choose_lane(&mut self, link_slot: u32) -> Option<LaneSlot> {
        let (fill, window) = (self.config.lane_fill_bytes, self.config.lane_window_bytes);
        let mut best: Option<(u64, LaneSlot)> = None;
        for place in 0..self.link_mut(link_slot)?.places.len() {
            let Place::Up { lane: slot } = self.link_mut(link_slot)?.places[place] else { continue };
            let Some(Lane { role: Role::Asking(asking), .. }) = self.lanes.get_mut(slot) else { continue };
            let load = asking.in_flight;
            if asking.pending.len() >= asking.limits.lane_requests as usize || (load > 0 && load >= window) {
                continue;
            }
            if load < fill {
                return Some(slot);
            }
            if best.is_none_or(|(least, _)| load < least) {
                best = Some((load, slot));
            }
        }
        best.map(|(_, slot)| slot)
    }

    /// Gives one part of an op to a lane; whether the op has no more parts to give.
    fn assign(&mut self, op: OpSlot, slot: LaneSlot) -> bool {
        let id = self.next_request;
        let Some(lane) = self.lanes.get_mut(slot) else { return false };
        let Role::Asking(asking) = &mut lane.role else { return false };
        let Some(state) = self.ops.get_mut(op) else { return true };
        let limit = self.config.chunk_bytes.max(1).min(part_limit(asking.limits.payload_bytes));
        // A list goes whole: it was cut to fit this side's limit when it was made. Over a peer's lower one it would cost the lane.
        let pieces = state.op.pieces;
        let whole = pieces.is_some() || state.notice.is_some();
        if pieces.is_some() && state.unassigned() > part_limit(asking.limits.payload_bytes) {
            // Failing it takes it out of its link's queue.
            self.fail_op(op, OpError::new(OpErrorCode::BadLength));
            return false;
        }
        let length = if whole { state.unassigned() } else { state.unassigned().min(limit) };
        let [region, generation, key, _] = state.op.remote.key.0;
        let region = state.notice.unwrap_or(region);
        let address = state.op.local.address + state.assigned;
        let (kind, verify) = (state.op.kind, state.op.verify);
        let frame = Frame {
            op: match (kind, pieces) {
                _ if state.notice.is_some() => FrameOp::Notify,
                (OpKind::Write, None) => FrameOp::Write,
                (OpKind::Read, None) => FrameOp::Read,
                (OpKind::Write, Some(_)) => FrameOp::WriteList,
                (OpKind::Read, Some(_)) => FrameOp::ReadList,
            },
            status: Status::Ok,
            id,
            region: RegionId(region),
            generation: Generation(generation),
            key,
            // An offset that overflows is past every region's end: the target says so.
            offset: match pieces {
                None => state.op.remote.offset.saturating_add(state.assigned),
                Some(pieces) => pieces.len() as u64,
            },
            length,
            payload_crc: 0,
            trailer: verify.is_on(),
        };
        let payload = if kind == OpKind::Write { length } else { 0 };
        match pieces {
            None => lane.conn.push(&frame, address, payload, verify, None),
            Some(pieces) => lane.conn.push_list(&frame, pieces, payload, verify),
        }
        lane.conn.set_busy(!asking.pending.is_empty());
        asking.push(id, Asked::Part { op, kind, address, length });
        self.next_request += 1;
        state.assigned += length;
        state.parts += 1;
        state.unassigned() == 0
    }
}
