//! Whom a QP reaches. Rule: as on a real network: by GID over Ethernet, by LID over InfiniBand, through ports that are up, with matching
//! P_Keys and packet numbers, and only a QP that is connected back.

use super::state::{Health, PortAt, QpState, Reach, State};
use crate::device::LinkLayer;

/// The lower 15 bits are the partition, the highest says whether it is a full member.
fn partition_matches(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && a & 0x7fff != 0 && (a | b) & 0x8000 != 0
}

impl State {
    /// Whom a QP reaches now; looked up again only after something changed.
    #[inline]
    pub(super) fn reach(&mut self, qp: u32) -> Reach {
        let at = &self.qps[qp as usize];
        if at.reach_epoch == self.epoch {
            return at.reach;
        }
        let reach = self.look_up(qp);
        let at = &mut self.qps[qp as usize];
        (at.reach, at.reach_epoch) = (reach, self.epoch);
        reach
    }

    /// Something changed: each QP looks again.
    pub(super) fn changed(&mut self) {
        self.epoch += 1;
    }

    #[cold]
    fn look_up(&self, number: u32) -> Reach {
        let qp = &self.qps[number as usize];
        let here = PortAt { device: qp.device, port: qp.attr.port_num };
        let Some(port) = self.port(here) else { return Reach::Nobody };
        if port.stuck || self.devices[qp.device as usize].health != Health::Good {
            return Reach::Stuck;
        }
        if qp.attr.ah_attr.is_global != 0 {
            let now = port.gid(qp.attr.ah_attr.grh.sgid_index).map(|gid| gid.gid);
            if now != qp.source {
                return Reach::NoSource;
            }
        }
        if !port.up || port.black_hole {
            return Reach::Nobody;
        }
        let Some(there) = self.destination(number, here) else { return Reach::Nobody };
        let Some(far) = self.port(there).filter(|far| far.up && !far.black_hole && !far.stuck) else {
            return Reach::Nobody;
        };
        if self.cuts.contains(&(here.min(there), here.max(there))) {
            return Reach::Nobody;
        }
        let Some(peer) = self.qp_by_number(there.device, qp.attr.dest_qp_num) else { return Reach::Nobody };
        let answers = &self.qps[peer as usize];
        let listens = answers.alive && matches!(answers.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        // A QP that is connected to another, or expects other packet numbers, drops what comes.
        let connected_back = answers.attr.dest_qp_num == qp.number
            && answers.attr.rq_psn == qp.attr.sq_psn
            && answers.attr.port_num == there.port
            && self.destination(peer, there) == Some(here);
        let pkey = |port: &super::state::Port, index: u16| port.spec.pkeys.get(usize::from(index)).copied();
        let partition = match (pkey(port, qp.attr.pkey_index), pkey(far, answers.attr.pkey_index)) {
            (Some(ours), Some(theirs)) => partition_matches(ours, theirs),
            _ => false,
        };
        if listens && connected_back && partition { Reach::Peer(peer) } else { Reach::Nobody }
    }

    /// The port that a QP's address names, as seen from its own.
    fn destination(&self, qp: u32, here: PortAt) -> Option<PortAt> {
        let address = &self.qps[qp as usize].attr.ah_attr;
        let near = self.port(here)?;
        let dgid = crate::sys::gid_bytes(&address.grh.dgid);
        let kind = near.gid(address.grh.sgid_index).map(|gid| gid.kind);
        for (device, at) in (0..).zip(&self.devices) {
            for (port, far) in (1..).zip(&at.ports) {
                if far.spec.network != near.spec.network
                    || far.spec.link_layer != near.spec.link_layer
                    || at.health != Health::Good
                {
                    continue;
                }
                let named = match near.spec.link_layer {
                    // RoCE: the GID must be there, and packets of that kind be understood.
                    LinkLayer::Ethernet => {
                        far.spec.gids.iter().flatten().any(|gid| gid.gid == dgid && Some(gid.kind) == kind)
                    }
                    _ if address.dlid != 0 => far.spec.lid == address.dlid,
                    _ => address.is_global != 0 && far.spec.gids.iter().flatten().any(|gid| gid.gid == dgid),
                };
                if named {
                    return Some(PortAt { device, port });
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::partition_matches;

    #[test]
    fn two_limited_members_do_not_meet() {
        for (a, b, meets) in [
            (0xffff, 0xffff, true),
            (0xffff, 0x7fff, true),
            (0x7fff, 0x7fff, false),
            (0x8001, 0x8002, false),
            (0, 0, false),
            (0x8000, 0x8000, false),
        ] {
            assert_eq!(partition_matches(a, b), meets, "{a:#x} {b:#x}");
        }
    }
}
