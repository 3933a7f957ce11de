//! The ops in flight. Rule: an op leaves the table exactly once, when no part of it is with a lane and no fence is awaited.

use orbit_te_transport::{Completion, Op, OpError, OpErrorCode};
use std::time::Instant;

/// An op's place in the table.
pub(crate) type OpSlot = u32;

/// An op under way.
#[derive(Debug)]
pub(crate) struct OpState {
    pub(crate) op: Op,
    /// For a notification, its number; the op is then a write to no region.
    pub(crate) notice: Option<u64>,
    /// Bytes that were given to lanes, from the front.
    pub(crate) assigned: u64,
    /// Bytes that are known to be in place.
    pub(crate) landed: u64,
    /// Whether a part that did not end well may have changed bytes at the receiving side.
    pub(crate) touched: bool,
    /// Parts with lanes.
    pub(crate) parts: u32,
    /// Broken lanes whose fence is awaited.
    pub(crate) fences: u32,
    /// Whether it waits in its link's queue for a lane.
    pub(crate) queued: bool,
    /// The first thing that went wrong.
    pub(crate) error: Option<OpError>,
    /// Set when it was cancelled: when its lanes are to be broken if they have not answered.
    pub(crate) cancel_by: Option<Instant>,
}

impl OpState {
    /// Bytes that no lane has yet.
    pub(crate) fn unassigned(&self) -> u64 {
        self.op.local.length - self.assigned
    }

    /// Keeps the first error.
    pub(crate) fn fail(&mut self, error: OpError) {
        self.error.get_or_insert(error);
    }

    fn is_settled(&self) -> bool {
        self.parts == 0
            && self.fences == 0
            && !self.queued
            && (self.unassigned() == 0 || self.error.is_some())
    }

    fn completion(&self) -> Completion {
        let whole = self.landed == self.op.local.length;
        let cancelled = matches!(self.error, Some(OpError { code: OpErrorCode::Cancelled, .. }));
        // A cancel that came too late is a success: every byte is in place.
        let result = match self.error {
            Some(_) if whole && cancelled => Ok(()),
            Some(error) => Err(error),
            None => Ok(()),
        };
        let touched = self.touched || self.landed > 0;
        Completion { token: self.op.token, result, bytes: self.landed, touched }
    }
}

/// All ops in flight: a fixed number of slots.
#[derive(Debug)]
pub(crate) struct OpTable {
    slots: Vec<Option<OpState>>,
    free: Vec<OpSlot>,
}

impl OpTable {
    pub(crate) fn new(capacity: u32) -> OpTable {
        OpTable { slots: (0..capacity).map(|_| None).collect(), free: (0..capacity).rev().collect() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Takes an op in; none when all slots are used.
    pub(crate) fn insert(&mut self, op: Op, notice: Option<u64>) -> Option<OpSlot> {
        let slot = self.free.pop()?;
        self.slots[slot as usize] = Some(OpState {
            op,
            notice,
            assigned: 0,
            landed: 0,
            touched: false,
            parts: 0,
            fences: 0,
            queued: true,
            error: None,
            cancel_by: None,
        });
        Some(slot)
    }

    pub(crate) fn get_mut(&mut self, slot: OpSlot) -> Option<&mut OpState> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The op's completion if it is settled, and its slot free again.
    pub(crate) fn settle(&mut self, slot: OpSlot) -> Option<Completion> {
        let state = self.slots.get(slot as usize)?.as_ref()?;
        if !state.is_settled() {
            return None;
        }
        let completion = state.completion();
        self.slots[slot as usize] = None;
        self.free.push(slot);
        Some(completion)
    }

    /// The slots in use that satisfy a condition. Scans the table: for rare events only.
    pub(crate) fn find(&self, mut wanted: impl FnMut(&OpState) -> bool) -> Vec<OpSlot> {
        let hit = |(slot, state): (usize, &Option<OpState>)| {
            state.as_ref().filter(|s| wanted(s)).map(|_| slot as OpSlot)
        };
        self.slots.iter().enumerate().filter_map(hit).collect()
    }
}
