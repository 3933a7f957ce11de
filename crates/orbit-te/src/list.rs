//! Lists of pieces: where many small ranges lie at both sides. Rule: pure arithmetic, checked whole before anything is kept; the
//! first bad piece is named by its number.
//!
//! A list is given by the layout of each side, and the two are walked together: a piece ends where either side's run ends. Pieces
//! are numbered in that order, from 0, and keep their numbers whatever is joined later.

use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// The most pieces in a list: bounds what a layout of few words (a stride with an endless count) can ask for.
pub(crate) const MAX_LIST_PIECES: u64 = 1 << 22;

/// Where one side's bytes are, in bytes from the base of its region.
#[derive(Debug, Clone, Copy)]
pub enum Layout<'a> {
    /// Runs of any place and length: offset and length of each.
    Runs(&'a [(u64, u64)]),
    /// `count` blocks of `block_bytes`, the first at `offset`, each `stride_bytes` after the one before.
    Strided {
        /// Where the first block is.
        offset: u64,
        /// From one block's begin to the next one's.
        stride_bytes: u64,
        /// Bytes of a block.
        block_bytes: u64,
        /// How many blocks.
        count: u64,
    },
    /// Pages of one size by number: page `n` is at `offset + n * page_bytes`.
    Pages {
        /// Where page 0 is.
        offset: u64,
        /// Bytes of a page.
        page_bytes: u64,
        /// The pages, in the order in which the bytes come.
        pages: &'a [u32],
    },
}

/// What is wrong with a list. Nothing was kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{side} side, piece {piece}: {what}")]
pub struct ListError {
    /// Which side.
    pub side: Side,
    /// The first bad piece: its place in that side's layout, or its number in the list where both sides make the piece.
    pub piece: u64,
    /// What is wrong with it.
    pub what: ListFault,
}

/// A side of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Our own memory.
    Local,
    /// The peer's.
    Remote,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Local => "local",
            Side::Remote => "remote",
        })
    }
}

/// What can be wrong with a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ListFault {
    /// It has no bytes, or the list has no pieces.
    #[error("it has no bytes")]
    Empty,
    /// Its place can't be written as a number of 64 bits.
    #[error("its offset overflows")]
    Overflow,
    /// It reaches past the end of its region or segment.
    #[error("it reaches past the end")]
    OutOfRange,
    /// It is written, and shares bytes with another piece that is.
    #[error("it overlaps another piece where it is written")]
    Overlap,
    /// The other side has no bytes for it: the sides differ in their total.
    #[error("the two sides have different totals")]
    Unequal,
    /// It is one more than the 4,194,304 that a list may have.
    #[error("a list has at most 4,194,304 pieces")]
    TooMany,
    /// A subset names a piece that the list does not have.
    #[error("the list has no piece of that number")]
    NoSuchPiece,
}

/// One piece, as a walk of both sides gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) local: u64,
    pub(crate) remote: u64,
    pub(crate) length: u64,
}

impl Layout<'_> {
    /// How many runs it has.
    pub(crate) fn runs(&self) -> u64 {
        match self {
            Layout::Runs(runs) => runs.len() as u64,
            Layout::Strided { count, .. } => *count,
            Layout::Pages { pages, .. } => pages.len() as u64,
        }
    }

    /// Offset and length of a run that is inside `size` bytes.
    #[inline]
    fn run(&self, at: u64, size: u64) -> Result<(u64, u64), ListFault> {
        let (offset, length) = match self {
            Layout::Runs(runs) => runs[at as usize],
            Layout::Strided { offset, stride_bytes, block_bytes, .. } => {
                let ahead = stride_bytes.checked_mul(at).ok_or(ListFault::Overflow)?;
                (offset.checked_add(ahead).ok_or(ListFault::Overflow)?, *block_bytes)
            }
            Layout::Pages { offset, page_bytes, pages } => {
                let ahead =
                    page_bytes.checked_mul(u64::from(pages[at as usize])).ok_or(ListFault::Overflow)?;
                (offset.checked_add(ahead).ok_or(ListFault::Overflow)?, *page_bytes)
            }
        };
        if length == 0 {
            return Err(ListFault::Empty);
        }
        match offset.checked_add(length) {
            None => Err(ListFault::Overflow),
            Some(end) if end > size => Err(ListFault::OutOfRange),
            Some(_) => Ok((offset, length)),
        }
    }
}

