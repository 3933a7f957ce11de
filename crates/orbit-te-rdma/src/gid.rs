//! Which GIDs of two rails are to meet. Rule: by where packets can go, never by what an address looks like to somebody: private IPv4
//! ranges are as good as others. Every pair that could do is in the list, best first, so that the next is tried where one fails.

use orbit_te_wire::rdma::{Gid, GidKind, LinkLayer, Rail};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use thiserror::Error;

/// How far packets to a GID can go; the better, the lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reach {
    /// InfiniBand: within its subnet, by LID.
    Fabric,
    /// RoCEv2 with a global or private address: wherever routers go.
    Routable,
    /// RoCEv2 with an address of one link.
    LinkLocal,
    /// RoCEv1: one Ethernet segment.
    Segment,
    /// RoCEv2 within one host.
    Loopback,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reach::Fabric => "InfiniBand",
            Reach::Routable => "RoCEv2, routable",
            Reach::LinkLocal => "RoCEv2, link-local",
            Reach::Segment => "RoCEv1",
            Reach::Loopback => "RoCEv2, loopback",
        })
    }
}

/// The addresses that can talk to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4, behind `::ffff:` in the GID.
    V4,
    /// IPv6, or a GID of InfiniBand or RoCEv1, which has that form.
    V6,
}

/// The address of a GID.
pub fn address(gid: &Gid) -> Ipv6Addr {
    Ipv6Addr::from(gid.bytes)
}

/// Its family.
pub fn family(gid: &Gid) -> Family {
    match address(gid).to_ipv4_mapped() {
        Some(_) => Family::V4,
        None => Family::V6,
    }
}

/// How far packets to a GID can go; none for one that nothing can be sent to: empty, multicast, or of a protocol that its rail's link
/// layer does not carry.
pub fn reach(gid: &Gid, layer: LinkLayer) -> Option<Reach> {
    let address = address(gid);
    let v4 = address.to_ipv4_mapped();
    let nobody = address.is_unspecified()
        || address.is_multicast()
        || v4.is_some_and(|v4| v4.is_unspecified() || v4.is_multicast() || v4 == Ipv4Addr::BROADCAST)
        // An entry whose second half is empty names a subnet, and no port in it.
        || (v4.is_none() && gid.bytes[8..] == [0; 8]);
    if nobody {
        return None;
    }
    match (gid.kind, layer) {
        (GidKind::InfiniBand, LinkLayer::InfiniBand) => Some(Reach::Fabric),
        (GidKind::RoceV1, LinkLayer::Ethernet) => Some(Reach::Segment),
        (GidKind::RoceV2, LinkLayer::Ethernet) => Some(match v4 {
            Some(v4) if v4.is_loopback() => Reach::Loopback,
            None if address.is_loopback() => Reach::Loopback,
            Some(v4) if v4.is_link_local() => Reach::LinkLocal,
            None if address.is_unicast_link_local() => Reach::LinkLocal,
            _ => Reach::Routable,
        }),
        _ => None,
    }
}

/// How many leading bits two GIDs have in common, counted in their addresses (32 bits or 128).
pub fn common_bits(one: &Gid, other: &Gid) -> u32 {
    let bits = (u128::from_be_bytes(one.bytes) ^ u128::from_be_bytes(other.bytes)).leading_zeros();
    match (family(one), family(other)) {
        (Family::V4, Family::V4) => bits - 96,
        _ => bits,
    }
}

/// Whether two GIDs look as if they were in one subnet. A GID says nothing of its netmask, so that this is what is usual: 24 bits in
/// common of an IPv4 address, 64 of all others, which is exact for InfiniBand.
pub fn same_subnet(one: &Gid, other: &Gid) -> bool {
    let (a, b) = (family(one), family(other));
    a == b && common_bits(one, other) >= if a == Family::V4 { 24 } else { 64 }
}

/// Two GIDs that can meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Ours.
    pub local: Gid,
    /// The peer's.
    pub remote: Gid,
    /// How far packets between them can go.
    pub reach: Reach,
    /// Whether both look as if they were in one subnet ([`same_subnet`]).
    pub same_subnet: bool,
    /// Whether configuration demanded ours.
    pub demanded: bool,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subnet = match (self.same_subnet, self.reach) {
            (_, Reach::LinkLocal | Reach::Loopback | Reach::Segment) => "",
            (true, _) => ", in one subnet",
            (false, _) => ", in different subnets",
        };
        let demanded = if self.demanded { ", as demanded" } else { "" };
        write!(
            f,
            "GID {} ({}) to GID {} ({}): {}{subnet}{demanded}",
            self.local.index,
            shown(&self.local),
            self.remote.index,
            shown(&self.remote),
            self.reach
        )
    }
}

