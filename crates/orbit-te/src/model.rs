//! Models of the hand-over of commands, for `cargo xtask loom` (every order of a few threads) and `cargo xtask shuttle`
//! (random orders of many). Rule: the code under the models is the worker's own; the core and the sleep are stand-ins.
//!
//! Not covered: who naps and the bell that ends a nap when another thread ends the transfer, and that the kick which ended a nap is
//! given on to the worker's thread.

#![allow(clippy::unwrap_used)] // Models are tests.

use crate::handover::{FOREVER, Handover};
use crate::sync::{MutexGuard, Ordering};
use std::sync::Arc;

#[cfg(orbit_loom)]
use loom::{
    sync::{Condvar, Mutex, atomic::AtomicBool},
    thread,
};
#[cfg(orbit_shuttle)]
use shuttle::{
    sync::{Condvar, Mutex, atomic::AtomicBool},
    thread,
};

/// What a core has to do: it wants to be looked at while it has anything.
#[derive(Default)]
struct Work {
    due: usize,
    done: usize,
}

impl Work {
    /// Does what is due; how much is done by now.
    fn work(&mut self) -> usize {
        self.done += std::mem::take(&mut self.due);
        self.done
    }

    /// When it wants to be looked at: at once or never.
    fn wake(&self) -> u64 {
        if self.due > 0 { 1 } else { FOREVER }
    }
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

/// What is planted for the checker to find.
#[derive(Clone, Copy, PartialEq)]
enum Plant {
    None,
    /// Callers leave the ring to others, without a look at it.
    LooksAway,
    /// Who naps does not ask the core again after it has said so.
    NapsBlindly,
    /// A caller who has what it waited for leaves without a look at what was pushed while it was about to nap.
    LeavesBlindly,
}

struct Model {
    handover: Handover<Work, usize>,
    worker: Sleeper,
    napper: Sleeper,
    /// Commands that come in all.
    all: usize,
    /// Whether the caller who drives has what it waits for.
    enough: AtomicBool,
    plant: Plant,
}

impl Model {
    fn new(all: usize, plant: Plant) -> Arc<Model> {
        Arc::new(Model {
            handover: Handover::new(Work::default(), 2 * all),
            worker: Sleeper::default(),
            napper: Sleeper::default(),
            all,
            enough: AtomicBool::new(false),
            plant,
        })
    }

    fn feed(&self, work: &mut Work) {
        let before = work.due;
        while let Some(command) = self.handover.ring().pop() {
            work.due += command;
        }
        if work.due == before && !self.handover.ring().is_empty() {
            // What was seen in the ring is still being pushed: its caller goes on first.
            thread::yield_now();
        }
    }

    /// A caller: pushes a command, and feeds it to the core if that is free, but leaves the work to the worker.
    fn submit(&self) {
        let mut held = self.handover.push(1).unwrap_or_else(|_| panic!("the ring has room"));
        while let Some(mut core) = held {
            self.feed(&mut core);
            let wake = if self.plant == Plant::LooksAway { FOREVER } else { core.wake() };
            held = self.part(core, wake);
        }
    }

    fn part<'a>(&'a self, core: MutexGuard<'a, Work>, wake: u64) -> Option<MutexGuard<'a, Work>> {
        self.handover.part(core, wake, || self.worker.kick(), || self.napper.kick())
    }

    /// Does what is there, on the thread of a caller, and parts with the core.
    fn step(&self, core: MutexGuard<'_, Work>) {
        let mut held = Some(core);
        while let Some(mut core) = held {
            self.feed(&mut core);
            if core.work() == self.all {
                self.enough.store(true, Ordering::SeqCst);
                self.worker.kick();
            }
            held = self.part(core, FOREVER);
        }
    }

