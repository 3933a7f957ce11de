//! Memory that is withdrawn while somebody holds it: lanes that stall are closed at the limit, what can't be let go is listed until
//! it can, and bytes count until they are gone.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{
    Access, Backing, ByteLimit, Engine, Error, HostBuffer, MemoryError, Registration, RegistrationLimit,
};
use orbit_te_wire::{FrameOp, RegionDescriptor, Status};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::raw::{RawLane, RawPeer, request};
use support::{SOON, contents, eventually, region, watchdog};

const LIMIT: Duration = Duration::from_millis(50);

/// How a hostile peer holds a region.
#[derive(Debug, Clone, Copy)]
enum Stall {
    /// A write whose payload is half sent.
    HalfSent,
    /// Reads whose answers nobody takes.
    NotTaken,
}

fn stall(lane: &mut RawLane, how: Stall, of: &RegionDescriptor) {
    match how {
        Stall::HalfSent => {
            assert!(lane.send(&request(FrameOp::Write, of, 0, of.length), &vec![7; of.length as usize / 2]));
        }
        Stall::NotTaken => {
            for _ in 0..8 {
                assert!(lane.send(&request(FrameOp::Read, of, 0, of.length), &[]));
            }
        }
    }
}

#[test]
fn retiring_ends_soon_after_its_limit_under_stalling_lanes() {
    let _dog = watchdog("retiring_ends_soon_after_its_limit", Duration::from_secs(60));
    let target = Engine::builder().start().unwrap();
    let bystander = region(&target, &[4; 64], Access::SHARED);
    target.expose("other", &bystander).unwrap();
    for how in [Stall::HalfSent, Stall::NotTaken] {
        let memory = region(&target, &vec![0; 8 << 20], Access::SHARED);
        target.expose("pool", &memory).unwrap();
        let mut raw = RawPeer::connect(target.address().unwrap(), 5);
        let (pool, other) = (raw.open("pool").unwrap(), raw.open("other").unwrap());
        let mut lanes: Vec<RawLane> = (1..4).map(|number| raw.lane(number)).collect();
        let mut good = raw.lane(9);
        lanes.iter_mut().for_each(|lane| stall(lane, how, &pool));
        // Of eight reads the kernel takes one or two off the target's hands: more than 16 leases are of three lanes.
        let of_all = if let Stall::HalfSent = how { 3 } else { 17 };
        eventually("each lane holds it", SOON, || memory.leases() >= of_all);
        let begun = Instant::now();
        target.retire(&memory, LIMIT).unwrap();
        let took = begun.elapsed();
        assert!(took >= LIMIT && took < LIMIT + Duration::from_millis(1500), "{how:?} took {took:?}");
        assert_eq!(memory.leases(), 0);
        assert!(target.retained().is_empty());
        assert!(lanes.iter_mut().all(|lane| lane.is_closed_within(SOON)), "{how:?}");
        // The peer's other lanes go on.
        assert_eq!(good.ask(&request(FrameOp::Read, &other, 0, 64), &[]), Status::Ok);
        assert_eq!(good.ask(&request(FrameOp::Read, &pool, 0, 64), &[]), Status::UnknownRegion);
    }
    assert_eq!(target.retained_ever(), 0);
}

/// Memory that says when it is let go.
struct Owner {
    bytes: Box<[u64]>,
    gone: Arc<AtomicBool>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
    }
}

fn owned(words: usize) -> (Backing, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let mut owner = Owner { bytes: vec![0; words].into_boxed_slice(), gone: gone.clone() };
    let base = NonNull::new(owner.bytes.as_mut_ptr().cast()).unwrap();
    // SAFETY: the box is moved into the owner, which nobody reaches; moving it does not move what it points to.
    (unsafe { Backing::external(base, words * 8, owner) }.unwrap(), gone)
}

