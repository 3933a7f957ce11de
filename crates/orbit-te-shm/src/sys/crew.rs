//! Threads that help with large copies: they copy parts while a call lasts, and sleep otherwise. Rule: a part is taken for one copy and no
//! other, and the copy ends only when every part that was taken is copied; so nothing is touched after it.

use crate::sys::copy::{Method, copy};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// What one thread copies at a time.
const PART_BYTES: usize = 256 * 1024;

/// Helpers, and the board where they find their work.
#[derive(Debug)]
pub(crate) struct Crew {
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Board {
    job: Mutex<Job>,
    called: Condvar,
    /// The number of the copy in the high half, and its next part in the low half: a part of another copy can't be taken.
    next: AtomicU64,
    /// Parts of the copy that are copied.
    done: AtomicUsize,
    stop: AtomicBool,
}

/// A copy, by addresses: whoever takes a part may use them until it has counted the part as done.
#[derive(Debug, Clone, Copy, Default)]
struct Job {
    number: u32,
    to: usize,
    from: usize,
    length: usize,
}

impl Job {
    fn parts(&self) -> usize {
        self.length.div_ceil(PART_BYTES)
    }
}

impl Crew {
    /// So many helpers, or as many of them as the system gives; none if it gives none.
    pub(crate) fn new(helpers: usize) -> Option<Crew> {
        let board = Arc::<Board>::default();
        let start = |n| {
            let board = board.clone();
            thread::Builder::new().name(format!("orbit-te-copy-{n}")).spawn(move || board.help()).ok()
        };
        let threads: Vec<_> = (0..helpers).map_while(start).collect();
        (!threads.is_empty()).then_some(Crew { board, threads })
    }

    /// Copies bytes, past the caches, with the help of the crew.
    ///
    /// # Safety
    /// As [`copy`] with [`Method::Streaming`].
    pub(crate) unsafe fn copy(&mut self, to: *mut u8, from: *const u8, length: usize) {
        let board = &*self.board;
        let job = {
            let mut job = board.job.lock().unwrap_or_else(PoisonError::into_inner);
            *job = Job { number: job.number.wrapping_add(1), to: to as usize, from: from as usize, length };
            board.done.store(0, Ordering::Release);
            // From here on parts can be taken.
            board.next.store(u64::from(job.number) << 32, Ordering::Release);
            board.called.notify_all();
            *job
        };
        // SAFETY: the caller's promise, for this very copy.
        unsafe { board.take_parts(&job) };
        while board.done.load(Ordering::Acquire) < job.parts() {
            // A helper is at its last part, and may want this very CPU.
            thread::yield_now();
        }
    }
}

impl Board {
    /// Copies parts until none is left.
    ///
    /// # Safety
    /// The ranges of the copy are valid as long as parts of it can be taken, and until those that were are done.
    unsafe fn take_parts(&self, job: &Job) {
        let mut next = self.next.load(Ordering::Acquire);
        loop {
            let (number, part) = ((next >> 32) as u32, (next & 0xffff_ffff) as usize);
            if number != job.number || part >= job.parts() {
                return;
            }
            match self.next.compare_exchange_weak(next, next + 1, Ordering::AcqRel, Ordering::Acquire) {
                Err(now) => next = now,
                Ok(_) => {
                    let at = part * PART_BYTES;
                    let length = PART_BYTES.min(job.length - at);
                    let (to, from) = ((job.to + at) as *mut u8, (job.from + at) as *const u8);
                    // SAFETY: the part is this thread's alone, inside of both ranges, and not done yet, so they are valid.
                    unsafe { copy(to, from, length, Method::Streaming) };
                    self.done.fetch_add(1, Ordering::Release);
                    next = self.next.load(Ordering::Acquire);
                }
            }
        }
    }

    fn help(&self) {
        let mut last = 0;
        loop {
            let job = {
                let mut job = self.job.lock().unwrap_or_else(PoisonError::into_inner);
                while job.number == last && !self.stop.load(Ordering::Acquire) {
                    job = self.called.wait(job).unwrap_or_else(PoisonError::into_inner);
                }
                *job
            };
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            last = job.number;
            // SAFETY: a part is taken only while the number of its copy stands, and whoever made the copy waits for it.
            unsafe { self.take_parts(&job) };
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.board.stop.store(true, Ordering::Release);
        // Under the lock, so that nobody is between his look and his sleep.
        drop(self.board.job.lock().unwrap_or_else(PoisonError::into_inner));
        self.board.called.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One copy after the other, of memory that is freed right afterwards: all bytes are there, and nothing beside them.
    #[test]
    fn copies_are_whole() {
        if !Method::Streaming.is_there() {
            return;
        }
        let mut crew = Crew::new(3).unwrap();
        for round in 0..60usize {
            let length = PART_BYTES * (round % 9) + round * 37 + 1;
            let source: Vec<u8> = (0..length).map(|k| (k * 7 + round) as u8).collect();
            let mut target = vec![0xee; length + 2];
            // SAFETY: both ranges lie inside of vectors of their own.
            unsafe { crew.copy(target.as_mut_ptr().add(1), source.as_ptr(), length) };
            assert!(target[1..=length] == source[..], "round {round}");
            assert_eq!((target[0], target[length + 1]), (0xee, 0xee));
        }
    }
}
