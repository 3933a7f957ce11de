//! Sums over memory that peers may write. Rule: no reference to it is made; each byte is read once, in place where the processor
//! can, else through a buffer here.

use super::fold::Folded;
use crc_fast::{CrcAlgorithm, Digest};
use std::io;

/// Bytes that are copied at once: what they were copied from and their copy stay in the first cache together.
const PART_BYTES: usize = 4 * 1024;

/// A sum that goes on over range after range.
pub(crate) struct Summing {
    /// Of all bytes, or none where they are folded.
    crc: Option<u32>,
    folded: Folded,
    part: [u8; PART_BYTES],
}

impl Summing {
    /// Goes on from `crc`, the sum of what is before.
    pub(crate) fn from(crc: u32) -> Summing {
        Summing { crc: Some(crc), folded: Folded::from(0), part: [0; PART_BYTES] }
    }

    /// Adds these bytes. `vanishing`: the kernel copies them, and answers `EFAULT` where touching them would end the process; then
    /// the sum is that of some of them. `next` is where the bytes after these are, if that is known.
    ///
    /// # Safety
    /// The range is readable for the length of the call, or `vanishing` is set; over a region it is covered by a lease.
    pub(crate) unsafe fn add(
        &mut self,
        address: u64,
        length: usize,
        next: Option<u64>,
        vanishing: bool,
    ) -> io::Result<()> {
        // SAFETY: the caller vouches for the range where it does not vanish.
        let mut done = if vanishing { 0 } else { unsafe { self.fold(address, length, next) } };
        while done < length {
            let before = self.crc();
            let part = &mut self.part[..PART_BYTES.min(length - done)];
            let from = address + done as u64;
            if vanishing {
                ask_kernel(from, part)?;
            } else {
                // SAFETY: the caller vouches for the range; the part is apart from every region.
                unsafe { orbit_te_memory::copy_out(from as *const u8, part) };
            }
            self.crc = Some(digest(before, part));
            done += part.len();
        }
        Ok(())
    }

    /// The CRC32C of all there was.
    pub(crate) fn crc(&self) -> u32 {
        // A register is the sum before it is inverted.
        self.crc.unwrap_or_else(|| !self.folded.register(|register, bytes| !digest(!register, bytes)))
    }

    /// Adds whole blocks in place; how many bytes they are.
    ///
    /// # Safety
    /// The range is readable for the length of the call.
    unsafe fn fold(&mut self, address: u64, length: usize, next: Option<u64>) -> usize {
        if let Some(crc) = self.crc {
            self.folded = Folded::from(!crc);
        }
        // SAFETY: the caller vouches for the range.
        let bytes = unsafe { self.folded.add(address, length, next.unwrap_or(address)) };
        if bytes > 0 {
            self.crc = None;
        }
        bytes
    }
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
    use super::super::fold::{BLOCK_BYTES, is_possible};
    use super::*;
    use crc32c::crc32c_append;
    use proptest::prelude::*;

    fn fast(crc: u32, bytes: &[u8], vanishing: bool) -> u32 {
        let mut sum = Summing::from(crc);
        add(&mut sum, bytes, vanishing);
        sum.crc()
    }

    fn add(sum: &mut Summing, bytes: &[u8], vanishing: bool) {
        // SAFETY: the slice lives for the length of the call.
        unsafe { sum.add(bytes.as_ptr() as u64, bytes.len(), None, vanishing) }.expect("the bytes are there");
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
        let bytes: Vec<u8> = (0..14_000u32).map(|i| ((i * i) >> 3) as u8).collect();
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
        fn the_sum_of_pieces_at_any_offset_is_that_of_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..50_000),
            lengths in prop::collection::vec(prop_oneof![0usize..3000, (0usize..30).prop_map(|n| n * BLOCK_BYTES)], 0..8),
            ways in prop::collection::vec(any::<bool>(), 9),
            first: u32,
        ) {
            let mut sum = Summing::from(first);
            let mut left = &bytes[..];
            for (length, vanishing) in lengths.iter().chain([&usize::MAX]).zip(ways) {
                let (piece, rest) = left.split_at((*length).min(left.len()));
                add(&mut sum, piece, vanishing);
                left = rest;
            }
            prop_assert_eq!(sum.crc(), crc32c_append(first, &bytes));
        }
    }
}
