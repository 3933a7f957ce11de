//! A region with guard bytes around it and a model of what it should hold. Rule: every byte of the backing is either as
//! the model has it or, where an op failed in a way that leaves it open, as that op would have made it.
//!
//! It sees memory only when asked: a byte that was changed and changed back in between is not found.

use crate::testing::pair::Side;
use crate::testing::pattern::{Family, pattern};
use orbit_te_memory::{
    Access, Backing, HostBuffer, LocalKey, LocalSpan, MemoryError, Region, Registry, RemoteKey,
};
use orbit_te_wire::{RegionDescriptor, TransportKey};
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes before and behind the region, in the same backing.
pub(crate) const GUARD: usize = 128;

/// The value, or a panic that says what was being done.
#[track_caller]
pub(crate) fn must<T, E: Display>(what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(why) => panic!("{what}: {why}"),
    }
}

/// Bytes that may be either as the model has them or as here.
struct Loose {
    /// In the backing.
    range: Range<usize>,
    bytes: Vec<u8>,
}

/// One region under test.
pub struct Memory {
    /// For reports: which it is.
    pub name: String,
    /// Whose it is.
    pub side: Side,
    /// The region that ops name.
    pub region: Region,
    /// How its own transport knows it.
    pub local: LocalKey,
    /// Its description, for whoever wants to import it in another way.
    pub descriptor: RegionDescriptor,
    /// How the initiator reaches it, when it is a target's.
    pub remote: Option<RemoteKey>,
    /// All of the backing, in a registry that no transport knows; works after the region was retired too.
    witness: Region,
    model: Vec<u8>,
    loose: Vec<Loose>,
}

impl Memory {
    /// `length` bytes of a pattern, registered with a side. Panics when that fails.
    pub fn filled(name: String, side: &Side, access: Access, length: usize, family: Family) -> Memory {
        let model = pattern(family, length as u64 ^ 0x51de, length + 2 * GUARD);
        let memory = Memory::bare(name, side, access, length, model);
        must("fill the test's memory", memory.witness.write_at(0, &memory.model));
        memory
    }

    /// `length` bytes without contents of interest, of which no page is made: as large as one likes.
    pub fn empty(name: String, side: &Side, access: Access, length: usize) -> Memory {
        Memory::bare(name, side, access, length, Vec::new())
    }

    fn bare(name: String, side: &Side, access: Access, length: usize, model: Vec<u8>) -> Memory {
        let buffer = must("map the test's memory", HostBuffer::new(length + 2 * GUARD));
        let backing: Arc<Backing> = Arc::new(buffer.into_backing());
        let witness = must("register the witness", Registry::new().register(backing.clone(), Access::LOCAL));
        let region = side.registry.register_range(backing, GUARD as u64, length as u64, access);
        let region = must("register the test's region", region);
        let local = must("register the region with the domain", side.domain.register(&region));
        let descriptor = Memory::describe(side, &region);
        let loose = Vec::new();
        let side = side.clone();
        Memory { name, side, region, local, descriptor, remote: None, witness, model, loose }
    }

    /// What a peer is told of a region at this side.
    pub fn describe(side: &Side, region: &Region) -> RegionDescriptor {
        let transport = side.domain.name().to_string();
        let bytes = side.domain.remote_key(region, region.key());
        region.describe(vec![TransportKey { transport, bytes }])
    }

    /// Makes the region's old descriptions stale, with its domain, when it is called. Blocks, on whichever thread.
    pub fn revocation(&self, limit: Duration) -> impl FnOnce() -> Result<(), MemoryError> + Send + use<> {
        let (side, region, key) = (self.side.clone(), self.region.clone(), self.local);
        move || {
            let renew = || side.domain.renew(&region, key);
            side.registry.revoke_or(&region, limit, || Duration::ZERO, renew).map(drop)
        }
    }

    /// The addresses of a range, which is inside of the region.
    pub fn span(&self, offset: u64, length: u64) -> LocalSpan {
        let Some(rest) = self.region.len().checked_sub(offset) else {
            panic!("{}: a row asked for a local span at {offset}, outside of the region", self.name);
        };
        assert!(length <= rest, "{}: a row asked for a local span outside of the region", self.name);
        // The address of the region's first byte is exposed, as an op carries addresses as numbers.
        let address = self.region.as_ptr().as_ptr() as u64 + offset;
        LocalSpan { address, length, key: self.local }
    }

