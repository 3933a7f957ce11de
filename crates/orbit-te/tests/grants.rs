//! What peers may reach, for how long, and how that ends: each grant is one session's own, and once it is revoked nothing lands.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{
    Access, Config, Engine, Error, ExposeOptions, GrantInfo, MemoryError, OpErrorCode, RefusalCode,
    TransferError,
};
use orbit_te_wire::{FrameOp, Status};
use std::time::{Duration, Instant};
use support::child::Target;
use support::raw::{RawPeer, request};
use support::{SOON, contents, eventually, pair, region, watchdog};

const NONE: Duration = Duration::ZERO;

fn code(result: Result<orbit_te::Receipt, TransferError>) -> Option<OpErrorCode> {
    result.err().and_then(|error| error.op_code())
}

/// The grants of sessions; tokens have theirs too.
fn of_peers(engine: &Engine) -> Vec<GrantInfo> {
    engine.grants().into_iter().filter(|grant| grant.peer.is_some()).collect()
}

#[test]
fn child_target() {
    support::child::run();
}

#[test]
fn opening_a_segment_again_is_the_same_grant() {
    let _dog = watchdog("opening_a_segment_again_is_the_same_grant", Duration::from_secs(60));
    let pair = pair(4096);
    let address = format!("{}/pool", pair.target.address().unwrap());
    for _ in 0..20 {
        pair.engine.open(&address).wait(SOON).unwrap();
    }
    let grants = of_peers(&pair.target);
    assert_eq!(grants.len(), 1, "{grants:?}");
    let grant = &grants[0];
    assert_eq!((grant.segment.as_str(), grant.region), ("pool", pair.remote.id()));
    assert_eq!((grant.peer, grant.access), (Some(pair.engine.peer_id()), Access::SHARED));
    assert_eq!((grant.expires_in, grant.requests), (None, 0));
    let token = pair.target.grants().into_iter().find(|g| g.peer.is_none()).unwrap();
    assert_eq!(token.segment, "pool");
}

/// One grant is revoked: its holder is refused with a status of its own, others go on, and opening again helps.
#[test]
fn a_revoked_grant_is_refused_and_others_go_on() {
    let _dog = watchdog("a_revoked_grant_is_refused_and_others_go_on", Duration::from_secs(60));
    let pair = pair(4096);
    let address = format!("{}/pool", pair.target.address().unwrap());
    let other = Engine::builder().no_listen().start().unwrap();
    let theirs = other.open(&address).wait(SOON).unwrap();
    let (ours, local) =
        (region(&pair.engine, &[5; 64], Access::LOCAL), region(&other, &[6; 64], Access::LOCAL));
    pair.segment.write(0, &ours.whole()).unwrap().wait().unwrap();
    theirs.write(64, &local.whole()).unwrap().wait().unwrap();

    let mine = of_peers(&pair.target).into_iter().find(|g| g.peer == Some(pair.engine.peer_id())).unwrap();
    pair.target.revoke_grant(mine.id, SOON).unwrap();
    assert_eq!(code(pair.segment.write(0, &ours.whole()).unwrap().wait()), Some(OpErrorCode::GrantEnded));
    assert_eq!(code(pair.segment.read(0, &ours.whole()).unwrap().wait()), Some(OpErrorCode::GrantEnded));
    theirs.write(64, &local.whole()).unwrap().wait().unwrap();

    let again = pair.engine.open(&address).wait(SOON).unwrap();
    again.write(0, &ours.whole()).unwrap().wait().unwrap();
    assert_eq!(code(pair.segment.write(0, &ours.whole()).unwrap().wait()), Some(OpErrorCode::GrantEnded));
    // All of them are stale after this.
    pair.target.revoke(&pair.remote, SOON).unwrap();
    for segment in [&pair.segment, &again, &theirs] {
        let local = if std::ptr::eq(segment, &theirs) { &local } else { &ours };
        let result = segment.write(0, &local.whole()).unwrap().wait();
        assert_eq!(code(result), Some(OpErrorCode::StaleGeneration));
    }
    assert!(pair.target.grants().is_empty());
    let unknown = pair.target.revoke_grant(mine.id, SOON);
    assert!(matches!(unknown, Err(Error::Memory(MemoryError::UnknownGrant { .. }))), "{unknown:?}");
}

