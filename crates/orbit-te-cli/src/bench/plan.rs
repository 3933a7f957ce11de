//! Where the blocks of a point lie. Rule: pure arithmetic; both sides use the same offsets.

use super::OpName;
use crate::failure::Failure;
use crate::size::Size;

/// Buffers are of this size unless more is needed.
const BUFFER: u64 = 128 << 20;
/// And never larger.
const MOST: u64 = 4 << 30;

/// One point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) op: OpName,
    pub(crate) block: u64,
    pub(crate) batch: usize,
    pub(crate) depth: usize,
    pub(crate) threads: usize,
    /// Submissions of one thread until it comes round to its first place.
    pub(crate) slots: u64,
}

impl Plan {
    /// Fits a point into a buffer of this size, or into one of our own making.
    pub(crate) fn new(
        op: OpName,
        block: u64,
        batch: usize,
        depth: usize,
        threads: usize,
        buffer: Option<u64>,
    ) -> Result<Plan, Failure> {
        let mut plan = Plan { op, block, batch, depth, threads, slots: 1 };
        let least = plan.stride().saturating_mul(batch as u64 * threads as u64);
        let limit = buffer.unwrap_or(MOST);
        if least > limit {
            return Err(Failure::Usage(format!(
                "blocks of {} in batches of {batch} by {threads} thread(s) need {least} bytes on each side, more than the {limit} \
                 there are; take smaller blocks, batches or fewer threads",
                Size(block)
            )));
        }
        plan.slots = (limit.min(BUFFER) / least).max(1);
        Ok(plan)
    }

    /// From one block to the next.
    pub(crate) fn stride(&self) -> u64 {
        if self.batch > 1 { self.block.saturating_mul(2) } else { self.block }
    }

    /// Bytes of the buffer that one submission spans, gaps included.
    fn span(&self) -> u64 {
        self.stride() * self.batch as u64
    }

    /// Bytes of the buffer that all threads walk through.
    pub(crate) fn total(&self) -> u64 {
        self.span() * self.slots * self.threads as u64
    }

    /// Where a thread's range begins.
    pub(crate) fn base(&self, thread: usize) -> u64 {
        self.span() * self.slots * thread as u64
    }

    /// Where a thread's submission of this number begins.
    pub(crate) fn place(&self, thread: usize, submission: u64) -> u64 {
        self.base(thread) + submission % self.slots * self.span()
    }

    /// How many blocks of its range a thread has touched after so many submissions.
    pub(crate) fn touched(&self, submissions: u64) -> u64 {
        submissions.min(self.slots) * self.batch as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(block: u64, batch: usize, threads: usize, buffer: Option<u64>) -> Option<Plan> {
        Plan::new(OpName::Read, block, batch, 1, threads, buffer).ok()
    }

    #[test]
    fn blocks_fit_their_buffer_and_do_not_overlap() {
        for (block, batch, threads, buffer) in
            [(4096, 1, 1, None), (4096, 128, 3, None), (64 << 20, 1, 4, None), (513, 7, 2, Some(40_000))]
        {
            let plan = plan(block, batch, threads, buffer).unwrap();
            assert!(plan.total() <= buffer.unwrap_or(BUFFER.max(plan.total())));
            for thread in 0..threads {
                let last = plan.place(thread, plan.slots - 1) + plan.span();
                assert_eq!(last, plan.base(thread + 1));
                assert_eq!(plan.place(thread, plan.slots), plan.base(thread));
            }
            assert_eq!(plan.base(threads), plan.total());
        }
    }

    #[test]
    fn a_point_without_room_is_refused() {
        assert_eq!(plan(4096, 1, 1, Some(4095)), None);
        assert_eq!(plan(64 << 20, 128, 1, None), None);
        assert_eq!(plan(u64::MAX, 2, 2, None), None);
        assert_eq!(plan(4096, 1, 1, Some(4096)).unwrap().slots, 1);
    }
}
