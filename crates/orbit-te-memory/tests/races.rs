//! Many threads at one region: whatever the order of things, no lease is there after a retirement has returned, and
//! none of an old generation after a revocation has. Each round is short; a number of them meets many orders.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_memory::registry::admit;
use orbit_te_memory::{Access, HostBuffer, MemoryError, Region, Registry, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);
const ADMITTERS: usize = 3;

fn registered() -> (Arc<Registry>, Region) {
    let registry = Registry::new();
    let region = registry.register(HostBuffer::new(4096).unwrap().into_backing(), Access::SHARED).unwrap();
    (registry, region)
}

fn request(region: &Region) -> Request {
    Request {
        region: region.id(),
        generation: region.generation(),
        key: region.key(),
        offset: 0,
        length: 1,
        access: Access::REMOTE_WRITE,
    }
}

/// Waits until every admitter has held a lease, so that a round does not end before it has begun.
fn begun(counts: &[AtomicU64]) {
    while counts.iter().any(|count| count.load(Ordering::Acquire) == 0) {
        thread::yield_now();
    }
}

/// Admits by turns from the registry, from an old snapshot and from the handle, and marks the time of each lease.
fn admit_until(stop: &AtomicBool, registry: &Registry, region: &Region, held: &AtomicU64, count: &AtomicU64) {
    let snapshot = registry.table().load_full();
    while !stop.load(Ordering::Acquire) {
        let leases = [
            registry.admit(&request(region)).ok(),
            admit(&snapshot, registry.grants().anybody(), &request(region), Instant::now()).ok(),
            region.lease().ok(),
        ];
        for lease in leases.into_iter().flatten() {
            held.fetch_add(1, Ordering::AcqRel);
            count.fetch_add(1, Ordering::AcqRel);
            thread::yield_now();
            held.fetch_sub(1, Ordering::AcqRel);
            drop(lease);
        }
    }
}

/// One round: admitters at work while `change` runs, and what it leaves behind.
fn round(change: impl Fn(&Registry, &Region, &AtomicU64)) {
    let (registry, region) = registered();
    let (stop, held) = (AtomicBool::new(false), AtomicU64::new(0));
    let counts: [AtomicU64; ADMITTERS] = Default::default();
    thread::scope(|scope| {
        for count in &counts {
            scope.spawn(|| admit_until(&stop, &registry, &region, &held, count));
        }
        begun(&counts);
        change(&registry, &region, &held);
        stop.store(true, Ordering::Release);
    });
    assert_eq!((held.load(Ordering::Acquire), region.leases()), (0, 0));
}

fn retired_for_good(region: &Region, held: &AtomicU64) {
    for _ in 0..5 {
        assert_eq!(held.load(Ordering::Acquire), 0, "a lease after retire has returned");
        assert!(region.is_retired() && region.lease().is_err());
        thread::yield_now();
    }
}

#[test]
fn admitting_while_another_retires() {
    for _ in 0..40 {
        round(|registry, region, held| {
            registry.retire(region, LONG).unwrap();
            retired_for_good(region, held);
        });
    }
}

#[test]
fn admitting_while_another_revokes() {
    for _ in 0..20 {
        round(|registry, region, _| {
            for _ in 0..10 {
                let old = request(region);
                let generation = registry.revoke(region, LONG).unwrap();
                assert!(generation > old.generation && registry.admit(&old).is_err());
            }
        });
    }
}

#[test]
fn retiring_while_others_revoke() {
    for _ in 0..40 {
        round(|registry, region, held| {
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !region.is_retired() {
                            match registry.revoke(region, LONG) {
                                Ok(_) | Err(MemoryError::Retired { .. }) => {}
                                Err(other) => panic!("{other}"),
                            }
                        }
                    });
                }
                thread::yield_now();
                registry.retire(region, LONG).unwrap();
                retired_for_good(region, held);
            });
            retired_for_good(region, held);
        });
    }
}

/// A request is admitted under the generation that it names or not at all: a lease that is held when a revocation has
/// returned is of the new generation.
#[test]
fn no_lease_of_an_old_generation_outlives_a_revocation() {
    let (registry, region) = registered();
    let stop = AtomicBool::new(false);
    // The lowest generation that may still be in use; raised when a revocation has returned.
    let lowest = AtomicU64::new(region.generation().0);
    thread::scope(|scope| {
        for _ in 0..ADMITTERS {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    let request = request(&region);
                    if let Ok(lease) = registry.admit(&request) {
                        assert!(request.generation.0 >= lowest.load(Ordering::Acquire));
                        drop(lease);
                    }
                }
            });
        }
        for _ in 0..300 {
            let generation = registry.revoke(&region, LONG).unwrap();
            lowest.store(generation.0, Ordering::Release);
        }
        stop.store(true, Ordering::Release);
    });
}

#[test]
fn registering_and_retiring_from_many_threads() {
    let registry = Registry::new();
    let backing = Arc::new(HostBuffer::new(4096).unwrap().into_backing());
    thread::scope(|scope| {
        for _ in 0..ADMITTERS {
            scope.spawn(|| {
                for _ in 0..100 {
                    let region = registry.register(backing.clone(), Access::SHARED).unwrap();
                    assert!(registry.get(region.id()).is_some(), "no other thread's change removes it");
                    assert!(registry.admit(&request(&region)).is_ok());
                    registry.retire(&region, LONG).unwrap();
                    assert!(registry.get(region.id()).is_none());
                }
            });
        }
    });
    assert!(registry.is_empty());
    let region = registry.register(backing, Access::SHARED).unwrap();
    assert_eq!(region.id().0, ADMITTERS as u64 * 100 + 1, "no number is given out twice");
}

/// The two ways meet head-on, very often: a region that was retired is not open again, whoever came last.
#[test]
fn a_revocation_that_ends_late_opens_nothing() {
    const ROUNDS: usize = 5_000;
    let registry = Registry::new();
    let backing = Arc::new(HostBuffer::new(4096).unwrap().into_backing());
    let regions: Vec<Region> =
        (0..ROUNDS).map(|_| registry.register(backing.clone(), Access::SHARED).unwrap()).collect();
    let start = Barrier::new(2);
    // Judged afterwards: a thread that panics would leave the other one at the barrier.
    let (mut revoked, mut reopened) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            for region in &regions {
                start.wait();
                revoked.push(registry.revoke(region, LONG));
            }
        });
        for (round, region) in regions.iter().enumerate() {
            start.wait();
            // A little later in each round, so that each of the other side's steps is met.
            (0..round % 200).for_each(|_| std::hint::spin_loop());
            if registry.retire(region, LONG).is_err() || !region.is_retired() || region.lease().is_ok() {
                reopened.push(round);
            }
        }
    });
    assert_eq!(reopened, [0; 0], "rounds in which the region was open when retire had returned");
    assert!(regions.iter().all(|region| region.is_retired() && region.lease().is_err()));
    for result in revoked {
        assert!(matches!(result, Ok(_) | Err(MemoryError::Retired { .. })), "{result:?}");
    }
}
