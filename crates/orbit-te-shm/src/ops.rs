//! The ops in flight. Rule: an op holds its place until its completion was given out, and completes once.

use orbit_te_transport::{Completion, Op, OpError, OpErrorCode};
use std::collections::VecDeque;

/// An op's place in the table, and which use of it: lists may still name an op that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpSlot {
    index: u32,
    turn: u32,
}

/// An op under way.
#[derive(Debug)]
pub(crate) struct OpState {
    pub(crate) op: Op,
    /// Bytes in place.
    pub(crate) moved: u64,
    /// Of a list: the piece that comes next, and how much of it is in place.
    pub(crate) piece: u32,
    pub(crate) within: u64,
    /// Whether it has got past its link: it ends with it.
    pub(crate) begun: bool,
    /// Whether it was found to be inside of the region and within its rights.
    pub(crate) checked: bool,
}

enum Content {
    Free,
    UnderWay(OpState),
    /// Its completion waits to be given out.
    Over,
}

impl OpState {
    /// One of which nothing has been done.
    pub(crate) fn new(op: Op) -> OpState {
        OpState { op, moved: 0, piece: 0, within: 0, begun: false, checked: false }
    }
}

struct Place {
    turn: u32,
    content: Content,
}

/// All ops in flight: a fixed number of slots.
pub(crate) struct OpTable {
    places: Vec<Place>,
    free: Vec<u32>,
    done: VecDeque<(u32, Completion)>,
}

impl OpTable {
    pub(crate) fn new(capacity: u32) -> OpTable {
        OpTable {
            places: (0..capacity).map(|_| Place { turn: 0, content: Content::Free }).collect(),
            free: (0..capacity).rev().collect(),
            done: VecDeque::with_capacity(capacity as usize),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Takes an op in; none when all places are used.
    pub(crate) fn insert(&mut self, op: Op) -> Option<OpSlot> {
        let index = self.free.pop()?;
        let place = &mut self.places[index as usize];
        place.turn = place.turn.wrapping_add(1);
        place.content = Content::UnderWay(OpState::new(op));
        Some(OpSlot { index, turn: place.turn })
    }

    /// An op that is not over.
    pub(crate) fn get_mut(&mut self, slot: OpSlot) -> Option<&mut OpState> {
        let place = self.places.get_mut(slot.index as usize).filter(|place| place.turn == slot.turn)?;
        match &mut place.content {
            Content::UnderWay(state) => Some(state),
            Content::Free | Content::Over => None,
        }
    }

    /// Ends an op. One that is over stays as it is.
    pub(crate) fn end(&mut self, slot: OpSlot, result: Result<(), OpError>) {
        let Some(state) = self.get_mut(slot) else { return };
        let completion =
            Completion { token: state.op.token, result, bytes: state.moved, touched: state.moved > 0 };
        self.places[slot.index as usize].content = Content::Over;
        self.done.push_back((slot.index, completion));
    }

    /// The next completion, whose op leaves the table.
    pub(crate) fn next_done(&mut self) -> Option<Completion> {
        let (index, completion) = self.done.pop_front()?;
        self.places[index as usize].content = Content::Free;
        self.free.push(index);
        Some(completion)
    }

    /// Ends all ops under way that satisfy a condition. Scans the table: for rare events only.
    pub(crate) fn end_where(&mut self, code: OpErrorCode, which: impl Fn(&OpState) -> bool) {
        for index in 0..self.places.len() {
            let place = &self.places[index];
            if matches!(&place.content, Content::UnderWay(state) if which(state)) {
                let slot = OpSlot { index: index as u32, turn: place.turn };
                self.end(slot, Err(OpError::new(code)));
            }
        }
    }
}
