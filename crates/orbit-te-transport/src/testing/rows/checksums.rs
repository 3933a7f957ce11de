//! Rows about ops whose bytes are verified end to end: they do what plain ops do, and damage is found where the pair does some.
//!
//! Not checked here: damage to what is no payload (requests, tables, answers, the sums themselves).

use crate::error::OpErrorCode;
use crate::op::{Op, OpKind};
use crate::testing::harness::Harness;
use crate::testing::pair::Pair;
use crate::testing::pattern::Rng;
use crate::testing::rows::cancel::reuse;
use crate::testing::rows::lists::{draw, most_bytes, most_pieces, room, split};
use crate::testing::rows::refusals::{expect_refused, kinds, still_serves};
use crate::testing::suite::{Need, Row};
use orbit_te_memory::Access;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "verified_sizes_round_trip",
        needs: &[Need::Checksums, Need::Read, Need::Write],
        check: verified_sizes_round_trip,
    },
    Row { name: "verified_beside_plain", needs: &[Need::Checksums], check: verified_beside_plain },
    Row {
        name: "verified_lists_round_trip",
        needs: &[Need::Checksums, Need::Lists, Need::Read, Need::Write],
        check: verified_lists_round_trip,
    },
    Row { name: "verified_are_refused", needs: &[Need::Checksums], check: verified_are_refused },
    Row { name: "verified_are_cancelled", needs: &[Need::Checksums], check: verified_are_cancelled },
    Row { name: "damage_is_found", needs: &[Need::Checksums, Need::Damage], check: damage_is_found },
    Row {
        name: "damage_in_lists_is_found",
        needs: &[Need::Checksums, Need::Damage, Need::Lists],
        check: damage_in_lists_is_found,
    },
];

const SIZES: [u64; 14] =
    [1, 3, 4, 5, 63, 511, 4095, 4097, 16_385, 65_537, 262_143, 262_145, 1 << 20, (4 << 20) + 5];

/// Sizes around every power that code likes: written, and read back.
pub fn verified_sizes_round_trip(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    h.verify_ops(true);
    let link = h.connect();
    for (k, size) in SIZES.into_iter().enumerate() {
        let (ours, theirs) = [(0, 0), (3, 7)][k % 2];
        let size = size.min(h.capabilities().max_op_bytes);
        let source = h.local(size + ours);
        let target = h.remote(size + theirs, Access::SHARED);
        let back = h.local(size + theirs);
        let write = h.write(link, source.at(ours), target.at(theirs), size);
        h.run_all(&[write]);
        let read = h.read(link, back.at(theirs), target.at(theirs), size);
        h.run_all(&[read]);
        h.expect_success(&[write, read]);
        h.verify();
        h.release_all();
    }
    h.finish();
}

/// Ops that are verified and ops that are not, of both kinds, in flight together.
pub fn verified_beside_plain(pair: &mut dyn Pair) {
    const OPS: usize = 64;
    const SLOT: u64 = 300_000;
    let mut h = Harness::new(pair);
    let link = h.connect();
    let (ours, theirs) = (h.local(OPS as u64 * SLOT), h.remote(OPS as u64 * SLOT, Access::SHARED));
    let mut rng = Rng::new(47);
    let most = SLOT.min(h.capabilities().max_op_bytes);
    let kinds = kinds(&h);
    let mut ops = Vec::new();
    for k in 0..OPS {
        h.verify_ops(k % 3 != 0);
        let length = 1 + rng.below(if k % 2 == 0 { most } else { 700.min(most) });
        let at = k as u64 * SLOT;
        ops.push(h.op(kinds[k / 2 % kinds.len()], link, ours.at(at), theirs.at(at), length));
    }
    h.run_all(&ops);
    h.expect_success(&ops);
    h.finish();
}

/// Lists of some shapes: written, and read back to other places.
pub fn verified_lists_round_trip(pair: &mut dyn Pair) {
    let mut rng = Rng::new(53);
    let mut h = Harness::new(pair);
    h.verify_ops(true);
    let link = h.connect();
    let (bytes, pieces) = (most_bytes(&h), most_pieces(&h));
    for (total, count) in [(1, 1), (700, 7), (9000, 300), (400_000, 90), (bytes, 3), (bytes, pieces)] {
        let total = total.min(bytes);
        let lengths = split(&mut rng, total, count.min(pieces).min(total));
        let source = h.local(room(&lengths));
        let target = h.remote(room(&lengths), Access::SHARED);
        let back = h.local(room(&lengths));
        let parts = draw(&mut rng, OpKind::Write, source, target, &lengths);
        let write = h.list(OpKind::Write, link, &parts);
        h.run_all(&[write]);
        let parts = draw(&mut rng, OpKind::Read, back, target, &lengths);
        let read = h.list(OpKind::Read, link, &parts);
        h.run_all(&[read]);
        h.expect_success(&[write, read]);
        h.verify();
        h.release_all();
    }
    h.finish();
}

