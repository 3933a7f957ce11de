//! Peers in other processes that stop, die and come back: every transfer ends in time and says why, and other peers are served.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use nix::sys::signal::Signal;
use orbit_te::{Access, Batch, Config, Engine, Error, OpErrorCode, Segment, TransferError};
use std::time::{Duration, Instant};
use support::child::{self, Target};
use support::{SOON, contents, eventually, pattern_bytes, region, watchdog};

const SIZE: usize = 4 << 20;

/// Not a test of this process: the target of the others.
#[test]
fn child_target() {
    child::run();
}

/// Over TCP alone: a peer's memory is reached without its process on the same host.
fn engine() -> Engine {
    Engine::builder().no_listen().shm(None).start().unwrap()
}

fn round_trip(engine: &Engine, segment: &Segment) {
    let there = region(engine, &pattern_bytes(3, 0, SIZE), Access::LOCAL);
    let back = region(engine, &vec![0; SIZE], Access::LOCAL);
    segment.write(0, &there.whole()).unwrap().wait().unwrap();
    segment.read(0, &back.whole()).unwrap().wait().unwrap();
    assert!(contents(&there) == contents(&back));
}

#[test]
fn another_process() {
    let _dog = watchdog("another_process", Duration::from_secs(60));
    let (target, engine) = (Target::start(SIZE), engine());
    let segment = target.open(&engine);
    round_trip(&engine, &segment);
}

