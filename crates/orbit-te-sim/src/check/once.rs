//! Exactly once: each op that a transport accepted completes once, and a transfer's result never changes. Does not check that
//! completions come in time (`ends.rs`), nor ops of a process that crashed.

use super::{Checker, Report};
use orbit_te_transport::Op;
use std::collections::BTreeMap;

/// The ops that one transport holds, by token.
#[derive(Debug, Default)]
pub(crate) struct Live {
    ops: BTreeMap<u64, Op>,
}

impl Live {
    /// An op is given to the transport.
    pub(crate) fn accepted(&mut self, op: &Op, report: &mut Report) {
        if self.ops.insert(op.token.0, *op).is_some() {
            report.violated(Checker::ExactlyOnce, format!("token {:x} is in flight twice", op.token.0));
        }
    }

    /// The transport did not take it.
    pub(crate) fn returned(&mut self, op: &Op) {
        self.ops.remove(&op.token.0);
    }

    /// A completion came; the op, if it was in flight.
    pub(crate) fn completed(&mut self, token: u64, report: &mut Report) -> Option<Op> {
        let op = self.ops.remove(&token);
        if op.is_none() {
            report.violated(Checker::ExactlyOnce, format!("op {token:x} completed, and was not in flight"));
        }
        op
    }

    pub(crate) fn ops(&self) -> impl Iterator<Item = &Op> {
        self.ops.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }
}
