//! The ops under way, on whatever route. Rule: an op keeps its place while it is tried again; it leaves it once.

use crate::route::{Reason, RouteId, RouteSet};
use orbit_te_transport::{Op, OpError, Token};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

/// One try of a request over one route, which failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// The request's number in its batch.
    pub request: usize,
    /// The route.
    pub route: RouteId,
    /// Why it failed, as far as that bears on the choice of a route.
    pub reason: Reason,
    /// The op's own error.
    pub error: OpError,
    /// Bytes that were known to be in place by then; they are moved again.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
}

/// An op under way.
#[derive(Debug)]
pub(crate) struct Flight {
    /// As it was given: with the base's link.
    pub(crate) op: Op,
    /// The place of the route that has it.
    pub(crate) route: usize,
    pub(crate) demand: Option<RouteId>,
    /// Routes that have failed for it.
    pub(crate) failed: RouteSet,
    pub(crate) began: Instant,
    /// Whether a byte at the receiving side may have changed by a try that failed.
    pub(crate) touched: bool,
    pub(crate) given_up: bool,
    /// No transport has it: it waits to be tried again.
    pub(crate) waits: bool,
    /// Tries that failed; nothing is allocated where none does.
    pub(crate) attempts: Vec<Attempt>,
}

/// All of them, by the tokens under which they were given, which transports know them by as well.
pub(crate) struct Flights {
    all: HashMap<Token, Flight, BuildHasherDefault<Spread>>,
    most: usize,
}

impl Flights {
    /// Room for so many, so that nothing is allocated later.
    pub(crate) fn new(most: u32) -> Flights {
        let most = most as usize;
        Flights { all: HashMap::with_capacity_and_hasher(most, BuildHasherDefault::default()), most }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Takes one in; false when there is no room.
    pub(crate) fn insert(&mut self, flight: Flight) -> bool {
        let room = self.all.len() < self.most;
        if room {
            self.all.insert(flight.op.token, flight);
        }
        room
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut Flight> {
        self.all.get_mut(&token)
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Flight> {
        self.all.remove(&token)
    }

    /// All of them, in no order. For rare events only.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Flight> {
        self.all.values_mut()
    }
}

/// Spreads tokens, which are made by this process alone: two counts.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4), folded so that low bits depend on all.
        let product = u128::from(self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