/// Our own transfer holds the region, which no lane of a peer does: it is kept, listed, and let go with the last request,
/// although nobody asks.
#[test]
fn what_is_still_held_is_listed_until_it_is_let_go() {
    let _dog = watchdog("what_is_still_held_is_listed", Duration::from_secs(60));
    let engine = Engine::builder().start().unwrap();
    let (backing, gone) = owned(64);
    let memory = engine.register(backing, Access::SHARED).unwrap();
    let lease = memory.raw().lease().unwrap();
    let begun = Instant::now();
    for _ in 0..2 {
        let result = engine.retire(&memory, LIMIT);
        assert!(
            matches!(result, Err(Error::Memory(MemoryError::StillLeased { leases: 1, .. }))),
            "{result:?}"
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(4));
    let listed = engine.retained();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((listed[0].region, listed[0].bytes, listed[0].leases), (memory.id(), 512, 1));
    assert!(listed[0].reason.contains("withdrawn") && listed[0].since >= LIMIT);
    assert_eq!(engine.retained_ever(), 1);
    drop(memory);
    assert!(!gone.load(Ordering::Acquire), "memory was let go under a lease");
    drop(lease);
    assert!(gone.load(Ordering::Acquire), "the list keeps what nobody holds");
    assert!(engine.retained().is_empty());
    assert_eq!(engine.retained_ever(), 1);
}

/// Nobody has to make a request for the memory of a withdrawn region to be let go: no thread keeps an older table.
#[test]
fn an_idle_engine_keeps_no_withdrawn_memory() {
    let _dog = watchdog("an_idle_engine_keeps_no_withdrawn_memory", Duration::from_secs(60));
    let target = Engine::builder().start().unwrap();
    let engine = Engine::builder().no_listen().start().unwrap();
    let local = region(&engine, &[1; 512], Access::LOCAL);
    for _ in 0..20 {
        let (backing, gone) = owned(64);
        let memory = target.register(backing, Access::SHARED).unwrap();
        target.expose("pool", &memory).unwrap();
        let segment = engine.open(&format!("{}/pool", target.address().unwrap())).wait(SOON).unwrap();
        segment.write(0, &local.whole()).unwrap().wait().unwrap();
        assert_eq!(contents(&memory), [1; 512]);
        target.retire(&memory, SOON).unwrap();
        assert!(!gone.load(Ordering::Acquire), "a handle is left");
        drop(memory);
        // The thread that ended the last request may be about to let its own handle go.
        eventually("it is let go", Duration::from_secs(2), || gone.load(Ordering::Acquire));
    }
}

#[test]
fn bytes_count_until_the_memory_is_let_go() {
    let _dog = watchdog("bytes_count_until_the_memory_is_let_go", Duration::from_secs(60));
    let limit = ByteLimit::new(10_000);
    let engine = Engine::builder().registration_limit(limit.clone()).start().unwrap();
    let buffer = |bytes: usize| Arc::new(HostBuffer::new(bytes).unwrap().into_backing());
    let first = engine.register(buffer(6000), Access::LOCAL).unwrap();
    let over = engine.register(buffer(4001), Access::LOCAL);
    let Err(Error::Memory(MemoryError::OverLimit { asked_bytes, limit_bytes, in_use_bytes })) = over else {
        panic!("over the limit: {over:?}");
    };
    assert_eq!((asked_bytes, limit_bytes, in_use_bytes), (4001, 10_000, 6000));
    // Two regions and a slice over one backing: it counts once, until the last of them is gone.
    let shared = buffer(4000);
    let both = engine
        .register_all([
            Registration::new(shared.clone(), Access::LOCAL),
            Registration::range(shared.clone(), 100, 200, Access::SHARED_READ),
        ])
        .unwrap();
    assert_eq!(limit.in_use_bytes(), 10_000);
    let slice = both[1].slice(0, 10).unwrap();
    both.iter().for_each(|region| engine.retire(region, SOON).unwrap());
    drop(both);
    assert_eq!(limit.in_use_bytes(), 10_000, "a slice still reaches it");
    drop(slice);
    assert_eq!(limit.in_use_bytes(), 6000);
    // A batch over the limit leaves nothing counted.
    let batch = engine.register_all([1000, 2000, 3000].map(|n| Registration::new(buffer(n), Access::LOCAL)));
    let Err(Error::Registration(error)) = batch else { panic!("over the limit: {batch:?}") };
    assert_eq!(error.index, 2);
    assert!(error.to_string().contains("entry 2") && error.to_string().contains("10000"), "{error}");
    assert_eq!(limit.in_use_bytes(), 6000);
    engine.retire(&first, SOON).unwrap();
    drop(first);
    assert_eq!(limit.in_use_bytes(), 0);
    // The limit is anybody's to write; this one is shared with another engine.
    let other = Engine::builder().no_listen().registration_limit(limit.clone()).start().unwrap();
    let _theirs = other.register(buffer(10_000), Access::LOCAL).unwrap();
    assert!(engine.register(buffer(1), Access::LOCAL).is_err());
    let own: Arc<dyn RegistrationLimit> = limit;
    assert!(own.take(1).is_err());
}
