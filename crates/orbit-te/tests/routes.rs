//! Which route a request takes, who may say so, and what is told of it. Rule: bytes are compared on every route, and a route that is not taken has
//! its reason, in `explain` and in the refusal.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use nix::sys::signal::Signal;
use orbit_te::route::{Policy, Reason, RouteId, Why};
use orbit_te::{
    Access, Backing, Batch, Config, Engine, HostBuffer, OpErrorCode, OpKind, PeerCondition, Receipt, Region,
    Registration, Segment, TransferError,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::child::{self, Target};
use support::{SOON, contents, pattern_bytes, region, watchdog};

const SIZE: usize = 1 << 20;
const SHM: RouteId = RouteId::SHM;
const KERNEL: RouteId = RouteId::PROCESS_VM;
const TCP: RouteId = RouteId::TCP;
const KINDS: [OpKind; 2] = [OpKind::Write, OpKind::Read];

/// Not a test of this process: the target of the others.
#[test]
fn child_target() {
    child::run();
}

fn owned(length: usize) -> Backing {
    HostBuffer::new(length).unwrap().into_backing()
}

fn from_vec(length: usize) -> Backing {
    Backing::from_vec(vec![0; length]).unwrap()
}

/// An engine that only reaches others.
fn opener(config: Config) -> Engine {
    Engine::builder().config(Config { listen: None, ..config }).start().unwrap()
}

/// A target, a region of it, and its segment as another engine sees it.
struct Met {
    engine: Engine,
    segment: Segment,
    remote: Region,
    target: Engine,
}

fn meet_by(target: Config, memory: Registration, config: Config) -> Met {
    let target = Engine::builder().config(target).start().unwrap();
    let remote = target.register_all([memory]).unwrap().remove(0);
    target.expose("pool", &remote).unwrap();
    let engine = opener(config);
    let segment = engine.open(&format!("{}/pool", target.address().unwrap())).wait(SOON).unwrap();
    Met { engine, segment, remote, target }
}

fn meet(memory: Registration) -> Met {
    meet_by(Config::default(), memory, Config::default())
}

fn whole(backing: Backing) -> Registration {
    Registration::new(backing, Access::SHARED)
}

impl Met {
    /// One request over all of the segment, with bytes that are compared.
    fn carry(&self, kind: OpKind, seed: u64, set: impl FnOnce(&mut Batch)) -> Result<Receipt, TransferError> {
        let length = self.segment.len();
        let bytes = pattern_bytes(seed, 0, length as usize);
        let local = region(&self.engine, &vec![0; length as usize], Access::LOCAL);
        let mut batch = Batch::new();
        match kind {
            OpKind::Write => {
                local.write_at(0, &bytes).unwrap();
                batch.write(&self.segment, 0, &local.whole());
            }
            OpKind::Read => {
                self.remote.write_at(0, &bytes).unwrap();
                batch.read(&self.segment, 0, &local.whole());
            }
        }
        set(&mut batch);
        let ended = self.engine.submit(batch).unwrap().wait();
        if ended.is_ok() {
            assert!(contents(&local) == bytes && contents(&self.remote) == bytes, "wrong bytes");
        }
        assert_eq!(local.leases(), 0);
        ended
    }

    fn why_not(&self, kind: OpKind, route: RouteId) -> Option<Reason> {
        self.segment.explain(kind, self.segment.len(), None).wait(SOON).unwrap().others.of(route)
    }

    /// Both kinds go over this route, and receipt and plan say so.
    #[track_caller]
    fn goes_by(&self, route: RouteId) {
        for (seed, kind) in KINDS.into_iter().enumerate() {
            let plan = self.segment.explain(kind, self.segment.len(), None).wait(SOON).unwrap();
            assert_eq!(plan.route.map_err(|refusal| refusal.to_string()), Ok(route), "{:?}", plan.others);
            let receipt = self.carry(kind, seed as u64 + 1, |_| {}).unwrap();
            assert_eq!(receipt.route, Some(route));
            assert_eq!(receipt.routes.iter().collect::<Vec<_>>(), [(route, self.segment.len())]);
            assert_eq!((receipt.retries, receipt.attempts.len()), (0, 0));
        }
    }
}

/// Memory of the peer takes the best route that reaches it, and each other route has its reason.
#[test]
fn memory_decides() {
    let _dog = watchdog("memory_decides", Duration::from_secs(60));
    let check = |memory: Registration, route: RouteId, shm: Option<&str>| {
        let met = meet(memory);
        assert!(met.segment.same_host());
        // Before it is measured how long a first use takes.
        for kind in KINDS {
            assert_eq!(met.why_not(kind, SHM).map(Reason::name), shm);
            let slower = met.why_not(kind, TCP).map(Reason::name);
            assert!(matches!(slower, Some("slower" | "too-little-gain")), "{slower:?}");
        }
        met.goes_by(route);
    };
    check(whole(owned(SIZE)), SHM, None);
    check(whole(owned(3)), SHM, None);
    check(whole(from_vec(SIZE)), KERNEL, Some("memory-not-shared"));
    check(whole(from_vec(3)), KERNEL, Some("memory-not-shared"));
    check(whole(owned(SIZE).that_may_vanish()), SHM, None);
    let part = Registration::range(owned(2 * SIZE), 4096, SIZE as u64, Access::SHARED);
    check(part, KERNEL, Some("part-of-buffer"));
    // It begins and ends inside of pages.
    let part = Registration::range(owned(SIZE), 17, 5000, Access::SHARED);
    check(part, KERNEL, Some("part-of-buffer"));
}

/// What peers may only write is not mapped, since they could read it then; it is written all the same.
#[test]
fn memory_that_may_only_be_written() {
    let _dog = watchdog("memory_that_may_only_be_written", Duration::from_secs(60));
    let met = meet(Registration::new(owned(SIZE), Access::REMOTE_WRITE | Access::LOCAL));
    assert_eq!(met.why_not(OpKind::Write, SHM), Some(Reason::WriteOnly));
    assert_eq!(met.carry(OpKind::Write, 1, |_| {}).unwrap().route, Some(KERNEL));
    let demanded = met.carry(OpKind::Write, 2, |batch| {
        batch.route(SHM);
    });
    assert_eq!(demanded.unwrap_err().op_code(), Some(OpErrorCode::NoRoute));
}

/// The plan says why the route that is taken is taken.
#[test]
fn the_plan_says_why() {
    let _dog = watchdog("the_plan_says_why", Duration::from_secs(60));
    let met = meet(whole(owned(SIZE)));
    let plan = |demand| met.segment.explain(OpKind::Read, 4096, demand).wait(SOON).unwrap();
    assert!(matches!(plan(None).why, Why::Fastest | Why::Preferred), "{:?}", plan(None).why);
    assert!(plan(None).expected > Duration::ZERO);
    assert_eq!(plan(Some(TCP)).why, Why::Demanded);
    assert_eq!(plan(Some(TCP)).others.of(SHM), Some(Reason::Demanded { route: TCP }));
    let refusal = plan(Some(RouteId::RDMA)).route.unwrap_err();
    assert_eq!(refusal.reason(), Reason::NotBuilt);
    let counted: Vec<_> = met.engine.route_reasons().into_iter().filter(|(_, count)| *count > 0).collect();
    assert!(counted.is_empty(), "an explanation is counted as a decision: {counted:?}");
}

/// A demand is honoured, or refused with the reason; it is never swapped for another route.
#[test]
fn demands() {
    let _dog = watchdog("demands", Duration::from_secs(60));
    let check = |memory: Registration, demand: RouteId, verify: bool, expected: Result<(), &str>| {
        let met = meet(memory);
        for (seed, kind) in KINDS.into_iter().enumerate() {
            let ended = met.carry(kind, seed as u64 + 1, |batch| {
                batch.route(demand).verify(verify);
            });
            match (ended, expected) {
                (Ok(receipt), Ok(())) => {
                    assert_eq!(receipt.route, Some(demand));
                    assert_eq!(receipt.attempts, []);
                }
                (Err(error), Err(reason)) => {
                    assert_eq!(error.op_code(), Some(OpErrorCode::NoRoute), "{error}");
                    let TransferError::Request { cause: Some(cause), .. } = &error else {
                        panic!("{error:?}")
                    };
                    assert!(cause.contains(demand.name()) && cause.contains(reason), "{cause}");
                }
                (ended, expected) => panic!("{demand}: {ended:?}, and not {expected:?}"),
            }
        }
        // It holds for its batch alone.
        assert!(met.carry(OpKind::Write, 9, |_| {}).is_ok());
    };
    for demand in [SHM, KERNEL, TCP] {
        check(whole(owned(SIZE)), demand, false, Ok(()));
    }
    check(whole(from_vec(SIZE)), KERNEL, false, Ok(()));
    check(whole(from_vec(SIZE)), TCP, false, Ok(()));
    check(whole(from_vec(SIZE)), SHM, false, Err("not made to be shared"));
    let part = || Registration::range(owned(2 * SIZE), 4096, SIZE as u64, Access::SHARED);
    check(part(), SHM, false, Err("part of a larger buffer"));
    check(part(), KERNEL, false, Ok(()));
    check(whole(owned(SIZE)), TCP, true, Ok(()));
    check(whole(owned(SIZE)), SHM, true, Err("verif"));
    check(whole(owned(SIZE)), KERNEL, true, Err("verif"));
    check(whole(owned(SIZE)), RouteId::RDMA, false, Err("no such route"));
}

/// Who verifies takes the route that can.
#[test]
fn verified_batches() {
    let _dog = watchdog("verified_batches", Duration::from_secs(60));
    let met = meet(whole(owned(SIZE)));
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let receipt = met
            .carry(kind, seed as u64 + 1, |batch| {
                batch.verify(true);
            })
            .unwrap();
        assert_eq!(receipt.route, Some(TCP));
    }
    let reasons = met.engine.route_reasons();
    let count = reasons.iter().find(|(name, _)| name.contains("checksums")).map(|(_, count)| *count);
    assert!(count >= Some(4), "{reasons:?}");
    met.goes_by(SHM);
}

