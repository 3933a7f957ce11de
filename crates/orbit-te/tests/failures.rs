//! Planted panics: in the transport under a worker, in a serving thread, and in code of the application that an engine's thread
//! runs. Transfers end with an error, memory that may still be touched is kept, and nothing hangs.
//!
//! The plant in the transport is a subscriber of its log lines that panics, on whichever thread writes them.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use nix::sys::signal::Signal;
use orbit_te::{Access, Backing, Engine, HostBuffer, MemoryError, TransferError};
use orbit_te_wire::{FrameOp, Status};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::child::Target;
use support::raw::{RawPeer, request};
use support::{SOON, contents, eventually, region, watchdog};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// The words of the log line at which a transport panics next.
static ARMED: Mutex<Option<&'static str>> = Mutex::new(None);
/// The plant is the whole process's, so only one test runs at a time.
static ONE: Mutex<()> = Mutex::new(());

struct Planted;

struct Finds {
    words: &'static str,
    found: bool,
}

impl Visit for Finds {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.found |= field.name() == "message" && format!("{value:?}") == self.words;
    }
}

fn arm(words: &'static str) {
    // The first test that comes sets it; it is the same for all.
    let _ = tracing::subscriber::set_global_default(Planted);
    *ARMED.lock().unwrap() = Some(words);
}

