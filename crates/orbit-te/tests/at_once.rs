//! Requests without a handle, which the calling thread carries out itself where it can. Rule: whether it could or not, what the caller sees is
//! the same.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::route::RouteId;
use orbit_te::{Access, Config, Engine, Error, Landed, OpErrorCode, RequestState};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::*;

const SIZE: usize = 3 << 20;

/// Any size at any place, by the route of one host and over TCP: the bytes and the receipt.
#[test]
fn any_size_anywhere() {
    let _dog = watchdog("any_size_anywhere", Duration::from_secs(120));
    let near = pair(SIZE);
    let far = pair_with(SIZE, Config { shm: None, ..Config::default() });
    let sizes = prop_oneof![1u64..200, 4000u64..5000, 32_000u64..34_000, 1_040_000u64..1_060_000];
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(bytes in sizes, here in 0u64..9000, there in 0u64..9000, seed in any::<u64>())| {
        for pair in [&near, &far] {
            let local = region(&pair.engine, &pattern_bytes(seed, 0, SIZE), Access::LOCAL);
            let back = region(&pair.engine, &vec![0xee; SIZE], Access::LOCAL);
            pair.remote.write_at(0, &vec![0xdd; SIZE]).unwrap();
            let wrote = pair.segment.write_and_wait(there, &local.slice(here, bytes).unwrap()).unwrap().unwrap();
            let read = pair.segment.read_and_wait(there, &back.slice(here, bytes).unwrap()).unwrap().unwrap();
            for receipt in [wrote, read] {
                prop_assert_eq!((receipt.bytes, receipt.requests, receipt.retries), (bytes, 1, 0));
                prop_assert_eq!((receipt.landed, receipt.fenced), (Landed::Whole, true));
                prop_assert_eq!(receipt.routes.iter().collect::<Vec<_>>(), [(receipt.route.unwrap(), bytes)]);
                prop_assert!(receipt.submitted <= receipt.begun.unwrap() && receipt.begun.unwrap() <= receipt.ended);
                let states: Vec<RequestState> = receipt.records.iter().collect();
                prop_assert_eq!(states, [RequestState::Done { bytes }]);
            }
            let (from, to) = (here as usize, (here + bytes) as usize);
            let mut wanted = vec![0xee; SIZE];
            wanted[from..to].copy_from_slice(&pattern_bytes(seed, here, to - from));
            prop_assert!(contents(&back) == wanted, "wrong bytes here");
            let mut wanted = vec![0xdd; SIZE];
            let (begin, end) = (there as usize, (there + bytes) as usize);
            wanted[begin..end].copy_from_slice(&pattern_bytes(seed, here, to - from));
            prop_assert!(contents(&pair.remote) == wanted, "wrong bytes there");
        }
    });
    // Now and then another route is measured.
    let local = region(&near.engine, &[1; 64], Access::LOCAL);
    let by_copy = (0..100).filter(|_| {
        let receipt = near.segment.write_and_wait(0, &local.whole()).unwrap().unwrap();
        receipt.route != Some(RouteId::TCP)
    });
    assert!(by_copy.count() > 60, "the same host is not made use of");
}

/// Errors are those of every other transfer.
#[test]
fn errors_are_the_usual_ones() {
    let _dog = watchdog("errors_are_the_usual_ones", Duration::from_secs(60));
    let pair = pair(4096);
    let local = region(&pair.engine, &[3; 4096], Access::LOCAL);
    let write = |offset, length| pair.segment.write_and_wait(offset, &local.slice(0, length).unwrap());
    write(0, 4096).unwrap().unwrap();
    assert!(matches!(write(1, 4096), Err(Error::BadRequest { .. })), "past the end");
    let hidden = region(&pair.engine, &[3; 64], Access::REMOTE_READ);
    let refused = pair.segment.write_and_wait(0, &hidden.whole());
    assert!(matches!(refused, Err(Error::BadRequest { .. })), "{refused:?}");
    pair.target.revoke(&pair.remote, SOON).unwrap();
    let stale = write(0, 64).unwrap().unwrap_err();
    assert_eq!(stale.op_code(), Some(OpErrorCode::StaleGeneration));
    pair.engine.retire(&local, SOON).unwrap();
    let retired = write(0, 64);
    assert!(matches!(retired, Err(Error::Memory(_))), "{retired:?}");
    pair.engine.shutdown();
    assert!(matches!(write(0, 64), Err(Error::Closed)));
}

