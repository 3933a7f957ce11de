//! Grants: whose they are, what they permit, for how long, and that everything of a holder ends with it.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_memory::registry::admit;
use orbit_te_memory::{
    Access, AdmitError, Grant, GrantTerms, HostBuffer, Lease, MemoryError, Region, Registry, Request,
};
use orbit_te_wire::{PeerId, SessionId};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);

fn registered() -> (Arc<Registry>, Region) {
    let registry = Registry::new();
    let region = registry.register(HostBuffer::new(4096).unwrap().into_backing(), Access::SHARED).unwrap();
    (registry, region)
}

fn terms(name: &str) -> GrantTerms {
    GrantTerms { name: name.to_string(), access: Access::SHARED, time_to_live: None }
}

fn request(grant: &Grant) -> Request {
    Request {
        region: grant.region(),
        generation: grant.generation(),
        key: grant.key(),
        offset: 0,
        length: 8,
        access: Access::REMOTE_WRITE,
    }
}

/// What a lane of this session does with a request.
fn ask(registry: &Registry, session: u128, request: &Request, now: Instant) -> Result<Lease, AdmitError> {
    admit(&registry.table().load(), &registry.grants().of(SessionId(session)), request, now)
}

#[test]
fn a_grant_is_its_holders_own() {
    let (registry, region) = registered();
    let now = Instant::now();
    (1..3).for_each(|n| registry.grants().begin(SessionId(n), PeerId(n)));
    let give = |to| registry.grants().give(to, &region, &terms("a"), 10, now).unwrap();
    let (first, second, anybodys) = (give(Some(SessionId(1))), give(Some(SessionId(2))), give(None));
    let check = |session, grant: &Grant, want: Result<(), AdmitError>| {
        assert_eq!(ask(&registry, session, &request(grant), now).map(drop), want, "session {session}");
    };
    check(1, &first, Ok(()));
    check(2, &first, Err(AdmitError::BadKey));
    check(3, &first, Err(AdmitError::BadKey));
    check(2, &second, Ok(()));
    (1..4).for_each(|session| check(session, &anybodys, Ok(())));
    assert_eq!(registry.admit(&request(&first)).map(drop), Err(AdmitError::BadKey));
    // Of another region it opens nothing.
    let other = registry.register(HostBuffer::new(64).unwrap().into_backing(), Access::SHARED).unwrap();
    let wrong = Request { region: other.id(), ..request(&first) };
    assert_eq!(ask(&registry, 1, &wrong, now).map(drop), Err(AdmitError::BadKey));
    assert_eq!(registry.grants().list(now).len(), 3);
    // Given again it is the same one; on other terms it is another.
    assert_eq!(give(Some(SessionId(1))).id(), first.id());
    let narrow = GrantTerms { access: Access::REMOTE_READ, ..terms("a") };
    let narrow = registry.grants().give(Some(SessionId(1)), &region, &narrow, 10, now).unwrap();
    check(1, &narrow, Err(AdmitError::AccessDenied));
    assert_ne!((narrow.id(), narrow.key()), (first.id(), first.key()));
}

#[test]
fn a_holder_that_ends_gives_all_back_at_once() {
    let (registry, region) = registered();
    let now = Instant::now();
    let session = SessionId(7);
    registry.grants().begin(session, PeerId(7));
    // As lanes have it, which look at it anew for each request.
    let holder = registry.grants().of(session);
    let grants: Vec<_> = (0..100)
        .map(|n| registry.grants().give(Some(session), &region, &terms(&n.to_string()), 100, now).unwrap())
        .collect();
    let over = registry.grants().give(Some(session), &region, &terms("x"), 100, now);
    assert!(matches!(over, Err(MemoryError::TooManyGrants { limit: 100 })), "{over:?}");
    let admitted = ask(&registry, 7, &request(&grants[0]), now).unwrap();
    registry.grants().end(session);
    for grant in &grants {
        let late = admit(&registry.table().load(), &holder, &request(grant), now).map(drop);
        assert_eq!(late, Err(AdmitError::BadKey));
    }
    assert!(registry.grants().list(now).is_empty());
    let late = registry.grants().give(Some(session), &region, &terms("x"), 100, now);
    assert!(matches!(late, Err(MemoryError::HolderGone)), "{late:?}");
    assert_eq!(region.leases(), 1, "what was admitted goes on until its lane is closed");
    drop(admitted);
    registry.retire(&region, Duration::ZERO).unwrap();
}

