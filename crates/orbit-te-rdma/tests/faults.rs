//! Each fault that the verbs in memory offer, as a program sees it.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use orbit_te_rdma::WcStatus::*;
use orbit_te_rdma::fake::*;
use orbit_te_rdma::handle::*;
use orbit_te_rdma::sys::ffi::ibv_wr_opcode::*;
use orbit_te_rdma::{Errno, MrAccess, Verb, WcStatus};
use std::sync::Arc;
use std::time::Duration;
use support::*;

const BUDGET: Duration = Duration::from_micros(4096 * 7 + 1000);

fn kinds(side: &Side) -> Vec<AsyncKind> {
    side.events().iter().map(|event| event.kind).collect()
}

/// The first fails with this status, and all others are flushed; the QP is in the error state.
fn check_failed(side: &Side, first: WcStatus, others: usize, what: &str) {
    let mut expected = vec![Some(first)];
    expected.extend(vec![Some(Flushed); others]);
    let got: Vec<_> = side.statuses().into_iter().map(|(_, status)| status).collect();
    assert_eq!(got, expected, "{what}");
    assert_eq!(side.qp().state().unwrap(), QpState::Err, "{what}");
}

/// Three WRITEs, of which only the last asks for a CQE; an error gives each of them one.
fn three(two: &Side) -> [Send; 3] {
    [1, 2, 3].map(|token| Send { signaled: token == 3, ..Send::write(token, (0, 64), two, 0) })
}

#[test]
fn keys_ranges_and_rights_are_checked() {
    type Spoil = fn(&mut Send, &Side, &Side);
    let rows: [(&str, WcStatus, u32, Spoil); 8] = [
        ("wrong rkey", RemoteAccess, IBV_WR_RDMA_WRITE, |wr, _, _| wr.rkey ^= 0x55),
        ("rkey of nothing", RemoteAccess, IBV_WR_RDMA_READ, |wr, _, _| wr.rkey = 0xffff_ff00),
        ("remote range too long", RemoteAccess, IBV_WR_RDMA_WRITE, |wr, _, two| {
            wr.remote = two.memory.address() + MEMORY as u64 - 63;
        }),
        ("remote range before", RemoteAccess, IBV_WR_RDMA_READ, |wr, _, two| {
            wr.remote = two.memory.address() - 1
        }),
        ("remote range wraps", RemoteAccess, IBV_WR_RDMA_READ, |wr, _, _| wr.remote = u64::MAX - 3),
        ("wrong lkey", LocalProtection, IBV_WR_RDMA_WRITE, |wr, one, _| wr.lkey = Some(one.mr().lkey() ^ 1)),
        ("lkey of the other PD", LocalProtection, IBV_WR_RDMA_WRITE, |wr, _, two| {
            wr.lkey = Some(two.mr().lkey())
        }),
        ("local range too long", LocalProtection, IBV_WR_RDMA_WRITE, |wr, _, _| {
            wr.ranges = vec![(MEMORY - 1, 2)]
        }),
    ];
    for (what, status, opcode, spoil) in rows {
        let (fabric, one, two) = pair(1);
        two.memory.write(0, &pattern(9, MEMORY));
        let mut bad = Send { signaled: false, ..Send::new(opcode, 1, &[(0, 64)]).to(&two, 0) };
        spoil(&mut bad, &one, &two);
        one.post(&[bad, Send::write(2, (0, 64), &two, 0).quiet(), Send::write(3, (0, 64), &two, 0)]).unwrap();
        check_failed(&one, status, 2, what);
        assert_eq!(two.memory.read(0, MEMORY), pattern(9, MEMORY), "{what}: bytes were touched");
        // The other side learns of it, too, where it was its memory.
        let (far, event) = (two.qp().state().unwrap(), kinds(&two));
        match status {
            RemoteAccess => {
                assert_eq!((far, event), (QpState::Err, vec![AsyncKind::QpAccessError]), "{what}")
            }
            _ => assert_eq!((far, event), (QpState::Rts, vec![]), "{what}"),
        }
        // A QP in the error state takes WRs, and flushes them.
        one.post(&[Send::write(4, (0, 8), &two, 0)]).unwrap();
        assert_eq!(one.statuses(), [(4, Some(Flushed))], "{what}");
        drop((one, two));
        check_clean(&fabric, what);
    }
}

