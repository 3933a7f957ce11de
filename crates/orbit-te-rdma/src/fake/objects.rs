//! Objects made and freed. Rule: limits are kept; what has live children, or events that were not given back, is `EBUSY`; what was freed
//! before is a violation.

use super::events::Element;
use super::queue::{CqRing, MOST_SGES, RecvQueue, SendQueue};
use super::state::*;
use super::sys::{Mapping, RawBox};
use crate::access::MrAccess;
use crate::error::Errno;
use crate::verb::Verb;
use ibverbs_sys::*;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

/// What a program asks for when it makes a QP.
pub(super) struct QpWish {
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) srq: Option<u32>,
    pub(super) cap: ibv_qp_cap,
    pub(super) qp_type: u32,
    pub(super) sig_all: bool,
}

/// Memory that a program registers.
pub(super) struct Range {
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) iova: u64,
    pub(super) access: MrAccess,
    pub(super) mapping: Option<Mapping>,
}

impl State {
    fn device_of(&mut self, context: u32) -> &mut Device {
        let device = self.contexts[context as usize].device;
        &mut self.devices[device as usize]
    }

    fn live_pd(&mut self, verb: Verb, pd: u32) -> Result<u32, Errno> {
        let (alive, context) = (self.pds[pd as usize].alive, self.pds[pd as usize].context);
        self.must_live(alive, verb, pd)?;
        self.enter_on(verb, pd, context)?;
        Ok(context)
    }

    pub(super) fn live_context(&mut self, verb: Verb, context: u32) -> Result<(), Errno> {
        let alive = self.contexts[context as usize].alive;
        self.must_live(alive, verb, context)?;
        self.enter_on(verb, context, context)
    }

    pub(super) fn close(&mut self, context: u32) -> Result<(), Errno> {
        self.live_context(Verb::CloseDevice, context)?;
        let at = &mut self.contexts[context as usize];
        if at.children > 0 {
            return Err(Errno::EBUSY);
        }
        at.alive = false;
        at.fd = None;
        at.events.clear();
        Ok(())
    }

    pub(super) fn alloc_pd(
        &mut self,
        context: u32,
        parent: *mut ibv_context,
    ) -> Result<NonNull<ibv_pd>, Errno> {
        self.live_context(Verb::AllocPd, context)?;
        let device = self.device_of(context);
        if device.live.pds >= device.spec.limits.max_pd {
            return Err(Errno::ENOMEM);
        }
        device.live.pds += 1;
        self.contexts[context as usize].children += 1;
        let raw = RawBox::new(ibv_pd { context: parent, handle: self.pds.len() as u32 });
        let pointer = raw.pointer();
        self.pds.push(Pd { raw, context, alive: true, children: 0 });
        Ok(pointer)
    }

    pub(super) fn dealloc_pd(&mut self, pd: u32) -> Result<(), Errno> {
        let context = self.live_pd(Verb::DeallocPd, pd)?;
        if self.pds[pd as usize].children > 0 {
            return Err(Errno::EBUSY);
        }
        self.pds[pd as usize].alive = false;
        self.device_of(context).live.pds -= 1;
        self.contexts[context as usize].children -= 1;
        Ok(())
    }

    /// A key for the next object, whose lower bits tell its keys apart.
    fn next_key(&mut self) -> Result<u32, Errno> {
        let number = self.keys.len() as u32;
        if number >> 24 != 0 {
            return Err(Errno::ENOMEM);
        }
        Ok((number << 8) | (self.rng.next() as u32 & 0xff))
    }

    pub(super) fn reg_mr(&mut self, verb: Verb, pd: u32, range: Range) -> Result<NonNull<ibv_mr>, Errno> {
        let context = self.live_pd(verb, pd)?;
        let Range { address, length, iova, access, mapping } = range;
        let device = self.device_of(context);
        let limits = device.spec.limits;
        let wraps = address.checked_add(length).is_none() || iova.checked_add(length).is_none();
        if length == 0 || length > limits.max_mr_size || wraps || access.is_contradiction() {
            return Err(Errno::EINVAL);
        }
        if device.live.mrs >= limits.max_mr {
            return Err(Errno::ENOMEM);
        }
        let value = self.next_key()?;
        self.device_of(context).live.mrs += 1;
        self.pds[pd as usize].children += 1;
        let parent = self.pds[pd as usize].raw.pointer().as_ptr();
        let raw = RawBox::new(ibv_mr {
            context: self.contexts[context as usize].raw.pointer().as_ptr(),
            pd: parent,
            addr: std::ptr::without_provenance_mut(address as usize),
            length: length as usize,
            handle: self.keys.len() as u32,
            lkey: value,
            rkey: value,
        });
        let pointer = raw.pointer();
        let kind = KeyKind::Mr { _raw: raw, windows: 0, _mapping: mapping };
        self.keys.push(Key { value, pd, alive: true, address, iova, length, access, kind });
        Ok(pointer)
    }

