//! Peers that misuse an established lane: each refused request gets its status and touches nothing, each broken rule costs the
//! lane and nobody else's, and nothing that a peer does or fails to do holds the target up.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te_memory::{Access, Region};
use orbit_te_tcp::TcpConfig;
use orbit_te_wire::{Frame, FrameOp, Generation, Limits, RegionId, SessionId, Status};
use std::io::Write;
use std::time::{Duration, Instant};
use support::peer::{RawLane, SESSION};
use support::target::Target;
use support::{eventually, pattern, pattern_bytes, watchdog};

const LEN: u64 = 256 * 1024;

fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

fn untouched(region: &Region) {
    assert!(contents(region) == pattern_bytes(1, 0, region.len() as usize), "the target's memory changed");
    assert_eq!(region.leases(), 0, "a lease is left");
}

/// A write that is refused: the payload is drained, the lane goes on, nothing was touched.
fn check_refused(
    target: &Target,
    region: &Region,
    want: Status,
    payload: usize,
    change: impl Fn(&mut Frame),
) {
    let lane = &mut RawLane::open(
        target.at,
        SESSION,
        1000 + target.seen.offered.load(std::sync::atomic::Ordering::Acquire) as u32,
    );
    let good = target.region(LEN as usize, Access::SHARED, |_| 0);
    let mut frame = lane.request(FrameOp::Write, region, 0, payload as u64);
    change(&mut frame);
    let bytes = vec![0xee; frame.length as usize];
    lane.send(&frame, &bytes);
    let answer = lane.answer();
    assert_eq!((answer.op, answer.id, answer.status), (FrameOp::WriteDone, frame.id, want));
    untouched(region);
    // A read with the same fault, whose answer has no payload.
    if !matches!(want, Status::AccessDenied) {
        let mut read = Frame { op: FrameOp::Read, id: frame.id + 1000, ..frame };
        read.length = frame.length;
        lane.send(&read, &[]);
        let answer = lane.answer();
        assert_eq!((answer.op, answer.id, answer.status), (FrameOp::ReadDone, read.id, want));
    }
    // The next good request is served.
    assert_eq!(lane.write(&good, 1, b"next"), Status::Ok);
    assert_eq!(lane.read(&good, 0, 6), Ok(b"\0next\0".to_vec()));
    untouched(region);
    target.registry.retire(&good, Duration::from_secs(5)).unwrap();
}

#[test]
fn refused_requests() {
    let _dog = watchdog("refused_requests", Duration::from_secs(60));
    let target = Target::local();
    let region = target.region(LEN as usize, Access::SHARED, |at| pattern(1, at));
    let read_only = target.region(LEN as usize, Access::SHARED_READ, |at| pattern(1, at));
    let private = target.region(LEN as usize, Access::LOCAL, |at| pattern(1, at));
    for payload in [1, 63, 64, 65, 65_536, 65_537, LEN as usize] {
        check_refused(&target, &region, Status::UnknownRegion, payload, |f| f.region = RegionId(u64::MAX));
        check_refused(&target, &region, Status::BadKey, payload, |f| f.key ^= 1);
        check_refused(&target, &region, Status::StaleGeneration, payload, |f| f.generation = Generation(0));
        check_refused(&target, &region, Status::OutOfRange, payload, |f| f.offset = LEN);
        check_refused(&target, &region, Status::OutOfRange, payload, |f| f.offset = u64::MAX);
        check_refused(&target, &region, Status::OutOfRange, payload, |f| f.offset = LEN - f.length + 1);
        check_refused(&target, &region, Status::OutOfRange, payload, |f| f.offset = u64::MAX - f.length + 1);
        check_refused(&target, &read_only, Status::AccessDenied, payload, |_| {});
        check_refused(&target, &private, Status::AccessDenied, payload, |_| {});
    }
    check_refused(&target, &region, Status::OutOfRange, 0, |f| f.length = LEN + 1);
    check_refused(&target, &region, Status::BadLength, 0, |_| {});
    target.registry.revoke(&region, Duration::from_secs(5)).unwrap();
    check_refused(&target, &region, Status::StaleGeneration, 100, |f| f.generation = Generation(1));
    target.registry.retire(&region, Duration::from_secs(5)).unwrap();
    let mut lane = RawLane::open(target.at, SESSION, 1);
    assert_eq!(lane.write(&region, 0, b"late"), Status::UnknownRegion);
}

