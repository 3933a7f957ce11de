//! What two sides agree on, and the steps of a QP from INIT to RTS that follow from it. Rule: the smaller of both sides in everything, and no
//! value that means for ever.
//!
//! Addressing on InfiniBand (LIDs, and when a global route header is needed) is implemented and tested on fixtures, not qualified on
//! devices.

mod retry;

pub use retry::{MinRnrTimer, Retry, retry_for};

use crate::access::MrAccess;
use crate::gid::Candidate;
use crate::handle::{Address, Grh, InitStep, RtrStep, RtsStep};
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

/// The path from our rail to the peer's by these GIDs. On Ethernet the GIDs are the address. On InfiniBand the LID is, and the header
/// is added where one of the ports asks for it.
///
/// # Errors
/// A code with which the connection is refused: different link layers, a LID that no port can have, or a GID whose index no QP can be told.
pub fn path(ours: &Rail, theirs: &Rail, gids: &Candidate, quality: &Quality) -> Result<Address, CloseCode> {
    if ours.layer != theirs.layer {
        return Err(CloseCode::Mismatch);
    }
    let route = Grh {
        dgid: gids.remote.bytes,
        // The address of a QP holds one byte of it.
        sgid_index: u8::try_from(gids.local.index).map_err(|_| CloseCode::NoCommonGid)?,
        hop_limit: quality.hop_limit,
        traffic_class: quality.traffic_class,
        flow_label: quality.flow_label,
    };
    let (dlid, grh) = match ours.layer {
        LinkLayer::Ethernet => (0, Some(route)),
        LinkLayer::InfiniBand => {
            // LIDs of ports go from 1 to 0xbfff; above are groups of them.
            if !(1..=0xbfff).contains(&theirs.lid) {
                return Err(CloseCode::Mismatch);
            }
            (theirs.lid, (ours.grh_required || theirs.grh_required).then_some(route))
        }
    };
    Ok(Address { port: ours.port, dlid, sl: quality.service_level, src_path_bits: 0, grh })
}

/// The entry of the P_Key table that a rail talks in: the first with its partition and full membership, else the first with its
/// partition. `table` is the port's P_Key table from its first entry on.
pub fn p_key_index(table: &[u16], wanted: u16) -> Option<u16> {
    const FULL: u16 = 0x8000;
    let same = |key: &u16| *key & !FULL == wanted & !FULL && *key & !FULL != 0;
    let exact = table.iter().position(|key| same(key) && key & FULL != 0);
    exact.or_else(|| table.iter().position(same)).and_then(|at| u16::try_from(at).ok())
}

/// The step to INIT of a QP of this rail. `serves`: the peer reads and writes by it what registrations open to it; otherwise only this side does.
pub fn init(ours: &Rail, p_key_index: u16, serves: bool) -> InitStep {
    let access = match serves {
        true => MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE | MrAccess::LOCAL_WRITE,
        false => MrAccess::empty(),
    };
    InitStep { port: ours.port, pkey_index: p_key_index, access }
}

/// The step to RTR of a QP that meets `theirs`.
pub fn rtr(agreed: &Agreed, theirs: Queue, address: Address, retry: &Retry) -> RtrStep {
    RtrStep {
        address,
        path_mtu: agreed.mtu.into(),
        dest_qp_num: theirs.number,
        rq_psn: theirs.psn,
        max_dest_rd_atomic: agreed.reads_served,
        min_rnr_timer: retry.min_rnr_timer.number(),
    }
}

/// The step to RTS of our QP.
pub fn rts(agreed: &Agreed, ours: Queue, retry: &Retry) -> RtsStep {
    RtsStep {
        timeout: retry.timeout,
        retry_cnt: retry.count,
        rnr_retry: retry.rnr_count,
        sq_psn: ours.psn,
        max_rd_atomic: agreed.reads_asked,
    }
}
