//! Test bytes: random-looking, different at every place and for every seed, and as cheap to check as a comparison of memory.
//! Rule: whoever knows seed and position knows the bytes, so no side has to keep what it sent.
//!
//! Bytes come in cells of 64 KiB. A cell is a piece of one table of random bytes, and its place there is a hash of the seed and the
//! cell's number: a cell that lands elsewhere, is old, or is missing differs.

use orbit_te::{MemoryError, Region};
use serde::{Deserialize, Serialize};

const CELL: u64 = 64 * 1024;
const PLACES: u64 = 1 << 20;

/// Blocks of a region, and which bytes they hold.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) seed: u64,
    /// The first block's position in the stream of test bytes.
    pub(crate) position: u64,
    /// The first block's place in the region.
    pub(crate) offset: u64,
    /// The length of one block.
    pub(crate) length: u64,
    /// From one block to the next, of places and positions alike.
    pub(crate) stride: u64,
    pub(crate) count: u64,
}

impl Span {
    /// One block.
    pub(crate) fn one(seed: u64, position: u64, offset: u64, length: u64) -> Span {
        Span { seed, position, offset, length, stride: length, count: 1 }
    }

    /// Place and position of every block.
    fn blocks(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let Span { position, offset, stride, .. } = *self;
        (0..self.count).map(move |n| (offset + n * stride, position + n * stride))
    }
}

/// A generator of test bytes.
pub(crate) struct Pattern {
    table: Vec<u8>,
}

/// SplitMix64: every bit of the input changes about half of the output's.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A seed that is new with every call.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

impl Pattern {
    /// The generator; the same in every process.
    pub(crate) fn new() -> Pattern {
        let words = (PLACES + CELL) / 8;
        Pattern { table: (0..words).flat_map(|n| mix(n).to_le_bytes()).collect() }
    }

    /// The bytes of `length` positions from `position` on, as pieces with their distance from the start.
    fn pieces(&self, seed: u64, position: u64, length: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == length {
                return None;
            }
            let at = position + done;
            let (cell, within) = (at / CELL, at % CELL);
            let size = (CELL - within).min(length - done);
            let from = (mix(seed ^ mix(cell)) % PLACES + within) as usize;
            let piece = (done, &self.table[from..from + size as usize]);
            done += size;
            Some(piece)
        })
    }

    /// Fills the span's blocks.
    pub(crate) fn fill(&self, region: &Region, span: &Span) -> Result<(), MemoryError> {
        span.blocks().try_for_each(|(offset, position)| {
            self.pieces(span.seed, position, span.length)
                .try_for_each(|(at, piece)| region.write_at(offset + at, piece))
        })
    }

    /// Compares every byte of the span's blocks; where in the region the first wrong one is.
    pub(crate) fn check(&self, region: &Region, span: &Span) -> Result<Option<u64>, MemoryError> {
        let mut found = vec![0u8; CELL.min(span.length) as usize];
        for (offset, position) in span.blocks() {
            for (at, piece) in self.pieces(span.seed, position, span.length) {
                let found = &mut found[..piece.len()];
                region.read_at(offset + at, found)?;
                if found != piece {
                    let wrong = found.iter().zip(piece).position(|(a, b)| a != b).unwrap_or(0);
                    return Ok(Some(offset + at + wrong as u64));
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_te::{Access, Engine, HostBuffer};

    #[test]
    fn what_was_filled_checks_and_nothing_else_does() {
        let engine = Engine::builder().no_listen().start().unwrap();
        let memory = HostBuffer::new(300_000).unwrap().into_backing();
        let region = engine.register(memory, Access::LOCAL).unwrap();
        let pattern = Pattern::new();
        let span = Span::one(1, 12_345, 100, 200_000);
        pattern.fill(&region, &span).unwrap();
        let check = |span: Span| pattern.check(&region, &span).unwrap();
        assert_eq!(check(span), None);
        assert_eq!(check(Span { position: 82_345, offset: 70_100, length: 1_000, ..span }), None);
        assert_eq!(check(Span { length: 10, stride: 70_000, count: 3, ..span }), None);
        assert!(check(Span { seed: 2, ..span }).is_some());
        assert!(check(Span { position: 12_346, ..span }).is_some());
        assert!(check(Span { offset: 101, ..span }).is_some());

        let mut byte = [0u8];
        region.read_at(150_000, &mut byte).unwrap();
        region.write_at(150_000, &[byte[0] ^ 1]).unwrap();
        assert_eq!(check(span), Some(150_000));
    }
}