/// Transfers to a stopped process end a little after their deadline; both sides work when it goes on.
#[test]
fn a_stopped_target() {
    let _dog = watchdog("a_stopped_target", Duration::from_secs(90));
    let (target, other, engine) = (Target::start(SIZE), Target::start(SIZE), engine());
    let (segment, healthy) = (target.open(&engine), other.open(&engine));
    round_trip(&engine, &segment);
    target.signal(Signal::SIGSTOP);
    let limit = Duration::from_millis(300);
    for write in [false, true] {
        let local = region(&engine, &vec![9; SIZE], Access::LOCAL);
        let mut batch = Batch::new();
        for k in 0..4 {
            let piece = local.slice(k << 20, 1 << 20).unwrap();
            match write {
                true => batch.write(&segment, k << 20, &piece),
                false => batch.read(&segment, k << 20, &piece),
            };
        }
        batch.deadline(limit);
        let started = Instant::now();
        let transfer = engine.submit(batch).unwrap();
        // Others go on meanwhile.
        round_trip(&engine, &healthy);
        let others = started.elapsed();
        assert!(others < Duration::from_secs(5), "another peer waited {others:?}");
        let error = transfer.wait().unwrap_err();
        let took = started.elapsed();
        assert!(matches!(error, TransferError::Deadline { after, .. } if after == limit), "{error:?}");
        // A write that can't be taken back costs the grace for its answer and the time for a fence.
        let most = Duration::from_millis(if write { 300 + 500 + 2000 + 2500 } else { 300 + 2500 });
        assert!(took >= limit && took < most, "{took:?}");
        assert_eq!(local.leases(), 0);
        if !write {
            assert!(matches!(error, TransferError::Deadline { fenced: true, .. }));
            // Ours again: nothing comes in late.
            local.write_at(0, &vec![0xee; SIZE]).unwrap();
            target.signal(Signal::SIGCONT);
            std::thread::sleep(Duration::from_millis(300));
            assert!(contents(&local) == vec![0xee; SIZE], "late bytes came in");
            target.signal(Signal::SIGSTOP);
        }
    }
    target.signal(Signal::SIGCONT);
    let until = Instant::now() + SOON;
    loop {
        let local = region(&engine, &vec![9; SIZE], Access::LOCAL);
        match segment.write(0, &local.whole()).map(|t| t.wait()) {
            Ok(Ok(_)) => break,
            other => assert!(Instant::now() < until, "it goes on, but can't be reached: {other:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    round_trip(&engine, &segment);
}

/// A stopped process that is given more requests than the engine can hold takes nothing away from others.
#[test]
fn a_stopped_target_with_many_requests() {
    let _dog = watchdog("a_stopped_target_with_many_requests", Duration::from_secs(90));
    let (target, other, engine) = (Target::start(SIZE), Target::start(SIZE), engine());
    let (segment, healthy) = (target.open(&engine), other.open(&engine));
    target.signal(Signal::SIGSTOP);
    let local = region(&engine, &vec![9; SIZE], Access::LOCAL);
    let mut batch = Batch::new();
    for k in 0..6000 {
        batch.write(&segment, k * 512, &local.slice(k * 512, 512).unwrap());
    }
    batch.deadline(Duration::from_secs(4));
    let transfer = engine.submit(batch).unwrap();
    let started = Instant::now();
    round_trip(&engine, &healthy);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(2), "another peer waited {took:?}");
    assert!(transfer.wait().is_err());
}

/// A process that is killed in the middle: all its transfers end at once and name the reason, others go on.
#[test]
fn a_killed_target() {
    let _dog = watchdog("a_killed_target", Duration::from_secs(90));
    let (mut target, other, engine) = (Target::start(SIZE), Target::start(SIZE), engine());
    let (segment, healthy) = (target.open(&engine), other.open(&engine));
    let local = region(&engine, &vec![9; SIZE], Access::LOCAL);
    round_trip(&engine, &segment);
    let transfers: Vec<_> = (0..200)
        .map(|k| {
            let slice = local.whole();
            if k % 2 == 0 { segment.write(0, &slice) } else { segment.read(0, &slice) }.unwrap()
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    target.kill();
    let killed = Instant::now();
    let mut failed = 0;
    for transfer in &transfers {
        match transfer.wait_for(Duration::from_secs(10)).expect("a transfer to a dead peer goes on") {
            Ok(_) => {}
            Err(TransferError::Request { error, cause, .. }) => {
                use OpErrorCode::{LinkBroken, LinkBrokenUnfenced, NoLink, Unreachable};
                let codes = [LinkBroken, LinkBrokenUnfenced, NoLink, Unreachable];
                assert!(codes.contains(&error.code), "{error:?}");
                let said = format!("{error}, {cause:?}");
                let why = ["process ended", "gone", "closed", "reset", "broke", "refused", "pipe"];
                assert!(why.iter().any(|w| said.contains(w)), "no reason in `{said}`");
                failed += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    let took = killed.elapsed();
    assert!(failed > 0, "killed too late");
    assert!(took < Duration::from_secs(3), "the end of a killed peer's transfers took {took:?}");
    eventually("no lease is left", SOON, || local.leases() == 0);
    eventually("the peer is gone", SOON, || {
        matches!(segment.write(0, &local.whole()), Err(Error::PeerGone { .. }))
    });
    let cause = segment.write(0, &local.whole()).unwrap_err().to_string();
    assert!(cause.contains("process ended") || cause.contains("broke"), "{cause}");
    round_trip(&engine, &healthy);
}

/// A notification to a peer that dies ends too.
#[test]
fn a_killed_target_and_notifications() {
    let _dog = watchdog("a_killed_target_and_notifications", Duration::from_secs(60));
    let (mut target, engine) = (Target::start(SIZE), engine());
    let segment = target.open(&engine);
    target.signal(Signal::SIGSTOP);
    let local = region(&engine, &[1; 64], Access::LOCAL);
    let mut batch = Batch::new();
    batch.write(&segment, 0, &local.whole()).notify(&segment, "n", &[]).deadline(Duration::from_secs(20));
    let alone = engine.notify(&segment, "n", &[1]);
    let bound = engine.submit(batch).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    target.kill();
    let started = Instant::now();
    let error = alone.wait(SOON).unwrap_err();
    assert!(matches!(error, Error::PeerGone { .. }), "{error:?}");
    assert!(bound.wait_for(SOON).expect("a transfer to a dead peer goes on").is_err());
    assert!(started.elapsed() < Duration::from_secs(3));
}

/// A silent peer is given up after three heartbeats, and the cause says what it looks like.
#[test]
fn a_silent_target_is_given_up() {
    let _dog = watchdog("a_silent_target_is_given_up", Duration::from_secs(60));
    let heartbeat = Duration::from_millis(200);
    let config = Config { listen: None, heartbeat, shm: None, ..Config::default() };
    let engine = Engine::builder().config(config).start().unwrap();
    let target = Target::start(SIZE);
    let segment = target.open(&engine);
    let local = region(&engine, &[1; 64], Access::LOCAL);
    // A peer that is only idle is not given up.
    std::thread::sleep(Duration::from_millis(1500));
    segment.write(0, &local.whole()).unwrap().wait().unwrap();
    target.signal(Signal::SIGSTOP);
    let stopped = Instant::now();
    let transfer = segment.write(0, &local.whole()).unwrap();
    let error = transfer.wait().unwrap_err();
    let took = stopped.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(error.to_string().contains("silent"), "{error}");
    target.signal(Signal::SIGCONT);
    let again = target.open(&engine);
    again.write(0, &local.whole()).unwrap().wait().unwrap();
}

/// Killed and started again at the same address, over and over.
#[test]
fn restarts() {
    let _dog = watchdog("restarts", Duration::from_secs(90));
    let engine = engine();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for _ in 0..5 {
        let mut target = Target::start_at(SIZE, Some(free.to_string()));
        let until = Instant::now() + SOON;
        // The old session may not be known to be over yet: then opening or writing says so.
        let segment = loop {
            let local = region(&engine, &[1; 64], Access::LOCAL);
            if let Ok(segment) = engine.open(&format!("{free}/pool")).wait(SOON) {
                if segment.write(0, &local.whole()).is_ok_and(|t| t.wait().is_ok()) {
                    break segment;
                }
            }
            assert!(Instant::now() < until, "a restarted peer can't be reached");
            std::thread::sleep(Duration::from_millis(5));
        };
        round_trip(&engine, &segment);
        target.kill();
    }
}
