//! A completion queue. Rule: polled into places of the caller's, without allocating.

#![allow(unsafe_code)]

use super::channel::Channel;
use super::context::Context;
use super::owner::{Owner, Ptr};
use super::retention::Raw;
use crate::completion::Wc;
use crate::error::{Errno, VerbsError};
use crate::verb::Verb;
use ibverbs_sys::ibv_cq;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Inner {
    owner: Owner<(Context, Option<Channel>)>,
    raw: Ptr<ibv_cq>,
    cookie: u64,
    context: Context,
}

/// A completion queue. Cheap to clone.
#[derive(Clone)]
pub struct Cq {
    inner: Arc<Inner>,
}

/// A number for an object that events name; never reused in this process.
pub(super) fn next_cookie() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Cq {
    pub(super) fn new(
        context: &Context,
        cqe: u32,
        channel: Option<&Channel>,
        vector: u32,
    ) -> Result<Cq, VerbsError> {
        let cookie = next_cookie();
        let raw_channel = channel.map_or(std::ptr::null_mut(), Channel::raw);
        // SAFETY: context and channel are there as long as we have them.
        let raw = unsafe { context.verbs().create_cq(context.raw(), cqe, cookie, raw_channel, vector) };
        let raw = raw.map_err(|errno| {
            VerbsError::new(Verb::CreateCq, format!("{}: {cqe} CQEs, vector {vector}", context.name()), errno)
        })?;
        // SAFETY: made just now, for us.
        let owner = unsafe { context.own(Raw::Cq(raw), (context.clone(), channel.cloned())) };
        Ok(Cq { inner: Arc::new(Inner { owner, raw: Ptr(raw), cookie, context: context.clone() }) })
    }

    /// The number by which events name it.
    pub fn cookie(&self) -> u64 {
        self.inner.cookie
    }

    /// How many CQEs it takes; at least as many as were asked for.
    pub fn capacity(&self) -> u32 {
        // SAFETY: the CQ is there as long as we have it; the number never changes, as nobody here resizes it.
        unsafe { (*self.raw()).cqe }.max(0) as u32
    }

    /// Takes CQEs, at most as many as there are places, and gives how many.
    ///
    /// # Errors
    /// The CQ or its device is broken.
    #[inline]
    pub fn poll(&self, into: &mut [Wc]) -> Result<usize, VerbsError> {
        let most = into.len().min(i32::MAX as usize) as i32;
        // SAFETY: the CQ is there as long as we have it; a `Wc` is laid out as what verbs fill, and there are so many.
        let got = unsafe { self.inner.owner.verbs().poll_cq(self.raw(), most, into.as_mut_ptr().cast()) };
        if got >= 0 { Ok(got as usize) } else { Err(self.poll_error(got)) }
    }

    #[cold]
    fn poll_error(&self, got: i32) -> VerbsError {
        self.inner.context.error(Verb::PollCq, Errno::check(got).err().unwrap_or(Errno::EIO))
    }

    /// Asks for one event of the channel at the next CQE. CQEs that are there already give none: poll again after this, before waiting.
    ///
    /// # Errors
    /// What the call gave.
    pub fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        // SAFETY: the CQ is there as long as we have it.
        let got = unsafe { self.inner.owner.verbs().req_notify_cq(self.raw(), solicited_only) };
        Errno::check(got).map_err(|errno| self.inner.context.error(Verb::ReqNotifyCq, errno))
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.inner.raw.get()
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("cookie", &self.cookie()).finish_non_exhaustive()
    }
}
