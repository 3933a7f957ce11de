//! Peers that misuse lists: a table that can't be one costs the lane, one that lies is refused whole, a slow one holds nobody up,
//! and answers that are not taken cost the target a few tables.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te_memory::{Access, Region};
use orbit_te_tcp::TcpConfig;
use orbit_te_transport::{OpErrorCode, OpKind};
use orbit_te_wire::{FRAME_BYTES, Frame, FrameOp, Limits, Piece, SessionId, Status};
use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::initiator::Initiator;
use support::peer::{RawLane, SESSION};
use support::target::Target;
use support::{eventually, pattern, pattern_bytes, watchdog};

const LEN: u64 = 256 * 1024;
const LIMIT: Duration = Duration::from_secs(5);

fn untouched(region: &Region) {
    let mut bytes = vec![0; region.len() as usize];
    region.read_at(0, &mut bytes).unwrap();
    assert!(bytes == pattern_bytes(1, 0, bytes.len()), "the target's memory changed");
    assert_eq!(region.leases(), 0, "a lease is left");
}

fn patterned(target: &Target) -> Region {
    target.region(LEN as usize, Access::SHARED, |at| pattern(1, at))
}

fn table(pieces: &[(u64, u64)]) -> Vec<u8> {
    pieces.iter().flat_map(|(offset, length)| Piece::new(*offset, *length).to_bytes()).collect()
}

/// Another peer's lane is served, quickly.
fn others_go_on(target: &Target, region: &Region) {
    let started = Instant::now();
    let number = target.seen.offered.load(Ordering::Acquire) as u32 + 100;
    let mut other = RawLane::open(target.at, SessionId(5), number);
    assert_eq!(other.write(region, 9, &pattern_bytes(1, 9, 2)), Status::Ok);
    let list = other.request(FrameOp::ReadList, region, 2, 3);
    other.send(&list, &table(&[(9, 2), (7, 1)]));
    let answer = other.answer();
    assert_eq!((answer.op, answer.id, answer.status), (FrameOp::ReadDone, list.id, Status::Ok));
    let mut bytes = [0; 3];
    other.stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [pattern(1, 9), pattern(1, 10), pattern(1, 7)]);
    assert!(started.elapsed() < Duration::from_secs(2), "another peer waited");
}

/// A count that no table has closes the lane, before its table is waited for.
#[test]
fn tables_that_are_none() {
    let _dog = watchdog("tables_that_are_none", Duration::from_secs(60));
    let target = Target::local();
    let region = patterned(&target);
    let mut number = 0;
    for op in [FrameOp::WriteList, FrameOp::ReadList] {
        for pieces in [0, 1025, 1_000_000, 1 << 32, (1 << 60) + 1, u64::MAX] {
            for begun in [false, true] {
                number += 1;
                let mut lane = RawLane::open(target.at, SESSION, number);
                let frame = lane.request(op, &region, pieces, 4096);
                let entries = if begun { table(&[(0, 1); 100]) } else { Vec::new() };
                // The target may close before it has taken all of it.
                let _ = lane.stream.write_all(&[&frame.encode()[..], &entries].concat());
                assert!(lane.is_closed(), "{op:?} of {pieces} pieces: the lane is still open");
            }
        }
    }
    untouched(&region);
    others_go_on(&target, &region);
}

