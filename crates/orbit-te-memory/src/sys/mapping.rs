//! A mapping of new memory and its prefaulting. Rule: the mapping is unmapped once, when its owner is dropped.

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::ftruncate;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::thread;

/// The file in memory that other processes map, and what their mappings show up as.
const NAME: &str = "orbit-te";

const PAGE_BYTES: usize = 4096;
const HUGE_BYTES: usize = 2 * 1024 * 1024;
/// Threads get at least this much to touch, so that a small buffer does not start any.
const PREFAULT_MIN_BYTES: usize = 16 * 1024 * 1024;

/// An owned range of zeroed memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// What was mapped, which may begin before `base`.
    start: NonNull<libc::c_void>,
    mapped: usize,
    base: NonNull<u8>,
    len: usize,
}

/// Whether the kernel gives huge pages to files in memory. Looked up once: it is set when a host is set up.
pub(crate) fn shared_pages_may_be_huge() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let set = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        set.is_ok_and(|set| !set.contains("[never]") && !set.contains("[deny]"))
    })
}

/// A file in memory of at least `len` bytes whose length can't change any more: whoever maps it can rely on every byte.
fn sealed_file(len: usize) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag, and make no difference between the two.
    let file = memfd_create(NAME, flags | MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL))
        .or_else(|_| memfd_create(NAME, flags))?;
    let length = i64::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    ftruncate(&file, length)?;
    // A process of another user that is given it to read from could open it anew otherwise, to write.
    fchmod(&file, Mode::S_IRUSR | Mode::S_IWUSR)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

// SAFETY: a mapping is a range of addresses that belongs to the process, not to a thread; this type gives out no
// references to its bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of this process alone; for `huge`, aligned to 2 MiB and advised to have huge pages.
    pub(crate) fn anonymous(len: usize, huge: bool) -> io::Result<Mapping> {
        let slack = if huge { HUGE_BYTES } else { 0 };
        let mapped = len.checked_add(slack).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Mapping::new(map(mapped, None)?, mapped, len, huge)
    }

    /// Maps `len` bytes that other processes can map as well, given the file; aligned and advised as above.
    pub(crate) fn shared(len: usize, huge: bool) -> io::Result<(Mapping, OwnedFd)> {
        let whole = len.checked_next_multiple_of(PAGE_BYTES);
        let file = sealed_file(whole.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?)?;
        if !huge {
            return Ok((Mapping::new(map(len, Some(&file))?, len, len, false)?, file));
        }
        // Room first, then the file in its aligned middle: a file's own mapping can't be asked to be aligned.
        let place = Mapping::anonymous(len, true)?;
        // SAFETY: the range lies inside of a mapping that was just made and that nobody else has the address of; the file's pages
        // take the place of its own.
        let rc = unsafe {
            libc::mmap(
                place.base.as_ptr().cast(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED,
                file.as_raw_fd(),
                0,
            )
        };
        if rc == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        place.advise_huge();
        Ok((place, file))
    }

    fn new(start: NonNull<libc::c_void>, mapped: usize, len: usize, huge: bool) -> io::Result<Mapping> {
        let lead = if huge { start.as_ptr().cast::<u8>().align_offset(HUGE_BYTES) } else { 0 };
        // SAFETY: `lead` is under HUGE_BYTES, and the mapping is HUGE_BYTES longer than `len` when `lead` is not zero.
        let base = unsafe { start.cast::<u8>().add(lead) };
        let mapping = Mapping { start, mapped, base, len };
        if huge {
            mapping.advise_huge();
        }
        Ok(mapping)
    }

    fn advise_huge(&self) {
        // SAFETY: the range is inside the mapping; the advice changes no contents. A kernel without huge pages answers EINVAL, and
        // plain pages serve as well.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
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
        let begin = self.base.as_ptr().wrapping_add(from);
        let lead = begin.addr() % PAGE_BYTES;
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
        for at in (from..to).step_by(PAGE_BYTES) {
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

/// New memory at an address of the kernel's choice: this process's own, or of a file.
fn map(len: usize, file: Option<&OwnedFd>) -> io::Result<NonNull<libc::c_void>> {
    let (kind, fd) = match file {
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
    };
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            kind | libc::MAP_NORESERVE,
            fd,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start).ok_or_else(|| io::Error::other("the kernel mapped the null page"))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `anonymous` or `shared` and is unmapped nowhere else; whoever held its address gave it
        // up before the owner could be dropped.
        let rc = unsafe { libc::munmap(self.start.as_ptr(), self.mapped) };
        debug_assert_eq!(rc, 0, "munmap of an own mapping fails only for bad arguments");
    }
}
