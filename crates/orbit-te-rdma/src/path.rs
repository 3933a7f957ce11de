//! The way from a QP here to one there: what two rails agree on, as steps of a QP. Rule: both sides come to it by themselves, from what they
//! have told each other.

use crate::attributes::{self, Agreed, Quality, Retry};
use crate::config::RdmaConfig;
use crate::gid::{self, Candidate};
use crate::handle::{Address, RtrStep, RtsStep};
use orbit_te_wire::rdma::{CloseCode, Gid, Queue, Rail, Side};

/// Two rails that meet.
pub(crate) struct Path {
    agreed: Agreed,
    address: Address,
    retry: Retry,
}

/// A rail, and the side it is of.
pub(crate) type Of<'a> = (&'a Rail, &'a Side);

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
        attributes::rtr(&self.agreed, theirs, self.address, &self.retry)
    }

    /// The step after which a QP sends.
    pub(crate) fn rts(&self, ours: Queue) -> RtsStep {
        attributes::rts(&self.agreed, ours, &self.retry)
    }
}
