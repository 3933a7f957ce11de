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
        Method::Streaming => unsafe {
            stream(to, from, length, from.wrapping_add(length));
            settle();
        },
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

/// A part of a scattered copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) to: *mut u8,
    pub(crate) from: *const u8,
    pub(crate) length: usize,
}

/// So many pieces of one length are copied side by side: a processor looks up several pages at a time, and waits for one almost as long as for
/// all.
#[cfg(target_arch = "x86_64")]
const TOGETHER: usize = 8;

/// Copies pieces. Those that are copied past the caches go several at a time where they are of one length, while the bytes of the next ones are
/// fetched, which a processor does not do by itself across pages.
///
/// # Safety
/// As [`copy`], for each piece.
pub(crate) unsafe fn copy_pieces(pieces: &[Piece], method: Method) {
    match method {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise, and the method is there.
        Method::Streaming => unsafe {
            stream_pieces(pieces);
            settle();
        },
        _ => {
            for (at, piece) in pieces.iter().enumerate() {
                pieces.get(at + 4).inspect(|later| look_up(later));
                // SAFETY: the caller's promise.
                unsafe { cached(piece.to, piece.from, piece.length) };
            }
        }
    }
}

/// Has the processor look up the pages of a piece, and fetch its first bytes.
pub(crate) fn look_up(piece: &Piece) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: asking for a line touches nothing; every processor of this kind takes it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(piece.from.cast());
        _mm_prefetch::<_MM_HINT_ET0>(piece.to.cast_const().cast());
    }
    let _ = piece;
}

