//! What the application believes: its regions and what they hold, the slots into which they are divided, and the transfers under way.
//! Rule: two transfers never share a slot, so that what a success promises is one answer.

use crate::check::bytes::Shadow;
use orbit_te::{GrantId, Pending, Prepared, Region, Segment, Transfer};
use orbit_te_memory::Backing;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A part of a region that one op at a time may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    Free,
    Busy,
    /// Bytes may land there at any time, or be read from there: it is not used again.
    Lost,
}

/// A region of one life.
pub(crate) struct Memory {
    pub(crate) life: usize,
    pub(crate) handle: Region,
    /// Keeps it mapped until the run ends.
    pub(crate) _backing: Arc<Backing>,
    pub(crate) address: u64,
    pub(crate) slot_bytes: usize,
    pub(crate) slots: Vec<Slot>,
    pub(crate) shadow: Shadow,
    /// How often all that peers knew of it was made stale, for certain.
    pub(crate) epoch: u32,
    /// When all of it was last written anew.
    pub(crate) renewed_ns: u64,
    /// Its name and token, if it is exposed.
    pub(crate) exposed: Option<(String, String)>,
    pub(crate) retiring: bool,
    pub(crate) retired: bool,
    pub(crate) revoking: bool,
    /// How long the grants last that are given on it.
    pub(crate) lasts: Option<Duration>,
    /// When the grant of its token is over for certain.
    pub(crate) token_ends_ns: u64,
    /// Whether its process lives.
    pub(crate) alive: bool,
}

/// A segment that one life has opened.
pub(crate) struct Opened {
    pub(crate) number: usize,
    pub(crate) life: usize,
    pub(crate) segment: Segment,
    pub(crate) memory: usize,
    /// The memory's epoch when it was open: what it knows is of no later one.
    pub(crate) epoch: u32,
    /// By the token's grant, and not by one of its own.
    pub(crate) by_token: bool,
    /// When the token's grant is over; of no meaning for its own.
    pub(crate) token_ends_ns: u64,
    /// Its grant was revoked.
    pub(crate) revoked: bool,
}

/// Grants that are being revoked, all by which these openings of a memory can reach it.
pub(crate) struct Revoking {
    pub(crate) memory: usize,
    pub(crate) epoch: u32,
    pub(crate) grants: Vec<GrantId>,
    pub(crate) openings: Vec<usize>,
    pub(crate) of_token: bool,
}

/// A segment that is being opened.
pub(crate) struct Opening {
    pub(crate) life: usize,
    pub(crate) memory: usize,
    pub(crate) by_token: bool,
    pub(crate) token_ends_ns: u64,
    pub(crate) pending: Pending<Segment>,
}

/// Bytes of a memory in the order in which a request has them.
#[derive(Debug, Clone)]
pub(crate) struct Area {
    pub(crate) memory: usize,
    /// The slots in which they are.
    pub(crate) slots: Vec<usize>,
    /// Offset and length of each run.
    pub(crate) runs: Vec<(usize, usize)>,
}

impl Area {
    pub(crate) fn new(memory: usize, slot_bytes: usize, runs: Vec<(usize, usize)>) -> Area {
        let of = |(at, length): &(usize, usize)| at / slot_bytes..=(at + length - 1) / slot_bytes;
        let slots: BTreeSet<usize> = runs.iter().flat_map(of).collect();
        Area { memory, slots: slots.into_iter().collect(), runs }
    }

    pub(crate) fn length(&self) -> usize {
        self.runs.iter().map(|run| run.1).sum()
    }

    /// Each run with its part of these bytes.
    pub(crate) fn split<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = (usize, &'a [u8])> {
        let mut at = 0;
        self.runs.iter().map(move |&(offset, length)| {
            at += length;
            (offset, &bytes[at - length..at])
        })
    }
}

/// One request of a transfer, or one posting of a list.
pub(crate) struct Request {
    pub(crate) write: bool,
    pub(crate) local: Area,
    pub(crate) remote: Area,
    /// What a write brings, or a read must bring.
    pub(crate) data: Vec<u8>,
    /// What was there before.
    pub(crate) old: Vec<u8>,
    /// By which opening of the segment.
    pub(crate) opening: usize,
    /// The remote memory's epoch at submitting; none once its bytes there are nothing to it any more.
    pub(crate) epoch: Option<u32>,
    /// Whether its right was certainly over at submitting.
    pub(crate) stale: bool,
    /// Its records in the receipt.
    pub(crate) records: Range<usize>,
}

/// A list that one life has prepared.
pub(crate) struct Listed {
    pub(crate) life: usize,
    pub(crate) prepared: Prepared,
    pub(crate) write: bool,
    pub(crate) local: usize,
    pub(crate) remote: usize,
    pub(crate) opening: usize,
    /// Offsets in both memories and the length, as the model cuts the list.
    pub(crate) pieces: Vec<(usize, usize, usize)>,
}

/// A transfer under way.
pub(crate) struct Moving {
    pub(crate) number: u64,
    pub(crate) life: usize,
    /// None: the handle was dropped.
    pub(crate) transfer: Option<Transfer>,
    pub(crate) requests: Vec<Request>,
    pub(crate) deadline_ns: u64,
    /// Of its process, when it was submitted.
    pub(crate) stalled_ns: u64,
    pub(crate) note: Option<u64>,
    pub(crate) verified: bool,
}

/// A notification under way, alone.
pub(crate) struct Notifying {
    pub(crate) life: usize,
    pub(crate) number: u64,
    pub(crate) pending: Pending<()>,
}

/// Bytes that nobody else has.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
