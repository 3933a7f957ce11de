//! Rows about ops of many pieces: all of them arrive, each where it belongs; or, where one piece is bad, none does.
//!
//! The gaps between pieces belong to the same regions, so the look at all memory after each op finds a byte that went there. Not
//! checked here: pieces of a read that overlap at this side, which promise nothing.

use crate::error::OpErrorCode;
use crate::op::{LinkId, Op, OpKind};
use crate::testing::harness::{Harness, Mem};
use crate::testing::ledger::Part;
use crate::testing::pair::Pair;
use crate::testing::pattern::Rng;
use crate::testing::rows::cancel::reuse;
use crate::testing::rows::refusals::{expect_refused, kinds, still_serves};
use crate::testing::suite::{Need, Row};
use orbit_te_memory::Access;

pub(crate) const ROWS: &[Row] = &[
    Row { name: "lists_round_trip", needs: &[Need::Lists, Need::Read, Need::Write], check: lists_round_trip },
    Row { name: "bad_piece_refuses_the_list", needs: &[Need::Lists], check: bad_piece_refuses_the_list },
    Row { name: "list_over_a_limit_is_refused", needs: &[Need::Lists], check: list_over_a_limit_is_refused },
    Row {
        name: "list_without_a_right_is_refused",
        needs: &[Need::Lists, Need::Read, Need::Write],
        check: list_without_a_right_is_refused,
    },
    Row {
        name: "good_lists_beside_refused_ones",
        needs: &[Need::Lists, Need::Write],
        check: good_lists_beside_refused_ones,
    },
    Row {
        name: "list_is_found_by_a_following_read",
        needs: &[Need::Lists, Need::Read, Need::Write],
        check: list_is_found_by_a_following_read,
    },
    Row { name: "lists_are_let_go", needs: &[Need::Lists], check: lists_are_let_go },
    Row {
        name: "cancel_in_the_middle_of_lists",
        needs: &[Need::Lists],
        check: cancel_in_the_middle_of_lists,
    },
    Row { name: "broken_link_in_lists", needs: &[Need::Lists], check: broken_link_in_lists },
];

/// Lengths around every power that code likes.
const LENGTHS: [u64; 6] = [1, 511, 512, 513, 4096, 65_537];
/// Bytes between two pieces, at most.
const GAP: u64 = 97;
/// A row draws its lists from memory of no more than this.
const MOST_BYTES: u64 = 32 << 20;

fn shuffle<T>(rng: &mut Rng, things: &mut [T]) {
    for k in (1..things.len()).rev() {
        things.swap(k, rng.below(k as u64 + 1) as usize);
    }
}

/// A place for each of these lengths, with a gap before each; in an order of chance where `ascending` is not asked for. The room
/// that they take is at most [`room`].
fn scatter(rng: &mut Rng, lengths: &[u64], ascending: bool) -> Vec<u64> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    if !ascending {
        shuffle(rng, &mut order);
    }
    let mut offsets = vec![0; lengths.len()];
    let mut end = 0;
    for at in order {
        offsets[at] = end + 1 + rng.below(GAP);
        end = offsets[at] + lengths[at];
    }
    offsets
}

pub(crate) fn room(lengths: &[u64]) -> u64 {
    lengths.iter().map(|length| length + GAP + 1).sum()
}

/// Pieces of these lengths, scattered over both regions.
pub(crate) fn draw(rng: &mut Rng, kind: OpKind, ours: Mem, theirs: Mem, lengths: &[u64]) -> Vec<Part> {
    let local = scatter(rng, lengths, false);
    let remote = scatter(rng, lengths, kind == OpKind::Write);
    let places = local.iter().zip(&remote).zip(lengths);
    places.map(|((l, r), &length)| Part { local: ours.at(*l), remote: theirs.at(*r), length }).collect()
}

