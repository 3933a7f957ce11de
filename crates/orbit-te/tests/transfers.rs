//! Transfers: every size and offset, batches, handles that are dropped, cancels, and memory that is withdrawn.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{Access, Batch, Config, Error, OpErrorCode, TransferError};
use proptest::prelude::*;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use support::{Pair, Random, SOON, contents, eventually, pair, pattern_bytes, region, watchdog};

const GUARD: u8 = 0x5a;
const LENGTH: u64 = 3 << 20;

/// Writes and reads back through guard bytes; nothing else changes at either side.
fn check_round_trip(pair: &Pair, remote_at: u64, local_at: u64, length: u64) {
    let seed = remote_at ^ length;
    let bytes = pattern_bytes(seed, 0, length as usize);
    let frame = |bytes: &[u8]| {
        let after = vec![GUARD; 64];
        [&vec![GUARD; local_at as usize][..], bytes, &after].concat()
    };
    pair.remote.write_at(0, &vec![GUARD; LENGTH as usize]).unwrap();
    let source = region(&pair.engine, &frame(&bytes), Access::LOCAL);
    let sink = region(&pair.engine, &frame(&vec![0; length as usize]), Access::LOCAL);
    let from = source.slice(local_at, length).unwrap();
    let into = sink.slice(local_at, length).unwrap();
    let receipt = pair.segment.write(remote_at, &from).unwrap().wait().unwrap();
    assert_eq!((receipt.bytes, receipt.requests), (length, 1));
    let there = contents(&pair.remote);
    let (before, rest) = there.split_at(remote_at as usize);
    let (landed, after) = rest.split_at(length as usize);
    assert!(landed == bytes, "{length} bytes at {remote_at} came wrong");
    assert!(before.iter().chain(after).all(|b| *b == GUARD), "{length} bytes at {remote_at} wrote beyond");
    assert_eq!(pair.segment.read(remote_at, &into).unwrap().wait().unwrap().bytes, length);
    assert!(contents(&sink) == frame(&bytes), "{length} bytes at {remote_at} were read wrong");
    for memory in [&source, &sink] {
        pair.engine.retire(memory, SOON).unwrap();
    }
    // The target lets go of what it sent a moment after it has come here.
    eventually("the target lets go", SOON, || pair.remote.leases() == 0);
}

#[test]
fn sizes_where_bugs_live() {
    let _dog = watchdog("sizes_where_bugs_live", Duration::from_secs(60));
    let pair = pair(LENGTH as usize);
    for length in [1, 63, 64, 65, 511, 512, 513, 4095, 4097, 65_535, 65_537, 262_145, 1 << 20, (1 << 20) + 1]
    {
        for remote_at in [0, 1, 511, LENGTH - length] {
            check_round_trip(&pair, remote_at, 3, length);
        }
    }
    check_round_trip(&pair, 0, 0, LENGTH);
}

/// One pair for all cases of the property.
fn shared() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| pair(LENGTH as usize))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_size_anywhere(length in 1..LENGTH, at in 0..LENGTH, local_at in 0..5000u64) {
        check_round_trip(shared(), at % (LENGTH - length + 1), local_at, length);
    }
}

/// So many pieces in a shuffled order, half of them writes, half of them reads.
fn check_batch(pair: &Pair, pieces: u64) {
    let size = 100;
    let half = pieces * size;
    let fresh = pattern_bytes(1, 0, half as usize);
    let there = pattern_bytes(2, 0, half as usize);
    pair.remote.write_at(0, &[vec![0; half as usize], there.clone()].concat()).unwrap();
    let local = region(&pair.engine, &[fresh.clone(), vec![0; half as usize]].concat(), Access::LOCAL);
    let mut order: Vec<u64> = (0..pieces).collect();
    let mut random = Random(pieces);
    for k in (1..order.len()).rev() {
        order.swap(k, random.below(k as u64 + 1) as usize);
    }
    let mut batch = Batch::with_capacity(pieces as usize);
    for k in order {
        batch.write(&pair.segment, k * size, &local.slice(k * size, size).unwrap());
        batch.read(&pair.segment, half + k * size, &local.slice(half + k * size, size).unwrap());
    }
    let receipt = pair.engine.submit(batch).unwrap().wait().unwrap();
    assert_eq!((receipt.bytes, receipt.requests as u64), (2 * half, 2 * pieces));
    let mut landed = vec![0; half as usize];
    pair.remote.read_at(0, &mut landed).unwrap();
    assert!(landed == fresh, "a batch of {pieces} wrote wrong");
    local.read_at(half, &mut landed).unwrap();
    assert!(landed == there, "a batch of {pieces} read wrong");
}

#[test]
fn batches() {
    let _dog = watchdog("batches", Duration::from_secs(60));
    let pair = pair(LENGTH as usize);
    for pieces in [1, 2, 63, 64, 65, 127, 128, 129, 1000, 2000] {
        check_batch(&pair, pieces);
    }
    assert!(matches!(pair.engine.submit(Batch::new()), Err(Error::BadRequest { .. })));
}

