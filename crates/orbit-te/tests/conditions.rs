//! A peer that is stopped, slow, or behind a path that is gone is told apart at a transfer's deadline, and is used again without
//! anybody's help when it is well.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use nix::sys::signal::Signal;
use orbit_te::{
    Access, Batch, Config, Engine, Error, OpKind, PeerCondition, Region, Segment, TcpConfig, TransferError,
};
use std::time::{Duration, Instant};
use support::child::{self, Target};
use support::namespace::Cable;
use support::proxy::{Others, Proxy};
use support::{SOON, contents, pattern_bytes, region, skipped, watchdog};

const SIZE: usize = 8 << 20;
/// Where writes that were given up may still land when the peer is well again, which `fenced: false` says of them, and after it a place of
/// its own for what must be right.
const POOL: usize = 2 * SIZE;
const KINDS: [OpKind; 2] = [OpKind::Write, OpKind::Read];

/// Not a test of this process: the target of the others.
#[test]
fn child_target() {
    child::run();
}

/// Gives up writes and lanes quickly and makes new ones quickly, so that what comes after does not wait. Over TCP alone: a peer's memory is
/// reached without its process on the same host.
fn engine() -> Engine {
    let tcp = TcpConfig {
        cancel_grace: Duration::from_millis(50),
        fence_timeout: Duration::from_millis(100),
        connect_timeout: Duration::from_millis(400),
        reconnect_pause: (Duration::from_millis(20), Duration::from_millis(50)),
        ..TcpConfig::default()
    };
    Engine::builder().config(Config { listen: None, tcp, shm: None, ..Config::default() }).start().unwrap()
}

fn transfer(segment: &Segment, kind: OpKind, local: &Region, at: u64, limit: Duration) -> Batch {
    let mut batch = Batch::new();
    let slice = local.whole();
    match kind {
        OpKind::Write => batch.write(segment, at, &slice),
        OpKind::Read => batch.read(segment, at, &slice),
    };
    batch.deadline(limit);
    batch
}

/// What the peer looked like at the deadline of a transfer that can't be done in time.
fn condition(engine: &Engine, segment: &Segment, kind: OpKind, length: usize, ms: u64) -> PeerCondition {
    let local = region(engine, &vec![7; length], Access::LOCAL);
    let batch = transfer(segment, kind, &local, 0, Duration::from_millis(ms));
    judged(engine.submit(batch).unwrap().wait().unwrap_err())
}

fn judged(error: TransferError) -> PeerCondition {
    let TransferError::Deadline { peer: Some(peer), .. } = error else { panic!("{error:?}") };
    let (name, word) = match peer {
        PeerCondition::Slow { .. } => ("deadline-slow", "slow"),
        PeerCondition::Stalled { .. } => ("deadline-stalled", "stalled"),
        PeerCondition::Unreachable { .. } => ("deadline-unreachable", "out of reach"),
        other => panic!("{other:?}"),
    };
    assert_eq!(error.code().name(), name);
    assert!(error.to_string().contains(word), "{error}");
    peer
}

#[track_caller]
fn check_stalled(peer: PeerCondition, ms: u64) {
    let PeerCondition::Stalled { silent_for } = peer else { panic!("{peer:?}") };
    let (least, most) = (Duration::from_millis(ms / 2), Duration::from_millis(ms));
    assert!((least..=most).contains(&silent_for), "{silent_for:?} of {most:?}");
}

#[track_caller]
fn check_slow(peer: PeerCondition, ms: u64) {
    let PeerCondition::Slow { bytes, quiet_for } = peer else { panic!("{peer:?}") };
    assert!(bytes < SIZE as u64 && quiet_for < Duration::from_millis(ms / 2), "{peer:?}");
}

#[track_caller]
fn check_unreachable(peer: PeerCondition, ms: u64) {
    let PeerCondition::Unreachable { unacknowledged_for } = peer else { panic!("{peer:?}") };
    let (least, most) = (Duration::from_millis(ms / 2), Duration::from_millis(ms));
    assert!((least..=most).contains(&unacknowledged_for), "{unacknowledged_for:?} of {most:?}");
}

