//! Copies within this process. Rule: bytes of regions are never Rust references; peers write them at any moment.

/// Copies bytes.
///
/// # Safety
/// Both ranges are valid, the one for writing, the other for reading, and they do not overlap. What others write meanwhile comes old or
/// new, in any mixture.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise. The C function is foreign code, so that nothing is assumed of the bytes.
    unsafe { libc::memcpy(to.cast(), from.cast(), length) };
}
