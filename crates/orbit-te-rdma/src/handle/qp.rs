//! A queue pair. Rule: each step of its life is one call with plain attributes; destroying it says whether the device has let go.

#![allow(unsafe_code)]

use super::cq::Cq;
use super::owner::{Owner, Ptr};
use super::pd::Pd;
use super::retention::{NotFreed, Raw};
use super::srq::Srq;
use super::steps::{InitStep, Modification, QpCaps, RtrStep, RtsStep};
use crate::error::{Errno, VerbsError};
use crate::verb::Verb;
use ibverbs_sys::*;
use std::ffi::c_int;
use std::fmt;
use std::ptr::null_mut;

struct Keep {
    pd: Pd,
    _send_cq: Cq,
    _recv_cq: Cq,
    _srq: Option<Srq>,
    /// What the WRs in flight touch: let go when the device has let go of the QP.
    _memory: Option<Box<dyn Send + Sync>>,
}

/// A reliable connected queue pair.
pub struct Qp {
    owner: Owner<Keep>,
    raw: Ptr<ibv_qp>,
    number: u32,
    caps: QpCaps,
}

/// Says that a QP is gone: the device touches no memory for its WRs any more. Nobody else can make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpDestroyed {
    number: u32,
}

impl QpDestroyed {
    /// The number that the QP had.
    pub fn number(&self) -> u32 {
        self.number
    }
}

/// The state of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpState {
    /// New, or made as new.
    Reset,
    /// Has a port.
    Init,
    /// Answers its peer.
    Rtr,
    /// Sends, too.
    Rts,
    /// Finishes what was sent, and begins nothing.
    Sqd,
    /// The send queue failed.
    Sqe,
    /// Failed: all WRs are flushed.
    Err,
    /// Another one, by its number.
    Other(u32),
}

impl QpState {
    /// Of its number.
    pub const fn from_number(number: u32) -> QpState {
        match number {
            ibv_qp_state::IBV_QPS_RESET => QpState::Reset,
            ibv_qp_state::IBV_QPS_INIT => QpState::Init,
            ibv_qp_state::IBV_QPS_RTR => QpState::Rtr,
            ibv_qp_state::IBV_QPS_RTS => QpState::Rts,
            ibv_qp_state::IBV_QPS_SQD => QpState::Sqd,
            ibv_qp_state::IBV_QPS_SQE => QpState::Sqe,
            ibv_qp_state::IBV_QPS_ERR => QpState::Err,
            other => QpState::Other(other),
        }
    }
}

impl Qp {
    pub(super) fn new(
        pd: &Pd,
        caps: QpCaps,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: Option<&Srq>,
    ) -> Result<Qp, VerbsError> {
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: recv_cq.raw(),
            srq: srq.map_or(null_mut(), Srq::raw),
            cap: caps.to_raw(),
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let context = pd.context();
        // SAFETY: PD, CQs and SRQ are there as long as we have them.
        let raw = unsafe { context.verbs().create_qp(pd.raw(), &mut attr) };
        let raw = raw.map_err(|errno| {
            VerbsError::new(Verb::CreateQp, format!("{}: {caps:?}", context.name()), errno)
        })?;
        let keep = Keep {
            pd: pd.clone(),
            _send_cq: send_cq.clone(),
            _recv_cq: recv_cq.clone(),
            _srq: srq.cloned(),
            _memory: None,
        };
        // SAFETY: made just now, for us.
        let owner = unsafe { context.own(Raw::Qp(raw), keep) };
        // SAFETY: the QP is there; its number never changes.
        let number = unsafe { raw.as_ref().qp_num };
        Ok(Qp { owner, raw: Ptr(raw), number, caps: QpCaps::from_raw(attr.cap) })
    }

    /// Its number, which the peer needs.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The size of its queues as the device made them; at least as large as was asked for.
    pub fn caps(&self) -> QpCaps {
        self.caps
    }

    /// RESET to INIT.
    ///
    /// # Errors
    /// `EINVAL` in another state, or for attributes that the device does not take.
    pub fn to_init(&self, step: &InitStep) -> Result<(), VerbsError> {
        self.modify("to INIT", step.to_raw())
    }