/// What is refused is refused all the same, and the link goes on.
pub fn verified_are_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    h.verify_ops(true);
    let link = h.connect();
    let ours = h.local(100_000);
    let none = h.remote(100_000, Access::LOCAL);
    for kind in kinds(&h) {
        for length in [1, 90_000] {
            let length = length.min(h.capabilities().max_op_bytes);
            let op = h.op(kind, link, ours.at(1), none.at(2), length);
            h.run_all(&[op]);
            if h.capabilities().admits {
                expect_refused(&h, &op, OpErrorCode::AccessDenied);
            }
            h.verify();
        }
    }
    h.watch();
    still_serves(&mut h, link);
    h.finish();
}

/// Given up at any moment of their lives; their memory is used again at once.
pub fn verified_are_cancelled(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    h.verify_ops(true);
    let link = h.connect_up();
    let mut rng = Rng::new(59);
    let most = h.capabilities().max_op_bytes;
    let kinds = kinds(&h);
    for round in 0..16 {
        h.wait_up(link);
        let mut ops = Vec::new();
        for k in 0..8 {
            let length = [700, 70_000, 1 << 20][k % 3].min(most);
            let (ours, theirs) = (h.local(length), h.remote(length, Access::SHARED));
            ops.push(h.op(kinds[(k + round) % kinds.len()], link, ours.at(0), theirs.at(0), length));
        }
        h.submit(&ops);
        for _ in 0..rng.below(8) {
            h.step();
        }
        ops.iter().skip(round % 3).for_each(|op| h.cancel(op.token));
        h.run();
        ops.iter().for_each(|op| reuse(&mut h, op));
        h.watch();
        h.close_loose();
        h.release_all();
    }
    h.wait_up(link);
    still_serves(&mut h, link);
    h.finish();
}

/// One byte comes damaged: the op fails and says where, with both sums; the next op of the link is as good as any.
pub fn damage_is_found(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    h.verify_ops(true);
    let link = h.connect();
    let most = h.capabilities().max_op_bytes;
    for kind in kinds(&h) {
        for size in [1, 700, 70_000, 1_000_000] {
            let size = size.min(most);
            let (ours, theirs) = (h.local(size + 3), h.remote(size + 5, Access::SHARED));
            let op = h.op(kind, link, ours.at(3), theirs.at(5), size);
            h.damage_next();
            h.run_all(&[op]);
            expect_damaged(&h, &op);
            h.verify();
            let good = h.op(kind, link, ours.at(0), theirs.at(0), size);
            h.run_all(&[good]);
            h.expect_success(&[good]);
            h.verify();
            h.release_all();
        }
    }
    h.watch();
    h.finish();
}

/// The same in lists, whose ranges count their pieces one after the other.
pub fn damage_in_lists_is_found(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    h.verify_ops(true);
    let link = h.connect();
    let mut rng = Rng::new(61);
    let (bytes, pieces) = (most_bytes(&h), most_pieces(&h));
    for kind in kinds(&h) {
        for (total, count) in [(2, 2), (700, 7), (9000, 300), (400_000, 90)] {
            let total = total.min(bytes);
            let lengths = split(&mut rng, total, count.min(pieces).min(total));
            let (ours, theirs) = (h.local(room(&lengths)), h.remote(room(&lengths), Access::SHARED));
            let parts = draw(&mut rng, kind, ours, theirs, &lengths);
            let op = h.list(kind, link, &parts);
            h.damage_next();
            h.run_all(&[op]);
            expect_damaged(&h, &op);
            h.verify();
            let good = h.list(kind, link, &parts);
            h.run_all(&[good]);
            h.expect_success(&[good]);
            h.verify();
            h.release_all();
        }
    }
    h.watch();
    h.finish();
}

/// The op failed as damaged; all that is wrong is inside of the range that it names, and both sums are those of that range.
#[track_caller]
fn expect_damaged(h: &Harness<'_>, op: &Op) {
    h.expect_code(op, &[OpErrorCode::Checksum]);
    let (mut sent, mut came) = (Vec::new(), Vec::new());
    for part in h.parts(op) {
        let (from, to) = match op.kind {
            OpKind::Read => (part.remote, part.local),
            OpKind::Write => (part.local, part.remote),
        };
        sent.extend_from_slice(h.memories[from.mem.0].expected(from.offset, part.length));
        came.extend(h.memories[to.mem.0].found(to.offset, part.length));
    }
    let Some(mismatch) = h.completion(op).result.err().and_then(|error| error.mismatch) else {
        h.fail(&format!("it came damaged, and the error names no range: {op:?}"))
    };
    let range = mismatch.offset as usize..(mismatch.offset + mismatch.length) as usize;
    if range.end > sent.len() {
        h.fail(&format!("the damaged range reaches past the end of {} bytes: {mismatch}", sent.len()));
    }
    if let Some(at) = (0..sent.len()).find(|at| sent[*at] != came[*at] && !range.contains(at)) {
        h.fail(&format!("byte {at} came damaged, and the error blames others: {mismatch}"));
    }
    let sums = (crc32c::crc32c(&sent[range.clone()]), crc32c::crc32c(&came[range]));
    if sums != (mismatch.expected, mismatch.found) {
        h.fail(&format!("the sums are {:08x} and {:08x}, and the error says: {mismatch}", sums.0, sums.1));
    }
}
