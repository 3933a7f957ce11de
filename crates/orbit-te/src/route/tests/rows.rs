//! One row for each decision.

use super::*;

/// What is different from a read of a mebibyte over three routes that take 100, 120 and 300 µs, all of them well.
struct Row {
    name: &'static str,
    change: fn(&mut Question, &mut [RouteState<'_>; 3]),
    policy: &'static str,
    route: Result<RouteId, Reason>,
    why: Why,
    /// Of the two (or three) others, those that the row is about.
    others: &'static [(RouteId, Reason)],
}

const SHM: RouteId = RouteId::SHM;
const VM: RouteId = RouteId::PROCESS_VM;
const TCP: RouteId = RouteId::TCP;

fn row(
    name: &'static str,
    change: fn(&mut Question, &mut [RouteState<'_>; 3]),
    policy: &'static str,
    route: Result<RouteId, Reason>,
    why: Why,
    others: &'static [(RouteId, Reason)],
) -> Row {
    Row { name, change, policy, route, why, others }
}

fn rows() -> Vec<Row> {
    use Reason::*;
    vec![
        row(
            "the fastest",
            |_, _| {},
            "",
            Ok(SHM),
            Why::Fastest,
            &[
                (VM, Slower { expected_us: 120, chosen_us: 100 }),
                (TCP, Slower { expected_us: 300, chosen_us: 100 }),
            ],
        ),
        row(
            "one that can't",
            |_, r| r[0].usable = Err(PartOfBuffer),
            "",
            Ok(VM),
            Why::Fastest,
            &[(SHM, PartOfBuffer)],
        ),
        row(
            "the only one",
            |_, r| (r[0].usable, r[1].usable) = (Err(Linking), Err(OtherUser { ours: 1, theirs: 2 })),
            "",
            Ok(TCP),
            Why::OnlyOne,
            &[(SHM, Linking), (VM, OtherUser { ours: 1, theirs: 2 })],
        ),
        row(
            "none",
            |_, r| r.iter_mut().for_each(|r| r.usable = Err(LinkDown)),
            "",
            Err(LinkDown),
            Why::OnlyOne,
            &[(SHM, LinkDown), (TCP, LinkDown)],
        ),
        row(
            "demanded",
            |q, _| q.demand = Some(TCP),
            "",
            Ok(TCP),
            Why::Demanded,
            &[(SHM, Demanded { route: TCP }), (VM, Demanded { route: TCP })],
        ),
        row(
            "demanded and not there",
            |q, r| (q.demand, r[0].usable) = (Some(SHM), Err(KernelRefuses { errno: 1 })),
            "",
            Err(KernelRefuses { errno: 1 }),
            Why::OnlyOne,
            &[(TCP, Demanded { route: SHM })],
        ),
        row(
            "demanded while its link is being made",
            |q, r| (q.demand, r[0].usable) = (Some(SHM), Err(Linking)),
            "",
            Ok(SHM),
            Why::Demanded,
            &[(TCP, Demanded { route: SHM })],
        ),
        row(
            "demanded and not built",
            |q, _| q.demand = Some(RouteId::RDMA),
            "",
            Err(NotBuilt),
            Why::OnlyOne,
            &[(RouteId::RDMA, NotBuilt), (TCP, Demanded { route: RouteId::RDMA })],
        ),
        row(
            "demanded although it rests, has failed and is slow",
            |q, r| {
                (q.demand, q.failed, q.attempt) = (Some(TCP), RouteSet::NONE.with(TCP), 1);
                r[2].resting_until = Some(q.now + Duration::from_secs(1));
            },
            "",
            Ok(TCP),
            Why::Demanded,
            &[],
        ),
        row(
            "demanded and forbidden by a rule",
            |q, _| q.demand = Some(TCP),
            "[[rule]]\nname = 'a'\nroutes = ['shm']",
            Err(Rule { rule: 1 }),
            Why::OnlyOne,
            &[(SHM, Demanded { route: TCP })],
        ),
        row(
            "a rule that demands",
            |_, _| {},
            "[[rule]]\nname = 'a'\nmin_bytes = 2_000_000\nroutes = ['shm']\n[[rule]]\nname = 'b'\ndemand = 'tcp'",
            Ok(TCP),
            Why::Policy { rule: 2 },
            &[(SHM, Rule { rule: 2 }), (VM, Rule { rule: 2 })],
        ),
        row(
            "a rule that demands what is not there",
            |_, r| r[2].usable = Err(LinkDown),
            "[[rule]]\nname = 'a'\ndemand = 'tcp'",
            Err(LinkDown),
            Why::OnlyOne,
            &[(SHM, Rule { rule: 1 })],
        ),
        row(
            "a rule's order of preference",
            |_, _| {},
            "[[rule]]\nname = 'a'\nroutes = ['process_vm', 'shm']",
            Ok(VM),
            Why::Preferred,
            &[(SHM, TooLittleGain { expected_us: 100, chosen_us: 120 }), (TCP, Rule { rule: 1 })],
        ),
        row(
            "a rule's order, but another is much faster",
            |_, _| {},
            "[[rule]]\nname = 'a'\nroutes = ['tcp', 'process_vm', 'shm']",
            Ok(SHM),
            Why::Fastest,
            &[(TCP, Slower { expected_us: 300, chosen_us: 100 })],
        ),
        row(
            "an incumbent as good as any goes back to the preferred",
            |q, _| q.incumbent = Some(VM),
            "",
            Ok(SHM),
            Why::Fastest,
            &[],
        ),
        row(
            "an incumbent that is a little faster stays",
            |q, _| q.incumbent = Some(SHM),
            "[[rule]]\nname = 'a'\nroutes = ['process_vm', 'shm']",
            Ok(SHM),
            Why::Fastest,
            &[(VM, Slower { expected_us: 120, chosen_us: 100 })],
        ),
        row("a slow incumbent is left", |q, _| q.incumbent = Some(TCP), "", Ok(SHM), Why::Fastest, &[]),
        row(
            "an incumbent that is gone",
            |q, _| q.incumbent = Some(RouteId::RDMA),
            "",
            Ok(SHM),
            Why::Fastest,
            &[],
        ),
        row(
            "a full one spills",
            |_, r| r[0].load_bytes = 10 * MIB,
            "",
            Ok(VM),
            Why::Spilled,
            &[(SHM, Slower { expected_us: 1100, chosen_us: 120 })],
        ),
        row(
            "resting",
            |q, r| r[0].resting_until = Some(q.now + Duration::from_millis(3)),
            "",
            Ok(VM),
            Why::Fastest,
            &[(SHM, Resting { left_us: 3000 })],
        ),
        row("rested", |q, r| r[0].resting_until = Some(q.now), "", Ok(SHM), Why::Fastest, &[]),
        row(
            "all rest",
            |q, r| r.iter_mut().for_each(|r| r.resting_until = Some(q.now + Duration::from_secs(1))),
            "",
            Ok(SHM),
            Why::LastResort,
            &[],
        ),
        row(
            "a retry",
            |q, _| (q.attempt, q.failed) = (1, RouteSet::NONE.with(SHM)),
            "",
            Ok(VM),
            Why::Retry,
            &[(SHM, FailedBefore)],
        ),
        row(
            "a retry on the only one",
            |q, r| {
                (q.attempt, q.failed) = (1, RouteSet::NONE.with(TCP));
                (r[0].usable, r[1].usable) = (Err(OtherHost), Err(OtherHost));
            },
            "",
            Ok(TCP),
            Why::Retry,
            &[],
        ),
        row(
            "a retry takes one that rests before one that failed",
            |q, r| {
                (q.attempt, q.failed) = (1, RouteSet::NONE.with(SHM).with(TCP));
                r[1].resting_until = Some(q.now + Duration::from_secs(1));
            },
            "",
            Ok(VM),
            Why::Retry,
            &[(SHM, FailedBefore), (TCP, FailedBefore)],
        ),
        row(
            "attempts are spent",
            |q, r| (q.attempt, r[0].usable) = (3, Err(OtherHost)),
            "",
            Err(AttemptsSpent { attempts: 3 }),
            Why::OnlyOne,
            &[(SHM, OtherHost), (VM, AttemptsSpent { attempts: 3 })],
        ),
        row(
            "no reads",
            |_, r| r[0].caps.read = false,
            "",
            Ok(VM),
            Why::Fastest,
            &[(SHM, KindUnsupported { kind: OpKind::Read })],
        ),
        row(
            "memory here",
            |_, r| r[0].caps.local.host = false,
            "",
            Ok(VM),
            Why::Fastest,
            &[(SHM, LocalMemory)],
        ),
        row(
            "memory there",
            |_, r| r[0].caps.remote.host = false,
            "",
            Ok(VM),
            Why::Fastest,
            &[(SHM, RemoteMemory)],
        ),
        row(
            "memory of a GPU",
            |q, r| (q.remote, r[2].caps.remote.device) = (MemoryKind::Device { ordinal: 3 }, true),
            "",
            Ok(TCP),
            Why::OnlyOne,
            &[(SHM, RemoteMemory)],
        ),
        row(
            "no sums",
            |q, r| (q.verify, r[0].caps.checksums, r[1].caps.checksums) = (true, false, false),
            "",
            Ok(TCP),
            Why::OnlyOne,
            &[(SHM, NoChecksums), (VM, NoChecksums)],
        ),
        row(
            "lists",
            |q, r| (q.pieces, r[0].caps.max_pieces, r[1].caps.max_pieces) = (65, 0, 64),
            "",
            Ok(TCP),
            Why::OnlyOne,
            &[(SHM, NoLists), (VM, TooManyPieces { most: 64 })],
        ),
        row(
            "a long list",
            |q, r| (q.pieces, r[0].caps.max_list_bytes) = (2, MIB / 2),
            "",
            Ok(VM),
            Why::Fastest,
            &[(SHM, TooLarge { most_kib: 512 })],
        ),
        row(
            "below the floor",
            |_, _| {},
            "floor = { share = 1.0, action = 'refuse' }\nprobe_interval_ms = 0",
            Ok(SHM),
            Why::Fastest,
            &[],
        ),
    ]
}

#[test]
fn each_decision() {
    let now = Instant::now();
    let rates = [taking(100, now), taking(120, now), taking(300, now)];
    for Row { name, change, policy, route, why, others } in rows() {
        let mut asked = question(now);
        let mut states = [0, 1, 2].map(|at| state(LOCAL[at], &rates[at]));
        change(&mut asked, &mut states);
        let plan = plan(&asked, &states, &ruleset(policy));
        assert_eq!(
            (plan.route.map_err(|refusal| refusal.reason()), plan.why),
            (route, why),
            "{name}: {plan:?}"
        );
        for (other, reason) in others {
            assert_eq!(plan.others.of(*other), Some(*reason), "{name}: {plan:?}");
        }
        assert_eq!(plan.expected.is_zero(), route.is_err(), "{name}");
    }
}

#[test]
fn a_large_op_is_divided_and_a_list_is_not() {
    let now = Instant::now();
    let rates = taking(100, now);
    let rows = [
        (MIB, 1, MIB, 0),
        (MIB + 1, 0, MIB, MIB),
        (MIB, 1, 10_000, 8192),
        (5000, 1, 100, 100),
        (MIB, 2, 1, 0),
    ];
    for (bytes, pieces, max_op_bytes, chunk_bytes) in rows {
        let states = [RouteState { caps: Caps { max_op_bytes, ..caps() }, ..state(RouteId::TCP, &rates) }];
        let plan = plan(&Question { bytes, pieces, ..question(now) }, &states, &Ruleset::default());
        assert_eq!((plan.route, plan.chunk_bytes), (Ok(RouteId::TCP), chunk_bytes), "{bytes} in {pieces}");
    }
}

#[test]
fn one_below_the_floor_is_refused_and_measured_again() {
    let now = Instant::now();
    let mut slow = taking(100, now);
    let ms = Duration::from_millis(1);
    (0..40).for_each(|k| slow.observe(OpKind::Read, MIB, 1, ms, now - ms * (39 - k)));
    let rules = ruleset("floor = { share = 0.3, action = 'refuse' }");
    let ask = |slow: &Rates, at: Instant| plan(&question(at), &[state(RouteId::TCP, slow)], &rules);
    let refused = ask(&slow, now).route.unwrap_err();
    assert!(matches!(refused.reason(), Reason::BelowFloor { percent: 9..=12 }), "{refused}");
    assert!(refused.to_string().starts_with("no route can be taken: tcp: it gives 1"), "{refused}");
    let later = now + Duration::from_secs(1);
    assert_eq!((ask(&slow, later).route, ask(&slow, later).why), (Ok(RouteId::TCP), Why::Probe));
    slow.note_probe(OpKind::Read, MIB, later);
    assert!(ask(&slow, later).route.is_err(), "one op an interval");
    slow.observe(OpKind::Read, MIB, 1, Duration::from_micros(100), later);
    assert_eq!(ask(&slow, later).route, Ok(RouteId::TCP), "it is as it was");
    // Beside one that is in order it is not even measured.
    let (fine, later) = (taking(300, later), later + Duration::from_secs(9));
    (0..40).for_each(|k| slow.observe(OpKind::Read, MIB, 1, ms, now + ms * k));
    let both = plan(&question(later), &[state(RouteId::SHM, &slow), state(RouteId::TCP, &fine)], &rules);
    assert_eq!((both.route, both.why), (Ok(RouteId::TCP), Why::OnlyOne));
    assert!(matches!(both.others.of(RouteId::SHM), Some(Reason::BelowFloor { percent: 9..=12 })));
}

#[test]
fn a_refusal_says_all() {
    let now = Instant::now();
    let rates = taking(100, now);
    let mut states = [state(RouteId::SHM, &rates), state(RouteId::TCP, &rates)];
    (states[0].usable, states[1].usable) = (Err(Reason::NotShared), Err(Reason::LinkDown));
    let ask =
        |demand| plan(&Question { demand, ..question(now) }, &states, &Ruleset::default()).route.unwrap_err();
    assert_eq!(
        ask(None).to_string(),
        "no route can be taken: shm: the peer's memory was not made to be shared; tcp: its link is down"
    );
    assert_eq!(
        ask(Some(RouteId::SHM)).to_string(),
        "route shm is demanded and can't be taken: the peer's memory was not made to be shared"
    );
    let nothing = plan(&question(now), &[], &Ruleset::default());
    assert_eq!(nothing.route.unwrap_err().to_string(), "there are no routes");
}
