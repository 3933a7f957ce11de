//! Holds: a withdrawal tells whoever let a peer in, waits until he has made it stop, and never gets past one that was taken meanwhile.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_memory::{
    Access, GrantTerms, Hold, HostBuffer, MemoryError, Recall, Recalled, Region, Registry, Request,
};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Lets peers in, and makes them stop at once, or only when it is told to.
#[derive(Default)]
struct Door {
    holds: Mutex<Vec<Hold>>,
    told: Mutex<Vec<Recalled>>,
    stubborn: bool,
}

impl Door {
    fn let_in(&self, registry: &Registry, request: &Request) -> bool {
        let lease = registry.admit(request).unwrap();
        let mut holds = self.holds.lock().unwrap();
        Hold::new(lease, request.generation).map(|hold| holds.push(hold)).is_some()
    }

    fn let_go(&self) {
        self.holds.lock().unwrap().clear();
    }
}

impl Recall for Door {
    fn recall(&self, what: Recalled) {
        self.told.lock().unwrap().push(what);
        if !self.stubborn {
            self.holds.lock().unwrap().retain(|hold| !what.ends(hold));
        }
    }
}

fn scene(stubborn: bool) -> (Arc<Registry>, Region, Request, Arc<Door>) {
    let registry = Registry::new();
    let door = Arc::new(Door { stubborn, ..Door::default() });
    let known: Arc<dyn Recall> = door.clone();
    registry.on_recall(Arc::downgrade(&known));
    let region = registry.register(HostBuffer::new(4096).unwrap().into_backing(), Access::SHARED).unwrap();
    let request = good(&region);
    (registry, region, request, door)
}

fn good(region: &Region) -> Request {
    Request {
        region: region.id(),
        generation: region.generation(),
        key: region.key(),
        offset: 0,
        length: 1,
        access: Access::REMOTE_READ,
    }
}

#[test]
fn a_withdrawal_recalls() {
    let (registry, region, request, door) = scene(false);
    assert!(door.let_in(&registry, &request));
    assert_eq!((region.leases(), region.holds()), (0, 1));
    registry.revoke(&region, Duration::from_secs(5)).unwrap();
    assert_eq!(region.holds(), 0);
    assert!(door.let_in(&registry, &good(&region)), "a new generation is taken again");
    registry.renew(&region).unwrap();
    assert_eq!(region.holds(), 0);
    assert!(door.let_in(&registry, &good(&region)));
    registry.retire(&region, Duration::from_secs(5)).unwrap();
    assert_eq!(region.holds(), 0);
    assert_eq!(*door.told.lock().unwrap(), [Recalled::Region(region.id()); 3]);
}

#[test]
fn a_grant_alone_is_recalled() {
    let (registry, region, request, door) = scene(false);
    let terms = GrantTerms { name: "s".into(), access: Access::REMOTE_READ, time_to_live: None };
    let grant = registry.grants().give(None, &region, &terms, 10, Instant::now()).unwrap();
    assert!(door.let_in(&registry, &request));
    assert!(door.let_in(&registry, &Request { key: grant.key(), ..request }));
    assert_eq!(region.holds(), 2);
    registry.revoke_grant_or(grant.id(), Duration::from_secs(5), || Duration::ZERO).unwrap();
    assert_eq!(region.holds(), 1, "the other way in stays");
}

#[test]
fn a_withdrawal_waits_for_holds() {
    let (registry, region, request, door) = scene(true);
    assert!(door.let_in(&registry, &request));
    let limit = Duration::from_millis(20);
    match registry.retire(&region, limit) {
        Err(MemoryError::StillLeased { leases: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
    let waiting = thread::spawn({
        let (registry, region) = (registry.clone(), region.clone());
        move || registry.retire(&region, Duration::from_secs(20))
    });
    thread::sleep(Duration::from_millis(10));
    door.let_go();
    waiting.join().unwrap().unwrap();
}

/// Peers are let in while the region is revoked again and again: no hold of an old generation is left when a revocation has ended.
#[test]
fn no_hold_slips_past_a_revocation() {
    let (registry, region, _, door) = scene(false);
    let until = Instant::now() + Duration::from_millis(300);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while Instant::now() < until {
                    let request = good(&region);
                    if let Ok(lease) = registry.admit(&request) {
                        let mut holds = door.holds.lock().unwrap();
                        holds.extend(Hold::new(lease, request.generation));
                    }
                }
            });
        }
        while Instant::now() < until {
            let generation = registry.revoke(&region, Duration::from_secs(20)).unwrap();
            let holds = door.holds.lock().unwrap();
            assert!(holds.iter().all(|hold| !hold.is_over()), "older than generation {generation}");
        }
    });
}
