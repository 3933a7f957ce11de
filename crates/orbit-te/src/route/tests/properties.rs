//! What holds for every question, whatever the routes and the policy.

use super::*;
use proptest::prelude::*;

/// One route, before its rates are lent to its state.
#[derive(Debug, Clone)]
struct Drawn {
    usable: Result<(), Reason>,
    caps: Caps,
    rates: Rates,
    resting: bool,
    load_bytes: u64,
}

fn any_caps() -> impl Strategy<Value = Caps> {
    let often = || prop::bool::weighted(0.8);
    let kinds = (often(), any::<bool>()).prop_map(|(host, device)| KindSet {
        host,
        pinned_host: host,
        device,
        file: false,
    });
    ((often(), often(), often()), kinds.clone(), kinds, (0u64..1 << 22, 0u32..40, 0u64..1 << 22)).prop_map(
        |((read, write, checksums), local, remote, (max_op_bytes, max_pieces, max_list_bytes))| Caps {
            read,
            write,
            local,
            remote,
            max_op_bytes,
            max_pieces,
            max_list_bytes,
            checksums,
        },
    )
}

fn any_route(now: Instant) -> impl Strategy<Value = Drawn> {
    let usable = prop_oneof![
        4 => Just(Ok(())),
        1 => prop::sample::select(Reason::ALL.to_vec()).prop_map(Err)
    ];
    let observed = prop::collection::vec((0u64..1 << 22, 1u64..10_000_000), 0..12);
    (usable, any_caps(), observed, prop::bool::weighted(0.2), prop_oneof![Just(0u64), 0u64..1 << 30])
        .prop_map(move |(usable, caps, observed, resting, load_bytes)| {
            let mut rates = Rates::new(Prior::of(RouteId::SHM, true));
            for (bytes, ns) in observed {
                rates.observe(OpKind::Read, bytes, 1, Duration::from_nanos(ns), now);
            }
            Drawn { usable, caps, rates, resting, load_bytes }
        })
}

fn any_question(now: Instant) -> impl Strategy<Value = Question> {
    let route = || prop::option::weighted(0.3, prop::sample::select(RouteId::all().collect::<Vec<_>>()));
    let memory =
        || prop::sample::select(vec![MemoryKind::Host, MemoryKind::Device { ordinal: 0 }, MemoryKind::File]);
    let failed = prop::sample::subsequence(RouteId::all().collect::<Vec<_>>(), 0..3);
    (
        (any::<bool>(), 0u64..1 << 23, 0u32..50, prop::bool::weighted(0.3)),
        (prop::sample::select(Priority::ALL.to_vec()), memory(), memory()),
        (route(), route(), 0u32..5, failed, 0u64..100_000),
    )
        .prop_map(
            move |(
                (read, bytes, pieces, verify),
                (priority, local, remote),
                (demand, incumbent, attempt, failed, later_ms),
            )| Question {
                kind: if read { OpKind::Read } else { OpKind::Write },
                bytes,
                pieces,
                verify,
                priority,
                local,
                remote,
                demand,
                incumbent,
                attempt,
                failed: failed.into_iter().collect(),
                now: now + Duration::from_millis(later_ms),
            },
        )
}

const POLICIES: [&str; 6] = [
    "",
    "[[rule]]\nname = 'a'\nroutes = ['tcp', 'shm']",
    "[[rule]]\nname = 'a'\ndemand = 'process_vm'",
    "floor = { share = 0.5, action = 'refuse' }",
    "[[rule]]\nname = 'a'\nmin_bytes = 65536\nroutes = ['rdma', 'tcp']\n[[rule]]\nname = 'b'\nkind = 'write'\ndemand = 'tcp'",
    "slow_factor = 1.0\nattempts = 1\nprobe_interval_ms = 0\n[[rule]]\nname = 'a'\nfrom = 'device'\nroutes = ['cuda_ipc', 'tcp']",
];

/// The routes that some policy allows for this question, by a second and slower reading of its rules.
/// The routes that demand and policy leave, and whether it is one that is demanded.
fn allowed(policy: &Policy, asked: &Question) -> (RouteSet, bool) {
    let (from, to) = match asked.kind {
        OpKind::Read => (asked.remote, asked.local),
        OpKind::Write => (asked.local, asked.remote),
    };
    let fits = |rule: &&Rule| {
        (rule.min_bytes..=rule.max_bytes).contains(&asked.bytes)
            && rule.from.is_none_or(|wanted| wanted == from.into())
            && rule.to.is_none_or(|wanted| wanted == to.into())
            && rule.kind.is_none_or(|wanted| wanted == asked.kind)
            && rule.priority.is_none_or(|wanted| wanted == asked.priority)
    };
    let rule = policy.rules().iter().find(fits);
    let by_rule = rule.map_or(RouteSet::ALL, |rule| match rule.demand {
        Some(route) => RouteSet::NONE.with(route),
        None => rule.routes.iter().copied().collect(),
    });
    let asked_for = |route: &RouteId| asked.demand.is_none_or(|demand| demand == *route);
    let demanded = asked.demand.is_some() || rule.is_some_and(|rule| rule.demand.is_some());
    (by_rule.iter().filter(asked_for).collect(), demanded)
}

