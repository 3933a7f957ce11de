//! Damage to verified payloads: an op of which a byte came changed is no success, the range that its error names has such a byte and two
//! different sums, and nothing else is called damaged. Does not check the sums themselves (the conformance suite does), nor damage to
//! anything but payloads (headers have sums of their own), nor ops of a process that crashed.

use super::{Checker, Report};
use orbit_te_transport::{Completion, OpErrorCode};
use std::collections::{BTreeMap, BTreeSet};

/// Where bytes of the run were changed on their way.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    /// By life and token: which bytes of ops in flight.
    ops: BTreeMap<(usize, u64), Vec<u64>>,
    /// By life: the addresses, at the side that asked, whose bytes the application can't be sure of.
    addresses: BTreeSet<(usize, u64)>,
    /// How many so far.
    pub(crate) count: u64,
}

impl Damage {
    /// A byte of an op is changed on its way.
    pub(crate) fn done(&mut self, (life, token): (usize, u64), byte: u64, address: u64) {
        self.ops.entry((life, token)).or_default().push(byte);
        self.addresses.insert((life, address));
        self.count += 1;
    }

    /// An op has completed.
    pub(crate) fn completed(&mut self, life: usize, completion: &Completion, report: &mut Report) {
        let token = completion.token.0;
        let bytes = self.ops.remove(&(life, token)).unwrap_or_default();
        let mut wrong = |why: &str| {
            report.violated(Checker::Damage, format!("op {token:x} of life {life}: {why}"));
        };
        match completion.result {
            Ok(()) if !bytes.is_empty() => wrong("it succeeded, and came damaged"),
            Err(error) if error.code == OpErrorCode::Checksum => match error.mismatch {
                None => wrong("it came damaged, and no range is named"),
                Some(m) if m.expected == m.found => wrong("it came damaged, and both sums are the same"),
                Some(m) if !bytes.iter().any(|at| (m.offset..m.offset + m.length).contains(at)) => {
                    wrong("the range that is called damaged came well");
                }
                Some(_) => {}
            },
            _ => {}
        }
    }

    /// Whether a byte of these runs of a life's memory was changed on its way there or from there; it is forgotten then.
    pub(crate) fn take(&mut self, life: usize, runs: impl Iterator<Item = (u64, u64)>) -> bool {
        let before = self.addresses.len();
        for (address, length) in runs {
            let found = self.addresses.range((life, address)..(life, address + length));
            let found: Vec<_> = found.copied().collect();
            for at in &found {
                self.addresses.remove(at);
            }
        }
        self.addresses.len() < before
    }
}
