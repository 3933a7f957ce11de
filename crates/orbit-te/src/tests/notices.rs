//! Notifications by a route beside TCP: they go by it where it is up and takes them, by TCP otherwise; and whatever becomes of the route, each comes
//! once and in order.

use super::foreign::{FALL, Notices};
use super::{Met, SOON, eventually, meet, region};
use crate::{Access, Batch, Error, TransferError};
use orbit_te_transport::OpErrorCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Sends notifications of these payloads, one after the other, with the fabric as it is set before each; what the target has then, and how many
/// the route took.
fn check(steps: &[Notices], by_route: usize) {
    let met = meet(Arc::default());
    let mut inbox = met.target.notifications().unwrap();
    for (number, step) in (0u8..).zip(steps) {
        *met.fabric.notices.lock() = *step;
        let sent = met.engine.notify(&met.segment, "n", &[number]).wait(SOON);
        sent.unwrap_or_else(|error| panic!("{steps:?}, {number}: {error}"));
    }
    let taken: Vec<u8> = std::iter::from_fn(|| inbox.try_recv().map(|n| n.payload[0])).collect();
    assert_eq!(taken, (0..steps.len() as u8).collect::<Vec<_>>(), "{steps:?}");
    assert_eq!(met.fabric.notified.load(Ordering::Acquire), by_route, "{steps:?}");
}

#[test]
fn each_comes_once_and_in_order() {
    use Notices::{Delivered, Failed, Lost, None};
    use OpErrorCode::{LinkBroken, NoLink, Unreachable, Unsupported};
    check(&[None, None], 0);
    check(&[Delivered, Delivered, Delivered], 3);
    check(&[Delivered, None, Delivered], 2);
    // The route fails: that one is sent again by TCP, and the next ones at once.
    check(&[Delivered, Failed(LinkBroken), Delivered], 2);
    check(&[Failed(NoLink), Delivered], 1);
    check(&[Failed(Unreachable), Delivered], 1);
    check(&[Failed(Unsupported), Delivered], 1);
    // It was delivered, but the answer is lost: the target has it once.
    check(&[Lost(LinkBroken), Delivered, Delivered], 1);
    check(&[Lost(NoLink), Delivered], 1);
}

#[test]
fn one_that_is_bound_to_a_batch_follows_its_bytes() {
    let Met { engine, segment, target, fabric, remote, .. } = meet(Arc::default());
    *fabric.notices.lock() = Notices::Delivered;
    let mut inbox = target.notifications().unwrap();
    let local = region(&engine, Access::LOCAL);
    local.write_at(0, &[5; 100]).unwrap();
    let mut batch = Batch::new();
    batch.write(&segment, 0, &local.slice(0, 100).unwrap());
    batch.notify(&segment, "done", b"x");
    engine.submit(batch).unwrap().wait().unwrap();
    assert_eq!(inbox.try_recv().map(|n| n.name).as_deref(), Some("done"));
    let mut found = [0; 100];
    remote.read_at(0, &mut found).unwrap();
    assert_eq!(found, [5; 100]);
    assert_eq!(fabric.notified.load(Ordering::Acquire), 1);
}

#[test]
fn one_that_is_kept_is_given_up() {
    let met = meet(Arc::default());
    *met.fabric.notices.lock() = Notices::Kept;
    let mut inbox = met.target.notifications().unwrap();
    let local = region(&met.engine, Access::LOCAL);
    let mut batch = Batch::new();
    batch.write(&met.segment, 0, &local.slice(0, 10).unwrap());
    batch.notify(&met.segment, "late", b"").deadline(std::time::Duration::from_millis(200));
    let transfer = met.engine.submit(batch).unwrap();
    eventually("the route has it", || met.fabric.notified.load(Ordering::Acquire) == 1);
    // The bytes are in place, and the deadline has passed.
    assert!(matches!(transfer.wait(), Err(TransferError::Notification(_))));
    // The next one has a number of its own.
    *met.fabric.notices.lock() = Notices::Delivered;
    met.engine.notify(&met.segment, "next", b"").wait(SOON).unwrap();
    assert_eq!(inbox.try_recv().map(|n| n.name).as_deref(), Some("next"));
    assert!(inbox.try_recv().is_none());
    // One under way does not hold a shutdown up.
    *met.fabric.notices.lock() = Notices::Kept;
    let last = met.engine.notify(&met.segment, "last", b"");
    eventually("the route has it", || met.fabric.notified.load(Ordering::Acquire) == 3);
    met.engine.shutdown();
    assert!(matches!(last.wait(SOON), Err(Error::Closed)));
}

#[test]
fn one_that_waits_for_a_route_that_is_down_goes_another_way() {
    let met = meet(Arc::default());
    *met.fabric.notices.lock() = Notices::Kept;
    let mut inbox = met.target.notifications().unwrap();
    let sent = met.engine.notify(&met.segment, "n", b"");
    eventually("the route has it", || met.fabric.notified.load(Ordering::Acquire) == 1);
    assert!(inbox.try_recv().is_none());
    assert!(met.fabric.say(FALL));
    sent.wait(SOON).unwrap();
    assert!(inbox.try_recv().is_some() && inbox.try_recv().is_none());
    // The route is down: no more of them go there.
    met.engine.notify(&met.segment, "n", b"").wait(SOON).unwrap();
    assert_eq!(met.fabric.notified.load(Ordering::Acquire), 1);
}
