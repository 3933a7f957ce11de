//! The one check of a peer's request: each reason for a refusal, and which comes first.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_memory::registry::admit;
use orbit_te_memory::{
    Access, AdmitError, Generation, HostBuffer, Lease, Region, RegionId, RegionTable, Registry, Request,
};
use orbit_te_wire::Status;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: u64 = 100;

fn registered(access: Access) -> (Arc<Registry>, Region) {
    let registry = Registry::new();
    let region = registry.register(HostBuffer::new(LEN as usize).unwrap().into_backing(), access).unwrap();
    (registry, region)
}

/// A request that is admitted.
fn good(region: &Region) -> Request {
    Request {
        region: region.id(),
        generation: region.generation(),
        key: region.key(),
        offset: 0,
        length: LEN,
        access: Access::REMOTE_READ,
    }
}

/// By a snapshot that was taken before.
fn from(registry: &Registry, snapshot: &RegionTable, request: &Request) -> Result<Lease, AdmitError> {
    admit(snapshot, registry.grants().anybody(), request, Instant::now())
}

fn check(registry: &Registry, request: Request, want: Result<(), AdmitError>) {
    let region = registry.get(request.region);
    let before = region.as_ref().map_or(0, Region::leases);
    let lease = registry.admit(&request);
    assert_eq!(lease.as_ref().map(drop).map_err(|why| *why), want, "{request:?}");
    if let Some(region) = region {
        assert_eq!(region.leases(), before + u64::from(want.is_ok()), "{request:?}");
        drop(lease);
        assert_eq!(region.leases(), before, "{request:?}");
    }
}

#[test]
fn each_reason() {
    let (registry, region) = registered(Access::SHARED_READ);
    let good = good(&region);
    check(&registry, good, Ok(()));
    check(&registry, Request { offset: 99, length: 1, ..good }, Ok(()));
    check(&registry, Request { region: RegionId(0), ..good }, Err(AdmitError::UnknownRegion));
    check(&registry, Request { region: RegionId(u64::MAX), ..good }, Err(AdmitError::UnknownRegion));
    check(&registry, Request { key: good.key ^ 1, ..good }, Err(AdmitError::BadKey));
    check(&registry, Request { generation: Generation(0), ..good }, Err(AdmitError::StaleGeneration));
    check(&registry, Request { generation: Generation(2), ..good }, Err(AdmitError::StaleGeneration));
    check(&registry, Request { access: Access::REMOTE_WRITE, ..good }, Err(AdmitError::AccessDenied));
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    check(&registry, Request { access: both, ..good }, Err(AdmitError::AccessDenied));
    check(&registry, Request { length: 0, ..good }, Err(AdmitError::BadLength));
    check(&registry, Request { offset: u64::MAX, length: 0, ..good }, Err(AdmitError::BadLength));
    for (offset, length) in [(0, 101), (1, 100), (100, 1), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)]
    {
        check(&registry, Request { offset, length, ..good }, Err(AdmitError::OutOfRange));
    }
}

/// Faults are added from the last one that is looked for to the first: each hides those before it.
#[test]
fn the_order_of_the_reasons() {
    let (registry, region) = registered(Access::SHARED_READ);
    let mut request = Request { offset: LEN, ..good(&region) };
    check(&registry, request, Err(AdmitError::OutOfRange));
    request.length = 0;
    check(&registry, request, Err(AdmitError::BadLength));
    request.access = Access::REMOTE_WRITE;
    check(&registry, request, Err(AdmitError::AccessDenied));
    request.key ^= 1;
    check(&registry, request, Err(AdmitError::BadKey));
    request.generation = Generation(7);
    check(&registry, request, Err(AdmitError::StaleGeneration));
    let snapshot = registry.table().load_full();
    registry.retire(&region, Duration::ZERO).unwrap();
    let withdrawn = |request: &Request| from(&registry, &snapshot, request).map(drop);
    assert_eq!(withdrawn(&request), Err(AdmitError::UnknownRegion), "withdrawn, by an older snapshot");
    request.region = RegionId(99);
    assert_eq!(withdrawn(&request), Err(AdmitError::UnknownRegion));
}

