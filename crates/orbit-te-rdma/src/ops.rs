//! The ops in flight. Rule: an op holds its place until its completion was given out, completes once, and not before the last of its WRs
//! is over.

use crate::send_queue::Posted;
use orbit_te_transport::{Completion, Op, OpError, OpErrorCode};

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
    /// Whether it is over, and its completion waits to be given out.
    over: bool,
}

impl OpState {
    #[inline]
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
            over: false,
        }
    }

    /// Bytes that were not yet cut.
    #[inline]
    pub(crate) fn left(&self) -> u64 {
        self.op.local.length - self.cut.bytes
    }
}

struct Place {
    turn: u32,
    state: Option<OpState>,
}

/// All ops in flight: a fixed number of places.
pub(crate) struct OpTable {
    places: Vec<Place>,
    free: Vec<u32>,
    /// The places of ops that are over, in the order of their ends.
    done: Vec<u32>,
}

impl OpTable {
    pub(crate) fn new(capacity: u32) -> OpTable {
        OpTable {
            places: (0..capacity).map(|_| Place { turn: 0, state: None }).collect(),
            free: (0..capacity).rev().collect(),
            done: Vec::with_capacity(capacity as usize),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Takes an op in; none when all places are used.
    #[inline]
    pub(crate) fn insert(&mut self, op: &Op) -> Option<OpSlot> {
        let index = self.free.pop()?;
        let place = &mut self.places[index as usize];
        place.turn = place.turn.wrapping_add(1);
        place.state = Some(OpState::new(*op));
        Some(OpSlot { index, turn: place.turn })
    }

    /// As [`OpTable::insert`], of an op that was found good and is under way in this attempt of its link by one WR.
    #[inline]
    pub(crate) fn insert_posted(&mut self, op: &Op, attempt: u64) -> Option<OpSlot> {
        let index = self.free.pop()?;
        let place = &mut self.places[index as usize];
        place.turn = place.turn.wrapping_add(1);
        place.state = Some(OpState {
            op: *op,
            cut: Cut { bytes: op.local.length, piece: 0, within: 0 },
            posted: 1,
            moved: 0,
            touched: true,
            attempt,
            unfenced: false,
            failure: None,
            begun: true,
            checked: true,
            over: false,
        });
        Some(OpSlot { index, turn: place.turn })
    }

    /// An op that is not over.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: OpSlot) -> Option<&mut OpState> {
        let place = self.places.get_mut(slot.index as usize).filter(|place| place.turn == slot.turn)?;
        place.state.as_mut().filter(|state| !state.over)
    }

    /// WRs are over and have moved their bytes, which ends ops that had no others and nothing left. `odd` gets those of which somebody has to look
    /// what becomes of them.
    #[inline]
    pub(crate) fn moved(&mut self, wrs: &[Posted], odd: &mut Vec<OpSlot>) {
        for posted in wrs {
            // Under way, since it has a WR; the turn is asked for all the same.
            let place = self.places.get_mut(posted.op.index as usize);
            let Some(Place { turn, state: Some(state) }) = place else { continue };
            if *turn != posted.op.turn {
                continue;
            }
            state.posted -= 1;
            state.moved += u64::from(posted.bytes);
            if state.posted == 0 {
                if state.failure.is_some() {
                    odd.push(posted.op);
                } else if state.left() == 0 {
                    state.over = true;
                    self.done.push(posted.op.index);
                }
            }
        }
    }

    /// Ends an op. One that is over stays as it is.
    pub(crate) fn end(&mut self, slot: OpSlot, result: Result<(), OpError>) {
        let Some(state) = self.get_mut(slot) else { return };
        debug_assert!(state.posted == 0, "an op ends while the device works for it");
        (state.over, state.failure) = (true, result.err());
        self.done.push(slot.index);
    }

    /// As [`OpTable::end`], by a code.
    pub(crate) fn fail(&mut self, slot: OpSlot, code: OpErrorCode) {
        self.end(slot, Err(OpError::new(code)));
    }

    /// Gives out at most so many completions, whose ops leave the table; whether there were any.
    pub(crate) fn give_out(&mut self, most: usize, out: &mut Vec<Completion>) -> bool {
        let Self { places, free, done } = self;
        let count = done.len().min(most);
        free.extend_from_slice(&done[..count]);
        out.reserve(count);
        for index in &done[..count] {
            let Some(place) = places.get_mut(*index as usize) else { continue };
            if let Some(state) = &place.state {
                let (token, bytes, touched) = (state.op.token, state.moved, state.touched);
                // An error is large, and rare.
                match state.failure {
                    None => out.push(Completion { token, result: Ok(()), bytes, touched }),
                    Some(error) => out.push(Completion { token, result: Err(error), bytes, touched }),
                }
                place.state = None;
            }
        }
        done.drain(..count);
        count > 0
    }

    /// The ops under way that satisfy a condition. Scans the table: for rare events only.
    pub(crate) fn find(&self, which: impl Fn(&OpState) -> bool) -> Vec<OpSlot> {
        let is = |place: &Place| place.state.as_ref().is_some_and(|state| !state.over && which(state));
        let slot = |(index, place): (usize, &Place)| OpSlot { index: index as u32, turn: place.turn };
        self.places.iter().enumerate().filter(|(_, place)| is(place)).map(slot).collect()
    }
}