/// A batch may take several routes, and its receipt has the bytes of each.
#[test]
fn one_batch_over_two_routes() {
    let _dog = watchdog("one_batch_over_two_routes", Duration::from_secs(60));
    let met = meet(whole(owned(SIZE)));
    let own = met.target.register(from_vec(SIZE), Access::SHARED).unwrap();
    met.target.expose("own", &own).unwrap();
    let other = met.engine.open(&format!("{}/own", met.target.address().unwrap())).wait(SOON).unwrap();
    let bytes = pattern_bytes(4, 0, SIZE);
    let local = region(&met.engine, &bytes, Access::LOCAL);
    let mut batch = Batch::new();
    batch.write(&met.segment, 0, &local.whole());
    batch.write(&other, 0, &local.slice(0, 1000).unwrap());
    let receipt = met.engine.submit(batch).unwrap().wait().unwrap();
    assert_eq!(receipt.routes.iter().collect::<Vec<_>>(), [(SHM, SIZE as u64), (KERNEL, 1000)]);
    assert_eq!((receipt.route, receipt.bytes), (Some(SHM), SIZE as u64 + 1000));
    assert!(contents(&met.remote) == bytes && contents(&own)[..1000] == bytes[..1000]);
}

/// Without the same-host routes at either side, everything goes over TCP, and a demand is told why.
#[test]
fn switched_off_at_either_side() {
    let _dog = watchdog("switched_off_at_either_side", Duration::from_secs(60));
    let without = || Config { shm: None, ..Config::default() };
    let check = |target: Config, config: Config, explained: Option<&str>, refused: &str| {
        let met = meet_by(target, whole(owned(SIZE)), config);
        assert!(!met.segment.same_host());
        met.goes_by(TCP);
        for route in [SHM, KERNEL] {
            assert_eq!(met.why_not(OpKind::Read, route).map(Reason::name), explained);
            let error = met
                .carry(OpKind::Read, 3, |batch| {
                    batch.route(route);
                })
                .unwrap_err();
            assert_eq!(error.op_code(), Some(OpErrorCode::NoRoute));
            assert!(error.to_string().contains(refused), "{error}");
        }
    };
    check(without(), Config::default(), Some("not-offered"), "does not offer");
    check(Config::default(), without(), None, "switches it off");
    check(without(), without(), None, "switches it off");
}

