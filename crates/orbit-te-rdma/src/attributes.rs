//! What two sides agree on, and the attributes of a QP on its way from INIT to RTS. Rule: the smaller of both sides in everything, and no
//! value that means for ever.
//!
//! Addressing on InfiniBand (LIDs, and when a global route header is needed) is implemented and tested on fixtures, not qualified on
//! devices.

mod retry;

pub use retry::{MinRnrTimer, Retry, retry_for};

use crate::access::MrAccess;
use crate::gid::Candidate;
use orbit_te_wire::rdma::{Features, LinkLayer, Mtu, Queue, Rail, SideLimits};
use orbit_te_wire::{Access, rdma::CloseCode};

/// What holds for the QPs of two rails that meet, as seen from this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The MTU of the path.
    pub mtu: Mtu,
    /// Work requests that a QP of ours holds: our own limit.
    pub send_depth: u32,
    /// Receives that a QP of ours holds.
    pub receive_depth: u32,
    /// Writes with immediate data that we may have under way: as many as the peer posts receives.
    pub immediate_depth: u32,
    /// Reads that we may have under way on a QP (`max_rd_atomic`); zero: none may be posted.
    pub reads_asked: u8,
    /// Reads of the peer that a QP of ours serves at a time (`max_dest_rd_atomic`).
    pub reads_served: u8,
    /// The most bytes that travel inside of a work request of ours.
    pub inline_bytes: u32,
    /// The most bytes of one work request.
    pub message_bytes: u32,
    /// What both can do.
    pub features: Features,
}

/// What both sides can live with. The other side, with the arguments the other way round, comes to the same MTU, message size and
/// features, and to our asked reads as its served ones.
pub fn agree(
    (ours, our_limits, our_features): (&Rail, &SideLimits, Features),
    (theirs, their_limits, their_features): (&Rail, &SideLimits, Features),
) -> Agreed {
    let asks = |rail: &Rail, limits: &SideLimits| rail.reads_asked.min(limits.read_depth);
    let serves = |rail: &Rail, limits: &SideLimits| rail.reads_served.min(limits.read_depth);
    Agreed {
        mtu: ours.mtu.min(theirs.mtu),
        send_depth: our_limits.send_depth,
        receive_depth: our_limits.receive_depth,
        immediate_depth: our_limits.send_depth.min(their_limits.receive_depth),
        reads_asked: asks(ours, our_limits).min(serves(theirs, their_limits)),
        reads_served: serves(ours, our_limits).min(asks(theirs, their_limits)),
        inline_bytes: our_limits.inline_bytes,
        message_bytes: our_limits.message_bytes.min(their_limits.message_bytes),
        features: our_features & their_features,
    }
}

/// How a region is to be registered. `writable`: its pages can be written at all. `relaxed`: the bytes of one write may land in any order.
/// `windows`: grants of it are memory windows, which get
/// the remote rights in place of the registration; those need the right to bind, and verbs ask for local writing with remote writing.
pub fn registration(access: Access, writable: bool, relaxed: bool, windows: bool) -> MrAccess {
    let mut flags = MrAccess::empty();
    flags.set(MrAccess::LOCAL_WRITE, writable);
    flags.set(MrAccess::REMOTE_READ, access.contains(Access::REMOTE_READ) && !windows);
    flags.set(MrAccess::REMOTE_WRITE, access.contains(Access::REMOTE_WRITE) && writable && !windows);
    flags.set(MrAccess::MW_BIND, windows && access.is_remote());
    flags.set(MrAccess::RELAXED_ORDERING, relaxed);
    flags
}

/// What a memory window or a registration made for one grant permits: what the grant and the pages do.
pub fn grant(access: Access, writable: bool) -> MrAccess {
    registration(access, writable, false, false) & (MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE)
}

/// What a path is to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quality {
    /// The service level, of 0 to 15: the virtual lane on InfiniBand, the priority on Ethernet.
    pub service_level: u8,
    /// The traffic class in the global route header: the DSCP and ECN bits of RoCEv2.
    pub traffic_class: u8,
    /// How many routers a packet passes at most, from 1 on.
    pub hop_limit: u8,
    /// The flow label, of 20 bits; zero leaves it to the device.
    pub flow_label: u32,
}

impl Default for Quality {
    fn default() -> Quality {
        Quality { service_level: 0, traffic_class: 0, hop_limit: 64, flow_label: 0 }
    }
}

impl Quality {
    /// What is wrong with it, in words.
    pub fn wrong(&self) -> Option<&'static str> {
        if self.service_level > 15 {
            return Some("the service level is over 15");
        }
        if self.flow_label >= 1 << 20 {
            return Some("the flow label has more than 20 bits");
        }
        if self.hop_limit == 0 {
            return Some("the hop limit is zero, so that no packet arrives");
        }
        None
    }
}

