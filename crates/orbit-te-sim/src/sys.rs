//! Copies from and to memory by address, as the kernel would do them. Rule: no Rust reference to a region's bytes is made.

#![allow(unsafe_code)]

/// Adds the bytes at an address to a vector.
///
/// # Safety
/// The range is readable.
pub(crate) unsafe fn copy_out(address: u64, length: usize, into: &mut Vec<u8>) {
    into.reserve(length);
    // SAFETY: the caller vouches for the source; the vector has room for `length` bytes more, which are initialized by the copy.
    unsafe {
        std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr().add(into.len()), length);
        into.set_len(into.len() + length);
    }
}

/// Copies bytes to an address.
///
/// # Safety
/// The range is writable.
pub(crate) unsafe fn copy_in(address: u64, from: &[u8]) {
    // SAFETY: the caller vouches for the destination; a live slice is not a region's memory.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), address as *mut u8, from.len()) }
}

/// The application's look at memory of the run. Everything on the map of memory stays mapped until the run ends, and the run is one
/// thread, so nothing writes meanwhile.
pub(crate) fn peek(address: u64, length: usize, into: &mut Vec<u8>) {
    // SAFETY: callers name ranges of backings that they hold.
    unsafe { copy_out(address, length, into) }
}

/// The application's write to its own memory, as [`peek`].
pub(crate) fn poke(address: u64, bytes: &[u8]) {
    // SAFETY: as in `peek`; the backings are vectors that were given up to be written.
    unsafe { copy_in(address, bytes) }
}