/// A token is a grant like any other: it can be narrowed, and revoked alone.
#[test]
fn rights_are_narrowed_for_names_and_tokens() {
    let _dog = watchdog("rights_are_narrowed_for_names_and_tokens", Duration::from_secs(60));
    let target = Engine::builder().start().unwrap();
    let memory = region(&target, &[3; 64], Access::SHARED);
    let narrowed = |access| ExposeOptions { access: Some(access), ..ExposeOptions::default() };
    for wrong in [Access::empty(), Access::LOCAL] {
        let refused = target.expose_with("read", &memory, narrowed(wrong));
        assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    }
    let token = target.expose_with("read", &memory, narrowed(Access::REMOTE_READ)).unwrap();
    let engine = Engine::builder().no_listen().start().unwrap();
    let local = region(&engine, &[9; 64], Access::LOCAL);
    let address = format!("{}/read", target.address().unwrap());
    for segment in [&address, &token.to_token().unwrap()] {
        let segment = engine.open(segment).wait(SOON).unwrap();
        assert_eq!(segment.access(), Access::REMOTE_READ);
        assert!(matches!(segment.write(0, &local.whole()), Err(Error::BadRequest { .. })));
        segment.read(0, &local.whole()).unwrap().wait().unwrap();
    }
    // A peer that asks all the same is refused by the target.
    let mut raw = RawPeer::connect(target.address().unwrap(), 5);
    let mut lane = raw.lane(1);
    for descriptor in [raw.open("read").unwrap(), token.descriptor.clone()] {
        let write = request(FrameOp::Write, &descriptor, 0, 8);
        assert_eq!(lane.ask(&write, &[1; 8]), Status::AccessDenied);
        assert_eq!(lane.ask(&request(FrameOp::Read, &descriptor, 0, 8), &[]), Status::Ok);
    }
    assert_eq!(contents(&memory), [3; 64]);
    let bearer = target.grants().into_iter().find(|g| g.peer.is_none()).unwrap();
    target.revoke_grant(bearer.id, SOON).unwrap();
    assert_eq!(lane.ask(&request(FrameOp::Read, &token.descriptor, 0, 8), &[]), Status::GrantEnded);
}

#[test]
fn a_grant_expires_and_opening_again_renews_it() {
    let _dog = watchdog("a_grant_expires_and_opening_again_renews_it", Duration::from_secs(60));
    let target = Engine::builder().start().unwrap();
    let memory = region(&target, &[3; 64], Access::SHARED);
    let live = Duration::from_millis(300);
    let options = ExposeOptions { time_to_live: Some(live), ..ExposeOptions::default() };
    target.expose_with("brief", &memory, options).unwrap();
    let engine = Engine::builder().no_listen().start().unwrap();
    let local = region(&engine, &[9; 64], Access::LOCAL);
    let address = format!("{}/brief", target.address().unwrap());
    let mut segment = engine.open(&address).wait(SOON).unwrap();
    let begun = Instant::now();
    let first = of_peers(&target)[0].clone();
    assert!(first.expires_in.is_some_and(|left| left <= live));
    // Opened again and again it lives on, well past its time. On a machine that stands still for longer it may not.
    let (mut last, mut longest) = (begun, NONE);
    while begun.elapsed() < 2 * live {
        segment = engine.open(&address).wait(SOON).unwrap();
        longest = longest.max(last.elapsed());
        last = Instant::now();
        std::thread::sleep(Duration::from_millis(10));
    }
    let read = segment.read(0, &local.whole()).unwrap().wait();
    let renewed = of_peers(&target).first().map(|grant| grant.id);
    if longest.max(last.elapsed()) < live {
        read.unwrap();
        assert_eq!(renewed, Some(first.id));
    }
    eventually("the grant is over", SOON, || of_peers(&target).is_empty());
    let late = segment.read(0, &local.whole()).unwrap().wait();
    assert_eq!(code(late.clone()), Some(OpErrorCode::GrantEnded));
    assert!(late.unwrap_err().to_string().contains("open the segment again"));
    let again = engine.open(&address).wait(SOON).unwrap();
    again.read(0, &local.whole()).unwrap().wait().unwrap();
    assert_ne!(of_peers(&target)[0].id, first.id);
}