#[test]
fn rights_that_were_not_given_are_missing() {
    let read_only = MrAccess::REMOTE_READ;
    for (what, mr, qp, opcode, status) in [
        ("MR without write", read_only, init_step().access, IBV_WR_RDMA_WRITE, Some(RemoteAccess)),
        ("MR with read", read_only, init_step().access, IBV_WR_RDMA_READ, None),
        ("QP without read", OPEN, MrAccess::REMOTE_WRITE, IBV_WR_RDMA_READ, Some(RemoteAccess)),
        ("QP with write", OPEN, MrAccess::REMOTE_WRITE, IBV_WR_RDMA_WRITE, None),
    ] {
        let (fabric, a, b) = fabric_of_two(1);
        let one = Side::new(&fabric, 0, a, Memory::new(MEMORY)).unwrap();
        let two = Side::new(&fabric, 1, b, Memory::new(MEMORY)).unwrap();
        one.connect_to(&two, RTS).unwrap();
        two.qp().to_init(&InitStep { access: qp, ..init_step() }).unwrap();
        two.qp().to_rtr(&rtr_step(&one.context, one.qp().number(), RTS.sq_psn).unwrap()).unwrap();
        let base = two.memory.address() as usize as *mut u8;
        // SAFETY: the memory is kept by the MR.
        let narrow = unsafe { two.pd.register(base, 64, 0x1000, mr, two.memory.clone()) }.unwrap();
        // It is named by addresses of its own.
        let wr = Send { remote: 0x1000, rkey: narrow.rkey(), ..Send::new(opcode, 1, &[(0, 64)]) };
        one.post(&[wr]).unwrap();
        assert_eq!(one.statuses(), [(1, status)], "{what}");
    }
    let (_fabric, one, _two) = pair(1);
    let base = one.memory.address() as usize as *mut u8;
    // SAFETY: as above.
    let wrong = unsafe { one.pd.register(base, 64, 0, MrAccess::REMOTE_WRITE, ()) }.unwrap_err();
    assert_eq!((wrong.verb, wrong.errno), (Verb::RegMr, Errno::EINVAL));
}

#[test]
fn a_stale_key_opens_nothing() {
    let (fabric, one, mut two) = pair(1);
    let stale = two.mr().rkey();
    two.mr.take().unwrap().deregister().unwrap();
    let base = two.memory.address() as usize as *mut u8;
    // SAFETY: the memory is kept by the MR.
    let again =
        unsafe { two.pd.register(base, MEMORY, two.memory.address(), OPEN, two.memory.clone()) }.unwrap();
    assert_ne!(again.rkey(), stale);
    let wr = Send::new(IBV_WR_RDMA_WRITE, 1, &[(0, 8)]);
    one.post(&[Send { remote: two.memory.address(), rkey: stale, ..wr }]).unwrap();
    check_failed(&one, RemoteAccess, 0, "stale key");
    drop((one, again, two));
    check_clean(&fabric, "stale key");
}

#[test]
fn silence_ends_when_retries_are_used_up() {
    type Hush = fn(&FakeFabric, &Side, &Side);
    let rows: [(&str, Hush); 7] = [
        ("black hole here", |fabric, one, _| fabric.black_hole(one.device, 1, true)),
        ("black hole there", |fabric, _, two| fabric.black_hole(two.device, 1, true)),
        ("cut", |fabric, one, two| fabric.cut((one.device, 1), (two.device, 1), true)),
        ("carrier there", |fabric, _, two| fabric.carrier_down(two.device, 1, Carrier::Retried)),
        ("device there", |fabric, _, two| fabric.remove_device(two.device)),
        ("P_Key there", |fabric, _, two| fabric.set_pkey(two.device, 1, 0, 0x8001)),
        ("QP there", |_, _, two| two.qp().to_err().unwrap()),
    ];
    for (what, hush) in rows {
        let (fabric, one, two) = pair(1);
        hush(&fabric, &one, &two);
        one.post(&three(&two)).unwrap();
        assert_eq!(one.statuses(), [], "{what}: too early");
        fabric.advance(Duration::from_millis(20));
        assert_eq!(one.statuses(), [], "{what}: too early");
        fabric.advance(BUDGET);
        check_failed(&one, RetryExceeded, 2, what);
        assert_eq!(kinds(&one), [], "{what}");
        drop((one, two));
        check_clean(&fabric, what);
    }
}

#[test]
fn a_short_silence_is_outlived() {
    let (fabric, one, two) = pair(1);
    one.memory.write(0, b"bytes");
    fabric.black_hole(one.device, 1, true);
    one.post(&three(&two)).unwrap();
    fabric.advance(Duration::from_millis(20));
    assert_eq!(one.statuses(), []);
    fabric.black_hole(one.device, 1, false);
    assert_eq!(one.statuses(), [(3, None)]);
    assert_eq!(two.memory.read(0, 5), b"bytes");
}

