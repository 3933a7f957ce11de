//! Rows about giving up: an op that is cancelled completes once and soon, and what it says about memory holds.
//!
//! Not checked here: how soon in numbers, and bytes that a peer's device holds back for longer than the pair's quiet time.

use crate::error::{ErrorClass, OpErrorCode};
use crate::op::{Op, OpKind, Token};
use crate::testing::harness::Harness;
use crate::testing::pair::Pair;
use crate::testing::pattern::Rng;
use crate::testing::rows::refusals::{kinds, still_serves};
use crate::testing::suite::{Need, Row};
use orbit_te_memory::Access;

pub(crate) const ROWS: &[Row] = &[
    Row { name: "cancel_completes_once_and_lets_go", needs: &[], check: cancel_completes_once_and_lets_go },
    Row { name: "cancel_right_away", needs: &[], check: cancel_right_away },
    Row {
        name: "cancel_of_strangers_is_ignored",
        needs: &[Need::Write],
        check: cancel_of_strangers_is_ignored,
    },
    Row { name: "cancel_one_among_many", needs: &[Need::Write], check: cancel_one_among_many },
    Row {
        name: "cancel_while_the_target_is_silent",
        needs: &[Need::Admits],
        check: cancel_while_the_target_is_silent,
    },
];

/// Reuses the memory of an op that was given up, at both sides as far as it is known to be free. Beside others that are
/// given up it may also have lost its link.
pub(super) fn reuse(h: &mut Harness<'_>, op: &Op) {
    let lost = h.code(op).is_some_and(|code| code.class() == ErrorClass::Link);
    let fenced = !lost && h.expect_success_or_cancelled(op);
    for part in h.parts(op) {
        h.scribble(part.local, part.length);
        if fenced {
            h.scribble(part.remote, part.length);
        }
    }
}

/// Steps until all of these completed, and reuses each one's memory in the moment of its completion.
fn run_and_reuse(h: &mut Harness<'_>, ops: &[Op]) {
    let mut left = ops.len();
    h.repeat_until("cancelled ops complete", |h| {
        for done in h.step() {
            let Some(op) = ops.iter().find(|op| op.token == done.token) else { continue };
            let unfenced = op.kind == OpKind::Write && h.code(op) == Some(OpErrorCode::CancelledUnfenced);
            if unfenced && h.capabilities().fences {
                h.fail("it declares that it fences, the target answers, and a write was not fenced");
            }
            reuse(h, op);
            left -= 1;
        }
        left == 0
    });
    h.watch();
    h.close_loose();
}

/// Ops of both kinds and many sizes, given up at any moment of their lives.
pub fn cancel_completes_once_and_lets_go(pair: &mut dyn Pair) {
    const OPS: usize = 6;
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    let mut rng = Rng::new(11);
    let most = (1 << 20).min(h.capabilities().max_op_bytes);
    let kinds = kinds(&h);
    let places: Vec<_> = (0..OPS).map(|_| (h.local(most), h.remote(most, Access::SHARED))).collect();
    for round in 0..24u64 {
        h.wait_up(link);
        let ops: Vec<_> = places
            .iter()
            .enumerate()
            .map(|(k, (ours, theirs))| {
                let kind = kinds[(k + round as usize) % kinds.len()];
                let length = 1 + rng.below([5000, 200_000, most][k % 3].min(most));
                h.op(kind, link, ours.at(0), theirs.at(0), length)
            })
            .collect();
        let mut open = ops.clone();
        h.submit(&ops);
        let steps = rng.below(12);
        let mut finished = Vec::new();
        for _ in 0..steps {
            finished.extend(h.step());
        }
        for done in finished {
            if let Some(at) = open.iter().position(|op| op.token == done.token) {
                let op = open.swap_remove(at);
                reuse(&mut h, &op);
            }
        }
        for op in &open {
            h.cancel(op.token);
        }
        run_and_reuse(&mut h, &open);
    }
    h.wait_up(link);
    still_serves(&mut h, link);
    h.finish();
}

