//! Exactly once: each op that a transport accepted completes once, and a transfer's result never changes. Does not check that
//! completions come in time (`ends.rs`), nor ops of a process that crashed.

use super::{Checker, Report};
use orbit_te_transport::Op;
use std::collections::BTreeMap;

/// An op in flight.
#[derive(Debug)]
pub(crate) struct LiveOp {
    pub(crate) op: Op,
    /// Address and length of each piece of a list at this side; empty for a contiguous op.
    pub(crate) pieces: Vec<(u64, u64)>,
}

impl LiveOp {
    /// Which byte of the op is at this address, if all of the range is one run of it.
    pub(crate) fn place(&self, address: u64, length: u64) -> Option<u64> {
        let whole = [(self.op.local.address, self.op.local.length)];
        let runs = if self.pieces.is_empty() { &whole[..] } else { &self.pieces };
        let mut before = 0;
        for (at, bytes) in runs {
            if *at <= address && address + length <= at + bytes {
                return Some(before + address - at);
            }
            before += bytes;
        }
        None
    }
}

/// The ops that one transport holds, by token.
#[derive(Debug, Default)]
pub(crate) struct Live {
    ops: BTreeMap<u64, LiveOp>,
}

impl Live {
    /// An op is given to the transport.
    pub(crate) fn accepted(&mut self, op: &Op, pieces: Vec<(u64, u64)>, report: &mut Report) {
        if self.ops.insert(op.token.0, LiveOp { op: *op, pieces }).is_some() {
            report.violated(Checker::ExactlyOnce, format!("token {:x} is in flight twice", op.token.0));
        }
    }

    /// The transport did not take it.
    pub(crate) fn returned(&mut self, op: &Op) {
        self.ops.remove(&op.token.0);
    }

    /// A completion came; the op, if it was in flight.
    pub(crate) fn completed(&mut self, token: u64, report: &mut Report) -> Option<LiveOp> {
        let op = self.ops.remove(&token);
        if op.is_none() {
            report.violated(Checker::ExactlyOnce, format!("op {token:x} completed, and was not in flight"));
        }
        op
    }

    pub(crate) fn ops(&self) -> impl Iterator<Item = &LiveOp> {
        self.ops.values()
    }

    /// The bytes of an op in flight.
    pub(crate) fn length(&self, token: u64) -> Option<u64> {
        self.ops.get(&token).map(|live| live.op.local.length)
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }
}