fn policed(text: &str) -> Config {
    Config { policy: Arc::new(Policy::parse(text).unwrap()), ..Config::default() }
}

/// Rules by size, by segment, by kind, and demands of rules.
#[test]
fn rules() {
    let _dog = watchdog("rules", Duration::from_secs(60));
    let check = |text: &str, kind: OpKind, bytes: u64, expected: Result<RouteId, &str>| {
        let met = meet_by(Config::default(), whole(owned(SIZE)), policed(text));
        let local = region(&met.engine, &pattern_bytes(5, 0, bytes as usize), Access::LOCAL);
        let mut batch = Batch::new();
        match kind {
            OpKind::Write => batch.write(&met.segment, 0, &local.whole()),
            OpKind::Read => batch.read(&met.segment, 0, &local.whole()),
        };
        let plan = met.segment.explain(kind, bytes, None).wait(SOON).unwrap();
        let ended = met.engine.submit(batch).unwrap().wait();
        match expected {
            Ok(route) => {
                assert_eq!(ended.unwrap().route, Some(route), "{text}");
                assert_eq!(plan.route.ok(), Some(route), "{text}");
            }
            Err(words) => {
                let error = ended.unwrap_err();
                assert_eq!(error.op_code(), Some(OpErrorCode::NoRoute), "{text}");
                assert!(error.to_string().contains(words), "{text}: {error}");
            }
        }
    };
    let large = "[[rule]]\nname = \"large\"\nmin_bytes = 100000\nroutes = [\"tcp\"]\n";
    check(large, OpKind::Write, 100_000, Ok(TCP));
    check(large, OpKind::Write, 99_999, Ok(SHM));
    let pool = "[[rule]]\nname = \"pools\"\nsegment = \"po*\"\nroutes = [\"process_vm\", \"tcp\"]\n";
    check(pool, OpKind::Read, 5000, Ok(KERNEL));
    check(&pool.replace("po*", "other*"), OpKind::Read, 5000, Ok(SHM));
    let reads = "[[rule]]\nname = \"reads\"\nkind = \"read\"\ndemand = \"tcp\"\n";
    check(reads, OpKind::Read, 5000, Ok(TCP));
    check(reads, OpKind::Write, 5000, Ok(SHM));
    let rdma = "[[rule]]\nname = \"fabric\"\ndemand = \"rdma\"\n";
    check(rdma, OpKind::Write, 5000, Err("rdma"));
    let same = "[[rule]]\nname = \"here\"\nsame_host = true\nroutes = [\"tcp\"]\n";
    check(same, OpKind::Write, 5000, Ok(TCP));
    // The first one that fits counts.
    check(&format!("{reads}{pool}"), OpKind::Read, 5000, Ok(TCP));
    check(&format!("{reads}{pool}"), OpKind::Write, 5000, Ok(KERNEL));
}

