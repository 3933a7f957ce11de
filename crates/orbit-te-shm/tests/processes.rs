//! Real processes at both ends of a link, which are killed and stopped in the middle of copies. Rule: whatever becomes of the one, the other
//! goes on, loses nothing but its link, and gets its memory back.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te_memory::{Access, MemoryError, Region};
use orbit_te_shm::Way;
use orbit_te_transport::{OpErrorCode, OpKind, Transport};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::child::{self, Child, Importer};
use support::{Client, Owner, Random, SOON, WAYS, config, eventually, holdings, round_trip, watchdog};

const SIZE: usize = 4 << 20;
/// Ops that end after their peer has died, and a memory that is given back, may take this long.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Kills of each kind and way: `ORBIT_TE_KILLS` in all four together for the whole proof.
fn kills() -> u64 {
    std::env::var("ORBIT_TE_KILLS").map_or(10, |text| text.parse::<u64>().unwrap() / 2)
}

fn limit() -> Duration {
    Duration::from_secs(60) + Duration::from_millis(200) * kills() as u32
}

/// What a process holds is counted, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not a test of this process: the other end of the links.
#[test]
fn child() {
    child::run();
}

/// The owner dies under copies both ways: they end with link errors at once, and nothing of the link is left.
#[test]
fn an_owner_that_is_killed() {
    let _alone = alone();
    let _dog = watchdog("an_owner_that_is_killed", limit());
    for way in WAYS {
        let mut random = Random(17);
        let here = Owner::new(way, config());
        let memory = here.region(SIZE, 0, Access::SHARED);
        let mut client = Client::new(way, config(), &here.admit(), SIZE, child::IMPORTERS);
        client.until("the first link", SOON, |client| client.ups == 1);
        let mut before = None;
        let (mut broken, mut good) = (0, 0);
        for round in 0..kills() {
            let (mut child, address, key) = Child::owner(way, SIZE);
            let (fallen, link) = (client.fallen.len(), client.connect(&address));
            client.done.clear();
            let ops: u64 = 64;
            for at in 0..ops {
                let kind = if at % 2 == 0 { OpKind::Read } else { OpKind::Write };
                client.op_on(link, kind, key, 0, SIZE as u64);
            }
            client.until("it has begun", SOON, |client| !client.done.is_empty());
            let later = Instant::now() + Duration::from_micros(random.below(3000));
            while Instant::now() < later {
                client.poll();
            }
            // Its connection closes while this thread is in a copy, or between two.
            let killing = std::thread::spawn(move || {
                child.kill();
                Instant::now()
            });
            client.until("all end", SOON, |client| client.done.len() as u64 == ops);
            let ended = Instant::now();
            let killed = killing.join().unwrap();
            assert!(ended < killed + AT_ONCE, "{way:?} {round}: {:?}", ended - killed);
            for done in &client.done {
                match done.result {
                    Ok(()) => good += 1,
                    Err(error) => {
                        assert_eq!(error.code, OpErrorCode::LinkBroken, "{way:?} {round}: {error:?}");
                        broken += 1;
                    }
                }
            }
            client.until("the link falls", AT_ONCE, |client| client.fallen.len() > fallen);
            client.transport.disconnect(link, Instant::now());
            // The first round has started what stays: threads of the test and its files.
            let first = *before.get_or_insert_with(holdings);
            eventually("all is given back", SOON, || holdings() == first);
        }
        println!("{way:?}: {} owners killed, ops good {good}, broken {broken}", kills());
        assert!(broken > 0 && good > 0);
        // Another link of the same transport has not noticed.
        let key = here.key(&memory);
        assert_eq!(client.carry(OpKind::Write, key, 0, SIZE as u64).result, Ok(()));
        assert!(
            support::contents(&memory).iter().all(|byte| *byte == child::IMPORTERS || *byte == child::OWNERS)
        );
        round_trip(way, &here.admit(), key, SIZE, 5);
    }
}

/// The importer dies under copies both ways: its owner has its memory back at once, although it may have been inside.
#[test]
fn an_importer_that_is_killed() {
    let _alone = alone();
    let _dog = watchdog("an_importer_that_is_killed", limit());
    for way in WAYS {
        let mut random = Random(23);
        let owner = Owner::new(way, config());
        let mut before = None;
        let mut inside = 0;
        for round in 0..kills() {
            let memory = owner.region(SIZE, child::OWNERS, Access::SHARED);
            let (address, key) = (owner.admit(), owner.key(&memory));
            let mut child = Child::importer(Importer::Copies, way, SIZE, &address, &key);
            assert_eq!(memory.holds(), 1);
            std::thread::sleep(Duration::from_micros(random.below(2000)));
            // Every other time it is surely in the middle of a copy.
            let stopped = round % 2 == 0 && stop_inside(&child, &owner, &memory);
            inside += u32::from(stopped);
            let killed = Instant::now();
            child.kill();
            eventually("nothing is held", AT_ONCE, || memory.holds() == 0 && owner.door.held() == 0);
            owner.registry.retire(&memory, Duration::ZERO).unwrap();
            assert!(killed.elapsed() < AT_ONCE);
            owner.door.drop_session(address.session);
            // Each byte is one of the two.
            let memory = owner.registry.register(memory.backing().clone(), Access::SHARED).unwrap();
            let bytes = support::contents(&memory);
            assert!(bytes.iter().all(|byte| [child::OWNERS, child::IMPORTERS].contains(byte)));
            owner.registry.retire(&memory, Duration::ZERO).unwrap();
            drop((bytes, child, memory));
            let first = *before.get_or_insert_with(holdings);
            eventually("all is given back", SOON, || holdings() == first);
        }
        println!("{way:?}: {} importers killed, {inside} of them inside of a gate", kills());
        assert!(inside > 0, "{way:?}: none was met inside");
        let memory = owner.region(SIZE, 0, Access::SHARED);
        round_trip(way, &owner.admit(), owner.key(&memory), SIZE, 6);
    }
}

