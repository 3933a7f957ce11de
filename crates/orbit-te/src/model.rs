//! Models of the hand-over of commands, for `cargo xtask loom` (every order of a few threads) and `cargo xtask shuttle`
//! (random orders of many). Rule: the code under the models is the worker's own; the core and the sleep are stand-ins.

#![allow(clippy::unwrap_used)] // Models are tests.

use crate::handover::{FOREVER, Handover};
use std::sync::Arc;

#[cfg(orbit_loom)]
use loom::{
    sync::{Condvar, Mutex},
    thread,
};
#[cfg(orbit_shuttle)]
use shuttle::{
    sync::{Condvar, Mutex},
    thread,
};

/// What a core has to do: it wants to be looked at while it has anything.
#[derive(Default)]
struct Work {
    due: usize,
    done: usize,
}

/// A sleep that a kick ends, also one that came before.
#[derive(Default)]
struct Sleeper {
    kicked: Mutex<bool>,
    woken: Condvar,
}

impl Sleeper {
    fn kick(&self) {
        *self.kicked.lock().unwrap() = true;
        self.woken.notify_one();
    }

    /// Without an end of its own: what nobody kicks sleeps for ever, and is found as a deadlock.
    fn sleep(&self) {
        let mut kicked = self.kicked.lock().unwrap();
        while !*kicked {
            kicked = self.woken.wait(kicked).unwrap();
        }
        *kicked = false;
    }
}

struct Model {
    handover: Handover<Work, usize>,
    sleeper: Sleeper,
    /// Planted: callers leave the ring to others, without a look at it.
    looks_away: bool,
}

impl Model {
    fn feed(&self, work: &mut Work) {
        let before = work.due;
        while let Some(command) = self.handover.ring().pop() {
            work.due += command;
        }
        if work.due == before {
            // What was seen in the ring is still being pushed: its caller goes on first.
            thread::yield_now();
        }
    }

    /// A caller: pushes a command, and feeds it to the core if that is free, but leaves the work to the worker.
    fn submit(&self) {
        let mut held = self.handover.push(1).unwrap_or_else(|_| panic!("the ring has room"));
        while let Some(mut core) = held {
            self.feed(&mut core);
            let wake = if core.due > 0 && !self.looks_away { 1 } else { FOREVER };
            held = self.handover.part(core, wake, || self.sleeper.kick());
        }
    }

    /// The worker's thread, until it has done so much.
    fn work(&self, all: usize) {
        loop {
            let mut core = self.handover.core().lock();
            self.feed(&mut core);
            core.done += std::mem::take(&mut core.due);
            if core.done == all {
                return;
            }
            if self.handover.may_sleep(core, FOREVER) {
                self.sleeper.sleep();
            }
            self.handover.awake();
        }
    }
}

/// So many callers, each with so many commands, and the worker; all is done in the end.
fn run(callers: usize, commands: usize, looks_away: bool) {
    let handover = Handover::new(Work::default(), 2 * callers * commands);
    let model = Arc::new(Model { handover, sleeper: Sleeper::default(), looks_away });
    let threads: Vec<_> = (0..callers)
        .map(|_| {
            let model = model.clone();
            thread::spawn(move || (0..commands).for_each(|_| model.submit()))
        })
        .collect();
    model.work(callers * commands);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[cfg(orbit_loom)]
mod exhaustive {
    use super::run;

    fn check(callers: usize, commands: usize, looks_away: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(move || run(callers, commands, looks_away));
    }

    #[test]
    fn no_command_is_left_behind() {
        check(1, 2, false);
        check(2, 1, false);
    }

    /// The checker is looked at itself: a caller that kicks nobody is found.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_planted_lost_kick_is_found() {
        check(1, 1, true);
    }
}

#[cfg(orbit_shuttle)]
mod random {
    use super::run;

    const SCHEDULES: usize = 3000;

    #[test]
    fn no_command_is_left_behind() {
        shuttle::check_random(|| run(6, 4, false), SCHEDULES);
        shuttle::check_pct(|| run(4, 3, false), SCHEDULES, 3);
    }

    /// The checker is looked at itself: a caller that kicks nobody is found.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_planted_lost_kick_is_found() {
        shuttle::check_random(|| run(2, 2, true), SCHEDULES);
    }
}