    /// INIT to RTR.
    ///
    /// # Errors
    /// As [`Qp::to_init`].
    pub fn to_rtr(&self, step: &RtrStep) -> Result<(), VerbsError> {
        self.modify("to RTR", step.to_raw())
    }

    /// RTR to RTS.
    ///
    /// # Errors
    /// As [`Qp::to_init`].
    pub fn to_rts(&self, step: &RtsStep) -> Result<(), VerbsError> {
        self.modify("to RTS", step.to_raw())
    }

    /// Any state to ERR: all WRs are flushed, each with a CQE.
    ///
    /// # Errors
    /// What the call gave.
    pub fn to_err(&self) -> Result<(), VerbsError> {
        self.modify("to ERR", of_state(ibv_qp_state::IBV_QPS_ERR))
    }

    /// Any state to RESET: all WRs are gone, without CQEs.
    ///
    /// # Errors
    /// What the call gave.
    pub fn to_reset(&self) -> Result<(), VerbsError> {
        self.modify("to RESET", of_state(ibv_qp_state::IBV_QPS_RESET))
    }

    fn modify(&self, step: &str, (mut attr, mask): Modification) -> Result<(), VerbsError> {
        // SAFETY: the QP is there as long as we have it.
        let done = unsafe { self.owner.verbs().modify_qp(self.raw.get(), &mut attr, mask) };
        done.map_err(|errno| self.error(Verb::ModifyQp, step, errno))
    }

    /// The state it is in.
    ///
    /// # Errors
    /// What the call gave.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        // SAFETY: the QP is there as long as we have it.
        let asked = unsafe { self.owner.verbs().query_qp(self.raw.get(), ibv_qp_attr_mask::IBV_QP_STATE) };
        let (attr, _) = asked.map_err(|errno| self.error(Verb::QueryQp, "its state", errno))?;
        Ok(QpState::from_number(attr.qp_state))
    }

    /// Posts a chain of WRs: 0 or an errno, and then `bad` is the first that was not posted.
    ///
    /// # Safety
    /// The chain and its SGEs are valid during the call. Until the WR has completed, or the QP is destroyed: the memory of its SGEs stays
    /// registered and unchanged for what goes out, and nobody else's for what comes in; an MW that is bound stays.
    #[inline]
    pub unsafe fn post_send(&self, wr: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int {
        // SAFETY: the QP is there as long as we have it; the rest is the caller's promise.
        unsafe { self.owner.verbs().post_send(self.raw.get(), wr, bad) }
    }

    /// Posts a chain of receives, as [`Qp::post_send`].
    ///
    /// # Safety
    /// As [`Qp::post_send`].
    #[inline]
    pub unsafe fn post_recv(&self, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
        // SAFETY: as above.
        unsafe { self.owner.verbs().post_recv(self.raw.get(), wr, bad) }
    }

    /// Destroys it, which settles all its WRs: when this succeeds, none of them touches memory any more, and their CQEs may never come.
    ///
    /// # Errors
    /// The QP is retained with its PD and CQs. Memory that its WRs may touch must be kept until it is gone: [`super::Retention::holds`],
    /// or [`Qp::destroy_keeping`].
    pub fn destroy(self) -> Result<QpDestroyed, NotFreed> {
        self.owner.free().map(|()| QpDestroyed { number: self.number })
    }

    /// As [`Qp::destroy`], with something to keep until the QP is gone: at once, or when a sweep has freed it.
    ///
    /// # Errors
    /// As [`Qp::destroy`].
    pub fn destroy_keeping(mut self, memory: impl Send + Sync + 'static) -> Result<QpDestroyed, NotFreed> {
        if let Some(keep) = self.owner.keep_mut() {
            keep._memory = Some(Box::new(memory));
        }
        self.destroy()
    }

    #[cold]
    fn error(&self, verb: Verb, step: &str, errno: Errno) -> VerbsError {
        let device = self.owner.keep().map_or("", |keep| keep.pd.context().name());
        VerbsError::new(verb, format!("{device} QP {}: {step}", self.number), errno)
    }
}

fn of_state(state: ibv_qp_state::Type) -> Modification {
    (ibv_qp_attr { qp_state: state, ..Default::default() }, ibv_qp_attr_mask::IBV_QP_STATE)
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp").field("number", &self.number).field("caps", &self.caps).finish_non_exhaustive()
    }
}