    pub(super) fn dereg_mr(&mut self, mr: u32) -> Result<(), Errno> {
        let key = &self.keys[mr as usize];
        let (alive, pd, value) = (key.alive, key.pd, key.value);
        self.must_live(alive, Verb::DeregMr, mr)?;
        let context = self.pds[pd as usize].context;
        self.enter_on(Verb::DeregMr, mr, context)?;
        let KeyKind::Mr { windows, _mapping: mapping, .. } = &mut self.keys[mr as usize].kind else {
            return Err(self.violation(format!("object {mr} is no MR")));
        };
        if *windows > 0 {
            return Err(Errno::EBUSY);
        }
        *mapping = None;
        let used = self.waiting_for(pd, |sge| sge.lkey == value && sge.length > 0);
        if used > 0 {
            self.violation(format!("MR {mr} was deregistered while {used} WRs that use it were in flight"));
        }
        self.keys[mr as usize].alive = false;
        self.device_of(context).live.mrs -= 1;
        self.pds[pd as usize].children -= 1;
        Ok(())
    }

    /// How many WRs of live QPs in a PD wait with such an SGE. WRs of QPs in the error state touch nothing any more.
    fn waiting_for(&self, pd: u32, matches: impl Fn(&ibv_sge) -> bool) -> usize {
        let qps = self.qps.iter().filter(|qp| qp.alive && qp.pd == pd && qp.state != QpState::Err);
        let of_qps = qps.map(|qp| {
            let sends = qp.sq.waiting().filter(|number| !qp.sq.is_inline(*number));
            let sends = sends.filter(|number| qp.sq.sges_of(*number).iter().any(&matches)).count();
            sends + qp.rq.waiting_sges().filter(|sge| matches(sge)).count()
        });
        let srqs = self.srqs.iter().filter(|srq| srq.alive && srq.pd == pd && srq.users > 0);
        of_qps.sum::<usize>()
            + srqs.map(|srq| srq.rq.waiting_sges().filter(|sge| matches(sge)).count()).sum::<usize>()
    }

    /// How many WRs in flight name a local range.
    pub(super) fn waiting_over(&self, address: u64, length: u64) -> usize {
        let over = |sge: &ibv_sge| sge.addr < address + length && address < sge.addr + u64::from(sge.length);
        (0..self.pds.len() as u32).map(|pd| self.waiting_for(pd, over)).sum()
    }

    pub(super) fn alloc_mw(&mut self, pd: u32, type_: ibv_mw_type) -> Result<NonNull<ibv_mw>, Errno> {
        let context = self.live_pd(Verb::AllocMw, pd)?;
        let device = self.device_of(context);
        if !device.spec.windows {
            return Err(Errno::EOPNOTSUPP);
        }
        if device.live.mws >= device.spec.limits.max_mw {
            return Err(Errno::ENOMEM);
        }
        let value = self.next_key()?;
        self.device_of(context).live.mws += 1;
        self.pds[pd as usize].children += 1;
        let raw = RawBox::new(ibv_mw {
            context: self.contexts[context as usize].raw.pointer().as_ptr(),
            pd: self.pds[pd as usize].raw.pointer().as_ptr(),
            rkey: value,
            handle: self.keys.len() as u32,
            type_,
        });
        let pointer = raw.pointer();
        let kind = KeyKind::Mw { _raw: raw, type_2: type_ == IBV_MW_TYPE_2, bound: None };
        let access = MrAccess::empty();
        self.keys.push(Key { value, pd, alive: true, address: 0, iova: 0, length: 0, access, kind });
        Ok(pointer)
    }

    pub(super) fn dealloc_mw(&mut self, mw: u32) -> Result<(), Errno> {
        let (alive, pd) = (self.keys[mw as usize].alive, self.keys[mw as usize].pd);
        self.must_live(alive, Verb::DeallocMw, mw)?;
        let context = self.pds[pd as usize].context;
        self.enter_on(Verb::DeallocMw, mw, context)?;
        self.unbind(mw);
        self.keys[mw as usize].alive = false;
        self.device_of(context).live.mws -= 1;
        self.pds[pd as usize].children -= 1;
        Ok(())
    }

