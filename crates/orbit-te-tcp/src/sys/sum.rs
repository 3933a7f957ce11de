//! Sums over memory that peers may write. Rule: the bytes are copied to a buffer of the caller before they are looked at; no
//! reference to them is made.

use crc_fast::{CrcAlgorithm, Digest};
use std::io;

/// Bytes that are copied at once: what they were copied from and their copy stay in the first cache together.
pub(crate) const SUM_BYTES: usize = 4 * 1024;

/// The CRC32C of these bytes after `crc`, the sum of what is before them. `vanishing`: the kernel copies them, and answers
/// `EFAULT` where touching them would end the process.
///
/// # Safety
/// The range is readable for the length of the call, or `vanishing` is set; over a region it is covered by a lease.
pub(crate) unsafe fn sum(
    crc: u32,
    address: u64,
    length: usize,
    vanishing: bool,
    buffer: &mut [u8; SUM_BYTES],
) -> io::Result<u32> {
    // Its state is the sum before it is inverted.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    let mut done = 0;
    while done < length {
        let part = &mut buffer[..SUM_BYTES.min(length - done)];
        let from = address + done as u64;
        if vanishing {
            ask_kernel(from, part)?;
        } else {
            // SAFETY: the caller vouches for the range; the buffer is apart from every region.
            unsafe { orbit_te_memory::copy_out(from as *const u8, part) };
        }
        digest.update(part);
        done += part.len();
    }
    Ok(digest.finalize() as u32)
}

fn ask_kernel(address: u64, part: &mut [u8]) -> io::Result<()> {
    let into = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
    let from = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: part.len() };
    // SAFETY: the kernel writes at most the length of `part`, which lives for the length of the call; reading this process's own
    // memory where nothing is mapped or no page is behind it is an error, not a fault.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &into, 1, &from, 1, 0) };
    match usize::try_from(n) {
        Ok(n) if n == part.len() => Ok(()),
        // It stopped in front of a page that is gone.
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
