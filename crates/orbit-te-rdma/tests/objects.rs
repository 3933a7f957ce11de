//! Objects of the verbs in memory: states, limits, parents, events and windows, as real verbs have them.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use orbit_te_rdma::fake::*;
use orbit_te_rdma::handle::*;
use orbit_te_rdma::sys::ffi::ibv_wr_opcode::*;
use orbit_te_rdma::{Errno, MrAccess, Mtu, VerbsError, WcStatus};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use support::*;

fn errno<T>(result: Result<T, VerbsError>) -> Option<Errno> {
    result.err().map(|error| error.errno)
}

#[test]
fn steps_out_of_order_and_values_out_of_range_are_refused() {
    let (fabric, a, b) = fabric_of_two(1);
    let one = Side::new(&fabric, 0, a, Memory::new(MEMORY)).unwrap();
    let two = Side::new(&fabric, 1, b, Memory::new(MEMORY)).unwrap();
    let qp = one.qp();
    let rtr = rtr_step(&two.context, two.qp().number(), RTS.sq_psn).unwrap();
    let einval = Some(Errno::EINVAL);
    assert_eq!((errno(qp.to_rtr(&rtr)), errno(qp.to_rts(&RTS))), (einval, einval), "RESET to RTR, RTS");
    assert_eq!(one.receive(1, &[(0, 8)]), Err(Errno::EINVAL), "a receive in RESET");
    assert_eq!(errno(qp.to_init(&InitStep { port: 2, ..init_step() })), einval, "no such port");
    assert_eq!(errno(qp.to_init(&InitStep { pkey_index: 1, ..init_step() })), einval, "no such P_Key");
    qp.to_init(&init_step()).unwrap();
    assert_eq!(one.receive(1, &[(0, 8)]), Ok(()), "a receive in INIT");
    assert_eq!(errno(qp.to_rts(&RTS)), einval, "INIT to RTS");
    assert_eq!(one.post(&[Send::write(1, (0, 8), &two, 0)]), Err((0, Errno::EINVAL)), "a send in INIT");
    for (what, wrong) in [
        (
            "no GRH over Ethernet",
            RtrStep { address: Address { port: 1, dlid: 3, ..Address::default() }, ..rtr },
        ),
        ("another port", RtrStep { address: Address { port: 2, ..rtr.address }, ..rtr }),
        ("a free place of the GID table", {
            let grh = rtr.address.grh.map(|grh| Grh { sgid_index: 4, ..grh });
            RtrStep { address: Address { grh, ..rtr.address }, ..rtr }
        }),
        ("READs beyond the device", RtrStep { max_dest_rd_atomic: 17, ..rtr }),
        ("a PSN of 25 bits", RtrStep { rq_psn: 1 << 24, ..rtr }),
    ] {
        assert_eq!(errno(qp.to_rtr(&wrong)), einval, "{what}");
    }
    qp.to_rtr(&rtr).unwrap();
    assert_eq!(one.post(&[Send::write(1, (0, 8), &two, 0)]), Err((0, Errno::EINVAL)), "a send in RTR");
    assert_eq!(errno(qp.to_rts(&RtsStep { retry_cnt: 8, ..RTS })), einval);
    qp.to_rts(&RTS).unwrap();
    assert_eq!(errno(qp.to_init(&init_step())), einval, "RTS to INIT");
    assert_eq!(qp.state().unwrap(), QpState::Rts);
    qp.to_err().unwrap();
    assert_eq!(errno(qp.to_rts(&RTS)), einval, "ERR to RTS");
    qp.to_reset().unwrap();
    assert_eq!((qp.state().unwrap(), one.statuses()), (QpState::Reset, vec![]), "RESET leaves no CQE");
    qp.to_init(&init_step()).unwrap();
}

#[test]
fn a_larger_mtu_than_the_ports_is_refused() {
    let fabric = FakeFabric::new(1);
    let port = PortSpec { mtu: Mtu::B1024, ..PortSpec::roce([10, 0, 0, 1]) };
    let a = fabric.add_device(DeviceSpec::new("rxe0", vec![port]));
    let one = Side::new(&fabric, 0, a, Memory::new(MEMORY)).unwrap();
    one.qp().to_init(&init_step()).unwrap();
    let rtr = RtrStep { path_mtu: Mtu::B4096, ..rtr_step(&one.context, 18, 0).unwrap() };
    assert_eq!(errno(one.qp().to_rtr(&rtr)), Some(Errno::EINVAL));
    one.qp().to_rtr(&RtrStep { path_mtu: Mtu::B1024, ..rtr }).unwrap();
    assert_eq!(one.context.port(1).unwrap().active_mtu, Mtu::B1024);
}