/// A list write over the agreed limit closes the lane; a list read over it is refused, and so is a table that lies.
#[test]
fn tables_that_lie() {
    let _dog = watchdog("tables_that_lie", Duration::from_secs(60));
    let limits = Limits { payload_bytes: 4096, ..Limits::default() };
    let target = Target::start("127.0.0.1:0", TcpConfig { limits, ..TcpConfig::default() });
    let region = patterned(&target);
    let mut lane = RawLane::open(target.at, SESSION, 1);
    let rows: [(&[(u64, u64)], u64, Status, u64); 9] = [
        (&[(0, 10), (20, 10)], 21, Status::BadLength, 2),
        (&[(0, 10), (20, 10)], 19, Status::BadLength, 1),
        (&[(0, 10), (20, 10)], 9, Status::BadLength, 0),
        (&[(0, 10), (20, 10)], 0, Status::BadLength, 0),
        (&[(0, 10), (20, 0), (30, 10)], 20, Status::BadLength, 1),
        (&[(0, 10), (LEN - 9, 10)], 20, Status::OutOfRange, 1),
        (&[(0, 10), (u64::MAX, 10)], 20, Status::OutOfRange, 1),
        (&[(0, 10), (20, u64::MAX - 9)], 1, Status::BadLength, 0),
        (&[(0, 1), (20, u64::MAX)], 0, Status::BadLength, 0),
    ];
    for (pieces, length, status, piece) in rows {
        for op in [FrameOp::WriteList, FrameOp::ReadList] {
            let frame = lane.request(op, &region, pieces.len() as u64, length);
            let payload = if op == FrameOp::WriteList { vec![0xee; length as usize] } else { Vec::new() };
            lane.send(&frame, &[table(pieces), payload].concat());
            let answer = lane.answer();
            assert_eq!((answer.id, answer.status), (frame.id, status), "{op:?} {pieces:?} {length}");
            assert_eq!(answer.offset, piece, "{op:?} {pieces:?} {length}: the bad piece");
            untouched(&region);
        }
    }
    for (pieces, piece) in [([(20, 10), (0, 10)], 1), ([(0, 10), (9, 10)], 1), ([(0, 10), (0, 10)], 1)] {
        let frame = lane.request(FrameOp::WriteList, &region, 2, 20);
        lane.send(&frame, &[table(&pieces), vec![0xee; 20]].concat());
        let answer = lane.answer();
        assert_eq!((answer.id, answer.status, answer.offset), (frame.id, Status::Overlap, piece));
    }
    let over = lane.request(FrameOp::ReadList, &region, 2, 4097);
    lane.send(&over, &table(&[(0, 4096), (5000, 1)]));
    let answer = lane.answer();
    assert_eq!((answer.id, answer.status, answer.offset), (over.id, Status::BadLength, 2));
    let over = lane.request(FrameOp::WriteList, &region, 2, 4097);
    let _ = lane.stream.write_all(&[&over.encode()[..], &table(&[(0, 4096), (5000, 1)])].concat());
    assert!(lane.is_closed(), "a list write over the limit");
    untouched(&region);
    others_go_on(&target, &region);
}

/// A table that ends in the middle moves nothing and holds no region; a payload that does may have landed as far as it came.
#[test]
fn lists_that_are_cut_short() {
    let _dog = watchdog("lists_that_are_cut_short", Duration::from_secs(60));
    let target = Target::local();
    let region = patterned(&target);
    let pieces: Vec<_> = (0..1024).map(|k| (k * 256, 200)).collect();
    let entries = table(&pieces);
    let mut number = 0;
    for op in [FrameOp::WriteList, FrameOp::ReadList] {
        for sent in [0, 1, 15, 16, 8191, entries.len() - 1] {
            number += 1;
            let mut lane = RawLane::open(target.at, SESSION, number);
            let frame = lane.request(op, &region, 1024, 200 * 1024);
            lane.send(&frame, &entries[..sent]);
            drop(lane);
        }
    }
    eventually("the lanes are gone", LIMIT, || target.lanes() == 0);
    untouched(&region);
    for sent in [0usize, 1, 200, 201, 100_000] {
        let region = patterned(&target);
        number += 1;
        let mut lane = RawLane::open(target.at, SESSION, number);
        let frame = lane.request(FrameOp::WriteList, &region, 1024, 200 * 1024);
        lane.send(&frame, &[entries.clone(), vec![0xee; sent]].concat());
        eventually("the write is under way", LIMIT, || region.leases() == 1);
        drop(lane);
        eventually("the lease is given back", LIMIT, || region.leases() == 0);
        let mut found = vec![0; LEN as usize];
        region.read_at(0, &mut found).unwrap();
        for (at, byte) in found.iter().enumerate() {
            let within = at % 256 < 200 && at / 256 * 200 + at % 256 < sent;
            let fine = *byte == pattern(1, at as u64) || (within && *byte == 0xee);
            assert!(fine, "byte {at} with {sent} sent");
        }
    }
    others_go_on(&target, &region);
}

