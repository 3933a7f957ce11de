//! The completions of one rail of one transport: a CQ, and the channel that tells of it. Rule: no more WRs can be under way than the CQ holds
//! CQEs, so that it never overflows.

use crate::adapter::Adapter;
use crate::completion::Wc;
use crate::error::VerbsError;
use crate::handle::{Channel, Cq};
use std::os::fd::{AsFd, BorrowedFd};

/// CQEs of one CQ at most. Each takes 64 bytes.
const MOST_CQES: u32 = 16 * 1024;

#[derive(Debug)]
pub(crate) struct RailQueue {
    pub(crate) cq: Cq,
    channel: Channel,
    /// WRs that lanes may still be promised.
    free: u32,
}

impl RailQueue {
    pub(crate) fn new(adapter: &Adapter, vector: u32) -> Result<RailQueue, VerbsError> {
        let context = adapter.pd.context();
        let channel = context.create_channel()?;
        let cqes = MOST_CQES.min(adapter.limits.max_cqe).max(1);
        let cq = context.create_cq(cqes, Some(&channel), vector % context.completion_vectors().max(1))?;
        let free = cq.capacity();
        let queue = RailQueue { cq, channel, free };
        queue.arm()?;
        Ok(queue)
    }

    /// Promises room for the CQEs of so many WRs; false when there is none.
    pub(crate) fn promise(&mut self, wrs: u32) -> bool {
        match self.free.checked_sub(wrs) {
            Some(left) => {
                self.free = left;
                true
            }
            None => false,
        }
    }

    /// Takes a promise back.
    pub(crate) fn release(&mut self, wrs: u32) {
        self.free += wrs;
    }

    /// Takes CQEs; how many.
    pub(crate) fn poll(&self, into: &mut [Wc]) -> Result<usize, VerbsError> {
        self.cq.poll(into)
    }

    /// Takes the events that came, and asks for the next one.
    pub(crate) fn arm(&self) -> Result<(), VerbsError> {
        while self.channel.next_event()?.is_some() {}
        self.cq.arm(false)
    }

    /// What becomes readable with an event.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