#[test]
fn limits_are_kept() {
    let fabric = FakeFabric::new(1);
    let limits = Limits {
        max_qp: 1,
        max_mr: 1,
        max_mr_size: 4096,
        max_mw: 1,
        max_cq: 1,
        max_cqe: 64,
        max_pd: 1,
        max_wr: 16,
        max_sge: 4,
        max_inline: 64,
        ..Limits::default()
    };
    fabric.add_device(DeviceSpec { limits, ..DeviceSpec::roce("mlx5_0", [10, 0, 0, 1]) });
    let one =
        Side::new(&fabric, 0, fabric.add_device(DeviceSpec::roce("x", [1, 1, 1, 1])), Memory::new(4096))
            .unwrap();
    let (inval, full) = (Some(Errno::EINVAL), Some(Errno::ENOMEM));
    let told = one.context.limits().unwrap();
    assert_eq!(
        (told.max_qp, told.max_mr, told.max_mr_size, told.max_qp_wr, told.max_sge),
        (1, 1, 4096, 16, 4)
    );
    assert_eq!(errno(one.context.alloc_pd()), full);
    assert_eq!(errno(one.context.create_cq(65, None, 0)), inval);
    assert_eq!(errno(one.context.create_cq(64, None, 0)), full);
    assert_eq!(errno(one.context.create_cq(64, None, 4)), inval, "no such vector");
    let base = one.memory.address() as usize as *mut u8;
    for (length, expected) in [(4096, full), (4097, inval), (0, inval)] {
        // SAFETY: nothing is registered, so nothing is touched.
        let got = unsafe { one.pd.register(base, length, 0, OPEN, ()) };
        assert_eq!(errno(got), expected, "{length} bytes");
    }
    let qp = |caps: QpCaps| errno(one.pd.create_qp(caps, &one.cq, &one.cq, None));
    assert_eq!(qp(CAPS), full);
    for caps in [
        QpCaps { max_send_wr: 17, ..CAPS },
        QpCaps { max_recv_wr: 17, ..CAPS },
        QpCaps { max_send_sge: 5, ..CAPS },
        QpCaps { max_inline_data: 65, ..CAPS },
    ] {
        assert_eq!(qp(caps), inval, "{caps:?}");
    }
    let _window = one.pd.alloc_mw().unwrap();
    assert_eq!(errno(one.pd.alloc_mw()), full);
}

#[test]
fn parents_outlive_children_whatever_is_dropped_first() {
    let (fabric, one, two) = pair(1);
    let Side { qp, mr, cq, channel, pd, context, .. } = one;
    drop((context, pd, channel, cq));
    assert_eq!((fabric.counts().contexts, fabric.counts().pds, fabric.counts().cqs), (2, 2, 2));
    drop(qp);
    assert_eq!((fabric.counts().cqs, fabric.counts().channels, fabric.counts().pds), (1, 1, 2));
    drop(mr);
    assert_eq!((fabric.counts().pds, fabric.counts().contexts), (1, 1));
    drop(two);
    check_clean(&fabric, "parents first");
}

fn readable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure of ours.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn events_come_through_descriptors_that_can_be_waited_on() {
    for mode in [Mode::AtPoll, Mode::AtPost] {
        let (fabric, one, two) = pair(1);
        fabric.set_mode(mode);
        let fd = one.channel.as_raw_fd();
        assert_eq!((readable(fd), one.channel.next_event().unwrap()), (false, None));
        one.cq.arm(false).unwrap();
        one.post(&[Send::write(1, (0, 8), &two, 0), Send::write(2, (0, 8), &two, 0)]).unwrap();
        if mode == Mode::AtPoll {
            assert!(!readable(fd), "nothing is carried out yet");
            fabric.settle();
        }
        assert!(readable(fd));
        assert_eq!(one.channel.next_event().unwrap(), Some(one.cq.cookie()));
        assert_eq!((readable(fd), one.channel.next_event().unwrap()), (false, None), "one event for both");
        assert_eq!(one.statuses().len(), 2);
        // Not armed again: no event.
        one.post(&[Send::write(3, (0, 8), &two, 0)]).unwrap();
        fabric.settle();
        assert!(!readable(fd));
        // An event that nobody took does not keep the CQ.
        one.cq.arm(false).unwrap();
        one.post(&[Send::write(4, (0, 8), &two, 0)]).unwrap();
        fabric.settle();
        assert!(readable(fd));
        let async_fd = one.context.as_raw_fd();
        assert!(!readable(async_fd));
        fabric.qp_fatal(one.device, one.qp().number());
        assert!(readable(async_fd));
        let Side { qp, cq, channel, context, mr, pd, .. } = one;
        drop((qp, cq));
        assert!(!readable(channel.as_raw_fd()), "the CQ's events went with it");
        assert!(!readable(async_fd), "the QP's events went with it");
        drop((channel, mr, pd, context, two));
        check_clean(&fabric, "events");
    }
}

