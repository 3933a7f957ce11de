//! Rows about requests that a target refuses: each fails with the right code, touches nothing, and leaves the link as it
//! was for the ops beside it.
//!
//! Not checked here: what a hostile peer could send that this transport's initiator never would; that is for tests of its
//! decoder.

use crate::error::{ErrorClass, OpErrorCode};
use crate::op::{LinkId, Op, OpKind};
use crate::testing::harness::{Harness, Mem};
use crate::testing::pair::Pair;
use crate::testing::suite::{Need, Row};
use orbit_te_memory::{Access, RegionId, RemoteKey};

pub(crate) const ROWS: &[Row] = &[
    Row { name: "unknown_region_is_refused", needs: &[Need::Admits], check: unknown_region_is_refused },
    Row { name: "stale_generation_is_refused", needs: &[Need::Admits], check: stale_generation_is_refused },
    Row { name: "wrong_key_is_refused", needs: &[], check: wrong_key_is_refused },
    Row { name: "out_of_range_is_refused", needs: &[], check: out_of_range_is_refused },
    Row { name: "length_zero_is_refused", needs: &[], check: length_zero_is_refused },
    Row {
        name: "length_over_the_limit_is_refused",
        needs: &[Need::MaxOpBytes(1 << 36)],
        check: length_over_the_limit_is_refused,
    },
    Row {
        name: "missing_right_is_refused",
        needs: &[Need::Read, Need::Write],
        check: missing_right_is_refused,
    },
    Row { name: "refusals_beside_good_ops", needs: &[Need::Write], check: refusals_beside_good_ops },
];

const SIZE: u64 = 8192;

/// The kinds of op that it does.
pub(super) fn kinds(h: &Harness<'_>) -> Vec<OpKind> {
    [OpKind::Read, OpKind::Write].into_iter().filter(|kind| h.capabilities().supports(*kind)).collect()
}

/// The op fails by itself; with exactly this code where the target's CPU can tell.
#[track_caller]
pub(super) fn expect_refused(h: &Harness<'_>, op: &Op, code: OpErrorCode) {
    if h.capabilities().admits {
        h.expect_code(op, &[code]);
        return;
    }
    match h.code(op) {
        Some(found) if found.class() == ErrorClass::Op => {}
        other => h.fail(&format!("should have been refused like {code:?}, and ended with {other:?}: {op:?}")),
    }
}

struct Scene {
    link: LinkId,
    ours: Mem,
    theirs: Mem,
}

fn scene(h: &mut Harness<'_>) -> Scene {
    Scene { link: h.connect(), ours: h.local(SIZE), theirs: h.remote(SIZE, Access::SHARED) }
}

/// The link still serves both kinds of op.
pub(super) fn still_serves(h: &mut Harness<'_>, link: LinkId) {
    let ours = h.local(1000);
    let theirs = h.remote(1000, Access::SHARED);
    for kind in kinds(h) {
        let op = h.op(kind, link, ours.at(0), theirs.at(0), 1000);
        h.run_all(&[op]);
        h.expect_success(&[op]);
    }
    h.verify();
}

fn with_key(h: &mut Harness<'_>, scene: &Scene, key: RemoteKey, code: OpErrorCode) {
    for kind in kinds(h) {
        for length in [1, 600, SIZE] {
            let (ours, theirs) = (scene.ours.at(0), scene.theirs.at(0));
            let op = h.op_with_key(kind, scene.link, ours, theirs, length, key);
            h.run_all(&[op]);
            expect_refused(h, &op, code);
        }
    }
    h.watch();
    still_serves(h, scene.link);
}

/// A number that no region of the target has.
pub fn unknown_region_is_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let scene = scene(&mut h);
    let mut descriptor = h.memory(scene.theirs).descriptor.clone();
    descriptor.region = RegionId(u64::MAX / 3);
    // Refusing it already when it is imported is as good.
    if let Ok(key) = h.import(&descriptor) {
        with_key(&mut h, &scene, key, OpErrorCode::UnknownRegion);
        h.forget(key);
    }
    h.finish();
}

/// A descriptor that was made before the region was renewed; the new one works.
pub fn stale_generation_is_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let scene = scene(&mut h);
    let old = h.remote_key(scene.theirs);
    let theirs = h.memory(scene.theirs);
    assert!(theirs.side.registry.renew(&theirs.region).is_ok(), "no new key for the region");
    with_key(&mut h, &scene, old, OpErrorCode::StaleGeneration);
    h.reimport(scene.theirs);
    for kind in kinds(&h) {
        let op = h.op(kind, scene.link, scene.ours.at(1), scene.theirs.at(5), 900);
        h.run_all(&[op]);
        h.expect_success(&[op]);
    }
    h.finish();
}

