//! The trace of a run, as a hash. Rule: takes what happened and when in virtual time, never an address or a random key.

/// FNV-1a over everything that was noted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trace(u64);

impl Default for Trace {
    fn default() -> Trace {
        Trace(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    pub(crate) fn note(&mut self, what: &str, numbers: &[u64]) {
        let bytes = what.bytes().chain(numbers.iter().flat_map(|n| n.to_le_bytes()));
        self.0 = bytes.fold(self.0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    }

    pub(crate) fn hash(&self) -> u64 {
        self.0
    }
}