/// Given up before the first poll.
pub fn cancel_right_away(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let size = 300_000.min(h.capabilities().max_op_bytes);
    for kind in kinds(&h) {
        let places: Vec<_> = (0..8).map(|_| (h.local(size), h.remote(size, Access::SHARED))).collect();
        let ops: Vec<_> = places.iter().map(|(a, b)| h.op(kind, link, a.at(0), b.at(0), size)).collect();
        h.submit(&ops);
        ops.iter().for_each(|op| h.cancel(op.token));
        ops.iter().for_each(|op| h.cancel(op.token));
        run_and_reuse(&mut h, &ops);
    }
    h.finish();
}

/// Tokens that are not in flight: never made, or completed.
pub fn cancel_of_strangers_is_ignored(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let (ours, theirs) = (h.local(8192), h.remote(8192, Access::SHARED));
    h.cancel(Token(u64::MAX));
    h.cancel(Token(0));
    let done = h.write(link, ours.at(0), theirs.at(0), 4096);
    h.run_all(&[done]);
    h.cancel(done.token);
    let op = h.write(link, ours.at(4096), theirs.at(4096), 4096);
    h.submit(&[op]);
    h.cancel(done.token);
    h.cancel(Token(1));
    h.run();
    h.expect_success(&[done, op]);
    h.watch();
    h.finish();
}

/// Giving up some ops ends those. Others on the link succeed, or fail with a link error where the link had to be cut;
/// ops of another link are not concerned.
pub fn cancel_one_among_many(pair: &mut dyn Pair) {
    const OPS: u64 = 24;
    let mut h = Harness::new(pair);
    let (link, other) = (h.connect_up(), h.connect_up());
    let size = 200_000.min(h.capabilities().max_op_bytes);
    for round in 0..6u64 {
        h.wait_up(link);
        let (ours, theirs) = (h.local(2 * OPS * size), h.remote(2 * OPS * size, Access::SHARED));
        let place =
            |h: &mut Harness<'_>, link, k: u64| h.write(link, ours.at(k * size), theirs.at(k * size), size);
        let ops: Vec<_> = (0..OPS).map(|k| place(&mut h, link, k)).collect();
        let bystanders: Vec<_> = (OPS..2 * OPS).map(|k| place(&mut h, other, k)).collect();
        h.submit(&ops);
        h.submit(&bystanders);
        for _ in 0..round * 2 {
            h.step();
        }
        let given_up: Vec<_> = ops.iter().copied().skip(round as usize % 3).step_by(4).collect();
        given_up.iter().for_each(|op| h.cancel(op.token));
        h.run();
        h.expect_success(&bystanders);
        for op in &ops {
            let class = h.code(op).map(|code| code.class());
            if given_up.iter().any(|g| g.token == op.token) && class != Some(ErrorClass::Link) {
                h.expect_success_or_cancelled(op);
            } else if class.is_some() {
                h.expect_success_or_link(op);
            }
        }
        h.watch();
    }
    h.finish();
}

/// A target that makes no progress can't be asked to fence. The ops complete all the same, and when it wakes up it does
/// only what their completions left open: a write that is said to be fenced does not land, and what was put into the
/// memory of any op since is never sent.
pub fn cancel_while_the_target_is_silent(pair: &mut dyn Pair) {
    for kind in [OpKind::Write, OpKind::Read] {
        let mut h = Harness::new(pair);
        if !h.capabilities().supports(kind) {
            continue;
        }
        let link = h.connect_up();
        let size = (1 << 20).min(h.capabilities().max_op_bytes);
        for steps in [0, 2] {
            let places: Vec<_> = (0..6).map(|_| (h.local(size), h.remote(size, Access::SHARED))).collect();
            let ops: Vec<_> = places.iter().map(|(a, b)| h.op(kind, link, a.at(0), b.at(0), size)).collect();
            h.submit(&ops);
            for _ in 0..steps {
                h.step();
            }
            for _ in 0..20 {
                h.poll(64);
            }
            h.drop_not_accepted();
            let open: Vec<_> =
                ops.iter().copied().filter(|op| h.was_accepted(op) && !h.is_done(op)).collect();
            open.iter().for_each(|op| h.cancel(op.token));
            h.repeat_until("ops that were given up complete without the target", |h| {
                h.poll(64);
                h.in_flight() == 0
            });
            for op in &open {
                reuse(&mut h, op);
            }
            h.watch();
            h.wait_up(link);
        }
        still_serves(&mut h, link);
        h.finish();
    }
}
