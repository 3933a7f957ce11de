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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Open;
    use crate::memory::LocalKeys;
    use crate::ops::OpTable;
    use crate::sys::RANGES;
    use orbit_te_memory::{Access, LocalKey, LocalSpan, RemoteKey};
    use orbit_te_transport::{LinkId, OpKind, Pieces, Priority, RemoteSpan, Token, Verify};
    use orbit_te_wire::Piece;
    use orbit_te_wire::rdma::RailKeys;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const HERE: u64 = 0x7100_0000_1000;
    const THERE: u64 = 0x7200_0000_2000;

    /// A region at one side: its length, and how much of it a key opens.
    #[derive(Debug, Clone, Copy)]
    struct Side {
        length: u64,
        part: u64,
    }

    impl Side {
        fn keys(self, first: u32) -> Vec<u32> {
            (0..self.length.div_ceil(self.part) as u32).map(|number| first + number).collect()
        }
    }

    fn side() -> impl Strategy<Value = Side> {
        (1u64..4_000).prop_flat_map(|length| {
            let part = prop_oneof![Just(length), 1..=length, Just(1u64)];
            part.prop_map(move |part| Side { length, part })
        })
    }

    /// Runs of bytes: where here, where at the peer, and how many. Some go on where the one before ended, at one of the sides or both.
    fn runs(here: Side, there: Side) -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
        let run = (any::<u64>(), any::<u64>(), 1u64..400, any::<bool>(), any::<bool>());
        vec(run, 1..24).prop_map(move |drawn| {
            let mut runs: Vec<(u64, u64, u64)> = Vec::new();
            for (at, to, wanted, goes_on_here, goes_on_there) in drawn {
                let (mut from, mut to) = (at % here.length, to % there.length);
                if let Some((here_before, there_before, length)) = runs.last() {
                    let (after, after_there) = (here_before + length, there_before + length);
                    from = if goes_on_here && after < here.length { after } else { from };
                    to = if goes_on_there && after_there < there.length { after_there } else { to };
                }
                runs.push((from, to, wanted.min(here.length - from).min(there.length - to)));
            }
            runs
        })
    }

    /// One op: its sides, its runs, and whether it is a list where it has only one.
    fn case() -> impl Strategy<Value = (Side, Side, Vec<(u64, u64, u64)>, bool)> {
        (side(), side())
            .prop_flat_map(|(here, there)| (Just(here), Just(there), runs(here, there), any::<bool>()))
    }

    fn limits() -> impl Strategy<Value = CutLimits> {
        (1u32..900, 1usize..=RANGES).prop_map(|(bytes, ranges)| CutLimits { bytes, ranges, inline: 0 })
    }

    proptest! {
        /// Each byte goes once, in order, by the keys of its part at both sides, in WRs that are no shorter than they must be; and what was cut
        /// and put back is cut the same way again.
        #[test]
        fn every_byte_is_moved_once_and_in_order(
            (here, there, runs, list) in case(),
            limits in limits(),
            room in 1usize..=RANGES,
            put_back in vec(0usize..6, 64),
        ) {
            let one = (runs.len() == 1).then(|| runs[0]).filter(|_| !list);
            let local: Vec<u64> = runs.iter().map(|(at, _, _)| HERE + at).collect();
            let remote: Vec<Piece> = runs.iter().map(|(_, to, length)| Piece::new(*to, *length)).collect();
            let length = runs.iter().map(|(_, _, length)| length).sum();
            let op = Op {
                kind: OpKind::Read,
                link: LinkId { slot: 0, generation: 0 },
                local: LocalSpan { address: local[0], length, key: LocalKey::default() },
                remote: RemoteSpan { offset: runs[0].1, key: RemoteKey::default() },
                pieces: Pieces::new(&local, &remote).filter(|_| one.is_none()),
                token: Token(0),
                priority: Priority::Normal,
                verify: Verify::Off,
            };
            let mut table = OpTable::new(1);
            let slot = table.insert(&op).unwrap();
            let state = table.get_mut(slot).unwrap();
            let ours = LocalKeys::of((HERE, here.length), here.part, here.keys(1_000));
            let keys = RailKeys { rail: 0, base: THERE, part_bytes: there.part, rkeys: there.keys(90_000) };
            let open = Open { keys, length: there.length, access: Access::all(), expires: None };
            let bytes: Vec<(u64, u64)> = runs
                .iter()
                .flat_map(|(at, to, length)| (0..*length).map(move |byte| (at + byte, to + byte)))
                .collect();
            let whole = (here.part >= here.length && there.part >= there.length).then_some(Whole {
                here: HERE,
                here_bytes: here.length,
                lkey: 1_000,
                there: THERE,
                there_bytes: there.length,
                rkey: 90_000,
            });
            let most = limits.ranges.min(room);
            let mut ranges = [Range::default(); RANGES];
            let mut next = 0;
            let mut put_back = put_back.into_iter();
            while state.left() > 0 {
                let before = state.cut;
                let work = cut(state, |at| ours.at(at), (THERE, |at| open.at(at)), limits, &mut ranges[..room]).unwrap();
                let made = (work, ranges);
                if let Some(whole) = &whole {
                    let after = std::mem::replace(&mut state.cut, before);
                    let same = cut_whole(state, whole, limits, &mut ranges[..room]).unwrap();
                    prop_assert_eq!((same, &ranges[..same.ranges]), (work, &made.1[..work.ranges]));
                    prop_assert_eq!(state.cut, after);
                }
                // As when a chain is posted in part: the last of its WRs go back, the first of them is where the op is then.
                let more = put_back.next().unwrap_or(0);
                for _ in 0..more {
                    if state.left() > 0 {
                        cut(state, |at| ours.at(at), (THERE, |at| open.at(at)), limits, &mut ranges[..room]).unwrap();
                    }
                }
                if more > 0 {
                    state.cut = before;
                    let again = cut(state, |at| ours.at(at), (THERE, |at| open.at(at)), limits, &mut ranges[..room]).unwrap();
                    prop_assert_eq!((again, ranges[..work.ranges].to_vec()), (work, made.1[..work.ranges].to_vec()));
                }
                prop_assert!(work.bytes > 0 && work.bytes <= limits.bytes);
                prop_assert!(work.ranges > 0 && work.ranges <= most);
                let mut at = 0;
                for range in &ranges[..work.ranges] {
                    prop_assert!(range.bytes > 0);
                    for byte in 0..u64::from(range.bytes) {
                        let (from, to) = bytes[next];
                        prop_assert_eq!(range.address + byte, HERE + from);
                        prop_assert_eq!(work.remote + at, THERE + to);
                        prop_assert_eq!(u64::from(range.lkey), 1_000 + from / here.part);
                        prop_assert_eq!(u64::from(work.rkey), 90_000 + to / there.part);
                        (next, at) = (next + 1, at + 1);
                    }
                }
                prop_assert_eq!(u64::from(work.bytes), at);
                prop_assert_eq!(state.left(), (bytes.len() - next) as u64);
                // It ends where it must, and not before.
                let (_, last) = bytes[next - 1];
                let goes_on = bytes.get(next).is_some_and(|(_, to)| *to == last + 1 && to / there.part == last / there.part);
                prop_assert!(!goes_on || work.bytes == limits.bytes || work.ranges == most, "{:?}", work);
            }
            prop_assert_eq!(next, bytes.len());
        }
    }
}
