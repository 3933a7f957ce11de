//! What one QP has been given and has not yet told the end of. Rule: each WR leaves it once, with its own CQE, with a later one that
//! succeeded, or with the QP.
//!
//! A WR whose completion is not signalled is over when a later one of the same QP is (InfiniBand Architecture Specification, volume 1,
//! 10.8.6): WRs of an RC QP complete in order. So only some are signalled; one that fails gives a CQE in any case.

use crate::ops::OpSlot;

/// A WR under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Posted {
    /// For which op.
    pub(crate) op: OpSlot,
    /// How many bytes it moves.
    pub(crate) bytes: u32,
}

/// The WRs of a QP, oldest first.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: Box<[Posted]>,
    /// The numbers of the oldest WR and of the next one; they wrap.
    oldest: u32,
    next: u32,
}

impl SendQueue {
    /// One for so many WRs.
    pub(crate) fn new(depth: u32) -> SendQueue {
        let none = Posted { op: OpSlot::NONE, bytes: 0 };
        // A power of two, so that numbers may wrap.
        SendQueue { ring: vec![none; depth.next_power_of_two() as usize].into(), oldest: 0, next: 0 }
    }

    /// How many are under way.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.next.wrapping_sub(self.oldest)
    }

    /// Whether none is.
    pub(crate) fn is_empty(&self) -> bool {
        self.oldest == self.next
    }

    /// The number of the WR that is pushed next.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.next
    }

    /// A WR is posted. There is room for it: at most as many are under way as [`SendQueue::new`] was told.
    #[inline]
    pub(crate) fn push(&mut self, posted: Posted) {
        let mask = self.ring.len() as u32 - 1;
        debug_assert!(self.len() <= mask, "more work requests than the queue holds");
        self.ring[(self.next & mask) as usize] = posted;
        self.next = self.next.wrapping_add(1);
    }

    /// The end of the queue, where several are pushed one after the other.
    #[inline]
    pub(crate) fn tail(&mut self) -> Tail<'_> {
        let SendQueue { ring, next, .. } = self;
        Tail { number: *next, mask: ring.len() as u32 - 1, ring, next }
    }

    /// The newest one was not posted after all.
    pub(crate) fn take_back(&mut self) -> Option<Posted> {
        if self.is_empty() {
            return None;
        }
        self.next = self.next.wrapping_sub(1);
        Some(self.ring[(self.next & (self.ring.len() as u32 - 1)) as usize])
    }

    /// Whether this WR is under way.
    pub(crate) fn holds(&self, number: u32) -> bool {
        number.wrapping_sub(self.oldest) < self.len()
    }

    /// Takes out those that are older than the one of this number, which is under way or the next one: the oldest first, in two slices.
    #[inline]
    pub(crate) fn take_before(&mut self, number: u32) -> [&[Posted]; 2] {
        let count = number.wrapping_sub(self.oldest).min(self.len()) as usize;
        let first = (self.oldest & (self.ring.len() as u32 - 1)) as usize;
        self.oldest = self.oldest.wrapping_add(count as u32);
        let (begin, end) = self.ring.split_at(first);
        [&end[..count.min(end.len())], &begin[..count.saturating_sub(end.len())]]
    }

    /// The number of the oldest one.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (!self.is_empty()).then_some(self.oldest)
    }

    /// Takes the oldest one out.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u32, Posted)> {
        if self.is_empty() {
            return None;
        }
        let (number, mask) = (self.oldest, self.ring.len() as u32 - 1);
        self.oldest = number.wrapping_add(1);
        Some((number, self.ring[(number & mask) as usize]))
    }
}

/// The end of a queue. What was pushed is in the queue once this is gone.
pub(crate) struct Tail<'a> {
    /// The number of the WR that is pushed next.
    pub(crate) number: u32,
    mask: u32,
    ring: &'a mut [Posted],
    next: &'a mut u32,
}

impl Tail<'_> {
    /// As [`SendQueue::push`].
    #[inline]
    pub(crate) fn push(&mut self, posted: Posted) {
        self.ring[(self.number & self.mask) as usize] = posted;
        self.number = self.number.wrapping_add(1);
    }
}

impl Drop for Tail<'_> {
    #[inline]
    fn drop(&mut self) {
        *self.next = self.number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn posted(bytes: u32) -> Posted {
        Posted { op: OpSlot::NONE, bytes }
    }

    proptest! {
        /// Whatever comes, is taken back and goes, each leaves once and in order, also where the numbers wrap.
        #[test]
        fn work_requests_leave_once_and_in_order(depth in 1u32..40, steps in prop::collection::vec((0u32..50, 0u32..50, 0u32..4), 0..60)) {
            let mut queue = SendQueue::new(depth);
            (queue.oldest, queue.next) = (u32::MAX - 20, u32::MAX - 20);
            let (mut sent, mut left) = (0, 0);
            for (more, fewer, back) in steps {
                for _ in 0..more {
                    if queue.len() < depth {
                        let number = queue.number();
                        queue.push(posted(sent));
                        prop_assert!(queue.holds(number) && !queue.holds(queue.number()));
                        sent += 1;
                    }
                }
                for _ in 0..back {
                    if let Some(one) = queue.take_back() {
                        sent -= 1;
                        prop_assert_eq!(one.bytes, sent);
                        prop_assert!(!queue.holds(queue.number()));
                    }
                }
                let first = queue.oldest;
                for one in queue.take_before(first.wrapping_add(fewer / 2)).concat() {
                    prop_assert_eq!(one.bytes, left);
                    left += 1;
                }
                prop_assert!(queue.oldest == first || !queue.holds(first));
                for _ in 0..fewer {
                    if let Some((number, one)) = queue.pop() {
                        prop_assert_eq!(one.bytes, left);
                        prop_assert!(!queue.holds(number));
                        left += 1;
                    }
                }
                prop_assert_eq!(queue.len(), sent - left);
            }
        }
    }
}
