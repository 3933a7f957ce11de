//! Strangers at a door, peers that were let in and misbehave, and what they can do with what they are given. Rule: whatever they say, nobody
//! crashes, they alone lose their connection and hear why, and nothing of theirs is left behind.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers
#![allow(unsafe_code)]

mod support;

use orbit_te_memory::{Access, GrantTerms, RemoteKey};
use orbit_te_shm::{NoEntry, SameHostAddress, ShmConfig, Way};
use orbit_te_transport::{OpErrorCode, OpKind};
use orbit_te_wire::same_host::{SameHost, VERSION};
use orbit_te_wire::{Generation, PeerId, RegionId, SessionId, Status};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::child::{self, Child};
use support::raw::{Came, Raw, SEALED, knock, memory_file};
use support::{Client, Owner, SOON, WAYS, config, eventually, holdings, round_trip, skipped, watchdog};

const SIZE: usize = 64 << 10;
/// Another user: nobody.
const OTHER: u32 = 65_534;

/// Descriptors are counted, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not a test of this process: a process of another user.
#[test]
fn child() {
    child::run();
}

fn enter(request: u32, key: &RemoteKey) -> SameHost {
    let [region, generation, key, _] = key.0;
    SameHost::Enter { request, region: RegionId(region), generation: Generation(generation), key }
}

/// Let in to a region: the gate, and the file.
fn entered(raw: &Raw, key: &RemoteKey) -> (u32, Option<OwnedFd>) {
    raw.say(&enter(7, key), &[]);
    match raw.hear() {
        Came::Message(SameHost::Entered { request: 7, gate, .. }, file) => (gate, file),
        other => panic!("{other:?}"),
    }
}

/// What strangers do at the door, and the words that they hear, if they hear any. The door serves others as before, and keeps nothing.
#[test]
fn strangers_at_the_door() {
    let _alone = alone();
    let _dog = watchdog("strangers_at_the_door", Duration::from_secs(60));
    let check = |words: &str, does: &dyn Fn(&Owner, &SameHostAddress, &RemoteKey) -> Raw| {
        for way in WAYS {
            let owner = Owner::new(way, config());
            let memory = owner.region(SIZE, 1, Access::SHARED);
            let (address, key) = (owner.admit(), owner.key(&memory));
            round_trip(way, &address, key, SIZE, 1);
            eventually("the first guest has left", SOON, || owner.door.held() == 0);
            let before = holdings();
            let begun = Instant::now();
            let raw = does(&owner, &address, &key);
            let heard = raw.farewell();
            assert!(begun.elapsed() < Duration::from_secs(2), "{words}: {:?}", begun.elapsed());
            assert!(heard.contains(words), "`{words}` is not in `{heard}`");
            drop(raw);
            eventually("nothing is left", SOON, || holdings() == before && owner.door.held() == 0);
            round_trip(way, &address, key, SIZE, 2);
            owner.registry.retire(&memory, SOON).unwrap();
        }
    };
    let at = |address: &SameHostAddress, message: &SameHost| {
        let raw = Raw::at(address);
        raw.say(message, &[]);
        raw
    };
    let guest = |address: &SameHostAddress| Raw::guest(address, Way::Mapping).0;
    check("no such session", &|_, address, _| {
        at(address, &knock(&SameHostAddress { session: SessionId(99), ..address.clone() }, Way::Mapping))
    });
    check("no such session", &|_, address, _| {
        at(address, &knock(&SameHostAddress { ask: address.ask ^ 1, ..address.clone() }, Way::Kernel))
    });
    check("no such session", &|_, address, _| {
        // The other number proves nothing.
        at(address, &knock(&SameHostAddress { ask: address.answer, ..address.clone() }, Way::Kernel))
    });
    check("version", &|_, address, _| {
        let SameHostAddress { session, ask, .. } = *address;
        at(address, &SameHost::Knock { version: VERSION + 1, session, ask, way: Way::Mapping })
    });
    check("out of turn", &|_, address, key| at(address, &enter(1, key)));
    check("out of turn", &|_, address, _| at(address, &SameHost::Left { gate: 0 }));
    check("out of turn", &|_, address, _| at(address, &SameHost::Farewell { reason: "no".to_string() }));
    check("", &|_, address, _| {
        let raw = Raw::at(address);
        let _ = raw.send(&[0xff; 900], &[]);
        raw
    });
    check("cut off", &|_, address, _| {
        let raw = Raw::at(address);
        let _ = raw.send(&[0; 4000], &[]);
        raw
    });
    check("descriptor", &|_, address, _| {
        let (raw, file) = (Raw::at(address), memory_file(4096, SEALED));
        raw.say(&knock(address, Way::Mapping), &[file.as_raw_fd()]);
        raw
    });
    check("descriptor", &|_, address, _| {
        let (raw, file) = (Raw::at(address), memory_file(4096, SEALED));
        raw.say(&knock(address, Way::Mapping), &[file.as_raw_fd(); 2]);
        raw
    });
    check("cut off", &|_, address, _| {
        let (raw, file) = (Raw::at(address), memory_file(4096, SEALED));
        raw.say(&knock(address, Way::Mapping), &[file.as_raw_fd(); 60]);
        raw
    });
    // Those who were let in.
    check("out of turn", &|_, address, _| {
        let raw = guest(address);
        raw.say(&knock(address, Way::Mapping), &[]);
        raw
    });
    check("not entered", &|_, address, _| {
        let raw = guest(address);
        raw.say(&SameHost::Left { gate: 3 }, &[]);
        raw
    });
    check("not entered", &|_, address, _| {
        let raw = guest(address);
        raw.say(&SameHost::Left { gate: u32::MAX }, &[]);
        raw
    });
    check("not entered", &|_, address, key| {
        let raw = guest(address);
        let (gate, _file) = entered(&raw, key);
        (0..2).for_each(|_| raw.say(&SameHost::Left { gate }, &[]));
        raw
    });
    check("", &|_, address, key| {
        let raw = guest(address);
        entered(&raw, key);
        let _ = raw.send(&[0x7f; 100], &[]);
        raw
    });
    check("descriptor", &|_, address, key| {
        let (raw, file) = (guest(address), memory_file(4096, SEALED));
        entered(&raw, key);
        raw.say(&enter(8, key), &[file.as_raw_fd()]);
        raw
    });
    check("out of turn", &|_, address, _| {
        let raw = guest(address);
        raw.say(
            &SameHost::Entered { request: 1, gate: 0, begin: 0, length: 1, access: 7, expires_ns: 0 },
            &[],
        );
        raw
    });
}

