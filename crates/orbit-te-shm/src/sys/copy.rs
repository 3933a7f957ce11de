//! Copies within this process. Rule: bytes of regions are never Rust references; peers write them at any moment.

/// How bytes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// By the C library: what was copied is in the caches afterwards.
    Cached,
    /// Past the caches: memory that is in none of them is not read before it is written, which saves a third of the traffic.
    Streaming,
}

impl Method {
    /// Whether this processor does it.
    pub(crate) fn is_there(self) -> bool {
        match self {
            Method::Cached => true,
            #[cfg(target_arch = "x86_64")]
            Method::Streaming => std::is_x86_feature_detected!("avx2"),
            #[cfg(not(target_arch = "x86_64"))]
            Method::Streaming => false,
        }
    }
}

/// Copies bytes.
///
/// # Safety
/// Both ranges are valid, the one for writing, the other for reading, and they do not overlap. What others write meanwhile comes old or
/// new, in any mixture. The method is one that this processor does.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, length: usize, method: Method) {
    match method {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise, and the method is there.
        Method::Streaming => unsafe { stream(to, from, length) },
        // SAFETY: the caller's promise.
        _ => unsafe { cached(to, from, length) },
    }
}

/// # Safety
/// As [`copy`].
unsafe fn cached(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise. The C function is foreign code, so that nothing is assumed of the bytes.
    unsafe { libc::memcpy(to.cast(), from.cast(), length) };
}

/// Whole blocks of four cache lines past the caches, and what is left at both ends by the C library.
///
/// # Safety
/// As [`copy`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream(to: *mut u8, from: *const u8, length: usize) {
    const BLOCK: usize = 256;
    let lead = to.align_offset(64).min(length);
    let (blocks, rest) = ((length - lead) / BLOCK, (length - lead) % BLOCK);
    // SAFETY: `lead`, the blocks and the rest are the whole range, one after the other, and nothing of it twice. The stores are aligned,
    // since `lead` aligns them. Asking for a line ahead of where it is read touches nothing, also past the end. Assembly, since the bytes
    // may change under it; it leaves no flag and no register but those that are named, and the fence puts its stores before all later ones.
    unsafe {
        cached(to, from, lead);
        let (mut at, mut source) = (to.add(lead), from.add(lead));
        if blocks > 0 {
            std::arch::asm!(
                "2:",
                "prefetchnta [{source} + 1024]",
                "prefetchnta [{source} + 1088]",
                "prefetchnta [{source} + 1152]",
                "prefetchnta [{source} + 1216]",
                "vmovdqu {a}, [{source}]",
                "vmovdqu {b}, [{source} + 32]",
                "vmovdqu {c}, [{source} + 64]",
                "vmovdqu {d}, [{source} + 96]",
                "vmovdqu {e}, [{source} + 128]",
                "vmovdqu {f}, [{source} + 160]",
                "vmovdqu {g}, [{source} + 192]",
                "vmovdqu {h}, [{source} + 224]",
                "vmovntdq [{at}], {a}",
                "vmovntdq [{at} + 32], {b}",
                "vmovntdq [{at} + 64], {c}",
                "vmovntdq [{at} + 96], {d}",
                "vmovntdq [{at} + 128], {e}",
                "vmovntdq [{at} + 160], {f}",
                "vmovntdq [{at} + 192], {g}",
                "vmovntdq [{at} + 224], {h}",
                "add {source}, 256",
                "add {at}, 256",
                "dec {blocks}",
                "jnz 2b",
                "sfence",
                "vzeroupper",
                source = inout(reg) source,
                at = inout(reg) at,
                blocks = inout(reg) blocks => _,
                a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, d = out(ymm_reg) _,
                e = out(ymm_reg) _, f = out(ymm_reg) _, g = out(ymm_reg) _, h = out(ymm_reg) _,
                options(nostack),
            );
        }
        cached(at, source, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length about a block, from any place to any place: nothing beside the range is touched.
    #[test]
    fn both_methods_copy_all_and_nothing_else() {
        let source: Vec<u8> = (0..9000u32).map(|k| (k * 31 % 251) as u8).collect();
        for method in [Method::Cached, Method::Streaming].into_iter().filter(|method| method.is_there()) {
            for length in (0..=520).chain([1023, 1024, 1025, 4096, 8191]) {
                for (from, to) in [(0, 0), (1, 63), (63, 1), (64, 64), (17, 40)] {
                    let mut target = vec![0xee; 9000];
                    // SAFETY: both ranges lie inside of vectors of their own; the method is there.
                    unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), length, method) };
                    assert_eq!(target[to..to + length], source[from..from + length], "{method:?} {length}");
                    let others = target[..to].iter().chain(&target[to + length..]);
                    assert!(others.into_iter().all(|byte| *byte == 0xee), "{method:?} {length} {from} {to}");
                }
            }
        }
    }
}