#[test]
fn a_retry_count_of_seven_is_for_ever_where_the_device_has_it_so() {
    let (fabric, a, b) = fabric_of_two(1);
    let one = Side::new(&fabric, 0, a, Memory::new(MEMORY)).unwrap();
    let two = Side::new(&fabric, 1, b, Memory::new(MEMORY)).unwrap();
    one.connect_to(&two, RtsStep { retry_cnt: 7, ..RTS }).unwrap();
    one.post(&three(&two)).unwrap();
    fabric.advance(Duration::from_secs(3600));
    assert_eq!(one.statuses(), [], "the peer's QP was never connected");
}

#[test]
fn the_clock_may_be_anybodys() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let (fabric, one, two) = pair(1);
    let millis = Arc::new(AtomicU64::new(0));
    let shared = millis.clone();
    fabric.set_clock(Clock::Given(Arc::new(move || Duration::from_millis(shared.load(Ordering::SeqCst)))));
    fabric.black_hole(one.device, 1, true);
    one.post(&three(&two)).unwrap();
    for (at, over) in [(0, false), (29, false), (30, true)] {
        millis.store(at, Ordering::SeqCst);
        assert_eq!(!one.statuses().is_empty(), over, "at {at} ms");
    }
    let (fabric, one, two) = pair(1);
    fabric.set_clock(Clock::Real);
    fabric.black_hole(two.device, 1, true);
    one.post(&three(&two)).unwrap();
    let start = std::time::Instant::now();
    while one.statuses().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(start.elapsed() >= Duration::from_millis(29));
}

#[test]
fn ports_go_down_in_three_ways() {
    for (how, after) in [(Carrier::Retried, RetryExceeded), (Carrier::Flushed, Flushed)] {
        let (fabric, one, two) = pair(1);
        fabric.carrier_down(one.device, 1, how);
        assert_eq!(kinds(&one), [AsyncKind::PortError]);
        one.post(&three(&two)).unwrap();
        assert_eq!(one.statuses().is_empty(), how == Carrier::Retried);
        fabric.advance(BUDGET);
        fabric.advance(BUDGET);
        if how == Carrier::Retried {
            check_failed(&one, after, 2, "down");
        }
        fabric.carrier_up(one.device, 1);
        assert_eq!(kinds(&one), [AsyncKind::PortActive]);
        assert_eq!(one.qp().state().unwrap(), QpState::Err);
    }
    let (fabric, one, two) = pair(1);
    fabric.carrier_down(one.device, 1, Carrier::Stuck);
    one.post(&three(&two)).unwrap();
    fabric.advance(Duration::from_secs(3600));
    assert_eq!((one.statuses(), one.qp().state().unwrap()), (vec![], QpState::Rts), "no CQE, for ever");
    assert_eq!(fabric.in_flight(), 3);
    assert_eq!(fabric.in_flight_over(one.memory.address(), 1), 3);
    // Only destroying the QP settles them.
    let mut one = one;
    one.qp.take().unwrap().destroy().unwrap();
    assert_eq!(fabric.in_flight_over(one.memory.address(), 1), 0);
    drop((one, two));
    check_clean(&fabric, "stuck");
}

#[test]
fn addresses_that_change_are_told_and_tell() {
    let (fabric, one, two) = pair(1);
    fabric.set_gid(one.device, 1, DeviceSpec::ROCE_V2, None);
    assert_eq!(one.events(), [AsyncEvent { kind: AsyncKind::GidChange, about: About::Port(1) }]);
    one.post(&three(&two)).unwrap();
    check_failed(&one, LocalQueueOperation, 2, "own GID gone");
    fabric.set_pkey(one.device, 1, 0, 0x8002);
    assert_eq!(kinds(&one), [AsyncKind::PkeyChange]);
    assert_eq!(one.context.pkey(1, 0).unwrap(), 0x8002);

    let fabric = FakeFabric::new(1);
    let a = fabric.add_device(DeviceSpec::infiniband("ib0", 5));
    let b = fabric.add_device(DeviceSpec::infiniband("ib0", 6).on_host(1));
    let (one, two) = pair_on(&fabric, a, b);
    one.post(&three(&two)).unwrap();
    assert_eq!(one.statuses(), [(3, None)], "by LID");
    fabric.set_lid(b, 1, 7);
    assert_eq!(kinds(&two), [AsyncKind::LidChange]);
    one.post(&three(&two)).unwrap();
    assert_eq!(one.statuses(), []);
    fabric.advance(BUDGET);
    check_failed(&one, RetryExceeded, 2, "the peer's LID changed");
}

