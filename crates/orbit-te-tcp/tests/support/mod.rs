//! What the tests with real sockets share: a watchdog, a target that serves regions on two threads as an engine would, and a peer
//! that is written by hand.

#![allow(dead_code, unreachable_pub)] // each test binary uses a part of it
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

pub mod initiator;
pub mod peer;
pub mod proxy;
pub mod target;

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
