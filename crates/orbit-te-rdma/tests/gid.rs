//! Which GIDs are to meet, row by row.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod planning;

use orbit_te_rdma::gid::*;
use orbit_te_wire::rdma::{Gid, GidKind, LinkLayer};
use planning::*;
use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn reaches() {
    let check = |words: &str, want: Option<Reach>| {
        let gid = gid(0, words);
        let layer = if gid.kind == GidKind::InfiniBand { LinkLayer::InfiniBand } else { LinkLayer::Ethernet };
        assert_eq!(reach(&gid, layer), want, "{words}");
        let other = if layer == LinkLayer::Ethernet { LinkLayer::InfiniBand } else { LinkLayer::Ethernet };
        assert_eq!(reach(&gid, other), None, "{words} on the other link layer");
    };
    check("v2 8.8.8.8", Some(Reach::Routable));
    // Private ranges are not second class.
    for private in ["10.1.2.3", "172.16.0.9", "192.168.1.1", "100.64.0.1"] {
        check(&format!("v2 {private}"), Some(Reach::Routable));
    }
    check("v2 2001:db8::1", Some(Reach::Routable));
    check("v2 fd00::1", Some(Reach::Routable));
    check("v2 fe80::1", Some(Reach::LinkLocal));
    check("v2 169.254.3.4", Some(Reach::LinkLocal));
    check("v2 127.0.0.1", Some(Reach::Loopback));
    check("v2 ::1", Some(Reach::Loopback));
    check("v1 fe80::1", Some(Reach::Segment));
    check("v1 10.0.0.1", Some(Reach::Segment));
    check("ib fe80::1", Some(Reach::Fabric));
    for nothing in
        ["v2 ::", "v2 0.0.0.0", "v2 255.255.255.255", "v2 224.0.0.1", "v2 ff02::1", "ib fe80::", "ib ::"]
    {
        check(nothing, None);
    }
}

fn ranked(ours: &[&str], theirs: &[&str], demanded: Option<u16>) -> Result<String, String> {
    let found = candidates(&rail(0, ours), &rail(1, theirs), demanded).map_err(|why| why.to_string())?;
    Ok(found.iter().map(|c| format!("{}-{}", c.local.index, c.remote.index)).collect::<Vec<_>>().join(" "))
}

#[test]
fn pairs_by_rank() {
    let check = |ours: &[&str], theirs: &[&str], want: &str| {
        assert_eq!(ranked(ours, theirs, None).as_deref(), Ok(want), "{ours:?} {theirs:?}");
    };
    // Soft-RoCE: link-local first in the table, and last here.
    check(&["v2 fe80::a", "v2 10.0.0.1"], &["v2 fe80::b", "v2 10.0.0.2"], "1-1 0-0");
    // A device with all there is.
    let ours = ["v1 fe80::1", "v2 fe80::1", "v1 10.0.0.1", "v2 10.0.0.1", "v2 2001:db8::1"];
    let theirs = ["v1 fe80::2", "v2 fe80::2", "v1 10.0.0.2", "v2 10.0.0.2", "v2 2001:db8::2"];
    check(&ours, &theirs, "4-4 3-3 1-1 0-0 2-2");
    // One subnet comes first, whatever the order of the table.
    check(&["v2 10.1.0.1", "v2 10.2.0.1"], &["v2 10.2.0.2", "v2 10.1.0.2"], "1-0 0-1 0-0 1-1");
    // Equally good ones come in the order in which the peer offers them.
    check(&["v2 10.0.0.1"], &["v2 10.0.0.3", "v2 10.0.0.2"], "0-0 0-1");
    // IPv4 meets IPv4 only, IPv6 IPv6.
    check(&["v2 10.0.0.1", "v2 2001:db8::1"], &["v2 2001:db8:1::2"], "1-0");
}

#[test]
fn no_pairs() {
    let check = |ours: &[&str], theirs: &[&str], demanded, want: &str| {
        let why = ranked(ours, theirs, demanded).unwrap_err();
        assert!(why.contains(want), "{why}");
    };
    check(
        &["v2 10.0.0.1"],
        &["v2 2001:db8::1"],
        None,
        "RoCEv2, routable (IPv4) here, RoCEv2, routable (IPv6)",
    );
    check(&["v2 10.0.0.1"], &["v1 10.0.0.2"], None, "RoCEv1 (IPv4) at the peer");
    check(&["v2 10.0.0.1"], &["v2 127.0.0.1"], None, "RoCEv2, loopback (IPv4) at the peer");
    check(&["v2 ::"], &["v2 10.0.0.2"], None, "rxe_0 port 1 has no usable GID");
    check(&["v2 10.0.0.1"], &["v2 ::"], None, "rxe_1 port 1 has no usable GID");
    check(
        &["v2 10.0.0.1", "v2 ::"],
        &["v2 10.0.0.2"],
        Some(7),
        "wrong GID index: 7 is demanded, rxe_0 port 1 has [0, 1]",
    );
    check(&["v2 10.0.0.1", "v2 ::"], &["v2 10.0.0.2"], Some(1), "wrong GID index: 1 of rxe_0 port 1 is ::");
    check(
        &["v2 10.0.0.1", "v2 fe80::1"],
        &["v2 10.0.0.2"],
        Some(1),
        "no protocol and address family in common: RoCEv2, link-local (IPv6) here",
    );
}