/// `count` lengths of `total` bytes together.
pub(crate) fn split(rng: &mut Rng, total: u64, count: u64) -> Vec<u64> {
    let mut left = total;
    let mut lengths = Vec::new();
    for others in (1..count).rev() {
        let length = 1 + rng.below((2 * left / (others + 1)).clamp(1, left - others));
        let length = length.min(left - others);
        lengths.push(length);
        left -= length;
    }
    lengths.push(left);
    lengths
}

pub(crate) fn most_bytes(h: &Harness<'_>) -> u64 {
    h.capabilities().max_list_bytes.min(MOST_BYTES)
}

pub(crate) fn most_pieces(h: &Harness<'_>) -> u64 {
    u64::from(h.capabilities().max_pieces).min(4096).min(h.capabilities().max_list_bytes)
}

/// Lists of all shapes, scattered at both sides: written, and read back to other places.
pub fn lists_round_trip(pair: &mut dyn Pair) {
    let mut rng = Rng::new(17);
    let mut h = Harness::new(pair);
    let (bytes, pieces) = (most_bytes(&h), most_pieces(&h));
    let mut shapes: Vec<Vec<u64>> = LENGTHS.iter().map(|length| vec![*length]).collect();
    shapes.push(LENGTHS.to_vec());
    for _ in 0..6 {
        shapes.push((0..2 + rng.below(7)).map(|_| LENGTHS[rng.below(6) as usize]).collect());
    }
    shapes.push(vec![1; pieces as usize]);
    shapes.push(split(&mut rng, bytes.min(700 * pieces), pieces));
    shapes.push(split(&mut rng, bytes, pieces));
    shapes.push(split(&mut rng, bytes, 3.min(pieces)));
    shapes.push(vec![bytes]);
    let link = h.connect();
    for lengths in shapes {
        if lengths.iter().sum::<u64>() > bytes || lengths.len() as u64 > pieces {
            let (count, total) = (lengths.len(), lengths.iter().sum::<u64>());
            println!("{}: no list of {count} pieces and {total} bytes", h.capabilities().name);
            continue;
        }
        let source = h.local(room(&lengths));
        let target = h.remote(room(&lengths), Access::SHARED);
        let back = h.local(room(&lengths));
        let parts = draw(&mut rng, OpKind::Write, source, target, &lengths);
        let write = h.list(OpKind::Write, link, &parts);
        h.run_all(&[write]);
        h.expect_success(&[write]);
        let parts = draw(&mut rng, OpKind::Read, back, target, &lengths);
        let read = h.list(OpKind::Read, link, &parts);
        h.run_all(&[read]);
        h.expect_success(&[read]);
        h.verify();
        h.release_all();
    }
    h.finish();
}

/// Five pieces of 600 bytes, a hundred bytes apart, in regions of `SIZE`.
const SIZE: u64 = 8192;

fn five(ours: Mem, theirs: Mem) -> Vec<Part> {
    (0..5)
        .map(|k| Part { local: ours.at(3000 - 700 * k + 7), remote: theirs.at(700 * k + 3), length: 600 })
        .collect()
}

