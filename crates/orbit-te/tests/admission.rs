//! Admission: bounded, whole or not at all, first come first served, and nobody who waits holds up what would make room.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{Access, Batch, Config, Engine, Error, Region, Segment};
use std::time::{Duration, Instant};
use support::child::Target;
use support::{SOON, contents, eventually, pair_with, region, watchdog};

#[test]
fn child_target() {
    support::child::run();
}

fn writes(to: &Segment, from: &Region, requests: u64, deadline: Duration) -> Batch {
    let mut batch = Batch::new();
    (0..requests).for_each(|k| _ = batch.write(to, k, &from.slice(k, 1).unwrap()));
    batch.deadline(deadline);
    batch
}

/// An engine that can have so much under way, and a peer that answers nothing.
struct Stuck {
    engine: Engine,
    segment: Segment,
    local: Region,
    target: Target,
}

fn stuck(queued_transfers: usize, queued_requests: usize) -> Stuck {
    let target = Target::start(4096);
    let config = Config { listen: None, queued_transfers, queued_requests, ..Config::default() };
    let engine = Engine::builder().config(config).start().unwrap();
    let segment = target.open(&engine);
    let local = region(&engine, &[1; 4096], Access::LOCAL);
    target.signal(nix::sys::signal::Signal::SIGSTOP);
    Stuck { engine, segment, local, target }
}

impl Stuck {
    fn batch(&self, requests: u64, deadline: Duration) -> Batch {
        writes(&self.segment, &self.local, requests, deadline)
    }
}

/// Submitted until it is full; then each way of submitting answers as it should.
fn check_bound(queued_transfers: usize, queued_requests: usize, each: u64, fit: usize) {
    let stuck = stuck(queued_transfers, queued_requests);
    let long = Duration::from_secs(60);
    let mut under_way = Vec::new();
    for _ in 0..fit {
        under_way.push(stuck.engine.try_submit(stuck.batch(each, long)).unwrap());
    }
    let full = stuck.engine.try_submit(stuck.batch(each, long));
    assert!(matches!(full, Err(Error::Full { .. })), "{full:?}");
    // Waiting ends at the batch's deadline, and nothing of it stays behind.
    let limit = Duration::from_millis(60);
    let started = Instant::now();
    let late = stuck.engine.submit(stuck.batch(each, limit));
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    assert!(started.elapsed() >= limit && started.elapsed() < Duration::from_secs(5));
    let late = stuck.engine.submit_async(stuck.batch(each, limit)).wait(SOON);
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    drop(stuck.engine.submit_async(stuck.batch(each, long)));
    eventually("who gave up has left the queue", SOON, || {
        // Room for one: it is had by who asks now, and not by who gave up.
        if let Some(transfer) = under_way.pop() {
            transfer.cancel();
            let _ = transfer.wait();
        }
        stuck.engine.try_submit(stuck.batch(each, long)).map(|transfer| under_way.push(transfer)).is_ok()
    });
    stuck.target.signal(nix::sys::signal::Signal::SIGCONT);
    for transfer in under_way {
        // The cancel may have cost it its lane.
        let _ = transfer.wait();
    }
    assert_eq!(stuck.local.leases(), 0);
}

#[test]
fn bounds_of_both_kinds() {
    let _dog = watchdog("bounds_of_both_kinds", Duration::from_secs(60));
    check_bound(3, 1000, 1, 3);
    check_bound(1000, 100, 30, 3);
}

#[test]
fn what_never_fits_is_refused() {
    let _dog = watchdog("what_never_fits_is_refused", Duration::from_secs(60));
    let pair = pair_with(4096, Config { queued_requests: 100, ..Config::default() });
    let local = region(&pair.engine, &[1; 4096], Access::LOCAL);
    let whole = writes(&pair.segment, &local, 100, SOON);
    pair.engine.submit(whole).unwrap().wait().unwrap();
    let engine = &pair.engine;
    let answers = [
        engine.submit(writes(&pair.segment, &local, 101, SOON)),
        engine.try_submit(writes(&pair.segment, &local, 101, SOON)),
        engine.submit_async(writes(&pair.segment, &local, 101, SOON)).wait(SOON),
    ];
    for answer in answers {
        assert!(matches!(answer, Err(Error::TooLarge { requests: 101, limit: 100 })), "{answer:?}");
    }
}

/// One thread that submits more than there is room for, with nobody else to drive: each waits for those before it.
#[test]
fn one_thread_makes_its_own_room() {
    let _dog = watchdog("one_thread_makes_its_own_room", Duration::from_secs(60));
    let pair = pair_with(1 << 20, Config { queued_transfers: 4, ..Config::default() });
    let local = region(&pair.engine, &support::pattern_bytes(3, 0, 1 << 20), Access::LOCAL);
    let started = Instant::now();
    for k in 0..2048u64 {
        pair.segment.write(k * 512, &local.slice(k * 512, 512).unwrap()).unwrap().detach();
    }
    eventually("all have ended", SOON, || local.leases() == 0);
    assert!(contents(&pair.remote) == contents(&local));
    println!("2,048 writes with room for 4 took {:?}", started.elapsed());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for _ in 0..200 {
            let batch = writes(&pair.segment, &local, 3, SOON);
            pair.engine.submit_async(batch).await.unwrap().detach();
        }
    });
    eventually("all have ended", SOON, || local.leases() == 0);
}

/// Many threads at a narrow door: all get through, and all is given back.
#[test]
fn many_at_a_narrow_door() {
    let _dog = watchdog("many_at_a_narrow_door", Duration::from_secs(60));
    let pair = pair_with(4096, Config { queued_transfers: 2, queued_requests: 8, ..Config::default() });
    let local = region(&pair.engine, &[1; 4096], Access::LOCAL);
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (pair, local) = (&pair, &local);
            scope.spawn(move || {
                for k in 0..200 {
                    let batch = writes(&pair.segment, local, 1 + (k + thread) % 8, SOON);
                    let transfer = pair.engine.submit(batch).unwrap();
                    if k % 3 == 0 { transfer.detach() } else { drop(transfer.wait().unwrap()) }
                }
            });
        }
    });
    eventually("all have ended", SOON, || local.leases() == 0);
    pair.engine.try_submit(writes(&pair.segment, &local, 8, SOON)).unwrap().wait().unwrap();
}
