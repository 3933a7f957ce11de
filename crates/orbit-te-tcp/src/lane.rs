//! A lane: one connection and what it is for. Rule: a lane answers requests in the order in which they came, so the first
//! one that waits is the one that is answered next.

use crate::conn::{Conn, MAX_LIST_ANSWERS};
use crate::link::LaneSlot;
use crate::net::Stream;
use crate::opening::OpeningReader;
use crate::ops::OpSlot;
use orbit_te_memory::{Holder, Lease};
use orbit_te_transport::OpKind;
use orbit_te_wire::{Frame, Limits, SessionId, Status};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A request that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) id: u64,
    pub(crate) what: Asked,
}

/// What was asked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Asked {
    /// A part of an op.
    Part { op: OpSlot, kind: OpKind, address: u64, length: u64 },
    /// A part of an op that has completed meanwhile: its answer is thrown away.
    Abandoned { kind: OpKind, length: u64 },
    /// A fence of a lane that broke.
    Fence { number: u32 },
}

impl Asked {
    /// Bytes that count against the lane's window.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Asked::Part { length, .. } | Asked::Abandoned { length, .. } => *length,
            Asked::Fence { .. } => 0,
        }
    }
}

/// The side that asks.
pub(crate) struct Asking {
    pub(crate) link: u32,
    pub(crate) place: usize,
    pub(crate) number: u32,
    pub(crate) limits: Limits,
    /// Whether the target can fence lanes.
    pub(crate) fences: bool,
    pub(crate) pending: VecDeque<Pending>,
    /// Bytes of the requests in `pending`.
    pub(crate) in_flight: u64,
}

impl Asking {
    pub(crate) fn push(&mut self, id: u64, what: Asked) {
        self.in_flight += what.length();
        self.pending.push_back(Pending { id, what });
    }

    pub(crate) fn pop(&mut self) -> Option<Pending> {
        let pending = self.pending.pop_front()?;
        self.in_flight -= pending.what.length();
        Some(pending)
    }
}

/// A write whose payload is under way.
pub(crate) struct Landing {
    pub(crate) frame: Frame,
    pub(crate) status: Status,
    /// The right to touch the region; none when the write was refused.
    pub(crate) lease: Option<Lease>,
    /// The first bad piece of a refused list.
    pub(crate) piece: Option<u32>,
}

/// The side that answers.
pub(crate) struct Answering {
    pub(crate) session: SessionId,
    pub(crate) number: u32,
    pub(crate) limits: Limits,
    /// What the session may reach beside regions whose own key it has.
    pub(crate) holder: Arc<Holder>,
    pub(crate) landing: Option<Landing>,
    /// The bytes of a notification that is under way.
    pub(crate) notification: Vec<u8>,
    /// A list request whose table is under way.
    pub(crate) listing: Option<Frame>,
}

impl Answering {
    /// Whether the peer takes its answers so slowly that it is not heard until it does.
    pub(crate) fn is_deaf<S: Stream>(&self, conn: &Conn<S>) -> bool {
        conn.queued() >= self.limits.lane_requests as usize || conn.list_answers() >= MAX_LIST_ANSWERS
    }
}

/// What a lane is for.
pub(crate) enum Role {
    /// Our connection to a peer, whose hello is not answered yet.
    Opening { link: u32, place: usize, number: u32, said_hello: bool, reader: OpeningReader, by: Instant },
    /// Our lane to a peer.
    Asking(Asking),
    /// A peer's lane to us.
    Answering(Answering),
}

/// One lane.
pub(crate) struct Lane<S> {
    pub(crate) conn: Conn<S>,
    pub(crate) role: Role,
    /// Whether it stands in the list of lanes to be served.
    pub(crate) listed: bool,
}

impl<S: Stream> Lane<S> {
    /// Whether serving it now would bring anything. Lanes that are being made wait for their next event.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.role {
            Role::Opening { .. } => false,
            Role::Asking(asking) => {
                let expects = !asking.pending.is_empty() || self.conn.is_closing();
                self.conn.can_send() || (self.conn.can_receive() && expects)
            }
            Role::Answering(answering) => {
                let deaf = answering.is_deaf(&self.conn);
                self.conn.can_send() || (self.conn.can_receive() && !deaf)
            }
        }
    }
}

impl<S: Stream> Lane<S> {
    /// Whether a request of this lane holds such a lease: a write whose payload is under way, or an answer that was not taken.
    pub(crate) fn holds(&self, which: &dyn Fn(&Lease) -> bool) -> bool {
        let Role::Answering(Answering { landing, .. }) = &self.role else { return false };
        let landing = landing.as_ref().and_then(|landing| landing.lease.as_ref());
        landing.into_iter().chain(self.conn.leases()).any(which)
    }
}

/// The transport's lanes by slot.
pub(crate) struct Lanes<S> {
    slots: Vec<Option<Lane<S>>>,
    free: Vec<LaneSlot>,
}

impl<S> Lanes<S> {
    pub(crate) fn new() -> Lanes<S> {
        Lanes { slots: Vec::new(), free: Vec::new() }
    }

    /// Reserves a slot; fill it by [`Lanes::put`] or give it back by [`Lanes::release`].
    pub(crate) fn reserve(&mut self) -> LaneSlot {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        })
    }

    pub(crate) fn put(&mut self, slot: LaneSlot, lane: Lane<S>) {
        self.slots[slot] = Some(lane);
    }

    /// Takes a lane out while it is served; it is put back, or its slot released.
    pub(crate) fn take(&mut self, slot: LaneSlot) -> Option<Lane<S>> {
        self.slots.get_mut(slot)?.take()
    }

    pub(crate) fn release(&mut self, slot: LaneSlot) {
        self.slots[slot] = None;
        self.free.push(slot);
    }

    pub(crate) fn get_mut(&mut self, slot: LaneSlot) -> Option<&mut Lane<S>> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// All lanes, in order of their slots.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane<S>> {
        self.slots.iter_mut().flatten()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LaneSlot, &Lane<S>)> {
        self.slots.iter().enumerate().filter_map(|(slot, lane)| lane.as_ref().map(|l| (slot, l)))
    }
}