/// A broken rule costs the lane; the region and other lanes go on.
fn check_closed(what: &str, config: TcpConfig, say: impl Fn(&mut RawLane, &Region) -> Vec<u8>) {
    let target = Target::start("127.0.0.1:0", config);
    let region = target.region(LEN as usize, Access::SHARED, |at| pattern(1, at));
    let mut other = RawLane::open(target.at, SESSION, 2);
    let mut lane = RawLane::open(target.at, SESSION, 1);
    let bytes = say(&mut lane, &region);
    // The target may close before it has taken all of it.
    let _ = lane.stream.write_all(&bytes);
    assert!(lane.is_closed(), "{what}: the lane is still open");
    untouched(&region);
    assert_eq!(other.write(&region, 9, b"on"), Status::Ok, "{what}");
    assert_eq!(other.read(&region, 9, 2), Ok(b"on".to_vec()), "{what}");
    target.registry.retire(&region, Duration::from_secs(5)).unwrap();
}

#[test]
fn broken_rules() {
    let _dog = watchdog("broken_rules", Duration::from_secs(60));
    let normal = TcpConfig::default();
    let short = TcpConfig { limits: Limits { payload_bytes: 1024, ..Limits::default() }, ..normal };
    let damaged = |at: usize, value: u8| {
        move |lane: &mut RawLane, region: &Region| {
            let mut bytes = lane.request(FrameOp::Write, region, 0, 4).encode().to_vec();
            bytes[at] = value;
            if at < 60 {
                let crc = crc32c(&bytes[..60]);
                bytes[60..64].copy_from_slice(&crc.to_le_bytes());
            }
            bytes.extend_from_slice(b"evil");
            bytes
        }
    };
    check_closed("a wrong header checksum", normal, damaged(60, 0x5a));
    check_closed("an unknown op", normal, damaged(2, 99));
    check_closed("an unknown flag", normal, damaged(3, 2));
    check_closed("a request with a status", normal, damaged(4, 1));
    check_closed("a foreign frame magic", normal, damaged(0, b'X'));
    check_closed("garbage", normal, |_, _| vec![0x33; 4096]);
    for op in [FrameOp::WriteDone, FrameOp::ReadDone, FrameOp::FenceDone] {
        check_closed("an answer", normal, move |lane, region| {
            let mut bytes = lane.request(op, region, 0, 4).encode().to_vec();
            bytes.extend_from_slice(b"evil");
            bytes
        });
    }
    check_closed("a write over the agreed limit", short, |lane, region| {
        let mut bytes = lane.request(FrameOp::Write, region, 0, 1025).encode().to_vec();
        bytes.resize(64 + 1025, 0xee);
        bytes
    });
    check_closed("a write of all memory there is", normal, |lane, region| {
        lane.request(FrameOp::Write, region, 0, u64::MAX).encode().to_vec()
    });
    check_closed("a fence of itself", normal, |lane, region| {
        let frame = lane.request(FrameOp::Fence, region, 0, 0);
        Frame { region: RegionId(1), ..frame }.encode().to_vec()
    });
    check_closed("a fence of a number that is none", normal, |lane, region| {
        let frame = lane.request(FrameOp::Fence, region, 0, 0);
        Frame { region: RegionId(1 << 40), ..frame }.encode().to_vec()
    });
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

/// A read over the agreed limit is an answer, not a broken rule: no payload comes that could be out of step.
#[test]
fn a_read_over_the_limit() {
    let _dog = watchdog("a_read_over_the_limit", Duration::from_secs(60));
    let limits = Limits { payload_bytes: 1024, ..Limits::default() };
    let target = Target::start("127.0.0.1:0", TcpConfig { limits, ..TcpConfig::default() });
    let region = target.region(LEN as usize, Access::SHARED, |at| pattern(1, at));
    let mut lane = RawLane::open(target.at, SESSION, 1);
    assert_eq!(lane.read(&region, 0, 1025), Err(Status::BadLength));
    assert_eq!(lane.read(&region, 7, 1024), Ok(pattern_bytes(1, 7, 1024)));
}

/// A payload that ends in the middle: what came may have landed, what did not come has not, and the lease is given back.
#[test]
fn a_truncated_payload() {
    let _dog = watchdog("a_truncated_payload", Duration::from_secs(60));
    for sent in [0, 1, 4096, 100_000] {
        let target = Target::local();
        let region = target.region(LEN as usize, Access::SHARED, |at| pattern(1, at));
        let mut lane = RawLane::open(target.at, SESSION, 1);
        let frame = lane.request(FrameOp::Write, &region, 100, 200_000);
        lane.send(&frame, &vec![0xee; sent]);
        eventually("the write is under way", Duration::from_secs(5), || region.leases() == 1);
        let early = target.registry.retire(&region, Duration::from_millis(20));
        assert!(early.is_err(), "a region with a write under way was retired");
        drop(lane);
        target.registry.retire(&region, Duration::from_secs(5)).unwrap();
        let base = region.as_ptr().as_ptr();
        for at in 0..LEN {
            // SAFETY: `at` is inside of the region, whose backing this test holds; nobody writes it any more.
            let found = unsafe { base.add(at as usize).read_volatile() };
            let old = pattern(1, at);
            let may_be_new = (100..100 + sent as u64).contains(&at);
            assert!(found == old || (may_be_new && found == 0xee), "byte {at} with {sent} sent");
        }
    }
}

/// A peer that asks and asks and takes no answer: the target keeps a bounded number of answers, does not spin, and others are
/// served.
#[test]
fn answers_that_are_not_read() {
    let _dog = watchdog("answers_that_are_not_read", Duration::from_secs(60));
    let target = Target::local();
    let region = target.region(LEN as usize, Access::SHARED, |at| pattern(1, at));
    let limit = u64::from(Limits::default().lane_requests);
    for (lane, read) in [(1, true), (2, false)] {
        let mut deaf = RawLane::open(target.at, SESSION, lane);
        deaf.stream.set_nonblocking(true).unwrap();
        let bad = Frame { key: 0, ..deaf.request(FrameOp::Read, &region, 0, LEN) };
        let good = deaf.request(FrameOp::Read, &region, 0, LEN);
        let request = if read { good } else { bad }.encode().repeat(1024);
        let mut full_since = None;
        let until = Instant::now() + Duration::from_secs(30);
        while full_since.is_none_or(|t: Instant| t.elapsed() < Duration::from_millis(300)) {
            assert!(Instant::now() < until, "the target takes requests without end");
            match deaf.stream.write(&request) {
                Ok(n) if n % 64 == 0 => full_since = None,
                // Whole frames only, so that the stream stays in step.
                Ok(n) => {
                    let rest = &request[..][n % 64..64].to_vec();
                    deaf.stream.set_nonblocking(false).unwrap();
                    deaf.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
                    let full = deaf.stream.write_all(rest).is_err();
                    deaf.stream.set_nonblocking(true).unwrap();
                    if full {
                        break;
                    }
                }
                Err(_) => {
                    full_since.get_or_insert_with(Instant::now);
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        assert!(region.leases() <= limit, "{} answers are kept", region.leases());
        let before = target.cpu();
        std::thread::sleep(Duration::from_millis(500));
        let spent = target.cpu() - before;
        assert!(spent < Duration::from_millis(100), "the serving thread spins: {spent:?} in 500 ms");
        let started = Instant::now();
        let mut other = RawLane::open(target.at, SessionId(5), lane);
        assert_eq!(other.write(&region, 0, &pattern_bytes(1, 0, 4)), Status::Ok);
        assert!(started.elapsed() < Duration::from_secs(2), "another peer waited");
        drop(deaf);
    }
    eventually("the leases are given back", Duration::from_secs(5), || region.leases() == 0);
    target.registry.retire(&region, Duration::from_secs(5)).unwrap();
}

/// A fence closes the other lane at once, in the middle of its payload, and nothing of it lands afterwards.
#[test]
fn a_fence_of_another_lane() {
    let _dog = watchdog("a_fence_of_another_lane", Duration::from_secs(60));
    let target = Target::local();
    let region = target.region(LEN as usize, Access::SHARED, |at| pattern(1, at));
    let mut slow = RawLane::open(target.at, SESSION, 1);
    let mut stranger = RawLane::open(target.at, SessionId(5), 1);
    let mut lane = RawLane::open(target.at, SESSION, 2);
    let frame = slow.request(FrameOp::Write, &region, 0, LEN);
    slow.send(&frame, &vec![0xee; 1000]);
    eventually("the write is under way", Duration::from_secs(5), || region.leases() == 1);
    let fence = Frame { region: RegionId(1), ..lane.request(FrameOp::Fence, &region, 0, 0) };
    lane.send(&fence, &[]);
    let answer = lane.answer();
    assert_eq!((answer.op, answer.id, answer.status), (FrameOp::FenceDone, fence.id, Status::Ok));
    assert_eq!(region.leases(), 0, "fenced, and still a lease");
    let after = contents(&region);
    let _ = slow.stream.write_all(&vec![0xee; LEN as usize - 1000]);
    assert!(slow.is_closed());
    assert!(contents(&region) == after, "bytes landed after the fence");
    // A lane of the same number in another session is not meant.
    assert_eq!(stranger.write(&region, 0, b"x"), Status::Ok);
    // A second fence of the same lane says the same.
    lane.send(&Frame { id: fence.id + 100, ..fence }, &[]);
    assert_eq!(lane.answer().op, FrameOp::FenceDone);
}
