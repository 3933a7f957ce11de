//! A chain of WRs that is posted by one call. Rule: its memory is made once and used again, and each WR names ranges whose keys and
//! bounds were checked by whoever cut it.

use crate::cut::{Range, Work};
use crate::handle::Qp;
use ibverbs_sys::{ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use orbit_te_transport::OpKind;

/// WRs in a chain. More than a few in one call gain nothing, and one call must not keep the worker.
pub(crate) const CHAIN: usize = 32;
/// Ranges of one WR at most; devices take between 3 and 32.
pub(crate) const RANGES: usize = 16;

/// WRs that are posted together.
pub(crate) struct Chain {
    wrs: Box<[ibv_send_wr; CHAIN]>,
    sges: Box<[[ibv_sge; RANGES]; CHAIN]>,
    used: usize,
}

// SAFETY: the pointers in it are to its own memory and are set by the call that uses them.
unsafe impl Send for Chain {}

impl Chain {
    pub(crate) fn new() -> Chain {
        Chain {
            wrs: Box::new([ibv_send_wr::default(); CHAIN]),
            sges: Box::new([[ibv_sge { addr: 0, length: 0, lkey: 0 }; RANGES]; CHAIN]),
            used: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used == CHAIN
    }

    /// Adds a WR of so many of these ranges; its completion is not signalled. There is room for it.
    pub(crate) fn push(&mut self, kind: OpKind, wr_id: u64, work: &Work, ranges: &[Range]) {
        let (wr, sges) = (&mut self.wrs[self.used], &mut self.sges[self.used]);
        for (sge, range) in sges.iter_mut().zip(&ranges[..work.ranges]) {
            *sge = ibv_sge { addr: range.address, length: range.bytes, lkey: range.lkey };
        }
        wr.wr_id = wr_id;
        wr.num_sge = work.ranges as i32;
        wr.opcode = match kind {
            OpKind::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
            OpKind::Write => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        };
        wr.send_flags = 0;
        wr.wr.rdma.remote_addr = work.remote;
        wr.wr.rdma.rkey = work.rkey;
        self.used += 1;
    }

    /// Posts all of them, the last one signalled; how many were posted, and the errno if it was not all.
    ///
    /// # Safety
    /// The ranges of all WRs stay valid, for reading by WRITEs and for writing by READs, until the WR is over.
    pub(crate) unsafe fn post(&mut self, qp: &Qp) -> (usize, i32) {
        let Some(last) = self.used.checked_sub(1) else { return (0, 0) };
        self.wrs[last].send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        for at in 0..self.used {
            self.wrs[at].sg_list = self.sges[at].as_mut_ptr();
        }
        let first = self.wrs.as_mut_ptr();
        for at in 0..self.used {
            // SAFETY: both are places of the array.
            unsafe {
                let after = if at == last { std::ptr::null_mut() } else { first.add(at + 1) };
                (*first.add(at)).next = after;
            }
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the chain and its SGEs live for the call; the caller vouches for the ranges.
        let errno = unsafe { qp.post_send(first, &mut bad) };
        if errno == 0 {
            return (self.used, 0);
        }
        // The first that was not posted; all when the call does not say.
        let posted = (0..self.used).find(|at| std::ptr::eq(&self.wrs[*at], bad)).unwrap_or(0);
        (posted, errno)
    }
}
