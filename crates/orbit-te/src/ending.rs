//! How what a worker has under way ends: why it was given up, and what its transfer is then told. Rule: telling may run an owner's
//! code, so it is done with the core free for others.

use crate::condition::PeerCondition;
use crate::error::TransferError;
use crate::receipt::{Landed, Tally};
use crate::transfer::TransferState;
use std::sync::Arc;

/// Why something is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GivenUp {
    No,
    Cancelled,
    Deadline,
    Closed,
}

impl GivenUp {
    /// How a transfer ends by it; none where it was not given up.
    pub(crate) fn error(
        self,
        transfer: &TransferState,
        (landed, fenced): (Landed, bool),
        peer: Option<PeerCondition>,
        cause: Option<Arc<str>>,
    ) -> Option<TransferError> {
        match self {
            GivenUp::No => None,
            GivenUp::Cancelled => Some(TransferError::Cancelled { landed, fenced }),
            GivenUp::Deadline => {
                Some(TransferError::Deadline { after: transfer.after, landed, fenced, peer, cause })
            }
            GivenUp::Closed => Some(TransferError::Closed { landed, fenced }),
        }
    }
}

/// Something that is over.
pub(crate) enum Ended {
    /// A part of a transfer.
    Part { transfer: Arc<TransferState>, part: usize, tally: Tally, error: Option<TransferError> },
    /// A transfer's notification.
    Announcement { transfer: Arc<TransferState>, error: Option<TransferError> },
}

impl Ended {
    /// Tells the transfer. Drops leases, and with them perhaps memory and its owner; wakes whoever waits.
    pub(crate) fn tell(self) {
        match self {
            Ended::Part { transfer, part, tally, error } => transfer.part_done(part, &tally, error),
            Ended::Announcement { transfer, error } => transfer.announced(error),
        }
    }
}
