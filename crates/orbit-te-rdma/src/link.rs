//! A link: the way to one peer, from the first offer to the last close. Rule: how it comes up is the handshake's business, and its steps are
//! [`crate::connecting`]'s; here is what is known of it.

use crate::adapter::Used;
use crate::cut::CutLimits;
use crate::entry::Entries;
use crate::handshake::{Machine, Timed};
use crate::ops::OpSlot;
use orbit_te_transport::PriorityQueue;
use orbit_te_wire::Incarnation;
use orbit_te_wire::rdma::{Answer, Queue, QueueArray, Side};
use std::time::Instant;

/// How often a message of the handshake is sent before the attempt is given up.
pub(crate) const MOST_SENDS: u8 = 4;

/// A peer, and how far the way to it is.
pub(crate) struct Link {
    pub(crate) peer: Incarnation,
    pub(crate) machine: Timed,
    /// Our QPs of the attempt that is being made or stands.
    pub(crate) attempt: Option<Attempt>,
    pub(crate) up: bool,
    /// The answer that is being taken.
    pub(crate) answer: Option<Answer>,
    pub(crate) entries: Entries,
    /// Keys that end, with the number of the notice: its owner waits until no WR names them.
    pub(crate) ending: Vec<(u32, Ending)>,
    /// Ops that wait until it is up.
    pub(crate) waiting: Vec<OpSlot>,
    /// Ops that can be posted.
    pub(crate) ready: PriorityQueue<OpSlot>,
    /// Whether it stands in the list of those that have something to post.
    pub(crate) active: bool,
    /// Writes that are over here and may still land there.
    pub(crate) unfenced: Vec<OpSlot>,
    pub(crate) fence_due: Option<Instant>,
    /// The number of the last question about that, and up to which attempt it asks.
    pub(crate) fence_asked: Option<(u32, u64)>,
    /// What is of attempts before this one can't land any more: the peer has said so.
    pub(crate) fenced_before: u64,
    /// What was found at this side when the attempt of now failed.
    pub(crate) why: Option<String>,
    /// Since when it has been down.
    pub(crate) down_since: Instant,
    pub(crate) last_request: u32,
    /// Which rail the next attempt begins with.
    pub(crate) next_rail: u8,
    /// Which lane has the next turn.
    pub(crate) next_lane: usize,
}

/// QPs of one attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) number: u64,
    /// The number of our rail, and of the peer's once it is known.
    pub(crate) rail: u8,
    pub(crate) remote_rail: u8,
    /// What this side had when it was begun, as the peer is told.
    pub(crate) side: Side,
    pub(crate) used: Used,
    pub(crate) lanes: Vec<u16>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) limits: CutLimits,
}

impl Attempt {
    /// The lane that has the next turn after that of `last`, which becomes it; none when there is none.
    pub(crate) fn next_lane(&self, last: &mut usize) -> Option<u16> {
        *last = if *last + 1 < self.lanes.len() { *last + 1 } else { 0 };
        self.lanes.get(*last).copied()
    }

    /// Its QPs, as the peer is told.
    pub(crate) fn array(&self) -> QueueArray {
        QueueArray { rail: self.rail, queues: self.queues.clone() }
    }
}

/// Which keys end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) region: u64,
    pub(crate) generation: u64,
    /// None: all of them.
    pub(crate) key: Option<u64>,
}

impl Ending {
    pub(crate) fn ends(&self, shown: &[u64; 3]) -> bool {
        shown[0] == self.region && shown[1] == self.generation && self.key.is_none_or(|key| shown[2] == key)
    }
}

impl Link {
    pub(crate) fn new(
        life: Incarnation,
        peer: Incarnation,
        pace: crate::handshake::Pace,
        now: Instant,
    ) -> Link {
        Link {
            peer,
            // Whoever connects goes first; the other side only answers.
            machine: Timed::new(Machine::new(life, true, MOST_SENDS), pace),
            attempt: None,
            up: false,
            answer: None,
            entries: Entries::default(),
            ending: Vec::new(),
            waiting: Vec::new(),
            ready: PriorityQueue::default(),
            active: false,
            unfenced: Vec::new(),
            fence_due: None,
            fence_asked: None,
            fenced_before: 0,
            why: None,
            down_since: now,
            last_request: 0,
            next_rail: 0,
            next_lane: 0,
        }
    }
}
