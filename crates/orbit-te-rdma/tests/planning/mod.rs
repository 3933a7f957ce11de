//! Rails to plan with.

#![allow(dead_code, clippy::unwrap_used)] // each test takes what it needs

use orbit_te_wire::rdma::{Gid, GidKind, LinkLayer, Mtu, Rail};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A GID from words: `v2 10.0.0.1`, `v1 fe80::1`, `ib fe80::1`.
pub(crate) fn gid(index: u16, words: &str) -> Gid {
    let (kind, address) = words.split_once(' ').unwrap();
    let kind = match kind {
        "v1" => GidKind::RoceV1,
        "v2" => GidKind::RoceV2,
        _ => GidKind::InfiniBand,
    };
    let v4 = address.parse::<Ipv4Addr>().map(|v4| v4.to_ipv6_mapped());
    let address: Ipv6Addr = v4.unwrap_or_else(|_| address.parse().unwrap());
    Gid { index, bytes: address.octets(), kind }
}

/// An Ethernet rail with these GIDs at the indices 0, 1, ….
pub(crate) fn rail(number: u8, gids: &[&str]) -> Rail {
    Rail {
        number,
        device: format!("rxe_{number}"),
        guid: u64::from(number) + 1,
        port: 1,
        layer: LinkLayer::Ethernet,
        lid: 0,
        grh_required: false,
        gids: gids.iter().enumerate().map(|(at, words)| gid(at as u16, words)).collect(),
        mtu: Mtu::B1024,
        speed: 1,
        width: 1,
        p_key: 0xffff,
        reads_served: 16,
        reads_asked: 16,
        numa: None,
    }
}

/// The same on InfiniBand.
pub(crate) fn ib_rail(number: u8, lid: u16, gids: &[&str]) -> Rail {
    Rail { layer: LinkLayer::InfiniBand, lid, ..rail(number, gids) }
}