/// The same segment serves again, by itself, soon.
fn works_again(engine: &Engine, segment: &Segment) {
    let there = region(engine, &pattern_bytes(3, 0, SIZE), Access::LOCAL);
    let back = region(engine, &vec![0; SIZE], Access::LOCAL);
    let until = Instant::now() + SOON;
    for kind in KINDS {
        let local = if kind == OpKind::Write { &there } else { &back };
        loop {
            let limit = Duration::from_secs(1);
            let ended = engine.submit(transfer(segment, kind, local, SIZE as u64, limit)).unwrap().wait();
            if ended.is_ok() {
                break;
            }
            assert!(Instant::now() < until, "it is well again, and can't be reached: {ended:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(contents(&there) == contents(&back));
}

/// Large and small, the first ones and those that find their lanes closed.
#[test]
fn a_stopped_peer_is_stalled() {
    let _dog = watchdog("a_stopped_peer_is_stalled", Duration::from_secs(60));
    let (target, engine) = (Target::start(POOL), engine());
    let segment = target.open(&engine);
    segment.warm(SOON).wait().unwrap();
    works_again(&engine, &segment);
    target.signal(Signal::SIGSTOP);
    for length in [100, SIZE] {
        for kind in KINDS {
            check_stalled(condition(&engine, &segment, kind, length, 400), 400);
        }
    }
    target.signal(Signal::SIGCONT);
    works_again(&engine, &segment);
}

/// Requests that only its host takes are no sign of life.
#[test]
fn a_stopped_peer_under_load_is_stalled() {
    let _dog = watchdog("a_stopped_peer_under_load_is_stalled", Duration::from_secs(60));
    let (target, engine) = (Target::start(POOL), engine());
    let segment = target.open(&engine);
    segment.warm(SOON).wait().unwrap();
    target.signal(Signal::SIGSTOP);
    let local = region(&engine, &vec![7; SIZE], Access::LOCAL);
    let large = transfer(&segment, OpKind::Read, &local, 0, Duration::from_millis(600));
    let large = engine.submit(large).unwrap();
    let (little, mut small) = (region(&engine, &[0; 100], Access::LOCAL), Vec::new());
    while !large.is_done() {
        let batch = transfer(&segment, OpKind::Read, &little, 0, Duration::from_secs(5));
        small.push(engine.submit(batch).unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
    check_stalled(judged(large.wait().unwrap_err()), 600);
    target.signal(Signal::SIGCONT);
    small.iter().for_each(|transfer| assert!(transfer.wait_for(SOON).unwrap().is_ok()));
}

#[test]
fn a_slow_peer_is_slow() {
    let _dog = watchdog("a_slow_peer_is_slow", Duration::from_secs(60));
    let (target, engine) = (Engine::builder().start().unwrap(), engine());
    let remote = region(&target, &vec![0; POOL], Access::SHARED);
    target.expose("pool", &remote).unwrap();
    let proxy = Proxy::start(target.address().unwrap(), usize::MAX, Others::Held);
    let segment = engine.open(&format!("{}/pool", proxy.at)).wait(SOON).unwrap();
    segment.warm(SOON).wait().unwrap();
    for kind in KINDS {
        proxy.slow(true);
        check_slow(condition(&engine, &segment, kind, SIZE, 500), 500);
        proxy.slow(false);
        works_again(&engine, &segment);
    }
}

/// A target behind a cable, or none where it can't be had.
fn behind_cable(test: &str) -> Option<(Target, Cable)> {
    let target = Target::start_behind_cable(POOL);
    target.map_err(|why| skipped(&format!("{test}: no network namespace: {why}"))).ok()
}

/// The same peer is stalled, slow and out of reach in turn, and is used again after each, by the same handle and without a word.
#[test]
fn nothing_marks_a_peer_bad() {
    let _dog = watchdog("nothing_marks_a_peer_bad", Duration::from_secs(90));
    let Some((target, cable)) = behind_cable("nothing_marks_a_peer_bad") else { return };
    let engine = engine();
    let segment = target.open(&engine);
    segment.warm(SOON).wait().unwrap();
    works_again(&engine, &segment);
    target.signal(Signal::SIGSTOP);
    check_stalled(condition(&engine, &segment, OpKind::Read, SIZE, 400), 400);
    target.signal(Signal::SIGCONT);
    works_again(&engine, &segment);
    match cable.throttle(true) {
        Ok(()) => {
            check_slow(condition(&engine, &segment, OpKind::Write, SIZE, 1000), 1000);
            check_slow(condition(&engine, &segment, OpKind::Read, SIZE, 1000), 1000);
            cable.throttle(false).unwrap();
            works_again(&engine, &segment);
        }
        Err(why) => skipped(&format!("nothing_marks_a_peer_bad: no slow cable: {why}")),
    }
    cable.plug(false);
    check_unreachable(condition(&engine, &segment, OpKind::Write, SIZE, 600), 600);
    // Its lanes are closed by now, or soon, and new ones come no further.
    check_unreachable(condition(&engine, &segment, OpKind::Read, 100, 600), 600);
    cable.plug(true);
    works_again(&engine, &segment);
}

/// A session whose peer is out of reach ends by its heartbeats, and says so rather than blame the process.
#[test]
fn a_session_over_a_pulled_cable() {
    let _dog = watchdog("a_session_over_a_pulled_cable", Duration::from_secs(60));
    let Some((target, cable)) = behind_cable("a_session_over_a_pulled_cable") else { return };
    let heartbeat = Duration::from_millis(200);
    let config = Config { listen: None, heartbeat, shm: None, ..Config::default() };
    let engine = Engine::builder().config(config).start().unwrap();
    let segment = target.open(&engine);
    let local = region(&engine, &[7; 100], Access::LOCAL);
    cable.plug(false);
    let error = segment.write(0, &local.whole()).unwrap().wait().unwrap_err();
    assert!(error.to_string().contains("acknowledged nothing"), "{error}");
    let error = segment.write(0, &local.whole()).unwrap_err();
    assert!(matches!(error, Error::PeerGone { .. }), "{error:?}");
    assert!(error.to_string().contains("acknowledged nothing"), "{error}");
    cable.plug(true);
    works_again(&engine, &target.open(&engine));
}
