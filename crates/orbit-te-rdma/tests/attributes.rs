//! What two sides agree on, and what their QPs are given, row by row; over random deadlines that a QP gives up in time.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod planning;

use orbit_te_rdma::MrAccess;
use orbit_te_rdma::attributes::*;
use orbit_te_rdma::gid::candidates;
use orbit_te_rdma::handle::{Address, Grh, InitStep};
use orbit_te_wire::Access;
use orbit_te_wire::rdma::{CloseCode, Features, Mtu, Queue, Rail, SideLimits};
use planning::*;
use proptest::prelude::*;
use std::time::Duration;

const LIMITS: SideLimits = SideLimits {
    send_depth: 128,
    receive_depth: 64,
    read_depth: 16,
    inline_bytes: 64,
    message_bytes: 1 << 20,
};

#[test]
fn the_smaller_of_both_counts() {
    let ours = Rail { mtu: Mtu::B4096, reads_asked: 4, reads_served: 16, ..rail(0, &["v2 10.0.0.1"]) };
    let theirs = Rail { mtu: Mtu::B1024, reads_asked: 16, reads_served: 2, ..rail(1, &["v2 10.0.0.2"]) };
    let less = SideLimits { send_depth: 8, receive_depth: 5, inline_bytes: 0, message_bytes: 4096, ..LIMITS };
    let (all, some) = (Features::all(), Features::WRITE_WITH_IMM | Features::NOTIFICATIONS);
    let here = agree((&ours, &LIMITS, all), (&theirs, &less, some));
    let there = agree((&theirs, &less, some), (&ours, &LIMITS, all));
    assert_eq!((here.mtu, here.message_bytes, here.features), (Mtu::B1024, 4096, some));
    assert_eq!((here.send_depth, here.receive_depth, here.immediate_depth), (128, 64, 5));
    assert_eq!((here.inline_bytes, there.inline_bytes), (64, 0));
    assert_eq!((here.reads_asked, here.reads_served), (2, 16));
    assert_eq!((there.reads_asked, there.reads_served, there.immediate_depth), (16, 2, 8));
    let shallow = SideLimits { read_depth: 1, ..LIMITS };
    let here = agree((&ours, &shallow, all), (&theirs, &LIMITS, all));
    assert_eq!((here.reads_asked, here.reads_served), (1, 1));
    let none = Rail { reads_served: 0, ..theirs };
    assert_eq!(agree((&ours, &LIMITS, all), (&none, &LIMITS, all)).reads_asked, 0);
}

#[test]
fn access_flags() {
    use MrAccess as V;
    let local = V::LOCAL_WRITE;
    let check = |access, writable, relaxed, windows, want: V| {
        assert_eq!(registration(access, writable, relaxed, windows), want, "{access:?}");
    };
    check(Access::LOCAL, true, false, false, local);
    check(Access::LOCAL, false, false, false, V::empty());
    check(Access::SHARED, true, false, false, local | V::REMOTE_READ | V::REMOTE_WRITE);
    check(Access::SHARED_READ, true, false, false, local | V::REMOTE_READ);
    check(Access::SHARED_READ, false, true, false, V::REMOTE_READ | V::RELAXED_ORDERING);
    check(Access::SHARED, false, false, false, V::REMOTE_READ);
    check(Access::SHARED, true, true, true, local | V::MW_BIND | V::RELAXED_ORDERING);
    check(Access::LOCAL, true, false, true, local);
    assert_eq!(grant(Access::SHARED, true), V::REMOTE_READ | V::REMOTE_WRITE);
    assert_eq!(grant(Access::SHARED_READ, true), V::REMOTE_READ);
    assert_eq!(grant(Access::LOCAL, true), V::empty());
    // The numbers of verbs.
    let numbers =
        [V::LOCAL_WRITE, V::REMOTE_WRITE, V::REMOTE_READ, V::REMOTE_ATOMIC, V::MW_BIND, V::RELAXED_ORDERING];
    assert_eq!(numbers.map(|flag| flag.bits()), [1, 2, 4, 8, 16, 1 << 20]);
}

