//! Traffic while something is broken: each transfer ends by its deadline, what fails names its cause, what is told to be complete is right, RDMA
//! comes back when all is mended, and then there is nothing that was not there before.

use crate::bytes::Bytes;
use crate::resources::resources;
use crate::settings::Settings;
use crate::support::Random;
use orbit_te::route::RouteId;
use orbit_te::{Access, Batch, Engine, HostBuffer, Landed, Region, Segment, Transfer};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Transfers at once.
const WINDOW: usize = 16;
const BLOCK: usize = 1 << 16;
/// Blocks of the pool that are used.
const BLOCKS: usize = 64;
const DEADLINE: Duration = Duration::from_secs(4);
/// A transfer may end so long after its deadline, in a guest that is short of processors.
const GRACE: Duration = Duration::from_secs(1);
/// So many by RDMA without a retry, and it is there; where it is demanded, in a row.
const THERE: usize = 32;
/// RDMA has to be back in this time.
const BACK: Duration = Duration::from_secs(20);

/// A transfer under way.
struct UnderWay {
    transfer: Transfer,
    block: usize,
    /// What it writes; none: it reads.
    seed: Option<u64>,
    /// Of which life of the owner it was.
    life: u32,
}

struct Traffic<'a> {
    settings: &'a Settings,
    engine: Engine,
    pool: Segment,
    ours: Region,
    bytes: Bytes,
    random: Random,
    /// What each block has; none when a write of it failed.
    known: Vec<Option<u64>>,
    places: Vec<Option<UnderWay>>,
    next_seed: u64,
    /// How often the owner was opened again.
    life: u32,
    /// Transfers that RDMA carried without a retry, since that was looked at last.
    by_rdma: usize,
    by_route: BTreeMap<&'static str, usize>,
    failures: BTreeMap<String, usize>,
    longest: Duration,
}

pub fn run(settings: &Settings) {
    let engine = settings.engine(None);
    let ours =
        engine.register(HostBuffer::new(WINDOW * BLOCK).unwrap().into_backing(), Access::LOCAL).unwrap();
    let mut traffic = Traffic {
        pool: settings.open(&engine, "pool"),
        settings,
        engine,
        ours,
        bytes: Bytes::new(),
        random: Random(41),
        known: vec![None; BLOCKS],
        places: (0..WINDOW).map(|_| None).collect(),
        next_seed: 1,
        life: 0,
        by_rdma: 0,
        by_route: BTreeMap::new(),
        failures: BTreeMap::new(),
        longest: Duration::ZERO,
    };
    traffic.until(BACK, |traffic| traffic.by_rdma >= THERE);
    traffic.finish();
    let before = resources(settings.owner);
    println!("it runs: {:?}", traffic.by_route);
    std::fs::write(&settings.steady, "").unwrap();
    traffic.until(Duration::from_secs(60), |traffic| traffic.settings.mended.exists());
    println!("mended: {:?}, failed {:?}", traffic.by_route, traffic.failures);
    let mended = Instant::now();
    traffic.by_rdma = 0;
    traffic.until(BACK, |traffic| traffic.by_rdma >= THERE);
    println!("RDMA is back after {:.1} s", mended.elapsed().as_secs_f64());
    traffic.finish();
    traffic.look_at_all();
    traffic.verdict();
    settle(settings, &before);
    traffic.engine.shutdown();
    assert!(traffic.engine.retained().is_empty(), "{:?}", traffic.engine.retained());
}