/// What one session was told is of no use to another, nor is a generation that was made up.
#[test]
fn keys_are_of_no_use_to_others() {
    let _dog = watchdog("keys_are_of_no_use_to_others", Duration::from_secs(60));
    let target = Engine::builder().start().unwrap();
    let memory = region(&target, &[3; 64], Access::SHARED);
    target.expose("pool", &memory).unwrap();
    let at = target.address().unwrap();
    let (mut owner, thief) = (RawPeer::connect(at, 5), RawPeer::connect(at, 6));
    let descriptor = owner.open("pool").unwrap();
    let read = request(FrameOp::Read, &descriptor, 0, 8);
    let (mut own, mut others) = (owner.lane(1), thief.lane(1));
    assert_eq!(own.ask(&read, &[]), Status::Ok);
    assert_eq!(others.ask(&read, &[]), Status::BadKey);
    target.revoke(&memory, SOON).unwrap();
    assert_eq!(own.ask(&read, &[]), Status::StaleGeneration);
    let mut made_up = read;
    made_up.generation.0 += 1;
    assert_eq!(own.ask(&made_up, &[]), Status::BadKey);
}

#[test]
fn a_session_has_a_bounded_number_of_grants() {
    let _dog = watchdog("a_session_has_a_bounded_number_of_grants", Duration::from_secs(60));
    let config = Config { session_grants: 3, ..Config::default() };
    let target = Engine::builder().config(config).start().unwrap();
    let memory = region(&target, &[3; 64], Access::SHARED);
    for name in ["a", "b", "c", "d"] {
        target.expose(name, &memory).unwrap();
    }
    let mut raw = RawPeer::connect(target.address().unwrap(), 5);
    for name in ["a", "b", "c", "a"] {
        raw.open(name).unwrap();
    }
    assert_eq!(raw.open("d"), Err(RefusalCode::OverLimit));
    let mut other = RawPeer::connect(target.address().unwrap(), 6);
    other.open("d").unwrap();
    // One that is over makes room.
    target.revoke_grant(of_peers(&target)[0].id, SOON).unwrap();
    raw.open("d").unwrap();
}

/// A payload is half landed when its right ends: it is waited for until the limit, then its lane is closed, and not one more
/// byte lands, whatever the peer sends.
#[test]
fn nothing_lands_after_a_grant_was_revoked() {
    let _dog = watchdog("nothing_lands_after_a_grant_was_revoked", Duration::from_secs(120));
    const LENGTH: usize = 1 << 20;
    let target = Engine::builder().start().unwrap();
    let at = target.address().unwrap();
    for round in 0..8u32 {
        let memory = region(&target, &vec![0; LENGTH], Access::SHARED);
        target.expose("pool", &memory).unwrap();
        let mut raw = RawPeer::connect(at, 5);
        let descriptor = raw.open("pool").unwrap();
        let mut lane = raw.lane(1);
        assert!(lane.send(&request(FrameOp::Write, &descriptor, 0, LENGTH as u64), &vec![7; LENGTH / 2]));
        eventually("half of it has landed", SOON, || contents(&memory)[LENGTH / 2 - 1] == 7);
        let grant = of_peers(&target)[0].clone();
        assert_eq!((grant.requests, memory.leases()), (1, 1));
        let begun = Instant::now();
        let limit = Duration::from_millis(u64::from(round % 3) * 20);
        match round % 2 {
            0 => target.revoke_grant(grant.id, limit).unwrap(),
            _ => target.revoke(&memory, limit).unwrap(),
        }
        assert!(begun.elapsed() >= limit && begun.elapsed() < limit + Duration::from_millis(1500));
        memory.write_at(0, &vec![9; LENGTH]).unwrap();
        // The rest goes nowhere.
        lane.send_rest(&vec![8; LENGTH / 2]);
        assert!(lane.is_closed_within(SOON));
        assert!(contents(&memory).iter().all(|byte| *byte == 9), "bytes landed after the revocation");
        // The session stands, and may ask again.
        let mut lane = raw.lane(2);
        let stale = lane.ask(&request(FrameOp::Read, &descriptor, 0, 8), &[]);
        assert_eq!(stale, if round % 2 == 0 { Status::GrantEnded } else { Status::StaleGeneration });
        let fresh = raw.open("pool").unwrap();
        assert_eq!(lane.ask(&request(FrameOp::Read, &fresh, 0, 8), &[]), Status::Ok);
        target.retire(&memory, SOON).unwrap();
    }
}