fn does(caps: &Caps, asked: &Question) -> bool {
    let kind = if asked.kind == OpKind::Read { caps.read } else { caps.write };
    let list = asked.pieces <= caps.max_pieces && asked.bytes <= caps.max_list_bytes;
    let size = if asked.pieces > 1 { list } else { caps.max_op_bytes > 0 };
    let memory = caps.local.contains(asked.local) && caps.remote.contains(asked.remote);
    kind && size && memory && (caps.checksums || !asked.verify)
}

fn cases() -> impl Strategy<Value = (Vec<Drawn>, Question, &'static str, Instant)> {
    let now = Instant::now();
    let routes = prop::collection::vec(any_route(now), 0..8);
    (routes, any_question(now), prop::sample::select(POLICIES.to_vec()), Just(now))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_plan_keeps_its_promises((drawn, asked, text, now) in cases()) {
        let policy = Policy::parse(text).unwrap();
        let rules = policy.ruleset("pool", orbit_te_wire::PeerId(1), true);
        let states: Vec<RouteState<'_>> = drawn
            .iter()
            .zip(RouteId::all())
            .map(|(drawn, id)| RouteState {
                id,
                usable: drawn.usable,
                caps: drawn.caps,
                rates: &drawn.rates,
                resting_until: drawn.resting.then_some(now + Duration::from_secs(50)),
                load_bytes: drawn.load_bytes,
            })
            .collect();
        let made = plan(&asked, &states, &rules);
        prop_assert_eq!(&made, &plan(&asked, &states, &rules), "the same answer every time");

        let (allowed, demanded) = allowed(&policy, &asked);
        // What is demanded waits for its link.
        let waits = |state: &RouteState<'_>| demanded && state.usable == Err(Reason::Linking);
        let can = |state: &&RouteState<'_>| {
            let usable = state.usable.is_ok() || waits(state);
            allowed.contains(state.id) && usable && does(&state.caps, &asked)
        };
        let spent = asked.attempt >= policy.settings().attempts;
        match made.route {
            Ok(chosen) => {
                let state = states.iter().find(|state| state.id == chosen).unwrap();
                prop_assert!(can(&state) && !spent, "{chosen} can't: {made:?}");
                prop_assert!(asked.demand.is_none_or(|demand| demand == chosen));
                prop_assert_eq!(made.others.of(chosen), None);
                if asked.pieces <= 1 {
                    let part = if made.chunk_bytes == 0 { asked.bytes } else { made.chunk_bytes };
                    prop_assert!(part <= state.caps.max_op_bytes);
                } else {
                    prop_assert_eq!(made.chunk_bytes, 0);
                }
                let fresh = |state: &&RouteState<'_>| can(state) && !asked.failed.contains(state.id);
                if asked.demand.is_none() && asked.failed.contains(chosen) && text.starts_with("[[rule]]") {
                    prop_assert_eq!(states.iter().find(fresh).map(|state| state.id), None, "a retry elsewhere first");
                }
            }
            Err(refusal) => {
                prop_assert_eq!(refusal.causes, made.others);
                let floor = policy.settings().floor.is_some_and(|floor| floor.action == FloorAction::Refuse);
                prop_assert!(spent || floor || !states.iter().any(|state| can(&state)), "{}", refusal);
                prop_assert_eq!(refusal.demanded.is_some_and(|route| Some(route) == asked.demand), asked.demand.is_some());
            }
        }
        for state in &states {
            let told = made.others.of(state.id).is_some();
            prop_assert_eq!(told, made.route != Ok(state.id), "{:?} has no reason", state.id);
            // What the router said of it is passed on as it is, unless a demand or a rule came first.
            if let (Err(reason), true) = (state.usable, allowed.contains(state.id) && !waits(state)) {
                prop_assert_eq!(made.others.of(state.id), Some(reason));
            }
        }
        if let Some(demand) = asked.demand {
            prop_assert!(made.route == Ok(demand) || made.others.of(demand).is_some());
        }
    }
}
