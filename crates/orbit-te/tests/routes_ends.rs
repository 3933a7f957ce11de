//! How memory is taken back, and transfers are given up, on the routes of one host: as over TCP, nothing lands afterwards. Rule: every
//! row is run by each route.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::route::RouteId;
use orbit_te::{
    Access, Backing, Batch, Config, Engine, Error, ExposeOptions, HostBuffer, MemoryError, OpErrorCode,
    OpKind, Region, Segment, TransferError,
};
use std::time::{Duration, Instant};
use support::{SOON, contents, eventually, region, watchdog};

const SIZE: usize = 8 << 20;
const ROUTES: [RouteId; 3] = [RouteId::SHM, RouteId::PROCESS_VM, RouteId::TCP];
const KINDS: [OpKind; 2] = [OpKind::Write, OpKind::Read];

struct Met {
    route: RouteId,
    target: Engine,
    engine: Engine,
}

impl Met {
    fn new(route: RouteId) -> Met {
        let engine = Engine::builder().config(Config { listen: None, ..Config::default() }).start().unwrap();
        Met { route, target: Engine::builder().start().unwrap(), engine }
    }

    fn open(&self, name: &str) -> Segment {
        self.engine.open(&format!("{}/{name}", self.target.address().unwrap())).wait(SOON).unwrap()
    }

    fn batch(&self, segment: &Segment, kind: OpKind, local: &Region, times: usize) -> Batch {
        let mut batch = Batch::new();
        for _ in 0..times {
            match kind {
                OpKind::Write => batch.write(segment, 0, &local.whole()),
                OpKind::Read => batch.read(segment, 0, &local.whole()),
            };
        }
        batch.route(self.route);
        batch
    }

    fn carry(&self, segment: &Segment, kind: OpKind, local: &Region) -> Result<(), OpErrorCode> {
        let ended = self.engine.submit(self.batch(segment, kind, local, 1)).unwrap().wait();
        ended.map(drop).map_err(|error| error.op_code().unwrap_or_else(|| panic!("{error:?}")))
    }
}

/// How an owner ends the right of those who use it.
#[derive(Clone, Copy, Debug)]
enum End {
    Retire,
    Revoke,
    RevokeGrant,
}