/// A write that is under way when its right ends, and is not stalled, is waited for.
#[test]
fn a_request_that_goes_on_is_waited_for() {
    let _dog = watchdog("a_request_that_goes_on_is_waited_for", Duration::from_secs(60));
    let target = Engine::builder().start().unwrap();
    let memory = region(&target, &[0; 1000], Access::SHARED);
    target.expose("pool", &memory).unwrap();
    let mut raw = RawPeer::connect(target.address().unwrap(), 5);
    let descriptor = raw.open("pool").unwrap();
    let mut lane = raw.lane(1);
    assert!(lane.send(&request(FrameOp::Write, &descriptor, 0, 1000), &[7; 500]));
    eventually("it is under way", SOON, || of_peers(&target)[0].requests == 1);
    let id = of_peers(&target)[0].id;
    std::thread::scope(|scope| {
        let revoking = scope.spawn(|| target.revoke_grant(id, SOON));
        // Refused already, while the old one goes on.
        let mut number = 1;
        eventually("the grant is refused", SOON, || {
            number += 1;
            let mut other = raw.lane(number);
            other.ask(&request(FrameOp::Read, &descriptor, 0, 8), &[]) == Status::GrantEnded
        });
        assert!(!revoking.is_finished());
        lane.send_rest(&[7; 500]);
        revoking.join().unwrap().unwrap();
    });
    assert_eq!(lane.status(), Status::Ok);
    assert_eq!(contents(&memory), [7; 1000]);
}

/// A process is killed: its grants are back at once, although it held a request open.
#[test]
fn a_peer_that_dies_gives_its_grants_back() {
    let _dog = watchdog("a_peer_that_dies_gives_its_grants_back", Duration::from_secs(60));
    let target = Engine::builder().start().unwrap();
    let memory = region(&target, &[0; 1000], Access::SHARED);
    target.expose("pool", &memory).unwrap();
    let at = target.address().unwrap();
    for _ in 0..5 {
        let mut raw = RawPeer::connect(at, 5);
        let descriptor = raw.open("pool").unwrap();
        let mut lane = raw.lane(1);
        assert!(lane.send(&request(FrameOp::Write, &descriptor, 0, 1000), &[7; 500]));
        eventually("it is under way", SOON, || memory.leases() == 1);
        assert_eq!(of_peers(&target).len(), 1);
        drop(raw);
        // The lane stands still: its session is gone, and everything of it.
        eventually("its grants are back", Duration::from_secs(2), || {
            of_peers(&target).is_empty() && memory.leases() == 0
        });
        assert!(lane.is_closed_within(SOON));
    }
    // And a real process.
    let mut child = Target::opener(&format!("{at}/pool"));
    eventually("the child has opened it", SOON, || of_peers(&target).len() == 1);
    child.kill();
    eventually("its grants are back", Duration::from_secs(2), || of_peers(&target).is_empty());
    target.retire(&memory, NONE).unwrap();
}
