//! A protection domain. Rule: MRs, MWs, SRQs and QPs are made here, and hold it.

#![allow(unsafe_code)]

use super::context::Context;
use super::mr::Mr;
use super::mw::Mw;
use super::owner::{Owner, Ptr};
use super::qp::Qp;
use super::retention::Raw;
use super::srq::Srq;
use super::{Cq, QpCaps};
use crate::access::MrAccess;
use crate::error::VerbsError;
use crate::verb::Verb;
use ibverbs_sys::ibv_pd;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A protection domain. Cheap to clone.
#[derive(Clone)]
pub struct Pd {
    inner: Arc<Inner>,
}

struct Inner {
    /// First: it is dropped before the context below.
    _owner: Owner<Context>,
    raw: Ptr<ibv_pd>,
    context: Context,
}

impl Pd {
    pub(super) fn new(context: &Context) -> Result<Pd, VerbsError> {
        // SAFETY: the context is open as long as we have it.
        let raw = unsafe { context.verbs().alloc_pd(context.raw()) };
        let raw = raw.map_err(|errno| context.error(Verb::AllocPd, errno))?;
        // SAFETY: made just now, for us.
        let owner = unsafe { context.own(Raw::Pd(raw), context.clone()) };
        Ok(Pd { inner: Arc::new(Inner { _owner: owner, raw: Ptr(raw), context: context.clone() }) })
    }

    /// The device it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Registers `length` bytes at `address`, which peers then name by addresses from `iova` on. `backing` is kept until the device has
    /// let go of the memory, also when the MR has to be retained.
    ///
    /// # Errors
    /// What the call gave; `ENOMEM` comes with the limit of locked memory, where there is one.
    ///
    /// # Safety
    /// The range stays mapped as long as `backing` lives, and as Rust sees it bytes may change in it at any time that `access` allows.
    pub unsafe fn register(
        &self,
        address: *mut u8,
        length: usize,
        iova: u64,
        access: MrAccess,
        backing: impl Send + Sync + 'static,
    ) -> Result<Mr, VerbsError> {
        // SAFETY: the caller's promise.
        unsafe { Mr::register(self, address, length, iova, access, Box::new(backing)) }
    }

    /// Registers memory of another device by its dma-buf, as [`Pd::register`].
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the device or the kernel can't; what the call gave.
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: MrAccess,
        backing: impl Send + Sync + 'static,
    ) -> Result<Mr, VerbsError> {
        Mr::register_dmabuf(self, fd, offset, length, iova, access, Box::new(backing))
    }

    /// Makes a memory window of type 2.
    ///
    /// # Errors
    /// What the call gave.
    pub fn alloc_mw(&self) -> Result<Mw, VerbsError> {
        Mw::new(self)
    }

    /// Makes a queue of receives for several QPs.
    ///
    /// # Errors
    /// What the call gave.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq, VerbsError> {
        Srq::new(self, max_wr, max_sge)
    }

    /// Makes a reliable connected QP, in the state RESET. WRs have a CQE only where they ask for one.
    ///
    /// # Errors
    /// What the call gave.
    pub fn create_qp(
        &self,
        caps: QpCaps,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: Option<&Srq>,
    ) -> Result<Qp, VerbsError> {
        Qp::new(self, caps, send_cq, recv_cq, srq)
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.inner.raw.get()
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("device", &self.context().name()).finish_non_exhaustive()
    }
}
