//! Rows about the queue of ops: being full is no error, being accepted is a promise, a budget is a bound.
//!
//! Not checked here: fairness between links, and that nothing is allocated per op.

use crate::op::Token;
use crate::progress::{Completion, Progress};
use crate::testing::harness::Harness;
use crate::testing::pair::Pair;
use crate::testing::suite::{Need, Row};
use orbit_te_memory::Access;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "full_takes_no_more_and_loses_nothing",
        needs: &[Need::Write, Need::MaxOps(100_000)],
        check: full_takes_no_more_and_loses_nothing,
    },
    Row { name: "budget_is_kept", needs: &[Need::Write], check: budget_is_kept },
    Row { name: "poll_adds_to_what_is_there", needs: &[Need::Write], check: poll_adds_to_what_is_there },
    Row { name: "tokens_may_be_used_again", needs: &[Need::Write], check: tokens_may_be_used_again },
    Row { name: "nothing_comes_of_nothing", needs: &[], check: nothing_comes_of_nothing },
    Row { name: "drained_is_told", needs: &[Need::Write], check: drained_is_told },
];

/// More ops than it declares to hold are not all accepted, and all of them complete in the end.
pub fn full_takes_no_more_and_loses_nothing(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    let room = u64::from(h.capabilities().max_ops);
    let offered = room + room / 2 + 3;
    let source = h.local(offered * 8);
    let target = h.remote(offered * 8, Access::SHARED);
    let ops: Vec<_> =
        (0..offered).map(|k| h.write(link, source.at(k * 8), target.at(k * 8), 1 + k % 8)).collect();
    for round in 0..3 {
        if round > 0 {
            ops.iter().for_each(|op| h.again(*op));
        }
        h.submit(&ops);
        // What is not polled is still held, so nobody can have made room.
        h.offer();
        h.pump();
        h.offer();
        let held = h.in_flight() as u64;
        if held > room {
            h.fail(&format!("it declares room for {room} ops, and accepted {held} without a poll"));
        }
        if held == 0 {
            h.fail("an empty transport accepted nothing");
        }
        h.run();
        h.expect_success(&ops);
    }
    h.finish();
}

/// A poll never gives more completions than it was asked for, down to none.
pub fn budget_is_kept(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    let source = h.local(4096);
    let target = h.remote(4096, Access::SHARED);
    for budget in [1usize, 2, 7] {
        let ops: Vec<_> = (0..40).map(|k| h.write(link, source.at(k * 64), target.at(k * 64), 64)).collect();
        h.submit(&ops);
        let mut left = ops.len();
        h.repeat_until("ops complete on a small budget", |h| {
            h.offer();
            h.pump();
            if !h.poll(0).is_empty() {
                h.fail("a poll with a budget of zero gave completions");
            }
            left -= h.poll(budget).len();
            left == 0
        });
        h.expect_success(&ops);
    }
    h.finish();
}

/// A poll adds to the caller's buffer; what stood there stays.
pub fn poll_adds_to_what_is_there(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    let source = h.local(4096);
    let target = h.remote(4096, Access::SHARED);
    let ops: Vec<_> = (0..20).map(|k| h.write(link, source.at(k * 64), target.at(k * 64), 64)).collect();
    h.submit(&ops);
    let before = Completion { token: Token(7), result: Ok(()), bytes: 7, touched: true };
    let mut left = ops.len();
    h.repeat_until("ops complete", |h| {
        h.offer();
        h.pump();
        let mut progress = Progress { completions: vec![before; 3], events: Vec::new() };
        h.poll_raw(8, &mut progress);
        if progress.completions.len() < 3 || progress.completions[..3] != [before; 3] {
            h.fail("`poll` changed completions that stood in the buffer before");
        }
        progress.completions.drain(..3);
        left -= h.take(&mut progress, 8).len();
        left == 0
    });
    h.expect_success(&ops);
    h.finish();
}

/// A token is only a name: once its op is completed it may name the next one.
pub fn tokens_may_be_used_again(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let source = h.local(512);
    let target = h.remote(512, Access::SHARED);
    let op = h.write(link, source.at(0), target.at(0), 512);
    h.run_all(&[op]);
    for _ in 0..50 {
        h.scribble(source.at(0), 512);
        h.again(op);
        h.run_all(&[op]);
        h.expect_success(&[op]);
    }
    h.finish();
}

/// No ops, no links, no peers: polling, arming and submitting nothing are harmless, and drained is drained.
pub fn nothing_comes_of_nothing(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    h.submit_nothing();
    for _ in 0..20 {
        h.step();
        h.arm();
    }
    if !h.is_drained() {
        h.fail("no op was ever submitted, and it says that it is not drained");
    }
    h.finish();
}

/// Drained means that no op is in flight and no completion waits.
pub fn drained_is_told(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    let source = h.local(8192);
    let target = h.remote(8192, Access::SHARED);
    let ops: Vec<_> = (0..8).map(|k| h.write(link, source.at(k * 1024), target.at(k * 1024), 1024)).collect();
    h.submit(&ops);
    h.repeat_until("ops complete", |h| {
        h.offer();
        h.pump();
        h.poll(1);
        let (open, drained) = (h.in_flight(), h.is_drained());
        if (open == 0) != drained {
            h.fail(&format!("{open} accepted ops have not completed, and drained is {drained}"));
        }
        open == 0
    });
    h.finish();
}
