//! The states of a QP. Rule: the table of the kernel: which step is allowed, what it must be told, and what it may be told.

use super::state::{PortAt, QpState, State};
use crate::access::MrAccess;
use crate::device::LinkLayer;
use crate::error::Errno;
use crate::verb::Verb;
use ibverbs_sys::*;

const PKEY_INDEX: u32 = ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0;
const PORT: u32 = ibv_qp_attr_mask::IBV_QP_PORT.0;
const ACCESS: u32 = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0;
const AV: u32 = ibv_qp_attr_mask::IBV_QP_AV.0;
const PATH_MTU: u32 = ibv_qp_attr_mask::IBV_QP_PATH_MTU.0;
const DEST_QPN: u32 = ibv_qp_attr_mask::IBV_QP_DEST_QPN.0;
const RQ_PSN: u32 = ibv_qp_attr_mask::IBV_QP_RQ_PSN.0;
const MAX_DEST_RD: u32 = ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;
const MIN_RNR: u32 = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
const TIMEOUT: u32 = ibv_qp_attr_mask::IBV_QP_TIMEOUT.0;
const RETRY: u32 = ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0;
const RNR_RETRY: u32 = ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0;
const SQ_PSN: u32 = ibv_qp_attr_mask::IBV_QP_SQ_PSN.0;
const MAX_RD: u32 = ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
const STATE: u32 = ibv_qp_attr_mask::IBV_QP_STATE.0;
const CUR_STATE: u32 = ibv_qp_attr_mask::IBV_QP_CUR_STATE.0;
const SQD_NOTIFY: u32 = ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;

/// What a step of a reliable connected QP must be told, and may be told besides; `None` where there is no such step.
fn step(from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::*;
    match (from, to) {
        (_, Reset | Err) => Some((0, 0)),
        (Reset, Init) => Some((PKEY_INDEX | PORT | ACCESS, 0)),
        (Init, Init) => Some((0, PKEY_INDEX | PORT | ACCESS)),
        (Init, Rtr) => Some((AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | MIN_RNR, ACCESS | PKEY_INDEX)),
        (Rtr, Rts) => Some((TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD, CUR_STATE | ACCESS | MIN_RNR)),
        (Rts, Rts) => Some((0, CUR_STATE | ACCESS | MIN_RNR)),
        (Rts, Sqd) => Some((0, SQD_NOTIFY)),
        (Sqd, Rts) => Some((0, CUR_STATE | ACCESS | MIN_RNR)),
        (Sqd, Sqd) => {
            Some((0, PORT | AV | TIMEOUT | RETRY | RNR_RETRY | MAX_RD | MAX_DEST_RD | ACCESS | MIN_RNR))
        }
        _ => None,
    }
}

fn state_of(number: u32) -> Option<QpState> {
    match number {
        ibv_qp_state::IBV_QPS_RESET => Some(QpState::Reset),
        ibv_qp_state::IBV_QPS_INIT => Some(QpState::Init),
        ibv_qp_state::IBV_QPS_RTR => Some(QpState::Rtr),
        ibv_qp_state::IBV_QPS_RTS => Some(QpState::Rts),
        ibv_qp_state::IBV_QPS_SQD => Some(QpState::Sqd),
        ibv_qp_state::IBV_QPS_ERR => Some(QpState::Err),
        _ => None,
    }
}

fn number_of(state: QpState) -> u32 {
    match state {
        QpState::Reset => ibv_qp_state::IBV_QPS_RESET,
        QpState::Init => ibv_qp_state::IBV_QPS_INIT,
        QpState::Rtr => ibv_qp_state::IBV_QPS_RTR,
        QpState::Rts => ibv_qp_state::IBV_QPS_RTS,
        QpState::Sqd => ibv_qp_state::IBV_QPS_SQD,
        QpState::Err => ibv_qp_state::IBV_QPS_ERR,
    }
}

impl State {
    pub(super) fn modify_qp(&mut self, number: u32, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        let qp = &self.qps[number as usize];
        let (alive, context) = (qp.alive, qp.context);
        self.must_live(alive, Verb::ModifyQp, number)?;
        self.enter_on(Verb::ModifyQp, number, context)?;
        let from = self.qps[number as usize].state;
        let to = if mask & STATE != 0 { state_of(attr.qp_state).ok_or(Errno::EINVAL)? } else { from };
        let (required, optional) = step(from, to).ok_or(Errno::EINVAL)?;
        let given = mask & !STATE;
        if given & required != required || given & !(required | optional) != 0 {
            return Err(Errno::EINVAL);
        }
        self.check_values(number, attr, given)?;
        match to {
            QpState::Reset => self.reset_qp(number),
            QpState::Err => self.fail_qp(number),
            _ => self.enter_state(number, to, attr, given),
        }
        self.changed();
        self.run_by_itself();
        Ok(())
    }