/// One bad piece, first, in the middle and last: its number is told, and no other piece moves.
pub fn bad_piece_refuses_the_list(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let (ours, theirs) = (h.local(SIZE), h.remote(SIZE, Access::SHARED));
    let refused = |h: &mut Harness<'_>, kind, parts: &[Part], code, piece| {
        let op = h.list(kind, link, parts);
        h.run_all(&[op]);
        expect_refused(h, &op, code);
        if h.capabilities().admits {
            h.expect_piece(&op, Some(piece));
        }
        h.verify();
    };
    for kind in kinds(&h) {
        for bad in [0, 2, 4] {
            let with = |change: &dyn Fn(&mut Part)| {
                let mut parts = five(ours, theirs);
                change(&mut parts[bad]);
                parts
            };
            let piece = bad as u32;
            refused(&mut h, kind, &with(&|p| p.length = 0), OpErrorCode::BadLength, piece);
            for offset in [SIZE - 599, SIZE, SIZE + 1_000_000, u64::MAX - 599, u64::MAX - 600, u64::MAX] {
                let parts = with(&|p| p.remote.offset = offset);
                refused(&mut h, kind, &parts, OpErrorCode::OutOfRange, piece);
            }
        }
        // More of them than fit into any call, so that a transport that waits for their bytes is found out.
        for bad in [0, 2] {
            let pieces = h.capabilities().max_pieces.min(1000) as usize;
            let mut parts = five(ours, theirs);
            let empty = Part { length: 0, ..parts[bad] };
            parts.splice(bad..bad, std::iter::repeat_n(empty, pieces.saturating_sub(parts.len())));
            if parts.len() > 5 {
                refused(&mut h, kind, &parts, OpErrorCode::BadLength, bad as u32);
            }
        }
        let mut lapping = Vec::new();
        for bad in [1usize, 2, 4] {
            // By one byte, by all of them, and in another order.
            for offset in [700 * (bad as u64 - 1) + 602, 700 * (bad as u64 - 1) + 3, 0] {
                let mut parts = five(ours, theirs);
                parts[bad].remote.offset = offset;
                lapping.push((bad as u32, parts));
            }
        }
        let mut descending = five(ours, theirs);
        descending.reverse();
        lapping.push((1, descending));
        for (piece, parts) in lapping {
            if kind == OpKind::Write {
                refused(&mut h, kind, &parts, OpErrorCode::Overlap, piece);
                continue;
            }
            // What is only read may overlap, in any order.
            let op = h.list(kind, link, &parts);
            h.run_all(&[op]);
            h.expect_success(&[op]);
        }
        // The end of one piece may be the beginning of the next.
        let mut touching = five(ours, theirs);
        touching[3].remote.offset = touching[2].remote.offset + 600;
        let op = h.list(kind, link, &touching);
        h.run_all(&[op]);
        h.expect_success(&[op]);
    }
    h.watch();
    still_serves(&mut h, link);
    h.finish();
}

/// One byte more, one piece more, and a length that is not that of the pieces: no single piece is to blame.
pub fn list_over_a_limit_is_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let (bytes, pieces) = (h.capabilities().max_list_bytes, u64::from(h.capabilities().max_pieces));
    let mut lists = Vec::new();
    if bytes < MOST_BYTES && pieces > 1 {
        let lengths = [1, bytes];
        lists.push((lengths.to_vec(), bytes + 1));
    }
    if pieces < bytes.min(1 << 20) {
        lists.push((vec![1; pieces as usize + 1], pieces + 1));
    }
    for claimed in [1, 699, 701, bytes] {
        lists.push((vec![300, 400], claimed));
    }
    let mut rng = Rng::new(23);
    for kind in kinds(&h) {
        for (lengths, claimed) in &lists {
            let (ours, theirs) = (h.local(room(lengths)), h.remote(room(lengths), Access::SHARED));
            let parts = draw(&mut rng, kind, ours, theirs, lengths);
            let op = h.list_claiming(kind, link, &parts, *claimed);
            h.run_all(&[op]);
            h.expect_code(&op, &[OpErrorCode::BadLength]);
            h.expect_piece(&op, None);
            h.verify();
        }
    }
    h.watch();
    still_serves(&mut h, link);
    h.finish();
}

/// A list write to memory that peers may only read, and a list read of memory that they may only write.
pub fn list_without_a_right_is_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let ours = h.local(SIZE);
    let read_only = h.remote(SIZE, Access::SHARED_READ);
    let write_only = h.remote(SIZE, Access::LOCAL | Access::REMOTE_WRITE);
    let write = h.list(OpKind::Write, link, &five(ours, read_only));
    let read = h.list(OpKind::Read, link, &five(ours, write_only));
    h.run_all(&[write, read]);
    for op in [write, read] {
        expect_refused(&h, &op, OpErrorCode::AccessDenied);
        h.expect_piece(&op, None);
    }
    h.verify();
    let read = h.list(OpKind::Read, link, &five(ours, read_only));
    h.run_all(&[read]);
    let write = h.list(OpKind::Write, link, &five(ours, write_only));
    h.run_all(&[write]);
    h.expect_success(&[read, write]);
    h.watch();
    h.finish();
}