#[test]
fn receives_are_used_up_and_waited_for() {
    let (fabric, one, two) = pair(1);
    let send = Send::new(IBV_WR_SEND, 1, &[(0, 64)]);
    one.post(std::slice::from_ref(&send)).unwrap();
    assert_eq!(one.statuses(), [], "the peer has no receive");
    two.receive(9, &[(0, 64)]).unwrap();
    assert_eq!((one.statuses(), two.statuses()), (vec![(1, None)], vec![(9, None)]));
    one.post(std::slice::from_ref(&send)).unwrap();
    assert_eq!(one.statuses(), []);
    fabric.advance(Duration::from_secs(1));
    check_failed(&one, RnrRetryExceeded, 0, "no receive");

    for (what, range, theirs, ours) in [
        ("too short", (0, 63), LocalLength, RemoteInvalidRequest),
        ("not registered", (MEMORY - 1, 64), LocalProtection, RemoteOperation),
    ] {
        let (_fabric, one, two) = pair(1);
        two.receive(9, &[range]).unwrap();
        one.post(std::slice::from_ref(&send)).unwrap();
        check_failed(&one, ours, 0, what);
        assert_eq!(two.statuses(), [(9, Some(theirs))], "{what}");
    }
    // Receives are flushed as sends are.
    let (_fabric, _one, two) = pair(1);
    two.receive(1, &[(0, 8)]).unwrap();
    two.receive(2, &[(0, 8)]).unwrap();
    two.qp().to_err().unwrap();
    assert_eq!(two.statuses(), [(1, Some(Flushed)), (2, Some(Flushed))]);
}

#[test]
fn queues_are_full_until_a_cqe_was_taken() {
    let (fabric, one, two) = pair(1);
    fabric.set_mode(Mode::AtPost);
    let chain: Vec<Send> = (0..20)
        .map(|token| Send { signaled: token % 4 == 3, ..Send::write(token, (0, 8), &two, 0) })
        .collect();
    assert_eq!(one.post(&chain), Err((16, Errno::ENOMEM)));
    assert_eq!(fabric.in_flight(), 0, "all are carried out, and yet none is free");
    assert_eq!(one.post(&chain[16..17]), Err((0, Errno::ENOMEM)));
    let mut place = [orbit_te_rdma::Wc::default(); 1];
    assert_eq!(one.cq.poll(&mut place).unwrap(), 1);
    assert_eq!(one.post(&chain[..5]), Err((4, Errno::ENOMEM)), "one CQE covers four");
    for too_much in [
        Send::new(IBV_WR_RDMA_WRITE, 1, &[(0, 8); 5]).to(&two, 0),
        Send { inline: true, ..Send::write(1, (0, 65), &two, 0) },
        Send { inline: true, ..Send::read(1, (0, 8), &two, 0) },
        Send::new(9, 1, &[(0, 8)]),
    ] {
        let (_fabric, one, _two) = pair(1);
        assert_eq!(one.post(&[too_much]), Err((0, Errno::EINVAL)));
    }
}

#[test]
fn inline_bytes_are_taken_when_posted() {
    let (fabric, one, two) = pair(1);
    fabric.set_mode(Mode::ByHand);
    one.memory.write(0, b"first");
    // No key is needed for them.
    one.post(&[Send { inline: true, lkey: Some(0), ..Send::write(1, (0, 5), &two, 0) }]).unwrap();
    one.post(&[Send::write(2, (0, 5), &two, 64)]).unwrap();
    one.memory.write(0, b"later");
    fabric.settle();
    assert_eq!((two.memory.read(0, 5), two.memory.read(64, 5)), (b"first".to_vec(), b"later".to_vec()));
}

#[test]
fn posts_fall_short_where_the_plan_has_it() {
    let (fabric, one, two) = pair(1);
    fabric.short_posts(When::Nth(2), 2, Errno::ENOMEM);
    one.post(&three(&two)).unwrap();
    assert_eq!(one.post(&three(&two)), Err((2, Errno::ENOMEM)));
    one.post(&three(&two)).unwrap();
    assert_eq!(one.statuses(), [(3, None), (3, None)], "of the short one, the two that ask for no CQE");
}