    fn check_values(&self, number: u32, attr: &ibv_qp_attr, given: u32) -> Result<(), Errno> {
        let qp = &self.qps[number as usize];
        let device = &self.devices[qp.device as usize];
        let has = |bit: u32| given & bit != 0;
        let port_num = if has(PORT) { attr.port_num } else { qp.attr.port_num };
        let port = self.port(PortAt { device: qp.device, port: port_num });
        let reads = device.spec.limits.max_rd_atomic;
        let too_much = (has(MAX_RD) && attr.max_rd_atomic > reads)
            || (has(MAX_DEST_RD) && attr.max_dest_rd_atomic > reads)
            || (has(TIMEOUT) && attr.timeout > 31)
            || (has(RETRY) && attr.retry_cnt > 7)
            || (has(RNR_RETRY) && attr.rnr_retry > 7)
            || (has(MIN_RNR) && attr.min_rnr_timer > 31)
            || (has(RQ_PSN) && attr.rq_psn >> 24 != 0)
            || (has(SQ_PSN) && attr.sq_psn >> 24 != 0)
            || (has(DEST_QPN) && attr.dest_qp_num >> 24 != 0);
        if too_much {
            return Err(Errno::EINVAL);
        }
        if given & (PORT | PKEY_INDEX | AV | PATH_MTU) == 0 {
            return Ok(());
        }
        let port = port.ok_or(Errno::EINVAL)?;
        if has(PKEY_INDEX) && usize::from(attr.pkey_index) >= port.spec.pkeys.len() {
            return Err(Errno::EINVAL);
        }
        if has(PATH_MTU) && !(1..=port.spec.mtu.number()).contains(&attr.path_mtu) {
            return Err(Errno::EINVAL);
        }
        if has(AV) {
            let address = &attr.ah_attr;
            let global = address.is_global != 0;
            let ethernet = port.spec.link_layer == LinkLayer::Ethernet;
            let own_gid = port.gid(address.grh.sgid_index).is_some();
            let named = match (global, ethernet) {
                (true, _) => own_gid,
                // Over Ethernet there are no LIDs.
                (false, ethernet) => !ethernet && address.dlid != 0,
            };
            if address.port_num != port_num || !named {
                return Err(Errno::EINVAL);
            }
        }
        Ok(())
    }

    fn enter_state(&mut self, number: u32, to: QpState, attr: &ibv_qp_attr, given: u32) {
        let has = |bit: u32| given & bit != 0;
        let qp = &mut self.qps[number as usize];
        macro_rules! take {
            ($($bit:ident: $($field:ident),+;)*) => {
                $(if has($bit) { $(qp.attr.$field = attr.$field;)+ })*
            };
        }
        take! {
            PORT: port_num;
            PKEY_INDEX: pkey_index;
            ACCESS: qp_access_flags;
            AV: ah_attr;
            PATH_MTU: path_mtu;
            DEST_QPN: dest_qp_num;
            RQ_PSN: rq_psn;
            MAX_DEST_RD: max_dest_rd_atomic;
            MIN_RNR: min_rnr_timer;
            TIMEOUT: timeout;
            RETRY: retry_cnt;
            RNR_RETRY: rnr_retry;
            SQ_PSN: sq_psn;
            MAX_RD: max_rd_atomic;
        }
        qp.access = MrAccess::from_bits_truncate(qp.attr.qp_access_flags);
        let from = std::mem::replace(&mut qp.state, to);
        let at = PortAt { device: qp.device, port: qp.attr.port_num };
        let index = qp.attr.ah_attr.grh.sgid_index;
        if has(AV) {
            let source = self.port(at).and_then(|port| port.gid(index)).map(|gid| gid.gid);
            self.qps[number as usize].source = source;
        }
        if to == QpState::Sqd && from == QpState::Rts && has(SQD_NOTIFY) && attr.en_sqd_async_notify != 0 {
            // A WR is carried out whole, so nothing is half done here.
            self.qp_event(number, IBV_EVENT_SQ_DRAINED);
        }
        self.wake(number);
    }

    /// As new: nothing is left of its WRs, and of their CQEs.
    fn reset_qp(&mut self, number: u32) {
        self.scrub(number);
        self.binds.retain(|(qp, _), _| *qp != number);
        let qp = &mut self.qps[number as usize];
        qp.state = QpState::Reset;
        qp.life += 1;
        qp.sq.clear();
        qp.rq.clear();
        qp.attr = ibv_qp_attr { cap: qp.attr.cap, ..Default::default() };
        qp.source = None;
        (qp.retry_at, qp.rnr_at) = (None, None);
    }

    pub(super) fn query_qp(&mut self, number: u32) -> Result<(ibv_qp_attr, ibv_qp_init_attr), Errno> {
        let qp = &self.qps[number as usize];
        let (alive, context) = (qp.alive, qp.context);
        self.must_live(alive, Verb::QueryQp, number)?;
        self.enter_on(Verb::QueryQp, number, context)?;
        let qp = &self.qps[number as usize];
        let mut attr = qp.attr;
        attr.qp_state = number_of(qp.state);
        attr.cur_qp_state = attr.qp_state;
        let init = ibv_qp_init_attr {
            cap: qp.attr.cap,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: qp.sig_all.into(),
            ..Default::default()
        };
        Ok((attr, init))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpState::*;

    #[test]
    fn only_the_steps_of_the_kernel_are_there() {
        let all = [Reset, Init, Rtr, Rts, Sqd, Err];
        let steps: Vec<_> = all.iter().flat_map(|from| all.map(|to| (*from, to))).collect();
        let there: Vec<_> = steps.into_iter().filter(|(from, to)| step(*from, *to).is_some()).collect();
        let forward = [
            (Reset, Init),
            (Init, Init),
            (Init, Rtr),
            (Rtr, Rts),
            (Rts, Rts),
            (Rts, Sqd),
            (Sqd, Rts),
            (Sqd, Sqd),
        ];
        assert_eq!(there.len(), forward.len() + 2 * all.len());
        assert!(forward.iter().all(|step| there.contains(step)));
    }

    #[test]
    fn states_come_back_from_their_numbers() {
        for state in [Reset, Init, Rtr, Rts, Sqd, Err] {
            assert_eq!(state_of(number_of(state)), Some(state));
        }
        assert_eq!(state_of(99), None);
    }
}
