//! The rings of a QP, an SRQ and a CQ. Rule: made with all the room they ever need, so nothing is allocated for a WR. A place of the send queue
//! is free again only when a CQE that covers it was taken, as with real devices.

use ibverbs_sys::ibv_sge;

/// No device takes more SGEs in a WR.
pub(super) const MOST_SGES: usize = 32;

/// A send WR as the device has it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wqe {
    pub(super) wr_id: u64,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    /// Bytes of all SGEs.
    pub(super) length: u64,
    pub(super) opcode: u32,
    /// As it came: big-endian.
    pub(super) imm: u32,
    pub(super) sges: u8,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) inline: bool,
}

#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) depth: u64,
    mask: u64,
    pub(super) max_sge: usize,
    pub(super) max_inline: usize,
    wqes: Box<[Wqe]>,
    sges: Box<[ibv_sge]>,
    inline: Box<[u8]>,
    pub(super) posted: u64,
    pub(super) done: u64,
    pub(super) freed: u64,
}

impl SendQueue {
    pub(super) fn new(depth: u32, max_sge: u32, max_inline: u32) -> SendQueue {
        let room = (depth as usize).next_power_of_two();
        SendQueue {
            depth: depth.into(),
            mask: room as u64 - 1,
            max_sge: max_sge as usize,
            max_inline: max_inline as usize,
            wqes: vec![Wqe::default(); room].into(),
            sges: vec![ibv_sge::default(); room * max_sge as usize].into(),
            inline: vec![0; room * max_inline as usize].into(),
            posted: 0,
            done: 0,
            freed: 0,
        }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.posted - self.freed >= self.depth
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.done == self.posted
    }

    #[inline]
    fn at(&self, number: u64) -> usize {
        (number & self.mask) as usize
    }

    /// The next WR to be done; there is one.
    #[inline]
    pub(super) fn next(&self) -> Wqe {
        self.wqes[self.at(self.done)]
    }

    /// A WR that is not done.
    pub(super) fn at_number(&self, number: u64) -> Wqe {
        self.wqes[self.at(number)]
    }

    /// The SGEs of a WR.
    #[inline]
    pub(super) fn sges_of(&self, number: u64) -> &[ibv_sge] {
        let at = self.at(number);
        let first = at * self.max_sge;
        &self.sges[first..first + usize::from(self.wqes[at].sges)]
    }

    /// The bytes that a WR carries itself.
    pub(super) fn inline_of(&self, number: u64) -> &[u8] {
        let at = self.at(number);
        &self.inline[at * self.max_inline..][..self.wqes[at].length as usize]
    }

    /// Puts a WR at the end; there is room.
    #[inline]
    pub(super) fn push(&mut self, wqe: Wqe, sges: &[ibv_sge]) {
        let at = self.at(self.posted);
        self.wqes[at] = wqe;
        if !wqe.inline {
            let first = at * self.max_sge;
            self.sges[first..first + sges.len()].copy_from_slice(sges);
        }
        self.posted += 1;
    }

    /// The place for the bytes of the WR that is pushed next.
    pub(super) fn inline_room(&mut self) -> &mut [u8] {
        let at = self.at(self.posted) * self.max_inline;
        &mut self.inline[at..at + self.max_inline]
    }

    /// The numbers of the WRs that are not done.
    pub(super) fn waiting(&self) -> std::ops::Range<u64> {
        self.done..self.posted
    }

    /// Whether a WR carries its bytes itself.
    pub(super) fn is_inline(&self, number: u64) -> bool {
        self.wqes[self.at(number)].inline
    }

    /// As new.
    pub(super) fn clear(&mut self) {
        (self.posted, self.done, self.freed) = (0, 0, 0);
    }
}

/// A receive that was taken from its queue. Its SGEs stay in their place until its CQE was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) number: u64,
}

#[derive(Debug)]
pub(super) struct RecvQueue {
    depth: u64,
    mask: u64,
    pub(super) max_sge: usize,
    /// `wr_id` and number of SGEs.
    wqes: Box<[(u64, u8)]>,
    sges: Box<[ibv_sge]>,
    posted: u64,
    done: u64,
    freed: u64,
}

impl RecvQueue {
    pub(super) fn new(depth: u32, max_sge: u32) -> RecvQueue {
        let room = (depth as usize).next_power_of_two();
        RecvQueue {
            depth: depth.into(),
            mask: room as u64 - 1,
            max_sge: max_sge as usize,
            wqes: vec![(0, 0); room].into(),
            sges: vec![ibv_sge::default(); room * max_sge as usize].into(),
            posted: 0,
            done: 0,
            freed: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.posted - self.freed >= self.depth
    }

    pub(super) fn is_idle(&self) -> bool {
        self.done == self.posted
    }

    pub(super) fn push(&mut self, wr_id: u64, sges: &[ibv_sge]) {
        let at = (self.posted & self.mask) as usize;
        self.wqes[at] = (wr_id, sges.len() as u8);
        self.sges[at * self.max_sge..][..sges.len()].copy_from_slice(sges);
        self.posted += 1;
    }

    pub(super) fn take(&mut self) -> Option<Receive> {
        if self.is_idle() {
            return None;
        }
        let number = self.done;
        self.done += 1;
        Some(Receive { wr_id: self.wqes[(number & self.mask) as usize].0, number })
    }

    /// The SGEs of a receive.
    pub(super) fn sges_of(&self, number: u64) -> &[ibv_sge] {
        let at = (number & self.mask) as usize;
        &self.sges[at * self.max_sge..][..usize::from(self.wqes[at].1)]
    }

    /// The CQE of a receive was taken.
    pub(super) fn free_one(&mut self) {
        self.freed = (self.freed + 1).min(self.done);
    }

    /// The SGEs of all receives that wait.
    pub(super) fn waiting_sges(&self) -> impl Iterator<Item = &ibv_sge> {
        (self.done..self.posted).flat_map(|number| self.sges_of(number))
    }

    pub(super) fn clear(&mut self) {
        (self.posted, self.done, self.freed) = (0, 0, 0);
    }
}

/// Whose place is free when a CQE is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Covers {
    /// The send WR of this number, and all before it.
    Send(u64),
    /// A receive of the QP.
    Recv,
    /// A receive of an SRQ.
    SrqRecv(u32),
}

/// A completion as the device has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cqe {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) byte_len: u32,
    pub(super) imm: Option<u32>,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) solicited: bool,
    pub(super) qp: u32,
    pub(super) covers: Covers,
}

/// The ring of a CQ.
#[derive(Debug)]
pub(super) struct CqRing {
    limit: usize,
    ring: std::collections::VecDeque<Cqe>,
}

impl CqRing {
    pub(super) fn new(limit: usize) -> CqRing {
        // A CQ of millions is mostly empty: it gets its room when it is used for the first time.
        CqRing { limit, ring: std::collections::VecDeque::with_capacity(limit.min(4096)) }
    }

    #[inline]
    pub(super) fn push(&mut self, cqe: Cqe) -> bool {
        let room = self.ring.len() < self.limit;
        if room {
            self.ring.push_back(cqe);
        }
        room
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Cqe> {
        self.ring.pop_front()
    }

    /// Takes out the CQEs of a QP.
    pub(super) fn scrub(&mut self, qp: u32) -> Vec<Cqe> {
        let out = self.ring.iter().filter(|cqe| cqe.qp == qp).copied().collect();
        self.ring.retain(|cqe| cqe.qp != qp);
        out
    }
}
