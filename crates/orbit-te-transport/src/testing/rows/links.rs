//! Rows about links: one that is gone, never was, breaks or is closed ends its own ops, each once, and no other's.
//!
//! Not checked here: how long a transport takes to find out that a silent peer is gone, and its pauses between tries.

use crate::error::{ErrorClass, OpErrorCode};
use crate::op::{LinkId, Op};
use crate::signs::{LinkLanes, Signs};
use crate::testing::harness::{Harness, Mem};
use crate::testing::pair::Pair;
use crate::testing::rows::refusals::still_serves;
use crate::testing::suite::{Need, Row};
use orbit_te_memory::Access;
use std::collections::HashSet;
use std::time::{Duration, Instant};

pub(crate) const ROWS: &[Row] = &[
    Row { name: "ops_wait_for_their_link", needs: &[Need::Write], check: ops_wait_for_their_link },
    Row { name: "unknown_link_fails_its_ops", needs: &[Need::Write], check: unknown_link_fails_its_ops },
    Row {
        name: "link_numbers_are_not_used_again",
        needs: &[Need::Write],
        check: link_numbers_are_not_used_again,
    },
    Row { name: "disconnect_in_the_middle", needs: &[Need::Write], check: disconnect_in_the_middle },
    Row { name: "broken_link_fails_alone", needs: &[Need::Write], check: broken_link_fails_alone },
    Row { name: "broken_link_in_reads", needs: &[Need::Read], check: broken_link_in_reads },
    Row { name: "broken_link_comes_back", needs: &[Need::Write], check: broken_link_comes_back },
    Row { name: "lanes_are_counted", needs: &[], check: lanes_are_counted },
    Row { name: "close_in_the_middle", needs: &[Need::Write], check: close_in_the_middle },
    Row { name: "closed_stays_closed", needs: &[Need::Write], check: closed_stays_closed },
    Row { name: "unreachable_peer", needs: &[Need::Write, Need::Unreachable], check: unreachable_peer },
];

/// Large ops on one link, so that something is under way.
struct Load {
    link: LinkId,
    ours: Mem,
    size: u64,
    ops: Vec<Op>,
}

fn load(h: &mut Harness<'_>, link: LinkId, theirs: Mem, size: u64, count: u64) -> Load {
    let ours = h.local(size * count);
    let ops = (0..count).map(|k| h.write(link, ours.at(k * size), theirs.at(k * size), size)).collect();
    Load { link, ours, size, ops }
}

fn large(h: &Harness<'_>) -> u64 {
    (1 << 20).min(h.capabilities().max_op_bytes)
}

/// What an owner does with memory when its op has completed.
fn scribble_over(h: &mut Harness<'_>, load: &Load) {
    let length = load.size * load.ops.len() as u64;
    h.scribble(load.ours.at(0), length);
}

/// Ops that were submitted before the link is up wait for it; its coming up is told.
pub fn ops_wait_for_their_link(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let (ours, theirs) = (h.local(6400), h.remote(6400, Access::SHARED));
    let ops: Vec<_> = (0..64).map(|k| h.write(link, ours.at(k * 100), theirs.at(k * 100), 100)).collect();
    h.run_all(&ops);
    h.expect_success(&ops);
    h.wait_up(link);
    h.finish();
}

/// An op on a number that no link has is accepted and fails.
pub fn unknown_link_fails_its_ops(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let good = h.connect_up();
    let (ours, theirs) = (h.local(4096), h.remote(4096, Access::SHARED));
    let near = LinkId { slot: good.slot, generation: good.generation.wrapping_add(1) };
    let far = LinkId { slot: u32::MAX - 1, generation: 1 };
    for link in [near, far] {
        let bad = h.write(link, ours.at(0), theirs.at(0), 1000);
        let ok = h.write(good, ours.at(2000), theirs.at(2000), 1000);
        h.run_all(&[bad, ok]);
        h.expect_code(&bad, &[OpErrorCode::NoLink]);
        h.expect_success(&[ok]);
    }
    h.watch();
    h.finish();
}