#[test]
fn a_demanded_index_is_the_only_one() {
    let both = ["v2 fe80::a", "v2 10.0.0.1"];
    assert_eq!(ranked(&both, &["v2 fe80::b", "v2 10.0.0.2"], Some(0)).as_deref(), Ok("0-0"));
    let found = candidates(&rail(0, &both), &rail(1, &["v2 fe80::b"]), Some(0)).unwrap();
    assert_eq!(found[0].to_string(), "GID 0 (fe80::a) to GID 0 (fe80::b): RoCEv2, link-local, as demanded");
}

#[test]
fn each_choice_has_its_reason_in_words() {
    let found =
        candidates(&rail(0, &["v2 10.0.0.1"]), &rail(1, &["v2 10.0.0.2", "v2 10.9.0.2"]), None).unwrap();
    let words: Vec<String> = found.iter().map(Candidate::to_string).collect();
    assert_eq!(
        words,
        [
            "GID 0 (10.0.0.1) to GID 0 (10.0.0.2): RoCEv2, routable, in one subnet",
            "GID 0 (10.0.0.1) to GID 1 (10.9.0.2): RoCEv2, routable, in different subnets"
        ]
    );
}

#[test]
fn infiniband_is_paired_within_a_subnet() {
    let check = |ours: &str, theirs: &str, want: Result<usize, NoGid>| {
        let found = candidates(&ib_rail(0, 1, &[ours]), &ib_rail(1, 2, &[theirs]), None);
        assert_eq!(found.map(|found| found.len()), want);
    };
    check("ib fe80::1", "ib fe80::2", Ok(1));
    check("ib fec0:0:0:1::1", "ib fec0:0:0:1::2", Ok(1));
    check("ib fe80::1", "ib fec0:0:0:1::2", Err(NoGid::OtherFabric));
}

fn any_gid() -> impl Strategy<Value = String> {
    let address = prop_oneof![
        any::<[u8; 4]>().prop_map(|b| format!("{}.{}.{}.{}", b[0], b[1], b[2], b[3])),
        (0..3u8, 0..5u8).prop_map(|(net, host)| format!("10.0.{net}.{host}")),
        (0..5u16).prop_map(|host| format!("fe80::{host:x}")),
        (0..3u16, 0..5u16).prop_map(|(net, host)| format!("2001:db8:{net}::{host:x}")),
        any::<[u16; 8]>().prop_map(|w| std::net::Ipv6Addr::from(w).to_string()),
    ];
    (prop_oneof![Just("v1"), Just("v2")], address).prop_map(|(kind, address)| format!("{kind} {address}"))
}

proptest! {
    #[test]
    fn what_is_paired_can_talk(ours in vec(any_gid(), 1..8), theirs in vec(any_gid(), 1..8)) {
        let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
        let theirs: Vec<&str> = theirs.iter().map(String::as_str).collect();
        let (ours, theirs) = (rail(0, &ours), rail(1, &theirs));
        let found = candidates(&ours, &theirs, None).unwrap_or_default();
        let sorted = found.is_sorted_by_key(|c| (c.reach, !c.same_subnet));
        prop_assert!(sorted, "{:?}", found);
        for c in &found {
            prop_assert_eq!(c.local.kind, c.remote.kind);
            prop_assert_eq!(family(&c.local), family(&c.remote));
            prop_assert_eq!(reach(&c.local, ours.layer), reach(&c.remote, theirs.layer));
        }
        // The peer finds the same pairs, and the same one is the best but for equals.
        let back = candidates(&theirs, &ours, None).unwrap_or_default();
        prop_assert_eq!(found.len(), back.len());
        let key = |c: &Candidate| (c.reach, !c.same_subnet, common_bits(&c.local, &c.remote));
        prop_assert_eq!(found.first().map(key), back.first().map(key));
    }

    #[test]
    fn no_gid_is_too_odd(one: [u8; 16], other: [u8; 16]) {
        let gid = |bytes| Gid { index: 0, bytes, kind: GidKind::RoceV2 };
        let (one, other) = (gid(one), gid(other));
        prop_assert!(common_bits(&one, &other) <= 128);
        prop_assert!(!shown(&one).is_empty());
        prop_assert_eq!(same_subnet(&one, &other), same_subnet(&other, &one));
    }
}