/// What a guest asks for and does not get; the connection stands.
#[test]
fn guests_are_refused() {
    let _alone = alone();
    let _dog = watchdog("guests_are_refused", Duration::from_secs(60));
    let owner = Owner::new(Way::Mapping, ShmConfig { regions: 2, ..config() });
    let memory = owner.region(SIZE, 1, Access::SHARED);
    let (address, key) = (owner.admit(), owner.key(&memory));
    let vec = orbit_te_memory::Backing::from_vec(vec![0; 4096]).unwrap();
    let own = owner.registry.register(vec, Access::SHARED).unwrap();
    let part = owner.registry.register_range(memory.backing().clone(), 4096, 4096, Access::SHARED).unwrap();
    let (raw, _gates) = Raw::guest(&address, Way::Mapping);
    let check = |key: RemoteKey, why: NoEntry| {
        raw.say(&enter(7, &key), &[]);
        match raw.hear() {
            Came::Message(SameHost::Refused { request: 7, why: said }, None) => assert_eq!(said, why),
            other => panic!("{other:?}"),
        }
    };
    let of = |at: usize, value: u64| {
        let mut key = key;
        key.0[at] = value;
        key
    };
    check(of(0, 4711), NoEntry::admission(Status::UnknownRegion));
    check(of(1, key.0[1] ^ 1), NoEntry::admission(Status::StaleGeneration));
    check(of(2, key.0[2] ^ 1), NoEntry::admission(Status::BadKey));
    check(owner.key(&own), NoEntry::NotShareable);
    check(owner.key(&part), NoEntry::PartOfBuffer);
    let blind = owner.region(SIZE, 1, Access::REMOTE_WRITE);
    check(owner.key(&blind), NoEntry::admission(Status::AccessDenied));
    let (gate, _file) = entered(&raw, &key);
    entered(&raw, &key);
    check(key, NoEntry::Full);
    raw.say(&SameHost::Left { gate }, &[]);
    entered(&raw, &key);
    owner.registry.retire(&memory, Duration::ZERO).unwrap();
    check(key, NoEntry::Full);
    drop(raw);
    eventually("nothing is held", SOON, || owner.door.held() == 0);
}

