//! The one system call of the suite. Rule: asks whether a descriptor is readable, and changes nothing.
//!
//! It does not check that the descriptor is the transport's own.

#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

/// Whether the descriptor becomes readable within this time.
pub(crate) fn readable(fd: RawFd, within: Duration) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let wait_ms = i32::try_from(within.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `asked` is one valid entry for the length of the call, which is what the count says; a descriptor that is
    // not open is answered with POLLNVAL.
    let found = unsafe { libc::poll(&mut asked, 1, wait_ms) };
    if asked.revents & libc::POLLNVAL != 0 {
        panic!("`arm` gave descriptor {fd}, which is not open");
    }
    found > 0
}
