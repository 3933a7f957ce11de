//! A block that is taken back and used again while peers read and write it at random moments: a read never gets bytes of another use
//! as a success, and a write never lands in a later use. So on every route.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::route::RouteId;
use orbit_te::{
    Access, Backing, Batch, Engine, HostBuffer, OpErrorCode, Region, Segment, Slice, TransferError,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{Random, SOON, watchdog};

/// The first part is read, the second written; both end inside a page.
const READ: u64 = 9000;
const WRITTEN: u64 = 5000;
/// What peers write; no use of the block has it in its pattern.
const FOREIGN: u8 = 0xff;

/// The byte that fills the block in this use.
fn fill(round: u64) -> u8 {
    (round % 255) as u8
}

#[derive(Default)]
struct Counts {
    good: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    fn note(&self, result: &Result<orbit_te::Receipt, TransferError>) {
        match result {
            Ok(_) => self.good.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                let code = error.op_code();
                let expected = [
                    OpErrorCode::UnknownRegion,
                    OpErrorCode::StaleGeneration,
                    OpErrorCode::GrantEnded,
                    // Its lane was closed under it, with a limit of zero.
                    OpErrorCode::LinkBroken,
                    OpErrorCode::LinkBrokenUnfenced,
                ];
                assert!(code.is_some_and(|code| expected.contains(&code)), "{error}");
                self.refused.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
}

/// The block as peers have it now: a segment, and what it is filled with.
type Current = Mutex<(Segment, u8)>;

/// One request by this route, or by whichever is best.
fn carry(
    engine: &Engine,
    route: Option<RouteId>,
    request: impl FnOnce(&mut Batch),
) -> Result<orbit_te::Receipt, TransferError> {
    let mut batch = Batch::with_capacity(1);
    request(&mut batch);
    route.map(|route| batch.route(route));
    let ended = engine.submit(batch).unwrap().wait();
    if let (Some(route), Ok(receipt)) = (route, &ended) {
        assert_eq!(receipt.route, Some(route));
    }
    ended
}

fn read_on(
    engine: &Engine,
    route: Option<RouteId>,
    current: &Current,
    stop: &AtomicBool,
    counts: &Counts,
    seed: u64,
) {
    let local = support::region(engine, &vec![0; READ as usize], Access::LOCAL);
    let mut random = Random(seed);
    let mut bytes = vec![0; READ as usize];
    while !stop.load(Ordering::Acquire) {
        let (segment, want) = current.lock().unwrap().clone();
        let from = random.below(READ);
        let length = 1 + random.below(READ - from);
        local.write_at(0, &vec![FOREIGN; length as usize]).unwrap();
        let slice: Slice = local.slice(0, length).unwrap();
        let result = carry(engine, route, |batch| {
            batch.read(&segment, from, &slice);
        });
        counts.note(&result);
        if result.is_ok() {
            let got = &mut bytes[..length as usize];
            local.read_at(0, got).unwrap();
            assert!(got.iter().all(|byte| *byte == want), "bytes of another use, as a success");
        }
    }
}

fn write_on(engine: &Engine, route: Option<RouteId>, current: &Current, stop: &AtomicBool, counts: &Counts) {
    let local = support::region(engine, &vec![FOREIGN; WRITTEN as usize], Access::LOCAL);
    while !stop.load(Ordering::Acquire) {
        let segment = current.lock().unwrap().0.clone();
        counts.note(&carry(engine, route, |batch| {
            batch.write(&segment, READ, &local.whole());
        }));
    }
}

/// Whichever route is best: mapped memory here.
#[test]
fn a_block_that_is_used_again_gives_and_takes_no_foreign_bytes() {
    used_again(None, 4_000);
}

#[test]
fn a_block_that_is_used_again_over_shm() {
    used_again(Some(RouteId::SHM), 2_000);
}

#[test]
fn a_block_that_is_used_again_over_process_vm() {
    used_again(Some(RouteId::PROCESS_VM), 2_000);
}

#[test]
fn a_block_that_is_used_again_over_tcp() {
    used_again(Some(RouteId::TCP), 4_000);
}

fn used_again(route: Option<RouteId>, rounds: u64) {
    let _dog = watchdog("a_block_that_is_used_again", Duration::from_secs(120));
    let target = Engine::builder().start().unwrap();
    let readers: Vec<Engine> = (0..2).map(|_| Engine::builder().no_listen().start().unwrap()).collect();
    let address = format!("{}/block", target.address().unwrap());
    let backing: Arc<Backing> = Arc::new(HostBuffer::new((READ + WRITTEN) as usize).unwrap().into_backing());
    let register = || target.register(backing.clone(), Access::SHARED).unwrap();
    let use_for = |block: &Region, round| {
        block.write_at(0, &vec![fill(round); (READ + WRITTEN) as usize]).unwrap();
    };
    let open = || readers.iter().map(|engine| engine.open(&address).wait(SOON).unwrap()).collect::<Vec<_>>();
    let mut block = register();
    use_for(&block, 0);
    target.expose("block", &block).unwrap();
    let current: Vec<Current> = open().into_iter().map(|s| Mutex::new((s, fill(0)))).collect();
    let (stop, reads, writes) = (AtomicBool::new(false), Counts::default(), Counts::default());
    std::thread::scope(|scope| {
        for (engine, current) in readers.iter().zip(&current) {
            let (stop, reads, writes) = (&stop, &reads, &writes);
            scope.spawn(move || read_on(engine, route, current, stop, reads, 7));
            scope.spawn(move || write_on(engine, route, current, stop, writes));
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut random = Random(11);
            let mut seen = vec![0; WRITTEN as usize];
            for round in 1..=rounds {
                // Mostly it is waited for; sometimes lanes are closed.
                let limit = if random.below(50) == 0 { Duration::ZERO } else { SOON };
                match random.below(3) {
                    0 => {
                        target.retire(&block, limit).unwrap();
                        block = register();
                        use_for(&block, round);
                        target.expose("block", &block).unwrap();
                    }
                    1 => {
                        target.revoke(&block, limit).unwrap();
                        use_for(&block, round);
                    }
                    _ => {
                        for grant in target.grants() {
                            target.revoke_grant(grant.id, limit).unwrap();
                        }
                        use_for(&block, round);
                    }
                }
                (0..random.below(4)).for_each(|_| std::thread::yield_now());
                block.read_at(READ, &mut seen).unwrap();
                assert!(seen.iter().all(|b| *b == fill(round)), "a write landed in a later use");
                for (current, segment) in current.iter().zip(open()) {
                    *current.lock().unwrap() = (segment, fill(round));
                }
                // Taken back before anybody came, in the midst of the first requests, or after some.
                let good = || reads.good.load(Ordering::Relaxed) + writes.good.load(Ordering::Relaxed);
                let (enough, begun) = (good() + random.below(4), Instant::now());
                while good() < enough && begun.elapsed() < Duration::from_micros(500) {
                    std::thread::yield_now();
                }
            }
        }));
        stop.store(true, Ordering::Release);
        ended.unwrap();
    });
    let of = |counts: &Counts| (counts.good.load(Ordering::Relaxed), counts.refused.load(Ordering::Relaxed));
    let (reads, writes) = (of(&reads), of(&writes));
    println!("{route:?}: {rounds} uses; reads (good, refused) {reads:?}, writes {writes:?}");
    assert!(reads.0 > 100 && reads.1 > 100 && writes.0 > 100 && writes.1 > 100, "the test met nothing");
}
