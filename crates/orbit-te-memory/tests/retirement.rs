//! Leases against the two ways to end them: retiring a region, and revoking its descriptors.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_memory::{Access, AdmitError, HostBuffer, Lease, MemoryError, Region, Registry, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(40);
/// Reached only when a test fails.
const LONG: Duration = Duration::from_secs(20);

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
        access: Access::REMOTE_READ,
    }
}

/// Drops the lease after a short while, on another thread; says when, by the flag, just before.
fn drop_soon(lease: Lease) -> Arc<AtomicBool> {
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = dropped.clone();
    thread::spawn(move || {
        thread::sleep(SHORT);
        flag.store(true, Ordering::Release);
        drop(lease);
    });
    dropped
}

#[test]
fn a_region_without_leases_retires_at_once() {
    let (registry, region) = registered();
    registry.retire(&region, Duration::ZERO).unwrap();
    assert!(region.is_retired() && registry.is_empty() && registry.get(region.id()).is_none());
    assert!(matches!(region.lease(), Err(MemoryError::Retired { .. })));
    assert!(matches!(region.read_at(0, &mut [0]), Err(MemoryError::Retired { .. })));
    assert!(matches!(region.write_at(0, &[0]), Err(MemoryError::Retired { .. })));
    assert_eq!(registry.admit(&request(&region)).map(drop), Err(AdmitError::UnknownRegion));
    registry.retire(&region, Duration::ZERO).unwrap();
}

#[test]
fn retiring_waits_for_the_last_lease() {
    let (registry, region) = registered();
    let (first, last) = (region.lease().unwrap(), registry.admit(&request(&region)).unwrap());
    assert_eq!(region.leases(), 2);
    drop(first);
    let dropped = drop_soon(last);
    registry.retire(&region, LONG).unwrap();
    assert!(dropped.load(Ordering::Acquire), "no lease after retire has returned");
}

#[test]
fn retiring_ends_at_its_limit_and_can_be_asked_again() {
    let (registry, region) = registered();
    let (a, b) = (region.lease().unwrap(), region.lease().unwrap());
    let begun = Instant::now();
    let Err(MemoryError::StillLeased { region: id, leases, waited_ms }) = registry.retire(&region, SHORT)
    else {
        panic!("two leases are held");
    };
    assert!(begun.elapsed() >= SHORT && begun.elapsed() < LONG);
    assert_eq!((id, leases, waited_ms), (region.id(), 2, 40));
    assert!(matches!(region.lease(), Err(MemoryError::Retired { .. })), "withdrawn all the same");
    assert_eq!(registry.admit(&request(&region)).map(drop), Err(AdmitError::UnknownRegion));
    drop(a);
    drop_soon(b);
    registry.retire(&region, LONG).unwrap();
}

/// A limit beyond the end of the clock is no limit, and no panic.
#[test]
fn limits_without_end() {
    let (registry, region) = registered();
    drop_soon(region.lease().unwrap());
    registry.revoke(&region, Duration::MAX).unwrap();
    drop_soon(region.lease().unwrap());
    registry.retire(&region, Duration::MAX).unwrap();
}

#[test]
fn revoking_makes_descriptors_stale_and_waits_for_old_requests() {
    let (registry, region) = registered();
    let old = request(&region);
    let dropped = drop_soon(registry.admit(&old).unwrap());
    let generation = registry.revoke(&region, LONG).unwrap();
    assert!(dropped.load(Ordering::Acquire), "the old request has ended");
    assert!(generation > old.generation && generation == region.generation());
    assert_eq!(registry.admit(&old).map(drop), Err(AdmitError::StaleGeneration));
    assert!(registry.admit(&request(&region)).is_ok(), "usable afterwards, by a new descriptor");
    assert!(region.lease().is_ok() && region.takes_leases() && !region.is_retired());
}

#[test]
fn revoking_ends_at_its_limit_and_leaves_the_region_open() {
    let (registry, region) = registered();
    let old = request(&region);
    let lease = registry.admit(&old).unwrap();
    assert!(matches!(registry.revoke(&region, SHORT), Err(MemoryError::StillLeased { leases: 1, .. })));
    assert_eq!(registry.admit(&old).map(drop), Err(AdmitError::StaleGeneration));
    assert!(registry.admit(&request(&region)).is_ok());
    drop(lease);
    registry.revoke(&region, Duration::ZERO).unwrap();
}