/// Stops a child that copies; whether it stands inside of the region's gate. The region is retired then.
fn stop_inside(child: &Child, owner: &Owner, memory: &Region) -> bool {
    child.stop();
    match owner.registry.retire(memory, Duration::ZERO) {
        Err(MemoryError::StillLeased { leases: 1, .. }) => true,
        Ok(()) => false,
        other => panic!("{other:?}"),
    }
}

/// How an owner takes its memory back.
#[derive(Clone, Copy, Debug)]
enum Back {
    Retire,
    Revoke,
}

fn take_back(owner: &Owner, memory: &Region, how: Back, limit: Duration) -> Result<(), MemoryError> {
    match how {
        Back::Retire => owner.registry.retire(memory, limit),
        Back::Revoke => owner.registry.revoke(memory, limit).map(drop),
    }
}

/// A peer that is stopped inside of a copy makes a withdrawal end at its limit, not before and not much later. When it goes on, or dies,
/// the next one succeeds.
#[test]
fn an_importer_that_is_stopped_inside_of_a_copy() {
    let _alone = alone();
    let _dog = watchdog("an_importer_that_is_stopped_inside_of_a_copy", Duration::from_secs(120));
    let check = |way: Way, how: Back, goes_on: bool| {
        const LIMIT: Duration = Duration::from_millis(150);
        let owner = Owner::new(way, config());
        for _ in 0..40 {
            let memory = owner.region(SIZE, child::OWNERS, Access::SHARED);
            let (address, key) = (owner.admit(), owner.key(&memory));
            let mut child = Child::importer(Importer::Copies, way, SIZE, &address, &key);
            child.stop();
            let begun = Instant::now();
            let taken = take_back(&owner, &memory, how, LIMIT);
            let took = begun.elapsed();
            if taken.is_ok() {
                // It was between two copies.
                assert!(took < LIMIT, "{took:?}");
                continue;
            }
            assert!(matches!(taken, Err(MemoryError::StillLeased { leases: 1, .. })), "{taken:?}");
            assert!(took >= LIMIT && took < LIMIT + Duration::from_millis(400), "{took:?}");
            // It may touch the memory until it goes on or dies: the owner is not told otherwise however often it asks.
            let begun = Instant::now();
            let again = owner.registry.retire(&memory, LIMIT);
            assert!(matches!(again, Err(MemoryError::StillLeased { leases: 1, .. })), "{again:?}");
            assert!(begun.elapsed() >= LIMIT);
            let begun = Instant::now();
            if goes_on {
                child.go_on()
            } else {
                child.kill()
            }
            owner.registry.retire(&memory, SOON).unwrap();
            assert!(begun.elapsed() < AT_ONCE);
            // And nothing lands any more, in whatever the memory is used for then.
            let memory = owner.registry.register(memory.backing().clone(), Access::SHARED).unwrap();
            memory.write_at(0, &vec![0x77; SIZE]).unwrap();
            std::thread::sleep(Duration::from_millis(30));
            assert!(support::contents(&memory).iter().all(|byte| *byte == 0x77), "bytes landed afterwards");
            return;
        }
        panic!("{way:?}: never met inside of a copy");
    };
    for way in WAYS {
        check(way, Back::Retire, true);
        check(way, Back::Retire, false);
        check(way, Back::Revoke, true);
        check(way, Back::Revoke, false);
    }
}

/// A peer that has been let in, and stands still outside of a copy, holds nobody up; and when it goes on it finds the door closed.
#[test]
fn an_importer_that_is_stopped_outside_of_a_copy() {
    let _alone = alone();
    let _dog = watchdog("an_importer_that_is_stopped_outside_of_a_copy", Duration::from_secs(60));
    for way in WAYS {
        for how in [Back::Retire, Back::Revoke] {
            let owner = Owner::new(way, config());
            let memory = owner.region(SIZE, child::OWNERS, Access::SHARED);
            let (address, key) = (owner.admit(), owner.key(&memory));
            let child = Child::importer(Importer::Idle, way, SIZE, &address, &key);
            child.stop();
            assert_eq!(memory.holds(), 1);
            let begun = Instant::now();
            take_back(&owner, &memory, how, SOON).unwrap();
            assert!(begun.elapsed() < Duration::from_millis(200), "{:?}", begun.elapsed());
            assert_eq!(memory.holds(), 0);
            drop(child);
            eventually("nothing is held", AT_ONCE, || owner.door.held() == 0);
        }
    }
}

/// A session that ends makes a stopped peer leave as well: its memory is held until it is gone, and not longer.
#[test]
fn a_session_that_ends_under_a_stopped_importer() {
    let _alone = alone();
    let _dog = watchdog("a_session_that_ends_under_a_stopped_importer", Duration::from_secs(60));
    for way in WAYS {
        let owner = Owner::new(way, config());
        let memory = owner.region(SIZE, child::OWNERS, Access::SHARED);
        let (address, key) = (owner.admit(), owner.key(&memory));
        let mut child = Child::importer(Importer::Copies, way, SIZE, &address, &key);
        child.stop();
        owner.door.drop_session(address.session);
        let inside = memory.holds() > 0;
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(memory.holds() > 0, inside, "let go while the peer stood inside");
        child.kill();
        eventually("nothing is held", AT_ONCE, || memory.holds() == 0);
        owner.registry.retire(&memory, Duration::ZERO).unwrap();
    }
}
