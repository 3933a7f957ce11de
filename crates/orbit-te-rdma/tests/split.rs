//! Cutting ops into work requests: rows with their cuts in words, and over random ops that nothing is lost, doubled, out of order, empty
//! or over a limit.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_rdma::split::*;
use orbit_te_wire::Piece;
use proptest::collection::vec;
use proptest::prelude::*;

const LIMITS: SplitLimits = SplitLimits {
    message_bytes: 1 << 30,
    slice_bytes: 64 << 10,
    least_bytes: 16 << 10,
    mtu_bytes: 1024,
    sges: 4,
    lanes: 1,
};

const WHOLE: (Parts, Parts) = (Parts::WHOLE, Parts::WHOLE);

/// `remote+length:entries@lane`, one for each work request.
fn shown(split: Split<'_>) -> String {
    let words: Vec<String> = split
        .map(|slice| {
            let entries: Vec<String> =
                slice.entries().iter().map(|e| format!("{}+{}/{}", e.address, e.length, e.part)).collect();
            format!(
                "{}+{}/{}:{}@{}",
                slice.remote,
                slice.length,
                slice.remote_part,
                entries.join(","),
                slice.lane
            )
        })
        .collect();
    words.join(" ")
}

#[test]
fn runs() {
    let check = |length: u64, limits: SplitLimits, parts, want: &str| {
        let run = Layout::Run { local: 5000, remote: 100, length };
        assert_eq!(shown(Split::new(run, parts, &limits, 0).unwrap()), want, "{length}");
    };
    check(1, LIMITS, WHOLE, "100+1/0:5000+1/0@0");
    check(65_536, LIMITS, WHOLE, "100+65536/0:5000+65536/0@0");
    check(65_537, LIMITS, WHOLE, "100+65536/0:5000+65536/0@0 65636+1/0:70536+1/0@0");
    let lanes = |lanes| SplitLimits { lanes, ..LIMITS };
    check(16_384, lanes(4), WHOLE, "100+16384/0:5000+16384/0@0");
    check(32_769, lanes(4), WHOLE, "100+17408/0:5000+17408/0@0 17508+15361/0:22408+15361/0@1");
    let small = |message_bytes| SplitLimits { message_bytes, ..LIMITS };
    check(
        2500,
        small(2047),
        WHOLE,
        "100+1024/0:5000+1024/0@0 1124+1024/0:6024+1024/0@0 2148+452/0:7048+452/0@0",
    );
    check(3, small(2), WHOLE, "100+2/0:5000+2/0@0 102+1/0:5002+1/0@0");
    let parts = |base, part_bytes| Parts { base, part_bytes };
    // A registration of the peer's ends at byte 150: a work request more. One of ours ends at 5020: an entry more.
    check(90, LIMITS, (parts(0, 0), parts(0, 150)), "100+50/0:5000+50/0@0 150+40/1:5050+40/0@0");
    check(90, LIMITS, (parts(4000, 1020), parts(0, 0)), "100+90/0:5000+20/0,5020+70/1@0");
}

#[test]
fn pieces() {
    let check = |pieces: &[(u64, u64, u64)], limits: SplitLimits, want: &str| {
        let local: Vec<u64> = pieces.iter().map(|p| p.0).collect();
        let remote: Vec<Piece> = pieces.iter().map(|p| Piece::new(p.1, p.2)).collect();
        let layout = Layout::Pieces { local: &local, remote: &remote };
        assert_eq!(shown(Split::new(layout, WHOLE, &limits, 0).unwrap()), want);
    };
    check(&[(500, 0, 10), (900, 10, 20)], LIMITS, "0+30/0:500+10/0,900+20/0@0");
    check(&[(500, 0, 10), (510, 10, 20)], LIMITS, "0+30/0:500+30/0@0");
    check(&[(500, 0, 10), (900, 11, 20)], LIMITS, "0+10/0:500+10/0@0 11+20/0:900+20/0@0");
    check(&[(500, 40, 10), (900, 10, 20)], LIMITS, "40+10/0:500+10/0@0 10+20/0:900+20/0@0");
    let five: Vec<_> = (0..5).map(|at| (1000 - at * 100, at * 8, 8)).collect();
    check(&five, LIMITS, "0+32/0:1000+8/0,900+8/0,800+8/0,700+8/0@0 32+8/0:600+8/0@0");
    let long = [(100_000, 0, 10), (500_000, 10, 70_000)];
    check(&long, LIMITS, "0+65536/0:100000+10/0,500000+65526/0@0 65536+4474/0:565526+4474/0@0");
}

#[test]
fn bad_ops() {
    let check = |layout: Layout<'_>, limits: SplitLimits, want: BadSplit| {
        assert_eq!(Split::new(layout, WHOLE, &limits, 0).err(), Some(want));
    };
    let run = |local, remote, length| Layout::Run { local, remote, length };
    check(run(0, 0, 0), LIMITS, BadSplit::Empty(0));
    check(run(u64::MAX, 0, 1), LIMITS, BadSplit::Overflow(0));
    check(run(0, u64::MAX, 1), LIMITS, BadSplit::Overflow(0));
    check(run(0, 0, 1), SplitLimits { lanes: 0, ..LIMITS }, BadSplit::NoLimit);
    check(run(0, 0, 1), SplitLimits { sges: 0, ..LIMITS }, BadSplit::NoLimit);
    let pieces = |local, remote| Layout::Pieces { local, remote };
    check(pieces(&[], &[]), LIMITS, BadSplit::Empty(0));
    check(pieces(&[1], &[]), LIMITS, BadSplit::Lengths(1, 0));
    check(pieces(&[1, 2], &[Piece::new(0, 1), Piece::EMPTY]), LIMITS, BadSplit::Empty(1));
}

