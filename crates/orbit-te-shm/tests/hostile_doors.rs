//! Doors that lie to those who come, written by hand. Rule: whatever they say, nobody crashes, the one link or op fails and says why, other links go
//! on, and no descriptor is left behind.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use nix::fcntl::SealFlag;
use orbit_te_memory::{Access, RemoteKey};
use orbit_te_shm::{ShmConfig, Way};
use orbit_te_transport::{OpErrorCode, OpKind, Transport};
use orbit_te_wire::same_host::SameHost;
use orbit_te_wire::{Generation, RegionId};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::raw::{Came, Raw, RawDoor, SEALED, knock, memory_file};
use support::{Client, Owner, SOON, WAYS, config, eventually, holdings, watchdog};

const SIZE: usize = 64 << 10;

/// Descriptors are counted, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn enter(request: u32, key: &RemoteKey) -> SameHost {
    let [region, generation, key, _] = key.0;
    SameHost::Enter { request, region: RegionId(region), generation: Generation(generation), key }
}

/// A door that is somebody's own work, and what it does to those who come.
struct Liar<'a> {
    gates: u32,
    answer: u128,
    file: Option<OwnedFd>,
    then: &'a dyn Fn(&Raw, &SameHost),
}

fn gates_file(gates: u32) -> OwnedFd {
    memory_file(u64::from(gates) * 64, SEALED)
}

/// Meets a liar with a write, and gives what became of link and op.
fn meet(way: Way, liar: &Liar<'_>) -> (Vec<String>, Option<orbit_te_transport::OpError>) {
    let door = RawDoor::new();
    // One link that is honest, which must not notice.
    let owner = Owner::new(way, config());
    let memory = owner.region(SIZE, 1, Access::SHARED);
    let honest = owner.key(&memory);
    let mut client = Client::new(way, config(), &owner.admit(), SIZE, 3);
    client.until("the honest link", SOON, |client| client.ups == 1);
    assert_eq!(client.carry(OpKind::Write, honest, 0, SIZE as u64).result, Ok(()));
    let before = holdings();
    let link = client.connect(&door.address);
    let token = client.op_on(link, OpKind::Write, RemoteKey([1, 1, 1, u64::MAX]), 0, SIZE as u64);
    let proof = Box::new(22u128.to_le_bytes());
    let mut guests = Vec::new();
    let until = Instant::now() + SOON;
    let error = loop {
        assert!(Instant::now() < until, "the op goes on; fallen: {:?}", client.fallen);
        client.poll();
        if let Some(raw) = door.accept() {
            let Came::Message(SameHost::Knock { ask: 11, .. }, None) = raw.hear() else { panic!("no knock") };
            let proof_address = proof.as_ptr() as u64;
            let welcome = SameHost::Welcome { answer: liar.answer, gates: liar.gates, proof_address };
            let fds: Vec<i32> = liar.file.iter().map(AsRawFd::as_raw_fd).collect();
            raw.say(&welcome, &fds);
            guests.push(raw);
        }
        for raw in &guests {
            if let Some(Came::Message(message, _)) = raw.hear_within(Duration::ZERO) {
                (liar.then)(raw, &message);
            }
        }
        if let Some(at) = client.done.iter().position(|done| done.token == token) {
            break client.done.swap_remove(at).result.err();
        }
    };
    assert_eq!(client.carry(OpKind::Read, honest, 0, SIZE as u64).result, Ok(()), "the honest link");
    let fallen = std::mem::take(&mut client.fallen);
    client.transport.disconnect(link, Instant::now());
    drop(guests);
    while let Some(raw) = door.accept() {
        drop(raw);
    }
    eventually("nothing is left", SOON, || holdings() == before);
    (fallen, error)
}