/// A GID as people write its address.
pub fn shown(gid: &Gid) -> String {
    let address = address(gid);
    address.to_ipv4_mapped().map_or_else(|| address.to_string(), |v4| v4.to_string())
}

/// Why no GIDs of two rails can meet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum NoGid {
    /// Configuration demands an index that is not there.
    #[error("wrong GID index: {index} is demanded, {device} port {port} has {there:?}")]
    WrongIndex {
        /// What is demanded.
        index: u16,
        /// Of which device.
        device: String,
        /// Of which port.
        port: u8,
        /// The indices that are there.
        there: Vec<u16>,
    },
    /// Configuration demands an index at which there is no address.
    #[error("wrong GID index: {index} of {device} port {port} is {gid}, to which nothing can be sent")]
    UnusableIndex {
        /// What is demanded.
        index: u16,
        /// Of which device.
        device: String,
        /// Of which port.
        port: u8,
        /// What is there.
        gid: String,
    },
    /// A side has no GID to which anything can be sent.
    #[error("{device} port {port} has no usable GID; give its interface an address")]
    NoneUsable {
        /// The device of that side.
        device: String,
        /// Its port.
        port: u8,
    },
    /// Both have some, but none for one protocol and address family.
    #[error("the GIDs have no protocol and address family in common: {ours} here, {theirs} at the peer")]
    NothingInCommon {
        /// What ours are.
        ours: String,
        /// What the peer's are.
        theirs: String,
    },
    /// Two InfiniBand subnets. What is between them has to be asked of a subnet manager, which is not done here.
    #[error(
        "the ports are in different InfiniBand subnets, between which there is no way without a router's path"
    )]
    OtherFabric,
}

/// The pairs of GIDs by which a rail of ours can meet one of the peer's, best first: by [`Reach`], then those that seem to be in one
/// subnet, then by how much of the addresses is common, then in the order in which the peer and we offer them. `demanded`: the one
/// index of ours that may be used.
///
/// # Errors
/// [`NoGid`]; the list is never empty.
pub fn candidates(ours: &Rail, theirs: &Rail, demanded: Option<u16>) -> Result<Vec<Candidate>, NoGid> {
    let usable = |rail: &Rail| {
        rail.gids.iter().filter_map(|gid| Some((*gid, reach(gid, rail.layer)?))).collect::<Vec<_>>()
    };
    let (device, port) = (ours.device.clone(), ours.port);
    let mut local = usable(ours);
    if let Some(index) = demanded {
        let Some(gid) = ours.gid(index) else {
            let there = ours.gids.iter().map(|gid| gid.index).collect();
            return Err(NoGid::WrongIndex { index, device, port, there });
        };
        local.retain(|(gid, _)| gid.index == index);
        if local.is_empty() {
            return Err(NoGid::UnusableIndex { index, device, port, gid: shown(gid) });
        }
    }
    let remote = usable(theirs);
    if local.is_empty() {
        return Err(NoGid::NoneUsable { device, port });
    }
    if remote.is_empty() {
        return Err(NoGid::NoneUsable { device: theirs.device.clone(), port: theirs.port });
    }
    let mut pairs = Vec::new();
    for (at_remote, (r, r_reach)) in remote.iter().enumerate() {
        for (at_local, (l, l_reach)) in local.iter().enumerate() {
            if !can_meet((l, *l_reach), (r, *r_reach)) {
                continue;
            }
            let same_subnet = same_subnet(l, r);
            let pair = Candidate {
                local: *l,
                remote: *r,
                reach: *l_reach,
                same_subnet,
                demanded: demanded.is_some(),
            };
            let order = (*l_reach, !same_subnet, u32::MAX - common_bits(l, r), at_remote, at_local);
            pairs.push((order, pair));
        }
    }
    if pairs.is_empty() {
        let fabric = |all: &[(Gid, Reach)]| all.iter().any(|(_, reach)| *reach == Reach::Fabric);
        if fabric(&local) && fabric(&remote) {
            return Err(NoGid::OtherFabric);
        }
        return Err(NoGid::NothingInCommon { ours: kinds(&local), theirs: kinds(&remote) });
    }
    pairs.sort_by_key(|(order, _)| *order);
    Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
}

fn can_meet((l, l_reach): (&Gid, Reach), (r, r_reach): (&Gid, Reach)) -> bool {
    let alike = l_reach == r_reach && l.kind == r.kind && family(l) == family(r);
    alike && (l_reach != Reach::Fabric || l.bytes[..8] == r.bytes[..8])
}

/// What there is, each kind once.
fn kinds(all: &[(Gid, Reach)]) -> String {
    let mut words: Vec<String> = Vec::new();
    for (gid, reach) in all {
        let family = if family(gid) == Family::V4 { "IPv4" } else { "IPv6" };
        let word = format!("{reach} ({family})");
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words.join(" and ")
}
