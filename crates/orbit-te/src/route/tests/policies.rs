//! Policies: what is read, what is refused with which words, and which rule holds for which op.

use super::*;
use crate::route::policy::Signature;
use orbit_te_wire::PeerId;
use proptest::prelude::*;

const WHOLE: &str = r#"
attempts = 5
slow_factor = 2.0
probe_interval_ms = 250
rest_ms = 50
max_rest_ms = 5000
floor = { share = 0.5, action = "refuse" }

[[rule]]
name = "checkpoints"
segment = "checkpoint-*"
min_bytes = 1_048_576
max_bytes = 4_294_967_296
from = "pinned_host"
to = "file"
kind = "write"
peer = "0000000000000000000000000000002a"
priority = "low"
same_host = false
routes = ["tcp"]

[[rule]]
name = "all else"
peer = "*"
segment = "*"
demand = "shm"
"#;

#[test]
fn everything_is_read() {
    let policy = Policy::parse(WHOLE).unwrap();
    let [first, second] = policy.rules() else { panic!("{policy:?}") };
    let wanted = Rule {
        name: "checkpoints".into(),
        min_bytes: 1 << 20,
        max_bytes: 1 << 32,
        from: Some(Memory::PinnedHost),
        to: Some(Memory::File),
        kind: Some(OpKind::Write),
        peer: Some(PeerId(42)),
        priority: Some(Priority::Low),
        segment: Some(SegmentPattern::Prefix("checkpoint-".into())),
        same_host: Some(false),
        routes: vec![RouteId::TCP],
        demand: None,
    };
    assert_eq!(*first, wanted);
    assert_eq!((second.peer, &second.segment, second.demand), (None, &None, Some(RouteId::SHM)));
    let ms = Duration::from_millis;
    let settings = Settings {
        floor: Some(Floor { share: 0.5, action: FloorAction::Refuse }),
        attempts: 5,
        slow_factor: 2.0,
        probe_interval: ms(250),
        rest: ms(50),
        most_rest: ms(5000),
    };
    assert_eq!(*policy.settings(), settings);
    assert_eq!(Policy::parse(&policy.to_json()), Ok(policy));
    assert_eq!(Policy::parse(""), Ok(Policy::default()));
    assert_eq!(Policy::parse(" {}"), Ok(Policy::default()));
    assert_eq!(Policy::parse("floor = { share = 0.0, action = 'warn' }").unwrap().settings().floor, None);
}

#[test]
fn what_is_wrong_is_named() {
    let good = "[[rule]]\nname = 'one'\nroutes = ['tcp']\n";
    let rows = [
        ("[[rule]]\nname = 'x'\nsize = 3\nroutes = ['tcp']", "rule 2 (`x`): unknown field `size`"),
        ("[[rule]]\nroutes = ['tcp']", "rule 2: missing field `name`"),
        ("[[rule]]\nname = 'x'", "rule 2 (`x`): it has neither `routes` nor `demand`"),
        (
            "[[rule]]\nname = 'x'\nroutes = ['tpc']",
            "rule 2 (`x`): no route is called `tpc`; there are shm, process_vm, tcp",
        ),
        ("[[rule]]\nname = 'x'\ndemand = 'tpc'", "rule 2 (`x`): no route is called `tpc`"),
        ("[[rule]]\nname = 'x'\nroutes = ['tcp', 'shm', 'tcp']", "rule 2 (`x`): `routes` has tcp twice"),
        ("[[rule]]\nname = 'x'\nroutes = ['tcp']\ndemand = 'shm'", "rule 2 (`x`): it demands shm"),
        (
            "[[rule]]\nname = 'x'\nmin_bytes = 2\nmax_bytes = 1\nroutes = ['tcp']",
            "rule 2 (`x`): it can never match: `min_bytes` 2 is over `max_bytes` 1",
        ),
        (
            "[[rule]]\nname = 'x'\nmin_bytes = -2\nroutes = ['tcp']",
            "rule 2 (`x`): invalid value: integer `-2`",
        ),
        ("[[rule]]\nname = 'x'\nkind = 'move'\nroutes = ['tcp']", "rule 2 (`x`): unknown variant `move`"),
        ("[[rule]]\nname = 'x'\nfrom = 'disk'\nroutes = ['tcp']", "rule 2 (`x`): unknown variant `disk`"),
        (
            "[[rule]]\nname = 'x'\npriority = 'urgent'\nroutes = ['tcp']",
            "rule 2 (`x`): unknown variant `urgent`",
        ),
        ("[[rule]]\nname = 'x'\npeer = '2a'\nroutes = ['tcp']", "rule 2 (`x`): `2a` is no peer"),
        ("[[rule]]\nname = 'x'\nsegment = 'a*b'\nroutes = ['tcp']", "rule 2 (`x`): `a*b` is no segment"),
        ("[[rules]]\nname = 'x'", "the policy can't be used: "),
        ("[other]", "the policy can't be used: "),
        ("= 3", "the policy can't be used: "),
    ];
    for (text, wanted) in rows {
        let error = Policy::parse(&format!("{good}{text}")).unwrap_err().to_string();
        assert!(error.starts_with(wanted), "{text}\n{error}");
    }
    let globals = [
        ("attempts = 0", "`attempts` is 0"),
        ("slow_factor = 0.9", "`slow_factor` is not from 1"),
        ("slow_factor = nan", "`slow_factor` is not"),
        ("rest_ms = 0", "`rest_ms` is 0"),
        ("rest_ms = 60000", "`rest_ms` is over `max_rest_ms`"),
        ("probe_interval_ms = 100000000", "a time is over a day"),
        ("floor = { share = 1.5, action = 'warn' }", "`floor.share` is not from 0 to 1"),
        ("floor = { share = 0.5, action = 'stop' }", "unknown variant `stop`"),
        ("floor = { share = 0.5, action = 'warn', least = 3 }", "unknown field `least`"),
        ("attempt = 3", "unknown field `attempt`"),
        ("{\"attempt\": 3}", "unknown field `attempt`"),
        (
            "{\"rule\": [{\"name\": \"j\", \"routes\": [\"tcp\"], \"x\": 1}]}",
            "rule 1 (`j`): unknown field `x`",
        ),
    ];
    for (text, wanted) in globals {
        let error = Policy::parse(text).unwrap_err().to_string();
        assert!(error.contains(wanted), "{text}\n{error}");
    }
}

