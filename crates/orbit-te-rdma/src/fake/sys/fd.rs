//! Descriptors that become readable with events, each counted once.

use crate::error::Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A real descriptor: one read takes one event.
#[derive(Debug)]
pub(in crate::fake) struct EventFd(OwnedFd);

impl EventFd {
    pub(in crate::fake) fn new() -> Result<EventFd, Errno> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: made just now, and nobody else has it.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(in crate::fake) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Counts one event.
    pub(in crate::fake) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes of ours. It can fail only when 2^64 events wait.
        unsafe { libc::write(self.raw(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes one back, of an event that nobody will see, if it is there.
    pub(in crate::fake) fn take_back(&self) {
        let mut poll = libc::pollfd { fd: self.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure of ours.
        if unsafe { libc::poll(&mut poll, 1, 0) } == 1 {
            wait(self.raw()).ok();
        }
    }
}

/// Takes one event of a descriptor, as its flags say: waiting, or with `EAGAIN`.
pub(super) fn wait(fd: RawFd) -> Result<(), Errno> {
    let mut count = [0u8; 8];
    // SAFETY: eight bytes of ours.
    match unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) } {
        8 => Ok(()),
        _ => Err(Errno::last()),
    }
}
