//! Copies by the kernel between this process and another (`process_vm_readv`, `process_vm_writev`), and whether a process has ended.
//! Rule: addresses go to the kernel as numbers; what can't be touched is an error, never a fault of this process.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Ranges in one call: the kernel's own limit is 1,024 at each side.
pub(crate) const MOST_RANGES: usize = 64;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the other process into this one.
    Read,
    /// From this process into the other one.
    Write,
}

/// How long a look at a process counts. Numbers are given out in a circle, so that one does not come back before as many processes were made
/// as there are numbers: hundreds at the least, and each takes a processor some microseconds to make, to end and to be waited for.
const LOOK: Duration = Duration::from_micros(100);

/// Another process, by its number here; or this one.
#[derive(Debug)]
pub(crate) struct Process {
    pid: i32,
    /// Tells when it has ended, so that its number is not used when it may be another's.
    watch: Option<OwnedFd>,
    /// When it was last seen not to have ended.
    seen: Cell<Option<Instant>>,
}

impl Process {
    /// The process of this number, and a descriptor that tells its end.
    pub(crate) fn new(pid: i32, watch: Option<OwnedFd>) -> Process {
        Process { pid, watch, seen: Cell::new(None) }
    }

    /// This process: for memory that may vanish, which only the kernel touches without harm.
    pub(crate) fn own() -> Process {
        Process { pid: std::process::id() as i32, watch: None, seen: Cell::new(None) }
    }

    /// Whether it is known to have ended. Its number belongs to nobody else before its parent has asked for its end, and for a while
    /// afterwards, so who looks right before a copy copies into no other process.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(watch) = &self.watch else { return false };
        let now = Instant::now();
        // A call less for most copies: it takes as long as one of a few KiB.
        if self.seen.get().is_some_and(|seen| now.saturating_duration_since(seen) < LOOK) {
            return false;
        }
        let alive = is_alive(watch);
        self.seen.set(alive.then_some(now));
        !alive
    }

    /// Copies between pairs of ranges, here and there, of the same lengths; how many bytes. Fewer than all where one of the ranges can't
    /// be touched.
    ///
    /// # Safety
    /// The ranges here are valid: for writing, when bytes are read into them; for reading, when they are written from. Those of this
    /// process's own memory on the other side likewise.
    pub(crate) unsafe fn copy(
        &self,
        direction: Direction,
        here: &[libc::iovec],
        there: &[libc::iovec],
    ) -> io::Result<u64> {
        if self.has_ended() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let (local, remote) = (here.len() as libc::c_ulong, there.len() as libc::c_ulong);
        let copied = match direction {
            // SAFETY: the caller vouches for the ranges here; those of another process are checked by the kernel.
            Direction::Read => unsafe {
                libc::process_vm_readv(self.pid, here.as_ptr(), local, there.as_ptr(), remote, 0)
            },
            // SAFETY: as above.
            Direction::Write => unsafe {
                libc::process_vm_writev(self.pid, here.as_ptr(), local, there.as_ptr(), remote, 0)
            },
        };
        if copied < 0 { Err(io::Error::last_os_error()) } else { Ok(copied as u64) }
    }

    /// The 16 bytes at an address there.
    pub(crate) fn word(&self, address: u64) -> io::Result<u128> {
        let mut bytes = [0u8; 16];
        let range = |base: u64| [libc::iovec { iov_base: base as *mut libc::c_void, iov_len: 16 }];
        // SAFETY: the range here is that of `bytes`, which is borrowed mutably for the call.
        let got = unsafe { self.copy(Direction::Read, &range(bytes.as_mut_ptr() as u64), &range(address))? };
        if got != 16 {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        Ok(u128::from_le_bytes(bytes))
    }
}

/// Whether the process of this descriptor has not ended.
pub(crate) fn is_alive(watch: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
    !matches!(poll(&mut fds, PollTimeout::ZERO), Ok(ready) if ready > 0)
}
