//! Copies between ordinary memory and memory that peers may write. Rule: the engine's compiled code touches a region's bytes here
//! alone, and race detectors suppress exactly these two functions; else only the kernel does, or assembly that such detectors do not see.

/// Copies `into.len()` bytes from shared memory at `from`.
///
/// # Safety
/// `from` must be readable for `into.len()` bytes and must not overlap `into`. Others may write it meanwhile: the copy
/// then holds any mixture of old and new bytes.
#[inline(never)]
pub unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
    // SAFETY: by the caller's promise both ranges are valid and apart; `u8` has no invalid values. The bytes are read
    // as memory shared with a device would be, by one opaque block copy whose result alone is used.
    unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
}

/// Copies `from` to shared memory at `into`.
///
/// # Safety
/// `into` must be writable for `from.len()` bytes and must not overlap `from`. Others may read it meanwhile: they then
/// see any mixture of old and new bytes.
#[inline(never)]
pub(crate) unsafe fn copy_in(into: *mut u8, from: &[u8]) {
    // SAFETY: as in `copy_out`, with the roles exchanged.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
}
