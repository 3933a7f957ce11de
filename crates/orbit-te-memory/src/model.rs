//! Models of leases, retirement and revocation, of regions and of grants, for `cargo xtask loom` (every order of a few threads) and `cargo xtask
//! shuttle` (random orders of many). Rule: the code under the models is the crate's own; a cell that detects races stands
//! for the memory, so that an order which is only missing on weak machines is found too.

#![allow(clippy::unwrap_used)] // Models are tests.

use crate::host::HostBuffer;
use crate::registry::{Registry, Request};
use orbit_te_wire::Access;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);

/// Peers look regions up in a snapshot that was taken before: the table's own cell is not known to loom, which would take the
/// orders that it decides for all the same.
#[cfg(orbit_loom)]
mod exhaustive {
    use super::*;
    use crate::grant::GrantTerms;
    use crate::lease::Lease;
    use crate::region::Region;
    use crate::registry::{AdmitError, admit};
    use loom::cell::UnsafeCell;
    use loom::thread;
    use std::time::Instant;

    /// A registry with one region, and a peer's request for it as it is described now.
    fn registered() -> (Arc<Registry>, Region, Request) {
        let registry = Registry::new();
        let region = registry.register(HostBuffer::new(64).unwrap().into_backing(), Access::SHARED).unwrap();
        let request = Request {
            region: region.id(),
            generation: region.generation(),
            key: region.key(),
            offset: 0,
            length: 8,
            access: Access::REMOTE_READ,
        };
        (registry, region, request)
    }

    /// Peers who ask in snapshots of their own, and read under the lease; what `refused` says must hold for a refusal.
    fn peers(
        registry: &Arc<Registry>,
        request: Request,
        memory: &Arc<Memory>,
        refused: fn(AdmitError) -> bool,
    ) -> [thread::JoinHandle<()>; 2] {
        [0, 1].map(|_| {
            let ask = asker(registry, request);
            let memory = memory.clone();
            thread::spawn(move || match ask() {
                Ok(lease) => {
                    memory.read();
                    drop(lease);
                }
                Err(error) => assert!(refused(error), "{error}"),
            })
        })
    }

    /// A peer's look at a snapshot that is taken now.
    fn asker(
        registry: &Arc<Registry>,
        request: Request,
    ) -> impl FnOnce() -> Result<Lease, AdmitError> + Send + use<> {
        let (table, holder) = (registry.table().load_full(), registry.grants().anybody().clone());
        move || admit(&table, &holder, &request, Instant::now())
    }

    /// Memory that peers read under a lease, and whose owner writes it when nobody may.
    struct Memory(UnsafeCell<u64>);

    impl Memory {
        fn new() -> Arc<Memory> {
            Arc::new(Memory(UnsafeCell::new(0)))
        }

        fn read(&self) {
            self.0.with(|_| ());
        }

        fn write(&self) {
            self.0.with_mut(|_| ());
        }
    }

    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(model);
    }

    /// Two peers against a retirement: once it returns, nobody touches the memory.
    #[test]
    fn retired_memory_is_touched_by_nobody() {
        check(|| {
            let (registry, region, request) = registered();
            let memory = Memory::new();
            let peers = peers(&registry, request, &memory, |error| error == AdmitError::UnknownRegion);
            registry.retire(&region, LONG).unwrap();
            memory.write();
            assert_eq!(registry.admit(&request).unwrap_err(), AdmitError::UnknownRegion);
            peers.into_iter().for_each(|peer| peer.join().unwrap());
            assert_eq!(region.leases(), 0);
        });
    }

    /// A peer against a revocation: once it returns, no request of the old generation touches the memory.
    #[test]
    fn revoked_memory_is_touched_by_nobody_of_old() {
        check(|| {
            let (registry, region, request) = registered();
            let memory = Memory::new();
            // The key changes before the generation, and may be seen to have changed alone.
            let stale = |error| matches!(error, AdmitError::StaleGeneration | AdmitError::BadKey);
            let peers = peers(&registry, request, &memory, stale);
            let generation = registry.revoke(&region, LONG).unwrap();
            memory.write();
            assert!(registry.admit(&Request { generation, key: region.key(), ..request }).is_ok());
            peers.into_iter().for_each(|peer| peer.join().unwrap());
        });
    }

    /// Two peers against the end of the grant that they use: once it is revoked, nobody touches the memory under it.
    #[test]
    fn memory_is_touched_by_nobody_under_a_revoked_grant() {
        check(|| {
            let (registry, region, request) = registered();
            let terms = GrantTerms { name: "lent".into(), access: Access::SHARED, time_to_live: None };
            let grant = registry.grants().give(None, &region, &terms, 8, Instant::now()).unwrap();
            let memory = Memory::new();
            let request = Request { key: grant.key(), ..request };
            let peers = peers(&registry, request, &memory, |error| error == AdmitError::GrantEnded);
            registry.revoke_grant_or(grant.id(), LONG, || Duration::ZERO).unwrap();
            memory.write();
            assert_eq!(registry.admit(&request).unwrap_err(), AdmitError::GrantEnded);
            peers.into_iter().for_each(|peer| peer.join().unwrap());
            assert_eq!((region.leases(), grant.leases()), (0, 0));
        });
    }

    /// A retirement and a revocation at once: neither is lost, and neither waits for ever.
    #[test]
    fn a_revocation_does_not_open_what_is_retired() {
        check(|| {
            let (registry, region, request) = registered();
            let other = {
                let (registry, region) = (registry.clone(), region.clone());
                thread::spawn(move || registry.revoke(&region, LONG).is_ok())
            };
            registry.retire(&region, LONG).unwrap();
            other.join().unwrap();
            assert!(registry.admit(&request).is_err());
            assert!(region.lease().is_err());
        });
    }

    /// The checker is looked at itself: memory that is touched after its lease was given back is found.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_planted_race_is_found() {
        check(|| {
            let (registry, region, request) = registered();
            let memory = Memory::new();
            let peer = {
                let (ask, region, memory) = (asker(&registry, request), region.clone(), memory.clone());
                thread::spawn(move || {
                    if let Ok(lease) = ask() {
                        drop(lease);
                        // Any step of its own: loom changes threads at those alone.
                        region.leases();
                        memory.read();
                    }
                })
            };
            registry.retire(&region, LONG).unwrap();
            memory.write();
            peer.join().unwrap();
        });
    }
}

