//! Shortening a payload to one block of the same CRC32C. Rule: each byte is read once, by an instruction that the compiler does not
//! see: memory that others may write has no reference made to it, and needs no copy.
//!
//! A CRC is the remainder of a division of polynomials, so a block may be multiplied to where the next one is, and added to it, without
//! the remainder being another one: V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
//! Intel, 2009. The block here is eight registers of AVX-512. Multiplying is what bounds it, so of each page a quarter is left out and
//! summed by the scalar instruction meanwhile, in four streams that are put together at the end of the page. The page after it, which
//! may be anywhere, is asked for on the way.

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 512;
/// Bytes of a page: six blocks, and behind them the streams.
pub(super) const PAGE_BYTES: usize = 4096;
const STREAM_BYTES: usize = 256;
/// What is between the last block of a page and the page's end.
const STREAMS_BYTES: usize = 4 * STREAM_BYTES;

/// What stands for all bytes so far: the register of the sum is the one that the block makes of zero, multiplied over the gap, and
/// `register` added.
#[repr(C, align(64))]
pub(super) struct Folded {
    block: [u8; BLOCK_BYTES],
    register: u32,
    /// Whether the streams of a page are behind the block.
    gap: bool,
}

impl Folded {
    /// What stands for bytes that have this register.
    pub(super) fn from(register: u32) -> Folded {
        Folded { block: [0; BLOCK_BYTES], register, gap: false }
    }

    /// Adds pages, and asks for each while the one before it is added.
    ///
    /// # Safety
    /// The processor can, and every page is readable for the length of the call.
    pub(super) unsafe fn add_pages(&mut self, pages: &[u64]) {
        let Some((&last, before)) = pages.split_last() else { return };
        if !before.is_empty() {
            // SAFETY: the caller vouches for the processor and for the pages; one more address follows these.
            unsafe { fold_pages(self, pages.as_ptr(), before.len()) };
        }
        // SAFETY: as above; what is asked for while the last one is added is that one.
        unsafe { fold_pages(self, [last, last].as_ptr(), 1) };
    }

    /// Adds so many blocks, at least one.
    ///
    /// # Safety
    /// The processor can, and the blocks are readable for the length of the call.
    pub(super) unsafe fn add_blocks(&mut self, address: u64, blocks: usize) {
        // SAFETY: the caller vouches for the processor and for the range, which has these blocks.
        unsafe { fold_blocks(self, address, blocks) };
    }

    /// The register, with a sum that goes on from a register over bytes of ours.
    pub(super) fn register(&self, sum: impl Fn(u32, &[u8]) -> u32) -> u32 {
        let before = sum(0, &self.block);
        let before = if self.gap { sum(before, &[0; STREAMS_BYTES]) } else { before };
        before ^ self.register
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) fn is_possible() -> bool {
    // Each answer is kept by the standard library.
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.2")
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) fn is_possible() -> bool {
    false
}

/// What moves numbers on.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[repr(C)]
struct Ahead {
    /// A register's two halves, one block on.
    block: [u64; 2],
    /// The same from the last block of a page to the first of the next.
    gap: [u64; 2],
    /// The first and the second stream's register to the end of the page, in 32 bits less than the scalar instruction then adds.
    streams: [u64; 2],
    /// The third's.
    stream: [u64; 2],
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
static AHEAD: Ahead = Ahead {
    block: halves(BLOCK_BYTES),
    gap: halves(BLOCK_BYTES + STREAMS_BYTES),
    streams: [over(3 * STREAM_BYTES), over(2 * STREAM_BYTES)],
    stream: [over(STREAM_BYTES), 0],
};

/// What moves a register's two halves so many bytes on. In the reflected order of CRC32C the lower half is the earlier one; 32 is the
/// length of the remainder, by which the halves' places differ from the exponents. The product of two reflected numbers lacks one bit.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const fn halves(bytes: usize) -> [u64; 2] {
    [(power(8 * bytes + 32) as u64) << 1, (power(8 * bytes - 32) as u64) << 1]
}

/// What moves a sum's register so many bytes on, where the scalar instruction then reduces the product over the 32 bits that it adds
/// to it, and over the one that the product lacks.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const fn over(bytes: usize) -> u64 {
    power(8 * bytes - 33) as u64
}

