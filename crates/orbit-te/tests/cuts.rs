//! Connections are cut under transfers, those of the host and those of TCP: a request is tried again on another route only when nothing of the
//! first try can land any more, and at most as often as the policy says. Rule: every byte is compared, and every failure says what was tried.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers
#![allow(unsafe_code)]

mod support;

use nix::sys::socket::{
    AddressFamily, Shutdown, SockType, SockaddrLike, UnixAddr, getpeername, getsockopt, sockopt,
};
use orbit_te::route::{Policy, RouteId};
use orbit_te::{
    Access, Batch, Config, Engine, ErrorClass, OpErrorCode, OpKind, Receipt, Region, Segment, ShmConfig,
    Transfer,
};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use support::proxy::{Others, Proxy};
use support::{Random, SOON, contents, eventually, pattern_bytes, region, watchdog};

const SHM: RouteId = RouteId::SHM;
const TCP: RouteId = RouteId::TCP;

/// The connections of the whole process are cut, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shuts down all same-host connections of this process, which has both ends of each; how many ends.
fn cut_same_host() -> usize {
    let mut cut = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok) {
        let fd: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: borrowed for this look alone. It may be closed by now, or be another's: then it is no such socket, or one whose end by
        // accident the engine must bear as well.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let packets = getsockopt(&borrowed, sockopt::SockType) == Ok(SockType::SeqPacket);
        let met = || getpeername::<UnixAddr>(fd).is_ok_and(|at| at.family() == Some(AddressFamily::Unix));
        if packets && met() {
            cut += usize::from(nix::sys::socket::shutdown(fd, Shutdown::Both).is_ok());
        }
    }
    cut
}

/// A target, a middle-man on the way to it, and an engine that has opened its memory.
struct Met {
    engine: Engine,
    segment: Segment,
    /// The same memory under a name for which a rule may leave out TCP.
    here: Segment,
    remote: Region,
    proxy: Proxy,
    _target: Engine,
}

fn meet(length: usize, pause: Duration, policy: &str) -> Met {
    let target = Engine::builder().start().unwrap();
    let remote = region(&target, &vec![0; length], Access::SHARED);
    target.expose("pool", &remote).unwrap();
    target.expose("here", &remote).unwrap();
    let proxy = Proxy::start(target.address().unwrap(), usize::MAX, Others::Held);
    let shm = ShmConfig { reconnect_pause: (pause, pause), ..ShmConfig::default() };
    let policy = Arc::new(Policy::parse(policy).unwrap());
    let mut config = Config { listen: None, shm: Some(shm), policy, ..Config::default() };
    config.tcp.reconnect_pause = (Duration::from_millis(5), Duration::from_millis(20));
    let engine = Engine::builder().config(config).start().unwrap();
    let open = |name| engine.open(&format!("{}/{name}", proxy.at)).wait(SOON).unwrap();
    let (segment, here): (Segment, Segment) = (open("pool"), open("here"));
    assert!(segment.same_host());
    segment.warm(SOON).wait().unwrap();
    Met { engine, segment, here, remote, proxy, _target: target }
}

impl Met {
    fn can(&self, route: RouteId) -> bool {
        self.segment.explain(OpKind::Write, 1000, Some(route)).wait(SOON).unwrap().route.is_ok()
    }
}

/// What is in flight: requests of one batch, each at its own place.
struct Under {
    transfer: Transfer,
    kind: OpKind,
    local: Region,
    at: u64,
    seed: u64,
}

const PIECE: u64 = 128 << 10;
const PIECES: u64 = 16;
const BATCH: u64 = PIECE * PIECES;

/// The bytes of a batch: cut out of a pattern that is made once.
fn bytes_of(seed: u64) -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| pattern_bytes(1, 0, 2 * BATCH as usize));
    let from = seed.wrapping_mul(4_099) % BATCH;
    &pattern[from as usize..(from + BATCH) as usize]
}

fn submit(met: &Met, segment: &Segment, kind: OpKind, at: u64, seed: u64) -> Under {
    let bytes = bytes_of(seed);
    let local = region(&met.engine, &vec![0; BATCH as usize], Access::LOCAL);
    let mut batch = Batch::new();
    for piece in 0..PIECES {
        let slice = local.slice(piece * PIECE, PIECE).unwrap();
        match kind {
            OpKind::Write => batch.write(segment, at + piece * PIECE, &slice),
            OpKind::Read => batch.read(segment, at + piece * PIECE, &slice),
        };
    }
    match kind {
        OpKind::Write => local.write_at(0, bytes).unwrap(),
        OpKind::Read => met.remote.write_at(at, bytes).unwrap(),
    }
    batch.deadline(Duration::from_secs(20));
    let transfer = met.engine.submit(batch).unwrap();
    Under { transfer, kind, local, at, seed }
}

