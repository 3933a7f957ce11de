//! Test bytes: different at every place and for every seed. Rule: whoever knows seed and position knows the bytes, so no
//! side keeps what it sent, and a byte that is old, foreign or missing differs.

/// SplitMix64: every bit of the input changes about half of the output's.
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(seed: u64, index: u64) -> [u8; 8] {
    mix(seed ^ index.wrapping_mul(0x2545_f491_4f6c_dd1d)).to_le_bytes()
}

/// Fills `bytes` with what stands at `position` and after it.
pub(super) fn fill(bytes: &mut [u8], seed: u64, position: u64) {
    let (mut index, mut skip) = (position / 8, (position % 8) as usize);
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = word(seed, index);
        let length = (8 - skip).min(rest.len());
        let (now, later) = rest.split_at_mut(length);
        now.copy_from_slice(&word[skip..skip + length]);
        (rest, index, skip) = (later, index + 1, 0);
    }
}

/// Where the first byte is that does not belong there, if there is one.
pub(super) fn first_wrong(bytes: &[u8], seed: u64, position: u64) -> Option<usize> {
    let mut expected = vec![0; bytes.len()];
    fill(&mut expected, seed, position);
    if bytes == expected {
        None
    } else {
        bytes.iter().zip(&expected).position(|(found, wanted)| found != wanted)
    }
}

/// Small random numbers from a seed, which repeats them.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From zero on and below `limit`, which is not zero.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// From `low` on and below `high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_a_piece_of_the_whole() {
        let mut whole = vec![0; 100];
        fill(&mut whole, 7, 3);
        assert_eq!(first_wrong(&whole, 7, 3), None);
        assert_eq!(first_wrong(&whole[13..40], 7, 16), None);
        assert!(first_wrong(&whole, 8, 3).is_some() && first_wrong(&whole, 7, 4).is_some());
        whole[50] ^= 1;
        assert_eq!(first_wrong(&whole, 7, 3), Some(50));
    }
}
