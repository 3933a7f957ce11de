//! Prepared lists: every piece goes where it belongs and nothing else is touched; bad lists are refused with the first bad piece,
//! and nothing has moved.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{
    Access, Batch, Config, Engine, Error, Layout, ListError, ListFault, OpKind, Region, Side, TcpConfig,
};
use orbit_te_wire::Limits;
use proptest::prelude::*;
use std::time::Duration;
use support::{Pair, Random, contents, pair, pair_of, pattern_bytes, region, watchdog};

const SIZE: usize = 1 << 20;

/// The runs of a layout, one by one.
fn runs(layout: &Layout<'_>) -> Vec<(u64, u64)> {
    match layout {
        Layout::Runs(runs) => runs.to_vec(),
        Layout::Strided { offset, stride_bytes, block_bytes, count } => {
            (0..*count).map(|n| (offset + n * stride_bytes, *block_bytes)).collect()
        }
        Layout::Pages { offset, page_bytes, pages } => {
            pages.iter().map(|n| (offset + u64::from(*n) * page_bytes, *page_bytes)).collect()
        }
    }
}

fn bytes_of(runs: &[(u64, u64)]) -> impl Iterator<Item = usize> + '_ {
    runs.iter().flat_map(|(offset, length)| *offset as usize..(offset + length) as usize)
}

/// Moves a list and compares every byte of both sides with a model.
fn check(kind: OpKind, here: Layout<'_>, there: Layout<'_>) {
    check_between(pair(SIZE), kind, here, there);
}

/// The same between these engines; how many requests it took.
fn check_between(pair: Pair, kind: OpKind, here: Layout<'_>, there: Layout<'_>) -> usize {
    let _watchdog = watchdog("a list", Duration::from_secs(60));
    let Pair { engine: initiator, segment, remote: target_region, target: _target } = pair;
    let ours = region(&initiator, &pattern_bytes(7, 0, SIZE), Access::LOCAL);
    let before = (contents(&ours), contents(&target_region));
    let list = initiator.prepare(kind, &ours.whole(), here, &segment, there).unwrap();
    for _ in 0..2 {
        let mut batch = Batch::new();
        batch.list(&list);
        let receipt = initiator.submit(batch).unwrap().wait().unwrap();
        assert_eq!(receipt.bytes, list.bytes());
    }
    let (mut local, mut remote) = before;
    for (l, r) in bytes_of(&runs(&here)).zip(bytes_of(&runs(&there))) {
        match kind {
            OpKind::Write => remote[r] = local[l],
            OpKind::Read => local[l] = remote[r],
        }
    }
    assert!(contents(&ours) == local, "{kind:?}: our side is not as it should be");
    assert!(contents(&target_region) == remote, "{kind:?}: the peer's side is not as it should be");
    list.requests()
}

/// Lists are cut to the lower limit of the two sides, whichever has it.
#[test]
fn a_peer_with_a_lower_limit() {
    let limited = |payload_bytes| {
        let limits = Limits { payload_bytes, ..Limits::default() };
        Config { tcp: TcpConfig { limits, ..TcpConfig::default() }, ..Config::default() }
    };
    // 100 pieces of 1,000 bytes: some in a request, one in each, and each over the limit.
    for (payload_bytes, requests) in [(10_000, 10), (1000, 100), (1001, 100), (700, 100)] {
        for kind in [OpKind::Write, OpKind::Read] {
            let target = Engine::builder().config(limited(payload_bytes)).start().unwrap();
            let lower_there = pair_of(SIZE, target, Config::default());
            let target = Engine::builder().start().unwrap();
            let lower_here = pair_of(SIZE, target, limited(payload_bytes));
            for pair in [lower_there, lower_here] {
                let here = Layout::Strided { offset: 5, stride_bytes: 1500, block_bytes: 1000, count: 100 };
                let there = Layout::Strided { offset: 9, stride_bytes: 2500, block_bytes: 1000, count: 100 };
                assert_eq!(check_between(pair, kind, here, there), requests, "{payload_bytes}");
            }
        }
    }
}