/// The remainder of x to this power, in reflected order.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const fn power(exponent: usize) -> u32 {
    /// The polynomial of CRC32C (RFC 3720, 12.1), reflected.
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let mut remainder = 1u32 << 31;
    let mut at = 0;
    while at < exponent {
        remainder = if remainder & 1 == 1 { remainder >> 1 ^ POLYNOMIAL } else { remainder >> 1 };
        at += 1;
    }
    remainder
}

/// The eight registers from and to a block.
macro_rules! move_block {
    (load) => {
        "vmovdqu64 zmm0, [{state}]
        vmovdqu64 zmm1, [{state} + 64]
        vmovdqu64 zmm2, [{state} + 128]
        vmovdqu64 zmm3, [{state} + 192]
        vmovdqu64 zmm4, [{state} + 256]
        vmovdqu64 zmm5, [{state} + 320]
        vmovdqu64 zmm6, [{state} + 384]
        vmovdqu64 zmm7, [{state} + 448]"
    };
    (store) => {
        "vmovdqu64 [{state}], zmm0
        vmovdqu64 [{state} + 64], zmm1
        vmovdqu64 [{state} + 128], zmm2
        vmovdqu64 [{state} + 192], zmm3
        vmovdqu64 [{state} + 256], zmm4
        vmovdqu64 [{state} + 320], zmm5
        vmovdqu64 [{state} + 384], zmm6
        vmovdqu64 [{state} + 448], zmm7"
    };
}

/// Multiplies a register by the two halves of `ahead`, and adds its part of a block of the range.
macro_rules! fold_register {
    ($ahead:literal, $block:literal, $at:literal, $spare:literal) => {
        concat!(
            "vpclmulqdq zmm",
            $spare,
            ", zmm",
            $at,
            ", ",
            $ahead,
            ", 0x00\n",
            "vpclmulqdq zmm",
            $at,
            ", zmm",
            $at,
            ", ",
            $ahead,
            ", 0x11\n",
            "vpternlogq zmm",
            $at,
            ", zmm",
            $spare,
            ", [{from} + 512 * ",
            $block,
            " + 64 * ",
            $at,
            "], 0x96\n",
            "prefetcht0 [{next} + 512 * ",
            $block,
            " + 64 * ",
            $at,
            "]\n",
        )
    };
}

/// One of the eight steps of a group of the four streams, eight bytes each.
macro_rules! step_streams {
    ($group:literal, $step:literal) => {
        concat!(
            "crc32 {a}, qword ptr [{from} + 3072 + 64 * ",
            $group,
            " + 8 * ",
            $step,
            "]\n",
            "crc32 {b}, qword ptr [{from} + 3328 + 64 * ",
            $group,
            " + 8 * ",
            $step,
            "]\n",
            "crc32 {c}, qword ptr [{from} + 3584 + 64 * ",
            $group,
            " + 8 * ",
            $step,
            "]\n",
            "crc32 {d}, qword ptr [{from} + 3840 + 64 * ",
            $group,
            " + 8 * ",
            $step,
            "]\n",
        )
    };
}

/// Asks for the lines of the next page's streams that a group has.
macro_rules! fetch_streams {
    ($group:literal) => {
        concat!(
            "prefetcht0 [{next} + 3072 + 64 * ",
            $group,
            "]\n",
            "prefetcht0 [{next} + 3328 + 64 * ",
            $group,
            "]\n",
            "prefetcht0 [{next} + 3584 + 64 * ",
            $group,
            "]\n",
            "prefetcht0 [{next} + 3840 + 64 * ",
            $group,
            "]\n",
        )
    };
}

/// One block of a page, and a group of the streams' steps in between where one is named.
macro_rules! fold_block {
    ($ahead:literal, $block:literal $(, streams $group:literal)?) => {
        concat!(
            $(fetch_streams!($group),)?
            fold_register!($ahead, $block, 0, 9),
            $(step_streams!($group, 0),)?
            fold_register!($ahead, $block, 1, 10),
            $(step_streams!($group, 1),)?
            fold_register!($ahead, $block, 2, 11),
            $(step_streams!($group, 2),)?
            fold_register!($ahead, $block, 3, 12),
            $(step_streams!($group, 3),)?
            fold_register!($ahead, $block, 4, 9),
            $(step_streams!($group, 4),)?
            fold_register!($ahead, $block, 5, 10),
            $(step_streams!($group, 5),)?
            fold_register!($ahead, $block, 6, 11),
            $(step_streams!($group, 6),)?
            fold_register!($ahead, $block, 7, 12),
            $(step_streams!($group, 7),)?
        )
    };
}

