//! Which way of copying is the faster one for copies like this one: measured, since it depends on what is in the caches. Rule: the slower
//! way is tried again now and then, and ever less often while it stays the slower one.

#![allow(unsafe_code)]

use crate::sys::{self, Crew, Method, Piece};
use std::time::Instant;

/// Shorter copies are made by the C library: they gain nothing else, and a look at the clock would be felt.
pub(crate) const LEAST_BYTES: usize = 32 * 1024;
/// Sizes from [`LEAST_BYTES`] on by twos; the last has all larger ones.
const CLASSES: usize = 8;
/// Copies that several threads make together are at least so long.
pub(crate) const SHARED_BYTES: usize = LEAST_BYTES << (CLASSES - 1);
/// The ways there are.
const WAYS: usize = 3;
/// A way is tried again after so many copies; twice as many each time that it was the slower one again.
const FIRST_TRIAL: u32 = 64;
const LAST_TRIAL: u32 = 2048;
/// So many copies in a row: the first ones find the caches as the other way has left them.
const TRIES: u32 = 4;
/// A mean is taken over about so many copies.
const MEMORY: f32 = 8.0;
/// A copy counts for at most so many times the mean: the thread may have been interrupted.
const MOST_TIMES: f32 = 1.5;

/// A way of copying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By this thread.
    Alone(Method),
    /// Past the caches, with the help of the crew.
    Together,
}

const ALL: [Way; WAYS] = [Way::Alone(Method::Cached), Way::Alone(Method::Streaming), Way::Together];

/// What was measured for copies of one size.
#[derive(Debug, Clone, Copy)]
struct Class {
    /// Nanoseconds for a KiB, by way; zero before the first.
    cost: [f32; WAYS],
    /// How many of the ways there are here.
    ways: usize,
    /// Copies until another way is tried.
    left: u32,
    trial: u32,
    /// Copies of the trial that is under way which are left, and the way that is tried.
    tries: u32,
    tried: usize,
}

const fn class(ways: usize) -> Class {
    Class { cost: [0.0; WAYS], ways, left: FIRST_TRIAL, trial: FIRST_TRIAL, tries: TRIES, tried: 0 }
}

/// Chooses ways of copying, and learns.
#[derive(Debug)]
pub(crate) struct Copier {
    classes: [Class; CLASSES],
    /// Of many short copies after each other.
    pieces: Class,
    helpers: usize,
    /// Called together for the first copy that is large enough.
    crew: Option<Crew>,
}

impl Copier {
    /// One with so many helpers for large copies.
    pub(crate) fn new(helpers: usize) -> Copier {
        let streams = Method::Streaming.is_there();
        let alone = class(1 + usize::from(streams));
        let mut classes = [alone; CLASSES];
        let helpers = if streams { helpers } else { 0 };
        if helpers > 0 {
            classes[CLASSES - 1].ways = WAYS;
        }
        Copier { classes, pieces: alone, helpers, crew: None }
    }

    /// Whether copies of [`SHARED_BYTES`] and more are better not cut into smaller ones.
    pub(crate) fn has_helpers(&self) -> bool {
        self.helpers > 0
    }

    /// Copies bytes by the way that is chosen for so many.
    ///
    /// # Safety
    /// As [`sys::copy`].
    pub(crate) unsafe fn copy(&mut self, to: *mut u8, from: *const u8, length: usize) {
        let at = (length / LEAST_BYTES).checked_ilog2().map(|at| (at as usize).min(CLASSES - 1));
        let Some(class) = at.map(|at| &mut self.classes[at]) else {
            // SAFETY: the caller's promise; this method is always there.
            return unsafe { sys::copy(to, from, length, Method::Cached) };
        };
        let mut way = class.choose();
        if ALL[way] == Way::Together && self.crew.is_none() {
            self.crew = Crew::new(self.helpers);
            if self.crew.is_none() {
                // The system gives no threads.
                (self.helpers, class.ways, way) = (0, WAYS - 1, 0);
            }
        }
        let begin = Instant::now();
        match (ALL[way], &mut self.crew) {
            // SAFETY: the caller's promise; a crew is there only where streaming is.
            (Way::Together, Some(crew)) => unsafe { crew.copy(to, from, length) },
            // SAFETY: the caller's promise; only ways that are there are chosen.
            (Way::Alone(method), _) => unsafe { sys::copy(to, from, length, method) },
            // SAFETY: as above.
            (Way::Together, None) => unsafe { sys::copy(to, from, length, Method::Cached) },
        }
        class.learn(way, begin.elapsed().as_nanos() as f32 * 1024.0 / length as f32);
    }

