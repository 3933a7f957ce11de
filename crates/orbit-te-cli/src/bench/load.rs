//! The load: threads that submit and wait until the time is up. Rule: between the first submission and the last answer nothing is
//! allocated here and nothing is printed.

use super::OpName;
use super::plan::Plan;
use crate::failure::Failure;
use crate::record::Samples;
use crate::routing::Way;
use crate::taken::Taken;
use orbit_te::{Batch, Error, Region, Segment, Transfer};
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Samples that are kept at most, all threads together; later ones are counted, but not in the percentiles.
const MAX_SAMPLES: usize = 4 << 20;
/// More submissions than a thread makes in a second.
const SAMPLES_PER_SECOND: f64 = 400_000.0;

/// One thread's place in its range, and what it has seen.
pub(crate) struct Runner {
    thread: usize,
    /// Submissions since the buffers were filled.
    pub(crate) submissions: u64,
    pub(crate) samples: Samples,
    pub(crate) taken: Taken,
}

impl Runner {
    /// The runners of a point that takes so many seconds.
    pub(crate) fn all(plan: &Plan, seconds: f64) -> Vec<Runner> {
        let room = ((seconds * SAMPLES_PER_SECOND) as usize).clamp(1024, MAX_SAMPLES / plan.threads);
        let runner = |thread| Runner {
            thread,
            submissions: 0,
            samples: Samples::with_capacity(room),
            taken: Taken::default(),
        };
        (0..plan.threads).map(runner).collect()
    }
}

/// What the threads share.
pub(crate) struct Field<'a> {
    pub(crate) way: Way<'a>,
    pub(crate) segment: &'a Segment,
    pub(crate) region: &'a Region,
    pub(crate) plan: &'a Plan,
}

impl Field<'_> {
    /// Runs all threads for so long; the wall time from the start to the last answer.
    pub(crate) fn run(&self, runners: &mut [Runner], time: Duration) -> Result<Duration, Failure> {
        let start = Barrier::new(runners.len() + 1);
        let failed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let threads: Vec<_> = runners
                .iter_mut()
                .map(|runner| {
                    let (start, failed) = (&start, &failed);
                    scope.spawn(move || {
                        start.wait();
                        self.drive(runner, Instant::now() + time, failed)
                            .inspect_err(|_| failed.store(true, Ordering::Release))
                    })
                })
                .collect();
            start.wait();
            let started = Instant::now();
            let mut first = Ok(());
            for thread in threads {
                let result =
                    thread.join().unwrap_or_else(|_| Err(Failure::Transfer("a thread panicked".to_string())));
                first = first.and(result);
            }
            first.map(|()| started.elapsed())
        })
    }

    fn drive(&self, runner: &mut Runner, until: Instant, failed: &AtomicBool) -> Result<(), Failure> {
        let mut flying: VecDeque<(Instant, Transfer)> = VecDeque::with_capacity(self.plan.depth);
        let mut now = Instant::now();
        loop {
            while flying.len() < self.plan.depth && now < until {
                flying.push_back((now, self.submit(self.plan.place(runner.thread, runner.submissions))?));
                runner.submissions += 1;
                if self.plan.depth > 1 {
                    now = Instant::now();
                }
            }
            let Some((begun, transfer)) = flying.pop_front() else { return Ok(()) };
            let receipt = transfer.wait()?;
            now = Instant::now();
            runner.samples.add(now - begun);
            runner.taken.add(&receipt);
            if failed.load(Ordering::Acquire) {
                return Ok(());
            }
        }
    }

    fn submit(&self, place: u64) -> Result<Transfer, Error> {
        let Plan { op, block, batch, .. } = *self.plan;
        if batch == 1 {
            let slice = self.region.slice(place, block)?;
            return match op {
                OpName::Write => self.way.write(self.segment, place, &slice),
                OpName::Read => self.way.read(self.segment, place, &slice),
            };
        }
        let mut requests = Batch::with_capacity(batch);
        for n in 0..batch as u64 {
            let at = place + n * self.plan.stride();
            let slice = self.region.slice(at, block)?;
            match op {
                OpName::Write => requests.write(self.segment, at, &slice),
                OpName::Read => requests.read(self.segment, at, &slice),
            };
        }
        self.way.submit(requests)
    }
}
