//! Bytes to recognise and numbers to repeat. Rule: everything follows from a seed.
//!
//! It checks nothing itself. Two patterns of different families differ in every byte; two of the same family may agree in
//! one byte of 64.

use std::time::{SystemTime, UNIX_EPOCH};

/// Who wrote a byte: its two lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// What the initiator's memory begins with.
    Here = 0,
    /// What a target's memory begins with.
    There = 1,
    /// What is written into memory after it was let go: must never be seen anywhere else.
    Foreign = 2,
}

/// The finalizer of splitmix64: a bijection, so that different numbers stay different.
pub fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `length` bytes of a family.
pub fn pattern(family: Family, seed: u64, length: usize) -> Vec<u8> {
    let mark = family as u64 * 0x0101_0101_0101_0101;
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = mix(seed);
    while bytes.len() < length {
        word = mix(word);
        bytes.extend_from_slice(&((word & 0xfcfc_fcfc_fcfc_fcfc) | mark).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A small generator of numbers: splitmix64.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        number
    }

    /// A number under `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// True once in `of` times.
    pub fn once_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// The seed in `ORBIT_TE_SEED`, or a new one. Print it: with it the row can be repeated.
pub fn seed() -> u64 {
    if let Ok(text) = std::env::var("ORBIT_TE_SEED") {
        match text.trim().parse() {
            Ok(seed) => return seed,
            Err(why) => panic!("ORBIT_TE_SEED is `{text}`, which is no number: {why}"),
        }
    }
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    mix(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_differ_in_every_byte_and_seeds_in_most() {
        let patterns = [Family::Here, Family::There, Family::Foreign].map(|family| pattern(family, 3, 1001));
        for (one, other) in [(0, 1), (1, 2), (2, 0)] {
            assert!(patterns[one].iter().zip(&patterns[other]).all(|(a, b)| a != b));
        }
        let other = pattern(Family::Here, 4, 1001);
        assert_eq!(other.len(), 1001);
        assert!(patterns[0].iter().zip(&other).filter(|(a, b)| a == b).count() < 60);
    }
}
