//! What devices there are. Rule: plain values, with a device of today as the default.

use crate::device::{GidKind, LinkLayer, Mtu};

/// A device of a fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub(super) u32);

/// A device.
#[derive(Debug, Clone)]
pub struct DeviceSpec {
    /// Its name; unique on its host.
    pub name: String,
    /// The host that it is in: whose [`super::FakeFabric::verbs`] see it.
    pub host: u32,
    /// Its GUID; 0 for one that is made up.
    pub guid: u64,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// Its ports, from 1 on.
    pub ports: Vec<PortSpec>,
    /// What it takes.
    pub limits: Limits,
    /// Whether it has memory windows of type 2.
    pub windows: bool,
    /// Whether it registers dma-bufs; the descriptor is then mapped as a file is.
    pub dmabuf: bool,
    /// Whether a retry count of 7 means for ever, as some devices have it.
    pub retry_seven_is_for_ever: bool,
    /// Whether CQEs of a QP stay in the CQ when it is destroyed, as with rxe; other devices take them out.
    pub cqes_outlive_qp: bool,
    /// Completion vectors.
    pub completion_vectors: u32,
}

/// What a device takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// QPs.
    pub max_qp: u32,
    /// MRs.
    pub max_mr: u32,
    /// Bytes of an MR.
    pub max_mr_size: u64,
    /// MWs.
    pub max_mw: u32,
    /// CQs.
    pub max_cq: u32,
    /// CQEs of a CQ.
    pub max_cqe: u32,
    /// PDs.
    pub max_pd: u32,
    /// SRQs.
    pub max_srq: u32,
    /// WRs of a queue.
    pub max_wr: u32,
    /// SGEs of a WR; at most 32.
    pub max_sge: u32,
    /// Bytes that a WR may carry itself.
    pub max_inline: u32,
    /// READs in flight of a QP.
    pub max_rd_atomic: u8,
    /// Bytes of a message.
    pub max_message: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_qp: 131_072,
            max_mr: 1 << 20,
            max_mr_size: 1 << 40,
            max_mw: 1 << 20,
            max_cq: 1 << 16,
            max_cqe: 1 << 22,
            max_pd: 1 << 16,
            max_srq: 1 << 16,
            max_wr: 32_768,
            max_sge: 30,
            max_inline: 256,
            max_rd_atomic: 16,
            max_message: 1 << 30,
        }
    }
}

/// A port.
#[derive(Debug, Clone)]
pub struct PortSpec {
    /// What it runs over.
    pub link_layer: LinkLayer,
    /// The network it is in: ports reach those of the same network.
    pub network: u32,
    /// Bytes in a packet.
    pub mtu: Mtu,
    /// Its LID; 0 over Ethernet.
    pub lid: u16,
    /// Its GID table; `None` is a free place.
    pub gids: Vec<Option<GidSpec>>,
    /// Its P_Key table.
    pub pkeys: Vec<u16>,
}

/// A GID in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidSpec {
    /// The GID.
    pub gid: [u8; 16],
    /// How packets from it look.
    pub kind: GidKind,
    /// The network interface it comes from.
    pub ifindex: u32,
}

/// The GID of an IPv4 address.
fn mapped(ipv4: [u8; 4]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&ipv4);
    gid
}

/// A link-local GID of an interface number.
fn link_local(interface: u64) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&interface.to_be_bytes());
    gid
}

impl PortSpec {
    /// A RoCE port of one IPv4 address. Index 0 is link-local and of version 1, index 1 the same of version 2, index 3 the IPv4 address.
    pub fn roce(ipv4: [u8; 4]) -> PortSpec {
        let number = u32::from_be_bytes(ipv4);
        let gid = |gid, kind| Some(GidSpec { gid, kind, ifindex: 2 });
        let local = link_local(0x0200_00ff_fe00_0000 | u64::from(number));
        PortSpec {
            link_layer: LinkLayer::Ethernet,
            network: 0,
            mtu: Mtu::B4096,
            lid: 0,
            gids: vec![
                gid(local, GidKind::RoceV1),
                gid(local, GidKind::RoceV2),
                gid(mapped(ipv4), GidKind::RoceV1),
                gid(mapped(ipv4), GidKind::RoceV2),
                None,
            ],
            pkeys: vec![0xffff],
        }
    }

    /// An InfiniBand port of this LID.
    pub fn infiniband(lid: u16) -> PortSpec {
        let gid = link_local(0x0002_c903_0000_0000 | u64::from(lid));
        PortSpec {
            link_layer: LinkLayer::InfiniBand,
            network: 0,
            mtu: Mtu::B4096,
            lid,
            gids: vec![Some(GidSpec { gid, kind: GidKind::Ib, ifindex: 0 })],
            pkeys: vec![0xffff, 0],
        }
    }
}

impl DeviceSpec {
    /// The place of the GID of version 2 and the IPv4 address, in ports of [`PortSpec::roce`].
    pub const ROCE_V2: u8 = 3;

    /// A device of host 0 with these ports.
    pub fn new(name: &str, ports: Vec<PortSpec>) -> DeviceSpec {
        DeviceSpec {
            name: name.to_string(),
            host: 0,
            guid: 0,
            numa_node: None,
            ports,
            limits: Limits::default(),
            windows: true,
            dmabuf: true,
            retry_seven_is_for_ever: true,
            cqes_outlive_qp: false,
            completion_vectors: 4,
        }
    }

    /// A RoCE device of one port and one IPv4 address.
    pub fn roce(name: &str, ipv4: [u8; 4]) -> DeviceSpec {
        DeviceSpec::new(name, vec![PortSpec::roce(ipv4)])
    }

    /// An InfiniBand device of one port and LID.
    pub fn infiniband(name: &str, lid: u16) -> DeviceSpec {
        DeviceSpec::new(name, vec![PortSpec::infiniband(lid)])
    }

    /// The same in another host.
    pub fn on_host(mut self, host: u32) -> DeviceSpec {
        self.host = host;
        self
    }
}
