//! What devices and ports are and can do, as plain values. Rule: everything that verbs say by number is given a name here, once.

use ibverbs_sys as ffi;
use std::fmt;

/// A device in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name: `mlx5_0`, `rxe0`.
    pub name: String,
    /// Its GUID, as a number.
    pub guid: u64,
    /// What it is.
    pub node: NodeType,
}

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeType {
    /// A channel adapter: InfiniBand or RoCE.
    Ca,
    /// iWARP.
    Rnic,
    /// Something else, by its number.
    Other(i32),
}

impl NodeType {
    /// Of its number.
    pub const fn from_number(number: i32) -> NodeType {
        match number {
            ffi::IBV_NODE_CA => NodeType::Ca,
            ffi::IBV_NODE_RNIC => NodeType::Rnic,
            other => NodeType::Other(other),
        }
    }
}

/// What a device has and takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceLimits {
    /// QPs.
    pub max_qp: u32,
    /// WRs in a queue.
    pub max_qp_wr: u32,
    /// SGEs in a WR.
    pub max_sge: u32,
    /// SGEs in a READ.
    pub max_sge_rd: u32,
    /// CQs.
    pub max_cq: u32,
    /// CQEs in a CQ.
    pub max_cqe: u32,
    /// MRs.
    pub max_mr: u32,
    /// Bytes in an MR.
    pub max_mr_size: u64,
    /// PDs.
    pub max_pd: u32,
    /// MWs.
    pub max_mw: u32,
    /// READs in flight that a QP answers.
    pub max_qp_rd_atom: u8,
    /// READs in flight that a QP starts.
    pub max_qp_init_rd_atom: u8,
    /// SRQs.
    pub max_srq: u32,
    /// Its ports are 1 to this.
    pub ports: u8,
    /// Whether it has memory windows of type 2 (2A or 2B).
    pub mw_type_2: bool,
    /// Whether keys can be invalidated by a WR (memory management extensions).
    pub local_invalidate: bool,
}

impl DeviceLimits {
    /// From what verbs give.
    pub fn from_raw(raw: &ffi::ibv_device_attr) -> DeviceLimits {
        let count = |n: i32| n.max(0) as u32;
        let few = |n: i32| n.clamp(0, 255) as u8;
        let has = |bit: u32| raw.device_cap_flags & bit != 0;
        DeviceLimits {
            max_qp: count(raw.max_qp),
            max_qp_wr: count(raw.max_qp_wr),
            max_sge: count(raw.max_sge),
            max_sge_rd: count(raw.max_sge_rd),
            max_cq: count(raw.max_cq),
            max_cqe: count(raw.max_cqe),
            max_mr: count(raw.max_mr),
            max_mr_size: raw.max_mr_size,
            max_pd: count(raw.max_pd),
            max_mw: count(raw.max_mw),
            max_qp_rd_atom: few(raw.max_qp_rd_atom),
            max_qp_init_rd_atom: few(raw.max_qp_init_rd_atom),
            max_srq: count(raw.max_srq),
            ports: raw.phys_port_cnt,
            mw_type_2: has(ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2A) || has(ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
            local_invalidate: has(ffi::IBV_DEVICE_MEM_MGT_EXTENSIONS),
        }
    }
}

/// What only `ibv_query_device_ex` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceExtras {
    /// Whether MRs can be registered on demand, without pinning.
    pub odp: bool,
    /// Flags beyond the old 32 (`enum ib_uverbs_device_cap_flags`).
    pub cap_flags: u64,
}

/// A port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortInfo {
    /// Its state.
    pub state: PortState,
    /// What it runs over.
    pub link_layer: LinkLayer,
    /// The largest path MTU that it takes now.
    pub active_mtu: Mtu,
    /// The largest it could take.
    pub max_mtu: Mtu,
    /// Its LID; 0 over Ethernet.
    pub lid: u16,
    /// How many of the LID's lower bits are path bits.
    pub lmc: u8,
    /// The LID of the subnet manager.
    pub sm_lid: u16,
    /// Bytes in a message.
    pub max_message: u32,
    /// Places in its GID table.
    pub gids: u32,
    /// Places in its P_Key table.
    pub pkeys: u16,
    /// Bits a second, from width and speed; 0 if unknown.
    pub bits_per_second: u64,
    /// Whether packets must carry a GRH.
    pub grh_required: bool,
}

impl PortInfo {
    /// From what verbs give.
    pub fn from_raw(raw: &ffi::ibv_port_attr) -> PortInfo {
        PortInfo {
            state: PortState::from_number(raw.state),
            link_layer: LinkLayer::from_number(raw.link_layer),
            active_mtu: Mtu::from_number(raw.active_mtu).unwrap_or(Mtu::B256),
            max_mtu: Mtu::from_number(raw.max_mtu).unwrap_or(Mtu::B256),
            lid: raw.lid,
            lmc: raw.lmc,
            sm_lid: raw.sm_lid,
            max_message: raw.max_msg_sz,
            gids: raw.gid_tbl_len.max(0) as u32,
            pkeys: raw.pkey_tbl_len,
            bits_per_second: lanes(raw.active_width) * megabits(raw.active_speed) * 1_000_000,
            grh_required: raw.flags & 1 != 0,
        }
    }
}