/// Whoever comes and says nothing is sent away after a while, and many of them keep nobody out for longer than that.
#[test]
fn many_who_say_nothing() {
    let _alone = alone();
    let _dog = watchdog("many_who_say_nothing", Duration::from_secs(60));
    let owner = Owner::new(Way::Mapping, config());
    let memory = owner.region(SIZE, 1, Access::SHARED);
    let (address, key) = (owner.admit(), owner.key(&memory));
    let before = holdings();
    let mut client = Client::new(Way::Mapping, config(), &address, SIZE, 3);
    client.until("its link", SOON, |client| client.ups == 1);
    let begun = Instant::now();
    let all: Vec<Raw> = (0..300).map(|_| Raw::at(&address)).collect();
    // Those over the limit are told so, and the one who was let in before goes on.
    assert!(all[299].farewell().contains("too many"));
    assert_eq!(client.carry(OpKind::Write, key, 0, SIZE as u64).result, Ok(()));
    for raw in &all[..256] {
        raw.farewell();
    }
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(8), "{took:?}");
    round_trip(Way::Mapping, &address, key, SIZE, 2);
    drop((all, client));
    eventually("nothing is left", SOON, || holdings() == before);
}

/// A flood of questions whose answers nobody takes, of goodbyes, of connections that close at once, of connections that knock well: each ends
/// itself and nobody else.
#[test]
fn floods() {
    let _alone = alone();
    let _dog = watchdog("floods", Duration::from_secs(60));
    for way in WAYS {
        let owner = Owner::new(way, config());
        let memory = owner.region(SIZE, 1, Access::SHARED);
        let (address, key) = (owner.admit(), owner.key(&memory));
        let before = holdings();
        let mut client = Client::new(way, config(), &address, SIZE, 3);
        assert_eq!(client.carry(OpKind::Write, key, 0, SIZE as u64).result, Ok(()));
        let (raw, gates) = Raw::guest(&address, way);
        let until = Instant::now() + Duration::from_millis(300);
        let mut sent = 0;
        while Instant::now() < until {
            match raw.send(&enter(1, &key).encode().unwrap(), &[]) {
                Ok(_) => sent += 1,
                Err(nix::errno::Errno::EAGAIN) => std::thread::yield_now(),
                Err(_) => break,
            }
        }
        assert!(sent > 100, "{sent}");
        assert_eq!(client.carry(OpKind::Read, key, 0, SIZE as u64).result, Ok(()));
        for _ in 0..300 {
            drop(Raw::at(&address));
        }
        let guests: Vec<_> = (0..100).map(|_| Raw::guest(&address, way)).collect();
        assert_eq!(client.carry(OpKind::Read, key, 0, SIZE as u64).result, Ok(()));
        drop((raw, gates, guests));
        eventually("only one is held", SOON, || owner.door.held() == 1);
        drop(client);
        eventually("nothing is left", SOON, || (holdings(), owner.door.held()) == (before, 0));
        owner.registry.retire(&memory, SOON).unwrap();
    }
}

/// A peer that says it is inside of every gate, or writes nonsense there, keeps only what it was let in to, and only while it lives.
#[test]
fn nonsense_in_the_gates() {
    let _alone = alone();
    let _dog = watchdog("nonsense_in_the_gates", Duration::from_secs(60));
    let owner = Owner::new(Way::Mapping, config());
    let (memory, other) = (owner.region(SIZE, 1, Access::SHARED), owner.region(SIZE, 2, Access::SHARED));
    let (address, key) = (owner.admit(), owner.key(&memory));
    let (raw, gates) = Raw::guest(&address, Way::Mapping);
    entered(&raw, &key);
    for word in [u64::MAX, 1, 1 << 63, 0x5555_5555_5555_5555] {
        let file = std::fs::File::from(gates.try_clone().unwrap());
        for gate in 0..512 {
            std::os::unix::fs::FileExt::write_all_at(&file, &word.to_le_bytes(), gate * 64).unwrap();
        }
        // Another's memory is not concerned.
        let session = owner.admit();
        round_trip(Way::Mapping, &session, owner.key(&other), SIZE, word);
    }
    let begun = Instant::now();
    assert!(owner.registry.retire(&memory, Duration::from_millis(50)).is_err());
    assert!(begun.elapsed() < Duration::from_secs(1));
    owner.registry.retire(&other, SOON).unwrap();
    drop(raw);
    owner.registry.retire(&memory, SOON).unwrap();
}