/// One side of a walk.
struct Walk<'a> {
    layout: Layout<'a>,
    side: Side,
    size: u64,
    next: u64,
    runs: u64,
    offset: u64,
    left: u64,
}

impl<'a> Walk<'a> {
    fn new(layout: Layout<'a>, side: Side, size: u64) -> Walk<'a> {
        Walk { layout, side, size, next: 0, runs: layout.runs(), offset: 0, left: 0 }
    }

    /// Makes sure that bytes are left of the present run; false at the end.
    #[inline]
    fn fill(&mut self) -> Result<bool, ListError> {
        if self.left > 0 {
            return Ok(true);
        }
        if self.next == self.runs {
            return Ok(false);
        }
        let error = |what| ListError { side: self.side, piece: self.next, what };
        (self.offset, self.left) = self.layout.run(self.next, self.size).map_err(error)?;
        self.next += 1;
        Ok(true)
    }

    fn take(&mut self, length: u64) -> u64 {
        let at = self.offset;
        self.offset += length;
        self.left -= length;
        at
    }
}

/// Walks both sides, in regions of these sizes, and gives out the pieces in order.
///
/// # Errors
/// The first bad piece. Whoever takes the pieces throws them away then.
pub(crate) fn walk(
    local: Layout<'_>,
    local_bytes: u64,
    remote: Layout<'_>,
    remote_bytes: u64,
    mut each: impl FnMut(Span),
) -> Result<(), ListError> {
    let mut here = Walk::new(local, Side::Local, local_bytes);
    let mut there = Walk::new(remote, Side::Remote, remote_bytes);
    let mut number = 0u64;
    loop {
        match (here.fill()?, there.fill()?) {
            (false, false) if number == 0 => {
                return Err(ListError { side: Side::Local, piece: 0, what: ListFault::Empty });
            }
            (false, false) => return Ok(()),
            (true, true) => {}
            (more_here, _) => {
                let side = if more_here { Side::Remote } else { Side::Local };
                return Err(ListError { side, piece: number, what: ListFault::Unequal });
            }
        }
        if number == MAX_LIST_PIECES {
            return Err(ListError { side: Side::Local, piece: number, what: ListFault::TooMany });
        }
        let length = here.left.min(there.left);
        each(Span { local: here.take(length), remote: there.take(length), length });
        number += 1;
    }
}

/// Gives out the pieces' numbers in the order of their places where they are written, and proves that none overlap there.
///
/// # Errors
/// The first piece that overlaps one before it. Whoever takes the numbers throws them away then.
pub(crate) fn in_order(
    pieces: usize,
    side: Side,
    place: impl Fn(usize) -> (u64, u64),
    mut each: impl FnMut(usize),
) -> Result<(), ListError> {
    let (mut sorted, mut end) = (true, 0);
    let mut spread = Spread { least: u64::MAX, most: 0, differing: 0 };
    let first = if pieces == 0 { 0 } else { place(0).0 };
    for at in 0..pieces {
        let (offset, length) = place(at);
        sorted &= offset >= end;
        end = offset + length;
        spread.least = offset.min(spread.least);
        spread.most = offset.max(spread.most);
        spread.differing |= offset ^ first;
    }
    if sorted {
        (0..pieces).for_each(each);
        return Ok(());
    }
    let (keys, mask) = by_offset(pieces, &spread, |at| place(at).0);
    let mut end = 0;
    for key in keys {
        let at = (key & mask) as usize;
        let (offset, length) = place(at);
        if offset < end {
            let piece = first_overlap(pieces, &place);
            return Err(ListError { side, piece, what: ListFault::Overlap });
        }
        end = offset + length;
        each(at);
    }
    Ok(())
}

/// What is known of the offsets of many pieces.
struct Spread {
    least: u64,
    most: u64,
    /// The bits in which any two of them differ.
    differing: u64,
}

/// Keys in the order of the offsets, and the mask of the bits in which a key has its piece's number.
fn by_offset(pieces: usize, spread: &Spread, offset: impl Fn(usize) -> u64) -> (Vec<u64>, u64) {
    // Offset and number mostly fit into one word, without what all offsets have in common: plain integers sort several times faster
    // than pairs, which is what building a list costs most.
    let zeros = spread.differing.trailing_zeros().min(u64::BITS - 1);
    let number_bits = usize::BITS - pieces.saturating_sub(1).leading_zeros();
    let width = u64::BITS - ((spread.most - spread.least) >> zeros).leading_zeros();
    let mask = (1u64 << number_bits) - 1;
    if width + number_bits > u64::BITS {
        let mut numbers: Vec<u64> = (0..pieces as u64).collect();
        numbers.sort_by_key(|&at| offset(at as usize));
        return (numbers, mask);
    }
    let key = |at| (((offset(at) - spread.least) >> zeros) << number_bits) | at as u64;
    let mut keys: Vec<u64> = (0..pieces).map(key).collect();
    if pieces < RADIX_PIECES {
        keys.sort_unstable();
    } else {
        keys = by_digits(keys, number_bits, width);
    }
    (keys, mask)
}

/// From so many on, counting digits is faster than comparing.
const RADIX_PIECES: usize = 1 << 10;
/// Bits of a digit: its counts stay in a CPU's first cache.
const DIGIT_BITS: u32 = 11;

/// Sorts by the `width` bits above the lowest `low`, digit by digit from the lowest; equal ones keep their order.
fn by_digits(mut keys: Vec<u64>, low: u32, width: u32) -> Vec<u64> {
    let passes = width.max(1).div_ceil(DIGIT_BITS);
    let bits = width.max(1).div_ceil(passes);
    let mut sorted = vec![0; keys.len()];
    for pass in 0..passes {
        let digit = |key: u64| (key >> (low + pass * bits)) as usize & ((1 << bits) - 1);
        let mut places = [0usize; 1 << DIGIT_BITS];
        keys.iter().for_each(|key| places[digit(*key)] += 1);
        let mut next = 0;
        for place in &mut places {
            next += std::mem::replace(place, next);
        }
        for key in &keys {
            let place = &mut places[digit(*key)];
            sorted[*place] = *key;
            *place += 1;
        }
        std::mem::swap(&mut keys, &mut sorted);
    }
    keys
}

/// The first piece that shares a byte with one before it, in a list that has such a piece.
fn first_overlap(pieces: usize, place: impl Fn(usize) -> (u64, u64)) -> u64 {
    let mut taken = BTreeMap::new();
    for at in 0..pieces {
        let (offset, length) = place(at);
        let end = offset + length;
        let before = taken.range(..end).next_back();
        if before.is_some_and(|(_, taken_end)| *taken_end > offset) {
            return at as u64;
        }
        taken.insert(offset, end);
    }
    pieces as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 20;

    fn spans(local: Layout<'_>, remote: Layout<'_>) -> Result<Vec<Span>, ListError> {
        let mut out = Vec::new();
        walk(local, SIZE, remote, SIZE, |span| out.push(span))?;
        Ok(out)
    }

    fn span(local: u64, remote: u64, length: u64) -> Span {
        Span { local, remote, length }
    }

    #[test]
    fn two_sides_are_cut_where_either_has_an_edge() {
        let pages = Layout::Pages { offset: 100, page_bytes: 10, pages: &[7, 2, 3] };
        let runs = Layout::Runs(&[(0, 15), (50, 15)]);
        let want = vec![span(0, 170, 10), span(10, 120, 5), span(50, 125, 5), span(55, 130, 10)];
        assert_eq!(spans(runs, pages), Ok(want));
        let strided = Layout::Strided { offset: 5, stride_bytes: 100, block_bytes: 10, count: 3 };
        let want = vec![span(170, 5, 10), span(120, 105, 10), span(130, 205, 10)];
        assert_eq!(spans(pages, strided), Ok(want));
    }

    #[test]
    fn the_first_bad_piece_is_named() {
        let check = |what: ListFault, side: Side, piece: u64, local: Layout<'_>, remote: Layout<'_>| {
            assert_eq!(spans(local, remote), Err(ListError { side, piece, what }));
        };
        let whole = Layout::Runs(&[(0, 30)]);
        check(ListFault::Empty, Side::Local, 1, Layout::Runs(&[(0, 10), (20, 0), (30, 20)]), whole);
        check(ListFault::Empty, Side::Local, 0, Layout::Runs(&[]), Layout::Runs(&[]));
        check(ListFault::OutOfRange, Side::Remote, 1, whole, Layout::Runs(&[(0, 10), (SIZE - 5, 20)]));
        check(ListFault::Overflow, Side::Remote, 0, whole, Layout::Runs(&[(u64::MAX, 30)]));
        check(
            ListFault::Overflow,
            Side::Local,
            1,
            Layout::Strided { offset: 1, stride_bytes: u64::MAX, block_bytes: 10, count: 3 },
            whole,
        );
        check(
            ListFault::Overflow,
            Side::Remote,
            0,
            whole,
            Layout::Pages { offset: 0, page_bytes: u64::MAX / 2, pages: &[3] },
        );
        check(
            ListFault::OutOfRange,
            Side::Remote,
            2,
            whole,
            Layout::Pages { offset: 0, page_bytes: 10, pages: &[0, 1, 1 << 20] },
        );
        let endless = Layout::Strided { offset: 0, stride_bytes: 0, block_bytes: 1, count: u64::MAX };
        check(ListFault::TooMany, Side::Local, MAX_LIST_PIECES, endless, endless);
        check(ListFault::Unequal, Side::Local, 1, Layout::Runs(&[(0, 20)]), whole);
        check(ListFault::Unequal, Side::Remote, 1, Layout::Runs(&[(0, 31)]), whole);
    }

    #[test]
    fn overlaps_are_found_and_others_are_ordered() {
        let order_of = |places: &[(u64, u64)]| {
            let mut order = Vec::new();
            in_order(places.len(), Side::Remote, |at| places[at], |at| order.push(at)).map(|()| order)
        };
        assert_eq!(order_of(&[]), Ok(vec![]));
        assert_eq!(order_of(&[(0, 10), (10, 5), (20, 1)]), Ok(vec![0, 1, 2]));
        assert_eq!(order_of(&[(20, 1), (0, 10), (10, 5)]), Ok(vec![1, 2, 0]));
        let overlap = |piece| Err(ListError { side: Side::Remote, piece, what: ListFault::Overlap });
        assert_eq!(order_of(&[(0, 10), (9, 5)]), overlap(1));
        assert_eq!(order_of(&[(9, 5), (0, 10)]), overlap(1));
        assert_eq!(order_of(&[(50, 5), (0, 10), (50, 5)]), overlap(2));
        assert_eq!(order_of(&[(500, 10), (100, 10), (505, 10), (95, 10)]), overlap(2));
        assert_eq!(order_of(&[(7, 5), (7, 5)]), overlap(1));
        assert_eq!(order_of(&[(u64::MAX - 1, 1), (1, 1), (0, 1)]), Ok(vec![2, 1, 0]));
    }

    proptest! {
        #[test]
        fn many_are_ordered(
            gaps in proptest::collection::vec((0u64..1 << 20, any::<u64>()), RADIX_PIECES - 2..RADIX_PIECES + 3),
            grain in 0u32..24,
            base in 0u64..1 << 40,
        ) {
            // Places with gaps, in an order of their own; the widest of them need the slow way.
            let mut at = base;
            let mut places: Vec<(u64, u64, u64)> = Vec::new();
            for (gap, turn) in &gaps {
                at += (gap + 1) << grain;
                places.push((at, 1 << grain, *turn));
            }
            places.sort_by_key(|place| place.2);
            let mut got = Vec::new();
            in_order(places.len(), Side::Local, |at| (places[at].0, places[at].1), |at| got.push(places[at].0))
                .expect("none overlap");
            let mut want: Vec<u64> = places.iter().map(|place| place.0).collect();
            want.sort_unstable();
            prop_assert_eq!(got, want);
        }

        #[test]
        fn a_walk_gives_every_byte_its_partner(
            lengths in proptest::collection::vec(1u64..50, 1..40),
            cuts in proptest::collection::vec(1u64..50, 1..40),
        ) {
            let total: u64 = lengths.iter().sum();
            let mut here = Vec::new();
            let mut at = 7;
            for n in &lengths {
                here.push((at, *n));
                at += n + 3;
            }
            let mut there = Vec::new();
            let (mut left, mut at) = (total, SIZE - 1);
            for n in cuts.iter().cycle() {
                let n = (*n).min(left);
                at -= n + 2;
                there.push((at, n));
                left -= n;
                if left == 0 { break }
            }
            let bytes = |runs: &[(u64, u64)]| runs.iter().flat_map(|(o, n)| *o..o + n).collect::<Vec<_>>();
            let got = spans(Layout::Runs(&here), Layout::Runs(&there)).expect("a good list");
            let local: Vec<_> = got.iter().map(|s| (s.local, s.length)).collect();
            let remote: Vec<_> = got.iter().map(|s| (s.remote, s.length)).collect();
            prop_assert_eq!(bytes(&local), bytes(&here));
            prop_assert_eq!(bytes(&remote), bytes(&there));
        }
    }
}
