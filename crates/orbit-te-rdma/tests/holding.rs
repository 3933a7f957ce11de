//! What the side that is reached holds for its peers: as little as they can touch, however often they ask, and without a busy thread when a
//! device does not let go.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod sides;

use orbit_te_memory::{Access, Domain, GrantTerms};
use orbit_te_rdma::fake::{FakeFabric, When};
use orbit_te_rdma::{Errno, RdmaConfig, Verb};
use orbit_te_transport::{Arm, Counterpart, OpKind, RemoteSpan};
use orbit_te_wire::PeerId;
use sides::{Sides, quick, two_hosts};
use std::time::{Duration, Instant};

/// Rounds over two regions by a peer that remembers the keys of one: it asks anew each time.
const ROUNDS: usize = 100;

#[test]
fn a_peer_that_forgets_keys_and_asks_again_is_given_the_same() {
    let fabric = FakeFabric::new(1);
    two_hosts(&fabric);
    let mut sides = Sides::new(&fabric, &RdmaConfig { regions: 1, ..quick() }).unwrap();
    let ours = sides.here.region(64, 1, Access::LOCAL).unwrap();
    let theirs = [2, 3].map(|fill| sides.there.region(64, fill, Access::SHARED).unwrap().0);
    let link = sides.connect();
    sides.until("the link is up", |sides| sides.ups == 1);
    let (session, grants) = (sides.session(link), sides.there.registry.grants().clone());
    grants.begin(session, PeerId(1));
    // One region by its own key, one by that of a grant, for which there are registrations of its own.
    let terms = GrantTerms { name: "seg".to_string(), access: Access::SHARED, time_to_live: None };
    let grant = grants.give(Some(session), &theirs[1], &terms, 8, Instant::now()).unwrap();
    let keys = [theirs[0].key(), grant.key()];
    for round in 0..ROUNDS {
        for (region, key) in theirs.iter().zip(keys) {
            let remote = RemoteSpan { offset: 0, key: sides.there.key(region, key).unwrap() };
            let read = sides.op(OpKind::Read, link, &ours, 0, remote, 64);
            assert_eq!(sides.end(read).result, Ok(()), "round {round}");
        }
        assert_eq!(sides.target.held(), 2, "round {round}");
    }
    // One for each region, and one for the grant.
    assert_eq!(fabric.counts().mrs, 4);
    sides.until("both are let go", |sides| {
        sides.target.drop_session(session);
        sides.target.held() == 0
    });
    assert_eq!(fabric.counts().mrs, 3);
}