/// More requests than the transport holds at once.
#[test]
fn a_batch_over_all_limits() {
    let _dog = watchdog("a_batch_over_all_limits", Duration::from_secs(60));
    check_batch(&pair(LENGTH as usize), 9000);
}

/// One bad request refuses the batch with its index, before anything moves.
#[test]
fn one_bad_request() {
    let _dog = watchdog("one_bad_request", Duration::from_secs(60));
    let pair = pair(1000);
    let local = region(&pair.engine, &[7; 1000], Access::LOCAL);
    for bad_at in [0, 1, 57, 199] {
        let mut batch = Batch::new();
        for k in 0..200 {
            let offset = if k == bad_at { 999 } else { k as u64 };
            batch.write(&pair.segment, offset, &local.slice(0, 2).unwrap());
        }
        let error = pair.engine.submit(batch).unwrap_err();
        assert!(matches!(error, Error::BadRequest { index, .. } if index == bad_at), "{error:?}");
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(contents(&pair.remote), [0; 1000]);
    assert_eq!((local.leases(), pair.remote.leases()), (0, 0));
    // A request that only the owner finds bad ends alone; the others are carried out, and the first error is told.
    let withdrawn = region(&pair.target, &[0; 10], Access::SHARED);
    let token = pair.target.expose("withdrawn", &withdrawn).unwrap().to_token().unwrap();
    let other = pair.engine.open(&token).wait(SOON).unwrap();
    pair.target.retire(&withdrawn, SOON).unwrap();
    let mut batch = Batch::new();
    batch.write(&pair.segment, 0, &local.slice(0, 10).unwrap());
    batch.write(&other, 0, &local.slice(0, 10).unwrap());
    batch.write(&pair.segment, 10, &local.slice(0, 10).unwrap());
    let error = pair.engine.submit(batch).unwrap().wait().unwrap_err();
    assert_eq!(error.op_code(), Some(OpErrorCode::UnknownRegion));
    assert!(matches!(error, TransferError::Request { request: 1, .. }), "{error:?}");
    assert_eq!(contents(&pair.remote)[..20], [7; 20]);
}

/// Handles that are dropped at once: the transfers are carried out all the same.
#[test]
fn handles_that_are_dropped() {
    let _dog = watchdog("handles_that_are_dropped", Duration::from_secs(60));
    let pair = pair(LENGTH as usize);
    let local = region(&pair.engine, &pattern_bytes(4, 0, LENGTH as usize), Access::LOCAL);
    let mut at = 0;
    let mut random = Random(9);
    while at < LENGTH {
        let length = (1 + random.below(200_000)).min(LENGTH - at);
        drop(pair.segment.write(at, &local.slice(at, length).unwrap()).unwrap());
        at += length;
        if random.below(4) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(3000)));
        }
    }
    eventually("all leases are given back", SOON, || local.leases() == 0);
    assert!(contents(&pair.remote) == contents(&local));
}