#[test]
fn a_grant_expires() {
    let (registry, region) = registered();
    let begun = Instant::now();
    registry.grants().begin(SessionId(1), PeerId(1));
    let brief = GrantTerms { time_to_live: Some(10 * SECOND), ..terms("a") };
    let give = |at| registry.grants().give(Some(SessionId(1)), &region, &brief, 10, begun + at).unwrap();
    let grant = give(Duration::ZERO);
    let check = |grant: &Grant, at, want: Result<(), AdmitError>| {
        assert_eq!(ask(&registry, 1, &request(grant), begun + at).map(drop), want, "after {at:?}");
    };
    check(&grant, Duration::ZERO, Ok(()));
    check(&grant, Duration::from_millis(9999), Ok(()));
    check(&grant, 10 * SECOND, Err(AdmitError::GrantEnded));
    assert_eq!(grant.expires_in(begun + 4 * SECOND), Some(6 * SECOND));
    // Asked for again in time, it lives on; too late, it is another one, and the first stays over.
    assert_eq!(give(9 * SECOND).id(), grant.id());
    check(&grant, 18 * SECOND, Ok(()));
    check(&grant, 19 * SECOND, Err(AdmitError::GrantEnded));
    let next = give(19 * SECOND);
    assert_ne!(next.id(), grant.id());
    check(&next, 20 * SECOND, Ok(()));
    check(&grant, 20 * SECOND, Err(AdmitError::GrantEnded));
    assert_eq!(registry.grants().list(begun + 20 * SECOND).len(), 1);
    let for_ever = GrantTerms { time_to_live: Some(Duration::MAX), ..terms("b") };
    let for_ever = registry.grants().give(Some(SessionId(1)), &region, &for_ever, 10, begun).unwrap();
    check(&for_ever, Duration::from_secs(u64::from(u32::MAX)), Ok(()));
}

/// However often grants end and are given anew, a holder's table stays bounded.
#[test]
fn what_is_over_is_not_remembered_without_end() {
    let (registry, region) = registered();
    let now = Instant::now();
    registry.grants().begin(SessionId(1), PeerId(1));
    let mut first = None;
    for _ in 0..100 {
        let grant = registry.grants().give(Some(SessionId(1)), &region, &terms("a"), 8, now).unwrap();
        registry.revoke_grant_or(grant.id(), Duration::ZERO, || Duration::ZERO).unwrap();
        assert_eq!(ask(&registry, 1, &request(&grant), now).map(drop), Err(AdmitError::GrantEnded));
        first.get_or_insert(grant);
    }
    let first = first.unwrap();
    assert_eq!(
        ask(&registry, 1, &request(&first), now).map(drop),
        Err(AdmitError::BadKey),
        "it is forgotten"
    );
    let gone = registry.revoke_grant_or(first.id(), Duration::ZERO, || Duration::ZERO);
    assert!(matches!(gone, Err(MemoryError::UnknownGrant { .. })));
}

#[test]
fn revoking_one_grant_waits_for_its_own_requests_only() {
    let (registry, region) = registered();
    let now = Instant::now();
    (1..3).for_each(|n| registry.grants().begin(SessionId(n), PeerId(n)));
    let give = |n| registry.grants().give(Some(SessionId(n)), &region, &terms("a"), 10, now).unwrap();
    let (one, other) = (give(1), give(2));
    let (held, others) =
        (ask(&registry, 1, &request(&one), now).unwrap(), ask(&registry, 2, &request(&other), now).unwrap());
    assert_eq!((one.leases(), other.leases(), region.leases()), (1, 1, 2));
    // At the limit `evict` is asked, and what it needs is waited for as well.
    let evicted = AtomicBool::new(false);
    let left = registry.revoke_grant_or(one.id(), Duration::from_millis(20), || {
        evicted.store(true, Ordering::Release);
        Duration::from_millis(20)
    });
    assert!(matches!(left, Err(MemoryError::StillLeased { leases: 1, .. })) && evicted.into_inner());
    let dropper = AtomicBool::new(false);
    thread::scope(|scope| {
        registry
            .revoke_grant_or(one.id(), Duration::ZERO, || {
                let dropper = &dropper;
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(20));
                    dropper.store(true, Ordering::Release);
                    drop(held);
                });
                LONG
            })
            .unwrap();
        assert!(dropper.load(Ordering::Acquire));
    });
    assert_eq!(ask(&registry, 1, &request(&one), now).map(drop), Err(AdmitError::GrantEnded));
    assert!(ask(&registry, 2, &request(&other), now).is_ok());
    drop(others);
    registry.revoke(&region, Duration::ZERO).unwrap();
    assert_eq!(ask(&registry, 2, &request(&other), now).map(drop), Err(AdmitError::StaleGeneration));
    assert!(registry.grants().list(now).is_empty());
}

