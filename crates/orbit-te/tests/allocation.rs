//! After warm-up a transfer's allocations do not depend on how many pieces it has, and serving a request allocates nothing. The
//! counting allocator of this test binary tells the threads apart by their names.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::route::RouteId;
use orbit_te::{Access, Batch};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::{Pair, pair, region, watchdog};

/// Allocations of threads that serve, and of all others.
static SERVING: AtomicU64 = AtomicU64::new(0);
static OTHERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// 0: not looked at yet, 1: serves, 2: does not.
    static KIND: Cell<u8> = const { Cell::new(0) };
}

struct Counting;

fn note() {
    // A thread that is ending has no cell any more, and is none of those that count.
    let kind = KIND.try_with(|kind| {
        if kind.get() == 0 {
            kind.set(2);
            let mut name = [0u8; 16];
            // SAFETY: `name` has the 16 bytes that the call may fill.
            unsafe { libc_prctl(16, name.as_mut_ptr()) };
            kind.set(if name.starts_with(b"orbit-te-serve") { 1 } else { 2 });
        }
        kind.get()
    });
    match kind {
        Ok(1) => SERVING.fetch_add(1, Ordering::Relaxed),
        _ => OTHERS.fetch_add(1, Ordering::Relaxed),
    };
}

unsafe extern "C" {
    #[link_name = "prctl"]
    fn libc_prctl(option: i32, name: *mut u8) -> i32;
}

// SAFETY: every call is handed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The counts are of the whole process, so only one test runs at a time.
static ONE: Mutex<()> = Mutex::new(());

fn counts() -> (u64, u64) {
    (SERVING.load(Ordering::Relaxed), OTHERS.load(Ordering::Relaxed))
}

/// Allocations (serving, others) of submitting a prepared batch of so many pieces and waiting for it.
fn cost(pair: &Pair, local: &orbit_te::Region, pieces: u64, size: u64) -> (u64, u64) {
    cost_by(pair, local, None, pieces, size)
}

fn cost_by(
    pair: &Pair,
    local: &orbit_te::Region,
    route: Option<RouteId>,
    pieces: u64,
    size: u64,
) -> (u64, u64) {
    let mut batch = Batch::with_capacity(pieces as usize);
    for k in 0..pieces {
        let slice = local.slice(k * size, size).unwrap();
        match k % 2 {
            0 => batch.write(&pair.segment, k * size, &slice),
            _ => batch.read(&pair.segment, k * size, &slice),
        };
    }
    route.map(|route| batch.route(route));
    let before = counts();
    pair.engine.submit(batch).unwrap().wait().unwrap();
    let after = counts();
    (after.0 - before.0, after.1 - before.1)
}

/// The least of some runs: whatever else the process does now and then is not the transfer's.
fn least(pair: &Pair, local: &orbit_te::Region, pieces: u64, size: u64) -> (u64, u64) {
    let runs: Vec<_> = (0..12).map(|_| cost(pair, local, pieces, size)).collect();
    (runs.iter().map(|r| r.0).min().unwrap(), runs.iter().map(|r| r.1).min().unwrap())
}

#[test]
fn nothing_is_allocated_per_piece() {
    let _dog = watchdog("nothing_is_allocated_per_piece", Duration::from_secs(60));
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    const SIZE: u64 = 2048;
    let pair = pair(2048 * SIZE as usize);
    let local = region(&pair.engine, &vec![5; 2048 * SIZE as usize], Access::LOCAL);
    // Warm-up: the largest batch that will come.
    for _ in 0..4 {
        cost(&pair, &local, 1024, SIZE);
    }
    let one = least(&pair, &local, 1, SIZE);
    let few = least(&pair, &local, 16, SIZE);
    let many = least(&pair, &local, 1024, SIZE);
    println!("allocations (serving, others): 1 piece {one:?}, 16 pieces {few:?}, 1024 pieces {many:?}");
    assert!(many.1 <= few.1 + 4, "1,024 pieces allocate {} times, 16 pieces {} times", many.1, few.1);
    assert!(few.1 <= one.1 + 4, "16 pieces allocate {} times, one piece {} times", few.1, one.1);
    assert!(one.1 <= 16, "one request allocates {} times", one.1);
    assert_eq!((one.0, few.0, many.0), (0, 0, 0), "serving allocates");
}

/// Large requests are split over lanes; that allocates nothing either.
#[test]
fn nothing_is_allocated_per_part() {
    let _dog = watchdog("nothing_is_allocated_per_part", Duration::from_secs(60));
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let pair = pair(32 << 20);
    let local = region(&pair.engine, &vec![5; 32 << 20], Access::LOCAL);
    for _ in 0..4 {
        cost(&pair, &local, 2, 16 << 20);
    }
    let small = least(&pair, &local, 2, 64);
    let large = least(&pair, &local, 2, 16 << 20);
    println!("allocations (serving, others): 64 bytes {small:?}, 16 MiB {large:?}");
    assert!(large.1 <= small.1 + 4, "16 MiB allocate {} times, 64 bytes {} times", large.1, small.1);
    assert_eq!((small.0, large.0), (0, 0), "serving allocates");
}

/// A thousand small transfers by each route cost no more than the transfers themselves do: the transports and the choice among them allocate
/// nothing.
#[test]
fn nothing_is_allocated_by_a_route() {
    let _dog = watchdog("nothing_is_allocated_by_a_route", Duration::from_secs(60));
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let pair = pair(64 << 10);
    let local = region(&pair.engine, &vec![5; 64 << 10], Access::LOCAL);
    let routes = [None, Some(RouteId::SHM), Some(RouteId::PROCESS_VM), Some(RouteId::TCP)];
    for route in routes {
        for _ in 0..200 {
            cost_by(&pair, &local, route, 2, 64);
        }
        let all: Vec<_> = (0..1000).map(|_| cost_by(&pair, &local, route, 2, 64)).collect();
        let (serving, others) = all.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        println!(
            "{route:?}: 1,000 transfers allocate {serving} times where they are served, {others} elsewhere"
        );
        assert_eq!(serving, 0, "{route:?}");
        assert!(others <= 12 * 1000, "{route:?}: {others}");
        // A large part of them costs the same, so it is the transfer's own.
        let least = all.iter().map(|one| one.1).min().unwrap();
        let usual = all.iter().filter(|one| one.1 <= least + 1).count();
        assert!(usual > 900, "{route:?}: only {usual} of 1,000 cost {least}");
    }
}