/// Refused lists between good ones and contiguous ops, all in flight together on one link: the good ones succeed.
pub fn good_lists_beside_refused_ones(pair: &mut dyn Pair) {
    const OPS: u64 = 60;
    let mut h = Harness::new(pair);
    let link = h.connect();
    let mut rng = Rng::new(29);
    let read_only = h.remote(1 << 20, Access::SHARED_READ);
    let total = most_bytes(&h).min(20_000);
    let pieces = most_pieces(&h).min(40);
    let (mut all, mut good, mut bad) = (Vec::new(), Vec::new(), Vec::new());
    for k in 0..OPS {
        let (total, pieces) = (total - k * total / 100, 2.max(pieces - k % pieces).min(pieces));
        let lengths = split(&mut rng, total, pieces);
        let (ours, theirs) = (h.local(room(&lengths)), h.remote(room(&lengths), Access::SHARED));
        let mut parts = draw(&mut rng, OpKind::Write, ours, theirs, &lengths);
        let last = parts.len() - 1;
        let code = match k % 6 {
            1 => {
                parts.iter_mut().for_each(|part| part.remote.mem = read_only);
                Some(OpErrorCode::AccessDenied)
            }
            3 => {
                parts[last].remote.offset = room(&lengths);
                Some(OpErrorCode::OutOfRange)
            }
            5 if last > 0 => {
                parts[last].remote.offset = parts[last - 1].remote.offset;
                Some(OpErrorCode::Overlap)
            }
            _ => None,
        };
        let op = match (k % 6, code) {
            (2, _) => h.write(link, ours.at(0), theirs.at(1), room(&lengths) - 1),
            _ => h.list(OpKind::Write, link, &parts),
        };
        all.push(op);
        match code {
            Some(code) => bad.push((op, code, last as u32)),
            None => good.push(op),
        }
    }
    h.run_all(&all);
    h.expect_success(&good);
    for (op, code, last) in &bad {
        expect_refused(&h, op, *code);
        if h.capabilities().admits {
            h.expect_piece(op, (*code != OpErrorCode::AccessDenied).then_some(*last));
        }
    }
    h.finish();
}

/// Every piece of a list that completed on one link is found by a read that begins then on another: by a list of the same
/// pieces, or by a contiguous one over all of them and their gaps.
pub fn list_is_found_by_a_following_read(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let (one, other) = (h.connect_up(), h.connect_up());
    let mut rng = Rng::new(31);
    for round in 0..30 {
        let total = if round % 4 == 0 { most_bytes(&h).min(300_000) } else { most_bytes(&h).min(9000) };
        let lengths = split(&mut rng, total, most_pieces(&h).min(1 + 13 * round % 100));
        let size = room(&lengths);
        let (source, target, back) = (h.local(size), h.remote(size, Access::SHARED), h.local(size));
        let (first, second) = if round % 2 == 0 { (one, other) } else { (other, one) };
        let parts = draw(&mut rng, OpKind::Write, source, target, &lengths);
        let write = h.list(OpKind::Write, first, &parts);
        h.run_all(&[write]);
        let read = if round % 3 == 0 {
            h.read(second, back.at(0), target.at(0), size.min(h.capabilities().max_op_bytes))
        } else {
            let parts = draw(&mut rng, OpKind::Read, back, target, &lengths);
            h.list(OpKind::Read, second, &parts)
        };
        h.run_all(&[read]);
        h.expect_success(&[write, read]);
        h.release_all();
    }
    h.finish();
}

/// One list of the rows that reuse what was let go, in memory of its own.
fn one_of_many(h: &mut Harness<'_>, rng: &mut Rng, link: LinkId, kind: OpKind, most: u64) -> Op {
    let total = 1 + rng.below(most);
    let pieces = 1 + rng.below(most_pieces(h).min(total).min(300));
    let lengths = split(rng, total, pieces);
    let (ours, theirs) = (h.local(room(&lengths)), h.remote(room(&lengths), Access::SHARED));
    let parts = draw(rng, kind, ours, theirs, &lengths);
    h.list(kind, link, &parts)
}