/// The global route header of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GlobalRoute {
    /// The GID of the peer.
    pub destination: [u8; 16],
    /// The index of our GID.
    pub source_index: u16,
    /// As [`Quality::hop_limit`].
    pub hop_limit: u8,
    /// As [`Quality::traffic_class`].
    pub traffic_class: u8,
    /// As [`Quality::flow_label`].
    pub flow_label: u32,
}

/// Where a QP sends to (`struct ibv_ah_attr`). The static rate and the source path bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathAddress {
    /// Our port.
    pub port: u8,
    /// The peer's LID; zero on Ethernet.
    pub lid: u16,
    /// As [`Quality::service_level`].
    pub service_level: u8,
    /// The global route header, where there is one (`is_global`).
    pub global: Option<GlobalRoute>,
}

/// The path from our rail to the peer's by these GIDs. On Ethernet the GIDs are the address. On InfiniBand the LID is, and the header
/// is added where one of the ports asks for it.
///
/// # Errors
/// A code with which the connection is refused: different link layers, or a LID that no port can have.
pub fn path(
    ours: &Rail,
    theirs: &Rail,
    gids: &Candidate,
    quality: &Quality,
) -> Result<PathAddress, CloseCode> {
    if ours.layer != theirs.layer {
        return Err(CloseCode::Mismatch);
    }
    let route = GlobalRoute {
        destination: gids.remote.bytes,
        source_index: gids.local.index,
        hop_limit: quality.hop_limit,
        traffic_class: quality.traffic_class,
        flow_label: quality.flow_label,
    };
    let (lid, global) = match ours.layer {
        LinkLayer::Ethernet => (0, Some(route)),
        LinkLayer::InfiniBand => {
            // LIDs of ports go from 1 to 0xbfff; above are groups of them.
            if !(1..=0xbfff).contains(&theirs.lid) {
                return Err(CloseCode::Mismatch);
            }
            (theirs.lid, (ours.grh_required || theirs.grh_required).then_some(route))
        }
    };
    Ok(PathAddress { port: ours.port, lid, service_level: quality.service_level, global })
}

/// The entry of the P_Key table that a rail talks in: the first with its partition and full membership, else the first with its
/// partition. `table` is the port's P_Key table from its first entry on.
pub fn p_key_index(table: &[u16], wanted: u16) -> Option<u16> {
    const FULL: u16 = 0x8000;
    let same = |key: &u16| *key & !FULL == wanted & !FULL && *key & !FULL != 0;
    let exact = table.iter().position(|key| same(key) && key & FULL != 0);
    exact.or_else(|| table.iter().position(same)).and_then(|at| u16::try_from(at).ok())
}

/// The attributes for INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitAttributes {
    /// Our port.
    pub port: u8,
    /// The index in the port's P_Key table.
    pub p_key_index: u16,
    /// What the peer may do by this QP; each registration has its own rights besides.
    pub access: MrAccess,
}

/// The attributes for RTR, from where on the QP receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtrAttributes {
    /// The MTU of the path.
    pub mtu: Mtu,
    /// The peer's QP.
    pub destination: u32,
    /// The first PSN that it sends.
    pub receive_psn: u32,
    /// Reads that are served at a time.
    pub reads_served: u8,
    /// How long the peer is asked to wait when no receive is posted.
    pub min_rnr_timer: MinRnrTimer,
    /// Where it sends to.
    pub path: PathAddress,
}

/// The attributes for RTS, from where on the QP sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsAttributes {
    /// The first PSN that we send.
    pub send_psn: u32,
    /// How often and how long it tries.
    pub retry: Retry,
    /// Reads that may be under way.
    pub reads_asked: u8,
}

/// The attributes for INIT, of every QP of a rail.
pub fn init(ours: &Rail, p_key_index: u16) -> InitAttributes {
    let access = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE | MrAccess::LOCAL_WRITE;
    InitAttributes { port: ours.port, p_key_index, access }
}

/// The attributes for RTR of a QP that meets `theirs`.
pub fn rtr(agreed: &Agreed, theirs: Queue, path: PathAddress, retry: &Retry) -> RtrAttributes {
    RtrAttributes {
        mtu: agreed.mtu,
        destination: theirs.number,
        receive_psn: theirs.psn,
        reads_served: agreed.reads_served,
        min_rnr_timer: retry.min_rnr_timer,
        path,
    }
}

/// The attributes for RTS of our QP.
pub fn rts(agreed: &Agreed, ours: Queue, retry: Retry) -> RtsAttributes {
    RtsAttributes { send_psn: ours.psn, retry, reads_asked: agreed.reads_asked }
}
