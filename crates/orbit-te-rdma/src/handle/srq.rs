//! A queue of receives for several QPs.

#![allow(unsafe_code)]

use super::cq::next_cookie;
use super::owner::{Owner, Ptr};
use super::pd::Pd;
use super::retention::Raw;
use crate::error::VerbsError;
use crate::verb::Verb;
use ibverbs_sys::*;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::Arc;

struct Inner {
    owner: Owner<Pd>,
    raw: Ptr<ibv_srq>,
    cookie: u64,
}

/// A shared receive queue. Cheap to clone.
#[derive(Clone)]
pub struct Srq {
    inner: Arc<Inner>,
}

impl Srq {
    pub(super) fn new(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Srq, VerbsError> {
        let cookie = next_cookie();
        let mut attr = ibv_srq_init_attr {
            srq_context: cookie as usize as *mut c_void,
            attr: ibv_srq_attr { max_wr, max_sge, srq_limit: 0 },
        };
        let context = pd.context();
        // SAFETY: the PD is there as long as we have it.
        let raw = unsafe { context.verbs().create_srq(pd.raw(), &mut attr) };
        let raw = raw.map_err(|errno| {
            VerbsError::new(
                Verb::CreateSrq,
                format!("{}: {max_wr} WRs of {max_sge} SGEs", context.name()),
                errno,
            )
        })?;
        // SAFETY: made just now, for us.
        let owner = unsafe { context.own(Raw::Srq(raw), pd.clone()) };
        Ok(Srq { inner: Arc::new(Inner { owner, raw: Ptr(raw), cookie }) })
    }

    /// The number by which events name it.
    pub fn cookie(&self) -> u64 {
        self.inner.cookie
    }

    /// Posts a chain of receives: 0 or an errno, and then `bad` is the first that was not posted.
    ///
    /// # Safety
    /// The chain and its SGEs are valid during the call. The memory of the SGEs is nobody else's until the WR has completed or all QPs of the
    /// SRQ are destroyed.
    #[inline]
    pub unsafe fn post_recv(&self, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
        // SAFETY: the SRQ is there as long as we have it; the rest is the caller's promise.
        unsafe { self.inner.owner.verbs().post_srq_recv(self.raw(), wr, bad) }
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.inner.raw.get()
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq").field("cookie", &self.cookie()).finish_non_exhaustive()
    }
}
