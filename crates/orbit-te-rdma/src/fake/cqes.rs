//! CQs: how CQEs come in, and go out. Rule: exactly one CQE for each WR that has one; a CQ that is full breaks, as real ones do.

use super::events::{Element, Event};
use super::plan::{CqeFault, Where};
use super::queue::{Covers, Cqe};
use super::spec::DeviceId;
use super::state::{Armed, Late, State};
use ibverbs_sys::*;

impl State {
    /// A CQE is made. It comes at once, later or never, as planned.
    #[inline]
    pub(super) fn complete(&mut self, cq: u32, cqe: Cqe) {
        if self.plan.cqes.is_empty() && self.late.is_empty() {
            self.deliver(cq, cqe);
        } else {
            self.complete_as_planned(cq, cqe);
        }
    }

    #[cold]
    fn complete_as_planned(&mut self, cq: u32, cqe: Cqe) {
        let qp = &self.qps[cqe.qp as usize];
        let (device, number, life) = (DeviceId(qp.device), qp.number, qp.life);
        let now = self.now();
        let mut due = now;
        for (place, fault) in &self.plan.cqes {
            let hits = match *place {
                Where::Everywhere => true,
                Where::Device(one) => one == device,
                Where::Qp(one, of) => one == device && of == number,
            };
            match *fault {
                CqeFault::Lost(share) if hits && self.rng.happens(share) => {
                    self.plan.met.lost += 1;
                    return;
                }
                CqeFault::Late(least, most) if hits => {
                    let spread = most.saturating_sub(least).as_nanos() as u64;
                    due = due.max(now + least + std::time::Duration::from_nanos(self.rng.below(spread + 1)));
                }
                _ => {}
            }
        }
        let qp = &mut self.qps[cqe.qp as usize];
        // Those of one QP stay in order.
        qp.late_until = qp.late_until.max(due);
        let due = qp.late_until;
        if due <= now {
            return self.deliver(cq, cqe);
        }
        self.plan.met.late += 1;
        self.late_seq += 1;
        self.late.push(Late { due, seq: self.late_seq, cq, life, cqe });
    }

    /// Delivers what is due.
    #[inline]
    pub(super) fn deliver_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let now = self.now();
        while self.late.peek().is_some_and(|late| late.due <= now) {
            let Some(Late { cq, life, cqe, .. }) = self.late.pop() else { return };
            let qp = &self.qps[cqe.qp as usize];
            let outlives = self.devices[qp.device as usize].spec.cqes_outlive_qp;
            if self.cqs[cq as usize].alive && (outlives || (qp.alive && qp.life == life)) {
                self.deliver(cq, cqe);
            }
        }
    }

    #[inline]
    fn deliver(&mut self, number: u32, cqe: Cqe) {
        let cq = &mut self.cqs[number as usize];
        if cq.broken {
            return;
        }
        let context = cq.context;
        if !cq.ring.push(cqe) {
            return self.break_cq(number);
        }
        self.told |= self.host_bit(context);
        let cq = &mut self.cqs[number as usize];
        if cq.armed == Armed::No {
            return;
        }
        let wanted = cq.armed == Armed::Next || cqe.solicited || cqe.status != ibv_wc_status::IBV_WC_SUCCESS;
        if wanted {
            cq.armed = Armed::No;
            let channel = cq.channel;
            self.signal(channel, number);
        }
    }

    fn signal(&mut self, channel: Option<u32>, cq: u32) {
        let Some(channel) = channel.and_then(|at| self.channels.get_mut(at as usize)) else { return };
        channel.events.push_back(cq);
        if let Some(fd) = &channel.fd {
            fd.signal();
        }
    }

    /// A CQ overflows or breaks: an event says so, no CQE comes any more, and its QPs fail.
    pub(super) fn break_cq(&mut self, number: u32) {
        let cq = &mut self.cqs[number as usize];
        if std::mem::replace(&mut cq.broken, true) {
            return;
        }
        let context = cq.context;
        // Whoever waits is woken, and finds the event.
        let channel =
            if std::mem::replace(&mut cq.armed, Armed::No) == Armed::No { None } else { cq.channel };
        self.signal(channel, number);
        self.event(context, Event { kind: IBV_EVENT_CQ_ERR, about: Element::Cq(number) });
        for qp in 0..self.qps.len() as u32 {
            let at = &self.qps[qp as usize];
            if at.alive && (at.send_cq == number || at.recv_cq == number) {
                self.fail_qp(qp);
            }
        }
    }

    /// Takes the next CQE of a CQ, and frees the places that it covers.
    #[inline]
    pub(super) fn take_cqe(&mut self, cq: u32) -> Option<Cqe> {
        let cqe = self.cqs[cq as usize].ring.pop()?;
        self.free_places(&cqe);
        Some(cqe)
    }

    #[inline]
    fn free_places(&mut self, cqe: &Cqe) {
        let qp = &mut self.qps[cqe.qp as usize];
        match cqe.covers {
            Covers::Send(number) if number < qp.sq.posted => qp.sq.freed = qp.sq.freed.max(number + 1),
            Covers::Send(_) => {}
            Covers::Recv => qp.rq.free_one(),
            Covers::SrqRecv(srq) => self.srqs[srq as usize].rq.free_one(),
        }
    }

    /// Takes the CQEs of a QP that is destroyed or made as new out of its CQs.
    pub(super) fn scrub(&mut self, qp: u32) {
        let at = &self.qps[qp as usize];
        if self.devices[at.device as usize].spec.cqes_outlive_qp {
            return;
        }
        for cq in [at.send_cq, at.recv_cq] {
            for cqe in self.cqs[cq as usize].ring.scrub(qp) {
                if let Covers::SrqRecv(_) = cqe.covers {
                    self.free_places(&cqe);
                }
            }
        }
    }
}
