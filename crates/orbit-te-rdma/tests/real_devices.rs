//! The same handles over the machine's own verbs: what the tests over verbs in memory take for granted, asked of real ones. Left out aloud
//! where there is no device; `ORBIT_TE_RDMA_DEVICES` names two (`rxe_a0,rxe_b0`), otherwise the first is its own peer.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use orbit_te_rdma::handle::*;
use orbit_te_rdma::sys::ffi::ibv_wr_opcode::*;
use orbit_te_rdma::sys::{SystemVerbs, Verbs};
use orbit_te_rdma::{Completion, Done, Errno, MrAccess, WcStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::*;

/// Two connected sides over real devices, or why there are none.
fn sides() -> Option<(Side, Side)> {
    let verbs: Arc<dyn Verbs> = match SystemVerbs::load() {
        Ok(verbs) => Arc::new(verbs),
        Err(why) => {
            skipped(&format!("RDMA over real devices: {why}"));
            return None;
        }
    };
    let listed = verbs.devices().unwrap();
    println!("devices: {listed:?}");
    let named = std::env::var("ORBIT_TE_RDMA_DEVICES").unwrap_or_else(|_| listed[0].name.clone());
    let names: Vec<&str> = named.split(',').collect();
    let (_, any, _) = fabric_of_two(1);
    let side = |name: &str| {
        let memory = Arc::new(Memory::new(1 << 20));
        Side::open(&verbs, name, any, memory, CAPS, 64).unwrap()
    };
    let (one, two) = (side(names[0]), side(names.last().unwrap()));
    let rts = RtsStep { timeout: 14, ..RTS };
    one.connect_to(&two, rts).unwrap();
    two.connect_to(&one, rts).unwrap();
    Some((one, two))
}

/// Waits for so many CQEs, asleep on the channel.
fn wait(side: &Side, count: usize) -> Vec<Completion> {
    use std::os::fd::AsRawFd;
    let (mut done, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    loop {
        side.cq.arm(false).unwrap();
        done.extend(side.poll());
        if done.len() >= count {
            return done;
        }
        assert!(Instant::now() < deadline, "{count} CQEs were expected: {done:?}");
        let mut poll = libc::pollfd { fd: side.channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure of ours.
        unsafe { libc::poll(&mut poll, 1, 500) };
        while side.channel.next_event().unwrap().is_some() {}
    }
}

fn check(what: &str, got: &[Completion], expected: &[(u64, Result<Done, WcStatus>)]) {
    let got: Vec<_> = got.iter().map(|c| (c.token, c.result.map_err(|failed| failed.status))).collect();
    assert_eq!(got, expected, "{what}");
    println!("{what}: as it should be");
}

/// Binds a window twice, uses it, and takes it back, where the device has any.
fn windows(one: Side, mut two: Side) -> (Side, Side) {
    let mut mw = match two.pd.alloc_mw() {
        Ok(mw) => mw,
        Err(why) => {
            skipped(&format!("memory windows: {why}"));
            return (one, two);
        }
    };
    let mr = Arc::new(two.mr.take().unwrap());
    for slot in 0..2 {
        let token = 100 + 2 * slot;
        let at = two.memory.address() + 1000;
        let mut bind = mw.bind_wr(token, &mr, at, 64, MrAccess::REMOTE_WRITE);
        post_raw(two.qp(), std::slice::from_mut(&mut bind)).unwrap();
        check("bind", &wait(&two, 1), &[(token, Ok(Done::Bind))]);
        one.memory.write(0, &[slot as u8 + 1; 64]);
        one.post(&[Send { remote: at, rkey: mw.rkey(), ..Send::new(IBV_WR_RDMA_WRITE, 40, &[(0, 64)]) }])
            .unwrap();
        check("WRITE through a window", &wait(&one, 1), &[(40, Ok(Done::Write))]);
        assert_eq!(two.memory.read(1000, 64), [slot as u8 + 1; 64]);
        post_raw(two.qp(), &mut [mw.invalidate_wr(token + 1)]).unwrap();
        check("invalidate", &wait(&two, 1), &[(token + 1, Ok(Done::Invalidate))]);
        mw.unbound();
    }
    mw.dealloc().unwrap();
    two.mr = Arc::try_unwrap(mr).ok();
    (one, two)
}

#[test]
fn bytes_move_and_faults_are_told_on_real_devices() {
    let Some((one, two)) = sides() else { return };
    println!("limits: {:?}", one.context.limits().unwrap());
    println!("extras: {:?}", one.context.extras().unwrap());
    println!("port: {:?}", one.context.port(1).unwrap());
    println!("GIDs: {:?}", one.context.gid_table().unwrap());
    println!("P_Key: {:#x}, NUMA node: {:?}", one.context.pkey(1, 0).unwrap(), one.context.numa_node());
    assert_eq!(one.qp().state().unwrap(), QpState::Rts);

    let bytes = pattern(3, 300_000);
    one.memory.write(0, &bytes);
    one.post(&[
        Send::write(1, (0, 100_000), &two, 0).quiet(),
        Send::write(2, (100_000, 200_000), &two, 100_000),
        Send::read(3, (500_000, 300_000), &two, 0),
    ])
    .unwrap();
    check("WRITE and READ", &wait(&one, 2), &[(2, Ok(Done::Write)), (3, Ok(Done::Read { bytes: 300_000 }))]);
    assert!(two.memory.read(0, bytes.len()) == bytes && one.memory.read(500_000, bytes.len()) == bytes);

    two.receive(10, &[(900_000, 64)]).unwrap();
    two.receive(11, &[(900_064, 64)]).unwrap();
    let imm =
        Send { imm: 0xabcd_1234, ..Send::new(IBV_WR_RDMA_WRITE_WITH_IMM, 4, &[(0, 4096)]).to(&two, 600_000) };
    let inline = Send { inline: true, lkey: Some(0), ..Send::new(IBV_WR_SEND, 5, &[(0, 12), (100, 20)]) };
    one.post(&[imm.quiet(), inline]).unwrap();
    check("inline SEND", &wait(&one, 1), &[(5, Ok(Done::Send))]);
    let received = [
        (10, Ok(Done::ReceiveWrite { bytes: 4096, imm: 0xabcd_1234 })),
        (11, Ok(Done::Receive { bytes: 32, imm: None })),
    ];
    check("receives", &wait(&two, 2), &received);
    assert_eq!(two.memory.read(900_064, 32), [&bytes[..12], &bytes[100..120]].concat());

    let full: Vec<Send> = (0..40).map(|token| Send::write(token, (0, 8), &two, 0)).collect();
    let (taken, errno) = one.post(&full).unwrap_err();
    println!("a full queue takes {taken} of {} and says {errno:?}", one.qp().caps().max_send_wr);
    assert!(taken as u32 >= CAPS.max_send_wr && errno == Errno::ENOMEM, "{taken} {errno}");
    assert_eq!(wait(&one, taken).len(), taken);

    let (one, two) = windows(one, two);

    let mut wrong = Send::write(20, (0, 4096), &two, 0).quiet();
    wrong.rkey ^= 0x55;
    one.post(&[wrong, Send::write(21, (0, 8), &two, 0).quiet()]).unwrap();
    let refused = [(20, Err(WcStatus::RemoteAccess)), (21, Err(WcStatus::Flushed))];
    check("wrong rkey", &wait(&one, 2), &refused);
    assert_eq!(one.qp().state().unwrap(), QpState::Err);
    println!("the peer's QP after that: {:?}, its events: {:?}", two.qp().state().unwrap(), two.events());

    println!("an SRQ: {:?}", one.pd.create_srq(16, 1).map(|_| ()));
    let lists = [one.context.retention().clone(), two.context.retention().clone()];
    let Side { mut qp, mr, cq, channel, pd, context, .. } = one;
    assert!(qp.take().unwrap().destroy().is_ok() && mr.unwrap().deregister().is_ok());
    drop((context, pd, channel, cq, two));
    assert!(lists.iter().all(|list| list.list().is_empty()), "{lists:?}");
}