fn lanes(width: u8) -> u64 {
    match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

fn megabits(speed: u8) -> u64 {
    match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    }
}

/// The state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// No carrier, or taken down.
    Down,
    /// Has carrier, waits for the subnet manager.
    Init,
    /// Configured, not yet active.
    Armed,
    /// Carries traffic.
    Active,
    /// Carries traffic, but for the carrier that it has just lost.
    ActiveDefer,
    /// Another one, by its number.
    Other(u32),
}

impl PortState {
    /// Of its number.
    pub const fn from_number(number: u32) -> PortState {
        match number {
            ffi::ibv_port_state::IBV_PORT_DOWN => PortState::Down,
            ffi::ibv_port_state::IBV_PORT_INIT => PortState::Init,
            ffi::ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
            ffi::ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
            ffi::ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
            other => PortState::Other(other),
        }
    }
}

/// What a port runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID, and by GID across subnets.
    InfiniBand,
    /// Ethernet (RoCE): addressed by GID.
    Ethernet,
    /// A driver that does not say; InfiniBand, by convention.
    Unspecified,
}

impl LinkLayer {
    /// Of its number.
    pub const fn from_number(number: u8) -> LinkLayer {
        match number as u32 {
            ffi::IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            ffi::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        }
    }
}

/// The largest payload of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Mtu {
    /// 256 bytes.
    B256 = ffi::IBV_MTU_256,
    /// 512 bytes.
    B512 = ffi::IBV_MTU_512,
    /// 1024 bytes.
    B1024 = ffi::IBV_MTU_1024,
    /// 2048 bytes.
    B2048 = ffi::IBV_MTU_2048,
    /// 4096 bytes.
    B4096 = ffi::IBV_MTU_4096,
}

impl Mtu {
    /// Of its number in verbs.
    pub const fn from_number(number: u32) -> Option<Mtu> {
        match number {
            ffi::IBV_MTU_256 => Some(Mtu::B256),
            ffi::IBV_MTU_512 => Some(Mtu::B512),
            ffi::IBV_MTU_1024 => Some(Mtu::B1024),
            ffi::IBV_MTU_2048 => Some(Mtu::B2048),
            ffi::IBV_MTU_4096 => Some(Mtu::B4096),
            _ => None,
        }
    }

    /// Its number in verbs.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        128 << self.number()
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// A place of a GID table that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GidEntry {
    /// The port it belongs to.
    pub port: u8,
    /// Its place in the port's table.
    pub index: u32,
    /// The GID.
    pub gid: [u8; 16],
    /// How packets from it look.
    pub kind: GidKind,
    /// The network interface it comes from; 0 for none.
    pub ifindex: u32,
}

impl GidEntry {
    /// From what verbs give.
    pub fn from_raw(raw: &ffi::ibv_gid_entry) -> GidEntry {
        GidEntry {
            port: raw.port_num as u8,
            index: raw.gid_index,
            gid: crate::sys::gid_bytes(&raw.gid),
            kind: GidKind::from_number(raw.gid_type),
            ifindex: raw.ndev_ifindex,
        }
    }
}

/// How packets from a GID look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RoCE over Ethernet alone; not routable.
    RoceV1,
    /// RoCE over UDP.
    RoceV2,
    /// Another one, by its number.
    Other(u32),
}

impl GidKind {
    /// Of its number.
    pub const fn from_number(number: u32) -> GidKind {
        match number {
            ffi::IBV_GID_TYPE_IB => GidKind::Ib,
            ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            other => GidKind::Other(other),
        }
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            GidKind::Ib => ffi::IBV_GID_TYPE_IB,
            GidKind::RoceV1 => ffi::IBV_GID_TYPE_ROCE_V1,
            GidKind::RoceV2 => ffi::IBV_GID_TYPE_ROCE_V2,
            GidKind::Other(number) => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_what_their_names_say() {
        for (mtu, bytes) in
            [(Mtu::B256, 256), (Mtu::B512, 512), (Mtu::B1024, 1024), (Mtu::B2048, 2048), (Mtu::B4096, 4096)]
        {
            assert_eq!((mtu.bytes(), Mtu::from_number(mtu.number())), (bytes, Some(mtu)));
        }
        assert_eq!(Mtu::from_number(0), None);
        assert_eq!(Mtu::from_number(6), None);
    }

    #[test]
    fn port_states_have_the_numbers_of_verbs() {
        use PortState::*;
        let all = [0, 1, 2, 3, 4, 5, 6].map(PortState::from_number);
        assert_eq!(all, [Other(0), Down, Init, Armed, Active, ActiveDefer, Other(6)]);
    }

    #[test]
    fn rates_come_from_width_and_speed() {
        let raw = ffi::ibv_port_attr { active_width: 2, active_speed: 128, ..Default::default() };
        assert_eq!(PortInfo::from_raw(&raw).bits_per_second, 400_000_000_000);
    }
}
