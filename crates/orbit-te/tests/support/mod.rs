//! What the engine's tests share: a watchdog, a pair of engines, patterns, a target in a child process, and a
//! peer that is written by hand.

#![allow(dead_code, unreachable_pub)] // each test binary uses a part of it
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

pub mod child;
pub mod namespace;
pub mod proxy;
pub mod raw;

use orbit_te::route::{Reason, RouteId};
use orbit_te::{Access, Config, Engine, HostBuffer, OpKind, Receipt, Region, Segment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Ends the process with a report when a test takes longer than it may. Dropping it calls it off.
pub struct Watchdog(Arc<AtomicBool>);

pub fn watchdog(test: &'static str, limit: Duration) -> Watchdog {
    let done = Arc::new(AtomicBool::new(false));
    let called_off = done.clone();
    std::thread::spawn(move || {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if called_off.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("watchdog: `{test}` hangs: not done after {limit:?}");
        std::process::exit(101);
    });
    Watchdog(done)
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Looks until something holds, at most for this long.
pub fn eventually(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < until, "not after {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Byte `at` of the pattern number `seed`.
pub fn pattern(seed: u64, at: u64) -> u8 {
    (at ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd).to_le_bytes()[7]
}

/// Bytes `from..from + length` of the pattern number `seed`.
pub fn pattern_bytes(seed: u64, from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64).map(|at| pattern(seed, at)).collect()
}

/// Says aloud that something can't be had here, and counts it where the test command looks.
pub fn skipped(what: &str) {
    println!("skipped: {what}");
    if let Some(file) = std::env::var_os("ORBIT_TE_SKIP_FILE") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        writeln!(file.unwrap(), "skipped: {what}").unwrap();
    }
}

pub const SOON: Duration = Duration::from_secs(20);

/// A region with these bytes.
pub fn region(engine: &Engine, bytes: &[u8], access: Access) -> Region {
    let mut buffer = HostBuffer::new(bytes.len()).unwrap();
    buffer.as_mut_slice().copy_from_slice(bytes);
    engine.register(buffer.into_backing(), access).unwrap()
}

/// All bytes of a region.
pub fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Moves all bytes of a segment both ways, compares them, and says over which route they went, and why not by mapped memory and by the
/// kernel's copies.
pub fn report(engine: &Engine, segment: &Segment) -> String {
    let bytes = pattern_bytes(segment.len(), 0, segment.len() as usize);
    let there = region(engine, &bytes, Access::LOCAL);
    let back = region(engine, &vec![0; bytes.len()], Access::LOCAL);
    let plan = segment.explain(OpKind::Read, segment.len(), None).wait(SOON).unwrap();
    let why = |route| plan.others.of(route).map_or("taken", Reason::name);
    let why = (why(RouteId::SHM), why(RouteId::PROCESS_VM));
    let wrote = segment.write_and_wait(0, &there.whole()).unwrap().unwrap();
    let read = segment.read_and_wait(0, &back.whole()).unwrap().unwrap();
    assert!(contents(&back) == bytes, "wrong bytes");
    assert_eq!(wrote.attempts.len() + read.attempts.len(), 0);
    let route = |receipt: &Receipt| receipt.route.unwrap().name();
    let (wrote, read) = (route(&wrote), route(&read));
    format!("{} {wrote} {read}, shm {}, process_vm {}", segment.name(), why.0, why.1)
}

/// An engine that exposes a region as `pool`, and one that has opened it.
pub struct Pair {
    pub segment: Segment,
    pub engine: Engine,
    pub remote: Region,
    pub target: Engine,
}

pub fn pair(length: usize) -> Pair {
    pair_with(length, Config::default())
}

pub fn pair_with(length: usize, config: Config) -> Pair {
    pair_of(length, Engine::builder().start().unwrap(), config)
}

/// The same with this target; the settings are the other's.
pub fn pair_of(length: usize, target: Engine, config: Config) -> Pair {
    let remote = region(&target, &vec![0; length], Access::SHARED);
    target.expose("pool", &remote).unwrap();
    let engine = Engine::builder().config(Config { listen: None, ..config }).start().unwrap();
    let segment = engine.open(&format!("{}/pool", target.address().unwrap())).wait(SOON).unwrap();
    Pair { segment, engine, remote, target }
}

/// Small random numbers, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