#[test]
fn calls_fail_by_number_by_share_and_always() {
    let tries = |fabric: &FakeFabric| {
        let context = Context::open(&fabric.verbs(0), "mlx5_0").unwrap();
        (0..100).map(|_| context.alloc_pd().err().map(|error| error.errno)).collect::<Vec<_>>()
    };
    for (when, least, most) in [
        (When::Nth(3), 1, 1),
        (When::First(4), 4, 4),
        (When::Always, 100, 100),
        (When::Share(250_000), 10, 45),
        (When::Share(0), 0, 0),
    ] {
        let (fabric, ..) = fabric_of_two(5);
        fabric.fail(Verb::AllocPd, when, Errno::EAGAIN);
        let failed = tries(&fabric);
        let count = failed.iter().flatten().count();
        assert!((least..=most).contains(&count), "{when:?}: {count}");
        assert!(failed.iter().flatten().all(|errno| *errno == Errno::EAGAIN));
        let (again, ..) = fabric_of_two(5);
        again.fail(Verb::AllocPd, when, Errno::EAGAIN);
        assert_eq!(tries(&again), failed, "{when:?}: the seed repeats it");
        fabric.heal();
        assert_eq!(tries(&fabric).iter().flatten().count(), 0);
    }
}

#[test]
fn cqes_come_late_or_never_and_in_order() {
    let (fabric, one, two) = pair(1);
    one.memory.write(0, b"there");
    fabric.fault_cqes(
        Where::Qp(one.device, one.qp().number()),
        CqeFault::Late(Duration::from_millis(1), Duration::from_millis(9)),
    );
    for token in 0..8 {
        one.post(&[Send::write(token, (0, 64), &two, 0)]).unwrap();
    }
    assert_eq!(one.statuses(), []);
    assert_eq!(two.memory.read(0, 5), b"there", "the work is done all the same");
    let mut got = Vec::new();
    for _ in 0..10 {
        fabric.advance(Duration::from_millis(1));
        got.extend(one.statuses());
    }
    assert_eq!(got, (0..8).map(|token| (token, None)).collect::<Vec<_>>());

    fabric.heal();
    fabric.fault_cqes(Where::Everywhere, CqeFault::Lost(1_000_000));
    one.post(&[Send::write(1, (0, 64), &two, 0)]).unwrap();
    fabric.advance(Duration::from_secs(3600));
    assert_eq!(one.statuses(), []);
    fabric.heal();
    one.post(&[Send::write(2, (0, 64), &two, 0)]).unwrap();
    assert_eq!(one.statuses(), [(2, None)], "the next one covers it");
}

#[test]
fn late_cqes_of_a_qp_that_is_gone_come_only_where_devices_have_it_so() {
    for outlive in [false, true] {
        let fabric = FakeFabric::new(1);
        let spec = DeviceSpec { cqes_outlive_qp: outlive, ..DeviceSpec::roce("mlx5_0", [10, 0, 0, 1]) };
        let a = fabric.add_device(spec);
        let b = fabric.add_device(DeviceSpec::roce("mlx5_0", [10, 0, 0, 2]).on_host(1));
        let (mut one, two) = pair_on(&fabric, a, b);
        one.post(&[Send::write(1, (0, 8), &two, 0)]).unwrap();
        fabric.settle();
        fabric
            .fault_cqes(Where::Device(a), CqeFault::Late(Duration::from_millis(1), Duration::from_millis(1)));
        one.post(&[Send::write(2, (0, 8), &two, 0)]).unwrap();
        fabric.settle();
        one.qp.take().unwrap().destroy().unwrap();
        fabric.advance(Duration::from_millis(2));
        let expected = if outlive { vec![(1, None), (2, None)] } else { vec![] };
        assert_eq!(one.statuses(), expected);
    }
}

#[test]
fn qps_overtake_each_other_where_the_seed_has_it() {
    let orders: std::collections::BTreeSet<Vec<u64>> = (0..20).map(|seed| order(seed, true)).collect();
    assert!(orders.len() > 5, "{} orders", orders.len());
    assert_eq!(order(3, true), order(3, true));
    assert_eq!(order(1, false), order(2, false));
}