/// Doors that do not prove who they are, or give gates that can't be used.
#[test]
fn doors_that_lie_about_themselves() {
    let _alone = alone();
    let _dog = watchdog("doors_that_lie_about_themselves", Duration::from_secs(60));
    let check = |words: &str, answer: u128, gates: u32, file: Option<OwnedFd>| {
        for way in WAYS {
            let file = file.as_ref().map(|file| file.try_clone().unwrap());
            let (fallen, error) = meet(way, &Liar { gates, answer, file, then: &|_, _| {} });
            assert!(fallen.iter().any(|said| said.contains(words)), "`{words}` not in {fallen:?}");
            // It never was up: the op has waited for it.
            assert_eq!(error.unwrap().code, OpErrorCode::Unreachable, "{words}");
        }
    };
    check("somebody else", 23, 8, Some(gates_file(8)));
    check("no gates", 22, 8, None);
    check("not sealed", 22, 8, Some(memory_file(512, SealFlag::empty())));
    check("not sealed", 22, 8, Some(memory_file(512, SealFlag::F_SEAL_GROW)));
    check("shorter", 22, 9, Some(gates_file(8)));
    check("shorter", 22, u32::MAX, Some(gates_file(8)));
    check("gates", 22, 0, Some(gates_file(8)));
    check("gates", 22, 8, Some(memory_file(512, SEALED | SealFlag::F_SEAL_WRITE)));
    check("gates", 22, 8, Some(std::fs::File::open("/dev/null").unwrap().into()));
    check("gates", 22, 8, Some(std::fs::File::open("/proc/self/exe").unwrap().into()));
}

/// Doors that let in, and then lie about the memory.
#[test]
fn doors_that_lie_about_memory() {
    let _alone = alone();
    let _dog = watchdog("doors_that_lie_about_memory", Duration::from_secs(60));
    const LENGTH: u64 = SIZE as u64;
    let all = Access::SHARED.bits();
    type Answer = (u32, u64, u64, u32);
    let check =
        |code: OpErrorCode, way: Way, (gate, begin, length, access): Answer, file: Option<OwnedFd>| {
            let then = |raw: &Raw, message: &SameHost| {
                let SameHost::Enter { request, .. } = *message else { return };
                let fds: Vec<i32> = file.iter().map(AsRawFd::as_raw_fd).collect();
                raw.say(&SameHost::Entered { request, gate, begin, length, access, expires_ns: 0 }, &fds);
            };
            let (fallen, error) =
                meet(way, &Liar { gates: 8, answer: 22, file: Some(gates_file(8)), then: &then });
            assert_eq!(error.map(|error| error.code), Some(code), "{begin} {length} {fallen:?}");
        };
    use OpErrorCode::{AccessDenied, OutOfRange, Protocol, RemoteMemoryFault, Unsupported};
    let good = || Some(memory_file(LENGTH, SEALED));
    let mapping = Way::Mapping;
    check(Unsupported, mapping, (0, 0, LENGTH, all), None);
    check(Unsupported, mapping, (0, 0, LENGTH, all), Some(memory_file(LENGTH, SealFlag::empty())));
    check(Unsupported, mapping, (0, 0, LENGTH, all), Some(memory_file(LENGTH - 1, SEALED)));
    check(Unsupported, mapping, (0, 1, LENGTH, all), good());
    check(Unsupported, mapping, (0, u64::MAX, LENGTH, all), good());
    check(Unsupported, mapping, (0, u64::MAX - LENGTH, LENGTH, all), good());
    check(Unsupported, mapping, (0, 0, u64::MAX, all), good());
    check(Unsupported, mapping, (0, 0, 0, all), good());
    check(Unsupported, mapping, (0, 1 << 63, 4096, all), good());
    // Rights to write, and a file that does not take it.
    check(
        Unsupported,
        mapping,
        (0, 0, LENGTH, all),
        Some(memory_file(LENGTH, SEALED | SealFlag::F_SEAL_WRITE)),
    );
    check(Unsupported, mapping, (0, 0, LENGTH, all), Some(std::fs::File::open("/dev/zero").unwrap().into()));
    check(OutOfRange, mapping, (0, 0, LENGTH - 1, all), good());
    check(AccessDenied, mapping, (0, 0, LENGTH, Access::REMOTE_READ.bits()), good());
    check(AccessDenied, mapping, (0, 0, LENGTH, 0), good());
    check(Protocol, mapping, (8, 0, LENGTH, all), good());
    check(Protocol, mapping, (u32::MAX, 0, LENGTH, all), good());
    // Addresses at which there is nothing, or nothing that may be touched.
    for begin in [0, 4096, u64::MAX, u64::MAX - LENGTH, 1 << 47, u64::MAX << 40] {
        check(RemoteMemoryFault, Way::Kernel, (0, begin, LENGTH, all), None);
    }
    check(OutOfRange, Way::Kernel, (0, 4096, 8, all), None);
    check(Protocol, Way::Kernel, (8, 4096, LENGTH, all), None);
}