#[test]
fn the_first_rule_that_matches_counts() {
    let policy = Policy::parse(
        "[[rule]]\nname = '1'\npeer = '00000000000000000000000000000007'\nmax_bytes = 100\nroutes = ['shm']
         [[rule]]\nname = '2'\nsegment = 'kv-*'\nkind = 'read'\nroutes = ['tcp']
         [[rule]]\nname = '3'\nsegment = 'pool'\nfrom = 'device'\nroutes = ['cuda_ipc']
         [[rule]]\nname = '4'\nsame_host = true\npriority = 'high'\nto = 'file'\nroutes = ['gds']
         [[rule]]\nname = '5'\nsame_host = false\nroutes = ['rdma']
         [[rule]]\nname = '6'\nmin_bytes = 1000\nroutes = ['tcp']",
    )
    .unwrap();
    use Memory::{Device, File, Host};
    use OpKind::{Read, Write};
    use Priority::{High, Normal};
    let seven = PeerId(7);
    let rows = [
        (("x", seven, true), (Read, Normal, Host, Host, 100), Some(1)),
        (("x", seven, true), (Read, Normal, Host, Host, 101), None),
        (("x", PeerId(8), true), (Read, Normal, Host, Host, 100), None),
        (("kv-1", seven, true), (Read, Normal, Host, Host, 101), Some(2)),
        (("kv-1", seven, true), (Write, Normal, Host, Host, 101), None),
        (("kv-1", seven, true), (Write, Normal, Host, Host, 1000), Some(6)),
        // Bytes come from the peer in a read, and from here in a write.
        (("pool", seven, true), (Read, Normal, Host, Device, 101), Some(3)),
        (("pool", seven, true), (Read, Normal, Device, Host, 101), None),
        (("pool", seven, true), (Write, Normal, Device, Host, 101), Some(3)),
        (("x", seven, true), (Write, High, Host, File, 101), Some(4)),
        (("x", seven, true), (Write, Normal, Host, File, 101), None),
        (("x", seven, false), (Write, High, Host, File, 101), Some(5)),
    ];
    for ((segment, peer, same_host), (kind, priority, local, remote, bytes), wanted) in rows {
        let rules = policy.ruleset(segment, peer, same_host);
        let found = rules.rule(Signature::new(kind, priority, local, remote, bytes));
        assert_eq!(found.map(|rule| rule.number), wanted, "{segment} {peer} {kind:?} {bytes}");
    }
    // What stands behind a rule for everything is not even kept.
    let lengths = |same_host| policy.ruleset("x", PeerId(8), same_host).len();
    assert_eq!((lengths(true), lengths(false)), (2, 1));
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let memory = || prop::option::of(prop::sample::select(vec![Memory::Host, Memory::Device, Memory::File]));
    let routes = prop::sample::subsequence(RouteId::all().collect::<Vec<_>>(), 1..7).prop_shuffle();
    let segment = prop::option::of(prop_oneof![
        "[a-z0-9./ -]{1,20}".prop_map(SegmentPattern::Exact),
        "[a-z0-9./ -]{1,20}".prop_map(SegmentPattern::Prefix)
    ]);
    let who = (prop::option::of(any::<u128>().prop_map(PeerId)), segment, any::<Option<bool>>());
    let what = (
        prop::option::of(prop::sample::select(vec![OpKind::Read, OpKind::Write])),
        prop::option::of(prop::sample::select(Priority::ALL.to_vec())),
        any::<(u64, u64)>(),
    );
    ("\\PC{0,12}", memory(), memory(), who, what, routes, any::<bool>()).prop_map(
        |(name, from, to, (peer, segment, same_host), (kind, priority, (a, b)), routes, demands)| Rule {
            name,
            min_bytes: a.min(b),
            max_bytes: a.max(b),
            from,
            to,
            kind,
            peer,
            priority,
            segment,
            same_host,
            demand: demands.then_some(routes[0]),
            routes,
        },
    )
}

proptest! {
    #[test]
    fn policies_survive_being_written(rules in prop::collection::vec(any_rule(), 0..6), attempts in 1u32..9) {
        let settings = Settings { attempts, ..Settings::default() };
        let policy = Policy::new(rules.clone(), settings).unwrap();
        prop_assert_eq!(policy.rules(), &rules[..]);
        prop_assert_eq!(policy.settings(), &settings);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
        let _ = Policy::parse(&text);
        let _ = Policy::parse(&format!("[[rule]]\n{text}"));
    }
}