/// Through what a peer with the right to read is given, nothing can be written, by any means that it has.
#[test]
fn a_right_to_read_gives_nothing_to_write_through() {
    let _alone = alone();
    let _dog = watchdog("a_right_to_read_gives_nothing_to_write_through", Duration::from_secs(60));
    let owner = Owner::new(Way::Mapping, config());
    let read_only = owner.region(SIZE, 5, Access::REMOTE_READ);
    let shared = owner.region(SIZE, 5, Access::SHARED);
    let address = owner.admit();
    owner.registry.grants().begin(address.session, PeerId(99));
    let terms = GrantTerms { name: "pool".to_string(), access: Access::REMOTE_READ, time_to_live: None };
    let grants = owner.registry.grants();
    let grant = grants.give(Some(address.session), &shared, &terms, 8, Instant::now()).unwrap();
    for (memory, key) in [(&read_only, owner.key(&read_only)), (&shared, owner.key_of(&shared, grant.key()))]
    {
        let (raw, _gates) = Raw::guest(&address, Way::Mapping);
        let (_, file) = entered(&raw, &key);
        let file = file.expect("a file");
        let write = nix::unistd::write(&file, b"x");
        assert_eq!(write, Err(nix::errno::Errno::EBADF));
        let map = |rights: i32| {
            // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
            unsafe { libc::mmap(std::ptr::null_mut(), SIZE, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) }
        };
        assert_eq!(map(libc::PROT_READ | libc::PROT_WRITE), libc::MAP_FAILED);
        let mapped = map(libc::PROT_READ);
        assert_ne!(mapped, libc::MAP_FAILED);
        // SAFETY: the mapping was just made, with this length; its first byte is the owner's.
        let (first, changed) = unsafe {
            (*mapped.cast::<u8>(), libc::mprotect(mapped, SIZE, libc::PROT_READ | libc::PROT_WRITE))
        };
        assert_eq!((first, changed), (5, -1));
        // SAFETY: mapped above, and not used any more.
        unsafe { libc::munmap(mapped, SIZE) };
        assert!(nix::unistd::ftruncate(&file, 0).is_err());
        let flags = nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_GETFL).unwrap();
        assert_eq!(flags & libc::O_ACCMODE, libc::O_RDONLY);
        // By the transport: refused before a byte.
        let mut client = Client::new(Way::Mapping, config(), &address, SIZE, 9);
        let ended = client.carry(OpKind::Write, key, 0, 64);
        assert_eq!(ended.result.unwrap_err().code, OpErrorCode::AccessDenied);
        assert!(!ended.touched);
        assert_eq!(client.carry(OpKind::Read, key, 0, 64).result, Ok(()));
        assert!(support::contents(memory).iter().all(|byte| *byte == 5));
    }
}

/// Processes of other users are turned away by the kernel's word for them, and let in where the owner says so.
#[test]
fn processes_of_other_users() {
    let _alone = alone();
    let _dog = watchdog("processes_of_other_users", Duration::from_secs(60));
    if !nix::unistd::geteuid().is_root() {
        return skipped("processes_of_other_users: only root can become another user");
    }
    let check = |way: Way, users: Vec<u32>, words: &str| {
        let owner = Owner::new(way, ShmConfig { users, ..config() });
        let child = Child::visitor(way, &owner.admit(), OTHER);
        assert!(child.said.contains(words), "`{words}` is not in `{}`", child.said);
    };
    check(Way::Mapping, vec![], "user 65534");
    check(Way::Kernel, vec![], "user 65534");
    check(Way::Mapping, vec![1, OTHER], "in");
    // Let in at the door; then the kernel says whether such a user may copy.
    check(Way::Kernel, vec![OTHER], "process_vm");
}

/// A process of another user that may read can't open the file of the memory anew, for writing; nor can it the file of the gates of others.
#[test]
fn a_right_to_read_of_another_user() {
    let _alone = alone();
    let _dog = watchdog("a_right_to_read_of_another_user", Duration::from_secs(60));
    if !nix::unistd::geteuid().is_root() {
        return skipped("a_right_to_read_of_another_user: only root can become another user");
    }
    let owner = Owner::new(Way::Mapping, ShmConfig { users: vec![OTHER], ..config() });
    let memory = owner.region(SIZE, 5, Access::REMOTE_READ);
    let child = Child::thief(&owner.admit(), &owner.key(&memory), OTHER);
    assert_eq!(child.said, "EACCES");
    assert!(support::contents(&memory).iter().all(|byte| *byte == 5));
}
