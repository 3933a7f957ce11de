//! What a completion says about memory. Rule: it is checked at the moment the completion is given out, not later.
//!
//! - Success: every byte is there now.
//! - Refused, or said not to have touched anything: nothing changed, which the next [`Harness::verify`] finds out. Only a region that is withdrawn under an op may
//!   refuse the rest of it; the completion then counts the bytes that are in place.
//! - Failed half-way: each byte is old or new. Where the op is known to have ended at that side, it stays as it is now;
//!   otherwise (a write that could not be fenced) it may still turn from old to new.
//! - Damaged: the bytes of its ranges are whatever came, and stay as they are now.
//!
//! It does not check which codes fit which fault; rows do.

use crate::error::{ErrorClass, OpErrorCode};
use crate::op::{Op, OpKind};
use crate::progress::Completion;
use crate::testing::harness::Harness;
use crate::testing::ledger::{Part, Stage};
use crate::testing::memory::strangers;
use orbit_te_memory::Access;

/// Whether an op that ends like this touched nothing at all.
fn is_refusal(code: OpErrorCode) -> bool {
    matches!(
        code,
        OpErrorCode::UnknownRegion
            | OpErrorCode::StaleGeneration
            | OpErrorCode::OutOfRange
            | OpErrorCode::AccessDenied
            | OpErrorCode::BadKey
            | OpErrorCode::BadLength
            | OpErrorCode::Overlap
            | OpErrorCode::NoLink
            | OpErrorCode::Unsupported
    )
}

/// Whether a region was withdrawn under the op: one of several parts is then refused for the parts that come later.
fn is_withdrawn(code: OpErrorCode) -> bool {
    matches!(code, OpErrorCode::UnknownRegion | OpErrorCode::StaleGeneration)
}

