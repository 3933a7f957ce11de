//! A row of chance: ops of random kinds, sizes, places and fates, against the model of both memories.
//!
//! The seed is printed, and with `ORBIT_TE_SEED` the same ops come again; the moments at which bytes move over a real
//! network do not. Not checked here: ops that overlap, and several targets.

use crate::error::OpErrorCode;
use crate::op::{LinkId, Op, OpKind};
use crate::testing::harness::{Harness, Mem};
use crate::testing::pair::Pair;
use crate::testing::pattern::{Rng, seed};
use crate::testing::rows::refusals::expect_refused;
use crate::testing::suite::{Need, Row};
use orbit_te_memory::Access;

pub(crate) const ROWS: &[Row] = &[Row {
    name: "random_ops_against_a_model",
    needs: &[Need::Read, Need::Write],
    check: random_ops_against_a_model,
}];

const ROUNDS: u32 = 30;
const SLOTS: u64 = 40;
const SLOT: u64 = 70_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Good,
    OutOfRange,
    Denied,
    GivenUp,
}

struct Scene {
    links: [LinkId; 2],
    ours: Mem,
    theirs: Mem,
    read_only: Mem,
}

/// Thirty rounds of forty ops each; every round is compared byte by byte, guards included.
pub fn random_ops_against_a_model(pair: &mut dyn Pair) {
    let seed = seed();
    println!("ORBIT_TE_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut h = Harness::new(pair);
    h.note(format!("ORBIT_TE_SEED={seed}"));
    let links = [h.connect_up(), h.connect_up()];
    let ours = h.local(SLOTS * SLOT);
    let theirs = h.remote(SLOTS * SLOT, Access::SHARED);
    let read_only = h.remote(SLOT, Access::SHARED_READ);
    let scene = Scene { links, ours, theirs, read_only };
    for _ in 0..ROUNDS {
        round(&mut h, &scene, &mut rng);
    }
    h.finish();
}

fn round(h: &mut Harness<'_>, scene: &Scene, rng: &mut Rng) {
    // Every slot of either side is used by one op at most, in an order of chance.
    let mut order: Vec<u64> = (0..SLOTS).collect();
    for k in (1..order.len()).rev() {
        order.swap(k, rng.below(k as u64 + 1) as usize);
    }
    let ops: Vec<_> = (0..SLOTS).map(|k| draw(h, scene, rng, k, order[k as usize])).collect();
    let mut at = 0;
    while at < ops.len() {
        let count = (1 + rng.below(9) as usize).min(ops.len() - at);
        let some: Vec<_> = ops[at..at + count].iter().map(|(op, _)| *op).collect();
        h.submit(&some);
        at += count;
        for _ in 0..rng.below(3) {
            h.step();
        }
        for (op, fate) in &ops[..at] {
            if *fate == Fate::GivenUp && rng.once_in(3) {
                h.cancel(op.token);
            }
        }
    }
    for (op, fate) in &ops {
        if *fate == Fate::GivenUp {
            h.cancel(op.token);
        }
    }
    h.run();
    let cut = ops.iter().any(|(_, fate)| *fate == Fate::GivenUp);
    for (op, fate) in &ops {
        check(h, op, *fate, cut);
    }
    h.verify();
    for link in scene.links {
        h.wait_up(link);
    }
    if cut {
        // What a write left open must be closed before its bytes are used again.
        h.watch();
        h.close_loose();
    }
}

fn draw(h: &mut Harness<'_>, scene: &Scene, rng: &mut Rng, k: u64, slot: u64) -> (Op, Fate) {
    let most = SLOT.min(h.capabilities().max_op_bytes);
    let bound = [16, 600, 5000, most][rng.below(4) as usize].min(most);
    let length = 1 + rng.below(bound);
    let local = scene.ours.at(k * SLOT + rng.below(SLOT - length + 1));
    let remote = scene.theirs.at(slot * SLOT + rng.below(SLOT - length + 1));
    let link = scene.links[rng.below(2) as usize];
    let kind = if rng.once_in(2) { OpKind::Read } else { OpKind::Write };
    match rng.below(12) {
        0 => {
            let offset = SLOTS * SLOT - rng.below(length);
            (h.op(kind, link, local, scene.theirs.at(offset), length), Fate::OutOfRange)
        }
        1 => (h.write(link, local, scene.read_only.at(0), length), Fate::Denied),
        2 => (h.op(kind, link, local, remote, length), Fate::GivenUp),
        _ => (h.op(kind, link, local, remote, length), Fate::Good),
    }
}

fn check(h: &Harness<'_>, op: &Op, fate: Fate, cut: bool) {
    let link_error = h.code(op).is_some_and(|code| code.class() == crate::ErrorClass::Link);
    if cut && link_error {
        // An op beside one that was given up may lose its link.
        return;
    }
    match fate {
        Fate::Good => h.expect_success(&[*op]),
        Fate::OutOfRange => expect_refused(h, op, OpErrorCode::OutOfRange),
        Fate::Denied => expect_refused(h, op, OpErrorCode::AccessDenied),
        Fate::GivenUp => {
            h.expect_success_or_cancelled(op);
        }
    }
}
