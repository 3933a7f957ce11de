//! Cutting an op into work requests (WRs). Rule: each WR moves at least one byte, between one range at the peer and at most so many here;
//! together they move every byte of the op once, in order.

#![allow(unsafe_code)]

use crate::entry::Open;
use crate::memory::LocalKeys;
use crate::ops::{Cut, OpState};
use orbit_te_transport::Op;

/// What one WR may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CutLimits {
    /// Bytes; not zero.
    pub(crate) bytes: u32,
    /// Ranges at this side (SGEs); not zero.
    pub(crate) ranges: usize,
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

/// Cuts the next WR off an op that has bytes left, inside of both regions. None when a range has no key, which is never so for what was
/// checked; the op is as before then.
pub(crate) fn cut(
    state: &mut OpState,
    here: &LocalKeys,
    there: &Open,
    limits: CutLimits,
    ranges: &mut [Range],
) -> Option<Work> {
    let most = limits.ranges.min(ranges.len());
    let mut at = state.cut;
    let (mut address, offset, mut left) = next(&state.op, at);
    let (rkey, reach) = there.keys.at(offset, there.length)?;
    let mut room = reach.min(u64::from(limits.bytes));
    let mut work = Work { remote: there.keys.base + offset, rkey, bytes: 0, ranges: 0 };
    loop {
        let (lkey, here_reach) = here.at(address)?;
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

fn advance(at: &mut Cut, bytes: u64, left_of_piece: u64) {
    at.bytes += bytes;
    if bytes == left_of_piece {
        (at.piece, at.within) = (at.piece + 1, 0);
    } else {
        at.within += bytes;
    }
}
