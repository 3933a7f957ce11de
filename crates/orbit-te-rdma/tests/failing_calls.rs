//! Each call of verbs failing in turn, while two sides open, register, connect, move bytes both ways and end: no owner is freed early, what
//! can't be freed is listed with its reason, and nothing is left over after a sweep.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use orbit_te_rdma::fake::{Call, Counts, FakeFabric, When};
use orbit_te_rdma::handle::Retention;
use orbit_te_rdma::{Errno, Verb};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::*;

/// What the scenario leaves behind: lists that outlive their contexts.
#[derive(Default)]
struct Left {
    lists: Vec<Arc<Retention>>,
    /// Backings that were freed.
    freed: Arc<AtomicUsize>,
    /// How many were made.
    made: usize,
}

impl Left {
    fn memory(&mut self) -> Memory {
        self.made += 1;
        Memory::counted(MEMORY, &self.freed)
    }

    fn keep(&mut self, side: &Side) {
        self.lists.push(side.context.retention().clone());
    }
}

/// The scenario; the first error ends it, as it would end a program.
fn run(
    fabric: &FakeFabric,
    devices: [orbit_te_rdma::fake::DeviceId; 2],
    left: &mut Left,
) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let memory = left.memory();
    let mut one = Side::new(fabric, 0, devices[0], memory).map_err(|error| said(&error))?;
    left.keep(&one);
    let memory = left.memory();
    let mut two = Side::new(fabric, 1, devices[1], memory).map_err(|error| said(&error))?;
    left.keep(&two);
    one.context.limits().map_err(|error| said(&error))?;
    one.context.extras().map_err(|error| said(&error))?;
    one.context.pkey(1, 0).map_err(|error| said(&error))?;
    let srq = one.pd.create_srq(4, 1).map_err(|error| said(&error))?;
    let mw = one.pd.alloc_mw().map_err(|error| said(&error))?;
    one.connect_to(&two, RTS).map_err(|error| said(&error))?;
    two.connect_to(&one, RTS).map_err(|error| said(&error))?;

    let bytes = pattern(1, 1024);
    one.memory.write(0, &bytes);
    two.receive(7, &[(2048, 64)]).map_err(|error| said(&error))?;
    one.cq.arm(false).map_err(|error| said(&error))?;
    one.post(&[Send::write(1, (0, 1024), &two, 512), Send::read(2, (1024, 1024), &two, 512)])
        .map_err(|(at, errno)| format!("post at {at}: {errno}"))?;
    let mut places = [orbit_te_rdma::Wc::default(); 8];
    let count = one.cq.poll(&mut places).map_err(|error| said(&error))?;
    one.channel.next_event().map_err(|error| said(&error))?;
    one.context.next_event().map_err(|error| said(&error))?;
    one.qp().state().map_err(|error| said(&error))?;
    assert_eq!(count, 2, "both WRs complete where nothing failed");
    assert_eq!(two.memory.read(512, 1024), bytes);
    assert_eq!(one.memory.read(1024, 1024), bytes);

    // The receive is still posted: memory goes only after the QP.
    drop((mw, srq));
    let mut ended = Ok(());
    for side in [&mut one, &mut two] {
        if let (Some(qp), Some(mr)) = (side.qp.take(), side.mr.take()) {
            ended = ended.and(qp.destroy_keeping(mr).map(|_| ()).map_err(|error| said(&error)));
        }
    }
    ended
}

fn recorded() -> Vec<Call> {
    let (fabric, a, b) = fabric_of_two(1);
    fabric.record(true);
    let mut left = Left::default();
    run(&fabric, [a, b], &mut left).unwrap();
    assert!(left.lists.iter().all(|list| list.list().is_empty()));
    assert_eq!(left.freed.load(Ordering::SeqCst), left.made);
    check_clean(&fabric, "without a fault");
    fabric.calls()
}

/// What must still live when one call to free failed: itself and its parents.
fn keeps_parents(kind: Verb, counts: Counts) -> bool {
    match kind {
        Verb::CloseDevice => counts.contexts == 1,
        Verb::DeallocPd => counts.pds == 1 && counts.contexts == 1,
        Verb::DeregMr => counts.mrs == 1 && counts.pds == 1 && counts.contexts == 1,
        Verb::DeallocMw => counts.mws == 1 && counts.pds == 1 && counts.contexts == 1,
        Verb::DestroySrq => counts.srqs == 1 && counts.pds == 1 && counts.contexts == 1,
        Verb::DestroyCompChannel => counts.channels == 1 && counts.contexts == 1,
        Verb::DestroyCq => counts.cqs == 1 && counts.channels == 1 && counts.contexts == 1,
        Verb::DestroyQp => {
            counts.qps == 1 && counts.mrs == 1 && counts.cqs == 1 && counts.pds == 1 && counts.channels == 1
        }
        _ => counts.is_empty(),
    }
}