#[test]
fn an_older_snapshot_does_not_open_a_withdrawn_region() {
    let (registry, region) = registered(Access::SHARED);
    let snapshot = registry.table().load_full();
    assert!(from(&registry, &snapshot, &good(&region)).is_ok());
    registry.retire(&region, Duration::ZERO).unwrap();
    assert_eq!(from(&registry, &snapshot, &good(&region)).map(drop), Err(AdmitError::UnknownRegion));
    assert_eq!(region.leases(), 0, "the refused one is not counted");
}

/// An older snapshot sees the newer generation: it is the region's own, not the table's.
#[test]
fn an_older_snapshot_does_not_keep_a_generation() {
    let (registry, region) = registered(Access::SHARED);
    let (snapshot, old) = (registry.table().load_full(), good(&region));
    registry.renew(&region).unwrap();
    assert_eq!(from(&registry, &snapshot, &old).map(drop), Err(AdmitError::StaleGeneration));
    assert!(from(&registry, &snapshot, &good(&region)).is_ok());
    let made_up = Request { generation: region.generation(), ..old };
    assert_eq!(
        from(&registry, &snapshot, &made_up).map(drop),
        Err(AdmitError::BadKey),
        "a key is a generation's own"
    );
}

#[test]
fn each_reason_has_its_status() {
    let check = |why: AdmitError, status| assert_eq!(why.status(), status);
    check(AdmitError::UnknownRegion, Status::UnknownRegion);
    check(AdmitError::StaleGeneration, Status::StaleGeneration);
    check(AdmitError::BadKey, Status::BadKey);
    check(AdmitError::OutOfRange, Status::OutOfRange);
    check(AdmitError::BadLength, Status::BadLength);
    check(AdmitError::AccessDenied, Status::AccessDenied);
    check(AdmitError::GrantEnded, Status::GrantEnded);
}

/// The rights of a region against the right that is asked for.
#[test]
fn rights() {
    let check = |has: Access, asked: Access, want: bool| {
        let (registry, region) = registered(has);
        let admitted = registry.admit(&Request { access: asked, ..good(&region) });
        assert_eq!(admitted.is_ok(), want, "{asked:?} of {has:?}");
    };
    check(Access::SHARED, Access::REMOTE_READ, true);
    check(Access::SHARED, Access::REMOTE_WRITE, true);
    check(Access::SHARED_READ, Access::REMOTE_READ, true);
    check(Access::SHARED_READ, Access::REMOTE_WRITE, false);
    check(Access::REMOTE_WRITE, Access::REMOTE_WRITE, true);
    check(Access::REMOTE_WRITE, Access::REMOTE_READ, false);
    check(Access::LOCAL, Access::REMOTE_READ, false);
    check(Access::LOCAL, Access::REMOTE_WRITE, false);
    check(Access::empty(), Access::REMOTE_READ, false);
}

proptest! {
    /// Whatever a peer sends, it is admitted exactly when all of it is right.
    #[test]
    fn only_what_is_right_in_everything_is_admitted(
        id in 0u64..3,
        generation in 0u64..3,
        key_is_right: bool,
        write: bool,
        offset in prop_oneof![0..=LEN + 1, any::<u64>()],
        length in prop_oneof![0..=LEN + 1, any::<u64>()],
    ) {
        let (registry, region) = registered(Access::SHARED_READ);
        let request = Request {
            region: RegionId(id),
            generation: Generation(generation),
            key: if key_is_right { region.key() } else { !region.key() },
            offset,
            length,
            access: if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ },
        };
        let inside = length > 0 && offset.checked_add(length).is_some_and(|end| end <= LEN);
        let right = region.id().0 == id && region.generation().0 == generation && key_is_right && !write && inside;
        let lease = registry.admit(&request);
        prop_assert_eq!(lease.is_ok(), right);
        prop_assert_eq!(region.leases(), u64::from(right));
    }
}
