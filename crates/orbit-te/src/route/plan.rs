//! The question that the planner is asked, what it is told of each route, and its answer. Rule: the answer has a reason for every
//! route that is not taken, and a demanded route is never swapped for another.

use super::id::{MAX_ROUTES, RouteId, RouteSet};
use super::rates::Rates;
use super::reason::Reason;
use orbit_te_memory::{KindSet, MemoryKind};
use orbit_te_transport::{Capabilities, OpKind, Priority};
use std::fmt;
use std::time::{Duration, Instant};

/// One op, as the planner sees it.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    /// Which way the bytes go.
    pub kind: OpKind,
    /// How many there are.
    pub bytes: u64,
    /// How many pieces they are in; zero and one both mean that they are contiguous.
    pub pieces: u32,
    /// Whether they are to be verified end to end.
    pub verify: bool,
    /// How urgent it is.
    pub priority: Priority,
    /// The memory at this side.
    pub local: MemoryKind,
    /// The memory at the peer.
    pub remote: MemoryKind,
    /// The route that the caller demands.
    pub demand: Option<RouteId>,
    /// The route that ops like this took last ([`super::Choices::last`]).
    pub incumbent: Option<RouteId>,
    /// How often it was tried before.
    pub attempt: u32,
    /// The routes that have failed for it.
    pub failed: RouteSet,
    /// The time.
    pub now: Instant,
}

/// What a route can do, as far as the planner looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Whether it reads.
    pub read: bool,
    /// Whether it writes.
    pub write: bool,
    /// The memory it reaches at this side.
    pub local: KindSet,
    /// The memory it reaches at the peer.
    pub remote: KindSet,
    /// The largest contiguous op. Larger ones are divided.
    pub max_op_bytes: u64,
    /// The most pieces of a list; zero if it takes none.
    pub max_pieces: u32,
    /// The most bytes of a list.
    pub max_list_bytes: u64,
    /// Whether it verifies bytes end to end.
    pub checksums: bool,
}

impl Caps {
    /// What a transport says of itself, and the memory that it reaches at the peer.
    pub fn of(transport: &Capabilities, remote: KindSet) -> Caps {
        Caps {
            read: transport.read,
            write: transport.write,
            local: transport.kinds,
            remote,
            max_op_bytes: transport.max_op_bytes,
            max_pieces: transport.max_pieces,
            max_list_bytes: transport.max_list_bytes,
            checksums: transport.checksums,
        }
    }
}

/// One route, as it is now for this peer and this segment.
#[derive(Debug, Clone, Copy)]
pub struct RouteState<'a> {
    /// Which.
    pub id: RouteId,
    /// Whether its link and this region can be used; otherwise why not.
    pub usable: Result<(), Reason>,
    /// What it can do.
    pub caps: Caps,
    /// What it was measured to need.
    pub rates: &'a Rates,
    /// Until when it rests ([`super::Health::resting_until`]).
    pub resting_until: Option<Instant>,
    /// Bytes under way on it that go before this op.
    pub load_bytes: u64,
}

/// Why the chosen route was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// It is expected to take the least time.
    Fastest,
    /// It is used already or preferred, and no other is faster by enough.
    Preferred,
    /// Nothing else can.
    OnlyOne,
    /// The caller demanded it.
    Demanded,
    /// A rule demands it, or leaves no other.
    Policy {
        /// The rule's number, from 1.
        rule: u16,
    },
    /// It is measured again by this op.
    Probe,
    /// Another has failed for this op.
    Retry,
    /// So much is under way on the usual one that this one is faster now.
    Spilled,
    /// It rests or has failed before, and nothing better is left.
    LastResort,
}

impl Why {
    /// Whether it says something of this op alone, and nothing of the next.
    pub fn is_passing(self) -> bool {
        matches!(self, Why::Demanded | Why::Probe | Why::Retry | Why::Spilled)
    }

    /// Its short name.
    pub fn name(self) -> &'static str {
        match self {
            Why::Fastest => "fastest",
            Why::Preferred => "preferred",
            Why::OnlyOne => "only-one",
            Why::Demanded => "demanded",
            Why::Policy { .. } => "policy",
            Why::Probe => "probe",
            Why::Retry => "retry",
            Why::Spilled => "spilled",
            Why::LastResort => "last-resort",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Policy { rule } => write!(f, "policy rule {rule}"),
            other => f.write_str(other.name()),
        }
    }
}

/// Routes with the reasons why they are not taken, in the order in which the planner was told of them.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Causes([Option<(RouteId, Reason)>; MAX_ROUTES]);

impl Causes {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (RouteId, Reason)> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Why this route is not taken; none if it is, or the planner was not told of it.
    pub fn of(&self, route: RouteId) -> Option<Reason> {
        self.iter().find(|(id, _)| *id == route).map(|(_, reason)| reason)
    }

    pub(super) fn set(&mut self, place: usize, route: RouteId, reason: Reason) {
        self.0[place] = Some((route, reason));
    }
}

impl fmt::Debug for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// As in `shm: its link is down; tcp: rule 2 of the policy does not have it`.
impl fmt::Display for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (route, reason)) in self.iter().enumerate() {
            write!(f, "{}{route}: {reason}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// No route can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The route that was demanded, by the caller or by a rule.
    pub demanded: Option<RouteId>,
    /// Why not, for each route.
    pub causes: Causes,
}

impl Refusal {
    /// The reason that counts: that of the demanded route, otherwise that of the last route the planner was told of, which is the one
    /// that goes everywhere.
    pub fn reason(&self) -> Reason {
        let wanted = self.demanded.and_then(|route| self.causes.of(route));
        wanted.or_else(|| self.causes.iter().last().map(|(_, reason)| reason)).unwrap_or(Reason::NotBuilt)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.demanded {
            Some(route) => write!(f, "route {route} is demanded and can't be taken: {}", self.reason()),
            None if self.causes.iter().next().is_none() => f.write_str("there are no routes"),
            None => write!(f, "no route can be taken: {}", self.causes),
        }
    }
}

impl std::error::Error for Refusal {}

/// What the planner says of one op.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// The route to take.
    pub route: Result<RouteId, Refusal>,
    /// What the op is expected to take, with what is under way before it; zero when it is refused.
    pub expected: Duration,
    /// Divide the op into parts of at most so many bytes; zero for whole.
    pub chunk_bytes: u64,
    /// Why this route; [`Why::OnlyOne`] when it is refused.
    pub why: Why,
    /// Why not, for each other route.
    pub others: Causes,
}