    pub(super) fn destroy_channel(&mut self, channel: u32) -> Result<(), Errno> {
        let (alive, context) =
            (self.channels[channel as usize].alive, self.channels[channel as usize].context);
        self.must_live(alive, Verb::DestroyCompChannel, channel)?;
        self.enter_on(Verb::DestroyCompChannel, channel, context)?;
        let at = &mut self.channels[channel as usize];
        if at.cqs > 0 {
            return Err(Errno::EBUSY);
        }
        (at.alive, at.fd) = (false, None);
        self.contexts[context as usize].children -= 1;
        Ok(())
    }

    pub(super) fn create_cq(
        &mut self,
        context: u32,
        cqe: u32,
        cookie: u64,
        channel: Option<u32>,
        vector: u32,
    ) -> Result<NonNull<ibv_cq>, Errno> {
        self.live_context(Verb::CreateCq, context)?;
        let device = self.device_of(context);
        let limits = device.spec.limits;
        if cqe == 0 || cqe > limits.max_cqe || vector >= device.spec.completion_vectors {
            return Err(Errno::EINVAL);
        }
        if device.live.cqs >= limits.max_cq {
            return Err(Errno::ENOMEM);
        }
        device.live.cqs += 1;
        self.contexts[context as usize].children += 1;
        let mut object = ibv_cq {
            context: self.contexts[context as usize].raw.pointer().as_ptr(),
            cq_context: std::ptr::without_provenance_mut(cookie as usize),
            handle: self.cqs.len() as u32,
            cqe: cqe as i32,
            ..Default::default()
        };
        if let Some(channel) = channel {
            self.channels[channel as usize].cqs += 1;
            object.channel = self.channels[channel as usize].raw.pointer().as_ptr();
        }
        let raw = RawBox::new(object);
        let pointer = raw.pointer();
        self.cqs.push(Cq {
            raw,
            context,
            alive: true,
            ring: CqRing::new(cqe as usize),
            channel,
            cookie,
            armed: Armed::No,
            broken: false,
            users: 0,
            unacked: 0,
        });
        Ok(pointer)
    }

    pub(super) fn destroy_cq(&mut self, cq: u32) -> Result<(), Errno> {
        let (alive, context) = (self.cqs[cq as usize].alive, self.cqs[cq as usize].context);
        self.must_live(alive, Verb::DestroyCq, cq)?;
        self.enter_on(Verb::DestroyCq, cq, context)?;
        let at = &mut self.cqs[cq as usize];
        // Real verbs would wait for the events to be given back.
        if at.users > 0 || at.unacked > 0 {
            return Err(Errno::EBUSY);
        }
        at.alive = false;
        at.ring = CqRing::new(0);
        if let Some(channel) = at.channel {
            let channel = &mut self.channels[channel as usize];
            channel.cqs -= 1;
            let before = channel.events.len();
            channel.events.retain(|of| *of != cq);
            for _ in channel.events.len()..before {
                if let Some(fd) = &channel.fd {
                    fd.take_back();
                }
            }
        }
        self.forget_events(context, Element::Cq(cq));
        self.device_of(context).live.cqs -= 1;
        self.contexts[context as usize].children -= 1;
        Ok(())
    }

    pub(super) fn create_srq(
        &mut self,
        pd: u32,
        cookie: u64,
        wish: &mut ibv_srq_attr,
    ) -> Result<NonNull<ibv_srq>, Errno> {
        let context = self.live_pd(Verb::CreateSrq, pd)?;
        let device = self.device_of(context);
        let limits = device.spec.limits;
        if wish.max_wr == 0 || wish.max_wr > limits.max_wr || wish.max_sge > limits.max_sge {
            return Err(Errno::EINVAL);
        }
        if device.live.srqs >= limits.max_srq {
            return Err(Errno::ENOMEM);
        }
        device.live.srqs += 1;
        self.pds[pd as usize].children += 1;
        let raw = RawBox::new(ibv_srq {
            context: self.contexts[context as usize].raw.pointer().as_ptr(),
            srq_context: std::ptr::without_provenance_mut(cookie as usize),
            pd: self.pds[pd as usize].raw.pointer().as_ptr(),
            handle: self.srqs.len() as u32,
            ..Default::default()
        });
        let pointer = raw.pointer();
        let rq = RecvQueue::new(wish.max_wr, wish.max_sge);
        self.srqs.push(Srq { raw, context, pd, alive: true, rq, users: 0 });
        Ok(pointer)
    }

