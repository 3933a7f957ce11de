//! A worker's transports as one: which of them an op takes, and what happens when that fails. Rule: an op is with one transport at a time;
//! it is tried again only when the transport that had it has said that neither side touches memory for it any more.
//!
//! The first transport reaches every peer, carries notifications, and tells of lanes and signs of life. The others are joined to a peer's
//! link when the peer has said where they meet. All of them know a peer's region by the same key ([`RemoteKey::of_host`]).

#![allow(unsafe_code)]

mod flight;
mod leg;

use crate::dead::DeadTransport;
use crate::route::{
    Caps, Causes, Change, Choices, MAX_ROUTES, Plan, Policy, Question, Reason, ReasonCounts, Refusal, RouteId,
    RouteSet, RouteState, Ruleset, plan,
};
use flight::{Flight, Flights};
use leg::{Leg, Legs, reason};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use orbit_te_memory::{MemoryKind, RemoteKey};
use orbit_te_transport::{
    Arm, Capabilities, Completion, ErrorClass, Event, LinkId, LinkLanes, Notice, Op, OpError, OpErrorCode, Progress,
    Signs, Token, Transport, TransportError,
};
use orbit_te_wire::PeerId;
use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use flight::Attempt;
pub(crate) use leg::Reach;

/// A transport that has nothing under way is looked at so often while another keeps the worker awake.
const LOOK: Duration = Duration::from_micros(200);
/// Completions taken from one transport at a time.
const BUDGET: usize = 256;

/// The end of one op.
#[derive(Debug)]
pub(crate) struct Done {
    /// Under the token by which the op was given; a notification's under its own.
    pub(crate) completion: Completion,
    /// The route that carried it, or would have; none for notifications.
    pub(crate) route: Option<RouteId>,
    /// Why no route carried it.
    pub(crate) refusal: Option<Box<Refusal>>,
    /// The tries that failed before.
    pub(crate) attempts: Vec<Attempt>,
}

/// What a poll found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) done: Vec<Done>,
    /// Of the first transport.
    pub(crate) events: Vec<Event>,
}

struct Route {
    id: RouteId,
    caps: Caps,
    transport: Box<dyn Transport>,
    under_way: usize,
    looked: Instant,
}

/// The transports of one worker.
pub(crate) struct Router {
    routes: Vec<Route>,
    /// By the slot of the first transport's link.
    peers: Vec<Option<Legs>>,
    flights: Flights,
    /// What waits to be tried again.
    again: VecDeque<Token>,
    done: VecDeque<Done>,
    /// None where one transport is alone, whose own descriptor serves.
    epoll: Option<Epoll>,
    policy: Arc<Policy>,
    counts: Arc<ReasonCounts>,
    choices: Choices,
    /// Kept for their memory.
    ops: Vec<Op>,
    progress: Progress,
}
