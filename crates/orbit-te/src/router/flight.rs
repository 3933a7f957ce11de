//! The ops under way, on whatever route. Rule: an op keeps its place while it is tried again; it leaves it once.

use crate::route::{Reason, RouteId, RouteSet};
use orbit_te_transport::{Op, Token};
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
    pub error: orbit_te_transport::OpError,
    /// Bytes that were known to be in place by then; they are moved again.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
}

/// An op under way.
#[derive(Debug)]
pub(crate) struct Flight {
    /// As it was given: with the token of the core, and the link of the first route.
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

struct Place {
    turn: u32,
    flight: Option<Flight>,
}

/// All of them: a fixed number of places.
pub(crate) struct Flights {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Flights {
    pub(crate) fn new(capacity: u32) -> Flights {
        Flights {
            places: (0..capacity).map(|_| Place { turn: 0, flight: None }).collect(),
            free: (0..capacity).rev().collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Takes one in, and gives the token by which transports know it; none when all places are used.
    pub(crate) fn insert(&mut self, flight: Flight) -> Option<Token> {
        let index = self.free.pop()?;
        let place = &mut self.places[index as usize];
        // Without the highest bit, which marks notifications.
        place.turn = place.turn.wrapping_add(1) & 0x7fff_ffff;
        place.flight = Some(flight);
        Some(token(index, place.turn))
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut Flight> {
        let (index, turn) = split(token);
        self.places.get_mut(index).filter(|place| place.turn == turn)?.flight.as_mut()
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Flight> {
        let (index, turn) = split(token);
        let flight = self.places.get_mut(index).filter(|place| place.turn == turn)?.flight.take()?;
        self.free.push(index as u32);
        Some(flight)
    }

    /// Those under way that satisfy a condition. Scans the table: for rare events only.
    pub(crate) fn find(&self, wanted: impl Fn(&Flight) -> bool) -> Vec<Token> {
        let hit = |(index, place): (usize, &Place)| {
            place.flight.as_ref().filter(|flight| wanted(flight)).map(|_| token(index as u32, place.turn))
        };
        self.places.iter().enumerate().filter_map(hit).collect()
    }
}

fn token(index: u32, turn: u32) -> Token {
    Token((u64::from(turn) << 32) | u64::from(index))
}

fn split(token: Token) -> (usize, u32) {
    ((token.0 & 0xffff_ffff) as usize, (token.0 >> 32) as u32)
}
