//! Which way of copying is the faster one for copies like this one: measured, since it depends on what is in the caches. Rule: the slower
//! way is tried again now and then, and ever less often while it stays the slower one.

use crate::sys::Method;
use std::time::Instant;

/// Shorter copies are made by the C library: they gain nothing else, and a look at the clock would be felt.
const LEAST_BYTES: usize = 32 * 1024;
/// Sizes from [`LEAST_BYTES`] on by twos; the last has all larger ones.
const CLASSES: usize = 6;
/// A way is tried again after so many copies; twice as many each time that it was the slower one again.
const FIRST_TRIAL: u32 = 64;
const LAST_TRIAL: u32 = 2048;
/// So many copies in a row: the first ones find the caches as the other way has left them.
const TRIES: u32 = 4;
/// A mean is taken over about so many copies.
const MEMORY: f32 = 8.0;
/// A copy counts for at most so many times the mean: the thread may have been interrupted.
const MOST_TIMES: f32 = 3.0;

/// What was measured for copies of one size.
#[derive(Debug, Clone, Copy)]
struct Class {
    /// Nanoseconds for a KiB, by the C library and past the caches; zero before the first.
    cost: [f32; 2],
    /// Copies until the other way is tried.
    left: u32,
    trial: u32,
    /// Copies of the trial that is under way which are left.
    tries: u32,
}

const NEW: Class = Class { cost: [0.0; 2], left: FIRST_TRIAL, trial: FIRST_TRIAL, tries: TRIES };

/// Chooses ways of copying, and learns.
#[derive(Debug)]
pub(crate) struct Copier {
    classes: [Class; CLASSES],
    can_stream: bool,
}

impl Copier {
    pub(crate) fn new() -> Copier {
        Copier { classes: [NEW; CLASSES], can_stream: Method::Streaming.is_there() }
    }

    /// Makes a copy of so many bytes by the way that is chosen for it.
    pub(crate) fn copy(&mut self, bytes: usize, copy: impl FnOnce(Method)) {
        if bytes < LEAST_BYTES || !self.can_stream {
            return copy(Method::Cached);
        }
        let class = &mut self.classes[((bytes / LEAST_BYTES).ilog2() as usize).min(CLASSES - 1)];
        let method = class.choose();
        let begin = Instant::now();
        copy(method);
        class.learn(method, begin.elapsed().as_nanos() as f32 * 1024.0 / bytes as f32);
    }
}

impl Class {
    fn faster(&self) -> Method {
        if self.cost[0] <= self.cost[1] { Method::Cached } else { Method::Streaming }
    }

    fn choose(&mut self) -> Method {
        match self.cost {
            [0.0, _] => Method::Cached,
            [_, 0.0] => Method::Streaming,
            _ if self.left == 0 => match self.faster() {
                Method::Cached => Method::Streaming,
                Method::Streaming => Method::Cached,
            },
            _ => self.faster(),
        }
    }

    fn learn(&mut self, method: Method, cost: f32) {
        let before = self.faster();
        let mean = &mut self.cost[method as usize];
        if *mean == 0.0 {
            *mean = cost;
            return;
        }
        let memory = if self.left == 0 { 2.0 } else { MEMORY };
        *mean += (cost.min(*mean * MOST_TIMES) - *mean) / memory;
        if self.faster() != before {
            // The other way is the faster one now: what was known of the one before may soon be wrong again.
            (self.left, self.trial, self.tries) = (FIRST_TRIAL, FIRST_TRIAL, TRIES);
        } else if self.left > 0 {
            self.left -= 1;
        } else if self.tries > 1 {
            self.tries -= 1;
        } else {
            self.trial = (self.trial * 2).min(LAST_TRIAL);
            (self.left, self.tries) = (self.trial, TRIES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs copies whose cost depends on the way; how many took the cached one.
    fn run(class: &mut Class, copies: u32, cached: f32, streaming: f32) -> u32 {
        let mut count = 0;
        for _ in 0..copies {
            let method = class.choose();
            count += u32::from(method == Method::Cached);
            class.learn(method, if method == Method::Cached { cached } else { streaming });
        }
        count
    }

    #[test]
    fn the_faster_way_is_found_kept_and_left() {
        let mut class = NEW;
        assert!(run(&mut class, 1000, 2.0, 1.0) < 30, "the slower one is hardly tried");
        // The buffers are in the caches now.
        run(&mut class, 3000, 0.5, 1.0);
        assert!(run(&mut class, 1000, 0.5, 1.0) > 940);
        run(&mut class, 3000, 2.0, 1.0);
        assert!(run(&mut class, 1000, 2.0, 1.0) < 60);
    }

    #[test]
    fn one_slow_copy_changes_nothing() {
        let mut class = NEW;
        run(&mut class, 100, 2.0, 1.0);
        class.learn(Method::Streaming, 500.0);
        assert_eq!(class.faster(), Method::Streaming);
    }
}
