//! Rows about regions that the target withdraws: afterwards nothing lands in them, whatever was in flight.
//!
//! Not checked here: deadlines of withdrawing, which are the registry's own tests; and that a region's memory is freed.

use crate::error::OpErrorCode;
use crate::op::Op;
use crate::testing::harness::{Harness, Mem};
use crate::testing::pair::Pair;
use crate::testing::rows::refusals::{kinds, still_serves};
use crate::testing::suite::{Need, Row};
use orbit_te_memory::{Access, MemoryError};
use std::thread;
use std::time::Instant;

pub(crate) const ROWS: &[Row] = &[
    Row { name: "retired_region_is_refused", needs: &[Need::Admits], check: retired_region_is_refused },
    Row {
        name: "nothing_lands_after_retire",
        needs: &[Need::Admits, Need::Write],
        check: nothing_lands_after_retire,
    },
    Row {
        name: "at_once_is_whole_or_leaves_nothing",
        needs: &[Need::Admits, Need::Write, Need::Read],
        check: at_once_is_whole_or_leaves_nothing,
    },
    Row {
        name: "nothing_lands_after_revoke",
        needs: &[Need::Admits, Need::Write],
        check: nothing_lands_after_revoke,
    },
];

/// A region that was there once.
pub fn retired_region_is_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let (ours, theirs) = (h.local(4096), h.remote(4096, Access::SHARED));
    for kind in kinds(&h) {
        let op = h.op(kind, link, ours.at(0), theirs.at(0), 4096);
        h.run_all(&[op]);
        h.expect_success(&[op]);
    }
    h.run_until("the lease is given back", |h| h.memory(theirs).region.leases() == 0);
    let memory = h.memory(theirs);
    let (registry, region) = (memory.side.registry.clone(), memory.region.clone());
    if let Err(why) = h.retire(&registry, &region) {
        h.fail(&format!("no op is in flight, and retiring failed: {why}"));
    }
    for kind in kinds(&h) {
        let op = h.op(kind, link, ours.at(3), theirs.at(5), 1000);
        h.run_all(&[op]);
        h.expect_code(&op, &[OpErrorCode::UnknownRegion]);
    }
    h.watch();
    still_serves(&mut h, link);
    h.finish();
}

/// Writes in flight, and a reader too where there can be one.
fn writes(h: &mut Harness<'_>) -> (Mem, Vec<Op>) {
    const OPS: u64 = 24;
    let size = (512 * 1024).min(h.capabilities().max_op_bytes);
    let link = h.connect_up();
    let ours = h.local(OPS * size);
    let theirs = h.remote(OPS * size, Access::SHARED);
    let ops = (0..OPS).map(|k| h.write(link, ours.at(k * size), theirs.at(k * size), size)).collect();
    (theirs, ops)
}

/// Withdraws a region in another thread after a few steps of the ops, then lets the ops end. No byte changes once the
/// withdrawal has returned.
fn withdraw(
    h: &mut Harness<'_>,
    theirs: Mem,
    ops: &[Op],
    steps: usize,
    refusals: &[OpErrorCode],
    call: impl FnOnce() -> Result<(), MemoryError> + Send,
) {
    let region = h.memory(theirs).region.clone();
    h.submit(ops);
    for _ in 0..steps {
        h.step();
    }
    let answer = thread::scope(|scope| {
        let withdrawing = scope.spawn(call);
        // Not one step more before the region takes no requests, so that ops are caught by it.
        let deadline = Instant::now() + h.limit();
        while region.takes_leases() && !withdrawing.is_finished() && Instant::now() < deadline {
            thread::yield_now();
        }
        h.run_until("the region is withdrawn", |_| withdrawing.is_finished());
        withdrawing.join()
    });
    match answer {
        Ok(Ok(())) => {}
        Ok(Err(why)) => h.fail(&format!("the region could not be withdrawn: {why}")),
        Err(_) => h.fail("withdrawing panicked"),
    }
    let after = h.memory(theirs).snapshot();
    h.run();
    h.verify();
    h.watch();
    if h.memory(theirs).snapshot() != after {
        h.fail("bytes changed after the region had been withdrawn");
    }
    if steps == 0 && ops.iter().any(|op| h.code(op).is_none()) {
        h.fail("the target was not served before the withdrawal, and an op succeeded");
    }
    for op in ops {
        if h.code(op).is_some() {
            h.expect_code(op, refusals);
        }
    }
}