/// Several threads, transfers with handles among them, and a region that is withdrawn under all of them: no byte changes once it is.
#[test]
fn nothing_lands_in_what_is_withdrawn() {
    let _dog = watchdog("nothing_lands_in_what_is_withdrawn", Duration::from_secs(120));
    const BYTES: usize = 256 * 1024;
    let pair = pair(16);
    let at = pair.target.address().unwrap();
    let moved = AtomicU64::new(0);
    for round in 0..40u64 {
        let memory = region(&pair.target, &vec![0; BYTES], Access::SHARED);
        pair.target.expose("brief", &memory).unwrap();
        let segment = pair.engine.open(&format!("{at}/brief")).wait(SOON).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for k in 0..4u8 {
                let (segment, stop, moved, engine) = (&segment, &stop, &moved, &pair.engine);
                scope.spawn(move || {
                    let local = region(engine, &vec![k + 1; BYTES], Access::LOCAL);
                    while !stop.load(Ordering::Acquire) {
                        let result = match k {
                            3 => segment.write(0, &local.whole()).unwrap().wait(),
                            _ => {
                                segment.write_and_wait(0, &local.slice(0, 4096 << (2 * k)).unwrap()).unwrap()
                            }
                        };
                        match result {
                            Ok(_) => _ = moved.fetch_add(1, Ordering::Relaxed),
                            Err(error) => {
                                assert_eq!(error.op_code(), Some(OpErrorCode::UnknownRegion), "{error:?}");
                                return;
                            }
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_micros(round * 50));
            pair.target.retire(&memory, SOON).unwrap();
            let base = memory.raw().as_ptr().as_ptr();
            // SAFETY: the region's memory lives while `memory` does; after the retirement nobody else touches it.
            let now = || unsafe { std::slice::from_raw_parts(base, BYTES) }.to_vec();
            let before = now();
            std::thread::sleep(Duration::from_millis(2));
            assert!(now() == before, "round {round}: bytes landed after the withdrawal");
            stop.store(true, Ordering::Release);
        });
        assert_eq!(memory.leases(), 0);
    }
    assert!(moved.load(Ordering::Relaxed) > 40, "hardly anything was moved");
}

/// A thread that carries its own requests out all the time takes nothing from who waits for a peer that is reached over the network, by
/// the same worker.
#[test]
fn others_are_not_kept_waiting() {
    let _dog = watchdog("others_are_not_kept_waiting", Duration::from_secs(120));
    let near = pair_with(SIZE, Config { workers: 1, ..Config::default() });
    let target = Engine::builder().shm(None).start().unwrap();
    let remote = region(&target, &[0; 4096], Access::SHARED);
    target.expose("far", &remote).unwrap();
    let far = near.engine.open(&format!("{}/far", target.address().unwrap())).wait(SOON).unwrap();
    assert!(!far.same_host());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let local = region(&near.engine, &vec![5; 1 << 20], Access::LOCAL);
            while !stop.load(Ordering::Acquire) {
                near.segment.write_and_wait(0, &local.whole()).unwrap().unwrap();
            }
        });
        let local = region(&near.engine, &[6; 4096], Access::LOCAL);
        let begun = Instant::now();
        for round in 0..200 {
            let transfer = far.write(0, &local.whole()).unwrap();
            if round % 2 == 0 {
                transfer.wait().unwrap();
            } else {
                // Nobody drives this one but the worker's own thread, or who happens to be there.
                eventually("it ends by itself", SOON, || transfer.try_result().is_some());
            }
        }
        let took = begun.elapsed();
        stop.store(true, Ordering::Release);
        println!("200 requests over the network beside it took {took:?}");
        assert!(took < Duration::from_secs(4), "{took:?}");
    });
}