/// A stopped peer: what was entered before is read and written by shared memory as ever. A first use needs the peer, and ends as stalled.
#[test]
fn a_stopped_peer() {
    let _dog = watchdog("a_stopped_peer", Duration::from_secs(60));
    let (target, engine) = (Target::start(SIZE), opener(Config::default()));
    let pool = target.open(&engine);
    let (late, own) = (target.open_other(&pool, &engine, "late"), target.open_other(&pool, &engine, "own"));
    let there = region(&engine, &pattern_bytes(3, 0, SIZE), Access::LOCAL);
    let back = region(&engine, &vec![0; SIZE], Access::LOCAL);
    // The route is demanded: by itself the planner may try another one, for which the peer is needed.
    let round_trip = |segment: &Segment, route: RouteId| {
        back.write_at(0, &vec![0; SIZE]).unwrap();
        for kind in KINDS {
            let mut batch = Batch::new();
            match kind {
                OpKind::Write => batch.write(segment, 0, &there.whole()),
                OpKind::Read => batch.read(segment, 0, &back.whole()),
            };
            batch.route(route).deadline(Duration::from_secs(5));
            assert_eq!(engine.submit(batch).unwrap().wait().unwrap().route, Some(route));
        }
        assert!(contents(&back) == contents(&there), "wrong bytes");
    };
    round_trip(&pool, SHM);
    round_trip(&own, KERNEL);
    target.signal(Signal::SIGSTOP);
    for _ in 0..20 {
        round_trip(&pool, SHM);
        round_trip(&own, KERNEL);
    }
    let limit = Duration::from_millis(400);
    for demand in [None, Some(SHM), Some(KERNEL)] {
        let mut batch = Batch::new();
        batch.read(&late, 0, &back.whole()).deadline(limit);
        demand.map(|route| batch.route(route));
        let begun = Instant::now();
        let error = engine.submit(batch).unwrap().wait().unwrap_err();
        let TransferError::Deadline { fenced: true, peer, .. } = &error else { panic!("{error:?}") };
        assert!(matches!(peer, Some(PeerCondition::Stalled { .. })), "{demand:?} {error:?}");
        assert!(begun.elapsed() >= limit && begun.elapsed() < limit + Duration::from_millis(600));
        round_trip(&pool, SHM);
    }
    target.signal(Signal::SIGCONT);
    round_trip(&late, SHM);
}
