//! Transfers that are to succeed: sizes, lists, notifications, grants. Each goes by RDMA, and its bytes are looked at by both sides.
//!
//! Soft-RoCE in a guest that is short of processors loses packets now and then, and ends a QP by that. The engine tells so, and what demands RDMA
//! fails by it: a few such transfers in all are tried again, and told.

use crate::bytes::Bytes;
use crate::owner::{GRANT_BYTES, GRANTS};
use crate::resources;
use crate::settings::Settings;
use crate::support::Random;
use orbit_te::route::RouteId;
use orbit_te::{
    Access, Batch, Engine, HostBuffer, Layout, OpKind, Receipt, Region, Segment, Transfer, TransferError,
};
use std::cell::Cell;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);
/// A transfer's deadline, with the slowest guest in mind.
const DEADLINE: Duration = Duration::from_secs(90);

struct Side {
    engine: Engine,
    pool: Segment,
    verdict: Segment,
    ours: Region,
    answer: Region,
    bytes: Bytes,
    looked: u64,
    /// Transfers that were tried again.
    again: Cell<u32>,
}

pub fn run(settings: &Settings) {
    let engine = settings.engine(None);
    let region =
        |bytes| engine.register(HostBuffer::new(bytes).unwrap().into_backing(), Access::LOCAL).unwrap();
    let (ours, answer) = (region(settings.bytes), region(16));
    let (pool, verdict) = (settings.open(&engine, "pool"), settings.open(&engine, "verdict"));
    let mut side =
        Side { pool, verdict, ours, answer, bytes: Bytes::new(), looked: 0, again: Cell::new(0), engine };
    side.engine.notify(&side.pool, "begin", &[]).wait(SOON).unwrap();
    side.looked = 1;
    side.told();
    sizes(&mut side, settings.bytes);
    lists(&mut side);
    notifications(&mut side);
    grants(settings, &side);
    side.engine.notify(&side.pool, "end", &[]).wait(SOON).unwrap();
    let engine = side.engine.clone();
    drop(side);
    engine.shutdown();
    assert!(engine.retained().is_empty(), "{:?}", engine.retained());
}

/// So many transfers may be tried again.
const AGAIN: u32 = 4;

fn batch() -> Batch {
    let mut batch = Batch::new();
    batch.route(RouteId::RDMA).deadline(DEADLINE);
    batch
}

impl Side {
    /// The receipt of a transfer; where its connection broke, it is made and tried again.
    fn done(&self, make: impl Fn(&mut Batch)) -> Receipt {
        loop {
            let mut batch = batch();
            make(&mut batch);
            match self.engine.submit(batch).unwrap().wait() {
                Ok(receipt) => {
                    assert_eq!(receipt.route, Some(RouteId::RDMA), "{receipt:?}");
                    return receipt;
                }
                Err(error) => self.broke(&error),
            }
        }
    }

    /// A transfer failed: by its connection, and not too often.
    fn broke(&self, error: &TransferError) {
        println!("tried again: {error}");
        let cause = error.cause().unwrap_or_default();
        assert!(cause.contains("rdma:"), "{error}");
        self.again.set(self.again.get() + 1);
        assert!(self.again.get() <= AGAIN, "connections break too often");
        std::thread::sleep(Duration::from_millis(500));
    }

