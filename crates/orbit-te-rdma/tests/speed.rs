//! What the verbs in memory cost themselves: they stand in for a device when the engine's own cost is counted, so they must be cheap, and
//! allocate nothing for a WR.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use orbit_te_rdma::Wc;
use orbit_te_rdma::sys::ffi::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::time::Instant;
use support::*;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_wr_costs_little_and_allocates_nothing() {
    const BATCH: usize = 64;
    let (fabric, a, b) = fabric_of_two(1);
    let caps = orbit_te_rdma::handle::QpCaps { max_send_wr: 256, ..CAPS };
    let side = |host, device| {
        Side::with(&fabric, host, device, std::sync::Arc::new(Memory::new(MEMORY)), caps, 1024).unwrap()
    };
    let (one, two) = (side(0, a), side(1, b));
    one.connect_to(&two, RTS).unwrap();
    two.connect_to(&one, RTS).unwrap();
    let mut sge = ibv_sge { addr: one.memory.address(), length: 8, lkey: one.mr().lkey() };
    let mut wrs = [ibv_send_wr::default(); BATCH];
    for (at, wr) in wrs.iter_mut().enumerate() {
        wr.wr_id = at as u64;
        wr.sg_list = &mut sge;
        wr.num_sge = 1;
        wr.send_flags = if at % 8 == 7 { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: two.memory.address() + at as u64 * 8,
            rkey: two.mr().rkey(),
        };
    }
    let base = wrs.as_mut_ptr();
    for at in 1..BATCH {
        // SAFETY: both are inside of the array.
        unsafe { (*base.add(at - 1)).next = base.add(at) };
    }
    let mut places = [Wc::default(); BATCH];
    let mut round = || {
        let mut bad = null_mut();
        // SAFETY: the chain is ours, and the memory registered.
        assert_eq!(unsafe { one.qp().post_send(base, &mut bad) }, 0);
        assert_eq!(one.cq.poll(&mut places).unwrap(), BATCH / 8);
    };
    round();
    let rounds = 10_000;
    let (before, start) = (COUNT.with(Cell::get), Instant::now());
    (0..rounds).for_each(|_| round());
    let took = start.elapsed().as_nanos() as f64 / (rounds * BATCH) as f64;
    assert_eq!(COUNT.with(Cell::get) - before, 0, "allocations");
    println!(
        "{took:.1} ns a WR of 8 bytes, in batches of {BATCH}{}",
        if cfg!(debug_assertions) { " (unoptimized)" } else { "" }
    );
}