    /// Copies pieces, each shorter than [`LEAST_BYTES`], by the way that is chosen for such.
    ///
    /// # Safety
    /// As [`sys::copy`], for each piece.
    pub(crate) unsafe fn copy_pieces(&mut self, pieces: &[Piece]) {
        let length: usize = pieces.iter().map(|piece| piece.length).sum();
        if length < LEAST_BYTES {
            // SAFETY: the caller's promise; this method is always there.
            return unsafe { sys::copy_pieces(pieces, Method::Cached) };
        }
        let way = self.pieces.choose();
        let Way::Alone(method) = ALL[way] else { return debug_assert!(false, "a crew for pieces") };
        let begin = Instant::now();
        // SAFETY: the caller's promise; only ways that are there are chosen.
        unsafe { sys::copy_pieces(pieces, method) };
        self.pieces.learn(way, begin.elapsed().as_nanos() as f32 * 1024.0 / length as f32);
    }
}

impl Class {
    fn fastest(&self) -> usize {
        (0..self.ways).min_by(|a, b| self.cost[*a].total_cmp(&self.cost[*b])).unwrap_or(0)
    }

    fn choose(&self) -> usize {
        let new = (0..self.ways).find(|way| self.cost[*way] == 0.0);
        new.unwrap_or_else(|| if self.left == 0 && self.ways > 1 { self.tried } else { self.fastest() })
    }

    fn learn(&mut self, way: usize, cost: f32) {
        let before = self.fastest();
        let mean = &mut self.cost[way];
        if *mean == 0.0 {
            *mean = cost;
            self.tried = (self.fastest() + 1) % self.ways;
            return;
        }
        let memory = if self.left == 0 { 2.0 } else { MEMORY };
        *mean += (cost.min(*mean * MOST_TIMES) - *mean) / memory;
        let fastest = self.fastest();
        if fastest != before {
            // Another way is the fastest one now: what was known of the one before may soon be wrong again.
            (self.left, self.trial, self.tries) = (FIRST_TRIAL, FIRST_TRIAL, TRIES);
            self.tried = before;
        } else if self.left > 0 {
            self.left -= 1;
        } else if self.tries > 1 {
            self.tries -= 1;
        } else {
            self.trial = (self.trial * 2).min(LAST_TRIAL);
            (self.left, self.tries) = (self.trial, TRIES);
            self.tried = (self.tried + 1) % self.ways;
            if self.tried == fastest {
                self.tried = (self.tried + 1) % self.ways;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs copies whose cost depends on the way; how many took each.
    fn run(class: &mut Class, copies: u32, costs: [f32; WAYS]) -> [u32; WAYS] {
        let mut counts = [0; WAYS];
        for _ in 0..copies {
            let way = class.choose();
            counts[way] += 1;
            class.learn(way, costs[way]);
        }
        counts
    }

    #[test]
    fn the_fastest_way_is_found_kept_and_left() {
        for ways in [2, 3] {
            let mut class = class(ways);
            assert!(run(&mut class, 1000, [2.0, 1.0, 1.5])[1] > 970, "the slower ones are hardly tried");
            // The buffers are in the caches now.
            run(&mut class, 6000, [0.5, 1.0, 0.8]);
            assert!(run(&mut class, 1000, [0.5, 1.0, 0.8])[0] > 940);
            run(&mut class, 6000, [2.0, 1.0, 1.5]);
            assert!(run(&mut class, 1000, [2.0, 1.0, 1.5])[1] > 940);
        }
        let mut three = class(3);
        assert!(run(&mut three, 1000, [2.0, 1.0, 0.5])[2] > 960);
        let mut alone = class(1);
        assert_eq!(run(&mut alone, 1000, [2.0, 1.0, 0.5]), [1000, 0, 0]);
    }

    #[test]
    fn one_slow_copy_changes_nothing() {
        let mut class = class(2);
        run(&mut class, 100, [2.0, 1.0, 0.0]);
        class.learn(1, 500.0);
        assert_eq!(class.fastest(), 1);
    }

    #[test]
    fn a_large_copy_is_whole_by_every_way() {
        let mut copier = Copier::new(2);
        let length = SHARED_BYTES + 12_345;
        for round in 0..5u8 {
            let (source, mut target) = (vec![round + 1; length], vec![0; length]);
            // SAFETY: both ranges are vectors of their own.
            unsafe { copier.copy(target.as_mut_ptr(), source.as_ptr(), length) };
            assert!(target == source);
        }
    }
}
