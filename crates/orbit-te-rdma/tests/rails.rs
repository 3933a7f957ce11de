//! Which rails meet, row by row; and over random sides that as many meet as can.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod planning;

use orbit_te_rdma::rails::*;
use orbit_te_wire::rdma::Rail;
use planning::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn side(gids: &[&str]) -> Vec<Rail> {
    gids.iter().enumerate().map(|(at, words)| rail(at as u8, &[words])).collect()
}

fn shown(pairing: &Pairing) -> String {
    pairing.pairs.iter().map(|p| format!("{}-{}", p.ours, p.theirs)).collect::<Vec<_>>().join(" ")
}

/// What is chosen, and that every other pair has its reason.
fn check(ours: &[Rail], theirs: &[Rail], preferences: Preferences, want: &str) -> Pairing {
    let pairing = pair(ours, theirs, &preferences);
    assert_eq!(shown(&pairing), want);
    assert_eq!(pairing.pairs.len() + pairing.refused.len(), ours.len() * theirs.len());
    pairing
}

#[test]
fn rails_are_intersected() {
    let two = ["v2 10.0.0.1", "v2 10.1.0.1"];
    let plain = Preferences::default();
    check(&side(&two), &side(&["v2 10.0.0.2", "v2 10.1.0.2"]), plain, "0-0 1-1");
    check(&side(&two), &side(&["v2 10.1.0.2", "v2 10.0.0.2"]), plain, "0-1 1-0");
    let one = check(&side(&two), &side(&["v2 10.1.0.2"]), plain, "1-0");
    assert!(matches!(one.refused[0], Refused { ours: 0, theirs: 0, why: WhyNot::Subnet(_) }), "{one:?}");
    check(&side(&two), &side(&["v2 10.0.0.2", "v2 10.1.0.2", "v2 10.2.0.2"]), plain, "0-0 1-1");
    // All in one subnet: those of one number, and nobody twice.
    let flat = ["v2 10.0.0.1", "v2 10.0.0.2"];
    let pairing = check(&side(&flat), &side(&["v2 10.0.0.3", "v2 10.0.0.4"]), plain, "0-0 1-1");
    assert!(pairing.refused.iter().all(|refused| refused.why == WhyNot::Taken));
    check(&side(&[]), &side(&flat), plain, "");
    check(&side(&flat), &[], plain, "");
}

#[test]
fn different_subnets_are_not_paired_blindly() {
    let far = (side(&["v2 10.0.0.1"]), side(&["v2 10.1.0.2"]));
    let across = |across| Preferences { across, ..Preferences::default() };
    check(&far.0, &far.1, across(Across::WhereNoneIsNear), "0-0");
    check(&far.0, &far.1, across(Across::Always), "0-0");
    let none = check(&far.0, &far.1, across(Across::Never), "");
    let why = none.refused[0].why.to_string();
    assert!(why.contains("GID 0 (10.0.0.1) to GID 0 (10.1.0.2)"), "{why}");
    let mixed = (side(&["v2 10.0.0.1", "v2 10.2.0.1"]), side(&["v2 10.0.0.2", "v2 10.3.0.2"]));
    check(&mixed.0, &mixed.1, across(Across::WhereNoneIsNear), "0-0 1-1");
    check(&mixed.0, &mixed.1, across(Across::Never), "0-0");
}

#[test]
fn each_refusal_has_its_reason() {
    let plain = Preferences::default();
    let why = |ours: Rail, theirs: Rail, preferences: Preferences| {
        let pairing = check(&[ours], &[theirs], preferences, "");
        pairing.refused[0].why.to_string()
    };
    let good = || rail(0, &["v2 10.0.0.1"]);
    let is = |why: String, want: &str| assert!(why.contains(want), "{why}");
    is(why(ib_rail(0, 1, &["ib fe80::1"]), good(), plain), "ours is InfiniBand and the peer's is Ethernet");
    is(why(Rail { p_key: 0x8001, ..good() }, good(), plain), "partition 0x8001 and the peer's in 0xffff");
    is(why(good(), rail(0, &["v1 10.0.0.2"]), plain), "no protocol and address family in common");
    let demanded = Preferences { gid_index: Some(3), ..plain };
    is(why(good(), good(), demanded), "wrong GID index: 3 is demanded, rxe_0 port 1 has [0]");
}

#[test]
fn partitions() {
    let check = |one, other, want| {
        assert_eq!(one_partition(one, other), want, "{one:#x} {other:#x}");
        assert_eq!(one_partition(other, one), want);
    };
    check(0xffff, 0xffff, true);
    check(0xffff, 0x7fff, true);
    check(0x7fff, 0x7fff, false);
    check(0x8001, 0x8002, false);
    check(0x8000, 0x8000, false);
}

