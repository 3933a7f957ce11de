//! Domains and revocations: what peers were told is made dead when nobody uses it any more and before the region is used again, and
//! at no other time.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_memory::{
    Access, AdmitError, Domain, HostBuffer, KindSet, LocalKey, MemoryError, Recall, Recalled, Region,
    Registration, Registry, RemoteKey, Request,
};
use orbit_te_wire::RegionDescriptor;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(40);
/// Reached only when a test fails.
const LONG: Duration = Duration::from_secs(20);

/// What happened, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// A domain that notes what it is asked, and how it finds the region.
struct Noting {
    log: Log,
    refuses: bool,
}

impl Domain for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn kinds(&self) -> KindSet {
        KindSet::HOST
    }

    fn register(&self, region: &Region) -> Result<LocalKey, MemoryError> {
        self.log.lock().unwrap().push("register".to_string());
        Ok(LocalKey::of_host(region))
    }

    fn remote_key(&self, _: &Region, _: u64) -> Vec<u8> {
        Vec::new()
    }

    fn renew(&self, region: &Region, key: LocalKey) -> Result<(), MemoryError> {
        let state = (region.leases(), region.holds(), region.takes_leases(), region.generation().0);
        assert_eq!(key, LocalKey::of_host(region));
        assert!(matches!(region.lease(), Err(MemoryError::BeingRevoked { .. })));
        self.log.lock().unwrap().push(format!("renew {state:?}"));
        match self.refuses {
            true => Err(MemoryError::Refused { domain: "noting", reason: "planted".to_string() }),
            false => Ok(()),
        }
    }

    fn deregister(&self, _: &Region, _: LocalKey) -> Result<(), MemoryError> {
        self.log.lock().unwrap().push("deregister".to_string());
        Ok(())
    }

    fn import(&self, _: &RegionDescriptor) -> Result<RemoteKey, MemoryError> {
        Err(MemoryError::BadRemoteKey { domain: "noting", reason: "none".to_string() })
    }

    fn forget(&self, _: RemoteKey) {}
}

/// Notes what is recalled.
struct Recalls(Log);

impl Recall for Recalls {
    fn recall(&self, _: Recalled) {
        self.0.lock().unwrap().push("recall".to_string());
    }
}

struct Scene {
    registry: Arc<Registry>,
    region: Region,
    key: LocalKey,
    domain: Arc<Noting>,
    log: Log,
    _recalls: Arc<dyn Recall>,
}

fn scene(refuses: bool) -> Scene {
    let (registry, log) = (Registry::new(), Log::default());
    let domain = Arc::new(Noting { log: log.clone(), refuses });
    let recalls: Arc<dyn Recall> = Arc::new(Recalls(log.clone()));
    registry.on_recall(Arc::downgrade(&recalls));
    let memory = HostBuffer::new(4096).unwrap().into_backing();
    let domains: [Arc<dyn Domain>; 1] = [domain.clone()];
    let done = registry.register_all(&[Registration::new(memory, Access::SHARED)], &domains).unwrap();
    let (region, key) = done[0].clone();
    Scene { registry, region, key, domain, log, _recalls: recalls }
}