/// Steps until all of these are completed, and in the moment in which one is, reuses its memory and its list.
fn run_and_reuse(h: &mut Harness<'_>, ops: &[Op], other: Mem) {
    let mut left = ops.iter().filter(|op| !h.is_done(op)).count();
    for op in ops.iter().filter(|op| h.is_done(op)).copied().collect::<Vec<_>>() {
        h.scribble_list(&op, other.at(0));
        reuse(h, &op);
    }
    h.repeat_until("lists complete", |h| {
        for done in h.step() {
            let Some(op) = ops.iter().find(|op| op.token == done.token) else { continue };
            h.scribble_list(op, other.at(0));
            reuse(h, op);
            left -= 1;
        }
        left == 0
    });
}

/// From its completion on a list belongs to its owner again, and so does its memory: what is put there then goes nowhere.
pub fn lists_are_let_go(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let mut rng = Rng::new(37);
    let most = most_bytes(&h).min(200_000);
    let other = h.local(most);
    h.scribble(other.at(0), most);
    let kinds = kinds(&h);
    let ops: Vec<_> =
        (0..30).map(|k| one_of_many(&mut h, &mut rng, link, kinds[k % kinds.len()], most)).collect();
    h.submit(&ops);
    run_and_reuse(&mut h, &ops, other);
    h.expect_success(&ops);
    h.finish();
}

/// Lists of both kinds, given up at any moment of their lives; their memory and their slices are reused at once.
pub fn cancel_in_the_middle_of_lists(pair: &mut dyn Pair) {
    const OPS: usize = 12;
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    let mut rng = Rng::new(41);
    let most = most_bytes(&h).min(400_000);
    let kinds = kinds(&h);
    for round in 0..24 {
        h.wait_up(link);
        let other = h.local(most);
        h.scribble(other.at(0), most);
        let ops: Vec<_> = (0..OPS)
            .map(|k| {
                let most = [5000, 60_000, most][k % 3].min(most);
                one_of_many(&mut h, &mut rng, link, kinds[(k + round) % kinds.len()], most)
            })
            .collect();
        h.submit(&ops);
        for _ in 0..rng.below(10) {
            h.step();
        }
        let open: Vec<_> = ops.iter().filter(|op| !h.is_done(op)).copied().collect();
        open.iter().skip(round % 3).for_each(|op| h.cancel(op.token));
        run_and_reuse(&mut h, &ops, other);
        for op in &ops {
            let unfenced = op.kind == OpKind::Write && h.code(op) == Some(OpErrorCode::CancelledUnfenced);
            if unfenced && h.capabilities().fences {
                h.fail("it declares that it fences, the target answers, and a list write was not fenced");
            }
        }
        h.watch();
        h.close_loose();
        h.release_all();
    }
    h.wait_up(link);
    still_serves(&mut h, link);
    h.finish();
}

/// A link that breaks under lists ends each of them once, with success or with an error of the link; lists of another link
/// succeed.
pub fn broken_link_in_lists(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let (link, bystander) = (h.connect_up(), h.connect_up());
    let mut rng = Rng::new(43);
    let most = most_bytes(&h).min(400_000);
    let kinds = kinds(&h);
    for round in 0..6u64 {
        h.wait_up(link);
        let mut some = |h: &mut Harness<'_>, link| -> Vec<Op> {
            (0..8).map(|k| one_of_many(h, &mut rng, link, kinds[k % kinds.len()], most)).collect()
        };
        let (ops, others) = (some(&mut h, link), some(&mut h, bystander));
        h.submit(&ops);
        h.submit(&others);
        for _ in 0..round * 2 {
            h.step();
        }
        h.break_link(link);
        h.run();
        h.expect_success(&others);
        for op in &ops {
            h.expect_success_or_link(op);
        }
        h.watch();
        h.close_loose();
        h.release_all();
    }
    h.finish();
}
