//! Strangers at the listening port: whatever they say or leave unsaid, they are told in words or dropped in bounded time, and
//! others are served meanwhile.

mod support;

use orbit_te_memory::{Access, Region};
use orbit_te_tcp::TcpConfig;
use orbit_te_wire::hello::{PRELUDE_BYTES, VERSION_MAX, VERSION_MIN};
use orbit_te_wire::{AuthSlot, FrameOp, Hello, Limits, Role, SessionId, Status};
use std::io::Write;
use std::time::{Duration, Instant};
use support::peer::{RawLane, SESSION, connect, hello, is_closed, refusal, reply};
use support::target::Target;
use support::{eventually, pattern, watchdog};

/// A well-behaved peer on a lane of its own is served at once.
fn others_are_served(target: &Target, region: &Region, lane: u32) {
    let started = Instant::now();
    let mut good = RawLane::open(target.at, SESSION, lane);
    assert_eq!(good.write(region, 3, b"good"), Status::Ok);
    assert_eq!(good.read(region, 3, 4), Ok(b"good".to_vec()));
    let took = started.elapsed();
    assert!(took < Duration::from_secs(2), "a good peer waited {took:?}");
}

/// What a stranger sends, and what it is told: `None`, nothing at all.
fn check(said: &[u8], told: Option<&[&str]>) {
    let target = Target::local();
    let region = target.region(64, Access::SHARED, |_| 0);
    let mut stranger = connect(target.at);
    stranger.write_all(said).unwrap();
    match told {
        None => assert!(is_closed(&mut stranger), "not closed"),
        Some(words) => {
            let reason = refusal(&mut stranger);
            for word in words {
                assert!(reason.contains(word), "`{reason}` does not say `{word}`");
            }
            assert!(is_closed(&mut stranger), "refused, but not closed");
        }
    }
    assert_eq!(target.lanes(), 0);
    others_are_served(&target, &region, 1);
}

fn with(change: impl FnOnce(&mut Hello)) -> Vec<u8> {
    let mut hello = hello(SESSION, 9);
    change(&mut hello);
    hello.encode().unwrap()
}

/// A hello whose prelude is changed at this place.
fn with_prelude(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut said = with(|_| {});
    said[at..at + bytes.len()].copy_from_slice(bytes);
    said
}

#[test]
fn wrong_first_messages() {
    let _dog = watchdog("wrong_first_messages", Duration::from_secs(60));
    check(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", None);
    check(&[&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[0x5a; 200]].concat(), None);
    check(&[0xa5; 4096], None);
    check(&with_prelude(7, b"!"), None);
    let (low, high) = (VERSION_MIN.to_string(), VERSION_MAX.to_string());
    check(&with_prelude(8, &[9, 0, 12, 0]), Some(&[&low, &high, "9", "12"]));
    check(&with_prelude(8, &[0, 0, 0, 0]), Some(&[&low, &high, "0"]));
    check(&with_prelude(8, &[3, 0, 1, 0]), Some(&["lowest version"]));
    check(&with_prelude(12, &u32::MAX.to_le_bytes()), Some(&["4294967295", "4096"]));
    check(&with_prelude(12, &4097u32.to_le_bytes()), Some(&["4097", "4096"]));
    check(&with_prelude(12, &0u32.to_le_bytes()), Some(&["hello does not decode"]));
    check(&with_prelude(PRELUDE_BYTES, &[0xff; 4]), Some(&["hello does not decode"]));
    check(&with(|h| h.auth = AuthSlot { method: 3, data: vec![1] }), Some(&["authentication method 3"]));
    check(&with(|h| h.limits = Limits { payload_bytes: 0, ..h.limits }), Some(&["payload limit is zero"]));
    check(&with(|h| h.limits = Limits { lane_requests: 0, ..h.limits }), Some(&["requests on a lane"]));
    check(&with(|h| h.role = Role::Control), Some(&["control link"]));
}

/// A version that is not ours is named even when the rest of the hello makes no sense to us.
#[test]
fn another_version_with_another_body() {
    let _dog = watchdog("another_version_with_another_body", Duration::from_secs(60));
    let mut said = with_prelude(8, &[7, 0, 8, 0]);
    said[PRELUDE_BYTES..].fill(0xee);
    check(&said, Some(&["7", "8", &VERSION_MIN.to_string()]));
}

#[test]
fn a_hello_cut_short() {
    let _dog = watchdog("a_hello_cut_short", Duration::from_secs(60));
    let whole = with(|_| {});
    let target = Target::local();
    let region = target.region(64, Access::SHARED, |_| 0);
    for (lane, cut) in [0, 1, 7, PRELUDE_BYTES, PRELUDE_BYTES + 1, whole.len() - 1].into_iter().enumerate() {
        let mut stranger = connect(target.at);
        stranger.write_all(&whole[..cut]).unwrap();
        stranger.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_closed(&mut stranger), "cut at {cut}");
        others_are_served(&target, &region, lane as u32);
    }
}

