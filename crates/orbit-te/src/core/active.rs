//! A transfer's part that a core has under way. Rule: it counts; what follows from the counts is the core's.

use crate::condition::PeerCondition;
use crate::ending::GivenUp;
use crate::error::TransferError;
use crate::receipt::Tally;
use crate::transfer::TransferState;
use orbit_te_transport::{LinkId, Op, Priority};
use std::sync::Arc;
use std::time::Instant;

/// A part under way.
pub(super) struct Active {
    pub(super) transfer: Arc<TransferState>,
    pub(super) part: usize,
    /// Requests handed to the transport, from the front.
    pub(super) submitted: usize,
    /// Requests that are over.
    pub(super) over: usize,
    pub(super) tally: Tally,
    pub(super) error: Option<TransferError>,
    pub(super) given_up: GivenUp,
    /// Whether its peer was asked for a sign, half-way to the deadline.
    pub(super) asked: bool,
    /// What the peer looked like at the deadline.
    pub(super) peer: Option<PeerCondition>,
}

impl Active {
    /// Of which nothing has begun.
    pub(super) fn new(transfer: Arc<TransferState>, part: usize) -> Active {
        Active {
            transfer,
            part,
            submitted: 0,
            over: 0,
            tally: Tally::default(),
            error: None,
            given_up: GivenUp::No,
            asked: false,
            peer: None,
        }
    }

    pub(super) fn ops(&self) -> &[Op] {
        &self.transfer.parts[self.part].ops
    }

    /// When it is looked at next if nothing happens before.
    /// A little past half-way, so that an answer to the question asked then counts as one of the second half.
    pub(super) fn next_look(&self) -> Instant {
        let deadline = self.transfer.deadline;
        if self.asked {
            deadline
        } else {
            deadline.checked_sub(self.transfer.after / 8 * 3).unwrap_or(deadline)
        }
    }

    /// The link of the first request that is not over.
    pub(super) fn awaited_link(&self) -> Option<LinkId> {
        let is_over = |op: &&Op| self.transfer.records.is_over(op.token.0 as usize);
        self.ops().iter().find(|op| !is_over(op)).map(|op| op.link)
    }

    pub(super) fn priority(&self) -> Priority {
        self.transfer.parts[self.part].priority()
    }
}
