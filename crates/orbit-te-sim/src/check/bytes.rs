//! Bytes: what a region must hold, byte by byte. Success means exactly the bytes that were written; a transfer that failed has left
//! each byte old or new, inside of its ranges only. Does not check when bytes change (`touch.rs`), nor memory of crashed processes, nor
//! the bytes of ranges into which a damaged payload went that did not succeed.

use super::{Checker, Report};

/// A range whose bytes may be either of two.
#[derive(Debug, Clone)]
pub(crate) struct Either {
    pub(crate) offset: usize,
    pub(crate) other: Vec<u8>,
}

/// What is known of a region's bytes.
#[derive(Debug)]
pub(crate) struct Shadow {
    pub(crate) expected: Vec<u8>,
    pub(crate) either: Vec<Either>,
    /// Offset and length of ranges in which a damaged payload may land at any time.
    unknown: Vec<(usize, usize)>,
}

impl Shadow {
    pub(crate) fn new(expected: Vec<u8>) -> Shadow {
        Shadow { expected, either: Vec::new(), unknown: Vec::new() }
    }

    /// These bytes are there now for certain.
    pub(crate) fn set(&mut self, offset: usize, bytes: &[u8]) {
        self.expected[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// From now on these bytes may land at any time.
    pub(crate) fn may_land(&mut self, offset: usize, other: Vec<u8>) {
        self.either.push(Either { offset, other });
    }

    /// From now on any bytes may land there at any time.
    pub(crate) fn may_be_damaged(&mut self, offset: usize, length: usize) {
        self.unknown.push((offset, length));
    }

    /// All of the region was written anew, and nothing older can land.
    pub(crate) fn renew(&mut self, bytes: Vec<u8>) {
        *self = Shadow::new(bytes);
    }

    /// The region's bytes as they are, against what they must be.
    pub(crate) fn check(&self, what: &str, actual: &[u8], report: &mut Report) {
        let may_be = |at: usize, byte: u8| {
            self.either.iter().any(|e| e.offset <= at && e.other.get(at - e.offset) == Some(&byte))
                || self.unknown.iter().any(|(from, length)| (*from..from + length).contains(&at))
        };
        let wrong = |(at, byte): &(usize, &u8)| **byte != self.expected[*at] && !may_be(*at, **byte);
        if let Some((at, byte)) = actual.iter().enumerate().find(wrong) {
            let expected = self.expected[at];
            report.violated(
                Checker::Bytes,
                format!("{what}: byte {at} is {byte:#04x} where {expected:#04x} must be"),
            );
        }
    }
}

/// Bytes that a success promises.
pub(crate) fn exact(what: &str, actual: &[u8], expected: &[u8], report: &mut Report) {
    if let Some(at) = (0..expected.len()).find(|&at| actual[at] != expected[at]) {
        let (found, wanted) = (actual[at], expected[at]);
        report.violated(
            Checker::Bytes,
            format!("{what}: byte {at} of {} is {found:#04x} where {wanted:#04x} must be", expected.len()),
        );
    }
}

/// Bytes that a failure may have left.
pub(crate) fn mixture(what: &str, actual: &[u8], old: &[u8], new: &[u8], report: &mut Report) {
    if let Some(at) = (0..actual.len()).find(|&at| actual[at] != old[at] && actual[at] != new[at]) {
        let found = actual[at];
        report.violated(Checker::Bytes, format!("{what}: byte {at} is {found:#04x}, neither old nor new"));
    }
}