#[test]
fn solicited_events_need_a_message_that_asks_or_an_error() {
    let (fabric, one, two) = pair(1);
    two.receive(1, &[(0, 8)]).unwrap();
    two.receive(2, &[(0, 8)]).unwrap();
    two.cq.arm(true).unwrap();
    one.post(&[Send::new(IBV_WR_SEND, 1, &[(0, 8)])]).unwrap();
    fabric.settle();
    assert_eq!(two.channel.next_event().unwrap(), None);
    two.qp().to_err().unwrap();
    fabric.settle();
    assert_eq!(two.channel.next_event().unwrap(), Some(two.cq.cookie()));
}

#[test]
fn a_window_opens_a_part_until_it_is_taken_back() {
    let (fabric, one, mut two) = pair(1);
    let mr = Arc::new(two.mr.take().unwrap());
    let mut mw = two.pd.alloc_mw().unwrap();
    let before = mw.rkey();
    let write = |rkey, at: u64, length| Send {
        remote: two.memory.address() + at,
        rkey,
        ..Send::new(IBV_WR_RDMA_WRITE, 1, &[(0, length)])
    };
    let mut bind = mw.bind_wr(1 << 40, &mr, two.memory.address() + 100, 50, MrAccess::REMOTE_WRITE);
    post_raw(two.qp(), std::slice::from_mut(&mut bind)).unwrap();
    assert_eq!(two.statuses(), [(1 << 40, None)]);
    assert_ne!(mw.rkey(), before);
    one.memory.write(0, &[7; 50]);
    one.post(&[write(mw.rkey(), 100, 50)]).unwrap();
    assert_eq!(one.statuses(), [(1, None)]);
    assert_eq!(two.memory.read(99, 52), [vec![0], vec![7; 50], vec![0]].concat());
    // The MR can't go while the window is on it.
    let raw = Arc::try_unwrap(mr).unwrap_err();
    let invalidate = mw.invalidate_wr(2);
    post_raw(two.qp(), &mut [invalidate]).unwrap();
    assert_eq!(two.statuses(), [(2, None)]);
    mw.unbound();
    // Bound again, elsewhere and by another key.
    let mr = raw;
    let second = mw.rkey();
    let mut bind = mw.bind_wr(3, &mr, two.memory.address() + 200, 10, MrAccess::REMOTE_WRITE);
    post_raw(two.qp(), std::slice::from_mut(&mut bind)).unwrap();
    assert_eq!(two.statuses(), [(3, None)]);
    assert_ne!(mw.rkey(), second);
    one.post(&[write(mw.rkey(), 200, 10)]).unwrap();
    assert_eq!(one.statuses(), [(1, None)]);
    let invalidate = mw.invalidate_wr(4);
    post_raw(two.qp(), &mut [invalidate]).unwrap();
    assert_eq!(two.statuses(), [(4, None)]);
    mw.unbound();
    let mr = Arc::try_unwrap(mr).unwrap();
    one.post(&[write(mw.rkey(), 100, 50)]).unwrap();
    assert_eq!(one.statuses(), [(1, Some(WcStatus::RemoteAccess))], "taken back");
    mr.deregister().unwrap();
    drop((one, two, mw));
    check_clean(&fabric, "window");
}

#[test]
fn a_window_that_does_not_fit_is_not_bound() {
    for (what, at, length, access, status) in [
        ("beyond the MR", 4000u64, 97, MrAccess::REMOTE_WRITE, Some(WcStatus::WindowBind)),
        ("all of it", 0, MEMORY as u64, MrAccess::REMOTE_READ, None),
    ] {
        let (fabric, one, mut two) = pair(1);
        let mr = Arc::new(two.mr.take().unwrap());
        let mut mw = two.pd.alloc_mw().unwrap();
        let token = 1;
        let mut bind = mw.bind_wr(token, &mr, two.memory.address() + at, length, access);
        post_raw(two.qp(), std::slice::from_mut(&mut bind)).unwrap();
        assert_eq!(two.statuses(), [(1, status)], "{what}");
        // The window goes first, then the MR that it holds.
        drop(mr);
        assert_eq!(fabric.counts().mrs, 2, "{what}");
        mw.dealloc().unwrap();
        assert_eq!(fabric.counts().mrs, 1, "{what}");
        drop((one, two));
        check_clean(&fabric, what);
    }
    let fabric = FakeFabric::new(1);
    fabric.add_device(DeviceSpec { windows: false, ..DeviceSpec::roce("old", [10, 0, 0, 1]) });
    let context = Context::open(&fabric.verbs(0), "old").unwrap();
    assert!(!context.limits().unwrap().mw_type_2);
    assert_eq!(errno(context.alloc_pd().unwrap().alloc_mw()), Some(Errno::EOPNOTSUPP));
}

