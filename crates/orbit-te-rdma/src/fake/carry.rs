//! Work requests carried out. Rule: one QP's in order, each whole or not at all; the first that fails has its reason as status, and all others
//! of the QP are flushed.

use super::fabric::Mode;
use super::queue::{Covers, Cqe, Receive, Wqe};
use super::state::{Health, QpState, Reach, Span, State};
use super::sys::{copy, fill};
use crate::access::MrAccess;
use ibverbs_sys::*;
use std::time::Duration;

/// What became of a QP's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// A WR ended.
    Did,
    /// It waits for an answer.
    Waits,
    /// There is nothing to do.
    Idle,
}

use ibv_wc_status::*;

/// How long a peer has to answer in all, or for ever.
pub(super) fn retry_budget(attr: &ibv_qp_attr, seven_is_for_ever: bool) -> Option<Duration> {
    let for_ever = attr.timeout == 0 || (attr.retry_cnt == 7 && seven_is_for_ever);
    (!for_ever).then(|| Duration::from_nanos(4096 << attr.timeout) * (u32::from(attr.retry_cnt) + 1))
}

/// How long to wait for a receive, by the code of verbs, in hundredths of a millisecond.
const RNR_TIMES: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl State {
    /// Does what is to be done, as far as the mode has it done by itself.
    #[inline]
    pub(super) fn run_by_itself(&mut self) {
        if self.mode != Mode::ByHand {
            self.run(u64::MAX);
        }
    }

    /// Ends at most so many WRs; gives how many.
    pub(super) fn run(&mut self, budget: u64) -> u64 {
        self.ran_epoch = self.epoch;
        self.land_strays();
        self.deliver_late();
        while let Some(qp) = self.waiting.pop() {
            self.ready.push_back(qp);
        }
        let mut did = 0;
        while did < budget {
            let Some(qp) = self.pick() else { break };
            loop {
                match self.turn(qp) {
                    Turn::Did => {
                        did += 1;
                        if did == budget || (self.scrambled && self.rng.below(2) == 0) {
                            self.ready.push_back(qp);
                            break;
                        }
                    }
                    Turn::Waits => {
                        self.waiting.push(qp);
                        break;
                    }
                    Turn::Idle => {
                        self.qps[qp as usize].queued = false;
                        break;
                    }
                }
            }
        }
        did
    }

    fn pick(&mut self) -> Option<u32> {
        if self.scrambled && self.ready.len() > 1 {
            let at = self.rng.below(self.ready.len() as u64) as usize;
            return self.ready.swap_remove_back(at);
        }
        self.ready.pop_front()
    }

    fn turn(&mut self, number: u32) -> Turn {
        let qp = &self.qps[number as usize];
        if !qp.alive {
            return Turn::Idle;
        }
        if self.contexts[qp.context as usize].dead {
            // Its device is gone: nothing is carried out, and nothing completes.
            return Turn::Idle;
        }
        match qp.state {
            QpState::Err => self.flush_one(number),
            QpState::Rts if !qp.sq.is_idle() => self.carry_out(number),
            _ => Turn::Idle,
        }
    }

    fn flush_one(&mut self, number: u32) -> Turn {
        let qp = &mut self.qps[number as usize];
        if !qp.sq.is_idle() {
            let wqe = qp.sq.next();
            self.end_send(number, &wqe, WR_FLUSH, 0);
            return Turn::Did;
        }
        let Some(receive) = qp.rq.take() else { return Turn::Idle };
        self.end_recv(
            number,
            receive.wr_id,
            Covers::Recv,
            WR_FLUSH,
            0,
            ibv_wc_opcode::IBV_WC_RECV,
            None,
            false,
        );
        Turn::Did
    }

    fn carry_out(&mut self, number: u32) -> Turn {
        let wqe = self.qps[number as usize].sq.next();
        let outcome = match wqe.opcode {
            ibv_wr_opcode::IBV_WR_BIND_MW | ibv_wr_opcode::IBV_WR_LOCAL_INV => {
                self.carry_out_here(number, &wqe)
            }
            _ => self.carry_over(number, &wqe),
        };
        match outcome {
            Some(IBV_WC_SUCCESS) => {
                let qp = &mut self.qps[number as usize];
                (qp.retry_at, qp.rnr_at) = (None, None);
                if wqe.signaled || qp.sig_all {
                    self.end_send(number, &wqe, IBV_WC_SUCCESS, wqe.length as u32);
                } else {
                    qp.sq.done += 1;
                }
                Turn::Did
            }
            Some(status) => {
                self.end_send(number, &wqe, status, 0);
                self.fail_qp(number);
                Turn::Did
            }
            None => Turn::Waits,
        }
    }

    /// Moves bytes to or from the peer. Gives the status, or nothing while it waits.
    fn carry_over(&mut self, number: u32, wqe: &Wqe) -> Option<u32> {
        let reach = self.reach(number);
        if reach == Reach::Stuck {
            return None;
        }
        let qp = &self.qps[number as usize];
        if wqe.length > self.devices[qp.device as usize].spec.limits.max_message.into() {
            return Some(IBV_WC_LOC_LEN_ERR);
        }
        let mut local = std::mem::take(&mut self.local_ranges);
        let open = self.find_local(number, wqe, &mut local);
        let outcome = match (open, reach) {
            (false, _) => Some(IBV_WC_LOC_PROT_ERR),
            (true, Reach::Peer(peer)) => {
                self.qps[number as usize].retry_at = None;
                self.carry_to(number, peer, wqe, &local)
            }
            (true, Reach::NoSource) => Some(IBV_WC_LOC_QP_OP_ERR),
            (true, Reach::Nobody | Reach::Stuck) => self.no_answer(number),
        };
        self.local_ranges = local;
        outcome
    }

    fn carry_to(&mut self, number: u32, peer: u32, wqe: &Wqe, local: &[Span]) -> Option<u32> {
        match wqe.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => {
                let Some(there) = self.at_peer(peer, wqe) else { return Some(self.refuse(peer)) };
                self.tell_touches((number, true), local, false);
                self.tell_touches((peer, false), &[(there, wqe.length)], true);
                self.write(number, wqe, local, there);
            }
            ibv_wr_opcode::IBV_WR_RDMA_READ => {
                if self.too_deep(number, peer) {
                    return Some(self.refuse_request(peer));
                }
                let Some(mut there) = self.at_peer(peer, wqe) else { return Some(self.refuse(peer)) };
                self.tell_touches((number, true), local, true);
                self.tell_touches((peer, false), &[(there, wqe.length)], false);
                if self.moves_bytes {
                    for &(to, length) in local {
                        copy(there, to, length);
                        there += length;
                    }
                }
            }
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                let Some(there) = self.at_peer(peer, wqe) else { return Some(self.refuse(peer)) };
                let (reason, receive) = self.receive(number, peer)?;
                let Some((receive, covers)) = receive else { return Some(reason) };
                self.write(number, wqe, local, there);
                let opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
                let (length, imm) = (wqe.length as u32, Some(wqe.imm));
                self.end_recv(
                    peer,
                    receive.wr_id,
                    covers,
                    IBV_WC_SUCCESS,
                    length,
                    opcode,
                    imm,
                    wqe.solicited,
                );
            }
            ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => {
                let (reason, receive) = self.receive(number, peer)?;
                let Some((receive, covers)) = receive else { return Some(reason) };
                let mut there = std::mem::take(&mut self.far_ranges);
                let status = self.send(number, peer, wqe, local, (receive, covers), &mut there);
                self.far_ranges = there;
                return Some(status);
            }
            _ => return Some(IBV_WC_LOC_QP_OP_ERR),
        }
        Some(IBV_WC_SUCCESS)
    }

    /// Finds the memory of a WR's SGEs; whether all of it is open to the QP.
    #[inline]
    fn find_local(&self, number: u32, wqe: &Wqe, spans: &mut Vec<Span>) -> bool {
        self.find_local_of(number, self.qps[number as usize].sq.done, wqe, spans)
    }

    /// As [`State::find_local`], of the WR of this number.
    #[inline]
    pub(super) fn find_local_of(&self, number: u32, at: u64, wqe: &Wqe, spans: &mut Vec<Span>) -> bool {
        let reading = wqe.opcode == ibv_wr_opcode::IBV_WR_RDMA_READ;
        let need = if reading { MrAccess::LOCAL_WRITE } else { MrAccess::empty() };
        spans.clear();
        let qp = &self.qps[number as usize];
        wqe.inline || self.find(qp.sq.sges_of(at), qp.pd, need, spans)
    }

    #[inline]
    fn find(&self, sges: &[ibv_sge], pd: u32, need: MrAccess, spans: &mut Vec<Span>) -> bool {
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let length = sge.length.into();
            let Some(at) = self.local(sge.lkey, pd, sge.addr, length, need) else { return false };
            spans.push((at, length));
        }
        true
    }

    /// Where the peer's bytes are, if they are open to the WR. A WR of no bytes needs no key.
    #[inline]
    pub(super) fn at_peer(&self, peer: u32, wqe: &Wqe) -> Option<u64> {
        let need = match wqe.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_READ => MrAccess::REMOTE_READ,
            _ => MrAccess::REMOTE_WRITE,
        };
        let qp = &self.qps[peer as usize];
        if !qp.access.contains(need) {
            return None;
        }
        if wqe.length == 0 {
            return Some(0);
        }
        self.remote(wqe.rkey, (qp.pd, peer), wqe.remote_addr, wqe.length, need)
    }

    #[inline]
    fn write(&self, number: u32, wqe: &Wqe, local: &[Span], mut there: u64) {
        if !self.moves_bytes {
            return;
        }
        if wqe.inline {
            let sq = &self.qps[number as usize].sq;
            return fill(there, sq.inline_of(sq.done));
        }
        for &(from, length) in local {
            copy(from, there, length);
            there += length;
        }
    }

    /// Puts a message into a receive. Errors of the receiver end its receive, and both QPs.
    fn send(
        &mut self,
        number: u32,
        peer: u32,
        wqe: &Wqe,
        local: &[Span],
        (receive, covers): (Receive, Covers),
        there: &mut Vec<Span>,
    ) -> u32 {
        let opcode = ibv_wc_opcode::IBV_WC_RECV;
        let qp = &self.qps[peer as usize];
        let rq = match covers {
            Covers::SrqRecv(srq) => &self.srqs[srq as usize].rq,
            _ => &qp.rq,
        };
        let into = rq.sges_of(receive.number);
        there.clear();
        let room: u64 = into.iter().map(|sge| u64::from(sge.length)).sum();
        let (theirs, ours) = if room < wqe.length {
            (IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR)
        } else if !self.find(into, qp.pd, MrAccess::LOCAL_WRITE, there) {
            (IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR)
        } else {
            (IBV_WC_SUCCESS, IBV_WC_SUCCESS)
        };
        if theirs != IBV_WC_SUCCESS {
            self.end_recv(peer, receive.wr_id, covers, theirs, 0, opcode, None, false);
            self.fail_qp(peer);
            return ours;
        }
        if self.moves_bytes {
            self.scatter(number, wqe, local, there);
        }
        let imm = (wqe.opcode == ibv_wr_opcode::IBV_WR_SEND_WITH_IMM).then_some(wqe.imm);
        self.end_recv(peer, receive.wr_id, covers, theirs, wqe.length as u32, opcode, imm, wqe.solicited);
        ours
    }

    fn scatter(&self, number: u32, wqe: &Wqe, local: &[Span], there: &[Span]) {
        let mut into = there.iter().copied();
        let mut room = (0, 0);
        let mut next_room = |wanted: u64, room: &mut (u64, u64)| {
            if room.1 == 0 {
                *room = into.next().unwrap_or((0, wanted));
            }
            let length = wanted.min(room.1);
            let at = room.0;
            *room = (at + length, room.1 - length);
            (at, length)
        };
        if wqe.inline {
            let sq = &self.qps[number as usize].sq;
            let mut bytes = sq.inline_of(sq.done);
            while !bytes.is_empty() {
                let (at, length) = next_room(bytes.len() as u64, &mut room);
                let (now, later) = bytes.split_at(length as usize);
                fill(at, now);
                bytes = later;
            }
            return;
        }
        for &(mut from, mut left) in local {
            while left > 0 {
                let (at, length) = next_room(left, &mut room);
                copy(from, at, length);
                (from, left) = (from + length, left - length);
            }
        }
    }

    /// Takes a receive of the peer: nothing while it waits for one, or the status with which the wait ends.
    fn receive(&mut self, number: u32, peer: u32) -> Option<(u32, Option<(Receive, Covers)>)> {
        let far = &mut self.qps[peer as usize];
        let taken = match far.srq {
            Some(srq) => self.srqs[srq as usize].rq.take().map(|receive| (receive, Covers::SrqRecv(srq))),
            None => far.rq.take().map(|receive| (receive, Covers::Recv)),
        };
        if taken.is_some() {
            return Some((IBV_WC_SUCCESS, taken));
        }
        let timer = self.qps[peer as usize].attr.min_rnr_timer & 31;
        let now = self.now();
        let qp = &mut self.qps[number as usize];
        let (retries, wait) = (qp.attr.rnr_retry, RNR_TIMES[usize::from(timer)]);
        if retries == 7 {
            return None;
        }
        let wait = Duration::from_micros(u64::from(wait) * 10) * u32::from(retries);
        let at = *qp.rnr_at.get_or_insert(now + wait);
        (now >= at).then_some((IBV_WC_RNR_RETRY_EXC_ERR, None))
    }

    /// Nobody answers: waits as long as the QP's attributes have it, and then gives up.
    fn no_answer(&mut self, number: u32) -> Option<u32> {
        let now = self.now();
        let qp = &mut self.qps[number as usize];
        let for_ever = self.devices[qp.device as usize].spec.retry_seven_is_for_ever;
        let budget = retry_budget(&qp.attr, for_ever)?;
        let at = *qp.retry_at.get_or_insert(now + budget);
        (now >= at).then_some(IBV_WC_RETRY_EXC_ERR)
    }

    /// Whether a READ goes beyond what the peer answers.
    fn too_deep(&self, number: u32, peer: u32) -> bool {
        let (ours, theirs) = (&self.qps[number as usize].attr, &self.qps[peer as usize].attr);
        ours.max_rd_atomic == 0 || ours.max_rd_atomic > theirs.max_dest_rd_atomic
    }

    /// The peer finds that its memory is not open: its QP fails too.
    pub(super) fn refuse(&mut self, peer: u32) -> u32 {
        self.qp_event(peer, IBV_EVENT_QP_ACCESS_ERR);
        self.fail_qp(peer);
        IBV_WC_REM_ACCESS_ERR
    }

    /// The peer finds that the request is not one for its QP.
    fn refuse_request(&mut self, peer: u32) -> u32 {
        self.qp_event(peer, IBV_EVENT_QP_REQ_ERR);
        self.fail_qp(peer);
        IBV_WC_REM_INV_REQ_ERR
    }

    /// Ends the WR that is next in a send queue, with a CQE.
    fn end_send(&mut self, number: u32, wqe: &Wqe, status: u32, byte_len: u32) {
        let qp = &mut self.qps[number as usize];
        let covers = Covers::Send(qp.sq.done);
        qp.sq.done += 1;
        let opcode = match wqe.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                ibv_wc_opcode::IBV_WC_RDMA_WRITE
            }
            ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
            ibv_wr_opcode::IBV_WR_BIND_MW => ibv_wc_opcode::IBV_WC_BIND_MW,
            ibv_wr_opcode::IBV_WR_LOCAL_INV => ibv_wc_opcode::IBV_WC_LOCAL_INV,
            _ => ibv_wc_opcode::IBV_WC_SEND,
        };
        let cqe = Cqe {
            wr_id: wqe.wr_id,
            status,
            opcode,
            byte_len,
            imm: None,
            qp_num: qp.number,
            src_qp: 0,
            solicited: false,
            qp: number,
            covers,
        };
        let cq = qp.send_cq;
        self.complete(cq, cqe);
    }

    #[allow(clippy::too_many_arguments)] // The members of one CQE.
    fn end_recv(
        &mut self,
        number: u32,
        wr_id: u64,
        covers: Covers,
        status: u32,
        byte_len: u32,
        opcode: u32,
        imm: Option<u32>,
        solicited: bool,
    ) {
        let qp = &self.qps[number as usize];
        let (cq, qp_num, src_qp) = (qp.recv_cq, qp.number, qp.attr.dest_qp_num);
        let cqe = Cqe { wr_id, status, opcode, byte_len, imm, qp_num, src_qp, solicited, qp: number, covers };
        self.complete(cq, cqe);
    }

    /// A QP fails: its WRs are flushed from now on.
    pub(super) fn fail_qp(&mut self, number: u32) {
        let qp = &mut self.qps[number as usize];
        if qp.state == QpState::Err {
            return;
        }
        self.let_stray(number);
        let qp = &mut self.qps[number as usize];
        qp.state = QpState::Err;
        (qp.retry_at, qp.rnr_at) = (None, None);
        let with_srq = qp.srq.is_some();
        self.changed();
        self.wake(number);
        if with_srq {
            self.qp_event(number, IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }

    /// A device breaks: every context of it is of no use, and nothing completes any more.
    pub(super) fn lose_device(&mut self, device: u32, health: Health) {
        self.devices[device as usize].health = health;
        self.device_event(device, 0, IBV_EVENT_DEVICE_FATAL);
        for context in self.contexts.iter_mut().filter(|context| context.device == device) {
            context.dead = true;
        }
        self.changed();
    }
}

const WR_FLUSH: u32 = IBV_WC_WR_FLUSH_ERR;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_that_of_the_facts() {
        let attr = |timeout, retry_cnt| ibv_qp_attr { timeout, retry_cnt, ..Default::default() };
        let millis = |attr: ibv_qp_attr, ever| retry_budget(&attr, ever).map(|budget| budget.as_millis());
        assert_eq!(millis(attr(14, 3), true), Some(268));
        assert_eq!(millis(attr(10, 6), true), Some(29));
        assert_eq!(millis(attr(14, 7), true), None);
        assert_eq!(millis(attr(14, 7), false), Some(536));
        assert_eq!(millis(attr(0, 3), false), None);
    }
}