impl Scene {
    fn revoke(&self, limit: Duration) -> Result<(), MemoryError> {
        let evict = || {
            self.log.lock().unwrap().push("evict".to_string());
            Duration::ZERO
        };
        let renew = || self.domain.renew(&self.region, self.key);
        self.registry.revoke_or(&self.region, limit, evict, renew).map(drop)
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn request(&self) -> Request {
        Request {
            region: self.region.id(),
            generation: self.region.generation(),
            key: self.region.key(),
            offset: 0,
            length: 1,
            access: Access::REMOTE_READ,
        }
    }
}

#[test]
fn keys_die_when_nobody_uses_them_and_before_anybody_does_again() {
    let scene = scene(false);
    let old = scene.request();
    let lease = scene.registry.admit(&old).unwrap();
    thread::scope(|scope| {
        let revoking = scope.spawn(|| scene.revoke(LONG));
        while scene.region.takes_leases() {
            thread::yield_now();
        }
        scene.log.lock().unwrap().push("let go".to_string());
        drop(lease);
        revoking.join().unwrap().unwrap();
    });
    // The recall comes with the pause, so before or after the note of this thread.
    let log: Vec<_> = scene.log().into_iter().filter(|what| what != "recall").collect();
    assert_eq!(log, ["register", "let go", "renew (0, 0, false, 2)"]);
    assert_eq!(scene.registry.admit(&old).map(drop), Err(AdmitError::StaleGeneration));
    assert!(scene.registry.admit(&scene.request()).is_ok(), "it takes requests again");
    scene.revoke(LONG).unwrap();
    assert_eq!(scene.log().last().unwrap(), "renew (0, 0, false, 3)", "once for each revocation");
}

#[test]
fn a_revocation_that_meets_its_limit_renews_nothing() {
    let scene = scene(false);
    let lease = scene.region.lease().unwrap();
    assert!(matches!(scene.revoke(SHORT), Err(MemoryError::StillLeased { leases: 1, .. })));
    assert_eq!(scene.log(), ["register", "recall", "evict"]);
    drop(lease);
    scene.revoke(SHORT).unwrap();
    assert_eq!(scene.log()[3..], ["recall", "renew (0, 0, false, 3)"], "the next one does");
}

#[test]
fn what_can_not_be_renewed_is_told_and_the_region_goes_on() {
    let scene = scene(true);
    let old = scene.request();
    let error = scene.revoke(LONG).unwrap_err();
    assert!(matches!(error, MemoryError::Refused { domain: "noting", .. }), "{error}");
    assert_eq!(scene.registry.admit(&old).map(drop), Err(AdmitError::StaleGeneration));
    assert!(scene.registry.admit(&scene.request()).is_ok(), "other transports serve it");
}

#[test]
fn neither_a_renewal_without_waiting_nor_a_retired_region_asks_domains() {
    let scene = scene(false);
    scene.registry.renew(&scene.region).unwrap();
    scene.registry.revoke(&scene.region, LONG).unwrap();
    scene.registry.retire(&scene.region, LONG).unwrap();
    assert!(matches!(scene.revoke(LONG), Err(MemoryError::Retired { .. })));
    assert!(scene.log().iter().all(|what| !what.starts_with("renew")), "{:?}", scene.log());
}

/// Who retires a region may deregister it afterwards: no renewal runs then.
#[test]
fn retiring_waits_for_a_renewal_that_runs() {
    let scene = scene(false);
    let (begun, has_begun): (Sender<()>, Receiver<()>) = channel();
    let (go_on, may_go_on): (Sender<()>, Receiver<()>) = channel();
    thread::scope(|scope| {
        let scene = &scene;
        let revoking = scope.spawn(move || {
            let renew = || {
                begun.send(()).unwrap();
                may_go_on.recv().unwrap();
                scene.log.lock().unwrap().push("renewed".to_string());
                Ok(())
            };
            scene.registry.revoke_or(&scene.region, LONG, || Duration::ZERO, renew).map(drop)
        });
        has_begun.recv().unwrap();
        let retiring = scope.spawn(|| {
            scene.registry.retire(&scene.region, Duration::ZERO).unwrap();
            scene.domain.deregister(&scene.region, scene.key).unwrap();
        });
        while !scene.region.is_retired() {
            thread::yield_now();
        }
        thread::sleep(SHORT);
        assert!(!retiring.is_finished());
        go_on.send(()).unwrap();
        retiring.join().unwrap();
        assert!(matches!(revoking.join().unwrap(), Err(MemoryError::Retired { .. })), "and it stays retired");
    });
    assert_eq!(scene.log().iter().filter(|what| *what != "recall").count(), 3);
    assert_eq!(scene.log().last().unwrap(), "deregister");
}