/// Many large requests are under way both ways when the memory is taken back. The call returns when nobody touches it any more, later requests
/// are refused with the right word, and what the owner writes then stays.
#[test]
fn nothing_lands_after_memory_was_taken_back() {
    let _dog = watchdog("nothing_lands_after_memory_was_taken_back", Duration::from_secs(60));
    let check = |route: RouteId, how: End, refused: OpErrorCode| {
        let met = Met::new(route);
        let remote = region(&met.target, &vec![1; SIZE], Access::SHARED);
        met.target.expose("pool", &remote).unwrap();
        let segment = met.open("pool");
        let local = region(&met.engine, &vec![2; SIZE], Access::LOCAL);
        let sink = region(&met.engine, &vec![3; SIZE], Access::LOCAL);
        met.carry(&segment, OpKind::Read, &sink).unwrap();
        let writes = met.engine.submit(met.batch(&segment, OpKind::Write, &local, 100)).unwrap();
        let reads = met.engine.submit(met.batch(&segment, OpKind::Read, &sink, 100)).unwrap();
        std::thread::sleep(Duration::from_millis(4));
        let begun = Instant::now();
        match how {
            End::Retire => met.target.retire(&remote, SOON).unwrap(),
            End::Revoke => met.target.revoke(&remote, SOON).unwrap(),
            End::RevokeGrant => {
                let of_peer = |g: &&orbit_te::GrantInfo| g.peer == Some(met.engine.peer_id());
                let grant = met.target.grants().iter().find(of_peer).unwrap().id;
                met.target.revoke_grant(grant, SOON).unwrap();
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{route} {how:?}: {:?}", begun.elapsed());
        if !matches!(how, End::Retire) {
            remote.write_at(0, &vec![9; SIZE]).unwrap();
        }
        for transfer in [writes, reads] {
            match transfer.wait() {
                Ok(_) => {}
                Err(error) => assert_eq!(error.op_code(), Some(refused), "{route} {how:?}: {error}"),
            }
        }
        for kind in KINDS {
            assert_eq!(met.carry(&segment, kind, &local), Err(refused), "{route} {how:?}");
        }
        if !matches!(how, End::Retire) {
            assert!(contents(&remote).iter().all(|byte| *byte == 9), "{route} {how:?}: bytes landed");
            // Opened again it serves.
            let again = met.open("pool");
            met.carry(&again, OpKind::Write, &local).unwrap();
            assert!(contents(&remote).iter().all(|byte| *byte == 2));
            met.target.retire(&remote, SOON).unwrap();
        }
        assert_eq!((local.leases(), sink.leases(), remote.leases()), (0, 0, 0));
    };
    for route in ROUTES {
        check(route, End::Retire, OpErrorCode::UnknownRegion);
        check(route, End::Revoke, OpErrorCode::StaleGeneration);
        check(route, End::RevokeGrant, OpErrorCode::GrantEnded);
    }
}

/// A retired buffer is used again at once, under another name: late bytes would be seen in it.
#[test]
fn a_buffer_that_was_retired_is_its_owners() {
    let _dog = watchdog("a_buffer_that_was_retired_is_its_owners", Duration::from_secs(60));
    for route in ROUTES {
        let met = Met::new(route);
        let backing = std::sync::Arc::new(HostBuffer::new(SIZE).unwrap().into_backing());
        for round in 0..6u8 {
            let remote = met.target.register(backing.clone(), Access::SHARED).unwrap();
            let name = format!("pool-{round}");
            met.target.expose(&name, &remote).unwrap();
            let segment = met.open(&name);
            let local = region(&met.engine, &vec![0xee; SIZE], Access::LOCAL);
            met.carry(&segment, OpKind::Write, &local).unwrap();
            let writes = met.engine.submit(met.batch(&segment, OpKind::Write, &local, 50)).unwrap();
            std::thread::sleep(Duration::from_micros(u64::from(round) * 700));
            met.target.retire(&remote, SOON).unwrap();
            let next = met.target.register(backing.clone(), Access::SHARED).unwrap();
            next.write_at(0, &vec![round; SIZE]).unwrap();
            let _ = writes.wait();
            assert!(contents(&next).iter().all(|byte| *byte == round), "{route}: bytes landed");
            met.target.retire(&next, SOON).unwrap();
        }
    }
}

/// A grant with an end is refused after it, also where it was entered before; opening again renews it.
#[test]
fn a_grant_that_expires() {
    let _dog = watchdog("a_grant_that_expires", Duration::from_secs(60));
    for route in ROUTES {
        let met = Met::new(route);
        let remote = region(&met.target, &[1; 4096], Access::SHARED);
        let live = Duration::from_millis(150);
        let options = ExposeOptions { time_to_live: Some(live), ..ExposeOptions::default() };
        met.target.expose_with("brief", &remote, options).unwrap();
        let opened = Instant::now();
        let segment = met.open("brief");
        let local = region(&met.engine, &[2; 4096], Access::LOCAL);
        let mut good = 0;
        let ended = loop {
            let begun = Instant::now();
            match met.carry(&segment, OpKind::Write, &local) {
                Ok(()) => {
                    good += 1;
                    // A little more than what is said, since it counts from the answer on.
                    assert!(begun < opened + live + Duration::from_millis(100), "{route}: it goes on");
                }
                Err(code) => break code,
            }
        };
        assert_eq!(ended, OpErrorCode::GrantEnded, "{route}");
        assert!(good > 3 && opened.elapsed() >= live, "{route}: {good}");
        remote.write_at(0, &[7; 4096]).unwrap();
        assert_eq!(met.carry(&segment, OpKind::Write, &local), Err(OpErrorCode::GrantEnded));
        assert_eq!(contents(&remote), [7; 4096]);
        met.carry(&met.open("brief"), OpKind::Write, &local).unwrap();
        met.target.retire(&remote, SOON).unwrap();
    }
}

/// Rights are the grant's, on every route.
#[test]
fn a_right_to_read_is_no_right_to_write() {
    let _dog = watchdog("a_right_to_read_is_no_right_to_write", Duration::from_secs(60));
    for route in ROUTES {
        let met = Met::new(route);
        let remote = region(&met.target, &[1; 4096], Access::SHARED);
        let options = ExposeOptions { access: Some(Access::REMOTE_READ), ..ExposeOptions::default() };
        met.target.expose_with("read", &remote, options).unwrap();
        let segment = met.open("read");
        let local = region(&met.engine, &[2; 4096], Access::LOCAL);
        met.carry(&segment, OpKind::Read, &local).unwrap();
        assert_eq!(contents(&local), [1; 4096]);
        let mut batch = Batch::new();
        batch.write(&segment, 0, &local.whole()).route(route);
        assert!(matches!(met.engine.submit(batch), Err(Error::BadRequest { .. })));
    }
}

/// A large transfer that is cancelled, or whose time is over, lets go of the memory of both sides at once: this side may use its own for
/// something else, and the other may take its own back.
#[test]
fn a_transfer_that_is_given_up_lets_memory_go() {
    let _dog = watchdog("a_transfer_that_is_given_up_lets_memory_go", Duration::from_secs(60));
    let check = |route: RouteId, kind: OpKind, by_deadline: bool| {
        let met = Met::new(route);
        let remote = region(&met.target, &vec![1; SIZE], Access::SHARED);
        met.target.expose("pool", &remote).unwrap();
        let segment = met.open("pool");
        let local = region(&met.engine, &vec![1; SIZE], Access::LOCAL);
        met.carry(&segment, kind, &local).unwrap();
        let mut batch = met.batch(&segment, kind, &local, 400);
        if by_deadline {
            batch.deadline(Duration::from_millis(10));
        }
        let transfer = met.engine.submit(batch).unwrap();
        std::thread::sleep(Duration::from_millis(8));
        if !by_deadline {
            transfer.cancel();
        }
        let begun = Instant::now();
        let error = transfer.wait().unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(3), "{route} {kind:?}: {:?}", begun.elapsed());
        let fenced = match error {
            TransferError::Cancelled { fenced, .. } => fenced && !by_deadline,
            TransferError::Deadline { fenced, .. } => fenced && by_deadline,
            _ => false,
        };
        assert!(fenced, "{route} {kind:?}: {error:?}");
        assert_eq!(local.leases(), 0);
        local.write_at(0, &vec![5; SIZE]).unwrap();
        remote.write_at(0, &vec![6; SIZE]).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        assert!(contents(&local).iter().all(|byte| *byte == 5), "{route} {kind:?}: bytes came in late");
        assert!(contents(&remote).iter().all(|byte| *byte == 6), "{route} {kind:?}: bytes landed late");
        met.carry(&segment, kind, &local).unwrap();
        met.target.retire(&remote, SOON).unwrap();
    };
    for route in ROUTES {
        for kind in KINDS {
            check(route, kind, false);
            check(route, kind, true);
        }
    }
}

/// An engine that ends has nobody left inside of its memory, and its peers hear why.
#[test]
fn an_owner_that_shuts_down() {
    let _dog = watchdog("an_owner_that_shuts_down", Duration::from_secs(60));
    for route in ROUTES {
        let met = Met::new(route);
        let remote = region(&met.target, &vec![1; SIZE], Access::SHARED);
        met.target.expose("pool", &remote).unwrap();
        let segment = met.open("pool");
        let local = region(&met.engine, &vec![1; SIZE], Access::LOCAL);
        met.carry(&segment, OpKind::Write, &local).unwrap();
        let transfer = met.engine.submit(met.batch(&segment, OpKind::Write, &local, 200)).unwrap();
        met.target.shutdown();
        assert_eq!(remote.leases(), 0, "{route}");
        remote.write_at(0, &vec![6; SIZE]).unwrap();
        let begun = Instant::now();
        assert!(transfer.wait().is_err());
        assert!(begun.elapsed() < Duration::from_secs(3), "{route}");
        assert!(contents(&remote).iter().all(|byte| *byte == 6), "{route}: bytes landed");
        eventually("the peer is gone", SOON, || {
            matches!(
                met.engine.submit(met.batch(&segment, OpKind::Read, &local, 1)),
                Err(Error::PeerGone { .. })
            )
        });
    }
}

/// Memory of ours that vanishes under a transfer is an error of that transfer, and says so. (Over TCP a write ends with its lane.)
#[test]
fn memory_of_ours_that_has_vanished() {
    let _dog = watchdog("memory_of_ours_that_has_vanished", Duration::from_secs(60));
    use nix::sys::mman::{MapFlags, ProtFlags, mmap};
    for route in [RouteId::SHM, RouteId::PROCESS_VM] {
        let met = Met::new(route);
        let remote = region(&met.target, &[1; 8192], Access::SHARED);
        met.target.expose("pool", &remote).unwrap();
        let segment = met.open("pool");
        let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
        let file = nix::sys::memfd::memfd_create("vanishes", flags).unwrap();
        nix::unistd::ftruncate(&file, 8192).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory; it stays until the process ends.
        let base = unsafe {
            let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            mmap(None, 8192.try_into().unwrap(), rights, MapFlags::MAP_SHARED, &file, 0).unwrap()
        };
        // SAFETY: the mapping is valid for its length and stays; that its pages may go is what is said of it next.
        let backing = unsafe { Backing::external(base.cast::<u8>(), 8192, ()) }.unwrap().that_may_vanish();
        let local = met.engine.register(backing, Access::LOCAL).unwrap();
        for kind in KINDS {
            met.carry(&segment, kind, &local).unwrap();
        }
        nix::unistd::ftruncate(&file, 4096).unwrap();
        for kind in KINDS {
            let code = met.carry(&segment, kind, &local).unwrap_err();
            assert_eq!(code, OpErrorCode::LocalMemoryFault, "{route} {kind:?}");
        }
        let whole = region(&met.engine, &[4; 8192], Access::LOCAL);
        met.carry(&segment, OpKind::Write, &whole).unwrap();
        assert!(!matches!(
            met.target.retire(&remote, SOON),
            Err(Error::Memory(MemoryError::StillLeased { .. }))
        ));
    }
}