/// A subset is cut as the whole is.
#[test]
fn a_subset_to_a_peer_with_a_lower_limit() {
    let limits = Limits { payload_bytes: 3000, ..Limits::default() };
    let tcp = TcpConfig { limits, ..TcpConfig::default() };
    let target = Engine::builder().config(Config { tcp, ..Config::default() }).start().unwrap();
    let pair = pair_of(SIZE, target, Config::default());
    let ours = region(&pair.engine, &pattern_bytes(7, 0, SIZE), Access::LOCAL);
    let all = Layout::Strided { offset: 0, stride_bytes: 2000, block_bytes: 1000, count: 100 };
    let list = pair.engine.prepare(OpKind::Write, &ours.whole(), all, &pair.segment, all).unwrap();
    let numbers: Vec<u32> = (0..100).step_by(3).collect();
    let mut batch = Batch::new();
    batch.subset(&list, &numbers).unwrap();
    assert_eq!(batch.len(), numbers.len().div_ceil(3));
    pair.engine.submit(batch).unwrap().wait().unwrap();
    let (sent, came) = (contents(&ours), contents(&pair.remote));
    for piece in 0..100 {
        let bytes = piece * 2000..piece * 2000 + 1000;
        let wanted = if piece % 3 == 0 { sent[bytes.clone()].to_vec() } else { vec![0; 1000] };
        assert!(came[bytes] == wanted, "piece {piece}");
    }
}

