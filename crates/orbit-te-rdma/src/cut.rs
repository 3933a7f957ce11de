//! Cutting an op into work requests (WRs). Rule: each WR moves at least one byte, between one range at the peer and at most so many here;
//! together they move every byte of the op once, in order.

#![allow(unsafe_code)]

use crate::ops::{Cut, OpState};
use orbit_te_transport::{Op, OpKind};

/// What one WR may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CutLimits {
    /// Bytes; not zero.
    pub(crate) bytes: u32,
    /// Ranges at this side (SGEs); not zero.
    pub(crate) ranges: usize,
    /// Bytes of a write that travel in the WR itself, which saves the device a look at memory.
    pub(crate) inline: u32,
}

impl CutLimits {
    /// Bytes of a WR of this kind that travel in it.
    #[inline]
    pub(crate) fn inline_of(&self, kind: OpKind) -> u32 {
        if kind == OpKind::Write { self.inline } else { 0 }
    }
}

/// A range at this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) lkey: u32,
}

/// A WR but for its ranges at this side, which were put where the caller said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    /// Where at the peer.
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    pub(crate) bytes: u32,
    /// How many ranges there are here.
    pub(crate) ranges: usize,
}

/// A region at each side, both reached by one key from begin to end, as nearly all are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole {
    /// The first address here, and how many bytes there are.
    pub(crate) here: u64,
    pub(crate) here_bytes: u64,
    pub(crate) lkey: u32,
    /// The same at the peer.
    pub(crate) there: u64,
    pub(crate) there_bytes: u64,
    pub(crate) rkey: u32,
}

impl Whole {
    /// Whether an op without pieces is inside of both, and of what was described of the peer's.
    #[inline]
    pub(crate) fn fits(&self, op: &Op) -> bool {
        let length = op.local.length;
        let here = op.local.address.wrapping_sub(self.here).checked_add(length);
        let there = op.remote.offset.checked_add(length);
        let most = self.there_bytes.min(op.remote.key.0[3]);
        here.is_some_and(|end| end <= self.here_bytes) && there.is_some_and(|end| end <= most)
    }

    /// As [`crate::memory::LocalKeys::at`].
    #[inline]
    fn key_here(&self, address: u64) -> Option<(u32, u64)> {
        let offset = address.wrapping_sub(self.here);
        (offset < self.here_bytes).then(|| (self.lkey, self.here_bytes - offset))
    }

    /// As [`crate::entry::Open::at`].
    #[inline]
    fn key_there(&self, offset: u64) -> Option<(u32, u64)> {
        (offset < self.there_bytes).then(|| (self.rkey, self.there_bytes - offset))
    }
}

/// As [`cut`], between two such regions.
#[inline]
pub(crate) fn cut_whole(
    state: &mut OpState,
    whole: &Whole,
    limits: CutLimits,
    ranges: &mut [Range],
) -> Option<Work> {
    if state.op.pieces.is_none() {
        return cut_block(state, whole, limits, ranges);
    }
    cut(
        state,
        |address| whole.key_here(address),
        (whole.there, |offset| whole.key_there(offset)),
        limits,
        ranges,
    )
}

/// The same for an op without pieces: one range at each side.
#[inline]
fn cut_block(state: &mut OpState, whole: &Whole, limits: CutLimits, ranges: &mut [Range]) -> Option<Work> {
    let done = state.cut.bytes;
    let bytes = (state.op.local.length - done).min(u64::from(limits.bytes));
    let (address, offset) = (state.op.local.address + done, state.op.remote.offset + done);
    let ends = (address.wrapping_sub(whole.here).checked_add(bytes)?, offset.checked_add(bytes)?);
    if ends.0 > whole.here_bytes || ends.1 > whole.there_bytes {
        return None;
    }
    state.cut.bytes += bytes;
    let bytes = bytes as u32;
    *ranges.first_mut()? = Range { address, bytes, lkey: whole.lkey };
    Some(Work { remote: whole.there + offset, rkey: whole.rkey, bytes, ranges: 1 })
}

/// Cuts the next WR off an op that has bytes left, inside of both regions: `here` gives the key for an address and how many bytes from there on it
/// reaches, `there` the same for an offset, beside the address of its region. None when a range has no key, which is never so for what was checked; the
/// op is as before then.
#[inline]
pub(crate) fn cut(
    state: &mut OpState,
    here: impl Fn(u64) -> Option<(u32, u64)>,
    (base, there): (u64, impl Fn(u64) -> Option<(u32, u64)>),
    limits: CutLimits,
    ranges: &mut [Range],
) -> Option<Work> {
    let most = limits.ranges.min(ranges.len());
    let mut at = state.cut;
    let (mut address, offset, mut left) = next(&state.op, at);
    let (rkey, reach) = there(offset)?;
    let mut room = reach.min(u64::from(limits.bytes));
    let mut work = Work { remote: base + offset, rkey, bytes: 0, ranges: 0 };
    loop {
        let (lkey, here_reach) = here(address)?;
        let bytes = left.min(here_reach).min(room);
        ranges[work.ranges] = Range { address, bytes: bytes as u32, lkey };
        work.ranges += 1;
        work.bytes += bytes as u32;
        room -= bytes;
        advance(&mut at, bytes, left);
        if room == 0 || work.ranges == most || at.bytes == state.op.local.length {
            break;
        }
        let (address_after, offset_after, left_after) = next(&state.op, at);
        if offset_after != offset + u64::from(work.bytes) {
            break;
        }
        (address, left) = (address_after, left_after);
    }
    state.cut = at;
    Some(work)
}

/// The rest of the piece that comes next: its address here, its offset in the peer's region, and its length.
#[inline]
fn next(op: &Op, at: Cut) -> (u64, u64, u64) {
    match &op.pieces {
        None => (op.local.address + at.bytes, op.remote.offset + at.bytes, op.local.length - at.bytes),
        Some(pieces) => {
            // SAFETY: whoever submitted the op keeps the slices alive and unchanged until its completion.
            let (here, there) = unsafe { (pieces.local(), pieces.remote()) };
            let piece = &there[at.piece as usize];
            (here[at.piece as usize] + at.within, piece.offset() + at.within, piece.length() - at.within)
        }
    }
}

#[inline]
fn advance(at: &mut Cut, bytes: u64, left_of_piece: u64) {
    at.bytes += bytes;
    if bytes == left_of_piece {
        (at.piece, at.within) = (at.piece + 1, 0);
    } else {
        at.within += bytes;
    }
}