/// The number of a link that was closed never means another one.
pub fn link_numbers_are_not_used_again(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let (ours, theirs) = (h.local(4096), h.remote(4096, Access::SHARED));
    let mut seen = HashSet::new();
    for round in 0..12u64 {
        let link = if round % 3 == 0 { h.connect() } else { h.connect_up() };
        if !seen.insert(link) {
            h.fail(&format!("{link:?} was given out again"));
        }
        if round % 2 == 0 {
            let op = h.write(link, ours.at(0), theirs.at(0), 100 + round);
            h.run_all(&[op]);
            h.expect_success(&[op]);
        }
        h.disconnect(link);
        h.disconnect(link);
        let late = h.write(link, ours.at(2000), theirs.at(2000), 100);
        h.run_all(&[late]);
        h.expect_code(&late, &[OpErrorCode::NoLink]);
    }
    h.watch();
    h.finish();
}

/// All lanes of a link come up, and come back after a break; a link that is gone or never was has none to count.
pub fn lanes_are_counted(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let lanes = |h: &mut Harness<'_>, link| h.pair.initiator().lanes(link, Instant::now());
    let all_up = |h: &mut Harness<'_>| match lanes(h, link) {
        Some(LinkLanes { up, wanted, unreachable }) if up > wanted || (up > 0 && unreachable) => {
            h.fail(&format!("{up} lanes of {wanted} are up, unreachable: {unreachable}"))
        }
        Some(LinkLanes { up, wanted, .. }) => up == wanted && up > 0,
        None => h.fail("no lanes are counted on a link that stands"),
    };
    h.run_until("all lanes of a fresh link are up", all_up);
    let before = h.news(link).downs;
    h.break_link(link);
    h.run_until("the break is told", |h| h.news(link).downs > before);
    h.run_until("all lanes are up again", all_up);
    h.disconnect(link);
    let strange = LinkId { slot: u32::MAX - 1, generation: 1 };
    for gone in [link, strange] {
        if let Some(counted) = lanes(&mut h, gone) {
            h.fail(&format!("{counted:?} on {gone:?}, which is no link"));
        }
        if h.pair.initiator().signs(gone, Instant::now()) != Signs::default() {
            h.fail("signs of life on what is no link");
        }
    }
    h.finish();
}

/// Closing a link ends its ops, and none of another link.
pub fn disconnect_in_the_middle(pair: &mut dyn Pair) {
    for steps in [0, 1, 4, 12] {
        let mut h = Harness::new(pair);
        let (closing, other) = (h.connect_up(), h.connect_up());
        let size = large(&h);
        let theirs = h.remote(size * 6, Access::SHARED);
        let theirs_too = h.remote(size * 6, Access::SHARED);
        let a = load(&mut h, closing, theirs, size, 6);
        let b = load(&mut h, other, theirs_too, size, 6);
        h.submit(&a.ops);
        h.submit(&b.ops);
        for _ in 0..steps {
            h.step();
        }
        h.disconnect(a.link);
        h.run();
        a.ops.iter().for_each(|op| h.expect_success_or_link(op));
        h.expect_success(&b.ops);
        scribble_over(&mut h, &a);
        h.watch();
        h.finish();
    }
}

/// A link that breaks ends its ops with link errors. Ops of another link, to another target where there is one, succeed.
pub fn broken_link_fails_alone(pair: &mut dyn Pair) {
    for steps in [0, 1, 3, 9, 25] {
        let mut h = Harness::new(pair);
        let breaking = h.connect_up();
        let other = h.connect_elsewhere();
        h.wait_up(other);
        let size = large(&h);
        let theirs = h.remote(size * 8, Access::SHARED);
        let elsewhere = h.remote_elsewhere(size * 8, Access::SHARED);
        let a = load(&mut h, breaking, theirs, size, 8);
        let b = load(&mut h, other, elsewhere, size, 8);
        for (one, another) in a.ops.iter().zip(&b.ops) {
            h.submit(&[*one, *another]);
        }
        for _ in 0..steps {
            h.step();
        }
        h.break_link(a.link);
        h.run();
        a.ops.iter().for_each(|op| h.expect_success_or_link(op));
        h.expect_success(&b.ops);
        if h.news(b.link).downs > 0 {
            h.fail("another link was reported as broken");
        }
        scribble_over(&mut h, &a);
        h.watch();
        h.disconnect(a.link);
        let fresh = h.connect();
        still_serves(&mut h, fresh);
        h.finish();
    }
}