impl Harness<'_> {
    /// Compares memory with what a completion promises, and brings the model up to date.
    pub(crate) fn settle(&mut self, completion: &Completion) {
        let entry = self.ledger.get(completion.token);
        let (op, parts) = (entry.op, entry.parts.clone());
        let length = op.local.length;
        let theirs = &self.memories[parts[0].remote.mem.0];
        let inside = parts.iter().all(|p| theirs.holds(p.remote.offset, p.length) && p.length > 0);
        if completion.result.is_ok() {
            let right = if op.kind == OpKind::Read { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
            if !inside {
                self.fail(&format!("an op outside of the region's bytes succeeded: {op:?}"));
            }
            if !theirs.region.access().contains(right) {
                self.fail(&format!("an op that the region does not permit succeeded: {op:?}"));
            }
            if completion.bytes != length || !completion.touched {
                let (bytes, touched) = (completion.bytes, completion.touched);
                self.fail(&format!("success with {bytes} of {length} bytes, touched: {touched}: {op:?}"));
            }
        }
        let modelled = theirs.has_model() && self.memories[parts[0].local.mem.0].has_model();
        if !inside || !modelled {
            return;
        }
        let code = completion.result.err().map(|error| error.code);
        if code.is_some() && !completion.touched {
            if completion.bytes > 0 {
                self.fail(&format!("nothing was touched, and {} bytes have moved: {op:?}", completion.bytes));
            }
            // As a refusal: what has changed all the same is found by the next look at the memory.
            return;
        }
        if code.is_some_and(|code| self.moved_nothing(&op, code, completion.bytes)) {
            return;
        }
        for part in &parts {
            self.settle_part(&op, part, code);
        }
    }

    /// Whether an op that failed so is known to have moved nothing, which the next look at memory finds out.
    fn moved_nothing(&self, op: &Op, code: OpErrorCode, bytes: u64) -> bool {
        if !is_refusal(code) || matches!(code, OpErrorCode::NoLink) {
            return false;
        }
        if bytes > 0 && !is_withdrawn(code) {
            self.fail(&format!("refused as {code}, and {bytes} bytes have moved: {op:?}"));
        }
        bytes == 0
    }

    /// Compares one part of an op that ended so with what that promises.
    fn settle_part(&mut self, op: &Op, part: &Part, code: Option<OpErrorCode>) {
        let (from, to) =
            if op.kind == OpKind::Read { (part.remote, part.local) } else { (part.local, part.remote) };
        let new = self.memories[from.mem.0].expected(from.offset, part.length).to_vec();
        let destination = &self.memories[to.mem.0];
        let found = destination.found(to.offset, part.length);
        let Some(code) = code else {
            if let Some((at, count)) = strangers(&found, &new, &[]) {
                self.fail(&format!(
                    "success, and {count} bytes from {at} on are not in place: {op:?}, {part:?}"
                ));
            }
            self.memories[to.mem.0].expect(to.offset, &new);
            return;
        };
        if code == OpErrorCode::Checksum {
            return self.memories[to.mem.0].expect(to.offset, &found);
        }
        let fenced = is_withdrawn(code) || matches!(code, OpErrorCode::Cancelled | OpErrorCode::LinkBroken);
        if op.kind == OpKind::Write && !fenced {
            self.memories[to.mem.0].allow(to.offset, new);
            return;
        }
        let old = destination.expected(to.offset, part.length);
        if let Some((at, _)) = strangers(&found, old, &[(0, &new)]) {
            self.fail(&format!("failed, and byte {at} is neither old nor new: {op:?}, {part:?}, {code}"));
        }
        self.memories[to.mem.0].expect(to.offset, &found);
    }

    /// Compares all memory with the model.
    #[track_caller]
    pub fn verify(&self) {
        for memory in &self.memories {
            if let Some(difference) = memory.difference() {
                self.fail(&difference);
            }
        }
    }

    /// Takes what failed ops left open as it is now; from here on it may not change.
    pub fn close_loose(&mut self) {
        self.verify();
        self.memories.iter_mut().for_each(|memory| memory.close_loose());
    }

    /// How an op ended; fails when it has not.
    #[track_caller]
    pub fn completion(&self, op: &Op) -> Completion {
        match self.ledger.get(op.token).stage {
            Stage::Done(completion) => completion,
            stage => self.fail(&format!("{op:?} has not completed, it is {stage:?}")),
        }
    }

    /// How an op failed, or none.
    #[track_caller]
    pub fn code(&self, op: &Op) -> Option<OpErrorCode> {
        self.completion(op).result.err().map(|error| error.code)
    }

    /// The op succeeded.
    #[track_caller]
    pub fn expect_success(&self, ops: &[Op]) {
        for op in ops {
            if let Some(code) = self.code(op) {
                self.fail(&format!("should have succeeded, and failed with {code:?}: {op:?}"));
            }
        }
    }

    /// The op failed with one of these.
    #[track_caller]
    pub fn expect_code(&self, op: &Op, codes: &[OpErrorCode]) {
        match self.code(op) {
            Some(code) if codes.contains(&code) => {}
            Some(code) => self.fail(&format!("failed with {code:?} instead of {codes:?}: {op:?}")),
            None => self.fail(&format!("succeeded instead of failing with {codes:?}: {op:?}")),
        }
    }

    /// The op's error names this piece, or none.
    #[track_caller]
    pub fn expect_piece(&self, op: &Op, piece: Option<u32>) {
        let found = self.completion(op).result.err().and_then(|error| error.piece);
        if found != piece {
            self.fail(&format!("the error names piece {found:?} and not {piece:?}: {op:?}"));
        }
    }

    /// The op succeeded, or failed because of its link.
    #[track_caller]
    pub fn expect_success_or_link(&self, op: &Op) {
        if let Some(code) = self.code(op) {
            if code.class() == ErrorClass::Op {
                self.fail(&format!("a broken link gives link errors, not {code:?}: {op:?}"));
            }
        }
    }

    /// The op was cancelled, or had succeeded already. Says whether the peer's memory is known to be left alone.
    #[track_caller]
    pub fn expect_success_or_cancelled(&self, op: &Op) -> bool {
        match self.code(op) {
            None | Some(OpErrorCode::Cancelled) => true,
            Some(OpErrorCode::CancelledUnfenced) => op.kind == OpKind::Read,
            Some(code) => self.fail(&format!("cancelled, and failed with {code:?}: {op:?}")),
        }
    }
}