/// The end of one: complete and right, or failed with its causes; tries are counted.
fn end(met: &Met, under: &Under, most: usize) -> Receipt {
    let _ = under.transfer.wait();
    let receipt = under.transfer.receipt().expect("it has ended");
    for request in 0..PIECES as usize {
        let tries = receipt.attempts.iter().filter(|attempt| attempt.request == request).count();
        assert!(tries < most, "request {request} was tried {} times, and may be {most} times", tries + 1);
    }
    assert_eq!(receipt.retries as usize, receipt.attempts.len());
    assert!(receipt.attempts.iter().all(|attempt| attempt.error.code.class() == ErrorClass::Link));
    match &receipt.error {
        None => {
            let bytes = bytes_of(under.seed);
            let mut there = vec![0; BATCH as usize];
            met.remote.read_at(under.at, &mut there).unwrap();
            assert!(contents(&under.local) == bytes && there == bytes, "{:?}: wrong bytes", under.kind);
        }
        Some(error) => {
            let code = error.op_error().unwrap_or_else(|| panic!("{error:?}")).code;
            // Or both routes that it may take were down when it came.
            assert!(code.class() == ErrorClass::Link || code == OpErrorCode::NoRoute, "{error}");
        }
    }
    assert_eq!(under.local.leases(), 0);
    receipt
}

/// Connections of the host are cut every few milliseconds, and lanes now and then, under many large requests both ways.
#[test]
fn connections_are_cut_again_and_again() {
    let _alone = alone();
    let _dog = watchdog("connections_are_cut_again_and_again", Duration::from_secs(120));
    const SLOTS: u64 = 8;
    let check = |attempts: usize, lanes_too: bool| {
        // TCP may turn out to be the fastest while the others are cut all the time; half of the requests may not take it.
        let rule = "[[rule]]\nname = \"here\"\nsegment = \"here\"\nroutes = [\"shm\", \"process_vm\"]\n";
        let policy = format!("attempts = {attempts}\nrest_ms = 1\nmax_rest_ms = 2\n{rule}");
        let met = meet((SLOTS * BATCH) as usize, Duration::from_millis(2), &policy);
        let stop = AtomicBool::new(false);
        let (mut good, mut failed, mut tried_again, mut by) = (0, 0, 0, [0u64; 8]);
        let cuts = std::thread::scope(|scope| {
            let cutting = scope.spawn(|| {
                let (mut random, mut cuts) = (Random(7), 0);
                while !stop.load(Ordering::Acquire) {
                    cuts += cut_same_host();
                    std::thread::sleep(Duration::from_micros(1000 + random.below(8000)));
                    if lanes_too && random.below(6) == 0 {
                        met.proxy.cut_lanes(true);
                    }
                }
                cuts
            });
            let until = Instant::now() + Duration::from_millis(1500);
            let mut round = 0;
            while Instant::now() < until {
                round += 1;
                let segment = |slot| if slot % 4 < 2 { &met.segment } else { &met.here };
                let kind = |slot| if slot % 2 == 0 { OpKind::Write } else { OpKind::Read };
                let all: Vec<_> = (0..SLOTS)
                    .map(|slot| submit(&met, segment(slot), kind(slot), slot * BATCH, round * 100 + slot))
                    .collect();
                for under in &all {
                    let receipt = end(&met, under, attempts);
                    match receipt.error {
                        None => good += 1,
                        Some(_) => failed += 1,
                    }
                    tried_again += receipt.attempts.len();
                    receipt.routes.iter().for_each(|(route, bytes)| by[route.index()] += bytes);
                }
                let unfenced =
                    |under: &Under| under.transfer.receipt().is_some_and(|receipt| !receipt.fenced);
                if all.iter().any(unfenced) {
                    // What may still land must not be taken for the next round's.
                    std::thread::sleep(Duration::from_millis(300));
                }
            }
            stop.store(true, Ordering::Release);
            cutting.join().unwrap()
        });
        println!(
            "{attempts} attempts, lanes too: {lanes_too}: {cuts} ends cut; batches good {good}, failed {failed}; {tried_again} \
             requests tried again; MiB by shm {}, process_vm {}, tcp {}",
            by[0] >> 20,
            by[1] >> 20,
            by[2] >> 20
        );
        assert!(cuts > 20 && good > 0);
        assert!(attempts == 1 || tried_again > 0, "nothing was met");
        assert!(attempts > 1 || tried_again == 0);
        // It is well again by itself.
        eventually("the routes are back", SOON, || met.can(SHM));
        let mut after = Vec::new();
        eventually("a transfer succeeds", SOON, || {
            after.push(submit(&met, &met.segment, OpKind::Write, 0, 5));
            end(&met, after.last().unwrap(), attempts).error.is_none()
        });
    };
    check(3, false);
    check(3, true);
    check(1, false);
}

