//! The way from a QP here to one there: what two rails agree on, as steps of a QP. Rule: both sides come to it by themselves, from what they
//! have told each other.

use crate::access::MrAccess;
use crate::attributes::{self, Agreed, PathAddress, Quality, Retry};
use crate::config::RdmaConfig;
use crate::device::Mtu;
use crate::gid::{self, Candidate};
use crate::handle::{Address, Grh, InitStep, RtrStep, RtsStep};
use orbit_te_wire::rdma::{CloseCode, Gid, Queue, Rail, Side};

/// Two rails that meet.
pub(crate) struct Path {
    agreed: Agreed,
    address: PathAddress,
    retry: Retry,
}

/// A rail, and the side it is of.
pub(crate) type Of<'a> = (&'a Rail, &'a Side);

/// The first step of a QP. `access`: what the peer may do.
pub(crate) fn init(port: u8, pkey_index: u16, access: MrAccess) -> InitStep {
    InitStep { port, pkey_index, access }
}

impl Path {
    /// The path by these GIDs, of ours and of the peer's.
    pub(crate) fn new(
        ours: Of<'_>,
        theirs: Of<'_>,
        gids: (Gid, Gid),
        config: &RdmaConfig,
    ) -> Result<Path, CloseCode> {
        let reach = gid::reach(&gids.0, ours.0.layer).ok_or(CloseCode::NoCommonGid)?;
        let same_subnet = gid::same_subnet(&gids.0, &gids.1);
        let demanded = config.gid_index.is_some();
        let candidate = Candidate { local: gids.0, remote: gids.1, reach, same_subnet, demanded };
        let quality = Quality {
            service_level: config.service_level,
            traffic_class: config.traffic_class,
            ..Quality::default()
        };
        let agreed = attributes::agree(
            (ours.0, &ours.1.limits, ours.1.features),
            (theirs.0, &theirs.1.limits, theirs.1.features),
        );
        let address = attributes::path(ours.0, theirs.0, &candidate, &quality)?;
        Ok(Path { agreed, address, retry: attributes::retry_for(config.ack_budget) })
    }

    /// Bytes in a packet.
    pub(crate) fn mtu(&self) -> orbit_te_wire::rdma::Mtu {
        self.agreed.mtu
    }

    /// The step by which a QP knows its peer's.
    pub(crate) fn rtr(&self, theirs: Queue) -> RtrStep {
        let address = &self.address;
        RtrStep {
            address: Address {
                port: address.port,
                dlid: address.lid,
                sl: address.service_level,
                src_path_bits: 0,
                grh: address.global.map(|route| Grh {
                    dgid: route.destination,
                    sgid_index: route.source_index as u8,
                    hop_limit: route.hop_limit,
                    traffic_class: route.traffic_class,
                    flow_label: route.flow_label,
                }),
            },
            path_mtu: Mtu::from_number(self.agreed.mtu.number()).unwrap_or(Mtu::B1024),
            dest_qp_num: theirs.number,
            rq_psn: theirs.psn,
            max_dest_rd_atomic: self.agreed.reads_served,
            min_rnr_timer: self.retry.min_rnr_timer.number(),
        }
    }

    /// The step after which a QP sends.
    pub(crate) fn rts(&self, ours: Queue) -> RtsStep {
        RtsStep {
            timeout: self.retry.timeout,
            retry_cnt: self.retry.count,
            rnr_retry: self.retry.rnr_count,
            sq_psn: ours.psn,
            max_rd_atomic: self.agreed.reads_asked,
        }
    }
}
