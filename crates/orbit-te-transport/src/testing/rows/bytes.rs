//! Rows about bytes: what was asked arrives, where it was asked, and nothing beside it changes.
//!
//! That a success has its bytes in place when it is given out, and that guards around every region stay as they are, the
//! harness checks in every row. Not checked here: any order between ops, and ops that overlap.

use crate::testing::harness::Harness;
use crate::testing::pair::Pair;
use crate::testing::pattern::Rng;
use crate::testing::suite::{Need, Row};
use orbit_te_memory::Access;

pub(crate) const ROWS: &[Row] = &[
    Row { name: "small_sizes_round_trip", needs: &[Need::Read, Need::Write], check: small_sizes_round_trip },
    Row { name: "large_sizes_round_trip", needs: &[Need::Read, Need::Write], check: large_sizes_round_trip },
    Row { name: "many_small_ops", needs: &[Need::Read, Need::Write], check: many_small_ops },
    Row { name: "reads_and_writes_mixed", needs: &[Need::Read, Need::Write], check: reads_and_writes_mixed },
    Row { name: "seen_over_another_link", needs: &[Need::Read, Need::Write], check: seen_over_another_link },
    Row { name: "memory_is_let_go_after_reads", needs: &[Need::Read], check: memory_is_let_go_after_reads },
    Row {
        name: "memory_is_let_go_after_writes",
        needs: &[Need::Write],
        check: memory_is_let_go_after_writes,
    },
];

const SMALL: [u64; 12] = [1, 2, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 65_535];
const LARGE: [u64; 7] =
    [65_536, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (4 << 20) + 5, (16 << 20) + 3];

/// Sizes around every power that code likes, at even and odd offsets on both sides: written, and read back.
pub fn small_sizes_round_trip(pair: &mut dyn Pair) {
    for offsets in [(0, 0), (1, 0), (0, 1), (3, 7), (64, 513)] {
        round_trips(pair, &SMALL, offsets);
    }
}

/// Sizes that are cut into pieces somewhere on the way.
pub fn large_sizes_round_trip(pair: &mut dyn Pair) {
    for offsets in [(0, 0), (3, 7)] {
        round_trips(pair, &LARGE, offsets);
    }
}

fn round_trips(pair: &mut dyn Pair, sizes: &[u64], (ours, theirs): (u64, u64)) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    for &size in sizes {
        if size > h.capabilities().max_op_bytes {
            println!("{}: no op of {size} bytes, over its limit", h.capabilities().name);
            continue;
        }
        let source = h.local(size + ours);
        let target = h.remote(size + theirs, Access::SHARED);
        let back = h.local(size + theirs);
        let write = h.write(link, source.at(ours), target.at(theirs), size);
        h.run_all(&[write]);
        h.expect_success(&[write]);
        let read = h.read(link, back.at(theirs), target.at(theirs), size);
        h.run_all(&[read]);
        h.expect_success(&[read]);
        h.verify();
        // Nothing is in flight, so this size's memory need not be looked at with every later one.
        h.release_all();
    }
    h.finish();
}

/// Thousands of small ops in flight: each completes once, each byte is where it belongs.
pub fn many_small_ops(pair: &mut dyn Pair) {
    const OPS: u64 = 3000;
    const STRIDE: u64 = 96;
    let mut h = Harness::new(pair);
    let link = h.connect();
    let source = h.local(OPS * STRIDE);
    let target = h.remote(OPS * STRIDE, Access::SHARED);
    let back = h.local(OPS * STRIDE);
    let writes: Vec<_> =
        (0..OPS).map(|k| h.write(link, source.at(k * STRIDE), target.at(k * STRIDE), 1 + k % 90)).collect();
    h.run_all(&writes);
    h.expect_success(&writes);
    h.verify();
    let reads: Vec<_> =
        (0..OPS).map(|k| h.read(link, back.at(k * STRIDE), target.at(k * STRIDE), 1 + k % 90)).collect();
    h.run_all(&reads);
    h.expect_success(&reads);
    h.finish();
}