/// One byte at a time: dropped after the time that a first message may take, however it is spread.
#[test]
fn a_slow_drip() {
    let _dog = watchdog("a_slow_drip", Duration::from_secs(60));
    let target = Target::local();
    let region = target.region(64, Access::SHARED, |_| 0);
    let whole = with(|_| {});
    let mut stranger = connect(target.at);
    stranger.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let started = Instant::now();
    for (k, byte) in whole.iter().cycle().enumerate() {
        let pause = Duration::from_millis(200);
        if stranger.write_all(&[*byte]).is_err() || is_closed(&mut stranger) {
            break;
        }
        if k % 8 == 0 {
            others_are_served(&target, &region, k as u32);
        }
        std::thread::sleep(pause);
        assert!(started.elapsed() < Duration::from_secs(15), "still let drip");
    }
    assert!(started.elapsed() > Duration::from_secs(3), "dropped sooner than it may be");
}

#[test]
fn three_hundred_silent_connections() {
    let _dog = watchdog("three_hundred_silent_connections", Duration::from_secs(60));
    let target = Target::local();
    let region = target.region(64, Access::SHARED, |_| 0);
    let mut silent: Vec<_> = (0..300).map(|_| connect(target.at)).collect();
    others_are_served(&target, &region, 1);
    // The oldest made room.
    silent[0].set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert!(is_closed(&mut silent[0]), "the oldest is still kept");
    others_are_served(&target, &region, 2);
    // The others are dropped when their time is over.
    let last = silent.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    assert!(is_closed(last), "a silent connection is kept for ever");
}

/// Lanes that break a rule of their session.
#[test]
fn lanes_out_of_order() {
    let _dog = watchdog("lanes_out_of_order", Duration::from_secs(60));
    let limits = Limits { session_lanes: 3, ..Limits::default() };
    let target = Target::start("127.0.0.1:0", TcpConfig { limits, ..TcpConfig::default() });
    let region = target.region(4096, Access::SHARED, |at| pattern(1, at));
    let refused = |lane: u32, word: &str| {
        let mut stream = connect(target.at);
        stream.write_all(&hello(SESSION, lane).encode().unwrap()).unwrap();
        let reason = refusal(&mut stream);
        assert!(reason.contains(word), "`{reason}` does not say `{word}`");
    };

    let mut first = RawLane::open(target.at, SESSION, 1);
    refused(1, "used before");
    assert_eq!(first.write(&region, 0, b"still here"), Status::Ok, "the lane of that number goes on");

    // Fenced before it ever came: it may not come later.
    let fence = first.request(FrameOp::Fence, &region, 0, 0);
    let fence = orbit_te_wire::Frame { region: orbit_te_wire::RegionId(5), ..fence };
    first.send(&fence, &[]);
    assert_eq!(first.answer().op, FrameOp::FenceDone);
    refused(5, "used before");
    // In another session the number is free.
    let _other = RawLane::open(target.at, SessionId(78), 5);

    let _second = RawLane::open(target.at, SESSION, 2);
    let third = RawLane::open(target.at, SESSION, 3);
    refused(4, "as many lanes");
    drop(third);
    eventually("the lane is gone", Duration::from_secs(5), || target.lanes() == 3);
    let mut fourth = RawLane::open(target.at, SESSION, 4);
    assert_eq!(fourth.read(&region, 0, 10), Ok(b"still here".to_vec()));
}

/// A hello and the first request in one packet.
#[test]
fn a_hurried_peer() {
    let _dog = watchdog("a_hurried_peer", Duration::from_secs(60));
    let target = Target::local();
    let region = target.region(64, Access::SHARED, |_| 0);
    let mut model = RawLane::open(target.at, SESSION, 1);
    let frame = model.request(FrameOp::Write, &region, 0, 3);
    let mut stream = connect(target.at);
    let hello = hello(SESSION, 2).encode().unwrap();
    stream.write_all(&[&hello[..], &frame.encode(), b"abc"].concat()).unwrap();
    reply(&mut stream);
    let mut hurried = model;
    hurried.stream = stream;
    assert_eq!(hurried.answer().status, Status::Ok);
    assert_eq!(hurried.read(&region, 0, 3), Ok(b"abc".to_vec()));
}
