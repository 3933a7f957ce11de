//! An anonymous mapping and its prefaulting. Rule: the mapping is unmapped once, when its owner is dropped.

use std::io;
use std::ptr::NonNull;
use std::thread;

const HUGE_BYTES: usize = 2 * 1024 * 1024;
/// Threads get at least this much to touch, so that a small buffer does not start any.
const PREFAULT_MIN_BYTES: usize = 16 * 1024 * 1024;

/// An owned range of anonymous, zeroed memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// What was mapped, which may begin before `base`.
    start: NonNull<libc::c_void>,
    mapped: usize,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is a range of addresses that belongs to the process, not to a thread; this type gives out no
// references to its bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, and for `huge` aligns them to 2 MiB and advises huge pages.
    pub(crate) fn anonymous(len: usize, huge: bool) -> io::Result<Mapping> {
        let slack = if huge { HUGE_BYTES } else { 0 };
        let mapped = len.checked_add(slack).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a new anonymous private mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(start) = NonNull::new(start) else {
            return Err(io::Error::other("the kernel mapped the null page"));
        };
        let lead = if huge { start.as_ptr().cast::<u8>().align_offset(HUGE_BYTES) } else { 0 };
        // SAFETY: `lead` is under HUGE_BYTES, and the mapping is HUGE_BYTES longer than `len` when `lead` is not zero.
        let base = unsafe { start.cast::<u8>().add(lead) };
        if huge {
            // SAFETY: the range is inside the mapping just made; the advice changes no contents. A kernel without huge
            // pages answers EINVAL, and plain pages serve as well.
            unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        Ok(Mapping { start, mapped, base, len })
    }

    /// Makes every page present, with this many threads at most.
    pub(crate) fn prefault(&self, threads: usize) -> io::Result<()> {
        if threads == 0 {
            return Ok(());
        }
        let threads = threads.min(self.len.div_ceil(PREFAULT_MIN_BYTES));
        let share = self.len.div_ceil(threads).next_multiple_of(HUGE_BYTES);
        thread::scope(|scope| {
            let jobs: Vec<_> = (0..threads)
                .map(|k| {
                    let from = (k * share).min(self.len);
                    let to = ((k + 1) * share).min(self.len);
                    // Not `scope.spawn`: it panics when the system gives no thread.
                    thread::Builder::new().spawn_scoped(scope, move || self.populate(from, to))
                })
                .collect();
            jobs.into_iter().try_for_each(|job| {
                job?.join().unwrap_or_else(|_| Err(io::Error::other("a prefaulting thread panicked")))
            })
        })
    }

    fn populate(&self, from: usize, to: usize) -> io::Result<()> {
        if from >= to {
            return Ok(());
        }
        let page = 4096;
        let begin = self.base.as_ptr().wrapping_add(from);
        let lead = begin.addr() % page;
        let begin = begin.wrapping_sub(lead);
        // SAFETY: the range, rounded down to its page, is inside the mapping; populating changes no contents.
        let rc = unsafe { libc::madvise(begin.cast(), to - from + lead, libc::MADV_POPULATE_WRITE) };
        if rc == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        // A kernel before 5.14 does not know the advice: touch one byte a page.
        for at in (from..to).step_by(page) {
            // SAFETY: `at` is under `len`, so the byte is inside the mapping; nobody else has its address yet.
            unsafe { self.base.as_ptr().add(at).write_volatile(0) };
        }
        Ok(())
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `anonymous` and is unmapped nowhere else; whoever held its address gave it
        // up before the owner could be dropped.
        let rc = unsafe { libc::munmap(self.start.as_ptr(), self.mapped) };
        debug_assert_eq!(rc, 0, "munmap of an own mapping fails only for bad arguments");
    }
}