#[cfg(orbit_shuttle)]
mod random {
    use super::*;
    use shuttle::sync::atomic::{AtomicU64, Ordering};
    use shuttle::thread;

    const SCHEDULES: usize = 3000;
    const PEERS: usize = 6;
    const ROUNDS: usize = 4;

    /// Many peers, a revoker and a retirer over two regions. `touch_late` plants a touch after the lease.
    fn crowd(touch_late: bool) {
        let registry = Registry::new();
        let regions: Vec<_> = (0..2)
            .map(|_| registry.register(HostBuffer::new(64).unwrap().into_backing(), Access::SHARED).unwrap())
            .collect();
        // How many touch each region right now, by the parity of the generation they were admitted under.
        let touching: Arc<[[AtomicU64; 2]; 2]> = Arc::default();
        let peers: Vec<_> = (0..PEERS)
            .map(|peer| {
                let (registry, regions, touching) = (registry.clone(), regions.clone(), touching.clone());
                thread::spawn(move || {
                    for round in 0..ROUNDS {
                        let which = (peer + round) % 2;
                        let region = &regions[which];
                        let generation = region.generation();
                        let request = Request {
                            region: region.id(),
                            generation,
                            key: region.key(),
                            offset: 0,
                            length: 8,
                            access: Access::REMOTE_WRITE,
                        };
                        let Ok(lease) = registry.admit(&request) else { continue };
                        let count = &touching[which][(generation.0 % 2) as usize];
                        let lease = if touch_late {
                            drop(lease);
                            None
                        } else {
                            Some(lease)
                        };
                        count.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        count.fetch_sub(1, Ordering::SeqCst);
                        drop(lease);
                    }
                })
            })
            .collect();
        let revoker = {
            let (registry, region, touching) = (registry.clone(), regions[0].clone(), touching.clone());
            thread::spawn(move || {
                for _ in 0..ROUNDS {
                    let Ok(generation) = registry.revoke(&region, LONG) else { return };
                    let old = &touching[0][((generation.0 + 1) % 2) as usize];
                    assert_eq!(old.load(Ordering::SeqCst), 0, "memory is touched under a revoked descriptor");
                }
            })
        };
        registry.retire(&regions[1], LONG).unwrap();
        let left: u64 = touching[1].iter().map(|count| count.load(Ordering::SeqCst)).sum();
        assert_eq!(left, 0, "retired memory is touched");
        peers.into_iter().for_each(|peer| peer.join().unwrap());
        revoker.join().unwrap();
        registry.retire(&regions[0], LONG).unwrap();
        assert!(regions.iter().all(|region| region.leases() == 0));
    }

    #[test]
    fn many_threads_at_two_regions() {
        shuttle::check_random(|| crowd(false), SCHEDULES);
        shuttle::check_pct(|| crowd(false), SCHEDULES, 3);
    }

    /// The checker is looked at itself.
    #[test]
    #[should_panic(expected = "touched")]
    fn a_planted_race_is_found() {
        shuttle::check_random(|| crowd(true), SCHEDULES);
    }
}