/// A key that the owner never gave out.
pub fn wrong_key_is_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let scene = scene(&mut h);
    let descriptor = h.memory(scene.theirs).descriptor.clone();
    let forged = h.forge(&descriptor);
    if let Ok(key) = h.import(&forged) {
        with_key(&mut h, &scene, key, OpErrorCode::BadKey);
        h.forget(key);
    }
    h.finish();
}

/// Ranges that begin or end behind the region's last byte, up to ones whose end has no number.
pub fn out_of_range_is_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let scene = scene(&mut h);
    let ranges = [
        (SIZE, 1),
        (SIZE - 1, 2),
        (1, SIZE),
        (SIZE - 100, 4096),
        (SIZE + 1_000_000, 64),
        (u64::MAX / 2, 4096),
        (u64::MAX, 1),
        (u64::MAX, SIZE),
        (u64::MAX - 63, 64),
        (u64::MAX - 4, 5),
        (u64::MAX - 100, 4096),
    ];
    for kind in kinds(&h) {
        for (offset, length) in ranges {
            let op = h.op(kind, scene.link, scene.ours.at(0), scene.theirs.at(offset), length);
            h.run_all(&[op]);
            expect_refused(&h, &op, OpErrorCode::OutOfRange);
        }
    }
    h.watch();
    still_serves(&mut h, scene.link);
    h.finish();
}

/// No bytes at all.
pub fn length_zero_is_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let scene = scene(&mut h);
    for kind in kinds(&h) {
        for offset in [0, 1, SIZE] {
            let op = h.op(kind, scene.link, scene.ours.at(offset), scene.theirs.at(offset), 0);
            h.run_all(&[op]);
            h.expect_code(&op, &[OpErrorCode::BadLength]);
        }
    }
    still_serves(&mut h, scene.link);
    h.finish();
}

/// One byte more than it declares to take.
pub fn length_over_the_limit_is_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let scene = scene(&mut h);
    let length = h.capabilities().max_op_bytes + 1;
    let huge = h.local_unfilled(length);
    for kind in kinds(&h) {
        let op = h.op(kind, scene.link, huge.at(0), scene.theirs.at(0), length);
        h.run_all(&[op]);
        h.expect_code(&op, &[OpErrorCode::BadLength]);
    }
    h.watch();
    still_serves(&mut h, scene.link);
    h.finish();
}

/// A write to memory that peers may only read, and a read of memory that they may only write.
pub fn missing_right_is_refused(pair: &mut dyn Pair) {
    let mut h = Harness::new(pair);
    let link = h.connect();
    let ours = h.local(SIZE);
    let read_only = h.remote(SIZE, Access::SHARED_READ);
    let write_only = h.remote(SIZE, Access::LOCAL | Access::REMOTE_WRITE);
    for length in [1, 600, SIZE] {
        let write = h.write(link, ours.at(0), read_only.at(0), length);
        let read = h.read(link, ours.at(0), write_only.at(0), length);
        h.run_all(&[write, read]);
        expect_refused(&h, &write, OpErrorCode::AccessDenied);
        expect_refused(&h, &read, OpErrorCode::AccessDenied);
        h.verify();
        let read = h.read(link, ours.at(0), read_only.at(0), length);
        h.run_all(&[read]);
        let write = h.write(link, ours.at(0), write_only.at(0), length);
        h.run_all(&[write]);
        h.expect_success(&[read, write]);
    }
    h.watch();
    still_serves(&mut h, link);
    h.finish();
}

/// Refused ops between good ones, all in flight together: the good ones succeed.
pub fn refusals_beside_good_ops(pair: &mut dyn Pair) {
    const OPS: u64 = 90;
    let mut h = Harness::new(pair);
    let link = h.connect();
    let ours = h.local(OPS * 20_000);
    let theirs = h.remote(OPS * 20_000, Access::SHARED);
    let read_only = h.remote(20_000, Access::SHARED_READ);
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    let mut all = Vec::new();
    for k in 0..OPS {
        let (from, length) = (ours.at(k * 20_000), 1 + (k * 331) % 20_000);
        let (op, refused) = match k % 5 {
            1 => (h.write(link, from, read_only.at(0), length), Some(OpErrorCode::AccessDenied)),
            3 => (h.write(link, from, theirs.at(OPS * 20_000), length), Some(OpErrorCode::OutOfRange)),
            _ => (h.write(link, from, theirs.at(k * 20_000), length), None),
        };
        all.push(op);
        match refused {
            Some(code) => bad.push((op, code)),
            None => good.push(op),
        }
    }
    h.run_all(&all);
    h.expect_success(&good);
    for (op, code) in &bad {
        expect_refused(&h, op, *code);
    }
    h.finish();
}
