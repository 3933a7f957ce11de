//! Sums over memory that peers may write. Rule: no reference to it is made; each byte is read once, in place where the processor
//! can, else through a buffer here.

use super::fold::{BLOCK_BYTES, Folded, PAGE_BYTES, is_possible};
use crc_fast::{CrcAlgorithm, Digest};
use std::io;

/// Bytes that are copied at once: what they were copied from and their copy stay in the first cache together.
const PART_BYTES: usize = 4 * 1024;
/// Pages that are folded at once: going in and out of the registers costs a tenth of a page.
const MAX_PAGES: usize = 64;

/// A sum that goes on over range after range.
pub(crate) struct Summing {
    /// Of all bytes but the pages that wait, or none where they are folded.
    crc: Option<u32>,
    folded: Folded,
    /// What comes next, where this processor folds.
    pages: [u64; MAX_PAGES],
    waiting: usize,
    part: [u8; PART_BYTES],
}

impl Summing {
    /// Goes on from `crc`, the sum of what is before.
    pub(crate) fn from(crc: u32) -> Summing {
        let (pages, part) = ([0; MAX_PAGES], [0; PART_BYTES]);
        Summing { crc: Some(crc), folded: Folded::from(0), pages, waiting: 0, part }
    }

    /// Adds these bytes. `vanishing`: the kernel copies them, and answers `EFAULT` where touching them would end the process; then
    /// the sum is that of some of them.
    ///
    /// # Safety
    /// The range is readable until [`Summing::crc`] is called, or `vanishing` is set; over a region it is covered by a lease.
    pub(crate) unsafe fn add(&mut self, address: u64, length: usize, vanishing: bool) -> io::Result<()> {
        // SAFETY: the caller vouches for the range where it does not vanish.
        let mut done = if vanishing || !is_possible() { 0 } else { unsafe { self.fold(address, length) } };
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
    pub(crate) fn crc(&mut self) -> u32 {
        self.fold_waiting();
        // A register is the sum before it is inverted.
        self.crc.unwrap_or_else(|| !self.folded.register(|register, bytes| !digest(!register, bytes)))
    }

    /// Adds whole pages and blocks in place; how many bytes they are.
    ///
    /// # Safety
    /// The processor can, and the range is readable until [`Summing::crc`] is called.
    unsafe fn fold(&mut self, address: u64, length: usize) -> usize {
        let pages = length / PAGE_BYTES;
        for page in 0..pages {
            if self.waiting == MAX_PAGES {
                self.fold_waiting();
            }
            self.pages[self.waiting] = address + (page * PAGE_BYTES) as u64;
            self.waiting += 1;
        }
        let folded = pages * PAGE_BYTES;
        let blocks = (length - folded) / BLOCK_BYTES;
        if blocks > 0 {
            self.fold_waiting();
            self.go_on();
            // SAFETY: the caller vouches for the processor and the range.
            unsafe { self.folded.add_blocks(address + folded as u64, blocks) };
        }
        folded + blocks * BLOCK_BYTES
    }

    fn fold_waiting(&mut self) {
        if self.waiting > 0 {
            self.go_on();
            // SAFETY: pages wait only where the processor can; whoever added them vouched for them until now.
            unsafe { self.folded.add_pages(&self.pages[..self.waiting]) };
            self.waiting = 0;
        }
    }

    /// What is folded next follows what was summed.
    fn go_on(&mut self) {
        if let Some(crc) = self.crc.take() {
            self.folded = Folded::from(!crc);
        }
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
        unsafe { sum.add(bytes.as_ptr() as u64, bytes.len(), vanishing) }.expect("the bytes are there");
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

    #[test]
    fn more_pages_than_wait_at_once_in_any_order() {
        let bytes: Vec<u8> =
            (0..(3 * MAX_PAGES * PAGE_BYTES) as u32).map(|i| (i.wrapping_mul(i) >> 5) as u8).collect();
        for piece in [PAGE_BYTES, 2 * PAGE_BYTES, 3 * PAGE_BYTES + BLOCK_BYTES, bytes.len()] {
            let mut sum = Summing::from(5);
            let pieces = || bytes.chunks(piece).rev();
            pieces().for_each(|piece| add(&mut sum, piece, false));
            assert_eq!(sum.crc(), pieces().fold(5, crc32c_append), "pieces of {piece} bytes");
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
