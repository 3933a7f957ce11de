//! Where a payload's bytes are: in one place, or in many pieces. Rule: knows addresses and lengths, never reads a byte; walking it
//! allocates nothing.

#![allow(unsafe_code)]

use crate::net::IoRange;
use crate::sys::fetch_ahead;
use orbit_te_transport::Pieces;
use orbit_te_wire::Piece;
use orbit_te_wire::limits::MAX_PIECES;

/// The table of a peer's list request. Made once, and used again and again by its lane.
pub(crate) type Table = Box<[Piece]>;

/// Room for the largest table.
pub(crate) fn new_table() -> Table {
    vec![Piece::EMPTY; MAX_PIECES as usize].into_boxed_slice()
}

/// Where a payload's bytes are.
#[derive(Debug)]
pub(crate) enum Body {
    /// From this address on.
    One(u64),
    /// In the pieces of an op in flight.
    Ours(Pieces),
    /// In the first so many pieces of a peer's table, in a region that begins at `base`.
    Theirs { table: Table, count: usize, base: u64 },
}

impl Body {
    fn count(&self) -> usize {
        match self {
            Body::One(_) => 1,
            Body::Ours(pieces) => pieces.len(),
            Body::Theirs { count, .. } => *count,
        }
    }

    /// Address and length of a piece. `length` is that of the whole payload.
    fn piece(&self, at: usize, length: u64) -> (u64, u64) {
        match self {
            Body::One(address) => (*address, length),
            Body::Ours(pieces) => {
                // SAFETY: the op is in flight while a lane has this body, and `Transport::submit` promises that its slices live and
                // do not change until it has completed.
                let (local, remote) = unsafe { (pieces.local(), pieces.remote()) };
                (local[at], remote[at].length())
            }
            Body::Theirs { table, base, .. } => (base + table[at].offset(), table[at].length()),
        }
    }

    /// The table that goes before the payload of a list request, by its address and length.
    pub(crate) fn table(&self) -> Option<(u64, u64)> {
        let Body::Ours(pieces) = self else { return None };
        // SAFETY: as in `piece`.
        let table = unsafe { pieces.remote() };
        Some((table.as_ptr() as u64, size_of_val(table) as u64))
    }
}

/// A place in a payload.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    piece: usize,
    /// Bytes of that piece that are behind.
    within: u64,
}

impl Cursor {
    /// Goes on by so many bytes, which are left in the body.
    pub(crate) fn advance(&mut self, body: &Body, length: u64, mut bytes: u64) {
        while bytes > 0 && self.piece < body.count() {
            let left = body.piece(self.piece, length).1 - self.within;
            if bytes < left {
                self.within += bytes;
                return;
            }
            bytes -= left;
            self.piece += 1;
            self.within = 0;
        }
    }

    /// The next range, of `most` bytes or fewer, and goes on behind it; none where the body ends.
    pub(crate) fn take(&mut self, body: &Body, length: u64, most: u64) -> Option<IoRange> {
        while most > 0 && self.piece < body.count() {
            let (address, piece) = body.piece(self.piece, length);
            let (address, left) = (address + self.within, piece - self.within);
            let bytes = left.min(most);
            self.within += bytes;
            if bytes == left {
                (self.piece, self.within) = (self.piece + 1, 0);
            }
            if bytes > 0 {
                return Some(IoRange::new(address, bytes as usize));
            }
        }
        None
    }

    /// Adds the ranges from here on, as many as fit into `ranges` and `most` bytes; how many ranges, and how many bytes. Scattered ones
    /// are about to be used: their first bytes are asked for.
    pub(crate) fn ranges(
        &self,
        body: &Body,
        length: u64,
        ranges: &mut [IoRange],
        most: usize,
    ) -> (usize, usize) {
        let (mut used, mut bytes) = (0, 0);
        let mut within = self.within;
        let scattered = !matches!(body, Body::One(_));
        for at in self.piece..body.count() {
            if used == ranges.len() || bytes == most {
                break;
            }
            let (address, piece) = body.piece(at, length);
            // A call of empty ranges alone would move nothing, for ever. The target refuses the list and says which piece it is.
            if piece == within {
                within = 0;
                continue;
            }
            let take = (piece - within).min((most - bytes) as u64) as usize;
            ranges[used] = IoRange::new(address + within, take);
            if scattered {
                fetch_ahead(address + within);
            }
            used += 1;
            bytes += take;
            within = 0;
        }
        (used, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(body: &Body, length: u64, step: usize, slots: usize) -> Vec<(u64, usize)> {
        let mut seen = Vec::new();
        let mut cursor = Cursor::default();
        let mut left = length;
        while left > 0 {
            let mut ranges = vec![IoRange::EMPTY; slots];
            let (used, bytes) = cursor.ranges(body, length, &mut ranges, step.min(left as usize));
            assert!(used > 0 && bytes > 0, "a walk that stands still");
            seen.extend(ranges[..used].iter().map(|r| (r.address(), r.len())));
            cursor.advance(body, length, bytes as u64);
            left -= bytes as u64;
        }
        seen
    }

    fn joined(seen: Vec<(u64, usize)>) -> Vec<(u64, usize)> {
        let mut out: Vec<(u64, usize)> = Vec::new();
        for (address, len) in seen {
            match out.last_mut() {
                Some((before, n)) if *before + *n as u64 == address => *n += len,
                _ => out.push((address, len)),
            }
        }
        out
    }

    #[test]
    fn a_walk_of_any_step_meets_every_byte_once_and_in_order() {
        let local = [1u64, 1000, 2, 2, 5000, 3000, 3];
        let lengths = [(7, 0), (0, 10), (8, 0), (8, 0), (100, 1), (200, 77), (9, 0)];
        let remote = lengths.map(|(offset, length)| Piece::new(offset, length));
        let whole = vec![(1000, 10), (5000, 1), (3000, 77)];
        let mut table = new_table();
        table[..7].copy_from_slice(&remote);
        let theirs = Body::Theirs { table, count: 7, base: 7000 };
        let ours = Body::Ours(Pieces::new(&local, &remote).expect("seven pieces"));
        for step in 1..100 {
            for slots in 1..5 {
                assert_eq!(joined(walk(&ours, 88, step, slots)), whole, "step {step}, {slots} slots");
                let there = vec![(7000, 10), (7100, 1), (7200, 77)];
                assert_eq!(joined(walk(&theirs, 88, step, slots)), there, "step {step}, {slots} slots");
                assert_eq!(joined(walk(&Body::One(9), 88, step, slots)), vec![(9, 88)]);
            }
            let mut cursor = Cursor::default();
            let taken = std::iter::from_fn(|| cursor.take(&ours, 88, step as u64));
            assert_eq!(joined(taken.map(|r| (r.address(), r.len())).collect()), whole, "step {step}, taken");
        }
    }
}
