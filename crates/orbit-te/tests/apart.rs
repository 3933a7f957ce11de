//! Two processes of one host in different network and PID namespaces, as containers are: what they share decides which routes there are, and
//! what there is not has its reason. Rule: bytes are compared in each case.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{Access, Backing, Config, Engine, HostBuffer, ShmConfig, SocketFolder};
use std::path::PathBuf;
use std::time::Duration;
use support::child::{self, Target};
use support::{report, skipped, watchdog};

const SIZE: usize = 1 << 20;

/// Not a test of this process: the other end.
#[test]
fn child_target() {
    child::run();
}

/// A folder that both sides see; gone when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("orbit-te-apart-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Owned memory of a process in other namespaces is mapped, when the two share a folder; and so it is from the outside as well.
#[test]
fn an_owner_apart_that_shares_a_folder() {
    let _dog = watchdog("an_owner_apart_that_shares_a_folder", Duration::from_secs(60));
    let folder = Folder::new("owner");
    let (target, _cable) = match Target::start_apart(SIZE, Some(&folder.0)) {
        Ok(apart) => apart,
        Err(why) => return skipped(&format!("an_owner_apart_that_shares_a_folder: no namespaces: {why}")),
    };
    let engine = Engine::builder().no_listen().start().unwrap();
    let pool = target.open(&engine);
    assert!(pool.same_host());
    let said = report(&engine, &pool);
    assert!(said.starts_with("pool shm shm, shm taken"), "{said}");
    // Who looks from the outside sees the processes inside, if the kernel lets him copy.
    let said = report(&engine, &target.open_other(&pool, &engine, "own"));
    assert!(
        said.starts_with("own process_vm process_vm, shm memory-not-shared") || said.contains("kernel"),
        "{said}"
    );
}

/// Without a common folder nobody is met: everything goes over TCP, and says that the peer is taken for one of another host.
#[test]
fn an_owner_apart_that_shares_nothing() {
    let _dog = watchdog("an_owner_apart_that_shares_nothing", Duration::from_secs(60));
    let (target, _cable) = match Target::start_apart(SIZE, None) {
        Ok(apart) => apart,
        Err(why) => return skipped(&format!("an_owner_apart_that_shares_nothing: no namespaces: {why}")),
    };
    let engine = Engine::builder().no_listen().start().unwrap();
    let pool = target.open(&engine);
    assert!(!pool.same_host());
    assert_eq!(report(&engine, &pool), "pool tcp tcp, shm other-host, process_vm other-host");
    let own = target.open_other(&pool, &engine, "own");
    assert_eq!(report(&engine, &own), "own tcp tcp, shm memory-not-shared, process_vm other-host");
}

/// Who looks from the inside of a PID namespace can't name the processes outside: what is not mapped goes over TCP.
#[test]
fn an_importer_apart() {
    let _dog = watchdog("an_importer_apart", Duration::from_secs(60));
    let check = |folder: SocketFolder, pool: &str, own: &str| {
        let shm = Some(ShmConfig { folder, ..ShmConfig::default() });
        let listen = Some("0.0.0.0:0".parse().unwrap());
        let config = Config { listen, trust_network: true, shm, ..Config::default() };
        let engine = Engine::builder().config(config).start().unwrap();
        let memory = engine.register(HostBuffer::new(SIZE).unwrap().into_backing(), Access::SHARED).unwrap();
        engine.expose("pool", &memory).unwrap();
        let memory = engine.register(Backing::from_vec(vec![0; SIZE]).unwrap(), Access::SHARED).unwrap();
        engine.expose("own", &memory).unwrap();
        match Target::opener_apart(engine.address().unwrap().port()) {
            Ok(said) => assert_eq!(said, format!("{pool}; {own}")),
            Err(why) => skipped(&format!("an_importer_apart: no namespaces: {why}")),
        }
    };
    let folder = Folder::new("importer");
    check(
        SocketFolder::At(folder.0.clone()),
        "pool shm shm, shm taken, process_vm other-namespace",
        "own tcp tcp, shm memory-not-shared, process_vm other-namespace",
    );
    check(
        SocketFolder::None,
        "pool tcp tcp, shm other-host, process_vm other-host",
        "own tcp tcp, shm memory-not-shared, process_vm other-host",
    );
}