fn limits() -> impl Strategy<Value = SplitLimits> {
    (1..5000u32, 1..5000u32, 0..3000u32, 0..5u32, 1..20u8, 1..9u16).prop_map(
        |(message_bytes, slice_bytes, least_bytes, mtu, sges, lanes)| SplitLimits {
            message_bytes,
            slice_bytes,
            least_bytes,
            mtu_bytes: 256 << mtu,
            sges,
            lanes,
        },
    )
}

fn parts() -> impl Strategy<Value = Parts> {
    (0..2000u64, prop_oneof![Just(0), 1..3000u64]).prop_map(|(base, part_bytes)| Parts { base, part_bytes })
}

/// Pieces of which many follow each other at the peer, here, or both.
fn any_pieces() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    vec((prop_oneof![Just(0), 1..500u64], prop_oneof![3 => Just(0), 1 => 1..500u64], 1..4000u64), 1..40)
        .prop_map(|steps| {
            let (mut local, mut remote) = (2000, 2000);
            steps
                .into_iter()
                .map(|(skip_local, skip_remote, length)| {
                    (local, remote) = (local + skip_local, remote + skip_remote);
                    let piece = (local, remote, length);
                    (local, remote) = (local + length, remote + length);
                    piece
                })
                .collect()
        })
}

fn part_of(parts: Parts, address: u64) -> u64 {
    (address - parts.base.min(address)).checked_div(parts.part_bytes).unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn each_byte_is_carried_once_in_order_within_the_limits(
        pieces in any_pieces(), limits in limits(), parts in (parts(), parts()), first_lane: u16
    ) {
        let local: Vec<u64> = pieces.iter().map(|p| p.0).collect();
        let remote: Vec<Piece> = pieces.iter().map(|p| Piece::new(p.1, p.2)).collect();
        let layout = Layout::Pieces { local: &local, remote: &remote };
        let split = Split::new(layout, parts, &limits, first_lane).unwrap();
        let all: u64 = pieces.iter().map(|p| p.2).sum();
        prop_assert_eq!(split.left(), all);
        // Every byte as (here, there), as the op has them and as the work requests do.
        let want = pieces.iter().flat_map(|(l, r, n)| (0..*n).map(move |at| (l + at, r + at)));
        let mut want = want.peekable();
        let mut lane = first_lane % limits.lanes;
        let mut before: Option<Slice> = None;
        for slice in split {
            prop_assert!(slice.length > 0);
            prop_assert!(slice.length <= limits.message_bytes.min(limits.slice_bytes));
            prop_assert!(slice.entries().len() <= usize::from(limits.sges).min(MAX_SGES));
            prop_assert_eq!(slice.lane, lane);
            lane = (lane + 1) % limits.lanes;
            let sum: u64 = slice.entries().iter().map(|e| u64::from(e.length)).sum();
            prop_assert_eq!(sum, u64::from(slice.length));
            let last = slice.remote + u64::from(slice.length) - 1;
            prop_assert_eq!(part_of(parts.1, slice.remote), u64::from(slice.remote_part));
            prop_assert_eq!(part_of(parts.1, last), u64::from(slice.remote_part));
            let first = pieces[slice.first_piece as usize];
            prop_assert!((first.1..first.1 + first.2).contains(&slice.remote));
            let mut there = slice.remote;
            for entry in slice.entries() {
                prop_assert!(entry.length > 0);
                let end = entry.address + u64::from(entry.length) - 1;
                prop_assert_eq!(part_of(parts.0, entry.address), u64::from(entry.part));
                prop_assert_eq!(part_of(parts.0, end), u64::from(entry.part));
                for at in 0..u64::from(entry.length) {
                    prop_assert_eq!(want.next(), Some((entry.address + at, there)));
                    there += 1;
                }
            }
            // Two neighbours are two for a reason: the bytes are apart at the peer, or together they are over a limit.
            if let Some(before) = before {
                let together = u64::from(before.length) + u64::from(slice.length);
                let follows = before.remote + u64::from(before.length) == slice.remote;
                let entries = before.entries().len() + slice.entries().len();
                let joined = follows && before.remote_part == slice.remote_part;
                let full = entries > usize::from(limits.sges).min(MAX_SGES);
                let fair = all.div_ceil(u64::from(limits.lanes));
                prop_assert!(!joined || full || together > fair.min(u64::from(limits.message_bytes.min(limits.slice_bytes)) / 2));
            }
            before = Some(slice);
        }
        prop_assert_eq!(want.next(), None);
    }

    #[test]
    fn slices_of_a_run_are_whole_packets_but_for_the_last(
        length in 1..200_000u64, slice_bytes in 4096..50_000u32, lanes in 1..9u16, least_bytes in 1..20_000u32
    ) {
        let limits = SplitLimits { slice_bytes, lanes, least_bytes, ..LIMITS };
        let run = Layout::Run { local: 1 << 20, remote: 7, length };
        let slices: Vec<Slice> = Split::new(run, WHOLE, &limits, 0).unwrap().collect();
        let (last, others) = slices.split_last().unwrap();
        prop_assert!(others.iter().all(|slice| slice.length % 1024 == 0 && slice.length >= last.length));
        prop_assert!(slices.iter().all(|slice| slice.entries().len() == 1));
        if length < u64::from(least_bytes.min(slice_bytes / 2)) {
            prop_assert_eq!(slices.len(), 1, "an op that is not worth it stays in one");
        }
    }
}
