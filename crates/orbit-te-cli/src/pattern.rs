//! Test bytes: random-looking, different at every place and for every seed, and as cheap to check as a comparison of memory.
//! Rule: whoever knows seed and position knows the bytes, so no side has to keep what it sent.
//!
//! Bytes come in cells of 64 KiB. A cell is a piece of one table of random bytes, and its place there is a hash of the seed and the
//! cell's number: a cell that lands elsewhere, is old, or is missing differs.

use orbit_te::{MemoryError, Region};

const CELL: u64 = 64 * 1024;
const PLACES: u64 = 1 << 20;

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

    /// Fills `length` bytes of the region from `offset` on with the bytes of these positions.
    pub(crate) fn fill(
        &self,
        region: &Region,
        offset: u64,
        length: u64,
        seed: u64,
        position: u64,
    ) -> Result<(), MemoryError> {
        self.pieces(seed, position, length).try_for_each(|(at, piece)| region.write_at(offset + at, piece))
    }

    /// Compares every byte; where the first wrong one is, counted from `offset`.
    pub(crate) fn check(
        &self,
        region: &Region,
        offset: u64,
        length: u64,
        seed: u64,
        position: u64,
    ) -> Result<Option<u64>, MemoryError> {
        let mut found = vec![0u8; CELL.min(length) as usize];
        for (at, piece) in self.pieces(seed, position, length) {
            let found = &mut found[..piece.len()];
            region.read_at(offset + at, found)?;
            if found != piece {
                let wrong = found.iter().zip(piece).position(|(a, b)| a != b).unwrap_or(0);
                return Ok(Some(at + wrong as u64));
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
        pattern.fill(&region, 100, 200_000, 1, 12_345).unwrap();
        assert_eq!(pattern.check(&region, 100, 200_000, 1, 12_345).unwrap(), None);
        assert_eq!(pattern.check(&region, 70_100, 1_000, 1, 82_345).unwrap(), None);
        assert!(pattern.check(&region, 100, 200_000, 2, 12_345).unwrap().is_some());
        assert!(pattern.check(&region, 100, 200_000, 1, 12_346).unwrap().is_some());
        assert!(pattern.check(&region, 101, 200_000, 1, 12_345).unwrap().is_some());

        let mut byte = [0u8];
        region.read_at(150_000, &mut byte).unwrap();
        region.write_at(150_000, &[byte[0] ^ 1]).unwrap();
        assert_eq!(pattern.check(&region, 100, 200_000, 1, 12_345).unwrap(), Some(149_900));
    }
}
