//! Vectored send and receive over addresses. Rule: never blocks, never raises a signal, and reports a short count as it
//! is.

use std::io;
use std::os::fd::RawFd;

/// A range of addresses for the network, laid out as the kernel's `iovec`.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct IoRange(libc::iovec);

impl IoRange {
    pub(crate) const EMPTY: IoRange = IoRange(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });

    pub(crate) fn new(address: u64, length: usize) -> IoRange {
        IoRange(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length })
    }

    /// Bytes of our own, to be sent. They must live until the call that uses the range has returned.
    pub(crate) fn bytes(bytes: &[u8]) -> IoRange {
        IoRange::new(bytes.as_ptr() as u64, bytes.len())
    }

    /// Bytes of our own, to be filled. They must live until the call that uses the range has returned.
    pub(crate) fn bytes_mut(bytes: &mut [u8]) -> IoRange {
        IoRange::new(bytes.as_mut_ptr() as u64, bytes.len())
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.0.iov_base as u64
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.iov_len == 0
    }
}

fn message(ranges: &mut [IoRange]) -> libc::msghdr {
    // SAFETY: `msghdr` is a C struct for which all zeros is the empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = ranges.as_mut_ptr().cast();
    message.msg_iovlen = ranges.len();
    message
}

/// Sends from the ranges in order; how many bytes the kernel took.
///
/// # Safety
/// Every range is readable for the length of the call, or the kernel answers `EFAULT`; ranges over a region are covered
/// by a lease.
pub(super) unsafe fn send(fd: RawFd, ranges: &mut [IoRange]) -> io::Result<usize> {
    let message = message(ranges);
    // SAFETY: the message points to `ranges`, whose entries the caller vouches for; the kernel only reads them.
    let n = unsafe { libc::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Receives into the ranges in order; how many bytes came, where zero means that the peer has closed.
///
/// # Safety
/// Every range is writable for the length of the call, or the kernel answers `EFAULT`; ranges over a region are covered
/// by a lease.
pub(super) unsafe fn receive(fd: RawFd, ranges: &mut [IoRange]) -> io::Result<usize> {
    if let [one] = ranges {
        // SAFETY: the caller vouches for the range; a plain receive is a little cheaper than a message.
        let n = unsafe { libc::recv(fd, one.0.iov_base, one.0.iov_len, libc::MSG_DONTWAIT) };
        return if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) };
    }
    let mut message = message(ranges);
    // SAFETY: the message points to `ranges`, whose entries the caller vouches for; the kernel writes only there.
    let n = unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Sets how many bytes must have come before the socket is called readable.
pub(super) fn set_low_water(fd: RawFd, bytes: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    let value: *const i32 = &bytes;
    // SAFETY: the option's value is an `int` that lives for the length of the call.
    let rc = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, value.cast(), size) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What the kernel knows of a TCP connection. Fields that an older kernel lacks are zero.
pub(super) fn tcp_info(fd: RawFd) -> io::Result<libc::tcp_info> {
    // SAFETY: `tcp_info` is a C struct of integers, for which all zeros is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    let value: *mut libc::tcp_info = &mut info;
    // SAFETY: the kernel writes at most `size` bytes to `info`, and both live for the length of the call.
    let rc = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, value.cast(), &mut size) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(info) }
}

/// Whether the byte at this address can be read: asked of the kernel, which answers where touching it would end the process.
pub(crate) fn is_readable(address: u64) -> bool {
    let mut byte = [0u8; 1];
    let into = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 1 };
    // SAFETY: the kernel writes one byte to `byte`, which lives for the length of the call; reading this process's own memory at an
    // address that is not mapped or has no page behind it is an error, not a fault.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &into, 1, &from, 1, 0) };
    // Where the call is forbidden (a sandbox) nothing is known, and the transfer itself finds out.
    n == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}
