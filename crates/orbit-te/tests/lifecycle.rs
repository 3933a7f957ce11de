//! Starting, idling and ending: what an engine takes, it gives back, and it ends however it is ended.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{
    Access, Backing, Batch, ByteLimit, Config, Engine, Error, HostBuffer, Layout, OpKind, Transfer,
    TransferError,
};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use support::{Pair, Random, SOON, eventually, pair, pair_of, pair_with, region, watchdog};

/// The tests here count what the process holds, so only one runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

fn cpu() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
    let sum = |t: nix::sys::time::TimeVal| {
        Duration::from_secs(t.tv_sec() as u64) + Duration::from_micros(t.tv_usec() as u64)
    };
    sum(usage.user_time()) + sum(usage.system_time())
}

fn big(pair: &Pair, count: usize) -> Vec<Transfer> {
    let local = region(&pair.engine, &vec![7; 8 << 20], Access::LOCAL);
    (0..count).map(|_| pair.segment.write(0, &local.whole()).unwrap()).collect()
}

/// A transfer of an engine that was shut down has ended, one way or the other.
fn is_over(transfer: &Transfer) {
    match transfer.wait_for(Duration::from_secs(10)).expect("a transfer outlives its engine") {
        Ok(_) | Err(TransferError::Closed { .. }) => {}
        Err(TransferError::Request { error, .. }) => {
            // The session's grants end a moment before its lanes do.
            let grant_ended = error.code == orbit_te::OpErrorCode::BadKey;
            assert!(grant_ended || error.code.class() != orbit_te::ErrorClass::Op, "{error:?}");
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn shutdown_with_transfers_under_way() {
    let (_one, _dog) = (alone(), watchdog("shutdown_with_transfers_under_way", Duration::from_secs(60)));
    let pair = pair(8 << 20);
    let transfers = big(&pair, 20);
    let started = Instant::now();
    pair.engine.shutdown();
    assert!(started.elapsed() < Duration::from_secs(5), "shutting down took {:?}", started.elapsed());
    transfers.iter().for_each(is_over);
    let local = region(&pair.engine, &[0; 8], Access::LOCAL);
    assert!(matches!(pair.segment.write(0, &local.whole()), Err(Error::Closed | Error::PeerGone { .. })));
    assert!(matches!(pair.engine.open("127.0.0.1:9/x").wait(SOON), Err(Error::Closed)));
    assert!(pair.engine.notify(&pair.segment, "n", &[]).wait(SOON).is_err());
    pair.engine.shutdown();
    // The target lets go of all that was under way.
    eventually("the target has no leases", SOON, || pair.remote.leases() == 0);
}

#[test]
fn shutdown_of_the_target() {
    let (_one, _dog) = (alone(), watchdog("shutdown_of_the_target", Duration::from_secs(60)));
    let pair = pair(8 << 20);
    let transfers = big(&pair, 20);
    let started = Instant::now();
    pair.target.shutdown();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(pair.remote.leases(), 0, "shut down, and still a lease");
    transfers.iter().for_each(is_over);
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    eventually("the peer is gone", SOON, || {
        let local = region(&pair.engine, &[0; 8], Access::LOCAL);
        matches!(pair.segment.write(0, &local.whole()), Err(Error::PeerGone { .. }))
    });
}

#[test]
fn shutdown_from_async_code() {
    let (_one, _dog) = (alone(), watchdog("shutdown_from_async_code", Duration::from_secs(60)));
    let current = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for runtime in [current, several] {
        runtime.block_on(async {
            let pair = pair(8 << 20);
            let transfers = big(&pair, 10);
            pair.engine.shutdown();
            for transfer in transfers {
                is_over(&transfer);
                let _ = transfer.await;
            }
            // And dropped in async code too.
            drop(pair);
        });
    }
}

/// A transfer whose notification is under way when the engine ends.
#[test]
fn shutdown_with_notifications_under_way() {
    let (_one, _dog) = (alone(), watchdog("shutdown_with_notifications_under_way", Duration::from_secs(60)));
    for round in 0..20u64 {
        let pair = pair(64);
        let local = region(&pair.engine, &[1; 64], Access::LOCAL);
        let transfers: Vec<_> = (0..30)
            .map(|_| {
                let mut batch = Batch::new();
                batch.write(&pair.segment, 0, &local.whole()).notify(&pair.segment, "n", &[0; 1000]);
                pair.engine.submit(batch).unwrap()
            })
            .collect();
        std::thread::sleep(Duration::from_micros(100 * round));
        pair.engine.shutdown();
        for transfer in transfers {
            assert!(transfer.wait_for(Duration::from_secs(10)).is_some(), "a transfer outlives its engine");
        }
    }
}

/// Threads that submit and wait while the engine ends: all of them come back.
#[test]
fn shutdown_against_callers() {
    let (_one, _dog) = (alone(), watchdog("shutdown_against_callers", Duration::from_secs(90)));
    let mut random = Random(5);
    for round in 0..20 {
        let pair = pair(4096);
        let local = region(&pair.engine, &[1; 4096], Access::LOCAL);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (segment, local) = (&pair.segment, &local);
                scope.spawn(move || {
                    while let Ok(transfer) = segment.write(0, &local.whole()) {
                        if thread % 2 == 0 {
                            is_over(&transfer);
                        } else {
                            drop(transfer);
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_micros(random.below(5000)));
            pair.engine.shutdown();
        });
        assert_eq!(local.leases(), 0, "round {round}");
    }
}

/// Dropped in any order, with transfers under way; nothing is left.
#[test]
fn what_is_taken_is_given_back() {
    let (_one, _dog) = (alone(), watchdog("what_is_taken_is_given_back", Duration::from_secs(90)));
    drop(pair(64));
    std::thread::sleep(Duration::from_millis(100));
    let (threads, files) = (count("task"), count("fd"));
    for round in 0..30 {
        let pair = pair(8 << 20);
        let transfers = big(&pair, 3);
        match round % 4 {
            0 => drop(pair),
            1 => {
                let Pair { segment, engine, remote, target } = pair;
                drop((target, remote));
                drop((engine, segment));
            }
            2 => {
                let Pair { segment, engine, .. } = pair;
                drop(engine);
                drop(segment);
            }
            _ => {
                let Pair { segment, engine, remote: _, target } = pair;
                drop(segment);
                target.shutdown();
                let clone = engine.clone();
                drop(engine);
                std::thread::spawn(move || drop(clone)).join().unwrap();
            }
        }
        transfers.iter().for_each(is_over);
    }
    // Engines that fail to start leave nothing either.
    let holder = Engine::builder().start().unwrap();
    for _ in 0..10 {
        assert!(Engine::builder().listen(holder.address().unwrap()).start().is_err());
    }
    drop(holder);
    eventually("threads are back where they were", SOON, || count("task") <= threads);
    eventually("descriptors are back where they were", SOON, || count("fd") <= files);
}

/// The memory of a transfer under way owns the last handle of its engine: the engine's own thread drops it.
#[test]
fn the_last_handle_in_a_transfers_memory() {
    let (_one, _dog) = (alone(), watchdog("the_last_handle_in_a_transfers_memory", Duration::from_secs(60)));
    drop(pair(64));
    std::thread::sleep(Duration::from_millis(100));
    let threads = count("task");
    for _ in 0..5 {
        let Pair { segment, engine, remote, target } = pair(8 << 20);
        let mut bytes = vec![7u8; 8 << 20];
        let base = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the vector lives in the owner, where nobody reaches it.
        let backing = unsafe { Backing::external(base, bytes.len(), (bytes, engine.clone())) };
        let local = engine.register(backing.unwrap(), Access::LOCAL).unwrap();
        drop(segment.write(0, &local.whole()).unwrap());
        let _ = engine.retire(&local, Duration::ZERO);
        drop((engine, local, segment));
        eventually("the target has no leases", SOON, || remote.leases() == 0);
        drop((remote, target));
    }
    eventually("threads are back where they were", SOON, || count("task") <= threads);
}

/// Peers that come and go leave nothing at an engine that stays.
#[test]
fn peers_that_come_and_go() {
    let (_one, _dog) = (alone(), watchdog("peers_that_come_and_go", Duration::from_secs(90)));
    let target = Engine::builder().start().unwrap();
    let remote = region(&target, &[0; 64], Access::SHARED);
    let token = target.expose("pool", &remote).unwrap().to_token().unwrap();
    let visit = || {
        let engine = Engine::builder().no_listen().start().unwrap();
        let segment = engine.open(&token).wait(SOON).unwrap();
        let local = region(&engine, &[1; 64], Access::LOCAL);
        segment.write(0, &local.whole()).unwrap().wait().unwrap();
    };
    visit();
    std::thread::sleep(Duration::from_millis(100));
    let (threads, files) = (count("task"), count("fd"));
    (0..30).for_each(|_| visit());
    eventually("threads are back where they were", SOON, || count("task") <= threads);
    eventually("descriptors are back where they were", SOON, || count("fd") <= files);
    assert_eq!(remote.leases(), 0);
}

/// Two connected engines that have nothing to do cost next to nothing, before and after they were busy.
#[test]
fn idle_engines_are_idle() {
    let (_one, _dog) = (alone(), watchdog("idle_engines_are_idle", Duration::from_secs(60)));
    let pair = pair_with(4096, Config::default());
    let check = |when: &str| {
        std::thread::sleep(Duration::from_millis(200));
        let before = cpu();
        std::thread::sleep(Duration::from_secs(2));
        let spent = cpu() - before;
        assert!(spent < Duration::from_millis(10), "{when}: {spent:?} of CPU in two seconds");
    };
    check("after opening");
    let local = region(&pair.engine, &[1; 4096], Access::LOCAL);
    for _ in 0..200 {
        pair.segment.write(0, &local.whole()).unwrap().wait().unwrap();
    }
    drop(pair.segment.read(0, &local.whole()).unwrap());
    check("after transfers");
    pair.target.shutdown();
    std::thread::sleep(Duration::from_millis(300));
    check("after the peer has gone");
}

/// A side that waits for requests keeps no memory of regions that are gone.
#[test]
fn retired_memory_is_dropped_while_nobody_asks() {
    let (_one, _dog) = (alone(), watchdog("retired_memory_is_dropped", Duration::from_secs(60)));
    let pair = pair(4096);
    let local = region(&pair.engine, &[1; 4096], Access::LOCAL);
    let backing = std::sync::Arc::new(HostBuffer::new(4096).unwrap().into_backing());
    let kept = std::sync::Arc::downgrade(&backing);
    let retired = pair.target.register(backing, Access::SHARED).unwrap();
    let token = pair.target.expose("other", &retired).unwrap().to_token().unwrap();
    let other = pair.engine.open(&token).wait(SOON).unwrap();
    // The answering side has looked the region up.
    other.write(0, &local.whole()).unwrap().wait().unwrap();
    pair.target.retire(&retired, SOON).unwrap();
    drop(retired);
    eventually("retired memory is dropped", Duration::from_secs(5), || kept.strong_count() == 0);
}

/// Everything that an engine is made of holds the limit of its memory, so that whatever outlives it is seen here.
#[test]
fn an_ended_engine_leaves_nothing_in_memory() {
    let (_one, _dog) =
        (alone(), watchdog("an_ended_engine_leaves_nothing_in_memory", Duration::from_secs(90)));
    for round in 0..12 {
        let limit = ByteLimit::new(u64::MAX);
        let config = || Config { registration_limit: limit.clone(), ..Config::default() };
        let target = Engine::builder().config(config()).start().unwrap();
        let Pair { segment, engine, remote, target } = pair_of(4 << 20, target, config());
        let local = region(&engine, &vec![7; 4 << 20], Access::LOCAL);
        let all = Layout::Strided { offset: 0, stride_bytes: 2000, block_bytes: 1000, count: 2000 };
        let list = engine.prepare(OpKind::Write, &local.whole(), all, &segment, all).unwrap();
        let transfers: Vec<_> = (0..6)
            .map(|_| {
                let mut batch = Batch::new();
                batch.write(&segment, 0, &local.whole()).notify(&segment, "n", &[0; 1000]);
                let bound = engine.submit(batch).unwrap();
                let mut batch = Batch::new();
                batch.list(&list);
                (bound, engine.submit(batch).unwrap(), engine.notify(&segment, "alone", &[]))
            })
            .collect();
        std::thread::sleep(Duration::from_micros(300 * round));
        match round % 4 {
            0 => engine.shutdown(),
            1 => target.shutdown(),
            2 => transfers[0].1.cancel(),
            _ => {}
        }
        if round % 3 == 0 {
            drop((engine, target));
            drop((transfers, list, segment, local, remote));
        } else {
            drop((transfers, list, segment, local, remote));
            drop((target, engine));
        }
        // A transfer's end may still be told by a thread of its own.
        eventually("both engines are gone", SOON, || std::sync::Arc::strong_count(&limit) == 1);
    }
}