/// While a revocation waits, nothing new is let in, and each side is told what it can do about it.
#[test]
fn a_region_that_is_being_revoked_takes_no_leases() {
    let (registry, region) = registered();
    let (old, lease) = (request(&region), region.lease().unwrap());
    thread::scope(|scope| {
        let revoking = scope.spawn(|| registry.revoke(&region, LONG));
        let begun = Instant::now();
        while region.takes_leases() {
            assert!(begun.elapsed() < LONG);
            thread::yield_now();
        }
        assert!(matches!(region.lease(), Err(MemoryError::BeingRevoked { .. })));
        assert!(matches!(region.read_at(0, &mut [0]), Err(MemoryError::BeingRevoked { .. })));
        assert!(!region.is_retired() && !region.takes_leases());
        assert_eq!(registry.admit(&old).map(drop), Err(AdmitError::StaleGeneration));
        assert_eq!(registry.admit(&request(&region)).map(drop), Err(AdmitError::StaleGeneration));
        drop(lease);
        revoking.join().unwrap().unwrap();
    });
    assert!(region.lease().is_ok());
}

#[test]
fn revocations_of_one_region_wait_for_each_other() {
    let (registry, region) = registered();
    let (old, lease) = (request(&region), region.lease().unwrap());
    let mut generations = thread::scope(|scope| {
        let revoking: Vec<_> = (0..4).map(|_| scope.spawn(|| registry.revoke(&region, LONG))).collect();
        thread::sleep(SHORT);
        drop(lease);
        revoking.into_iter().map(|r| r.join().unwrap().unwrap().0).collect::<Vec<_>>()
    });
    generations.sort_unstable();
    let first = old.generation.0;
    assert_eq!(generations, [first + 1, first + 2, first + 3, first + 4]);
    assert!(region.lease().is_ok());
}

#[test]
fn a_revocation_that_gets_no_turn_ends_at_its_limit() {
    let (registry, region) = registered();
    let lease = region.lease().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| registry.revoke(&region, LONG));
        while region.takes_leases() {
            thread::yield_now();
        }
        assert!(matches!(registry.revoke(&region, SHORT), Err(MemoryError::StillLeased { leases: 1, .. })));
        assert!(matches!(region.lease(), Err(MemoryError::BeingRevoked { .. })), "the first goes on");
        drop(lease);
        first.join().unwrap().unwrap();
    });
}

#[test]
fn a_retired_region_is_not_revoked() {
    let (registry, region) = registered();
    registry.retire(&region, Duration::ZERO).unwrap();
    assert!(matches!(registry.revoke(&region, LONG), Err(MemoryError::Retired { .. })));
    assert!(region.is_retired());
}

#[test]
fn a_region_of_another_registry_is_left_alone() {
    let (registry, region) = registered();
    let (_others, other) = registered();
    assert_eq!(region.id(), other.id(), "numbers are a registry's own");
    assert!(matches!(registry.revoke(&other, LONG), Err(MemoryError::Retired { .. })));
    registry.retire(&other, Duration::ZERO).unwrap();
    assert!(registry.get(region.id()).is_some() && region.lease().is_ok());
}

/// A region that is retired while a revocation waits stays retired: the end of the revocation does not open it.
#[test]
fn retiring_while_a_revocation_waits() {
    let (registry, region) = registered();
    let lease = region.lease().unwrap();
    thread::scope(|scope| {
        let revoking = scope.spawn(|| registry.revoke(&region, LONG));
        while region.takes_leases() {
            thread::yield_now();
        }
        assert!(matches!(registry.retire(&region, Duration::ZERO), Err(MemoryError::StillLeased { .. })));
        drop(lease);
        assert!(matches!(revoking.join().unwrap(), Err(MemoryError::Retired { .. })));
    });
    assert!(matches!(region.lease(), Err(MemoryError::Retired { .. })));
    registry.retire(&region, Duration::ZERO).unwrap();
}