/// Doors that let in, and then say what they may not.
#[test]
fn doors_that_say_what_nobody_asked_for() {
    let _alone = alone();
    let _dog = watchdog("doors_that_say_what_nobody_asked_for", Duration::from_secs(60));
    let check = |words: &str, does: &dyn Fn(&Raw, u32)| {
        for way in WAYS {
            let then = |raw: &Raw, message: &SameHost| {
                let SameHost::Enter { request, .. } = *message else { return };
                does(raw, request);
            };
            let file = Some(gates_file(8));
            let (fallen, error) = meet(way, &Liar { gates: 8, answer: 22, file, then: &then });
            assert!(fallen.iter().any(|said| said.contains(words)), "`{words}` not in {fallen:?}");
            assert_eq!(error.unwrap().code, OpErrorCode::LinkBroken, "{words}");
        }
    };
    let say = |raw: &Raw, message: SameHost| raw.say(&message, &[]);
    let lets_in =
        |request: u32| SameHost::Entered { request, gate: 0, begin: 0, length: 1, access: 7, expires_ns: 0 };
    check("an answer to nothing", &|raw, request| say(raw, lets_in(request.wrapping_add(1))));
    check("only this side", &|raw, _| say(raw, SameHost::Left { gate: 0 }));
    check("only this side", &|raw, _| say(raw, enter(1, &RemoteKey([1, 1, 1, 1]))));
    check("only this side", &|raw, _| say(raw, knock(&RawDoor::new().address, Way::Mapping)));
    check("nobody asked", &|raw, _| say(raw, SameHost::Welcome { answer: 22, gates: 8, proof_address: 0 }));
    check("enough of you", &|raw, _| say(raw, SameHost::Farewell { reason: "enough of you".to_string() }));
    check("", &|raw, _| assert!(raw.send(&[0xff; 100], &[]).is_ok()));
    check("cut off", &|raw, _| assert!(raw.send(&[0; 4000], &[]).is_ok()));
    check("descriptor", &|raw, request| {
        let file = memory_file(4096, SEALED);
        raw.say(&lets_in(request), &[file.as_raw_fd(); 2]);
    });
}

/// A door that takes a knock and never answers costs its time and no more; nor does an address at which nobody is.
#[test]
fn doors_that_do_not_answer() {
    let _alone = alone();
    let _dog = watchdog("doors_that_do_not_answer", Duration::from_secs(60));
    for way in WAYS {
        let door = RawDoor::new();
        let config = ShmConfig { answer_timeout: Duration::from_millis(100), ..config() };
        let mut client = Client::new(way, config, &door.address, SIZE, 3);
        let begun = Instant::now();
        let ended = client.carry(OpKind::Read, RemoteKey([1, 1, 1, u64::MAX]), 0, 64);
        assert_eq!(ended.result.unwrap_err().code, OpErrorCode::Unreachable);
        assert!(begun.elapsed() >= Duration::from_millis(250) && begun.elapsed() < Duration::from_secs(2));
        assert!(client.fallen[0].contains("does not answer"), "{:?}", client.fallen);
    }
}
