//! What the conductor and its workers say to each other, one JSON object a line, and the layout of a target's memory.
//! Rule: whatever two processes must agree on stands here.

use super::pattern::mix;
use super::tally::Tally;
use serde::{Deserialize, Serialize};

/// The part of a target's memory that it fills and peers read.
pub(super) const READ_BYTES: u64 = 4 << 20;
/// What one write covers at the most.
pub(super) const SLOT_BYTES: u64 = 128 << 10;
/// The answer of a target to one write: exposure, number of the write, verdict, check.
pub(super) const VERDICT_BYTES: u64 = 32;
/// Drivers, at the most.
pub(super) const DRIVERS: u64 = 4;
/// A driver that starts again gets other slots: bytes that its last life has sent may still land.
const LIVES: u64 = 8;
/// Threads of a driver.
pub(super) const HANDS: u64 = 3;
/// Slots of one hand at one target. One that may still be written is not used again.
pub(super) const SLOTS: u64 = 3;
const ALL_SLOTS: u64 = DRIVERS * LIVES * HANDS * SLOTS;
/// A target's memory: what is read, what is written, and the verdicts.
pub(super) const TARGET_BYTES: u64 = READ_BYTES + ALL_SLOTS * (SLOT_BYTES + VERDICT_BYTES);

/// A hand's slot, from its driver, the driver's life, its own number and the slot's.
pub(super) fn slot(driver: u64, life: u64, hand: u64, slot: u64) -> u64 {
    ((driver * LIVES + life % LIVES) * HANDS + hand) * SLOTS + slot
}

/// Where a slot begins.
pub(super) fn slot_at(slot: u64) -> u64 {
    READ_BYTES + slot * SLOT_BYTES
}

/// Where the verdict on a slot stands.
pub(super) fn verdict_at(slot: u64) -> u64 {
    READ_BYTES + ALL_SLOTS * SLOT_BYTES + slot * VERDICT_BYTES
}

/// What a target found in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) exposure: u64,
    pub(super) number: u64,
    /// Where the first wrong byte is, from the slot's begin.
    pub(super) wrong: Option<u64>,
}

impl Verdict {
    pub(super) fn encode(&self) -> [u8; VERDICT_BYTES as usize] {
        let wrong = self.wrong.map_or(0, |at| at + 1);
        let words = [self.exposure, self.number, wrong, mix(self.exposure ^ mix(self.number ^ mix(wrong)))];
        let mut bytes = [0; VERDICT_BYTES as usize];
        for (part, word) in bytes.chunks_exact_mut(8).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// None for bytes that are no verdict, or half of an old and half of a new one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Verdict> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(8 * at..8 * at + 8)?.try_into().ok()?));
        let wrong = word(2)?;
        let verdict = Verdict { exposure: word(0)?, number: word(1)?, wrong: wrong.checked_sub(1) };
        (bytes == verdict.encode()).then_some(verdict)
    }
}

/// What a driver tells a target after a write, or alone.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) driver: u64,
    pub(super) life: u64,
    pub(super) hand: u64,
    pub(super) exposure: u64,
    /// Counts the notes of one hand.
    pub(super) number: u64,
    /// The last note whose delivery was acknowledged by this target in this exposure; zero: none.
    pub(super) acknowledged: u64,
    /// The write to look at: slot, seed and length.
    pub(super) write: Option<(u64, u64, u64)>,
}

/// Memory that a target offers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) target: usize,
    /// New whenever what was known of the memory is stale.
    pub(super) exposure: u64,
    /// Of the bytes that are to be read.
    pub(super) seed: u64,
    pub(super) token: String,
    /// The same by `HOST:PORT/NAME`.
    pub(super) address: String,
}

/// From the conductor to a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(super) enum Order {
    /// To a driver: what a target offers now.
    Peer(Offer),
    /// To a target: retire the memory, change what is in it, and offer it again.
    Recycle,
    /// To a target: make what peers know stale.
    Revoke,
    /// To a driver: begin.
    Work,
    /// To a driver: reach every target, now that nothing is broken.
    Recover,
    /// End all work and give the memory back.
    Drain,
    /// To a namespace's holder: this address for the inner end of its link.
    Wire { address: String },
    /// Shut the engine down and end.
    Quit,
}

/// From a worker to the conductor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(super) enum Report {
    /// It has started, and has done nothing yet.
    Ready,
    /// A target's memory as it is offered from now on.
    Offer(Offer),
    /// All that this life has counted so far.
    Tally(Tally),
    /// All targets were reached again, or those that were not and why.
    Recovered { unreached: Vec<String> },
    /// All work has ended; what is left that should not be.
    Drained { leases: u64, backings: u64, tally: Tally },
}