    /// Whether a range is inside of the region.
    pub fn holds(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.region.len())
    }

    /// Whether there is a model to compare with.
    pub fn has_model(&self) -> bool {
        !self.model.is_empty()
    }

    /// What the model says about a range of the region.
    pub fn expected(&self, offset: u64, length: u64) -> &[u8] {
        &self.model[place(offset, length)]
    }

    /// What is in a range of the region now.
    pub fn found(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        if length > 0 {
            must("look at memory", self.witness.read_at(offset + GUARD as u64, &mut bytes));
        }
        bytes
    }

    /// Writes bytes, as the owner may; the model follows.
    pub fn set(&mut self, offset: u64, bytes: &[u8]) {
        must("write to memory", self.witness.write_at(offset + GUARD as u64, bytes));
        self.expect(offset, bytes);
    }

    /// From now on these bytes are expected there, and nothing else.
    pub fn expect(&mut self, offset: u64, bytes: &[u8]) {
        let range = place(offset, bytes.len() as u64);
        self.model[range].copy_from_slice(bytes);
    }

    /// From now on each byte there may also be as in `bytes`.
    pub fn allow(&mut self, offset: u64, bytes: Vec<u8>) {
        let range = place(offset, bytes.len() as u64);
        self.loose.push(Loose { range, bytes });
    }

    /// Takes what is open as it is now.
    pub fn close_loose(&mut self) {
        if !self.loose.is_empty() {
            self.loose.clear();
            self.model = self.snapshot();
        }
    }

    /// Everything in the backing, guards included.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.witness.len() as usize];
        must("look at memory", self.witness.read_at(0, &mut bytes));
        bytes
    }

    /// The first byte that is neither as the model has it nor as a failed op may have made it, in words; none where all is
    /// well.
    pub fn difference(&self) -> Option<String> {
        if !self.has_model() {
            return None;
        }
        let found = self.snapshot();
        if found == self.model {
            return None;
        }
        let others: Vec<_> = self.loose.iter().map(|l| (l.range.start, l.bytes.as_slice())).collect();
        let (first, more) = strangers(&found, &self.model, &others)?;
        let place = first as i64 - GUARD as i64;
        Some(format!(
            "{}: byte {place} of a region of {} bytes is {:#04x} and should be {:#04x}; {more} bytes are wrong",
            self.name,
            self.region.len(),
            found[first],
            self.model[first],
        ))
    }
}

/// The first byte that is neither as in `model` nor as in any of `others`, which begin at their offsets; and how many such
/// bytes there are. Whole blocks are compared first: a loop over bytes takes seconds in an unoptimised build.
pub(crate) fn strangers(found: &[u8], model: &[u8], others: &[(usize, &[u8])]) -> Option<(usize, usize)> {
    const BLOCK: usize = 1024;
    let other = |at: usize, bytes: &[u8]| {
        others.iter().any(|(from, alternative)| {
            at.checked_sub(*from)
                .is_some_and(|at| alternative.get(at..at + bytes.len()).is_some_and(|part| part == bytes))
        })
    };
    let (mut first, mut count) = (None, 0);
    for (block, (bytes, wanted)) in found.chunks(BLOCK).zip(model.chunks(BLOCK)).enumerate() {
        let base = block * BLOCK;
        if bytes == wanted || other(base, bytes) {
            continue;
        }
        for (at, byte) in bytes.iter().enumerate() {
            if *byte != wanted[at] && !other(base + at, std::slice::from_ref(byte)) {
                first = first.or(Some(base + at));
                count += 1;
            }
        }
    }
    first.map(|first| (first, count))
}

fn place(offset: u64, length: u64) -> Range<usize> {
    let from = offset as usize + GUARD;
    from..from + length as usize
}

#[cfg(test)]
mod tests {
    use super::strangers;

    #[test]
    fn a_byte_is_a_stranger_unless_the_model_or_a_failed_op_explains_it() {
        let model = vec![1u8; 5000];
        let mut found = model.clone();
        assert_eq!(strangers(&found, &model, &[]), None);
        found[2000..3500].fill(2);
        assert_eq!(strangers(&found, &model, &[]), Some((2000, 1500)));
        let late = vec![2u8; 1600];
        assert_eq!(strangers(&found, &model, &[(1950, &late)]), None);
        assert_eq!(strangers(&found, &model, &[(2001, &late)]), Some((2000, 1)));
        assert_eq!(strangers(&found, &model, &[(1000, &late)]), Some((2600, 900)));
        found[4999] = 3;
        assert_eq!(strangers(&found, &model, &[(1950, &late)]), Some((4999, 1)));
    }
}