    pub(super) fn destroy_srq(&mut self, srq: u32) -> Result<(), Errno> {
        let at = &self.srqs[srq as usize];
        let (alive, context, pd) = (at.alive, at.context, at.pd);
        self.must_live(alive, Verb::DestroySrq, srq)?;
        self.enter_on(Verb::DestroySrq, srq, context)?;
        if self.srqs[srq as usize].users > 0 {
            return Err(Errno::EBUSY);
        }
        self.srqs[srq as usize].alive = false;
        self.device_of(context).live.srqs -= 1;
        self.pds[pd as usize].children -= 1;
        Ok(())
    }

    pub(super) fn create_qp(&mut self, pd: u32, wish: &QpWish) -> Result<NonNull<ibv_qp>, Errno> {
        let context = self.live_pd(Verb::CreateQp, pd)?;
        let device = self.device_of(context);
        let limits = device.spec.limits;
        let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = wish.cap;
        let most_sge = limits.max_sge.min(MOST_SGES as u32);
        let fits = max_send_wr <= limits.max_wr
            && max_recv_wr <= limits.max_wr
            && max_send_sge <= most_sge
            && max_recv_sge <= most_sge
            && max_inline_data <= limits.max_inline
            && wish.qp_type == ibv_qp_type::IBV_QPT_RC;
        if !fits {
            return Err(Errno::EINVAL);
        }
        if device.live.qps >= limits.max_qp {
            return Err(Errno::ENOMEM);
        }
        device.live.qps += 1;
        let number = FIRST_QPN + device.qpns.len() as u32;
        let handle = self.qps.len() as u32;
        self.device_of(context).qpns.push(handle);
        self.pds[pd as usize].children += 1;
        self.cqs[wish.send_cq as usize].users += 1;
        self.cqs[wish.recv_cq as usize].users += 1;
        let raw = RawBox::new(ibv_qp {
            context: self.contexts[context as usize].raw.pointer().as_ptr(),
            pd: self.pds[pd as usize].raw.pointer().as_ptr(),
            send_cq: self.cqs[wish.send_cq as usize].raw.pointer().as_ptr(),
            recv_cq: self.cqs[wish.recv_cq as usize].raw.pointer().as_ptr(),
            srq: match wish.srq {
                Some(srq) => {
                    self.srqs[srq as usize].users += 1;
                    self.srqs[srq as usize].raw.pointer().as_ptr()
                }
                None => null_mut(),
            },
            handle,
            qp_num: number,
            qp_type: wish.qp_type,
            ..Default::default()
        });
        let pointer = raw.pointer();
        self.qps.push(Qp {
            raw,
            context,
            device: self.contexts[context as usize].device,
            pd,
            send_cq: wish.send_cq,
            recv_cq: wish.recv_cq,
            srq: wish.srq,
            number,
            alive: true,
            state: QpState::Reset,
            sig_all: wish.sig_all,
            attr: ibv_qp_attr { cap: wish.cap, ..Default::default() },
            source: None,
            access: MrAccess::empty(),
            sq: SendQueue::new(max_send_wr, max_send_sge, max_inline_data),
            rq: RecvQueue::new(if wish.srq.is_some() { 0 } else { max_recv_wr }, max_recv_sge),
            queued: false,
            reach: Reach::Nobody,
            reach_epoch: 0,
            retry_at: None,
            rnr_at: None,
            late_until: Duration::ZERO,
            life: 0,
            unacked: 0,
        });
        Ok(pointer)
    }

    pub(super) fn destroy_qp(&mut self, number: u32) -> Result<(), Errno> {
        let qp = &self.qps[number as usize];
        let (alive, context, pd) = (qp.alive, qp.context, qp.pd);
        self.must_live(alive, Verb::DestroyQp, number)?;
        self.enter_on(Verb::DestroyQp, number, context)?;
        // Real verbs would wait for the events to be given back.
        if self.qps[number as usize].unacked > 0 {
            return Err(Errno::EBUSY);
        }
        self.scrub(number);
        self.unbind_those_of(number);
        self.binds.retain(|(qp, _), _| *qp != number);
        self.forget_events(context, Element::Qp(number));
        let qp = &mut self.qps[number as usize];
        qp.alive = false;
        qp.life += 1;
        // Its places are never used again, but CQEs of it may still come: only what is large goes.
        (qp.sq, qp.rq) = (SendQueue::new(0, 0, 0), RecvQueue::new(0, 0));
        let (send_cq, recv_cq, srq) = (qp.send_cq, qp.recv_cq, qp.srq);
        self.cqs[send_cq as usize].users -= 1;
        self.cqs[recv_cq as usize].users -= 1;
        if let Some(srq) = srq {
            self.srqs[srq as usize].users -= 1;
        }
        self.pds[pd as usize].children -= 1;
        self.device_of(context).live.qps -= 1;
        self.changed();
        Ok(())
    }
}