impl Subscriber for Planted {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut armed = ARMED.lock().unwrap();
        let Some(words) = *armed else { return };
        let mut finds = Finds { words, found: false };
        event.record(&mut finds);
        if finds.found {
            *armed = None;
            drop(armed);
            panic!("planted: the transport panics");
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn child_target() {
    support::child::run();
}

/// A worker's transport panics with transfers under way, on the worker's own thread or on that of a caller who waits.
#[test]
fn a_worker_that_panics_keeps_what_its_transfers_held() {
    let _dog = watchdog("a_worker_that_panics", Duration::from_secs(60));
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    const LENGTH: usize = 1 << 16;
    for waits in [false, true] {
        let mut child = Target::start(LENGTH);
        // Over TCP, where the panic is planted.
        let engine = Engine::builder().no_listen().shm(None).start().unwrap();
        let segment = child.open(&engine);
        let memory = region(&engine, &vec![1; LENGTH], Access::LOCAL);
        let idle = region(&engine, &[2; 64], Access::LOCAL);
        segment.write(0, &memory.whole()).unwrap().wait().unwrap();
        child.signal(Signal::SIGSTOP);
        let transfers: Vec<_> = (0..3).map(|_| segment.read(0, &memory.whole()).unwrap()).collect();
        arm("no lane");
        child.kill();
        let failed = |result| matches!(result, Err(TransferError::WorkerFailed(_)));
        if waits {
            assert!(failed(transfers[0].wait()), "{:?}", transfers[0].try_result());
        }
        for transfer in &transfers {
            eventually("it ends", SOON, || transfer.is_done());
            let result = transfer.try_result().unwrap();
            assert!(transfer.requests().iter().all(|request| request.is_over()), "{transfer:?}");
            assert!(failed(result.clone()), "{result:?}");
            assert!(result.unwrap_err().to_string().contains("planted"));
        }
        let kept = engine.retained();
        assert_eq!(kept.len(), 1, "{kept:?}");
        assert_eq!((kept[0].region, kept[0].bytes), (memory.id(), LENGTH as u64));
        assert!(kept[0].leases >= 3 && kept[0].reason.contains("planted"), "{kept:?}");
        assert_eq!(engine.retained_ever(), 1);
        // The engine is of no more use for transfers, says so, and ends.
        let again = segment.write(0, &idle.whole()).map(|transfer| transfer.wait());
        assert!(again.is_err() || matches!(again, Ok(Err(TransferError::WorkerFailed(_)))), "{again:?}");
        engine.retire(&idle, SOON).unwrap();
        let begun = Instant::now();
        let still = engine.retire(&memory, Duration::ZERO);
        let leased = matches!(still, Err(orbit_te::Error::Memory(MemoryError::StillLeased { .. })));
        assert!(leased && engine.retained().len() == 1, "{still:?}");
        assert!(begun.elapsed() < Duration::from_secs(5));
        engine.shutdown();
    }
}

/// Whether the memory was let go whose owner panics.
static EXPLODED: AtomicBool = AtomicBool::new(false);

/// An owner of memory that panics when it is let go.
struct Explosive(#[allow(dead_code)] HostBuffer);

impl Drop for Explosive {
    fn drop(&mut self) {
        EXPLODED.store(true, Ordering::Release);
        panic!("planted: the owner panics");
    }
}

fn explosive(bytes: usize) -> Backing {
    let mut owner = Explosive(HostBuffer::new(bytes).unwrap());
    let base = NonNull::new(owner.0.as_mut_slice().as_mut_ptr()).unwrap();
    // SAFETY: the buffer's mapping is valid until the owner is dropped, and moving the buffer does not move it.
    unsafe { Backing::external(base, bytes, owner) }.unwrap()
}

/// The last handle is a transfer's lease, and letting the memory go runs an owner that panics: the transfer ends as it should.
#[test]
fn an_owner_that_panics_costs_a_worker_nothing() {
    let _dog = watchdog("an_owner_that_panics_costs_a_worker_nothing", Duration::from_secs(60));
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let child = Target::start(4096);
    // Over TCP, where a stopped peer holds a transfer up.
    let engine = Engine::builder().no_listen().shm(None).start().unwrap();
    let segment = child.open(&engine);
    let memory = engine.register(explosive(4096), Access::LOCAL).unwrap();
    segment.write(0, &memory.whole()).unwrap().wait().unwrap();
    child.signal(Signal::SIGSTOP);
    let transfer = segment.write(0, &memory.whole()).unwrap();
    let still = engine.retire(&memory, Duration::ZERO);
    assert!(still.is_err() && engine.retained().len() == 1, "{still:?}");
    drop(memory);
    assert!(!EXPLODED.load(Ordering::Acquire), "memory was let go under a transfer");
    child.signal(Signal::SIGCONT);
    transfer.wait().unwrap();
    assert!(EXPLODED.load(Ordering::Acquire));
    assert!(engine.retained().is_empty());
    let ours = region(&engine, &[3; 64], Access::LOCAL);
    segment.write(0, &ours.whole()).unwrap().wait().unwrap();
}

/// A serving thread panics: it loses its lanes, so nothing lands any more, and serves new ones.
#[test]
fn a_serving_thread_that_panics_serves_on() {
    let _dog = watchdog("a_serving_thread_that_panics_serves_on", Duration::from_secs(60));
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let pair = support::pair(4096);
    let ours = region(&pair.engine, &[3; 64], Access::LOCAL);
    pair.segment.write(0, &ours.whole()).unwrap().wait().unwrap();
    let mut raw = RawPeer::connect(pair.target.address().unwrap(), 5);
    let descriptor = raw.open("pool").unwrap();
    let (lane, mut stalled) = (raw.lane(1), raw.lane(2));
    assert!(stalled.send(&request(FrameOp::Write, &descriptor, 0, 4096), &[7; 2048]));
    eventually("it holds memory", SOON, || pair.remote.leases() == 1);
    arm("a peer's lane ended");
    drop(lane);
    assert!(stalled.is_closed_within(SOON), "a lane outlives its transport");
    eventually("its lease is gone", SOON, || pair.remote.leases() == 0);
    // The plant was in the serving thread; peers make new lanes, in the sessions that stand.
    assert!(ARMED.lock().unwrap().is_none());
    let begun = Instant::now();
    while let Err(error) = pair.segment.write(0, &ours.whole()).unwrap().wait() {
        assert!(begun.elapsed() < SOON, "{error}");
    }
    assert_eq!(raw.lane(3).ask(&request(FrameOp::Read, &descriptor, 0, 64), &[]), Status::Ok);
    assert_eq!(contents(&pair.remote)[..64], [3; 64]);
    pair.target.retire(&pair.remote, SOON).unwrap();
    assert!(pair.target.retained().is_empty());
}
