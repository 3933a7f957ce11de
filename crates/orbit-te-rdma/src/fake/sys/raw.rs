//! Objects that programs see by pointer, and memory by address. Rule: an object's place is never used again, so a pointer that is stale is
//! found out; bytes are copied only after the keys were checked.

use crate::error::Errno;
use ibverbs_sys::*;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr::{NonNull, with_exposed_provenance, with_exposed_provenance_mut};

/// An object that a program sees by pointer. It stays where it is until the fabric is gone.
#[derive(Debug)]
pub(in crate::fake) struct RawBox<T>(NonNull<T>);

// SAFETY: the object is written before anybody sees it, and only read here afterwards.
unsafe impl<T> Send for RawBox<T> {}

impl<T> RawBox<T> {
    pub(in crate::fake) fn new(object: T) -> RawBox<T> {
        RawBox(NonNull::from(Box::leak(Box::new(object))))
    }

    pub(in crate::fake) fn pointer(&self) -> NonNull<T> {
        self.0
    }
}

impl<T> Drop for RawBox<T> {
    fn drop(&mut self) {
        // SAFETY: made by `new` from a box, and dropped once; programs hold the fabric as long as they hold the object.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A file that is mapped, as the memory behind a dma-buf.
#[derive(Debug)]
pub(in crate::fake) struct Mapping {
    base: *mut libc::c_void,
    length: usize,
}

// SAFETY: a mapping belongs to the process, and its bytes are reached by address only.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(in crate::fake) fn new(fd: RawFd, offset: u64, length: usize) -> Result<Mapping, Errno> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), length, rights, libc::MAP_SHARED, fd, offset as libc::off_t)
        };
        if base == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(Mapping { base, length }) }
    }

    pub(in crate::fake) fn address(&self) -> u64 {
        self.base.expose_provenance() as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, unmapped once; its key is gone.
        unsafe { libc::munmap(self.base, self.length) };
    }
}

/// Copies between two ranges, which may overlap.
///
/// Both were found through keys of live MRs: whoever registered them promised that they are mapped until the MR is deregistered.
#[inline]
pub(in crate::fake) fn copy(from: u64, to: u64, length: u64) {
    // SAFETY: by the promise of `reg_mr`, as above. The fabric's lock keeps deregistration out meanwhile.
    unsafe {
        let from = with_exposed_provenance::<u8>(from as usize);
        std::ptr::copy(from, with_exposed_provenance_mut(to as usize), length as usize);
    }
}

/// Copies bytes of our own to a range, found as in [`copy`].
#[inline]
pub(in crate::fake) fn fill(to: u64, from: &[u8]) {
    // SAFETY: as in `copy`.
    unsafe { std::ptr::copy(from.as_ptr(), with_exposed_provenance_mut(to as usize), from.len()) };
}

/// Copies the bytes of an inline SGE at post time.
///
/// # Safety
/// The range is readable, as whoever posts an inline WR promises.
pub(in crate::fake) unsafe fn read_into(into: &mut [u8], from: u64) {
    // SAFETY: the caller's promise; `into` is ours alone.
    unsafe { std::ptr::copy(with_exposed_provenance::<u8>(from as usize), into.as_mut_ptr(), into.len()) };
}

/// `ibv_wc` as libibverbs has it; the binding hides some members.
#[repr(C)]
struct WcLayout {
    wr_id: u64,
    status: u32,
    opcode: u32,
    vendor_err: u32,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

const _: () =
    assert!(size_of::<WcLayout>() == size_of::<ibv_wc>() && align_of::<WcLayout>() == align_of::<ibv_wc>());

/// What is in members that verbs leave undefined.
const UNDEFINED: u32 = 0xdead_beef;

/// Fills a place. Members that verbs do not define for its status and opcode get rubbish, as with real devices.
///
/// # Safety
/// The place is the program's, for one `ibv_wc`.
#[inline]
pub(in crate::fake) unsafe fn write_wc(place: *mut ibv_wc, cqe: &crate::fake::queue::Cqe) {
    let success = cqe.status == ibv_wc_status::IBV_WC_SUCCESS;
    let sized = success
        && (cqe.opcode >= ibv_wc_opcode::IBV_WC_RECV || cqe.opcode == ibv_wc_opcode::IBV_WC_RDMA_READ);
    let wc = WcLayout {
        wr_id: cqe.wr_id,
        status: cqe.status,
        opcode: if success { cqe.opcode } else { UNDEFINED },
        vendor_err: if success { UNDEFINED } else { 0x80 | cqe.status },
        byte_len: if sized { cqe.byte_len } else { UNDEFINED },
        imm_data: cqe.imm.unwrap_or(UNDEFINED),
        qp_num: cqe.qp_num,
        src_qp: cqe.src_qp,
        wc_flags: match cqe.imm {
            Some(_) if success => ibv_wc_flags::IBV_WC_WITH_IMM.0,
            _ if success => 0,
            _ => UNDEFINED,
        },
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
    // SAFETY: the caller's promise; both types have the same layout, which is asserted above and tested below.
    unsafe { place.cast::<WcLayout>().write(wc) };
}

/// Whether a number of verbs' fits.
pub(super) fn count(n: c_int) -> Option<u32> {
    u32::try_from(n).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::{Done, Failed, Wc};
    use crate::fake::queue::{Covers, Cqe};
    use crate::status::WcStatus;

    #[test]
    fn a_filled_place_reads_as_it_was_filled() {
        let mut cqe = Cqe {
            wr_id: 0x1122_3344_5566_7788,
            status: 0,
            opcode: ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
            byte_len: 77,
            imm: Some(0x0102_0304u32.to_be()),
            qp_num: 9,
            src_qp: 8,
            solicited: false,
            qp: 0,
            covers: Covers::Recv,
        };
        let mut wc = Wc::default();
        // SAFETY: the place is ours.
        unsafe { write_wc((&raw mut wc).cast(), &cqe) };
        assert_eq!((wc.token(), wc.qp_num(), wc.is_success()), (cqe.wr_id, 9, true));
        assert_eq!(wc.completion().result, Ok(Done::ReceiveWrite { bytes: 77, imm: 0x0102_0304 }));
        cqe.status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        // SAFETY: as above.
        unsafe { write_wc((&raw mut wc).cast(), &cqe) };
        assert_eq!(wc.completion().result, Err(Failed { status: WcStatus::Flushed, vendor_err: 0x85 }));
    }
}
