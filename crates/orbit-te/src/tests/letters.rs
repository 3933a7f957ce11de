//! What transports say to each other over control links, and what comes of it when they say what they should not.

use super::foreign::{Fabric, ROUTE, SHOUT};
use super::{Met, SOON, config, eventually, meet, region};
use crate::route::{Reason, RouteId};
use crate::session::Session;
use crate::{Access, Engine, OpErrorCode, OpKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const KINDS: [OpKind; 2] = [OpKind::Write, OpKind::Read];

impl Met {
    /// The engine's session to the target, and the target's from the engine.
    fn sessions(&self) -> (Arc<Session>, Arc<Session>) {
        let ours = self.engine.shared().peers.lock()[0].session.clone();
        let theirs = self.target.shared().admitted.lock()[&ours.id].clone();
        (ours, theirs)
    }

    #[track_caller]
    fn goes_by(&self, route: RouteId) {
        for (fill, kind) in KINDS.into_iter().enumerate() {
            let receipt = self.carry(kind, fill as u8 + 1, |_| {}).unwrap();
            assert_eq!(receipt.route, Some(route), "{kind:?}: {:?}", self.why_not(ROUTE));
        }
    }

    fn why_not(&self, route: RouteId) -> Option<Reason> {
        self.segment.explain(OpKind::Write, 4096, None).wait(SOON).unwrap().others.of(route)
    }
}

/// Words go both ways, the link comes up, and the route is taken where it is best or wanted. Its peer is not taken for one of this host.
#[test]
fn a_route_is_joined_by_words_over_the_control_link() {
    let met = meet(Arc::default());
    assert!(!met.segment.same_host());
    met.goes_by(ROUTE);
    for kind in KINDS {
        for route in [ROUTE, RouteId::TCP] {
            let receipt = met.carry(kind, 77, |batch| _ = batch.route(route)).unwrap();
            assert_eq!((receipt.route, receipt.retries), (Some(route), 0));
        }
    }
    // Lists go where they are taken.
    let local = region(&met.engine, Access::LOCAL);
    let layout = crate::Layout::Strided { offset: 0, stride_bytes: 200, block_bytes: 100, count: 20 };
    let list = met.engine.prepare(OpKind::Write, &local.whole(), layout, &met.segment, layout).unwrap();
    let mut batch = crate::Batch::new();
    batch.list(&list);
    assert_eq!(met.engine.submit(batch).unwrap().wait().unwrap().route, Some(RouteId::TCP));
}

#[test]
fn every_session_has_links_of_its_own() {
    let met = meet(Arc::default());
    let other = Engine::builder().config(config(&met.fabric)).start().unwrap();
    let segment = other.open(&format!("{}/pool", met.target.address().unwrap())).wait(SOON).unwrap();
    let local = region(&other, Access::LOCAL);
    assert_eq!(segment.write(0, &local.whole()).unwrap().wait().unwrap().route, Some(ROUTE));
    met.goes_by(ROUTE);
    assert_eq!(met.fabric.count("admitted"), 2);
    drop((segment, other));
    eventually("the session of the one that left is dropped", || met.fabric.count("dropped") == 1);
    met.goes_by(ROUTE);
}

#[test]
fn a_peer_that_refuses_is_reached_over_tcp() {
    let fabric = Arc::<Fabric>::default();
    fabric.refuses.store(true, Ordering::Release);
    let met = meet(fabric);
    assert_eq!(met.fabric.count("not taken"), 1);
    met.goes_by(RouteId::TCP);
    assert_eq!(met.why_not(ROUTE), Some(Reason::LinkDown));
    let refused = met.carry(OpKind::Write, 1, |batch| _ = batch.route(ROUTE)).unwrap_err();
    assert!(refused.to_string().contains("rdma"), "{refused}");
}

/// Opening does not wait for ever, and what demands the route does.
#[test]
fn a_demanded_route_waits_for_its_link() {
    let fabric = Arc::<Fabric>::default();
    fabric.slow.store(true, Ordering::Release);
    let met = meet(fabric);
    assert_eq!(met.why_not(ROUTE), Some(Reason::Linking));
    met.goes_by(RouteId::TCP);
    let receipt = met.carry(OpKind::Write, 1, |batch| _ = batch.route(ROUTE)).unwrap();
    assert_eq!(receipt.route, Some(ROUTE));
}

#[test]
fn bytes_for_transports_that_are_not_here_are_ignored_and_counted() {
    let met = meet(Arc::default());
    let (ours, theirs) = met.sessions();
    // TCP has none, and what is built in is not all there is; at the one side a counterpart would have to be there, at the other a route.
    for name in ["tcp", "io_uring", "shm", "", "from the future"] {
        assert!(ours.say(name, vec![1]) && theirs.say(name, vec![2]));
    }
    eventually("they have come", || ours.deafness.unknown() == 5 && theirs.deafness.unknown() == 5);
    met.goes_by(ROUTE);
    assert!(ours.gone().is_none() && theirs.gone().is_none());
}

/// What the target says makes no sense to the transport: its leg goes down, what is under way there is tried again, and TCP goes on.
#[test]
fn words_that_are_not_taken_bring_down_one_leg() {
    let met = meet(Arc::default());
    met.goes_by(ROUTE);
    met.fabric.holds.store(true, Ordering::Release);
    let before = met.fabric.submitted.load(Ordering::Acquire);
    std::thread::scope(|scope| {
        let under_way = scope.spawn(|| met.carry(OpKind::Write, 9, |_| {}));
        eventually("it is under way", || met.fabric.submitted.load(Ordering::Acquire) > before);
        assert!(met.fabric.say(b"welcome"), "once more");
        let receipt = under_way.join().unwrap().unwrap();
        assert_eq!((receipt.route, receipt.retries), (Some(RouteId::TCP), 1));
        let attempt = &receipt.attempts[0];
        assert_eq!((attempt.route, attempt.reason), (ROUTE, Reason::LinkDown));
        assert_eq!(attempt.error.code, OpErrorCode::NoLink);
    });
    assert_eq!((met.fabric.count("not taken"), met.fabric.count("disconnected")), (1, 1));
    assert_eq!(met.why_not(ROUTE), Some(Reason::LinkDown));
    met.goes_by(RouteId::TCP);
    let (ours, theirs) = met.sessions();
    assert!(ours.gone().is_none() && theirs.gone().is_none());
    // It stays down, and nobody minds what is still said to it.
    assert!(met.fabric.say(b"welcome"));
    met.goes_by(RouteId::TCP);
}

/// What the transport says can't be written: its link ends instead of waiting for an answer.
#[test]
fn words_that_can_not_be_said_bring_down_one_leg() {
    let met = meet(Arc::default());
    met.fabric.holds.store(true, Ordering::Release);
    let before = met.fabric.submitted.load(Ordering::Acquire);
    std::thread::scope(|scope| {
        let under_way = scope.spawn(|| met.carry(OpKind::Read, 9, |_| {}));
        eventually("it is under way", || met.fabric.submitted.load(Ordering::Acquire) > before);
        assert!(met.fabric.say(SHOUT));
        assert_eq!(under_way.join().unwrap().unwrap().route, Some(RouteId::TCP));
    });
    assert_eq!(met.fabric.count("disconnected"), 1);
    met.goes_by(RouteId::TCP);
}

/// What the engine's transport says makes no sense to the counterpart: it is used no more in this session, which goes on.
#[test]
fn a_counterpart_that_does_not_take_it_is_used_no_more() {
    let met = meet(Arc::default());
    let (ours, theirs) = met.sessions();
    for _ in 0..3 {
        assert!(ours.say("rdma", b"nonsense".to_vec()));
    }
    assert!(ours.say("nobody", Vec::new()));
    eventually("all of it has come", || theirs.deafness.unknown() == 1);
    assert_eq!((met.fabric.count("nonsense"), met.fabric.count("dropped")), (1, 1));
    assert!(met.target.shared().addresses_for(&theirs).is_empty(), "and is announced no more");
    assert!(met.carry(OpKind::Write, 3, |batch| _ = batch.route(RouteId::TCP)).is_ok());
    // Others are welcome as before.
    let other = Engine::builder().config(config(&met.fabric)).start().unwrap();
    other.open(&format!("{}/pool", met.target.address().unwrap())).wait(SOON).unwrap();
    assert_eq!(met.fabric.count("admitted"), 2);
}

/// Processes of one host have nothing to say to each other here: who does loses that way, at either side, and keeps the others.
#[test]
fn the_ways_of_one_host_take_no_words() {
    let target = Engine::builder().start().unwrap();
    let remote = region(&target, Access::SHARED);
    target.expose("pool", &remote).unwrap();
    let engine = Engine::builder().no_listen().start().unwrap();
    let segment = engine.open(&format!("{}/pool", target.address().unwrap())).wait(SOON).unwrap();
    assert!(segment.same_host());
    let met = Met { fabric: Arc::default(), engine, segment, remote, target };
    let (ours, theirs) = met.sessions();
    let reason = |route| met.why_not(route).map(Reason::name);
    assert_eq!(reason(RouteId::SHM), None);
    assert!(theirs.say("shm", b"anything".to_vec()));
    eventually("one leg is down", || reason(RouteId::SHM) == Some("link-down"));
    met.goes_by(RouteId::PROCESS_VM);
    assert!(ours.say("process_vm", b"anything".to_vec()));
    eventually("the other is as well", || {
        let receipt = met.carry(OpKind::Write, 5, |_| {}).unwrap();
        receipt.route == Some(RouteId::TCP)
    });
    met.goes_by(RouteId::TCP);
    assert!(ours.gone().is_none() && theirs.gone().is_none());
}

#[test]
fn the_end_of_a_session_ends_the_links_and_their_words() {
    let met = meet(Arc::default());
    met.goes_by(ROUTE);
    met.target.shutdown();
    eventually("the link is closed", || met.fabric.count("disconnected") == 1);
    eventually("and at the other side", || met.fabric.count("dropped") == 1);
    assert_eq!(met.fabric.count("closed"), 1, "also the counterpart");
    assert!(!met.fabric.say(b"welcome"), "nobody hears it");
    let error = met.engine.submit({
        let mut batch = crate::Batch::new();
        batch.write(&met.segment, 0, &region(&met.engine, Access::LOCAL).whole());
        batch
    });
    assert!(error.is_err() || error.unwrap().wait().is_err());
}

/// A peer whose transports say more than the worker takes loses its session, in bounded room and with the reason.
#[test]
fn a_flood_ends_the_session() {
    let met = meet(Arc::default());
    let (ours, theirs) = met.sessions();
    met.fabric.stalls.store(true, Ordering::Release);
    // Somebody has the core now, and is in the transport.
    let local = region(&met.engine, Access::LOCAL);
    let transfer = met.segment.write(0, &local.whole()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let mut said = 0;
    eventually("the session ends", || {
        while said < 10_000 && theirs.say("rdma", b"welcome".to_vec()) {
            said += 1;
        }
        ours.gone().is_some()
    });
    assert!((200..2000).contains(&said), "{said}");
    let cause = ours.gone().unwrap();
    assert!(cause.contains("say more than is taken"), "{cause}");
    // The control thread is free all the while.
    let other = Engine::builder().config(config(&met.fabric)).start().unwrap();
    assert!(met.engine.open(&format!("{}/none", other.address().unwrap())).wait(SOON).is_err());
    met.fabric.stalls.store(false, Ordering::Release);
    let _ = transfer.wait();
}

/// Words wait in the session's own queue, and are refused when that is full.
#[test]
fn what_is_said_never_waits() {
    let met = meet(Arc::default());
    let (ours, _) = met.sessions();
    let (session, queue) = Session::new(ours.id, ours.peer, ours.address, *ours.terms());
    let said = (0..100_000).take_while(|_| session.say("rdma", vec![0; 100])).count();
    assert!((16..1000).contains(&said), "{said}");
    assert!(!session.say("rdma", vec![0; 1 << 20]), "more than a message takes");
    drop(queue);
    assert!(!session.say("rdma", Vec::new()), "nobody writes it");
}

#[test]
fn counterparts_are_looked_after_until_the_engine_ends() {
    let fabric = Arc::<Fabric>::default();
    let deaf = Engine::builder().config(crate::Config { listen: None, ..config(&fabric) }).start().unwrap();
    let target = Engine::builder().config(config(&fabric)).start().unwrap();
    eventually("it is polled", || fabric.polls.load(Ordering::Acquire) > 2);
    target.shutdown();
    assert!(fabric.count("closed") >= 1);
    let polls = fabric.polls.load(Ordering::Acquire);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(
        fabric.polls.load(Ordering::Acquire),
        polls,
        "nobody polls any more, nor for who is not reached"
    );
    drop(deaf);
}
