//! A peer's memory, mapped into this process. Rule: it is unmapped once, when nobody copies any more; a file that could be cut short is
//! refused, so that no touch can end the process.

use crate::sys::gates::must_be_sealed;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

const PAGE_BYTES: u64 = 4096;
/// Pages are made present by this many bytes at a time.
const GRANULE_BYTES: u64 = 256 * 1024;

/// A mapped region.
#[derive(Debug)]
pub(crate) struct Window {
    start: NonNull<libc::c_void>,
    mapped: usize,
    /// From `start` to the region's first byte.
    lead: u64,
    length: u64,
    writable: bool,
    /// A bit for each granule whose pages are present.
    present: Vec<u64>,
    prepared: Duration,
}

// SAFETY: a mapping belongs to the process, not to a thread; no references to its bytes are given out.
unsafe impl Send for Window {}

impl Window {
    /// Maps `length` bytes of a file from `begin` on.
    pub(crate) fn map(file: &OwnedFd, begin: u64, length: u64, writable: bool) -> io::Result<Window> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the region does not fit into its file");
        let end = begin.checked_add(length).filter(|_| length > 0).ok_or_else(invalid)?;
        must_be_sealed(file, end)?;
        let lead = begin % PAGE_BYTES;
        let mapped = usize::try_from(lead + length).map_err(|_| invalid())?;
        let first = i64::try_from(begin - lead).map_err(|_| invalid())?;
        let rights = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped, rights, libc::MAP_SHARED, file.as_raw_fd(), first)
        };
        let start = match NonNull::new(start) {
            Some(at) if start != libc::MAP_FAILED => at,
            _ => return Err(io::Error::last_os_error()),
        };
        // SAFETY: the range was just mapped; the advice changes no contents. A child that is forked has no business in it, and would keep
        // the peer's memory alive.
        unsafe { libc::madvise(start.as_ptr(), mapped, libc::MADV_DONTFORK) };
        let granules = (lead + length).div_ceil(GRANULE_BYTES);
        let present = vec![0; granules.div_ceil(64) as usize];
        Ok(Window { start, mapped, lead, length, writable, present, prepared: Duration::ZERO })
    }

    /// The address of a range of the region; none outside of it. Good while the window lives.
    pub(crate) fn range(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        (end <= self.length)
            .then(|| self.start.as_ptr().cast::<u8>().wrapping_add((self.lead + offset) as usize))
    }

    /// Makes the pages present that a copy of this range touches, and their neighbours: a fault for each would cost three times as much, and
    /// each first use of a page again.
    pub(crate) fn expect(&mut self, offset: u64, length: u64) {
        let (from, to) = (self.lead + offset, self.lead + offset + length);
        let (mut granule, end) = (from / GRANULE_BYTES, to.div_ceil(GRANULE_BYTES));
        while granule < end {
            let first = granule;
            while granule < end && !self.is_present(granule) {
                self.present[(granule / 64) as usize] |= 1 << (granule % 64);
                granule += 1;
            }
            if granule > first {
                self.populate(first * GRANULE_BYTES, (granule * GRANULE_BYTES).min(self.lead + self.length));
            }
            granule += 1;
        }
    }

    fn populate(&mut self, from: u64, to: u64) {
        let begin = Instant::now();
        let advice = if self.writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        let at = self.start.as_ptr().cast::<u8>().wrapping_add(from as usize);
        // SAFETY: the range begins at a page and ends inside of the mapping or with its last page; the advice changes no contents. A kernel
        // that does not know it, or has no memory, leaves the pages to be made by the copy.
        unsafe { libc::madvise(at.cast(), (to - from) as usize, advice) };
        self.prepared += begin.elapsed();
    }

    /// Takes the time that pages have cost since it was asked last.
    pub(crate) fn take_prepared(&mut self) -> Duration {
        std::mem::take(&mut self.prepared)
    }

    fn is_present(&self, granule: u64) -> bool {
        self.present[(granule / 64) as usize] & (1 << (granule % 64)) != 0
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, unmapped nowhere else; addresses of it are used only while the window lives.
        unsafe { libc::munmap(self.start.as_ptr(), self.mapped) };
    }
}
