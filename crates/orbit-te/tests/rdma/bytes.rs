//! Bytes that tell where they belong. They are copied from a block of random ones and compared with it, so that a guest without a fast
//! processor makes and checks many of them.

use orbit_te::Region;

const BLOCK: usize = 1 << 16;
/// A prime, so that neighbours differ.
const STEP: usize = 8191;

pub struct Bytes(Vec<u8>);

impl Bytes {
    pub fn new() -> Bytes {
        let mut random = crate::support::Random(0x9e37_79b9_7f4a_7c15);
        Bytes((0..2 * BLOCK).map(|_| random.below(256) as u8).collect())
    }

    /// Block `number` of the bytes `seed`.
    fn block(&self, seed: u64, number: usize) -> &[u8] {
        let at = (seed as usize).wrapping_mul(257).wrapping_add(number.wrapping_mul(STEP)) % BLOCK;
        &self.0[at..at + BLOCK]
    }

    /// Writes them to this range of a region.
    pub fn put(&self, region: &Region, (offset, length): (u64, usize), seed: u64) {
        for (number, from) in (0..length).step_by(BLOCK).enumerate() {
            let bytes = &self.block(seed, number)[..BLOCK.min(length - from)];
            region.write_at(offset + from as u64, bytes).unwrap();
        }
    }

    /// Whether they are in this range.
    pub fn are(&self, region: &Region, (offset, length): (u64, usize), seed: u64) -> bool {
        let mut found = vec![0; BLOCK];
        (0..length).step_by(BLOCK).enumerate().all(|(number, from)| {
            let found = &mut found[..BLOCK.min(length - from)];
            region.read_at(offset + from as u64, found).unwrap();
            *found == self.block(seed, number)[..found.len()]
        })
    }

    /// Zeroes this range.
    pub fn wipe(&self, region: &Region, (offset, length): (u64, usize)) {
        let zeros = [0; BLOCK];
        for from in (0..length).step_by(BLOCK) {
            region.write_at(offset + from as u64, &zeros[..BLOCK.min(length - from)]).unwrap();
        }
    }
}