#[test]
fn a_queue_that_cannot_be_destroyed_holds_memory_and_keeps_no_thread_busy() {
    let fabric = FakeFabric::new(1);
    two_hosts(&fabric);
    let mut sides = Sides::new(&fabric, &quick()).unwrap();
    let ours = sides.here.region(64, 1, Access::LOCAL).unwrap();
    let theirs = sides.there.region(64, 2, Access::SHARED).unwrap().0;
    let link = sides.connect();
    let remote = RemoteSpan { offset: 0, key: sides.there.key(&theirs, theirs.key()).unwrap() };
    let read = sides.op(OpKind::Read, link, &ours, 0, remote, 64);
    assert_eq!(sides.end(read).result, Ok(()));
    fabric.fail(Verb::DestroyQp, When::Always, Errno::EBUSY);
    // The peer hears nothing of it, so that its QPs are to be taken from it, and can't.
    let registry = sides.there.registry.clone();
    std::thread::scope(|scope| {
        let retiring = scope.spawn(|| registry.retire(&theirs, Duration::from_secs(1)));
        let begin = Instant::now();
        let mut turns = 0;
        while begin.elapsed() < Duration::from_millis(500) {
            turns += 1;
            sides.target.poll(Instant::now());
            let now = Instant::now();
            match sides.target.arm(now) {
                Some(Arm::Sleep { until: Some(until), .. }) => {
                    std::thread::sleep(until.saturating_duration_since(now))
                }
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        // Every 50 ms it is tried again; before, there was nothing to be done for a few ms at a time.
        assert!(turns < 200, "{turns} turns in half a second");
        assert_eq!(sides.target.held(), 1, "what may still be reached is held");
        fabric.heal();
        sides.until("it is let go", |sides| sides.target.held() == 0);
        retiring.join().unwrap().unwrap();
    });
}

#[test]
fn a_grant_that_is_renewed_is_not_taken_away_at_its_first_end() {
    let fabric = FakeFabric::new(1);
    two_hosts(&fabric);
    let mut sides = Sides::new(&fabric, &quick()).unwrap();
    let ours = sides.here.region(64, 1, Access::LOCAL).unwrap();
    let theirs = sides.there.region(64, 2, Access::SHARED).unwrap().0;
    let link = sides.connect();
    sides.until("the link is up", |sides| sides.ups == 1);
    let (session, grants) = (sides.session(link), sides.there.registry.grants().clone());
    grants.begin(session, PeerId(1));
    let terms =
        |live| GrantTerms { name: "seg".to_string(), access: Access::SHARED, time_to_live: Some(live) };
    let live = Duration::from_millis(100);
    let begin = Instant::now();
    let mut reads = 0;
    while begin.elapsed() < 4 * live {
        // As a peer does that opens the segment again and again.
        let given = Instant::now();
        let grant = grants.give(Some(session), &theirs, &terms(live), 8, given).unwrap();
        let remote = RemoteSpan { offset: 0, key: sides.there.key(&theirs, grant.key()).unwrap() };
        let read = sides.op(OpKind::Read, link, &ours, 0, remote, 64);
        let result = sides.end(read).result;
        // On a machine that is busy with other things the right may really have ended meanwhile.
        assert!(result.is_ok() || given.elapsed() >= live, "read {reads}: {result:?}");
        reads += 1;
    }
    assert_eq!(sides.fallen, Vec::<String>::new());
    assert!(sides.target.held() <= 2, "the one that ends, and the next");
}

#[test]
fn keys_of_a_grant_that_cannot_be_taken_back_hold_memory_until_they_are() {
    let fabric = FakeFabric::new(1);
    two_hosts(&fabric);
    let mut sides = Sides::new(&fabric, &quick()).unwrap();
    let ours = sides.here.region(64, 1, Access::LOCAL).unwrap();
    let theirs = sides.there.region(64, 2, Access::SHARED).unwrap().0;
    let link = sides.connect();
    sides.until("the link is up", |sides| sides.ups == 1);
    let (session, grants) = (sides.session(link), sides.there.registry.grants().clone());
    grants.begin(session, PeerId(1));
    let terms = GrantTerms { name: "seg".to_string(), access: Access::SHARED, time_to_live: None };
    let grant = grants.give(Some(session), &theirs, &terms, 8, Instant::now()).unwrap();
    let remote = RemoteSpan { offset: 0, key: sides.there.key(&theirs, grant.key()).unwrap() };
    let read = sides.op(OpKind::Read, link, &ours, 0, remote, 64);
    assert_eq!(sides.end(read).result, Ok(()));
    fabric.fail(Verb::DeregMr, When::Always, Errno::EBUSY);
    let registry = sides.there.registry.clone();
    std::thread::scope(|scope| {
        let retiring = scope.spawn(|| registry.retire(&theirs, Duration::from_secs(10)));
        let begin = Instant::now();
        sides.until("it was tried", |_| begin.elapsed() > Duration::from_millis(300));
        assert!(!retiring.is_finished() && sides.target.held() == 1, "its keys still work");
        fabric.heal();
        sides.until("it is let go", |sides| sides.target.held() == 0);
        retiring.join().unwrap().unwrap();
    });
    assert_eq!(fabric.counts().mrs, 2, "those of the two regions");
}

#[test]
fn a_region_stays_registered_until_its_keys_are_dead() {
    let fabric = FakeFabric::new(1);
    two_hosts(&fabric);
    let sides = Sides::new(&fabric, &quick()).unwrap();
    let (region, key) = sides.there.region(64, 1, Access::SHARED).unwrap();
    fabric.fail(Verb::DeregMr, When::Always, Errno::EBUSY);
    for time in 0..3 {
        let error = sides.there.domain.deregister(&region, key).unwrap_err();
        assert!(error.to_string().contains("EBUSY"), "{time}: {error}");
    }
    fabric.heal();
    sides.there.domain.deregister(&region, key).unwrap();
    assert_eq!(fabric.counts().mrs, 0);
}