/// Both directions at once on one link, of sizes that have nothing in common.
pub fn reads_and_writes_mixed(pair: &mut dyn Pair) {
    const SLOT: u64 = 300_000;
    const OPS: u64 = 48;
    let mut h = Harness::new(pair);
    let link = h.connect();
    let ours = h.local(OPS * SLOT);
    let theirs = h.remote(OPS * SLOT, Access::SHARED);
    let mut rng = Rng::new(7);
    let most = SLOT.min(h.capabilities().max_op_bytes);
    let ops: Vec<_> = (0..OPS)
        .map(|k| {
            let length = if k % 3 == 0 { 1 + rng.below(most) } else { 1 + rng.below(700.min(most)) };
            let (local, remote) = (ours.at(k * SLOT), theirs.at((OPS - 1 - k) * SLOT));
            if k % 2 == 0 {
                h.write(link, local, remote, length)
            } else {
                h.read(link, local, remote, length)
            }
        })
        .collect();
    h.run_all(&ops);
    h.expect_success(&ops);
    h.finish();
}

/// A write that completed on one link is found by a read that begins then on another.
pub fn seen_over_another_link(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let (one, other) = (h.connect_up(), h.connect_up());
    let size = (256 * 1024).min(h.capabilities().max_op_bytes);
    let source = h.local(size);
    let target = h.remote(size, Access::SHARED);
    let back = h.local(size);
    for round in 0..60 {
        let length = if round % 4 == 0 { size } else { 1 + round * 17 };
        let (first, second) = if round % 2 == 0 { (one, other) } else { (other, one) };
        h.scribble(source.at(0), length);
        let write = h.write(first, source.at(0), target.at(0), length);
        h.run_all(&[write]);
        let read = h.read(second, back.at(0), target.at(0), length);
        h.run_all(&[read]);
        h.expect_success(&[write, read]);
    }
    h.finish();
}

/// Memory that was read into is its owner's again from the completion on.
pub fn memory_is_let_go_after_reads(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let most = h.capabilities().max_op_bytes;
    let sizes = [1u64, 700, 4096, 70_000, 1 << 20].map(|size| size.min(most));
    let theirs = h.remote(1 << 20, Access::SHARED_READ);
    let places: Vec<_> = sizes.iter().cycle().take(20).map(|&size| (h.local(size), size)).collect();
    let ops: Vec<_> =
        places.iter().map(|&(ours, size)| h.read(link, ours.at(0), theirs.at(0), size)).collect();
    h.submit(&ops);
    let mut left = ops.len();
    h.repeat_until("reads complete", |h| {
        for done in h.step() {
            let Some(at) = ops.iter().position(|op| op.token == done.token) else { continue };
            let (ours, size) = places[at];
            h.scribble(ours.at(0), size);
            left -= 1;
        }
        left == 0
    });
    h.expect_success(&ops);
    h.finish();
}

/// Memory that was written from is its owner's again from the completion on: what is put there then goes nowhere.
pub fn memory_is_let_go_after_writes(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let most = h.capabilities().max_op_bytes;
    let sizes = [1u64, 700, 4096, 70_000, 1 << 20].map(|size| size.min(most));
    let places: Vec<_> = sizes
        .iter()
        .cycle()
        .take(20)
        .map(|&size| (h.local(size), h.remote(size, Access::SHARED), size))
        .collect();
    let ops: Vec<_> =
        places.iter().map(|&(ours, theirs, size)| h.write(link, ours.at(0), theirs.at(0), size)).collect();
    h.submit(&ops);
    let mut left = ops.len();
    h.repeat_until("writes complete", |h| {
        for done in h.step() {
            let Some(at) = ops.iter().position(|op| op.token == done.token) else { continue };
            let (ours, _, size) = places[at];
            h.scribble(ours.at(0), size);
            left -= 1;
        }
        left == 0
    });
    h.expect_success(&ops);
    h.finish();
}
