//! Copies within this process. Rule: bytes of regions are never Rust references; peers write them at any moment.

use std::sync::OnceLock;

fn threshold() -> usize {
    static T: OnceLock<usize> = OnceLock::new();
    *T.get_or_init(|| std::env::var("NT").ok().and_then(|v| v.parse().ok()).unwrap_or(usize::MAX))
}

/// Copies bytes.
///
/// # Safety
/// Both ranges are valid, the one for writing, the other for reading, and they do not overlap. What others write meanwhile comes old or
/// new, in any mixture.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    if length >= threshold() {
        // SAFETY: x
        return unsafe { stream(to, from, length) };
    }
    // SAFETY: the caller's promise. The C function is foreign code, so that nothing is assumed of the bytes.
    unsafe { libc::memcpy(to.cast(), from.cast(), length) };
}

unsafe fn stream(mut to: *mut u8, mut from: *const u8, mut length: usize) {
    // SAFETY: x
    unsafe {
        let lead = to.align_offset(64).min(length);
        libc::memcpy(to.cast(), from.cast(), lead);
        to = to.add(lead);
        from = from.add(lead);
        length -= lead;
        let blocks = length / 256;
        if blocks > 0 {
            std::arch::asm!(
                "2:",
                "prefetchnta [{from} + 1024]",
                "prefetchnta [{from} + 1088]",
                "prefetchnta [{from} + 1152]",
                "prefetchnta [{from} + 1216]",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + 64]",
                "vmovdqu ymm3, [{from} + 96]",
                "vmovdqu ymm4, [{from} + 128]",
                "vmovdqu ymm5, [{from} + 160]",
                "vmovdqu ymm6, [{from} + 192]",
                "vmovdqu ymm7, [{from} + 224]",
                "vmovntdq [{to}], ymm0",
                "vmovntdq [{to} + 32], ymm1",
                "vmovntdq [{to} + 64], ymm2",
                "vmovntdq [{to} + 96], ymm3",
                "vmovntdq [{to} + 128], ymm4",
                "vmovntdq [{to} + 160], ymm5",
                "vmovntdq [{to} + 192], ymm6",
                "vmovntdq [{to} + 224], ymm7",
                "add {from}, 256",
                "add {to}, 256",
                "dec {blocks}",
                "jnz 2b",
                "sfence",
                "vzeroupper",
                from = inout(reg) from,
                to = inout(reg) to,
                blocks = inout(reg) blocks => _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                options(nostack),
            );
        }
        libc::memcpy(to.cast(), from.cast(), length % 256);
    }
}
