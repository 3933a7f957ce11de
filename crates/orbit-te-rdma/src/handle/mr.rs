//! A memory region. Rule: the memory behind it is let go only when the device has let go of it.

#![allow(unsafe_code)]

use super::owner::{Owner, Ptr};
use super::pd::Pd;
use super::retention::{NotFreed, Raw};
use crate::access::MrAccess;
use crate::error::{Errno, VerbsError};
use crate::sys::memlock_limit;
use crate::verb::Verb;
use ibverbs_sys::ibv_mr;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

type Backing = Box<dyn Send + Sync>;

/// A memory region.
pub struct Mr {
    /// Deregisters, then drops the PD and the backing, in this order.
    owner: Owner<(Pd, Backing)>,
    raw: Ptr<ibv_mr>,
    lkey: u32,
    rkey: u32,
    iova: u64,
    length: usize,
    access: MrAccess,
}

impl Mr {
    /// # Safety
    /// As [`Pd::register`].
    pub(super) unsafe fn register(
        pd: &Pd,
        address: *mut u8,
        length: usize,
        iova: u64,
        access: MrAccess,
        backing: Backing,
    ) -> Result<Mr, VerbsError> {
        // SAFETY: the PD is there as long as we have it; the memory stays mapped by the caller's promise, because the owner below keeps the
        // backing until the MR is gone.
        let raw = unsafe { pd.context().verbs().reg_mr(pd.raw(), address, length, iova, access) };
        Mr::took(pd, Verb::RegMr, raw, length, iova, access, backing)
    }

    pub(super) fn register_dmabuf(
        pd: &Pd,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: MrAccess,
        backing: Backing,
    ) -> Result<Mr, VerbsError> {
        // SAFETY: the PD is there as long as we have it; the kernel holds the memory of a dma-buf itself.
        let raw = unsafe {
            pd.context().verbs().reg_dmabuf_mr(pd.raw(), offset, length, iova, fd.as_raw_fd(), access)
        };
        Mr::took(pd, Verb::RegDmabufMr, raw, length, iova, access, backing)
    }

    fn took(
        pd: &Pd,
        verb: Verb,
        raw: Result<NonNull<ibv_mr>, Errno>,
        length: usize,
        iova: u64,
        access: MrAccess,
        backing: Backing,
    ) -> Result<Mr, VerbsError> {
        let context = pd.context();
        let raw = raw.map_err(|errno| {
            let on = format!("{}: {length} bytes, {access:?}", context.name());
            VerbsError::new(verb, on, errno).with_remedy(remedy(errno, length))
        })?;
        // SAFETY: made just now, for us.
        let owner = unsafe { context.own(Raw::Mr(raw), (pd.clone(), backing)) };
        // SAFETY: the MR is there; its keys never change.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Ok(Mr { owner, raw: Ptr(raw), lkey, rkey, iova, length, access })
    }

    /// The key by which local WRs use it.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key by which peers use it.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The address of its first byte, as peers and WRs name it.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// What may be done with it.
    pub fn access(&self) -> MrAccess {
        self.access
    }

    /// Ends the registration, and says whether that worked. As dropping it does, but the answer is heard.
    ///
    /// # Errors
    /// The MR, its PD and its memory are retained.
    pub fn deregister(self) -> Result<(), NotFreed> {
        self.owner.free()
    }

    pub(super) fn raw(&self) -> *mut ibv_mr {
        self.raw.get()
    }
}

/// What helps against an errno of a registration.
fn remedy(errno: Errno, length: usize) -> Option<String> {
    match (errno, memlock_limit()) {
        (Errno::ENOMEM | Errno::EAGAIN, Some(limit)) => Some(format!(
            "this process may lock {limit} bytes of memory, and {length} more were asked for: raise it (`ulimit -l unlimited`, \
             `LimitMEMLOCK=infinity` of the unit, `--ulimit memlock=-1` of the container)"
        )),
        (Errno::EFAULT, _) => Some("the range is not mapped, or not with these rights".to_string()),
        _ => None,
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("iova", &self.iova)
            .field("length", &self.length)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
