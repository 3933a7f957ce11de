//! What a side has: its rails, and what it is ready to take. Rule: facts of the sender's devices as its driver tells them; nothing here
//! says what is to be done with them.

use crate::codec;
use crate::error::WireError;
use crate::rdma::{Features, MAX_DEVICE_NAME_BYTES, MAX_GIDS, MAX_RAILS};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What carries the packets of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LinkLayer {
    /// InfiniBand: ports have LIDs.
    InfiniBand,
    /// Ethernet: RoCE, where only GIDs count.
    Ethernet,
}

/// Which protocol an entry of a GID table stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet frames that no router passes on.
    RoceV1,
    /// RoCE version 2: UDP over IPv4 or IPv6.
    RoceV2,
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gid {
    /// Its index in the table.
    pub index: u16,
    /// The GID, in network order: an IPv6 address, or an IPv4 address behind `::ffff:`.
    pub bytes: [u8; 16],
    /// For which protocol.
    pub kind: GidKind,
}

/// The most payload in one packet (MTU).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// All, ascending.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// The number that verbs have for it (`enum ibv_mtu`), from 1 on.
    pub const fn number(self) -> u32 {
        self as u32 + 1
    }

    /// That of a number of verbs.
    pub fn from_number(number: u32) -> Option<Mtu> {
        Mtu::ALL.get(number.checked_sub(1)? as usize).copied()
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// One port of one device, by which a side can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rail {
    /// How its side numbers it: under [`MAX_RAILS`], no number twice.
    pub number: u8,
    /// The device's name at its side; at most [`MAX_DEVICE_NAME_BYTES`].
    pub device: String,
    /// The device's GUID, which differs from that of every other device.
    pub guid: u64,
    /// The port's number, from 1 on.
    pub port: u8,
    /// What carries its packets.
    pub layer: LinkLayer,
    /// Its LID; zero on Ethernet.
    pub lid: u16,
    /// Whether every packet has to carry a global route header, though a LID would do (virtual InfiniBand ports).
    pub grh_required: bool,
    /// The GIDs that may be used, best first.
    #[serde(deserialize_with = "codec::list::<MAX_GIDS, _, _>")]
    pub gids: Vec<Gid>,
    /// The MTU in force.
    pub mtu: Mtu,
    /// The speed of a lane in force, by the number that verbs have for it (`ibv_port_attr::active_speed`).
    pub speed: u16,
    /// How many lanes are in force, by the number that verbs have for it (`ibv_port_attr::active_width`).
    pub width: u8,
    /// The partition that it wants to talk in: a P_Key of its table.
    pub p_key: u16,
    /// The most reads of a peer that one of its QPs serves at a time (`max_qp_rd_atom`).
    pub reads_served: u8,
    /// The most reads that one of its QPs has under way at a time (`max_qp_init_rd_atom`).
    pub reads_asked: u8,
    /// The NUMA node of the device; none where it has none.
    pub numa: Option<u16>,
}

impl Rail {
    /// The entry of the GID table with this index, if it is offered.
    pub fn gid(&self, index: u16) -> Option<&Gid> {
        self.gids.iter().find(|gid| gid.index == index)
    }

    /// Refuses a rail whose fields contradict each other or are over their limits.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn validate(&self) -> Result<(), WireError> {
        let invalid = |what| Err(WireError::Invalid { what });
        if usize::from(self.number) >= MAX_RAILS {
            return Err(WireError::Unknown { what: "number of a rail", value: self.number.into() });
        }
        if self.device.len() > MAX_DEVICE_NAME_BYTES {
            let (got, limit) = (self.device.len() as u64, MAX_DEVICE_NAME_BYTES as u64);
            return Err(WireError::TooLong { what: "device name", got, limit });
        }
        if self.device.is_empty() {
            return invalid("a rail's device has no name");
        }
        if self.port == 0 {
            return invalid("a rail's port is zero");
        }
        at_most("GIDs of a rail", self.gids.len(), MAX_GIDS)?;
        if self.gids.is_empty() {
            return invalid("a rail has no GID");
        }
        all_differ("two GIDs of a rail have one index", self.gids.iter().map(|gid| gid.index.into()))
    }
}

/// What a side is ready to take, and how deep its queues are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SideLimits {
    /// Work requests that one QP holds.
    pub send_depth: u32,
    /// Receives that one QP holds, each for one write with immediate data.
    pub receive_depth: u32,
    /// Reads that the side wants to have under way on one QP; each rail has a limit of its own besides.
    pub read_depth: u8,
    /// The most bytes that travel inside of a work request.
    pub inline_bytes: u32,
    /// The most bytes of one work request.
    pub message_bytes: u32,
}

/// What one side has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// What it can do.
    pub features: Features,
    /// What it is ready to take.
    pub limits: SideLimits,
    /// Its rails; none means that it has none left.
    #[serde(deserialize_with = "codec::list::<MAX_RAILS, _, _>")]
    pub rails: Vec<Rail>,
}

impl Side {
    /// The rail of this number.
    pub fn rail(&self, number: u8) -> Option<&Rail> {
        self.rails.iter().find(|rail| rail.number == number)
    }

    pub(super) fn validate(&self) -> Result<(), WireError> {
        at_most("rails", self.rails.len(), MAX_RAILS)?;
        self.rails.iter().try_for_each(Rail::validate)?;
        all_differ("two rails have one number", self.rails.iter().map(|rail| rail.number.into()))?;
        let SideLimits { send_depth, message_bytes, .. } = self.limits;
        if send_depth == 0 {
            return Err(WireError::Invalid { what: "the limit of work requests on a QP is zero" });
        }
        if message_bytes == 0 {
            return Err(WireError::Invalid { what: "the limit of bytes in a work request is zero" });
        }
        Ok(())
    }
}

/// Refuses more than `limit` of something.
pub(super) fn at_most(what: &'static str, got: usize, limit: usize) -> Result<(), WireError> {
    if got > limit {
        return Err(WireError::TooMany { what, got: got as u64, limit: limit as u64 });
    }
    Ok(())
}

/// Refuses a number that comes twice. Lists here are short, so that each is compared with each.
pub(super) fn all_differ(
    what: &'static str,
    numbers: impl Iterator<Item = u32> + Clone,
) -> Result<(), WireError> {
    let mut rest = numbers;
    while let Some(one) = rest.next() {
        if rest.clone().any(|other| other == one) {
            return Err(WireError::Invalid { what });
        }
    }
    Ok(())
}