#[test]
fn an_srq_feeds_several_qps() {
    let (fabric, one, two) = pair(1);
    let srq = two.pd.create_srq(2, 1).unwrap();
    let caps = QpCaps { max_recv_wr: 0, ..CAPS };
    let near = [(); 2].map(|()| one.pd.create_qp(CAPS, &one.cq, &one.cq, None).unwrap());
    let far = [(); 2].map(|()| two.pd.create_qp(caps, &two.cq, &two.cq, Some(&srq)).unwrap());
    for (near, far) in near.iter().zip(&far) {
        connect(&one.context, near, &two.context, far, RTS).unwrap();
        connect(&two.context, far, &one.context, near, RTS).unwrap();
    }
    let mut sge =
        orbit_te_rdma::sys::ffi::ibv_sge { addr: two.memory.address(), length: 8, lkey: two.mr().lkey() };
    let mut post_one = |wr_id| {
        let mut wr = orbit_te_rdma::sys::ffi::ibv_recv_wr {
            wr_id,
            sg_list: &mut sge,
            num_sge: 1,
            ..Default::default()
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the WR is ours, and the memory registered.
        Errno::check(unsafe { srq.post_recv(&mut wr, &mut bad) })
    };
    assert_eq!([post_one(1), post_one(2), post_one(3)], [Ok(()), Ok(()), Err(Errno::ENOMEM)]);
    for qp in &near {
        post(qp, one.mr(), &[Send::new(IBV_WR_SEND, 5, &[(0, 8)])]).unwrap();
    }
    assert_eq!(one.statuses(), [(5, None), (5, None)]);
    let got = two.poll();
    assert_eq!(
        got.iter().map(|done| (done.token, done.qp_num)).collect::<Vec<_>>(),
        [(1, far[0].number()), (2, far[1].number())]
    );
    assert_eq!(post_one(3), Ok(()));
    far[0].to_err().unwrap();
    assert_eq!(
        two.events(),
        [AsyncEvent { kind: AsyncKind::LastWqeReached, about: About::Qp(far[0].number()) }]
    );
    drop(srq);
    assert_eq!(fabric.counts().srqs, 1, "its QPs hold it");
    drop((near, far, one, two));
    check_clean(&fabric, "SRQ");
}

#[test]
fn a_dma_buf_is_registered_where_devices_have_it() {
    use std::os::fd::AsFd;
    let (fabric, one, two) = pair(1);
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let mr = two.pd.register_dmabuf(file.as_fd(), 4096, 4096, 0x9000, OPEN, ()).unwrap();
    one.memory.write(0, b"over there");
    let wr = Send { remote: 0x9010, rkey: mr.rkey(), ..Send::new(IBV_WR_RDMA_WRITE, 1, &[(0, 10)]) };
    one.post(&[wr]).unwrap();
    assert_eq!(one.statuses(), [(1, None)]);
    let mut bytes = [0; 10];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 4096 + 16).unwrap();
    assert_eq!(&bytes, b"over there");
    drop((mr, one, two));
    check_clean(&fabric, "dma-buf");

    let fabric = FakeFabric::new(1);
    fabric.add_device(DeviceSpec { dmabuf: false, ..DeviceSpec::roce("rxe0", [10, 0, 0, 1]) });
    let pd = Context::open(&fabric.verbs(0), "rxe0").unwrap().alloc_pd().unwrap();
    assert_eq!(errno(pd.register_dmabuf(file.as_fd(), 0, 4096, 0, OPEN, ())), Some(Errno::EOPNOTSUPP));
}

#[test]
fn what_a_program_must_not_do_is_remembered() {
    let (fabric, mut one, two) = pair(1);
    fabric.set_mode(Mode::ByHand);
    one.post(&[Send::write(1, (0, 8), &two, 0)]).unwrap();
    one.mr.take().unwrap().deregister().unwrap();
    assert_eq!(fabric.violations().len(), 1, "{:?}", fabric.violations());
    fabric.settle();
    assert_eq!(one.statuses(), [(1, Some(WcStatus::LocalProtection))], "and nothing was touched");
    fabric.cq_fatal(u64::MAX);
    assert_eq!(fabric.violations().len(), 2);
}

#[test]
fn threads_share_a_fabric() {
    let (fabric, one, two) = pair(1);
    std::thread::scope(|scope| {
        for (near, far) in [(&one, &two), (&two, &one)] {
            scope.spawn(move || {
                for token in 0..2000 {
                    near.post(&[Send::write(token, (0, 64), far, 1024)]).unwrap();
                    let done = std::iter::repeat_with(|| near.statuses()).find(|done| !done.is_empty());
                    assert_eq!(done, Some(vec![(token, None)]));
                }
            });
        }
    });
    drop((one, two));
    check_clean(&fabric, "threads");
}
