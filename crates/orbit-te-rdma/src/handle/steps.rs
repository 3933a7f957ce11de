//! What a QP is told at each step of its life, as plain values. Rule: a step has exactly the attributes that verbs require of it.

use crate::access::MrAccess;
use crate::device::Mtu;
use ibverbs_sys::*;

/// The size of a QP's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpCaps {
    /// WRs in the send queue.
    pub max_send_wr: u32,
    /// WRs in the receive queue; 0 with an SRQ.
    pub max_recv_wr: u32,
    /// SGEs of a send WR.
    pub max_send_sge: u32,
    /// SGEs of a receive WR.
    pub max_recv_sge: u32,
    /// Bytes that a WR may carry itself.
    pub max_inline_data: u32,
}

impl QpCaps {
    pub(super) fn to_raw(self) -> ibv_qp_cap {
        let QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = self;
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }

    pub(super) fn from_raw(raw: ibv_qp_cap) -> QpCaps {
        let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = raw;
        QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }
}

/// RESET to INIT: the QP belongs to a port, and receives may be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitStep {
    /// The port, from 1.
    pub port: u8,
    /// The place of its P_Key.
    pub pkey_index: u16,
    /// What the peer may do.
    pub access: MrAccess,
}

/// INIT to RTR: the QP knows its peer, and answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtrStep {
    /// Where the peer is.
    pub address: Address,
    /// Bytes in a packet.
    pub path_mtu: Mtu,
    /// The number of the peer's QP.
    pub dest_qp_num: u32,
    /// The number of the first packet that comes.
    pub rq_psn: u32,
    /// READs of the peer's in flight.
    pub max_dest_rd_atomic: u8,
    /// How long the peer waits when no receive is posted, in the code of verbs.
    pub min_rnr_timer: u8,
}

/// RTR to RTS: the QP sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsStep {
    /// How long an answer may take: 4.096 µs times 2 to the power of this. 0 is for ever.
    pub timeout: u8,
    /// How often is tried again; at most 6, because some devices take 7 as for ever.
    pub retry_cnt: u8,
    /// How often is tried again when the peer has no receive posted; 7 is for ever.
    pub rnr_retry: u8,
    /// The number of the first packet that goes.
    pub sq_psn: u32,
    /// READs in flight.
    pub max_rd_atomic: u8,
}

/// Where a peer's port is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Address {
    /// The own port, from 1.
    pub port: u8,
    /// The peer's LID; 0 over Ethernet.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The lower bits of the own LID, where it has several.
    pub src_path_bits: u8,
    /// The header with GIDs; always over Ethernet, and across subnets of InfiniBand.
    pub grh: Option<Grh>,
}

/// The part of an address that names GIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grh {
    /// The peer's GID.
    pub dgid: [u8; 16],
    /// The place of the own GID in the port's table.
    pub sgid_index: u8,
    /// Routers on the way.
    pub hop_limit: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The flow label, by which routers spread traffic.
    pub flow_label: u32,
}

impl Address {
    fn to_raw(self) -> ibv_ah_attr {
        let mut raw = ibv_ah_attr {
            dlid: self.dlid,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            is_global: self.grh.is_some().into(),
            port_num: self.port,
            ..Default::default()
        };
        if let Some(grh) = self.grh {
            raw.grh = ibv_global_route {
                dgid: ibv_gid { raw: grh.dgid },
                flow_label: grh.flow_label,
                sgid_index: grh.sgid_index,
                hop_limit: grh.hop_limit,
                traffic_class: grh.traffic_class,
            };
        }
        raw
    }
}

/// What `ibv_modify_qp` is given.
pub(super) type Modification = (ibv_qp_attr, ibv_qp_attr_mask);

impl InitStep {
    pub(super) fn to_raw(self) -> Modification {
        type Mask = ibv_qp_attr_mask;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: self.port,
            pkey_index: self.pkey_index,
            qp_access_flags: self.access.bits(),
            ..Default::default()
        };
        let mask =
            Mask::IBV_QP_STATE | Mask::IBV_QP_PORT | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_ACCESS_FLAGS;
        (attr, mask)
    }
}

impl RtrStep {
    pub(super) fn to_raw(self) -> Modification {
        type Mask = ibv_qp_attr_mask;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            ah_attr: self.address.to_raw(),
            path_mtu: self.path_mtu.number(),
            dest_qp_num: self.dest_qp_num,
            rq_psn: self.rq_psn,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        (attr, mask)
    }
}

impl RtsStep {
    pub(super) fn to_raw(self) -> Modification {
        type Mask = ibv_qp_attr_mask;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            sq_psn: self.sq_psn,
            max_rd_atomic: self.max_rd_atomic,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        (attr, mask)
    }
}