#[derive(Debug, Clone)]
enum Step {
    Give { session: u128, region: usize, brief: bool },
    End { session: u128 },
    RevokeGrant { which: usize },
    Revoke { region: usize },
    Pass,
    Ask { which: usize, session: u128, forged: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let (session, region, which) = (|| 1u128..4, || 0usize..2, || 0usize..16);
    prop_oneof![
        3 => (session(), region(), any::<bool>())
            .prop_map(|(session, region, brief)| Step::Give { session, region, brief }),
        1 => session().prop_map(|session| Step::End { session }),
        1 => which().prop_map(|which| Step::RevokeGrant { which }),
        1 => region().prop_map(|region| Step::Revoke { region }),
        1 => Just(Step::Pass),
        6 => (which(), session(), any::<bool>())
            .prop_map(|(which, session, forged)| Step::Ask { which, session, forged }),
    ]
}

/// A grant as the model knows it.
struct Known {
    grant: Arc<Grant>,
    session: u128,
    region: usize,
    good: bool,
    ends: Option<Instant>,
}

proptest! {
    /// Whatever happens, a request is admitted exactly when its own session has a grant that is good.
    #[test]
    fn only_who_has_a_good_grant_is_admitted(steps in prop::collection::vec(step(), 1..60)) {
        let registry = Registry::new();
        let regions: Vec<Region> = (0..2)
            .map(|_| registry.register(HostBuffer::new(64).unwrap().into_backing(), Access::SHARED).unwrap())
            .collect();
        (1..4).for_each(|n| registry.grants().begin(SessionId(n), PeerId(n)));
        let mut now = Instant::now();
        let mut known: Vec<Known> = Vec::new();
        for step in steps {
            match step {
                Step::Give { session, region, brief } => {
                    let time_to_live = brief.then_some(3 * SECOND);
                    let name = if brief { "brief" } else { "long" };
                    let terms = GrantTerms { time_to_live, ..terms(name) };
                    let to = Some(SessionId(session));
                    let grant = registry.grants().give(to, &regions[region], &terms, 99, now).unwrap();
                    let ends = time_to_live.map(|live| now + live);
                    match known.iter_mut().find(|k| k.grant.id() == grant.id()) {
                        Some(same) => {
                            prop_assert!(same.good && same.ends.is_none_or(|end| end > now), "one that was over");
                            same.ends = ends;
                        }
                        None => known.push(Known { grant, session, region, good: true, ends }),
                    }
                }
                Step::End { session } => {
                    registry.grants().end(SessionId(session));
                    registry.grants().begin(SessionId(session), PeerId(session));
                    known.iter_mut().filter(|k| k.session == session).for_each(|k| k.good = false);
                }
                Step::RevokeGrant { which } => {
                    let Some(k) = known.get_mut(which) else { continue };
                    let _ = registry.revoke_grant_or(k.grant.id(), Duration::ZERO, || Duration::ZERO);
                    k.good = false;
                }
                Step::Revoke { region } => {
                    registry.revoke(&regions[region], Duration::ZERO).unwrap();
                    known.iter_mut().filter(|k| k.region == region).for_each(|k| k.good = false);
                }
                Step::Pass => now += SECOND,
                Step::Ask { which, session, forged } => {
                    let Some(k) = known.get(which) else { continue };
                    let mut asked = request(&k.grant);
                    if forged {
                        asked.generation = regions[k.region].generation();
                    }
                    let good = k.good && k.session == session && k.ends.is_none_or(|end| end > now);
                    let lease = ask(&registry, session, &asked, now);
                    prop_assert_eq!(lease.is_ok(), good, "{:?}", lease);
                    prop_assert_eq!(regions[k.region].leases(), u64::from(good));
                    prop_assert_eq!(k.grant.leases(), u64::from(good));
                }
            }
            let good = known.iter().filter(|k| k.good && k.ends.is_none_or(|end| end > now)).count();
            prop_assert_eq!(registry.grants().list(now).len(), good);
        }
    }
}