/// A table that comes byte by byte holds no region, costs no processor time while nothing comes, and is served in the end.
#[test]
fn a_table_that_drips() {
    let _dog = watchdog("a_table_that_drips", Duration::from_secs(60));
    let target = Target::local();
    let region = patterned(&target);
    let mut slow = RawLane::open(target.at, SESSION, 1);
    let frame = slow.request(FrameOp::WriteList, &region, 3, 6);
    slow.stream.write_all(&frame.encode()).unwrap();
    for (at, byte) in table(&[(1, 1), (5, 2), (9, 3)]).iter().enumerate() {
        if at % 12 == 0 {
            others_go_on(&target, &region);
            // The lease of the other's read is given back a moment after its last byte was sent.
            eventually("a table that is not complete holds no region", LIMIT, || region.leases() == 0);
        }
        slow.stream.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let before = target.cpu();
    std::thread::sleep(Duration::from_millis(400));
    let spent = target.cpu() - before;
    assert!(spent < Duration::from_millis(100), "the serving thread spins: {spent:?} in 400 ms");
    for byte in b"abcdef" {
        slow.stream.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let answer = slow.answer();
    assert_eq!((answer.op, answer.id, answer.status), (FrameOp::WriteDone, frame.id, Status::Ok));
    let mut want = pattern_bytes(1, 0, 13);
    (want[1], want[5], want[6]) = (b'a', b'b', b'c');
    want[9..12].copy_from_slice(b"def");
    assert_eq!(slow.read(&region, 0, 13), Ok(want));
}

/// A peer that asks for lists and takes no answer: the target keeps four of them with their tables, does not spin, serves others,
/// and goes on when the answers are taken, in order and whole.
#[test]
fn list_answers_that_are_not_read() {
    const ASKED: u64 = 60;
    let _dog = watchdog("list_answers_that_are_not_read", Duration::from_secs(60));
    let target = Target::local();
    let region = patterned(&target);
    let pieces: Vec<_> = (0..1024).rev().map(|k| (k * 256, 255)).collect();
    let length = 255 * 1024;
    let mut deaf = RawLane::open(target.at, SESSION, 1);
    let first = deaf.request(FrameOp::ReadList, &region, 1024, length);
    let mut taker = deaf.stream.try_clone().unwrap();
    let (entries, mut stream) = (table(&pieces), deaf.stream.try_clone().unwrap());
    let asker = std::thread::spawn(move || {
        for k in 0..ASKED {
            let frame = Frame { id: first.id + k, ..first };
            stream.write_all(&[&frame.encode()[..], &entries].concat()).unwrap();
        }
    });
    eventually("answers pile up", LIMIT, || region.leases() == 4);
    let (before, until) = (target.cpu(), Instant::now() + Duration::from_millis(500));
    while Instant::now() < until {
        assert!(region.leases() <= 4, "{} answers are kept", region.leases());
        std::thread::sleep(Duration::from_millis(1));
    }
    let spent = target.cpu() - before;
    assert!(spent < Duration::from_millis(150), "the serving thread spins: {spent:?} in 500 ms");
    others_go_on(&target, &region);
    let want: Vec<u8> = pieces.iter().flat_map(|(at, n)| pattern_bytes(1, *at, *n as usize)).collect();
    let mut bytes = vec![0; length as usize];
    for k in 0..ASKED {
        let mut header = [0; FRAME_BYTES];
        taker.read_exact(&mut header).unwrap();
        let answer = Frame::decode(&header).unwrap();
        assert_eq!((answer.op, answer.id, answer.status), (FrameOp::ReadDone, first.id + k, Status::Ok));
        taker.read_exact(&mut bytes).unwrap();
        assert!(bytes == want, "answer {k}");
    }
    asker.join().unwrap();
    eventually("the leases are given back", LIMIT, || region.leases() == 0);
    target.registry.retire(&region, LIMIT).unwrap();
}

/// A target that agreed to shorter payloads than this side's lists: such a list fails alone, and is not sent to cost the lane.
#[test]
fn a_list_over_the_peers_limit_fails_alone() {
    let _dog = watchdog("a_list_over_the_peers_limit_fails_alone", Duration::from_secs(60));
    let limits = Limits { payload_bytes: 4096, ..Limits::default() };
    let target = Target::start("127.0.0.1:0", TcpConfig { limits, ..TcpConfig::default() });
    let region = patterned(&target);
    let mut us = Initiator::new(TcpConfig::default());
    let link = us.connect(target.me.peer, target.at, SESSION);
    let local = us.region(&vec![7; 8192]);
    for kind in [OpKind::Write, OpKind::Read] {
        let within = us.begin_list(kind, link, &local, &region, &[(0, 4000), (5000, 96)]);
        let over = us.begin_list(kind, link, &local, &region, &[(0, 4000), (5000, 97)]);
        let whole = us.begin(kind, link, &local, &region, 0);
        for (token, want) in [(within, None), (over, Some(OpErrorCode::BadLength)), (whole, None)] {
            let result = us.wait(token, LIMIT).result;
            assert_eq!(result.err().map(|error| error.code), want, "{kind:?}, op {token}");
        }
    }
    assert_eq!(us.events.len(), 1, "the link came up, and stayed so: {:?}", us.events);
}
