//! A QP by which notices go, with the memory into which they come. Rule: the memory is let go after the QP, and a place in it is read only when a
//! CQE has said that the receive for it is over.

use crate::access::MrAccess;
use crate::completion::{Done, Wc};
use crate::error::{Errno, VerbsError};
use crate::handle::{Cq, Mr, Pd, Qp, QpCaps, Ticket};
use ibverbs_sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use orbit_te_wire::rdma::notice::{MAX_NOTICE_BYTES, NOTICES};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::Arc;

/// SENDs that the QP holds: their CQEs may come later than the answers that let the next ones go.
pub(crate) const SENDS: u32 = 2 * NOTICES as u32;
/// CQEs that the QP may give.
pub(crate) const CQES: u32 = SENDS + NOTICES as u32;

/// Pages of their own, since registered memory is pinned by the page.
#[repr(C, align(4096))]
struct Page(UnsafeCell<[[u8; MAX_NOTICE_BYTES]; NOTICES]>);

// SAFETY: no reference to its bytes is ever made. A device writes a place while a receive is posted for it, and whoever has the letterbox reads it
// at other times.
unsafe impl Sync for Page {}

/// The bytes that came by one receive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parcel {
    bytes: [u8; MAX_NOTICE_BYTES],
    length: usize,
}

impl Parcel {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A QP with its receives.
pub(crate) struct Letterbox {
    /// None once it is destroyed.
    qp: Option<Qp>,
    /// Where the bytes of receives go; none where they have none.
    memory: Option<(Mr, Arc<Page>)>,
    /// The places for which a receive is posted.
    posted: [bool; NOTICES],
    inline: usize,
}

impl Letterbox {
    /// One that takes notices.
    pub(crate) fn taking(pd: &Pd, cq: &Cq) -> Result<Letterbox, VerbsError> {
        let page = Arc::new(Page(UnsafeCell::new([[0; MAX_NOTICE_BYTES]; NOTICES])));
        let (address, length) = (page.0.get().cast::<u8>(), size_of::<Page>());
        // SAFETY: the page is mapped as long as the backing, which is a share of it; its bytes are in a cell, to which nobody makes references.
        let mr =
            unsafe { pd.register(address, length, address as u64, MrAccess::LOCAL_WRITE, page.clone()) }?;
        Letterbox::new(pd, cq, 0, Some((mr, page)))
    }

    /// One that sends notices of up to so many bytes, and takes answers.
    pub(crate) fn sending(pd: &Pd, cq: &Cq, inline: u32) -> Result<Letterbox, VerbsError> {
        Letterbox::new(pd, cq, inline, None)
    }

    fn new(pd: &Pd, cq: &Cq, inline: u32, memory: Option<(Mr, Arc<Page>)>) -> Result<Letterbox, VerbsError> {
        let caps = QpCaps {
            max_send_wr: SENDS,
            max_recv_wr: NOTICES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        let qp = pd.create_qp(caps, cq, cq, None)?;
        let inline = (qp.caps().max_inline_data as usize).min(MAX_NOTICE_BYTES);
        Ok(Letterbox { qp: Some(qp), memory, posted: [false; NOTICES], inline })
    }

    pub(crate) fn qp(&self) -> Option<&Qp> {
        self.qp.as_ref()
    }

    /// The most bytes of a SEND.
    pub(crate) fn inline(&self) -> usize {
        self.inline
    }

    /// Posts the receive of a place, unless it is posted.
    pub(crate) fn post(&mut self, place: usize, wr_id: u64) -> Result<(), Errno> {
        let (Some(qp), Some(posted)) = (&self.qp, self.posted.get_mut(place)) else {
            return Err(Errno::EINVAL);
        };
        if *posted {
            return Ok(());
        }
        let range = self.memory.as_ref().map(|(mr, _)| {
            let address = mr.iova() + (place * MAX_NOTICE_BYTES) as u64;
            ibv_sge { addr: address, length: MAX_NOTICE_BYTES as u32, lkey: mr.lkey() }
        });
        let (mut sge, ranges) = (range.unwrap_or_default(), i32::from(range.is_some()));
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &mut sge, num_sge: ranges };
        let mut bad = null_mut();
        // SAFETY: the chain of one and its range live for the call. The range is a place of our page, which is kept until the QP is gone, and which
        // nobody reads while `posted` says that it is the device's.
        Errno::check(unsafe { qp.post_recv(&mut wr, &mut bad) })?;
        *posted = true;
        Ok(())
    }

    /// What came by the receive of a place; none where none is posted, and where the CQE says something else. The place is free then.
    pub(crate) fn take(&mut self, place: usize, wc: &Wc) -> Option<(Parcel, u32)> {
        let number = self.qp.as_ref()?.number();
        let posted = self.posted.get_mut(place).filter(|posted| **posted)?;
        let completion = wc.completion();
        let Ok(Done::Receive { bytes, imm: Some(word) }) = completion.result else { return None };
        if completion.qp_num != number {
            return None;
        }
        *posted = false;
        let mut parcel = Parcel { bytes: [0; MAX_NOTICE_BYTES], length: 0 };
        if let Some((_, page)) = &self.memory {
            parcel.length = (bytes as usize).min(MAX_NOTICE_BYTES);
            // SAFETY: the place is one of the page, and its receive is over by the CQE: the device writes there no more, and we post it again only
            // by `post`, which has us exclusively as this has.
            unsafe {
                let from = page.0.get().cast::<u8>().add(place * MAX_NOTICE_BYTES);
                std::ptr::copy_nonoverlapping(from, parcel.bytes.as_mut_ptr(), parcel.length);
            }
        }
        Some((parcel, word))
    }

    /// Sends so many bytes, of which there may be none, with a word. They are the caller's again when this returns.
    pub(crate) fn send(&self, bytes: &[u8], word: u32, wr_id: u64) -> Result<(), Errno> {
        let Some(qp) = self.qp.as_ref().filter(|_| bytes.len() <= self.inline) else {
            return Err(Errno::EINVAL);
        };
        let mut sge = ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
        let mut wr = ibv_send_wr {
            wr_id,
            opcode: ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        if !bytes.is_empty() {
            (wr.sg_list, wr.num_sge) = (&mut sge, 1);
            wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
        wr.__bindgen_anon_1.imm_data = word.to_be();
        let mut bad = null_mut();
        // SAFETY: the chain of one and its range live for the call, by which the bytes are taken (`IBV_SEND_INLINE`); without bytes no memory is named.
        Errno::check(unsafe { qp.post_send(&mut wr, &mut bad) })
    }

    /// Destroys the QP. None: it is gone, and all its WRs with it; otherwise where to look for it, with the memory.
    pub(crate) fn end(&mut self) -> Option<Ticket> {
        let memory = self.memory.take();
        self.qp.take()?.destroy_keeping(memory).err().map(|not_freed| not_freed.ticket)
    }
}

impl Drop for Letterbox {
    fn drop(&mut self) {
        // What can't be destroyed is on the device's list, with the memory.
        self.end();
    }
}

impl std::fmt::Debug for Letterbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Letterbox").field("qp", &self.qp).finish_non_exhaustive()
    }
}