/// Waits until there is nothing that was not there before, or fails.
fn settle(settings: &Settings, before: &str) {
    let until = Instant::now() + Duration::from_secs(10);
    // The owner of before may be gone, and its files with it.
    let counted = |all: &str| -> String {
        let is_left_out = |line: &str| {
            settings.gone.as_ref().is_some_and(|device| line.contains(device.as_str()))
                || settings.restarts && line.starts_with("files")
        };
        all.lines().filter(|line| !is_left_out(line)).map(|line| format!("{line}\n")).collect()
    };
    let before = &counted(before);
    loop {
        let after = counted(&resources(settings.owner.filter(|_| !settings.restarts)));
        if after == *before {
            return println!("as before:\n{after}");
        }
        assert!(Instant::now() < until, "before:\n{before}after:\n{after}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

impl Traffic<'_> {
    /// Keeps the window full until something holds.
    fn until(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) {
        let until = Instant::now() + limit;
        while !holds(self) {
            assert!(
                Instant::now() < until,
                "not after {limit:?}: {:?}, failed {:?}",
                self.by_route,
                self.failures
            );
            for place in 0..WINDOW {
                if self.places[place].is_none() {
                    self.begin(place);
                }
            }
            self.take_one();
        }
    }

    fn finish(&mut self) {
        while self.places.iter().any(Option::is_some) {
            self.take_one();
        }
    }

    /// A transfer of a block that no other one has.
    fn begin(&mut self, place: usize) {
        let used: Vec<usize> = self.places.iter().flatten().map(|other| other.block).collect();
        let block = loop {
            let block = self.random.below(BLOCKS as u64) as usize;
            if !used.contains(&block) {
                break block;
            }
        };
        let range = ((place * BLOCK) as u64, BLOCK);
        let slice = self.ours.slice(range.0, BLOCK as u64).unwrap();
        let writes = self.known[block].is_none() || self.random.below(2) == 0;
        let mut batch = Batch::new();
        batch.deadline(DEADLINE);
        if self.settings.demand {
            batch.route(RouteId::RDMA);
        }
        let seed = writes.then_some(self.next_seed);
        match seed {
            Some(seed) => {
                self.next_seed += 1;
                self.bytes.put(&self.ours, range, seed);
                batch.write(&self.pool, (block * BLOCK) as u64, &slice);
            }
            None => {
                self.bytes.wipe(&self.ours, range);
                batch.read(&self.pool, (block * BLOCK) as u64, &slice);
            }
        }
        match self.engine.submit(batch) {
            Ok(transfer) => self.places[place] = Some(UnderWay { transfer, block, seed, life: self.life }),
            Err(error) => self.failed(error.to_string(), self.life),
        }
    }

    /// Takes the end of a transfer that is over, or waits a moment.
    fn take_one(&mut self) {
        let over = |one: &Option<UnderWay>| one.as_ref().is_some_and(|one| one.transfer.is_done());
        let Some(place) = self.places.iter().position(over) else {
            return std::thread::sleep(Duration::from_micros(200));
        };
        let UnderWay { transfer, block, seed, life } = self.places[place].take().unwrap();
        let result = transfer.wait();
        let receipt = transfer.receipt().unwrap();
        self.longest = self.longest.max(receipt.elapsed);
        assert!(receipt.elapsed <= DEADLINE + GRACE, "it took {:?}: {receipt:?}", receipt.elapsed);
        if let Err(error) = result {
            if seed.is_some() && receipt.landed != Landed::Nothing {
                self.known[block] = None;
            }
            return self.failed(error.to_string(), life);
        }
        let route = receipt.route.unwrap();
        *self.by_route.entry(route.name()).or_default() += 1;
        assert!(!self.settings.demand || route == RouteId::RDMA, "{receipt:?}");
        self.by_rdma += usize::from(route == RouteId::RDMA && receipt.retries == 0);
        match (seed, self.known[block]) {
            _ if life != self.life => {}
            (Some(seed), _) => self.known[block] = Some(seed),
            (None, Some(seed)) => {
                let right = self.bytes.are(&self.ours, ((place * BLOCK) as u64, BLOCK), seed);
                assert!(right, "a read that is told to be complete gave wrong bytes: {receipt:?}");
            }
            (None, None) => panic!("a block was read that is not known"),
        }
    }

    fn failed(&mut self, words: String, life: u32) {
        self.by_rdma = 0;
        let is_known = self.settings.causes.iter().any(|cause| words.contains(cause.as_str()));
        assert!(is_known, "a transfer failed that should not, or for another cause: {words}");
        *self.failures.entry(words).or_default() += 1;
        if self.settings.restarts && life == self.life {
            // It has other memory now.
            self.life += 1;
            self.known.fill(None);
            self.pool = self.settings.open(&self.engine, "pool");
        }
    }

    /// Every block that is known, read once more.
    fn look_at_all(&mut self) {
        let slice = self.ours.slice(0, BLOCK as u64).unwrap();
        for block in 0..BLOCKS {
            let Some(seed) = self.known[block] else { continue };
            self.bytes.wipe(&self.ours, (0, BLOCK));
            let mut read = Batch::new();
            read.read(&self.pool, (block * BLOCK) as u64, &slice);
            self.engine.submit(read).unwrap().wait().unwrap();
            assert!(
                self.bytes.are(&self.ours, (0, BLOCK), seed),
                "block {block} is not what was written to it"
            );
        }
    }

    fn verdict(&self) {
        println!("{:?}, the longest took {:.2} s", self.by_route, self.longest.as_secs_f64());
        self.failures.iter().for_each(|(words, count)| println!("{count} failed: {words}"));
        assert!(!self.settings.must_fail || !self.failures.is_empty(), "nothing failed");
        let others = self.by_route.keys().any(|route| *route != RouteId::RDMA.name());
        assert!(!self.settings.must_move_over || others, "nothing went over another route");
    }
}
