//! WRs taken into queues. Rule: what verbs refuse at post time is refused here, before the WR has any effect.

use super::queue::Wqe;
use super::state::{Bind, QpState, State};
use crate::error::Errno;
use crate::verb::Verb;
use ibverbs_sys::*;

/// A send WR as it comes, with its bind if it is one.
pub(super) struct SendWish<'a> {
    pub(super) wqe: Wqe,
    pub(super) sges: &'a [ibv_sge],
    pub(super) bind: Option<Bind>,
}

impl State {
    /// Whether a QP takes sends now, and how many the plan lets it take.
    #[inline]
    pub(super) fn begin_send(&mut self, number: u32) -> Result<Option<(u32, Errno)>, Errno> {
        let qp = &self.qps[number as usize];
        let (alive, context) = (qp.alive, qp.context);
        if !alive {
            return self.must_live(false, Verb::PostSend, number).map(|()| None);
        }
        self.enter_on(Verb::PostSend, number, context)?;
        match self.qps[number as usize].state {
            QpState::Rts | QpState::Sqd | QpState::Err => {}
            _ => return Err(Errno::EINVAL),
        }
        Ok(if self.plan.active { self.plan.ask_short(&mut self.rng) } else { None })
    }

    /// Takes one send WR; its inline bytes are put by the caller.
    #[inline]
    pub(super) fn take_send(&mut self, number: u32, mut wish: SendWish<'_>) -> Result<(), Errno> {
        let sq = &mut self.qps[number as usize].sq;
        if sq.is_full() {
            return Err(Errno::ENOMEM);
        }
        wish.wqe.length = wish.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let carries = match wish.wqe.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE
            | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
            | ibv_wr_opcode::IBV_WR_SEND
            | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => true,
            ibv_wr_opcode::IBV_WR_RDMA_READ | ibv_wr_opcode::IBV_WR_LOCAL_INV => false,
            ibv_wr_opcode::IBV_WR_BIND_MW if wish.bind.is_some() => false,
            _ => return Err(Errno::EINVAL),
        };
        let too_long = if wish.wqe.inline {
            !carries || wish.wqe.length > sq.max_inline as u64
        } else {
            wish.sges.len() > sq.max_sge
        };
        if too_long {
            return Err(Errno::EINVAL);
        }
        wish.wqe.sges = if wish.wqe.inline { 0 } else { wish.sges.len() as u8 };
        if let Some(bind) = wish.bind {
            self.binds.insert((number, sq.posted), bind);
        }
        sq.push(wish.wqe, wish.sges);
        Ok(())
    }

    /// The chain is in: it may be carried out.
    #[inline]
    pub(super) fn end_post(&mut self, number: u32) {
        self.wake(number);
        if self.mode == super::fabric::Mode::AtPost {
            self.run(u64::MAX);
        }
    }

    /// As [`State::end_post`], of an SRQ.
    pub(super) fn end_srq_post(&mut self) {
        if self.mode == super::fabric::Mode::AtPost {
            self.run(u64::MAX);
        }
    }

    /// Whether a QP takes receives now.
    pub(super) fn begin_recv(&mut self, number: u32) -> Result<(), Errno> {
        let qp = &self.qps[number as usize];
        let (alive, context, shared) = (qp.alive, qp.context, qp.srq.is_some());
        self.must_live(alive, Verb::PostRecv, number)?;
        self.enter_on(Verb::PostRecv, number, context)?;
        if shared || self.qps[number as usize].state == QpState::Reset { Err(Errno::EINVAL) } else { Ok(()) }
    }

    pub(super) fn take_recv(&mut self, number: u32, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        let rq = &mut self.qps[number as usize].rq;
        if rq.is_full() {
            return Err(Errno::ENOMEM);
        }
        if sges.len() > rq.max_sge {
            return Err(Errno::EINVAL);
        }
        rq.push(wr_id, sges);
        Ok(())
    }

    pub(super) fn begin_srq_recv(&mut self, number: u32) -> Result<(), Errno> {
        let srq = &self.srqs[number as usize];
        let (alive, context) = (srq.alive, srq.context);
        self.must_live(alive, Verb::PostSrqRecv, number)?;
        self.enter_on(Verb::PostSrqRecv, number, context)
    }

    pub(super) fn take_srq_recv(&mut self, number: u32, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        let rq = &mut self.srqs[number as usize].rq;
        if rq.is_full() {
            return Err(Errno::ENOMEM);
        }
        if sges.len() > rq.max_sge {
            return Err(Errno::EINVAL);
        }
        rq.push(wr_id, sges);
        Ok(())
    }

    /// CQEs are asked for: whether the CQ can give any.
    #[inline]
    pub(super) fn begin_poll(&mut self, cq: u32) -> Result<(), Errno> {
        let (alive, context) = (self.cqs[cq as usize].alive, self.cqs[cq as usize].context);
        if !alive {
            return self.must_live(false, Verb::PollCq, cq);
        }
        self.enter_on(Verb::PollCq, cq, context)?;
        self.run_by_itself();
        Ok(())
    }

    pub(super) fn arm(&mut self, cq: u32, solicited_only: bool) -> Result<(), Errno> {
        let (alive, context) = (self.cqs[cq as usize].alive, self.cqs[cq as usize].context);
        self.must_live(alive, Verb::ReqNotifyCq, cq)?;
        self.enter_on(Verb::ReqNotifyCq, cq, context)?;
        use super::state::Armed;
        let at = &mut self.cqs[cq as usize];
        // Asking for all outweighs asking for the solicited.
        if !(solicited_only && at.armed == Armed::Next) {
            at.armed = if solicited_only { Armed::Solicited } else { Armed::Next };
        }
        self.run_by_itself();
        Ok(())
    }
}