fn check(at: usize, call: Call, errno: Errno) -> String {
    let what = format!("call {at}, {} on {}, fails with {errno:?}", call.verb, call.object);
    let (fabric, a, b) = fabric_of_two(1);
    fabric.record(true);
    fabric.fail_any(When::Nth(at as u64 + 1), errno);
    let mut left = Left::default();
    let ended = run(&fabric, [a, b], &mut left);
    assert_eq!(fabric.violations(), Vec::<String>::new(), "{what}");
    assert!(fabric.calls()[at].failed.is_some(), "{what}: it was another call");

    let retained: Vec<_> = left.lists.iter().flat_map(|list| list.list()).collect();
    // Reading an event is no failure when it says that there is none.
    let quiet = errno == Errno::EAGAIN && matches!(call.verb, Verb::GetCqEvent | Verb::GetAsyncEvent);
    if call.verb.frees() {
        assert_eq!(retained.len(), 1, "{what}: {retained:?}");
        assert_eq!(retained[0].errno, errno, "{what}");
        assert!(keeps_parents(call.verb, fabric.counts()), "{what}: {:?}", fabric.counts());
        let holds_memory = matches!(call.verb, Verb::DeregMr | Verb::DestroyQp);
        let memory_kept = left.made - left.freed.load(Ordering::SeqCst);
        assert_eq!(memory_kept, usize::from(holds_memory), "{what}: memory");
    } else {
        assert!(retained.is_empty(), "{what}: {retained:?}");
        // Questions that nobody needs answered may be answered elsewhere, all others are said.
        assert!(ended.is_err() || quiet, "{what}: nobody said so");
        if let Err(said) = &ended {
            assert!(said.contains(&errno.to_string()), "{what}: {said}");
        }
    }
    let swept: usize = left.lists.iter().map(|list| list.sweep().freed.len()).sum();
    assert_eq!(swept, retained.len(), "{what}");
    check_clean(&fabric, &what);
    assert_eq!(left.freed.load(Ordering::SeqCst), left.made, "{what}: memory");
    let outcome = match (ended, retained.first()) {
        (_, Some(retained)) => format!("{} retained, then swept", retained.kind),
        (Err(said), None) => said,
        (Ok(()), None) => "no matter".to_string(),
    };
    format!("{at:3} {:24} {errno:?}: {outcome}", call.verb.name())
}

#[test]
fn each_call_failing_in_turn() {
    let calls = recorded();
    println!("{} calls", calls.len());
    let verbs: std::collections::BTreeSet<Verb> = calls.iter().map(|call| call.verb).collect();
    // All that the scenario can reach; the rest has tests of its own.
    let elsewhere = [Verb::RegDmabufMr, Verb::BindMw, Verb::PostSrqRecv];
    let missing: Vec<_> = Verb::ALL.iter().filter(|v| !verbs.contains(v) && !elsewhere.contains(v)).collect();
    assert!(missing.is_empty(), "the scenario never calls {missing:?}");
    for errno in [Errno::EBUSY, Errno::ENOMEM, Errno::EAGAIN, Errno::EINVAL, Errno::EIO] {
        for (at, call) in calls.iter().enumerate() {
            let row = check(at, *call, errno);
            if errno == Errno::EBUSY {
                println!("{row}");
            }
        }
    }
}

#[test]
fn what_stays_busy_is_tried_again_and_keeps_its_parents() {
    let (fabric, a, b) = fabric_of_two(1);
    let mut left = Left::default();
    fabric.fail(Verb::DestroyQp, When::First(4), Errno::EBUSY);
    fabric.fail(Verb::DeregMr, When::First(4), Errno::EIO);
    let _ = run(&fabric, [a, b], &mut left);
    let list = left.lists[0].clone();
    let kinds = || list.list().iter().map(|entry| entry.kind.to_string()).collect::<Vec<_>>();
    let freed = || left.freed.load(Ordering::SeqCst);
    assert_eq!((kinds(), freed(), fabric.counts().contexts), (vec!["QP".to_string()], 0, 2));
    let first = list.list()[0].ticket;
    // Both are tried a second time in vain.
    left.lists.iter().for_each(|list| drop(list.sweep()));
    assert_eq!((kinds(), list.list()[0].tries), (vec!["QP".to_string()], 2));
    // The QP goes, so its MR is dropped, fails, and is retained in its stead.
    let swept = list.sweep();
    assert_eq!((swept.freed.first(), swept.left), (Some(&first), 1));
    assert_eq!((kinds(), freed()), (vec!["MR".to_string()], 0));
    assert!(!list.holds(first));
    assert_eq!(list.list()[0].errno, Errno::EIO);
    for _ in 0..4 {
        left.lists.iter().for_each(|list| drop(list.sweep()));
    }
    assert_eq!((kinds().len(), freed()), (0, 2));
    check_clean(&fabric, "after the sweeps");
}

#[test]
fn memory_given_to_a_destroy_stays_until_the_qp_is_gone() {
    let (fabric, mut one, two) = pair(3);
    let freed = Arc::new(AtomicUsize::new(0));
    let memory = Memory::counted(64, &freed);
    fabric.fail(Verb::DestroyQp, When::Nth(1), Errno::EBUSY);
    let retained = one.qp.take().unwrap().destroy_keeping(memory).unwrap_err();
    assert_eq!(freed.load(Ordering::SeqCst), 0);
    assert_eq!(one.context.retained()[0].ticket, retained.ticket);
    one.context.sweep();
    assert_eq!(freed.load(Ordering::SeqCst), 1);
    let number = two.qp().number();
    let mut two = two;
    assert_eq!(two.qp.take().unwrap().destroy().unwrap().number(), number);
    drop((one, two));
    check_clean(&fabric, "at the end");
}