/// Retiring returns when nothing can land any more.
pub fn nothing_lands_after_retire(pair: &mut dyn Pair) {
    for steps in [0, 1, 3, 8, 20] {
        let mut h = Harness::new(pair);
        let (theirs, ops) = writes(&mut h);
        let limit = h.limit();
        let memory = h.memory(theirs);
        let (region, registry) = (memory.region.clone(), memory.side.registry.clone());
        let call = move || registry.retire(&region, limit);
        withdraw(&mut h, theirs, &ops, steps, &[OpErrorCode::UnknownRegion], call);
        h.finish();
    }
}

/// An op that is carried out by one call, where a transport does that: its bytes are in place when it returns, and nothing comes of it later. A
/// region that is withdrawn is out of its reach, as it is for others.
pub fn at_once_is_whole_or_leaves_nothing(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    let size = (1u64 << 20).min(h.capabilities().max_op_bytes);
    let (ours, theirs) = (h.local(size + 64), h.remote(size + 64, Access::SHARED));
    let mut done = 0;
    for length in [1, 63, 4096, 65_537.min(size), size] {
        for (here, there) in [(0, 0), (3, 17)] {
            for kind in kinds(&h) {
                let op = h.op(kind, link, ours.at(here), theirs.at(there), length);
                if h.at_once(&op) {
                    done += 1;
                } else {
                    h.run_all(&[op]);
                }
                h.expect_success(&[op]);
                h.verify();
            }
        }
    }
    println!("{}: {done} of 20 ops at once", h.capabilities().name);
    // What does not fit is refused in the usual way.
    let beyond = h.write(link, ours.at(0), theirs.at(65), size);
    if h.at_once(&beyond) {
        h.fail("an op past the end of its region was carried out");
    }
    h.run_all(&[beyond]);
    h.expect_code(&beyond, &[OpErrorCode::OutOfRange]);
    h.run_until("the leases are given back", |h| h.memory(theirs).region.leases() == 0);
    let limit = h.limit();
    let (region, registry) = (h.memory(theirs).region.clone(), h.memory(theirs).side.registry.clone());
    let answer = thread::scope(|scope| {
        let retiring = scope.spawn(|| registry.retire(&region, limit));
        h.run_until("the region is withdrawn", |_| retiring.is_finished());
        retiring.join()
    });
    if !matches!(answer, Ok(Ok(()))) {
        h.fail("the region could not be withdrawn");
    }
    let after = h.memory(theirs).snapshot();
    for kind in kinds(&h) {
        let op = h.op(kind, link, ours.at(0), theirs.at(0), 4096);
        if h.at_once(&op) {
            h.fail("an op on a withdrawn region was carried out");
        }
        h.run_all(&[op]);
        h.expect_code(&op, &[OpErrorCode::UnknownRegion]);
    }
    h.watch();
    if h.memory(theirs).snapshot() != after {
        h.fail("bytes changed after the region had been withdrawn");
    }
    h.finish();
}

/// Revoking returns when no op with an old descriptor can land any more; with a new one the region serves again.
pub fn nothing_lands_after_revoke(pair: &mut dyn Pair) {
    for steps in [0, 2, 5, 14] {
        let mut h = Harness::new(pair);
        let (theirs, ops) = writes(&mut h);
        let limit = h.limit();
        let memory = h.memory(theirs);
        let call = memory.revocation(limit);
        // While the revocation waits, the region takes no request at all, as if it were gone.
        let codes = [OpErrorCode::StaleGeneration, OpErrorCode::UnknownRegion];
        withdraw(&mut h, theirs, &ops, steps, &codes, call);
        h.reimport(theirs);
        let link = h.connect();
        let ours = h.local(4096);
        let op = h.write(link, ours.at(0), theirs.at(9), 4096);
        h.run_all(&[op]);
        h.expect_success(&[op]);
        h.finish();
    }
}