#[test]
fn on_ethernet_the_gids_are_the_address() {
    let (ours, theirs) = (rail(0, &["v2 fe80::1", "v2 10.0.0.1"]), rail(1, &["v2 10.0.0.2"]));
    let pair = candidates(&ours, &theirs, None).unwrap()[0];
    let quality = Quality { service_level: 3, traffic_class: 104, hop_limit: 9, flow_label: 5 };
    let path = path(&ours, &theirs, &pair, &quality).unwrap();
    let grh =
        Grh { dgid: theirs.gids[0].bytes, sgid_index: 1, hop_limit: 9, traffic_class: 104, flow_label: 5 };
    assert_eq!(path, Address { port: 1, dlid: 0, sl: 3, src_path_bits: 0, grh: Some(grh) });
}

#[test]
fn on_infiniband_the_lid_is() {
    let check = |ours: Rail, theirs: Rail, want: Result<(u16, bool), CloseCode>| {
        let pair = candidates(&ours, &theirs, None).unwrap()[0];
        let path = path(&ours, &theirs, &pair, &Quality::default());
        assert_eq!(path.map(|path| (path.dlid, path.grh.is_some())), want);
    };
    let rail = |lid, grh_required| Rail { grh_required, ..ib_rail(0, lid, &["ib fe80::1"]) };
    check(rail(3, false), rail(7, false), Ok((7, false)));
    check(rail(3, true), rail(7, false), Ok((7, true)));
    check(rail(3, false), rail(7, true), Ok((7, true)));
    check(rail(3, false), rail(0xbfff, false), Ok((0xbfff, false)));
    check(rail(3, false), rail(0, false), Err(CloseCode::Mismatch));
    check(rail(3, false), rail(0xc000, false), Err(CloseCode::Mismatch));
    let (ib, ethernet) = (ib_rail(0, 3, &["ib fe80::1"]), planning::rail(1, &["v2 10.0.0.2"]));
    let pair = candidates(&ethernet, &ethernet, None).unwrap()[0];
    assert_eq!(path(&ib, &ethernet, &pair, &Quality::default()), Err(CloseCode::Mismatch));
}

#[test]
fn attributes_from_init_to_rts() {
    let ours = rail(0, &["v2 10.0.0.1"]);
    let theirs = Rail { port: 2, ..rail(1, &["v2 10.0.0.2"]) };
    let pair = candidates(&ours, &theirs, None).unwrap()[0];
    let agreed = agree((&ours, &LIMITS, Features::all()), (&theirs, &LIMITS, Features::all()));
    let (here, there) = (Queue { number: 17, psn: 1000 }, Queue { number: 18, psn: 2000 });
    let retry = retry_for(Duration::from_secs(1));
    let all = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE | MrAccess::LOCAL_WRITE;
    assert_eq!(init(&ours, 4, true), InitStep { port: 1, pkey_index: 4, access: all });
    assert_eq!(init(&ours, 4, false).access, MrAccess::empty());
    let to = path(&ours, &theirs, &pair, &Quality::default()).unwrap();
    let rtr = rtr(&agreed, there, to, &retry);
    assert_eq!((rtr.dest_qp_num, rtr.rq_psn, rtr.path_mtu.bytes(), rtr.address.port), (18, 2000, 1024, 1));
    assert_eq!((rtr.max_dest_rd_atomic, rtr.min_rnr_timer), (16, retry.min_rnr_timer.number()));
    let rts = rts(&agreed, here, &retry);
    assert_eq!((rts.sq_psn, rts.max_rd_atomic), (1000, 16));
    let tries = (rts.timeout, rts.retry_cnt, rts.rnr_retry);
    assert_eq!(tries, (retry.timeout, retry.count, retry.rnr_count));
}

#[test]
fn partitions_are_found_in_the_table() {
    let check = |table: &[u16], wanted, want| assert_eq!(p_key_index(table, wanted), want, "{table:x?}");
    check(&[0xffff], 0xffff, Some(0));
    check(&[0x7fff, 0x8001], 0x8001, Some(1));
    check(&[0x0001, 0x8001], 0x8001, Some(1));
    check(&[0x0001, 0x8001], 0x0001, Some(1));
    check(&[0x7fff, 0x0001], 0x8001, Some(1));
    check(&[0xffff], 0x8001, None);
    check(&[0, 0x8000], 0x8000, None);
    check(&[], 0xffff, None);
}