#[test]
fn every_form_on_both_sides_and_both_ways() {
    let pages: Vec<u32> = (0..200).map(|n| (n * 37) % 251).collect();
    let forms = [
        Layout::Pages { offset: 13, page_bytes: 4000, pages: &pages },
        Layout::Strided { offset: 5, stride_bytes: 4111, block_bytes: 4000, count: 200 },
        Layout::Runs(&[(1, 799_998), (900_000, 2)]),
    ];
    for kind in [OpKind::Write, OpKind::Read] {
        for here in forms {
            for there in forms {
                check(kind, here, there);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_lists(seed: u64, write: bool) {
        let mut random = Random(seed | 1);
        let mut cut = |total: u64| {
            let (mut at, mut left, mut runs) = (random.below(50), total, Vec::new());
            while left > 0 {
                let sizes = [1, 7, 511, 512, 513, 4096, 65_537, 300_000];
                let length = sizes[random.below(sizes.len() as u64) as usize].min(left);
                runs.push((at, length));
                left -= length;
                at += length + [0, 1, 64][random.below(3) as usize];
            }
            // In any order.
            for n in (1..runs.len()).rev() {
                runs.swap(n, random.below(n as u64 + 1) as usize);
            }
            runs
        };
        let total = 1 + seed % 600_000;
        let (here, there) = (cut(total), cut(total));
        let kind = if write { OpKind::Write } else { OpKind::Read };
        check(kind, Layout::Runs(&here), Layout::Runs(&there));
    }
}

#[test]
fn subsets_move_just_their_pieces() {
    let _watchdog = watchdog("subsets", Duration::from_secs(60));
    let Pair { engine: initiator, segment, remote: target_region, target: _target } = pair(SIZE);
    let ours = region(&initiator, &pattern_bytes(7, 0, SIZE), Access::LOCAL);
    let pages: Vec<u32> = (0..256).collect();
    let there: Vec<u32> = (0..256).map(|n| 255 - n).collect();
    let list = initiator
        .prepare(
            OpKind::Write,
            &ours.whole(),
            Layout::Pages { offset: 0, page_bytes: 4096, pages: &pages },
            &segment,
            Layout::Pages { offset: 0, page_bytes: 4096, pages: &there },
        )
        .unwrap();
    assert_eq!(list.pieces(), 256);
    let (local, mut remote) = (contents(&ours), contents(&target_region));
    for round in 0..20u32 {
        let numbers: Vec<u32> = (0..256).filter(|n| (n * 7 + round) % 5 == 0).rev().collect();
        let mut batch = Batch::new();
        batch.subset(&list, &numbers).unwrap();
        initiator.submit(batch).unwrap().wait().unwrap();
        for n in numbers {
            let (from, to) = (n as usize * 4096, (255 - n as usize) * 4096);
            remote[to..to + 4096].copy_from_slice(&local[from..from + 4096]);
        }
        assert!(contents(&target_region) == remote, "round {round}");
    }
    let bad = |numbers: &[u32], piece: u64, what: ListFault| {
        let error = Batch::new().subset(&list, numbers).map(|_| ()).unwrap_err();
        let want = ListError { side: Side::Remote, piece, what };
        assert!(matches!(&error, Error::BadList(found) if *found == want), "{error}");
    };
    bad(&[], 0, ListFault::Empty);
    bad(&[1, 2, 256], 2, ListFault::NoSuchPiece);
    bad(&[1, 2, 1], 2, ListFault::Overlap);
}

#[test]
fn bad_lists_are_refused_before_anything_moves() {
    let Pair { engine: initiator, segment, remote: target_region, target: _target } = pair(SIZE);
    let ours = region(&initiator, &pattern_bytes(7, 0, SIZE), Access::LOCAL);
    let before = contents(&target_region);
    let check = |kind, here: &[(u64, u64)], there: &[(u64, u64)], side, piece, what| {
        let (here, there) = (Layout::Runs(here), Layout::Runs(there));
        let error = initiator.prepare(kind, &ours.whole(), here, &segment, there).unwrap_err();
        let want = ListError { side, piece, what };
        assert!(matches!(&error, Error::BadList(found) if *found == want), "{error}, not {want}");
    };
    let size = SIZE as u64;
    let two = [(0, 10), (100, 10)];
    check(OpKind::Write, &two, &[(0, 10), (5, 10)], Side::Remote, 1, ListFault::Overlap);
    check(OpKind::Read, &[(0, 10), (5, 10)], &two, Side::Local, 1, ListFault::Overlap);
    check(OpKind::Write, &two, &[(0, 10), (size - 9, 10)], Side::Remote, 1, ListFault::OutOfRange);
    check(OpKind::Write, &[(0, 10), (100, 0)], &two, Side::Local, 1, ListFault::Empty);
    check(OpKind::Read, &two, &[(0, 10), (100, 11)], Side::Local, 2, ListFault::Unequal);
    // Sources may overlap: they are only read.
    let sources = Layout::Runs(&[(0, 10), (5, 10)]);
    assert!(initiator.prepare(OpKind::Write, &ours.whole(), sources, &segment, Layout::Runs(&two)).is_ok());
    let alone: Region = region(&initiator, &[0; 100], Access::REMOTE_READ);
    let all = Layout::Runs(&[(0, 100)]);
    let refused = initiator.prepare(OpKind::Read, &alone.whole(), all, &segment, all).unwrap_err();
    assert!(matches!(refused, Error::BadRequest { .. }), "{refused}");
    assert!(contents(&target_region) == before, "something moved");
}

#[test]
fn a_retired_region_fails_the_next_post() {
    let pair = pair(SIZE);
    let Pair { engine: initiator, segment, .. } = &pair;
    let ours = region(initiator, &pattern_bytes(7, 0, SIZE), Access::LOCAL);
    let two = Layout::Runs(&[(0, 10), (100, 10)]);
    let list = initiator.prepare(OpKind::Write, &ours.whole(), two, segment, two).unwrap();
    initiator.retire(&ours, Duration::from_secs(5)).unwrap();
    let mut batch = Batch::new();
    batch.list(&list);
    let error = initiator.submit(batch).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Memory(_)), "{error}");
}

#[test]
fn a_list_goes_with_a_notification_and_other_requests() {
    let _watchdog = watchdog("mixed", Duration::from_secs(60));
    let Pair { engine: initiator, target, segment, remote: target_region } = pair(SIZE);
    let mut notes = target.notifications().unwrap();
    let ours = region(&initiator, &pattern_bytes(7, 0, SIZE), Access::LOCAL);
    let two = Layout::Runs(&[(0, 10), (100, 10)]);
    let list = initiator.prepare(OpKind::Write, &ours.whole(), two, &segment, two).unwrap();
    let mut batch = Batch::new();
    batch.write(&segment, 5000, &ours.slice(5000, 100).unwrap()).list(&list).notify(&segment, "done", b"x");
    let receipt = initiator.submit(batch).unwrap().wait().unwrap();
    assert_eq!((receipt.bytes, receipt.requests), (120, 2));
    assert_eq!(notes.recv_for(Duration::from_secs(5)).unwrap().name, "done");
    let (local, remote) = (contents(&ours), contents(&target_region));
    for (from, length) in [(0, 10), (100, 10), (5000, 100)] {
        assert!(local[from..from + length] == remote[from..from + length], "at {from}");
    }
}