/// # Safety
/// The processor has AVX-512F, VPCLMULQDQ, PCLMULQDQ and SSE 4.2. `pages` are the addresses of so many readable pages, at least one, and one more
/// address, any.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn fold_pages(state: &mut Folded, pages: *const u64, count: usize) {
    let first = if state.gap { &AHEAD.gap } else { &AHEAD.block };
    let mut register = u64::from(state.register);
    // SAFETY: reads the addresses, the pages and the constants, reads and writes the block, and touches no register but these; the
    // upper halves of vector registers are left clear, as other code expects them.
    unsafe {
        std::arch::asm!(
            "vbroadcasti32x4 zmm8, [{ahead}]",
            "vbroadcasti32x4 zmm15, [{ahead} + 16]",
            "vbroadcasti32x4 zmm14, [{a}]",
            "vmovd xmm13, {d:e}",
            move_block!(load),
            "2:",
            "mov {from}, [{pages}]",
            "mov {next}, [{pages} + 8]",
            fold_block!("zmm14", 0),
            "vpxorq zmm0, zmm0, zmm13",
            "vmovdqa64 zmm14, zmm15",
            "xor {a:e}, {a:e}",
            "xor {b:e}, {b:e}",
            "xor {c:e}, {c:e}",
            "xor {d:e}, {d:e}",
            fold_block!("zmm8", 1, streams 0),
            fold_block!("zmm8", 2, streams 1),
            fold_block!("zmm8", 3, streams 2),
            fold_block!("zmm8", 4, streams 3),
            fold_block!("zmm8", 5),
            "vmovq xmm9, {a}",
            "vmovq xmm10, {b}",
            "vmovq xmm11, {c}",
            "vpclmulqdq xmm9, xmm9, [{ahead} + 32], 0x00",
            "vpclmulqdq xmm10, xmm10, [{ahead} + 32], 0x10",
            "vpclmulqdq xmm11, xmm11, [{ahead} + 48], 0x00",
            "vpxor xmm9, xmm9, xmm10",
            "vpxor xmm9, xmm9, xmm11",
            "vmovq {a}, xmm9",
            "xor {b:e}, {b:e}",
            "crc32 {b}, {a}",
            "xor {d:e}, {b:e}",
            "vmovd xmm13, {d:e}",
            "add {pages}, 8",
            "dec {count}",
            "jnz 2b",
            move_block!(store),
            "vzeroupper",
            ahead = in(reg) &raw const AHEAD,
            pages = inout(reg) pages => _,
            count = inout(reg) count => _,
            from = out(reg) _,
            next = out(reg) _,
            state = in(reg) state.block.as_mut_ptr(),
            a = inout(reg) first.as_ptr() => _,
            b = out(reg) _,
            c = out(reg) _,
            d = inout(reg) register,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
            out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
    state.register = register as u32;
    state.gap = true;
}

/// # Safety
/// As for [`fold_pages`], of blocks.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn fold_blocks(state: &mut Folded, address: u64, blocks: usize) {
    let first = if state.gap { &AHEAD.gap } else { &AHEAD.block };
    // Nothing is known of what comes after, so what is asked for is the blocks themselves.
    // SAFETY: as in `fold_pages`.
    unsafe {
        std::arch::asm!(
            "vbroadcasti32x4 zmm8, [{first}]",
            "vmovd xmm13, {register:e}",
            move_block!(load),
            "2:",
            fold_block!("zmm8", 0),
            "vpxorq zmm0, zmm0, zmm13",
            "vpxor xmm13, xmm13, xmm13",
            "vbroadcasti32x4 zmm8, [{ahead}]",
            "add {from}, 512",
            "dec {blocks}",
            "jnz 2b",
            move_block!(store),
            "vzeroupper",
            ahead = in(reg) &raw const AHEAD,
            first = in(reg) first.as_ptr(),
            register = in(reg) state.register,
            from = inout(reg) address => _,
            blocks = inout(reg) blocks => _,
            next = in(reg) address,
            state = in(reg) state.block.as_mut_ptr(),
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
            // `vzeroupper` clears the upper halves of these, too, whoever uses them.
            out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
    state.register = 0;
    state.gap = false;
}

/// # Safety
/// Never called: see [`is_possible`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn fold_pages(_: &mut Folded, _: *const u64, _: usize) {
    unreachable!("no processor of this kind can");
}

/// # Safety
/// Never called: see [`is_possible`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn fold_blocks(_: &mut Folded, _: u64, _: usize) {
    unreachable!("no processor of this kind can");
}
