//! Sums over memory that peers may write. Rule: no reference to it is made; each byte is read once, in place where the processor
//! can, else through a buffer of the caller.

use super::fold::{BLOCK_BYTES, fold};
use crc_fast::{CrcAlgorithm, Digest};
use std::io;

/// Bytes that are copied at once: what they were copied from and their copy stay in the first cache together.
const PART_BYTES: usize = 4 * 1024;

/// Room for a part. No store of a vector register to it is in two lines of the cache.
#[repr(align(64))]
pub(crate) struct Buffer([u8; PART_BYTES]);

impl Buffer {
    pub(crate) fn new() -> Buffer {
        Buffer([0; PART_BYTES])
    }
}

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
    Buffer(buffer): &mut Buffer,
) -> io::Result<u32> {
    let (mut crc, mut done) = (crc, 0);
    if !vanishing {
        let block = buffer.first_chunk_mut::<BLOCK_BYTES>().expect("a part is longer than a block");
        // SAFETY: the caller vouches for the range.
        done = unsafe { fold(crc, address, length, block) };
        if done > 0 {
            crc = digest(u32::MAX, block);
        }
    }
    while done < length {
        let part = &mut buffer[..PART_BYTES.min(length - done)];
        let from = address + done as u64;
        if vanishing {
            ask_kernel(from, part)?;
        } else {
            // SAFETY: the caller vouches for the range; the buffer is apart from every region.
            unsafe { orbit_te_memory::copy_out(from as *const u8, part) };
        }
        crc = digest(crc, part);
        done += part.len();
    }
    Ok(crc)
}

/// The sum of these bytes of ours after `crc`.
fn digest(crc: u32, bytes: &[u8]) -> u32 {
    // Its state is the sum before it is inverted.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
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

#[cfg(test)]
mod tests {
    use super::super::fold::is_possible;
    use super::*;
    use crc32c::crc32c_append;
    use proptest::prelude::*;

    fn fast(crc: u32, bytes: &[u8], vanishing: bool) -> u32 {
        let mut buffer = Buffer::new();
        // SAFETY: the slice lives for the length of the call.
        unsafe { sum(crc, bytes.as_ptr() as u64, bytes.len(), vanishing, &mut buffer) }
            .expect("the bytes are there")
    }

    #[test]
    fn the_sum_of_the_standard() {
        assert_eq!(fast(0, b"123456789", false), 0xE306_9283);
        assert_eq!(fast(0, &[0; 32], false), 0x8A91_36AA);
        if !is_possible() {
            eprintln!("this processor lacks AVX-512F or VPCLMULQDQ: sums in place are not tested");
        }
    }

    #[test]
    fn every_length_about_a_block_has_its_sum() {
        let bytes: Vec<u8> = (0..3000u32).map(|i| (i * i >> 3) as u8).collect();
        for length in 0..bytes.len() {
            assert_eq!(
                fast(7, &bytes[..length], false),
                crc32c_append(7, &bytes[..length]),
                "{length} bytes"
            );
        }
    }

    proptest! {
        #[test]
        fn sums_in_parts_at_any_offset_are_one_sum(
            bytes in prop::collection::vec(any::<u8>(), 0..20_000),
            skip in 0usize..70,
            cut in any::<prop::sample::Index>(),
            vanishing: bool,
        ) {
            let bytes = &bytes[skip.min(bytes.len())..];
            let (first, last) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(fast(fast(0, first, vanishing), last, vanishing), crc32c_append(0, bytes));
        }
    }
}