    /// Reads, over RDMA as well, until the owner has looked as often as it was told to; and found nothing wrong.
    fn told(&self) {
        let until = Instant::now() + SOON;
        let mut found = [0; 16];
        loop {
            self.done(|batch| _ = batch.read(&self.verdict, 0, &self.answer.whole()));
            self.answer.read_at(0, &mut found).unwrap();
            let [right, wrong] = [0, 8].map(|at| u64::from_le_bytes(found[at..at + 8].try_into().unwrap()));
            assert_eq!(wrong, 0, "the owner found wrong bytes");
            if right == self.looked {
                return;
            }
            assert!(Instant::now() < until, "the owner has looked {right} times, not {}", self.looked);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Each size to an odd place and back: the owner looks when it is told that they are written.
fn sizes(side: &mut Side, largest: usize) {
    let small = [1, 2, 3, 7, 8, 63, 64, 65, 255, 4095, 4096, 4097, 65_535, 65_536, 65_537];
    let large = [1 << 20, (1 << 20) + 1, (5 << 20) + 3, 16 << 20, largest];
    for (seed, length) in small.into_iter().chain(large.into_iter().filter(|n| *n <= largest)).enumerate() {
        let (seed, start) = (seed as u64 + 1, Instant::now());
        let offset = (largest - length).min(4096 + 13) as u64;
        let range = (offset, length);
        side.bytes.put(&side.ours, range, seed);
        let slice = side.ours.slice(offset, length as u64).unwrap();
        let payload: Vec<u8> = [seed, offset, length as u64].iter().flat_map(|n| n.to_le_bytes()).collect();
        let wrote = side.done(|batch| {
            batch.write(&side.pool, offset, &slice).notify(&side.pool, "written", &payload);
        });
        assert_eq!(wrote.bytes, length as u64);
        side.looked += 1;
        side.told();
        side.bytes.wipe(&side.ours, range);
        assert_eq!(side.done(|batch| _ = batch.read(&side.pool, offset, &slice)).bytes, length as u64);
        assert!(side.bytes.are(&side.ours, range, seed), "{length} bytes came back wrong");
        if length >= 1 << 20 {
            let rate = 2.0 * length as f64 / start.elapsed().as_secs_f64() / 1e6;
            println!("{length} bytes both ways, made, checked by both: {rate:.1} MB/s");
        }
    }
    println!("sizes: right");
}

/// Prepared lists of all layouts, both ways, against a model of each side.
fn lists(side: &mut Side) {
    const SIZE: usize = 1 << 20;
    let mut random = Random(77);
    let pages: Vec<u32> = (0..64).map(|n| (n * 37 + 5) % 128).collect();
    let runs: Vec<(u64, u64)> =
        (0..500u64).map(|n| (n * 2000 + random.below(900), 1 + random.below(1000))).collect();
    let total: u64 = runs.iter().map(|run| run.1).sum();
    let one = [(3, total)];
    let rows = [
        (
            "pages of 4 KiB",
            Layout::Pages { offset: 0, page_bytes: 4096, pages: &pages },
            Layout::Strided { offset: 100, stride_bytes: 4096, block_bytes: 4096, count: 64 },
        ),
        ("odd runs to one", Layout::Runs(&runs), Layout::Runs(&one)),
        (
            "blocks of 8 bytes",
            Layout::Strided { offset: 1, stride_bytes: 24, block_bytes: 8, count: 4000 },
            Layout::Strided { offset: 7, stride_bytes: 9, block_bytes: 8, count: 4000 },
        ),
    ];
    for (seed, (what, here, there)) in (100u64..).step_by(10).zip(rows) {
        for (seed, kind) in [(seed, OpKind::Write), (seed + 1, OpKind::Read)] {
            // Both sides begin with bytes that are known.
            side.bytes.put(&side.ours, (0, SIZE), seed + 5);
            let all = side.ours.slice(0, SIZE as u64).unwrap();
            side.done(|batch| _ = batch.write(&side.pool, 0, &all));
            let mut theirs = contents(&side.ours, SIZE);
            side.bytes.put(&side.ours, (0, SIZE), seed);
            let mut ours = contents(&side.ours, SIZE);
            let list = side.engine.prepare(kind, &side.ours.whole(), here, &side.pool, there).unwrap();
            for (l, r) in bytes_of(&here).zip(bytes_of(&there)) {
                match kind {
                    OpKind::Write => theirs[r] = ours[l],
                    OpKind::Read => ours[l] = theirs[r],
                }
            }
            assert_eq!(side.done(|batch| _ = batch.list(&list)).bytes, list.bytes());
            assert!(contents(&side.ours, SIZE) == ours, "{what}, {kind:?}: this side is not as it should be");
            side.done(|batch| _ = batch.read(&side.pool, 0, &all));
            assert!(
                contents(&side.ours, SIZE) == theirs,
                "{what}, {kind:?}: the owner's is not as it should be"
            );
        }
    }
    println!("lists: right");
}

fn contents(region: &Region, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    region.read_at(0, &mut found).unwrap();
    found
}

fn bytes_of(layout: &Layout<'_>) -> impl Iterator<Item = usize> {
    let runs: Vec<(u64, u64)> = match layout {
        Layout::Runs(runs) => runs.to_vec(),
        Layout::Strided { offset, stride_bytes, block_bytes, count } => {
            (0..*count).map(|n| (offset + n * stride_bytes, *block_bytes)).collect()
        }
        Layout::Pages { offset, page_bytes, pages } => {
            pages.iter().map(|n| (offset + u64::from(*n) * page_bytes, *page_bytes)).collect()
        }
    };
    runs.into_iter().flat_map(|(offset, length)| offset as usize..(offset + length) as usize)
}

/// Alone, many, each once and in order.
fn notifications(side: &mut Side) {
    for number in 1..=100u64 {
        side.engine.notify(&side.pool, "count", &number.to_le_bytes()).wait(SOON).unwrap();
        side.looked += 1;
    }
    side.told();
    println!("notifications: right");
}

/// As many grants as there are segments, all used at once, over the QPs that are there.
fn grants(settings: &Settings, side: &Side) {
    let queues = resources::count(&settings.device, "qp");
    let open = |at| settings.open(&side.engine, &format!("grant-{at}"));
    let segments: Vec<Segment> = (0..GRANTS).map(open).collect();
    let place = |at: usize| ((at * GRANT_BYTES) as u64, GRANT_BYTES);
    let all = |read: bool| {
        let one = |(at, segment): (usize, &Segment)| {
            let slice = side.ours.slice(place(at).0, GRANT_BYTES as u64).unwrap();
            let mut one = batch();
            match read {
                true => one.read(segment, 0, &slice),
                false => one.write(segment, 0, &slice),
            };
            side.engine.submit(one).unwrap()
        };
        let transfers: Vec<Transfer> = segments.iter().enumerate().map(one).collect();
        let whole = |transfer: &Transfer| match transfer.wait() {
            Ok(receipt) => {
                assert_eq!(receipt.route, Some(RouteId::RDMA), "{receipt:?}");
                None
            }
            Err(error) => Some(error),
        };
        transfers.iter().filter_map(whole).collect::<Vec<_>>().pop()
    };
    // All of them once more where a connection broke.
    let all = |read| {
        while let Some(error) = all(read) {
            side.broke(&error);
        }
    };
    (0..GRANTS).for_each(|at| side.bytes.put(&side.ours, place(at), 900 + at as u64));
    all(false);
    (0..GRANTS).for_each(|at| side.bytes.wipe(&side.ours, place(at)));
    all(true);
    for at in 0..GRANTS {
        assert!(side.bytes.are(&side.ours, place(at), 900 + at as u64), "grant {at} gave other bytes");
    }
    let now = resources::count(&settings.device, "qp");
    assert_eq!(now, queues, "QPs were made for grants");
    println!("{GRANTS} grants at once over {now} QPs: right");
}
