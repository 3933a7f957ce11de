//! A memory window of type 2: a key for a part of an MR that can be taken back without deregistering it. Rule: the MR stays as long as the
//! window may be bound to it.

#![allow(unsafe_code)]

use super::mr::Mr;
use super::owner::{Owner, Ptr};
use super::pd::Pd;
use super::retention::{NotFreed, Raw};
use crate::access::MrAccess;
use crate::error::VerbsError;
use crate::verb::Verb;
use ibverbs_sys::*;
use std::fmt;
use std::sync::Arc;

struct Keep {
    pd: Pd,
    bound: Option<Arc<Mr>>,
}

/// A memory window.
pub struct Mw {
    owner: Owner<Keep>,
    raw: Ptr<ibv_mw>,
    rkey: u32,
}

impl Mw {
    pub(super) fn new(pd: &Pd) -> Result<Mw, VerbsError> {
        let context = pd.context();
        // SAFETY: the PD is there as long as we have it.
        let raw = unsafe { context.verbs().alloc_mw(pd.raw(), IBV_MW_TYPE_2) };
        let raw = raw.map_err(|errno| context.error(Verb::AllocMw, errno))?;
        // SAFETY: made just now, for us.
        let owner = unsafe { context.own(Raw::Mw(raw), Keep { pd: pd.clone(), bound: None }) };
        // SAFETY: the MW is there.
        let rkey = unsafe { raw.as_ref().rkey };
        Ok(Mw { owner, raw: Ptr(raw), rkey })
    }

    /// The key that peers use, of the last bind.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The PD it belongs to.
    pub fn pd(&self) -> Option<&Pd> {
        self.owner.keep().map(|keep| &keep.pd)
    }

    /// The WR that binds it to a part of an MR, by a key that was not used just before ([`Mw::rkey`] from now on). Takes effect in the order
    /// of the QP it is posted to, and for that QP only. The MR is held until [`Mw::unbound`], another bind, or the window's end.
    ///
    /// A window that is bound must be invalidated before it is bound again. One whose bind was not posted, or failed, is of no more use.
    pub fn bind_wr(
        &mut self,
        wr_id: u64,
        mr: &Arc<Mr>,
        address: u64,
        length: u64,
        access: MrAccess,
    ) -> ibv_send_wr {
        // Providers read the present key from the window itself, and leave it to us to keep it there.
        // SAFETY: the window is there as long as we have it, and nobody else reads or writes this member meanwhile: `self` is exclusive.
        unsafe { (*self.raw.get()).rkey = self.rkey };
        // The lower 8 bits are the consumer's.
        self.rkey = (self.rkey & !0xff) | (self.rkey.wrapping_add(1) & 0xff);
        if let Some(keep) = self.owner.keep_mut() {
            keep.bound = Some(mr.clone());
        }
        let mut wr = ibv_send_wr { wr_id, opcode: ibv_wr_opcode::IBV_WR_BIND_MW, ..Default::default() };
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let bind_info =
            ibv_mw_bind_info { mr: mr.raw(), addr: address, length, mw_access_flags: access.bits() };
        wr.__bindgen_anon_2.bind_mw =
            ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: self.raw.get(), rkey: self.rkey, bind_info };
        wr
    }

    /// The WR that takes the key back. Once it has completed, no access by that key begins any more: then call [`Mw::unbound`].
    pub fn invalidate_wr(&self, wr_id: u64) -> ibv_send_wr {
        let mut wr = ibv_send_wr { wr_id, opcode: ibv_wr_opcode::IBV_WR_LOCAL_INV, ..Default::default() };
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        wr.__bindgen_anon_1.invalidate_rkey = self.rkey;
        wr
    }

    /// Lets go of the MR, when it is known that the window is not bound: after an invalidation or the end of its QP.
    pub fn unbound(&mut self) {
        if let Some(keep) = self.owner.keep_mut() {
            keep.bound = None;
        }
    }

    /// Frees it, bound or not, and says whether that worked.
    ///
    /// # Errors
    /// The window, its PD and its MR are retained.
    pub fn dealloc(self) -> Result<(), NotFreed> {
        self.owner.free()
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mw").finish_non_exhaustive()
    }
}