/// The frames of a write are held back on their lane; the lane is cut at this side, and the write is made by another route. When the frames come
/// at last, the memory is its owner's: nothing lands.
#[test]
fn frames_that_come_late() {
    let _alone = alone();
    let _dog = watchdog("frames_that_come_late", Duration::from_secs(60));
    const SIZE: usize = 1 << 20;
    for round in 0..4 {
        let met = meet(SIZE, Duration::from_millis(150), "");
        eventually("shm is cut", SOON, || {
            cut_same_host();
            !met.can(SHM) && !met.can(RouteId::PROCESS_VM)
        });
        met.proxy.hold(true);
        let bytes = pattern_bytes(round, 0, SIZE);
        let local = region(&met.engine, &bytes, Access::LOCAL);
        let mut batch = Batch::new();
        // One piece a lane, and some over.
        for piece in 0..16 {
            let (at, length) = (piece * SIZE as u64 / 16, SIZE as u64 / 16);
            batch.write(&met.segment, at, &local.slice(at, length).unwrap());
        }
        batch.deadline(Duration::from_secs(15));
        let transfer = met.engine.submit(batch).unwrap();
        eventually("shm is back", SOON, || met.can(SHM));
        assert!(!transfer.is_done() && contents(&met.remote) == vec![0; SIZE], "nothing has arrived");
        met.proxy.cut_lanes(false);
        let receipt = transfer.wait().unwrap();
        assert_eq!(receipt.attempts.len(), 16, "{:?}", receipt.attempts);
        assert!(receipt.attempts.iter().all(|attempt| attempt.route == TCP));
        assert!(
            receipt.routes.iter().all(|(route, bytes)| route != TCP || bytes == 0),
            "{:?}",
            receipt.routes
        );
        assert!(contents(&met.remote) == bytes, "wrong bytes");
        // The owner's again, as far as he was told.
        met.remote.write_at(0, &vec![0x77; SIZE]).unwrap();
        met.proxy.hold(false);
        std::thread::sleep(Duration::from_millis(150));
        assert!(contents(&met.remote).iter().all(|byte| *byte == 0x77), "a write landed twice");
    }
}

/// A demanded route is not left when it fails: the request ends with that, or when the route is back, and its receipt says what was tried.
#[test]
fn a_demanded_route_that_is_cut() {
    let _alone = alone();
    let _dog = watchdog("a_demanded_route_that_is_cut", Duration::from_secs(60));
    let met = meet(BATCH as usize, Duration::from_millis(500), "attempts = 3\n");
    let local = region(&met.engine, &pattern_bytes(3, 0, BATCH as usize), Access::LOCAL);
    let write = || {
        let mut batch = Batch::new();
        batch.write(&met.segment, 0, &local.whole()).route(SHM);
        met.engine.submit(batch).unwrap()
    };
    assert_eq!(write().wait().unwrap().route, Some(SHM));
    eventually("shm is cut", SOON, || {
        cut_same_host();
        !met.can(SHM)
    });
    let begun = Instant::now();
    let error = write().wait().unwrap_err();
    assert_eq!(error.op_code(), Some(OpErrorCode::NoRoute), "{error}");
    assert!(error.to_string().contains("shm") && error.to_string().contains("down"), "{error}");
    assert!(begun.elapsed() < Duration::from_millis(300));
    // Others go on meanwhile.
    let receipt = met.segment.write_and_wait(0, &local.whole()).unwrap().unwrap();
    assert_ne!(receipt.route, Some(SHM));
    eventually("shm is back", SOON, || write().wait().is_ok());
}