/// Puts what was stored past the caches before all later stores, and leaves wide registers as others expect them.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
unsafe fn settle() {
    // SAFETY: the caller's promise; all registers that are written to are named.
    unsafe {
        std::arch::asm!(
            "sfence", "vzeroupper",
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
            out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// As [`copy_pieces`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream_pieces(pieces: &[Piece]) {
    let mut at = 0;
    while at < pieces.len() {
        let group = pieces.get(at..at + TOGETHER).filter(|group| {
            let length = group[0].length;
            let fits = |piece: &Piece| piece.length == length && piece.to.align_offset(64) == 0;
            length % BLOCK_BYTES == 0 && group.iter().all(fits)
        });
        let Some(group) = group else {
            let piece = pieces[at];
            let next = pieces.get(at + 1).map_or(piece.from.wrapping_add(piece.length), |next| next.from);
            // SAFETY: the caller's promise.
            unsafe { stream(piece.to, piece.from, piece.length, next) };
            at += 1;
            continue;
        };
        for offset in (0..group[0].length).step_by(BLOCK_BYTES) {
            for (k, piece) in group.iter().enumerate() {
                let next = pieces.get(at + TOGETHER + k).map_or(piece.from, |next| next.from);
                let ahead = next.wrapping_add(offset);
                // SAFETY: the block lies in the piece, whose length is so many blocks, and its place is aligned.
                unsafe { stream_blocks(piece.to.add(offset), piece.from.add(offset), 1, ahead) };
            }
        }
        at += TOGETHER;
    }
}

/// How far ahead bytes are fetched: as much as memory that answers in a quarter of a microsecond gives meanwhile.
#[cfg(target_arch = "x86_64")]
const AHEAD_BYTES: usize = 4096;
#[cfg(target_arch = "x86_64")]
const BLOCK_BYTES: usize = 256;

/// Whole blocks of four cache lines past the caches, and what is left at both ends by the C library. Towards the end it fetches the first bytes
/// from `next`, which are copied afterwards.
///
/// # Safety
/// As [`copy`], on a processor with AVX2. Nothing is asked of `next`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream(to: *mut u8, from: *const u8, length: usize, next: *const u8) {
    let lead = to.align_offset(64).min(length);
    let (blocks, rest) = ((length - lead) / BLOCK_BYTES, (length - lead) % BLOCK_BYTES);
    let last = blocks.min(AHEAD_BYTES / BLOCK_BYTES);
    let first = blocks - last;
    let (mut at, mut source) = (to.wrapping_add(lead), from.wrapping_add(lead));
    // SAFETY: `lead`, the blocks and the rest are the whole range, one after the other, and nothing of it twice; `lead` aligns the stores.
    unsafe {
        cached(to, from, lead);
        if first > 0 {
            (at, source) = stream_blocks(at, source, first, source.wrapping_add(AHEAD_BYTES));
        }
        if last > 0 {
            (at, source) = stream_blocks(at, source, last, next);
        }
        cached(at, source, rest);
    }
}

/// Copies blocks, and fetches as many from `ahead`; where both ranges end.
///
/// # Safety
/// As [`copy`], on a processor with AVX2; `to` is aligned to 64 bytes, and there is a block at least. Nothing is asked of `ahead`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn stream_blocks(
    mut to: *mut u8,
    mut from: *const u8,
    blocks: usize,
    ahead: *const u8,
) -> (*mut u8, *const u8) {
    // SAFETY: the caller's promise. Asking for a line ahead of where it is read touches nothing, wherever it lies. Assembly, since the
    // bytes may change under it; it leaves no flag and no register but those that are named.
    unsafe {
        std::arch::asm!(
            "2:",
            "prefetcht0 [{ahead}]",
            "prefetcht0 [{ahead} + 64]",
            "prefetcht0 [{ahead} + 128]",
            "prefetcht0 [{ahead} + 192]",
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
            "add {ahead}, 256",
            "add {from}, 256",
            "add {to}, 256",
            "dec {blocks}",
            "jnz 2b",
            from = inout(reg) from,
            to = inout(reg) to,
            ahead = inout(reg) ahead => _,
            blocks = inout(reg) blocks => _,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            options(nostack),
        );
    }
    (to, from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enough of one length for several to go together, with others among them.
    #[test]
    fn many_pieces_are_copied_each_to_its_place() {
        let source: Vec<u8> = (0..400_000u32).map(|k| (k * 37 % 251) as u8).collect();
        for method in [Method::Cached, Method::Streaming].into_iter().filter(|method| method.is_there()) {
            for (length, odd) in [(4096, 77), (4096, 30), (256, 5), (512, 3), (300, 9)] {
                let (mut target, mut wanted) = (vec![0xee; 400_064], vec![0xee; 400_064]);
                let lead = target.as_ptr().align_offset(64);
                let base = target.as_mut_ptr().wrapping_add(lead);
                let mut pieces = Vec::new();
                for k in 0..40usize {
                    // The 17th is shorter, and one later begins off its line.
                    let length = if k == 17 { odd } else { length };
                    let (from, to) = ((k * 7 % 40) * 8192 + 13, k * 8192 + usize::from(k == 30));
                    pieces.push(Piece {
                        to: base.wrapping_add(to),
                        from: source.as_ptr().wrapping_add(from),
                        length,
                    });
                    wanted[lead + to..][..length].copy_from_slice(&source[from..][..length]);
                }
                // SAFETY: the ranges lie inside of vectors of their own, apart from each other; the method is there.
                unsafe { copy_pieces(&pieces, method) };
                assert!(target == wanted, "{method:?} {length} {odd}");
            }
        }
    }

    #[test]
    fn pieces_are_copied_each_to_its_place() {
        let source: Vec<u8> = (0..200_000u32).map(|k| (k * 31 % 251) as u8).collect();
        for method in [Method::Cached, Method::Streaming].into_iter().filter(|method| method.is_there()) {
            for lengths in [[4096, 4096, 4096], [1, 5000, 64], [300, 0, 2048], [1279, 1280, 1281]] {
                let mut target = vec![0xee; 200_000];
                let spots = [(17, 90_001), (70_000, 5), (140_000, 40_960)];
                let base = target.as_mut_ptr();
                let pieces: Vec<Piece> = spots
                    .iter()
                    .zip(lengths)
                    .map(|((from, to), length)| Piece {
                        to: base.wrapping_add(*to),
                        from: source.as_ptr().wrapping_add(*from),
                        length,
                    })
                    .collect();
                // SAFETY: the ranges lie inside of vectors of their own, apart from each other; the method is there.
                unsafe { copy_pieces(&pieces, method) };
                let mut wanted = vec![0xee; 200_000];
                for ((from, to), length) in spots.into_iter().zip(lengths) {
                    wanted[to..to + length].copy_from_slice(&source[from..from + length]);
                }
                assert!(target == wanted, "{method:?} {lengths:?}");
            }
        }
    }

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
