//! Batches of registrations: all of one is published or nothing of it is left, at any domain, in the table or in the count of
//! bytes.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_memory::{
    Access, Backing, ByteLimit, Domain, HostBuffer, KindSet, LocalKey, MemoryError, Region, RegionId,
    Registration, Registry, RemoteKey,
};
use orbit_te_wire::RegionDescriptor;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

/// What domains were asked to do, in order.
type Log = Arc<Mutex<Vec<(char, u64, &'static str)>>>;

/// A domain that refuses its `refuses`th registration.
struct Picky {
    name: &'static str,
    shares: bool,
    refuses: usize,
    /// What its keys have more than those of others.
    apart: u64,
    asked: Mutex<usize>,
    log: Log,
}

impl Picky {
    fn new(name: &'static str, refuses: usize, log: &Log) -> Picky {
        Picky { name, shares: false, refuses, apart: 0, asked: Mutex::new(0), log: log.clone() }
    }
}

impl Domain for Picky {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kinds(&self) -> KindSet {
        KindSet::HOST
    }

    fn register(&self, region: &Region) -> Result<LocalKey, MemoryError> {
        let mut asked = self.asked.lock().unwrap();
        *asked += 1;
        if *asked == self.refuses {
            return Err(MemoryError::Refused { domain: self.name, reason: "planted".into() });
        }
        self.log.lock().unwrap().push(('+', region.id().0, self.name));
        Ok(LocalKey(region.id().0 + self.apart))
    }

    fn remote_key(&self, _: &Region, _: u64) -> Vec<u8> {
        Vec::new()
    }

    fn shares_registrations(&self) -> bool {
        self.shares
    }

    fn deregister(&self, region: &Region, key: LocalKey) -> Result<(), MemoryError> {
        assert_eq!(key, LocalKey(region.id().0 + self.apart), "the key that it gave for this region");
        self.log.lock().unwrap().push(('-', region.id().0, self.name));
        Ok(())
    }

    fn import(&self, _: &RegionDescriptor) -> Result<RemoteKey, MemoryError> {
        Err(MemoryError::BadRemoteKey { domain: self.name, reason: "none".into() })
    }

    fn forget(&self, _: RemoteKey) {}
}

fn backing(bytes: usize) -> Arc<Backing> {
    Arc::new(HostBuffer::new(bytes).unwrap().into_backing())
}

#[test]
fn a_batch_comes_in_order_with_the_key_of_all_domains() {
    let (registry, log) = (Registry::new(), Log::default());
    let domains: [Arc<dyn Domain>; 2] =
        [Arc::new(Picky::new("a", 0, &log)), Arc::new(Picky::new("b", 0, &log))];
    let shared = backing(100);
    let entries = [
        Registration::new(shared.clone(), Access::SHARED),
        Registration::range(shared.clone(), 40, 20, Access::SHARED_READ),
        Registration::new(shared.clone(), Access::LOCAL),
    ];
    let done = registry.register_all(&entries, &domains).unwrap();
    assert_eq!(done.len(), 3);
    for ((region, key), entry) in done.iter().zip(&entries) {
        assert!(Arc::ptr_eq(region.backing(), &shared), "duplicate references share their memory");
        assert_eq!((region.len(), region.access()), (entry.length, entry.access));
        assert_eq!(*key, LocalKey(region.id().0));
        assert!(registry.get(region.id()).is_some());
    }
    done[0].0.write_at(40, &[7; 20]).unwrap();
    let mut seen = [0; 20];
    done[1].0.read_at(0, &mut seen).unwrap();
    assert_eq!(seen, [7; 20]);
    assert!(registry.register_all(&[], &domains).unwrap().is_empty());
}

/// Ops carry one key to whichever transport they take: a domain with another one is not let in, and gets its own back.
#[test]
fn domains_that_do_not_agree_on_a_key_are_refused() {
    let (registry, log) = (Registry::new(), Log::default());
    let odd = Picky { apart: 100, ..Picky::new("b", 0, &log) };
    let domains: [Arc<dyn Domain>; 3] =
        [Arc::new(Picky::new("a", 0, &log)), Arc::new(odd), Arc::new(Picky::new("c", 0, &log))];
    let error =
        registry.register_all(&[Registration::new(backing(10), Access::LOCAL)], &domains).unwrap_err();
    assert!(matches!(error.source, MemoryError::Refused { domain: "b", .. }), "{error}");
    assert!(error.to_string().contains("another key"), "{error}");
    let log: Vec<_> = log.lock().unwrap().iter().map(|(what, _, name)| (*what, *name)).collect();
    assert_eq!(log, [('+', "a"), ('+', "b"), ('-', "b"), ('-', "a")]);
    assert!(registry.is_empty());
}

/// The key of host memory says which region it is and whether it may vanish, and that of no region says neither.
#[test]
fn a_key_names_its_region() {
    let registry = Registry::new();
    for may_vanish in [false, true] {
        let mut memory = HostBuffer::new(8).unwrap().into_backing();
        memory = if may_vanish { memory.that_may_vanish() } else { memory };
        let region = registry.register(memory, Access::LOCAL).unwrap();
        let key = LocalKey::of_host(&region);
        assert_eq!((key.region(), key.may_vanish()), (region.id(), may_vanish));
    }
    assert_eq!((LocalKey::default().region(), LocalKey::default().may_vanish()), (RegionId(0), false));
    let done = registry.register_all(&[Registration::new(backing(8), Access::LOCAL)], &[]).unwrap();
    assert_eq!(done[0].1.region(), done[0].0.id(), "also where nobody registers");
}

#[test]
fn each_reason_names_its_entry() {
    let registry = Registry::with_limit(ByteLimit::new(1000));
    let good = || Registration::new(backing(10), Access::LOCAL);
    let check = |entries: &[Registration], index: usize, fits: fn(&MemoryError) -> bool| {
        let error = registry.register_all(entries, &[]).unwrap_err();
        assert!(error.index == index && fits(&error.source), "{error}");
        assert!(registry.is_empty());
    };
    let zero = Registration::range(backing(10), 3, 0, Access::LOCAL);
    check(&[good(), zero], 1, |e| matches!(e, MemoryError::ZeroLength { .. }));
    for (offset, length) in [(0, 11), (10, 1), (u64::MAX, 2)] {
        let outside = Registration::range(backing(10), offset, length, Access::LOCAL);
        check(&[outside, good()], 0, |e| matches!(e, MemoryError::OutOfRange { .. }));
    }
    let large = Registration::new(backing(985), Access::LOCAL);
    check(&[good(), good(), large], 2, |e| {
        matches!(e, MemoryError::OverLimit { asked_bytes: 985, limit_bytes: 1000, in_use_bytes: 20 })
    });
}

/// Where a transport would share one registration, overlaps need the same rights: with what is registered, and in the batch.
#[test]
fn overlaps_with_other_rights() {
    let log = Log::default();
    let check = |shares: bool, first: (u64, u64, Access), second: (u64, u64, Access), fits: bool| {
        let entry = |memory: &Arc<Backing>, (offset, length, access)| {
            Registration::range(memory.clone(), offset, length, access)
        };
        let domains: [Arc<dyn Domain>; 1] = [Arc::new(Picky { shares, ..Picky::new("a", 0, &log) })];
        for together in [true, false] {
            let (registry, memory) = (Registry::new(), backing(100));
            let (first, second) = (entry(&memory, first), entry(&memory, second));
            let result = if together {
                registry.register_all(&[first, second], &domains).map(drop)
            } else {
                registry.register_all(&[first], &domains).unwrap();
                registry.register_all(&[second], &domains).map(drop)
            };
            match result {
                Ok(()) => assert!(fits),
                Err(error) => {
                    assert!(
                        !fits && matches!(error.source, MemoryError::Overlap { domain: "a", .. }),
                        "{error}"
                    );
                    assert_eq!(error.index, usize::from(together));
                    assert_eq!(registry.len(), usize::from(!together));
                }
            }
        }
    };
    let (local, shared) = (Access::LOCAL, Access::SHARED);
    check(true, (0, 50, local), (49, 10, shared), false);
    check(true, (0, 50, local), (50, 10, shared), true);
    check(true, (0, 50, local), (49, 10, local), true);
    check(true, (40, 10, shared), (0, 100, local), false);
    check(false, (0, 50, local), (49, 10, shared), true);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A domain refuses somewhere: everything is as it was, taken back in the opposite order, and the next batch works.
    #[test]
    fn a_refusal_anywhere_leaves_nothing_behind(
        sizes in prop::collection::vec((1usize..5000, any::<bool>()), 1..12),
        refusing_domain in 0usize..3,
        at in 1usize..12,
    ) {
        let (limit, log) = (ByteLimit::new(u64::MAX), Log::default());
        let registry = Registry::with_limit(limit.clone());
        let before = registry.register(backing(64), Access::SHARED).unwrap();
        let refuses = |n: usize| if n == refusing_domain { at } else { 0 };
        let domains: Vec<Arc<dyn Domain>> = ["a", "b", "c"]
            .into_iter()
            .enumerate()
            .map(|(n, name)| Arc::new(Picky::new(name, refuses(n), &log)) as Arc<dyn Domain>)
            .collect();
        let mut entries: Vec<Registration> = Vec::new();
        for (size, again) in &sizes {
            let memory = match entries.last() {
                Some(last) if *again => last.backing.clone(),
                _ => backing(*size),
            };
            entries.push(Registration::new(memory, Access::SHARED));
        }
        let weak: Vec<_> = entries.iter().map(|entry| Arc::downgrade(&entry.backing)).collect();
        let result = registry.register_all(&entries, &domains);
        prop_assert_eq!(result.is_err(), at <= entries.len());
        if let Err(error) = result.map(drop) {
            prop_assert_eq!(error.index, at - 1);
            let refused = matches!(error.source, MemoryError::Refused { .. });
            prop_assert!(refused, "{}", error);
            let log = log.lock().unwrap().clone();
            let (done, undone) = log.split_at(log.len() / 2);
            let mirrored: Vec<_> = undone.iter().rev().map(|(_, id, name)| ('+', *id, *name)).collect();
            prop_assert_eq!(done, &mirrored[..], "taken back, the last first");
            prop_assert_eq!(registry.len(), 1);
            prop_assert!((2..20).all(|id| registry.get(RegionId(id)).is_none()));
            prop_assert_eq!(limit.in_use_bytes(), 64);
            let done = registry.register_all(&entries, &domains).unwrap();
            prop_assert_eq!(registry.len(), 1 + entries.len());
            drop(done);
        }
        // The table has them; they are all that keeps the memory.
        drop(entries);
        prop_assert!(weak.iter().all(|memory| memory.strong_count() > 0));
        for id in 2..64 {
            if let Some(region) = registry.get(RegionId(id)) {
                registry.retire(&region, std::time::Duration::ZERO).unwrap();
            }
        }
        prop_assert!(weak.iter().all(|memory| memory.strong_count() == 0));
        prop_assert_eq!(limit.in_use_bytes(), 64);
        drop(before);
    }
}
