//! Shortening a payload to one block of the same CRC32C. Rule: each byte is read once, by an instruction that the compiler does not
//! see: memory that others may write has no reference made to it, and needs no copy.
//!
//! A CRC is the remainder of a division of polynomials, so a block may be multiplied to where the next one is, and added to it, without
//! the remainder being another one: V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
//! Intel, 2009. The block here is eight registers of AVX-512.

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 512;

/// Adds the first whole blocks of a range to `block`; how many bytes they were, none on a processor that can't. `before` is the sum of
/// what is before them where nothing is in the block yet. The sum of the block, begun with a register of zero, has all of it in it.
///
/// # Safety
/// The range is readable for the length of the call.
pub(super) unsafe fn fold(
    before: Option<u32>,
    address: u64,
    length: usize,
    block: &mut [u8; BLOCK_BYTES],
) -> usize {
    let blocks = length / BLOCK_BYTES;
    if blocks == 0 || !is_possible() {
        return 0;
    }
    if before.is_some() {
        block.fill(0);
    }
    // SAFETY: the processor has the instructions, and the caller vouches for the range, which has these blocks.
    unsafe { fold_blocks(before.map_or(0, |crc| !crc), address, blocks, block) };
    blocks * BLOCK_BYTES
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) fn is_possible() -> bool {
    // Each answer is kept by the standard library.
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) fn is_possible() -> bool {
    false
}

/// What moves a register's two halves one block on. In the reflected order of CRC32C the lower half is the earlier one; 32 is the
/// length of the remainder, by which the halves' places differ from the exponents.
#[cfg(all(target_arch = "x86_64", not(miri)))]
static AHEAD: [u64; 2] = [power(8 * BLOCK_BYTES as u32 + 32), power(8 * BLOCK_BYTES as u32 - 32)];

/// The remainder of x to this power, in reflected order, moved by the one bit that the product of two reflected numbers lacks.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const fn power(exponent: u32) -> u64 {
    /// The polynomial of CRC32C (RFC 3720, 12.1), reflected.
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let mut remainder = 1u32 << 31;
    let mut at = 0;
    while at < exponent {
        remainder = if remainder & 1 == 1 { remainder >> 1 ^ POLYNOMIAL } else { remainder >> 1 };
        at += 1;
    }
    (remainder as u64) << 1
}

/// # Safety
/// The processor has AVX-512F and VPCLMULQDQ; `blocks`, at least one, are readable at this address. `register` goes into the first of
/// them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn fold_blocks(register: u32, address: u64, blocks: usize, block: &mut [u8; BLOCK_BYTES]) {
    // SAFETY: reads `blocks` blocks at the address and two constants, reads and writes `block`, and touches no register but these; the
    // upper halves of vector registers are left clear, as other code expects them.
    unsafe {
        std::arch::asm!(
            "vbroadcasti32x4 zmm8, [{ahead}]",
            "vmovd xmm13, {register:e}",
            "vmovdqu64 zmm0, [{block}]",
            "vmovdqu64 zmm1, [{block} + 64]",
            "vmovdqu64 zmm2, [{block} + 128]",
            "vmovdqu64 zmm3, [{block} + 192]",
            "vmovdqu64 zmm4, [{block} + 256]",
            "vmovdqu64 zmm5, [{block} + 320]",
            "vmovdqu64 zmm6, [{block} + 384]",
            "vmovdqu64 zmm7, [{block} + 448]",
            "2:",
            "vpclmulqdq zmm9, zmm0, zmm8, 0x00",
            "vpclmulqdq zmm0, zmm0, zmm8, 0x11",
            "vpternlogq zmm0, zmm9, [{from}], 0x96",
            "vpxorq zmm0, zmm0, zmm13",
            "vpxor xmm13, xmm13, xmm13",
            "vpclmulqdq zmm10, zmm1, zmm8, 0x00",
            "vpclmulqdq zmm1, zmm1, zmm8, 0x11",
            "vpternlogq zmm1, zmm10, [{from} + 64], 0x96",
            "vpclmulqdq zmm11, zmm2, zmm8, 0x00",
            "vpclmulqdq zmm2, zmm2, zmm8, 0x11",
            "vpternlogq zmm2, zmm11, [{from} + 128], 0x96",
            "vpclmulqdq zmm12, zmm3, zmm8, 0x00",
            "vpclmulqdq zmm3, zmm3, zmm8, 0x11",
            "vpternlogq zmm3, zmm12, [{from} + 192], 0x96",
            "vpclmulqdq zmm9, zmm4, zmm8, 0x00",
            "vpclmulqdq zmm4, zmm4, zmm8, 0x11",
            "vpternlogq zmm4, zmm9, [{from} + 256], 0x96",
            "vpclmulqdq zmm10, zmm5, zmm8, 0x00",
            "vpclmulqdq zmm5, zmm5, zmm8, 0x11",
            "vpternlogq zmm5, zmm10, [{from} + 320], 0x96",
            "vpclmulqdq zmm11, zmm6, zmm8, 0x00",
            "vpclmulqdq zmm6, zmm6, zmm8, 0x11",
            "vpternlogq zmm6, zmm11, [{from} + 384], 0x96",
            "vpclmulqdq zmm12, zmm7, zmm8, 0x00",
            "vpclmulqdq zmm7, zmm7, zmm8, 0x11",
            "vpternlogq zmm7, zmm12, [{from} + 448], 0x96",
            "add {from}, 512",
            "dec {blocks}",
            "jnz 2b",
            "vmovdqu64 [{block}], zmm0",
            "vmovdqu64 [{block} + 64], zmm1",
            "vmovdqu64 [{block} + 128], zmm2",
            "vmovdqu64 [{block} + 192], zmm3",
            "vmovdqu64 [{block} + 256], zmm4",
            "vmovdqu64 [{block} + 320], zmm5",
            "vmovdqu64 [{block} + 384], zmm6",
            "vmovdqu64 [{block} + 448], zmm7",
            "vzeroupper",
            ahead = in(reg) AHEAD.as_ptr(),
            register = in(reg) register,
            from = inout(reg) address => _,
            blocks = inout(reg) blocks => _,
            block = in(reg) block.as_mut_ptr(),
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
            // `vzeroupper` clears the upper halves of these, too, whoever uses them.
            out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// # Safety
/// Never called: see [`is_possible`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn fold_blocks(_: u32, _: u64, _: usize, _: &mut [u8; BLOCK_BYTES]) {
    unreachable!("no processor of this kind can");
}
