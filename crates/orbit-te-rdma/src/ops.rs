//! The ops in flight. Rule: an op holds its place until its completion was given out, completes once, and not before the last of its WRs
//! is over.

use orbit_te_transport::{Completion, Op, OpError, OpErrorCode};
use std::collections::VecDeque;

/// An op's place in the table, and which use of it: lists may still name an op that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpSlot {
    index: u32,
    turn: u32,
}

impl OpSlot {
    /// No op's.
    pub(crate) const NONE: OpSlot = OpSlot { index: u32::MAX, turn: 0 };
}

/// How far an op was cut into WRs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cut {
    /// Bytes that were cut.
    pub(crate) bytes: u64,
    /// Of a list: the piece that comes next, and how much of it was cut.
    pub(crate) piece: u32,
    pub(crate) within: u64,
}

/// An op under way.
#[derive(Debug)]
pub(crate) struct OpState {
    pub(crate) op: Op,
    pub(crate) cut: Cut,
    /// WRs under way.
    pub(crate) posted: u32,
    /// Bytes in place.
    pub(crate) moved: u64,
    /// Whether a byte at the side that is to receive may have changed.
    pub(crate) touched: bool,
    /// In which attempt of its link its last WR was posted.
    pub(crate) attempt: u64,
    /// Whether a WR of it failed that may have sent bytes which have not landed yet.
    pub(crate) unfenced: bool,
    /// Why it will fail, once its WRs are over.
    pub(crate) failure: Option<OpError>,
    /// Whether it has got past its link: it ends with it.
    pub(crate) begun: bool,
    /// Whether it was found to be inside of the region and within its rights.
    pub(crate) checked: bool,
}

impl OpState {
    fn new(op: Op) -> OpState {
        OpState {
            op,
            cut: Cut::default(),
            posted: 0,
            moved: 0,
            touched: false,
            attempt: 0,
            unfenced: false,
            failure: None,
            begun: false,
            checked: false,
        }
    }

    /// Bytes that were not yet cut.
    pub(crate) fn left(&self) -> u64 {
        self.op.local.length - self.cut.bytes
    }
}

#[allow(clippy::large_enum_variant)] // The table is made once; a box would be an allocation for each op.
enum Content {
    Free,
    UnderWay(OpState),
    /// Its completion waits to be given out.
    Over,
}

struct Place {
    turn: u32,
    content: Content,
}

/// All ops in flight: a fixed number of places.
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
        debug_assert!(state.posted == 0, "an op ends while the device works for it");
        let (bytes, touched) = (state.moved, state.touched);
        let completion = Completion { token: state.op.token, result, bytes, touched };
        self.places[slot.index as usize].content = Content::Over;
        self.done.push_back((slot.index, completion));
    }

    /// As [`OpTable::end`], by a code.
    pub(crate) fn fail(&mut self, slot: OpSlot, code: OpErrorCode) {
        self.end(slot, Err(OpError::new(code)));
    }

    /// The next completion, whose op leaves the table.
    pub(crate) fn next_done(&mut self) -> Option<Completion> {
        let (index, completion) = self.done.pop_front()?;
        self.places[index as usize].content = Content::Free;
        self.free.push(index);
        Some(completion)
    }

    /// The ops under way that satisfy a condition. Scans the table: for rare events only.
    pub(crate) fn find(&self, which: impl Fn(&OpState) -> bool) -> Vec<OpSlot> {
        let is = |place: &Place| matches!(&place.content, Content::UnderWay(state) if which(state));
        let slot = |(index, place): (usize, &Place)| OpSlot { index: index as u32, turn: place.turn };
        self.places.iter().enumerate().filter(|(_, place)| is(place)).map(slot).collect()
    }
}