/// Reads whose link breaks let go of the memory they were to fill.
pub fn broken_link_in_reads(pair: &mut dyn Pair) {
    for steps in [0, 2, 6, 15] {
        let mut h = Harness::new(pair);
        let link = h.connect_up();
        let size = large(&h);
        let ours = h.local(size * 8);
        let theirs = h.remote(size * 8, Access::SHARED_READ);
        let ops: Vec<_> =
            (0..8).map(|k| h.read(link, ours.at(k * size), theirs.at(k * size), size)).collect();
        h.submit(&ops);
        for _ in 0..steps {
            h.step();
        }
        h.break_link(link);
        h.run();
        ops.iter().for_each(|op| h.expect_success_or_link(op));
        h.scribble(ours.at(0), size * 8);
        h.watch();
        h.finish();
    }
}

/// A break is told, also when nothing is in flight; then the link is tried again, comes up, and serves.
pub fn broken_link_comes_back(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    for _ in 0..3 {
        let before = h.news(link).downs;
        h.break_link(link);
        h.run_until("the break is told", |h| h.news(link).downs > before);
        h.wait_up(link);
        still_serves(&mut h, link);
    }
    h.finish();
}

/// Closing the transport ends every op, and then it is drained.
pub fn close_in_the_middle(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let (one, other) = (h.connect_up(), h.connect_elsewhere());
    let size = large(&h);
    let theirs = h.remote(size * 8, Access::SHARED);
    let elsewhere = h.remote_elsewhere(size * 8, Access::SHARED);
    let a = load(&mut h, one, theirs, size, 8);
    let b = load(&mut h, other, elsewhere, size, 8);
    h.submit(&a.ops);
    h.submit(&b.ops);
    for _ in 0..5 {
        h.step();
    }
    h.drop_not_accepted();
    h.close();
    h.run_until("everything ends after closing", |h| h.in_flight() == 0 && h.is_drained());
    for op in a.ops.iter().chain(&b.ops).filter(|op| h.was_accepted(op)) {
        h.expect_success_or_link(op);
    }
    scribble_over(&mut h, &a);
    scribble_over(&mut h, &b);
    h.watch();
    h.finish();
}

/// After closing, an op is either not accepted or fails; closing again is harmless.
pub fn closed_stays_closed(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect_up();
    let (ours, theirs) = (h.local(4096), h.remote(4096, Access::SHARED));
    h.close();
    h.close();
    let op = h.write(link, ours.at(0), theirs.at(0), 4096);
    h.submit(&[op]);
    h.drop_not_accepted();
    h.run();
    if h.was_accepted(&op) {
        match h.code(&op).map(OpErrorCode::class) {
            Some(ErrorClass::Link | ErrorClass::Device) => {}
            other => h.fail(&format!("an op after closing ended with {other:?}")),
        }
    }
    h.watch();
    h.finish();
}

/// Ops to a peer that does not answer end: by the transport's own limit, or when they are given up.
pub fn unreachable_peer(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let Some(nowhere) = h.pair.connect_unreachable() else { return };
    let good = h.connect();
    let (ours, theirs) = (h.local(64_000), h.remote(64_000, Access::SHARED));
    let lost: Vec<_> =
        (0..16).map(|k| h.write(nowhere, ours.at(k * 1000), theirs.at(k * 1000), 999)).collect();
    h.submit(&lost);
    let ops: Vec<_> = (16..32).map(|k| h.write(good, ours.at(k * 1000), theirs.at(k * 1000), 1000)).collect();
    h.submit(&ops);
    h.run_until("ops to another peer complete", |h| ops.iter().all(|op| h.is_done(op)));
    h.expect_success(&ops);
    let patience = Instant::now() + Duration::from_millis(150);
    h.run_until("a while passes", |_| Instant::now() > patience);
    for op in &lost {
        h.cancel(op.token);
    }
    h.run();
    for op in &lost {
        let codes = [
            OpErrorCode::Unreachable,
            OpErrorCode::LinkBroken,
            OpErrorCode::LinkBrokenUnfenced,
            OpErrorCode::NoLink,
            OpErrorCode::Cancelled,
            OpErrorCode::CancelledUnfenced,
        ];
        h.expect_code(op, &codes);
    }
    h.scribble(ours.at(0), 64_000);
    h.watch();
    h.disconnect(nowhere);
    h.finish();
}
