//! A chain of WRs that is posted by one call. Rule: its memory is made once and used again, and each WR names ranges whose keys and
//! bounds were checked by whoever cut it.

use crate::cut::{Range, Work};
use crate::handle::Qp;
use ibverbs_sys::{ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use orbit_te_transport::OpKind;
use std::ptr::{NonNull, null_mut};

/// WRs in a chain. More than a few in one call gain nothing, and one call must not keep the worker.
pub(crate) const CHAIN: usize = 32;
/// Ranges of one WR at most; devices take between 3 and 32.
pub(crate) const RANGES: usize = 16;

/// What a WR does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opcode(ibv_wr_opcode::Type);

impl Opcode {
    #[inline]
    pub(crate) fn of(kind: OpKind) -> Opcode {
        Opcode(match kind {
            OpKind::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
            OpKind::Write => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        })
    }
}

/// A WR with its ranges. Of one in a chain, its pointers stay as the chain has set them.
#[derive(Clone, Copy)]
pub(crate) struct Node {
    wr: ibv_send_wr,
    sges: [ibv_sge; RANGES],
}

impl Node {
    /// Makes it a WR of one range; its completion is not signalled.
    #[inline(always)] // Every op of a batch comes this way.
    pub(crate) fn block(
        &mut self,
        (opcode, inline): (Opcode, bool),
        wr_id: u64,
        (remote, rkey): (u64, u32),
        range: Range,
    ) {
        self.sges[0] = sge(&range);
        self.wr.wr_id = wr_id;
        self.wr.num_sge = 1;
        self.wr.opcode = opcode.0;
        self.wr.send_flags = if inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        self.wr.wr.rdma.remote_addr = remote;
        self.wr.wr.rdma.rkey = rkey;
    }
}

#[inline]
fn sge(range: &Range) -> ibv_sge {
    ibv_sge { addr: range.address, length: range.bytes, lkey: range.lkey }
}

/// WRs that are posted together. The nodes are linked once, each to the next one and to its own ranges.
pub(crate) struct Chain {
    nodes: NonNull<[Node; CHAIN]>,
    used: usize,
}

// SAFETY: the nodes belong to the chain alone, and the pointers in them are to each other.
unsafe impl Send for Chain {}

impl Chain {
    pub(crate) fn new() -> Chain {
        let sges = [ibv_sge { addr: 0, length: 0, lkey: 0 }; RANGES];
        let node = Node { wr: ibv_send_wr::default(), sges };
        let nodes = NonNull::from(Box::leak(Box::new([node; CHAIN])));
        let mut chain = Chain { nodes, used: 0 };
        for at in 0..CHAIN {
            let next = if at + 1 < CHAIN { chain.wr(at + 1) } else { null_mut() };
            let node = chain.node(at);
            // SAFETY: the node is one of ours, and nobody has a reference to it.
            unsafe {
                (*node).wr.next = next;
                (*node).wr.sg_list = (&raw mut (*node).sges).cast();
            }
        }
        chain
    }

    /// A node of the chain; the place is below [`CHAIN`].
    #[inline]
    fn node(&mut self, at: usize) -> *mut Node {
        debug_assert!(at < CHAIN);
        self.nodes.as_ptr().cast::<Node>().wrapping_add(at)
    }

    fn wr(&mut self, at: usize) -> *mut ibv_send_wr {
        // SAFETY: a place inside of the nodes, of which no reference is made.
        unsafe { &raw mut (*self.node(at)).wr }
    }

    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Adds a WR of so many of these ranges; its completion is not signalled. With `inline` it carries its bytes itself. There is room for it.
    #[inline]
    pub(crate) fn push(&mut self, kind: OpKind, inline: bool, wr_id: u64, work: &Work, ranges: &[Range]) {
        assert!(self.used < CHAIN, "the chain is full");
        // SAFETY: the place is inside of the nodes, nobody else has a reference to it, and this one ends with the call.
        let node = unsafe { &mut *self.node(self.used) };
        node.block((Opcode::of(kind), inline), wr_id, (work.remote, work.rkey), ranges[0]);
        // Nearly all have one range.
        if work.ranges > 1 {
            for (place, range) in node.sges.iter_mut().zip(&ranges[..work.ranges]).skip(1) {
                *place = sge(range);
            }
            node.wr.num_sge = work.ranges as i32;
        }
        self.used += 1;
    }

    /// All nodes, of which those at the begin are made before [`Chain::are_made`].
    #[inline]
    pub(crate) fn nodes(&mut self) -> &mut [Node; CHAIN] {
        // SAFETY: they are the chain's own, and it is borrowed meanwhile.
        unsafe { self.nodes.as_mut() }
    }

    /// The chain has so many, which stand at the begin of its nodes.
    #[inline]
    pub(crate) fn are_made(&mut self, count: usize) {
        self.used = count.min(CHAIN);
    }

    /// Posts all of them, the last one signalled; how many were posted, and the errno if it was not all.
    ///
    /// # Safety
    /// The ranges of all WRs stay valid, for reading by WRITEs and for writing by READs, until the WR is over.
    pub(crate) unsafe fn post(&mut self, qp: &Qp) -> (usize, i32) {
        let Some(last) = self.used.checked_sub(1) else { return (0, 0) };
        let (first, end) = (self.wr(0), self.wr(last));
        // SAFETY: places of the nodes, to which no reference is.
        let next = unsafe {
            (*end).send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
            std::mem::replace(&mut (*end).next, null_mut())
        };
        let mut bad = null_mut();
        // SAFETY: the chain and its SGEs live for the call; the caller vouches for the ranges.
        let errno = unsafe { qp.post_send(first, &mut bad) };
        // SAFETY: as above; the call is over.
        unsafe { (*end).next = next };
        if errno == 0 {
            return (self.used, 0);
        }
        // The first that was not posted; none when the call does not say.
        let posted = (0..self.used).find(|at| std::ptr::eq(self.wr(*at), bad)).unwrap_or(0);
        (posted, errno)
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: made by a box in `new`, and gone with the chain.
        drop(unsafe { Box::from_raw(self.nodes.as_ptr()) });
    }
}
