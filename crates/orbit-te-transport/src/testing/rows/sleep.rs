//! Rows about waiting: a worker that does only what `arm` says misses nothing, and an idle one sleeps.
//!
//! Not checked here: how fast a sleeper is woken.

use crate::progress::Arm;
use crate::testing::harness::Harness;
use crate::testing::pair::Pair;
use crate::testing::suite::{Need, Row};
use crate::testing::sys;
use orbit_te_memory::Access;
use std::time::{Duration, Instant};

pub(crate) const ROWS: &[Row] = &[
    Row { name: "idle_sleeps", needs: &[Need::Write], check: idle_sleeps },
    Row { name: "no_wake_up_is_lost", needs: &[Need::Write], check: no_wake_up_is_lost },
];

/// With nothing in flight `arm` says sleep, and the sleep is not cut short all the time.
pub fn idle_sleeps(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    let (ours, theirs) = (h.local(4096), h.remote(4096, Access::SHARED));
    for _ in 0..4 {
        let op = h.write(link, ours.at(0), theirs.at(0), 4096);
        h.run_all(&[op]);
    }
    let end = Instant::now() + 4 * h.quiet();
    h.repeat_until("an idle transport says `Sleep`", |h| {
        h.step();
        matches!(h.arm(), Arm::Sleep { .. })
    });
    let mut wakes = 0u32;
    while Instant::now() < end {
        h.step();
        let rest = end.saturating_duration_since(Instant::now());
        let Arm::Sleep { fd, until } = h.arm() else {
            wakes += 1;
            continue;
        };
        let rest = until.map_or(rest, |at| rest.min(at.saturating_duration_since(Instant::now())));
        let woken = match fd {
            Some(fd) => sys::readable(fd, rest),
            None => {
                std::thread::sleep(rest);
                false
            }
        };
        wakes += u32::from(woken || rest.is_zero());
    }
    // A few are timers and late news of the link; a transport that spins has thousands.
    if wakes > 50 {
        h.fail(&format!("an idle transport woke up {wakes} times in {} ms", 4 * h.quiet().as_millis()));
    }
    h.finish();
}

/// Ops driven by a worker that polls only when `arm` allows it to: each completes.
pub fn no_wake_up_is_lost(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    let most = h.capabilities().max_op_bytes;
    let (ours, theirs) = (h.local(1 << 20), h.remote(1 << 20, Access::SHARED));
    for round in 0..60u64 {
        let length = [1, 4000, 90_000, 1 << 20][round as usize % 4].min(most);
        let op = h.write(link, ours.at(0), theirs.at(0), length);
        h.submit(&[op]);
        let deadline = Instant::now() + h.limit();
        loop {
            h.offer();
            h.poll(8);
            if h.is_done(&op) {
                break;
            }
            // In every other round the reply may come between the poll and the arming, where wake-ups get lost.
            for _ in 0..(round % 2) * 40 {
                h.pump();
            }
            if let Arm::Sleep { fd, until } = h.arm() {
                sleep(&mut h, fd, until, deadline);
            }
            if Instant::now() > deadline {
                h.fail("polled as often as `arm` says, and the op does not complete");
            }
        }
        h.expect_success(&[op]);
    }
    h.finish();
}

/// Sleeps as `arm` said, while the target goes on.
fn sleep(h: &mut Harness<'_>, fd: Option<std::os::fd::RawFd>, until: Option<Instant>, deadline: Instant) {
    if fd.is_none() && until.is_none() {
        h.fail("an op is in flight, and `arm` names neither a descriptor nor a time");
    }
    loop {
        h.pump();
        let nap = Duration::from_millis(1);
        match fd {
            Some(fd) if sys::readable(fd, nap) => return,
            Some(_) => {}
            None => std::thread::sleep(nap),
        }
        if until.is_some_and(|at| Instant::now() >= at) {
            return;
        }
        if Instant::now() > deadline {
            h.fail("the target was served, and the sleeping initiator was not woken: a lost wake-up");
        }
    }
}
