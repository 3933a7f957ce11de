//! Calls of the system beside verbs. Rule: plain values in and out.

use crate::error::Errno;
use std::ffi::CString;
use std::os::fd::RawFd;

/// Has reads of a descriptor say `EAGAIN` instead of waiting.
pub(crate) fn set_nonblocking(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: no pointers are involved; a number that is no descriptor gives EBADF.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(Errno::last());
    }
    // SAFETY: as above.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// How much memory this process may lock, if there is a limit.
pub(crate) fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours and of the right type.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (got == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Whether a file may be read and written.
pub(crate) fn may_open(path: &str) -> Result<(), Errno> {
    let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the string ends with a zero and lives during the call.
    match unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said() {
        assert_eq!(may_open("/dev/null"), Ok(()));
        assert_eq!(may_open("/nowhere/at/all"), Err(Errno::ENOENT));
        assert_eq!(set_nonblocking(-1), Err(Errno(libc::EBADF)));
    }
}
