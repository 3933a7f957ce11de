//! A link to a peer: its lanes, the ops that wait for one, and the fences it awaits. Rule: pure bookkeeping; sockets are in
//! `lane.rs`.

use crate::address::TcpAddress;
use crate::config::TcpConfig;
use crate::ops::OpSlot;
use orbit_te_transport::{LinkId, LinkLanes, PriorityQueue, TransportError};
use orbit_te_wire::PeerId;
use std::time::{Duration, Instant};

/// A lane's place in the transport's table.
pub(crate) type LaneSlot = usize;

/// One of a link's lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// To be made at this time.
    Down { retry_at: Instant },
    /// Being made.
    Opening { lane: LaneSlot },
    /// Ready for frames.
    Up { lane: LaneSlot },
}

/// Ops whose bytes may still be under way on a lane that broke.
#[derive(Debug)]
pub(crate) struct FenceWait {
    /// The broken lane's number.
    pub(crate) number: u32,
    /// The ops that wait for it.
    pub(crate) ops: Vec<OpSlot>,
    /// When to give up.
    pub(crate) by: Instant,
    /// Whether the question is with a lane now.
    pub(crate) asked: bool,
}

/// Since when attempts to make a lane have met silence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silence {
    pub(crate) since: Instant,
    /// Whether the peer's host takes connections, so that it is the process that is silent.
    pub(crate) connects: bool,
}

/// A link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) peer: PeerId,
    pub(crate) address: TcpAddress,
    pub(crate) places: Vec<Place>,
    /// Ops with bytes that no lane has yet.
    pub(crate) queue: PriorityQueue<OpSlot>,
    pub(crate) fences: Vec<FenceWait>,
    /// Since when there has been no lane; none while there is one.
    pub(crate) down_since: Option<Instant>,
    /// Whether an attempt to make a lane has failed since there was one.
    pub(crate) failed: bool,
    /// What attempts to make a lane have met since one came up, if that is silence.
    pub(crate) silence: Option<Silence>,
    /// For each place, the pause before its lane is made again.
    pauses: Vec<Duration>,
    /// Which address is tried next.
    turn: usize,
}

impl Link {
    pub(crate) fn new(
        id: LinkId,
        peer: PeerId,
        address: TcpAddress,
        config: &TcpConfig,
        now: Instant,
    ) -> Link {
        let lanes = config.lanes.max(1) as usize;
        Link {
            id,
            peer,
            address,
            places: vec![Place::Down { retry_at: now }; lanes],
            queue: PriorityQueue::with_capacity(config.max_ops as usize),
            fences: Vec::new(),
            down_since: Some(now),
            failed: false,
            silence: None,
            pauses: vec![config.reconnect_pause.0; lanes],
            turn: 0,
        }
    }

    /// The lanes that are up, in order.
    pub(crate) fn up(&self) -> impl Iterator<Item = LaneSlot> + '_ {
        self.places.iter().filter_map(|p| if let Place::Up { lane } = p { Some(*lane) } else { None })
    }

    /// The lanes that are up or being made.
    pub(crate) fn open(&self) -> impl Iterator<Item = LaneSlot> + '_ {
        self.places.iter().filter_map(|p| match p {
            Place::Up { lane } | Place::Opening { lane } => Some(*lane),
            Place::Down { .. } => None,
        })
    }

    /// How many of its lanes there are.
    pub(crate) fn lanes(&self, now: Instant, unreachable_after: Duration) -> LinkLanes {
        let late = self.down_since.is_some_and(|down| down + unreachable_after <= now);
        LinkLanes {
            up: self.up().count() as u32,
            wanted: self.places.len() as u32,
            // A first attempt that is slow is not yet a failure: it has its own time limit.
            unreachable: late && self.failed,
        }
    }

    /// The address to try, a different one each time.
    pub(crate) fn next_address(&mut self) -> std::net::SocketAddr {
        let address = self.address.addresses[self.turn % self.address.addresses.len()];
        self.turn = self.turn.wrapping_add(1);
        address
    }

    /// A lane stands: whether it is the first.
    pub(crate) fn lane_up(&mut self, place: usize, lane: LaneSlot, config: &TcpConfig) -> bool {
        self.places[place] = Place::Up { lane };
        self.pauses[place] = config.reconnect_pause.0;
        self.failed = false;
        self.silence = None;
        // The address that worked is the one for the next lane.
        self.turn = self.turn.wrapping_sub(1);
        self.down_since.take().is_some()
    }

    /// An attempt that began then has failed before its hello was answered.
    pub(crate) fn attempt_failed(&mut self, began: Instant, connects: bool, error: &TransportError) {
        use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        if self.down_since.is_none() {
            // A lane that is made beside others says nothing of what these meet later.
            return;
        }
        let kind = if let TransportError::Io { source, .. } = error { Some(source.kind()) } else { None };
        self.silence = match (kind, self.silence) {
            (Some(TimedOut | HostUnreachable | NetworkUnreachable), earlier) => {
                let same = earlier.filter(|silence| silence.connects == connects);
                Some(same.unwrap_or(Silence { since: began, connects }))
            }
            // Who refuses is there.
            _ => None,
        };
    }

    /// A lane is gone: whether it was the last that was up.
    pub(crate) fn lane_down(&mut self, place: usize, now: Instant, config: &TcpConfig) -> bool {
        let was_up = matches!(self.places[place], Place::Up { .. });
        // Each place has its own pause: the peer may permit some lanes and refuse others, for ever.
        let pause = self.pauses[place];
        self.places[place] = Place::Down { retry_at: now + pause };
        self.pauses[place] = (pause * 2).min(config.reconnect_pause.1);
        self.failed = true;
        if self.up().next().is_some() {
            return false;
        }
        if self.down_since.is_none() {
            self.down_since = Some(now);
        }
        was_up
    }
}
