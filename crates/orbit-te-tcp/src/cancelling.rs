//! The side that asks, giving ops up. Rule: what has not begun is taken back; what has begun is waited for, thrown away, or ended with
//! its lane.

use crate::lane::{Asked, Asking, Lane, Role};
use crate::link::LaneSlot;
use crate::net::Net;
use crate::ops::OpSlot;
use crate::transport::TcpTransport;
use orbit_te_transport::{OpError, OpErrorCode, OpKind, TransportError};
use std::io;
use std::time::Instant;

impl<N: Net> TcpTransport<N> {
    /// Gives an op up: what has not begun is taken back, a read's answers are thrown away, a write's are waited for a little.
    pub(crate) fn cancel_op(&mut self, op: OpSlot, now: Instant) {
        let grace = now + self.config.cancel_grace;
        let Some(state) = self.ops.get_mut(op) else { return };
        if state.cancel_by.is_some() {
            return;
        }
        state.cancel_by = Some(grace);
        // The rest of a list's table is still to be sent from the op's own memory: then the answer is waited for.
        let listed = state.op.pieces.is_some();
        let link = state.op.link.slot;
        let lanes: Vec<LaneSlot> = self.link_mut(link).map(|l| l.open().collect()).unwrap_or_default();
        let mut given_up = 0;
        let mut touched = false;
        for slot in lanes {
            let Some(lane) = self.lanes.get_mut(slot) else { continue };
            let Lane { conn, role: Role::Asking(asking), .. } = lane else { continue };
            let mut withdrawn = Vec::new();
            for (at, pending) in asking.pending.iter_mut().enumerate() {
                let Asked::Part { op: of, kind, length, .. } = pending.what else { continue };
                if of != op {
                    continue;
                }
                if conn.withdraw(pending.id) {
                    withdrawn.push(pending.id);
                } else if kind == OpKind::Read && !(listed && conn.is_queued(pending.id)) {
                    pending.what = Asked::Abandoned { kind, length };
                    if at == 0 && conn.is_landing() {
                        touched = true;
                        conn.discard_payload(length);
                    }
                } else {
                    continue;
                }
                given_up += 1;
            }
            let mut freed = 0;
            asking.pending.retain(|p| {
                let gone = withdrawn.contains(&p.id);
                freed += if gone { p.what.length() } else { 0 };
                !gone
            });
            asking.in_flight -= freed;
        }
        if let Some(state) = self.ops.get_mut(op) {
            state.parts -= given_up;
            state.touched |= touched;
        }
        self.fail_op(op, OpError::new(OpErrorCode::Cancelled));
        self.next_cancel = Some(self.next_cancel.map_or(grace, |at| at.min(grace)));
        self.wake_by(grace);
        self.pump_later(link);
    }

    /// Breaks the lanes that have not answered a cancelled write in time.
    pub(crate) fn cancel_timers(&mut self, now: Instant) {
        // Looking through all ops is for the few moments when some of them wait for that.
        match self.next_cancel {
            None => return,
            Some(at) if at > now => return self.wake_by(at),
            Some(_) => self.next_cancel = None,
        }
        let late = self.ops.find(|o| o.parts > 0 && o.cancel_by.is_some_and(|at| at <= now));
        for slot in self.lanes_with(&late) {
            if let Some(lane) = self.lanes.take(slot) {
                let source =
                    io::Error::new(io::ErrorKind::TimedOut, "a cancelled write was not answered in time");
                self.lane_broke(slot, lane, TransportError::Io { what: "a data lane".into(), source }, now);
            }
        }
        for op in self.ops.find(|o| o.parts > 0 && o.cancel_by.is_some()) {
            self.next_cancel =
                self.ops.get_mut(op).and_then(|o| o.cancel_by).into_iter().chain(self.next_cancel).min();
        }
        if let Some(at) = self.next_cancel {
            self.wake_by(at);
        }
    }

    fn lanes_with(&self, ops: &[OpSlot]) -> Vec<LaneSlot> {
        if ops.is_empty() {
            return Vec::new();
        }
        let has = |asking: &Asking| {
            asking.pending.iter().any(|p| matches!(p.what, Asked::Part { op, .. } if ops.contains(&op)))
        };
        let hit = |(slot, lane): (LaneSlot, &Lane<N::Stream>)| {
            if let Role::Asking(asking) = &lane.role { has(asking).then_some(slot) } else { None }
        };
        self.lanes.iter().filter_map(hit).collect()
    }
}
