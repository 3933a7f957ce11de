//! Every op that a row made, and where it stands. Rule: an op that was accepted completes once; one that was not, never.
//!
//! It knows tokens only: whether the bytes are right is not its business.

use crate::op::{Op, Pieces, Token};
use crate::progress::Completion;
use crate::testing::harness::Spot;
use orbit_te_memory::Lease;
use orbit_te_wire::Piece;
use std::collections::HashMap;

/// Where an op stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Not submitted.
    Made,
    /// Submitted by the row, and not accepted yet.
    Waiting,
    /// Accepted, and not completed yet.
    Accepted,
    /// Completed.
    Done(Completion),
}

/// A contiguous run of an op's bytes, at both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its local side.
    pub local: Spot,
    /// Its remote side.
    pub remote: Spot,
    /// In bytes.
    pub length: u64,
}

/// The two slices behind an op's [`Pieces`]. They stay where they are while the ledger grows.
#[derive(Debug, Default)]
pub struct Slices {
    /// The addresses at this side.
    pub addresses: Vec<u64>,
    /// The places at the peer, with the lengths.
    pub table: Vec<Piece>,
}

impl Slices {
    /// The view of them that an op carries; none where there are none.
    pub fn view(&self) -> Option<Pieces> {
        Pieces::new(&self.addresses, &self.table)
    }
}

/// One op.
pub struct Entry {
    /// The op.
    pub op: Op,
    /// Its bytes, run by run: one for a contiguous op, and each piece of a list.
    pub parts: Vec<Part>,
    /// What its list is made of; empty for a contiguous op. Kept unchanged until the completion.
    pub slices: Slices,
    /// Where it stands.
    pub stage: Stage,
    /// Keeps the local region until the completion.
    lease: Option<Lease>,
}

/// All ops of a row.
#[derive(Default)]
pub struct Ledger {
    entries: HashMap<Token, Entry>,
    accepted: usize,
}

impl Ledger {
    /// A new op, with its parts, its list, and the lease under which its spans were made. Its token is not in flight.
    pub fn add(&mut self, op: Op, parts: Vec<Part>, slices: Slices, lease: Lease) {
        let entry = Entry { op, parts, slices, stage: Stage::Made, lease: Some(lease) };
        if let Some(before) = self.entries.insert(op.token, entry) {
            let free = !matches!(before.stage, Stage::Waiting | Stage::Accepted);
            assert!(free, "a row used a token that is in flight");
        }
    }

    /// The op of this token.
    pub fn get(&self, token: Token) -> &Entry {
        match self.entries.get(&token) {
            Some(entry) => entry,
            None => panic!("a row asks about {token:?}, which it never made"),
        }
    }

    /// The list of an op that is not in flight, whose owner may do with it as he likes.
    pub fn slices(&mut self, token: Token) -> &mut Slices {
        match self.entries.get_mut(&token) {
            Some(entry) => {
                let free = !matches!(entry.stage, Stage::Waiting | Stage::Accepted);
                assert!(free, "a row changes the list of an op in flight");
                &mut entry.slices
            }
            None => panic!("a row asks about {token:?}, which it never made"),
        }
    }

    /// The op is submitted, for the first time.
    pub fn queue(&mut self, token: Token) {
        if let Some(entry) = self.entries.get_mut(&token) {
            assert!(entry.stage == Stage::Made && entry.lease.is_some(), "a row submits an op twice");
            entry.stage = Stage::Waiting;
        }
    }

    /// The op was accepted.
    pub fn accept(&mut self, token: Token) {
        if let Some(entry) = self.entries.get_mut(&token) {
            entry.stage = Stage::Accepted;
            self.accepted += 1;
        }
    }

    /// The op was offered and not accepted; it may be again.
    pub fn take_back(&mut self, token: Token) {
        if let Some(entry) = self.entries.get_mut(&token) {
            entry.stage = Stage::Made;
        }
    }

    /// The op will never be submitted.
    pub fn withdraw(&mut self, token: Token) {
        if let Some(entry) = self.entries.get_mut(&token) {
            (entry.stage, entry.lease) = (Stage::Made, None);
        }
    }

    /// The op completed.
    ///
    /// # Errors
    /// Why it may not have.
    pub fn complete(&mut self, completion: Completion) -> Result<(), String> {
        let token = completion.token;
        let Some(entry) = self.entries.get_mut(&token) else {
            return Err(format!("a completion for {token:?}, which was never submitted: {completion:?}"));
        };
        match entry.stage {
            Stage::Accepted => {
                entry.stage = Stage::Done(completion);
                entry.lease = None;
                self.accepted -= 1;
                Ok(())
            }
            Stage::Made | Stage::Waiting => {
                Err(format!("{:?} completed and was not accepted: {completion:?}", entry.op))
            }
            Stage::Done(before) => {
                Err(format!("{:?} completed twice: first {before:?}, then {completion:?}", entry.op))
            }
        }
    }

    /// How many ops are accepted and not completed.
    pub fn in_flight(&self) -> usize {
        self.accepted
    }

    /// A few lines about what is still open.
    pub fn report(&self) -> String {
        let done = self.entries.values().filter(|e| matches!(e.stage, Stage::Done(_))).count();
        let mut text = format!(
            "{} ops: {done} completed, {} in flight, {} not accepted",
            self.entries.len(),
            self.accepted,
            self.entries.len() - done - self.accepted
        );
        for entry in self.entries.values().filter(|e| !matches!(e.stage, Stage::Done(_))).take(5) {
            let Op { kind, link, local, remote, token, .. } = entry.op;
            text += &format!(
                "\n  open: {kind:?} of {} bytes in {} parts at {} on link {}.{}, {:?}, {token:?}",
                local.length,
                entry.parts.len(),
                remote.offset,
                link.slot,
                link.generation,
                entry.stage
            );
        }
        text
    }
}