    /// A caller who drives until it has enough, and naps between.
    fn drive(&self) {
        let enough = || self.enough.load(Ordering::SeqCst);
        let mut napped = false;
        while !enough() {
            self.step(self.handover.core().lock());
            napped = false;
            if !enough() {
                let core = self.handover.begin_nap(FOREVER);
                let asked = core.as_ref().filter(|_| self.plant != Plant::NapsBlindly);
                // Any step of its own while it has the core: loom changes threads at those alone.
                enough();
                let until = asked.map_or(FOREVER, |core| core.wake());
                if self.handover.may_nap(core) && !enough() && until == FOREVER {
                    self.napper.sleep();
                }
                self.handover.end_nap();
                napped = true;
            }
        }
        if napped && self.plant != Plant::LeavesBlindly {
            if let Some(core) = self.handover.core().try_lock() {
                self.step(core);
            }
        }
    }

    /// Another thread ends what the caller who drives waits for.
    fn end(&self) {
        self.enough.store(true, Ordering::SeqCst);
        self.napper.kick();
    }

    /// The worker's thread, until all is done.
    fn work(&self) {
        loop {
            let mut core = self.handover.core().lock();
            self.feed(&mut core);
            if core.work() == self.all {
                return;
            }
            if self.handover.may_sleep(core, FOREVER) {
                self.worker.sleep();
            }
            self.handover.awake();
        }
    }
}

/// So many callers, each with so many commands, and `watch`, on whom they rely; all is done in the end.
fn run(callers: usize, commands: usize, plant: Plant, watch: fn(&Model)) {
    let model = Model::new(callers * commands, plant);
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let model = model.clone();
            thread::spawn(move || (0..commands).for_each(|_| model.submit()))
        })
        .collect();
    watch(&model);
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}

/// A caller who drives leaves, since it has what it waited for, while another's command comes; the worker's thread does it.
fn leave(plant: Plant) {
    let model = Model::new(1, plant);
    let driver = {
        let model = model.clone();
        thread::spawn(move || model.drive())
    };
    let caller = {
        let model = model.clone();
        thread::spawn(move || {
            model.end();
            model.submit();
        })
    };
    model.work();
    [driver, caller].into_iter().for_each(|thread| thread.join().unwrap());
}

#[cfg(orbit_loom)]
mod exhaustive {
    use super::{Model, Plant, leave, run};

    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(model);
    }

    #[test]
    fn no_command_is_left_behind() {
        check(|| run(1, 2, Plant::None, Model::work));
        check(|| run(2, 1, Plant::None, Model::work));
    }

    #[test]
    fn no_command_is_left_to_a_nap() {
        check(|| run(1, 2, Plant::None, Model::drive));
        check(|| run(2, 1, Plant::None, Model::drive));
    }

    #[test]
    fn no_command_is_left_by_who_leaves() {
        check(|| leave(Plant::None));
    }

    /// The checker is looked at itself: a caller that kicks nobody is found.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_planted_lost_kick_is_found() {
        check(|| run(1, 1, Plant::LooksAway, Model::work));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_planted_blind_nap_is_found() {
        check(|| run(1, 1, Plant::NapsBlindly, Model::drive));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_planted_blind_leave_is_found() {
        check(|| leave(Plant::LeavesBlindly));
    }
}

#[cfg(orbit_shuttle)]
mod random {
    use super::{Model, Plant, leave, run};

    const SCHEDULES: usize = 3000;

    fn check(model: impl Fn() + Send + Sync + Copy + 'static) {
        shuttle::check_random(model, SCHEDULES);
        shuttle::check_pct(model, SCHEDULES, 3);
    }

    #[test]
    fn no_command_is_left_behind() {
        check(|| run(6, 4, Plant::None, Model::work));
    }

    #[test]
    fn no_command_is_left_to_a_nap() {
        check(|| run(6, 4, Plant::None, Model::drive));
    }

    #[test]
    fn no_command_is_left_by_who_leaves() {
        check(|| leave(Plant::None));
    }

    /// The checker is looked at itself: a caller that kicks nobody is found.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_planted_lost_kick_is_found() {
        check(|| run(2, 2, Plant::LooksAway, Model::work));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_planted_blind_nap_is_found() {
        check(|| run(2, 2, Plant::NapsBlindly, Model::drive));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_planted_blind_leave_is_found() {
        check(|| leave(Plant::LeavesBlindly));
    }
}