#[test]
fn wrong_qualities() {
    let check = |change: fn(&mut Quality), want: Option<&str>| {
        let mut quality = Quality::default();
        change(&mut quality);
        assert_eq!(quality.wrong().is_some(), want.is_some());
        assert!(quality.wrong().unwrap_or_default().contains(want.unwrap_or_default()));
    };
    check(|_| {}, None);
    check(|q| q.service_level = 15, None);
    check(|q| q.service_level = 16, Some("service level"));
    check(|q| q.flow_label = 1 << 20, Some("flow label"));
    check(|q| q.hop_limit = 0, Some("hop limit"));
}

#[test]
fn retries_for_a_share() {
    let check = |share_ms: u64, timeout, count| {
        let retry = retry_for(Duration::from_millis(share_ms));
        assert_eq!((retry.timeout, retry.count), (timeout, count), "{share_ms} ms: {:?}", retry.budget());
    };
    // 4.194 ms, twice.
    check(0, 10, 1);
    check(9, 10, 1);
    check(13, 10, 2);
    check(30, 10, 6);
    check(100, 12, 4);
    check(1000, 15, 6);
    check(10_000, 19, 3);
    check(1_000_000, 21, 6);
    let retry = Retry { timeout: 14, count: 3, ..Retry::least() };
    assert_eq!(retry.budget(), Duration::from_nanos(4 * 67_108_864), "268 ms, as measured");
}

#[test]
fn rnr_timers_have_the_times_of_the_specification() {
    let check = |micros: u64, number, want: u64| {
        let timer = MinRnrTimer::within(Duration::from_micros(micros));
        assert_eq!((timer.number(), timer.time()), (number, Duration::from_micros(want)), "{micros}");
    };
    check(0, 1, 10);
    check(10, 1, 10);
    check(79, 5, 60);
    check(640, 12, 640);
    check(491_520, 31, 491_520);
    check(655_359, 31, 491_520);
    check(655_360, 0, 655_360);
    check(u64::MAX, 0, 655_360);
}

proptest! {
    #[test]
    fn a_qp_gives_up_within_its_share_and_not_long_before(share_us in 0..200_000_000u64) {
        let share = Duration::from_micros(share_us);
        let retry = retry_for(share);
        prop_assert!((1..=6).contains(&retry.count) && (1..=6).contains(&retry.rnr_count), "never 7");
        prop_assert!((Retry::LEAST_TIMEOUT..=Retry::MOST_TIMEOUT).contains(&retry.timeout), "never 0");
        let longest = Retry { timeout: Retry::MOST_TIMEOUT, count: Retry::MOST_COUNT, ..retry }.budget();
        if share >= Retry::least().budget() {
            prop_assert!(retry.budget() <= share);
            prop_assert!(retry.budget() * 3 >= share.min(longest) * 2);
            prop_assert!(retry.rnr_budget() <= share);
        } else {
            prop_assert_eq!(retry.budget(), Retry::least().budget());
        }
    }

    #[test]
    fn both_sides_agree(
        (a, b) in (0..5usize, 0..5usize), reads: (u8, u8, u8, u8), depths: (u8, u8), messages: (u32, u32)
    ) {
        let one = Rail { mtu: Mtu::ALL[a], reads_asked: reads.0, reads_served: reads.1, ..rail(0, &["v2 10.0.0.1"]) };
        let two = Rail { mtu: Mtu::ALL[b], reads_asked: reads.2, reads_served: reads.3, ..rail(1, &["v2 10.0.0.2"]) };
        let limits = |read_depth, message_bytes| SideLimits { read_depth, message_bytes, ..LIMITS };
        let (l, m) = (limits(depths.0, messages.0), limits(depths.1, messages.1));
        let here = agree((&one, &l, Features::all()), (&two, &m, Features::MEMORY_WINDOWS));
        let there = agree((&two, &m, Features::MEMORY_WINDOWS), (&one, &l, Features::all()));
        prop_assert_eq!((here.mtu, here.message_bytes, here.features), (there.mtu, there.message_bytes, there.features));
        prop_assert_eq!((here.reads_asked, here.reads_served), (there.reads_served, there.reads_asked));
    }
}