/// Cancels at random moments. When it is over, the local memory is ours again at once: what is put there afterwards never goes out,
/// and no late byte comes in.
#[test]
fn cancels_at_random_moments() {
    let _dog = watchdog("cancels_at_random_moments", Duration::from_secs(90));
    const SIZE: usize = 1 << 20;
    let pair = support::pair_with(SIZE, Config { shm: None, ..Config::default() });
    pair.remote.write_at(0, &[1; SIZE]).unwrap();
    let local = region(&pair.engine, &[0; SIZE], Access::LOCAL);
    let mut random = Random(77);
    let (mut cancelled, mut done) = (0, 0);
    for round in 0..150 {
        let write = round % 2 == 0;
        local.write_at(0, &[if write { 1 } else { 0 }; SIZE]).unwrap();
        let slice = local.whole();
        let transfer =
            if write { pair.segment.write(0, &slice) } else { pair.segment.read(0, &slice) }.unwrap();
        let pause = Duration::from_micros(random.below(1500));
        match random.below(3) {
            0 => std::thread::sleep(pause),
            1 => drop(transfer.wait_for(pause)),
            _ => {}
        }
        transfer.cancel();
        let started = Instant::now();
        match transfer.wait() {
            Ok(receipt) => {
                assert_eq!(receipt.bytes, SIZE as u64);
                done += 1;
            }
            Err(TransferError::Cancelled { fenced, .. }) => {
                assert!(fenced, "the peer is well and can be asked");
                cancelled += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
        assert!(started.elapsed() < Duration::from_secs(5), "a cancel took {:?}", started.elapsed());
        assert_eq!(local.leases(), 0, "over, and still a lease");
        // The memory is used for something else now.
        local.write_at(0, &[0xee; SIZE]).unwrap();
        if round % 10 < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(contents(&local) == [0xee; SIZE], "round {round}: a late byte came in");
        assert!(contents(&pair.remote) == [1; SIZE], "round {round}: foreign bytes went out");
    }
    assert!(cancelled > 0, "{cancelled} cancelled, {done} done");
    pair.segment.write(0, &local.whole()).unwrap().wait().unwrap();
    assert!(contents(&pair.remote) == [0xee; SIZE]);
}

/// Giving up a long batch to a peer that takes nothing does not hold the engine up.
#[test]
fn a_cancel_of_many() {
    let _dog = watchdog("a_cancel_of_many", Duration::from_secs(60));
    let pair = pair(LENGTH as usize);
    let local = region(&pair.engine, &vec![1; LENGTH as usize], Access::LOCAL);
    let mut batch = Batch::new();
    for k in 0..20_000 {
        batch.read(&pair.segment, k * 100, &local.slice(k * 100, 100).unwrap());
    }
    let transfer = pair.engine.submit(batch).unwrap();
    let started = Instant::now();
    transfer.cancel();
    let result = transfer.wait();
    let took = started.elapsed();
    assert!(matches!(result, Ok(_) | Err(TransferError::Cancelled { fenced: true, .. })), "{result:?}");
    println!("a cancel of 20,000 requests took {took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// Retiring waits for what is under way, and afterwards no byte changes.
#[test]
fn retiring_under_way() {
    let _dog = watchdog("retiring_under_way", Duration::from_secs(60));
    const SIZE: usize = 1 << 20;
    let pair = pair(16);
    let at = pair.target.address().unwrap();
    for round in 0..10 {
        let memory = region(&pair.target, &[0; SIZE], Access::SHARED);
        pair.target.expose("brief", &memory).unwrap();
        let segment = pair.engine.open(&format!("{at}/brief")).wait(SOON).unwrap();
        let local = region(&pair.engine, &[9; SIZE], Access::LOCAL);
        let transfers: Vec<_> = (0..20).map(|_| segment.write(0, &local.whole()).unwrap()).collect();
        std::thread::sleep(Duration::from_micros(300 * round));
        pair.target.retire(&memory, SOON).unwrap();
        let base = memory.raw().as_ptr().as_ptr();
        // SAFETY: the region's memory lives while `memory` does; after the retirement nobody else touches it.
        let now = || unsafe { std::slice::from_raw_parts(base, SIZE) }.to_vec();
        let before = now();
        for transfer in transfers {
            match transfer.wait() {
                Ok(_) => {}
                Err(error) => assert_eq!(error.op_code(), Some(OpErrorCode::UnknownRegion), "{error:?}"),
            }
        }
        assert!(now() == before, "bytes landed after the retirement");
        assert_eq!(memory.leases(), 0);
        let refused = pair.engine.open(&format!("{at}/brief")).wait(SOON);
        assert!(matches!(refused, Err(Error::Refused { .. })));
    }
}

/// What a peer knew before a revocation is stale; opened again it works.
#[test]
fn revoking() {
    let _dog = watchdog("revoking", Duration::from_secs(60));
    let pair = pair(100);
    let local = region(&pair.engine, &[3; 100], Access::LOCAL);
    pair.segment.write(0, &local.whole()).unwrap().wait().unwrap();
    pair.target.revoke(&pair.remote, SOON).unwrap();
    pair.remote.write_at(0, &[0; 100]).unwrap();
    for _ in 0..3 {
        let error = pair.segment.write(0, &local.whole()).unwrap().wait().unwrap_err();
        assert_eq!(error.op_code(), Some(OpErrorCode::StaleGeneration));
        let error = pair.segment.read(0, &local.whole()).unwrap().wait().unwrap_err();
        assert_eq!(error.op_code(), Some(OpErrorCode::StaleGeneration));
    }
    assert_eq!(contents(&pair.remote), [0; 100]);
    assert_eq!(contents(&local), [3; 100]);
    let again = pair.engine.open(&format!("{}/pool", pair.target.address().unwrap())).wait(SOON).unwrap();
    again.write(0, &local.whole()).unwrap().wait().unwrap();
    assert_eq!(contents(&pair.remote), [3; 100]);
}

/// Our own region, retired while our transfers use it: it waits for them, and they end well.
#[test]
fn retiring_our_own() {
    let _dog = watchdog("retiring_our_own", Duration::from_secs(60));
    let pair = pair(1 << 20);
    let local = region(&pair.engine, &[6; 1 << 20], Access::LOCAL);
    let transfers: Vec<_> = (0..10).map(|_| pair.segment.write(0, &local.whole()).unwrap()).collect();
    let (slice, first) = (local.whole(), &transfers[0]);
    drop(first.wait_for(Duration::ZERO));
    transfers.iter().for_each(|t| drop(t.try_result()));
    // Nobody drives: the engine's own thread must.
    pair.engine.retire(&local, SOON).unwrap();
    assert!(matches!(pair.segment.write(0, &slice), Err(Error::Memory(_))));
    for transfer in transfers {
        assert!(transfer.is_done() || transfer.wait().is_ok());
        assert_eq!(transfer.wait_for(Duration::MAX).unwrap().unwrap().bytes, 1 << 20);
    }
}
