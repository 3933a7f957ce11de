//! A completion channel. Rule: its descriptor never waits, and its events are given back at once, so no CQ waits for them.

#![allow(unsafe_code)]

use super::context::Context;
use super::owner::{Owner, Ptr};
use super::retention::Raw;
use crate::error::{Errno, VerbsError};
use crate::sys::set_nonblocking;
use crate::verb::Verb;
use ibverbs_sys::ibv_comp_channel;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

struct Inner {
    _owner: Owner<Context>,
    raw: Ptr<ibv_comp_channel>,
    context: Context,
}

/// A completion channel. Cheap to clone.
#[derive(Clone)]
pub struct Channel {
    inner: Arc<Inner>,
}

impl Channel {
    pub(super) fn new(context: &Context) -> Result<Channel, VerbsError> {
        let error = |errno| context.error(Verb::CreateCompChannel, errno);
        // SAFETY: the context is open as long as we have it.
        let raw = unsafe { context.verbs().create_comp_channel(context.raw()) }.map_err(error)?;
        // SAFETY: made just now, for us.
        let owner = unsafe { context.own(Raw::Channel(raw), context.clone()) };
        let inner = Inner { _owner: owner, raw: Ptr(raw), context: context.clone() };
        let channel = Channel { inner: Arc::new(inner) };
        set_nonblocking(channel.as_raw_fd()).map_err(error)?;
        Ok(channel)
    }

    /// Takes the next event, if one is there, and gives the [`super::Cq::cookie`] of its CQ. That CQ must be armed again to have another.
    ///
    /// # Errors
    /// What the call gave.
    pub fn next_event(&self) -> Result<Option<u64>, VerbsError> {
        let context = &self.inner.context;
        // SAFETY: the channel is there as long as we have it.
        match unsafe { context.verbs().get_cq_event(self.raw()) } {
            Ok((cq, cookie)) => {
                // SAFETY: the event was taken just now and is given back once; until then the CQ can't be destroyed.
                unsafe { context.verbs().ack_cq_events(cq.as_ptr(), 1) };
                Ok(Some(cookie))
            }
            Err(Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(context.error(Verb::GetCqEvent, errno)),
        }
    }

    pub(super) fn raw(&self) -> *mut ibv_comp_channel {
        self.inner.raw.get()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is there as long as we have it.
        unsafe { self.inner.context.verbs().comp_channel_fd(self.raw()) }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the channel's, and open as long as we have that.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("device", &self.inner.context.name()).finish_non_exhaustive()
    }
}