#[test]
fn the_preferred_node_comes_first() {
    let at = |numa: u16, rail: Rail| Rail { numa: Some(numa), ..rail };
    let ours = [at(0, rail(0, &["v2 10.0.0.1"])), at(1, rail(1, &["v2 10.0.0.2"]))];
    let theirs = side(&["v2 10.0.0.3", "v2 10.0.0.4"]);
    let near = |numa| Preferences { numa: Some(numa), ..Preferences::default() };
    check(&ours, &theirs, near(0), "0-0 1-1");
    let pairing = check(&ours, &theirs, near(1), "1-1 0-0");
    assert_eq!(pairing.pairs.iter().map(|p| p.near).collect::<Vec<_>>(), [true, false]);
    check(&ours, &theirs[..1], near(1), "1-0");
}

#[test]
fn a_rail_moves_to_let_another_in() {
    // The peer's first rail is the only one for our second; our first can take either.
    let ours = [rail(0, &["v2 10.0.0.1", "v2 2001:db8::1"]), rail(1, &["v2 10.0.0.9"])];
    let theirs = [rail(0, &["v2 10.0.0.2"]), rail(1, &["v2 2001:db8::2"])];
    check(&ours, &theirs, Preferences::default(), "0-1 1-0");
}

#[test]
fn names() {
    let name = |device: &str, port| RailName { device: device.to_string(), port };
    assert_eq!("rxe_0".parse(), Ok(name("rxe_0", None)));
    assert_eq!("rxe_0:2".parse(), Ok(name("rxe_0", Some(2))));
    for shown in ["rxe_0", "rxe_0:2"] {
        assert_eq!(shown.parse::<RailName>().unwrap().to_string(), shown);
    }
    for bad in ["", ":1", "rxe_0:", "rxe_0:0", "rxe_0:x", "rxe_0:256"] {
        assert!(matches!(bad.parse::<RailName>(), Err(BadName::Malformed { .. })), "{bad}");
    }
    let unknown = |there: Vec<RailName>| BadName::Unknown { name: name("rxe_0", None), there }.to_string();
    assert_eq!(unknown(vec![]), "there is no RDMA device `rxe_0`; there is none");
    assert_eq!(unknown(vec![name("a", Some(1))]), "there is no RDMA device `rxe_0`; there is a:1");
    let two = vec![name("a", None), name("b", Some(2))];
    assert_eq!(unknown(two), "there is no RDMA device `rxe_0`; there are a, b:2");
}

/// The most pairs that there can be, by trying all.
fn most(possible: &[(u8, u8)], ours: &[u8]) -> usize {
    let Some((first, rest)) = ours.split_first() else { return 0 };
    let with = possible.iter().filter(|(o, _)| o == first).map(|(_, taken)| {
        let left: Vec<_> = possible.iter().copied().filter(|(_, t)| t != taken).collect();
        1 + most(&left, rest)
    });
    with.chain([most(possible, rest)]).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn as_many_meet_as_can_and_each_once(
        here in vec(vec(0..5u8, 1..3), 0..5), there in vec(vec(0..5u8, 1..3), 0..5), numa: bool
    ) {
        let side = |nets: &[Vec<u8>], host: u8| -> Vec<Rail> {
            let rails = nets.iter().enumerate();
            rails.map(|(at, nets)| {
                let words: Vec<String> = nets.iter().map(|net| format!("v2 10.{net}.0.{}", host + at as u8)).collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                Rail { numa: Some(at as u16 % 2), ..rail(at as u8, &words) }
            }).collect()
        };
        let ours: Vec<Rail> = side(&here, 1);
        let theirs = side(&there, 101);
        let preferences = Preferences { numa: numa.then_some(1), across: Across::Never, gid_index: None };
        let pairing = pair(&ours, &theirs, &preferences);
        prop_assert_eq!(pairing.pairs.len() + pairing.refused.len(), ours.len() * theirs.len());
        let possible: Vec<(u8, u8)> = (0..here.len()).flat_map(|o| (0..there.len()).map(move |t| (o, t)))
            .filter(|(o, t)| here[*o].iter().any(|net| there[*t].contains(net)))
            .map(|(o, t)| (o as u8, t as u8)).collect();
        let numbers: Vec<u8> = (0..here.len() as u8).collect();
        prop_assert_eq!(pairing.pairs.len(), most(&possible, &numbers));
        for (at, p) in pairing.pairs.iter().enumerate() {
            prop_assert!(possible.contains(&(p.ours, p.theirs)));
            prop_assert!(!p.gids.is_empty());
            prop_assert!(pairing.pairs[..at].iter().all(|q| q.ours != p.ours && q.theirs != p.theirs));
        }
    }
}