/// The tokens of two QPs on one CQ, in the order of their CQEs.
fn order(seed: u64, scrambled: bool) -> Vec<u64> {
    let (fabric, one, two) = pair(seed);
    fabric.set_mode(Mode::ByHand);
    fabric.scramble(scrambled);
    let more = one.pd.create_qp(CAPS, &one.cq, &one.cq, None).unwrap();
    let far = two.pd.create_qp(CAPS, &two.cq, &two.cq, None).unwrap();
    connect(&one.context, &more, &two.context, &far, RTS).unwrap();
    connect(&two.context, &far, &one.context, &more, RTS).unwrap();
    for token in 0..6 {
        one.post(&[Send::write(token, (0, 8), &two, 0)]).unwrap();
        post(&more, one.mr(), &[Send::write(token + 10, (0, 8), &two, 0)]).unwrap();
    }
    fabric.settle();
    let tokens: Vec<u64> = one.poll().iter().map(|done| done.token).collect();
    let of = |qp: std::ops::Range<u64>| {
        tokens.iter().copied().filter(|token| qp.contains(token)).collect::<Vec<_>>()
    };
    assert_eq!((of(0..10), of(10..20)), ((0..6).collect(), (10..16).collect()), "each QP in order");
    tokens
}

#[test]
fn queues_and_devices_break() {
    let (fabric, one, two) = pair(1);
    fabric.set_mode(Mode::ByHand);
    one.post(&three(&two)).unwrap();
    fabric.qp_fatal(one.device, one.qp().number());
    assert_eq!(one.events(), [AsyncEvent { kind: AsyncKind::QpFatal, about: About::Qp(one.qp().number()) }]);
    fabric.settle();
    check_failed(&one, Flushed, 2, "QP fatal");

    let (fabric, one, two) = pair(1);
    fabric.set_mode(Mode::ByHand);
    one.post(&three(&two)).unwrap();
    fabric.flush_storm(one.device);
    fabric.settle();
    check_failed(&one, Flushed, 2, "flush storm");

    let (fabric, one, two) = pair(1);
    one.cq.arm(false).unwrap();
    fabric.cq_fatal(one.cq.cookie());
    assert_eq!(one.events(), [AsyncEvent { kind: AsyncKind::CqError, about: About::Cq(one.cq.cookie()) }]);
    assert_eq!(one.channel.next_event().unwrap(), Some(one.cq.cookie()), "whoever waits is woken");
    one.post(&three(&two)).unwrap();
    assert_eq!(one.statuses(), [], "no CQE comes any more");
    assert_eq!(one.qp().state().unwrap(), QpState::Err);
    drop((one, two));
    check_clean(&fabric, "CQ fatal");

    for removed in [false, true] {
        let (fabric, one, two) = pair(1);
        one.post(&three(&two)).unwrap();
        if removed {
            fabric.remove_device(one.device)
        } else {
            fabric.device_fatal(one.device)
        }
        assert_eq!(one.events(), [AsyncEvent { kind: AsyncKind::DeviceFatal, about: About::Device }]);
        // Every call fails, but those that free.
        assert_eq!(one.context.limits().unwrap_err().errno, Errno::EIO);
        assert_eq!(one.post(&three(&two)), Err((0, Errno::EIO)));
        assert_eq!(one.cq.poll(&mut []).unwrap_err().errno, Errno::EIO);
        let verbs = fabric.verbs(0);
        assert_eq!(verbs.devices().unwrap().len(), usize::from(!removed));
        let again = Context::open(&verbs, "mlx5_0").unwrap_err().errno;
        assert_eq!(again, if removed { Errno::ENODEV } else { Errno::EIO });
        fabric.device_back(one.device);
        let back = Context::open(&verbs, "mlx5_0").unwrap();
        assert!(back.limits().is_ok() && one.context.limits().is_err(), "only for those who open it again");
        drop((one, two, back));
        check_clean(&fabric, "device gone");
    }
}

#[test]
fn a_cq_that_overflows_breaks() {
    let (fabric, a, b) = fabric_of_two(1);
    let side = |host, device, cqe| {
        Side::with(&fabric, host, device, Arc::new(Memory::new(MEMORY)), CAPS, cqe).unwrap()
    };
    let (one, two) = (side(0, a, 2), side(1, b, 64));
    one.connect_to(&two, RTS).unwrap();
    two.connect_to(&one, RTS).unwrap();
    fabric.set_mode(Mode::AtPost);
    for token in 0..3 {
        one.post(&[Send::write(token, (0, 8), &two, 0)]).unwrap();
    }
    assert_eq!(kinds(&one), [AsyncKind::CqError]);
    assert_eq!(one.statuses(), [(0, None), (1, None)], "those that were in are still there");
    assert_eq!(one.qp().state().unwrap(), QpState::Err);
}
