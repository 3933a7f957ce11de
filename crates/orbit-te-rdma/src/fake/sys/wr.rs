//! Chains of WRs as programs post them, read one by one.

use super::raw::{count, read_into};
use crate::access::MrAccess;
use crate::error::Errno;
use crate::fake::post::SendWish;
use crate::fake::queue::Wqe;
use crate::fake::state::{Bind, State};
use ibverbs_sys::*;
use std::ffi::c_int;

/// The SGEs of a WR.
///
/// # Safety
/// The list has so many.
unsafe fn sges<'a>(list: *mut ibv_sge, num: c_int) -> Result<&'a [ibv_sge], Errno> {
    let num = count(num).ok_or(Errno::EINVAL)?;
    if num == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(list, num as usize) })
}

/// Takes a chain of sends, up to the first that is refused.
///
/// # Safety
/// As [`crate::sys::Verbs::post_send`].
pub(super) unsafe fn post_send(
    state: &mut State,
    qp: u32,
    mut wr: *mut ibv_send_wr,
    bad: &mut *mut ibv_send_wr,
) -> Result<(), Errno> {
    *bad = wr;
    let mut short = state.begin_send(qp)?;
    let mut result = Ok(());
    while !wr.is_null() {
        let taken = match &mut short {
            Some((0, errno)) => Err(*errno),
            // SAFETY: the chain is valid during the call, by the caller's promise.
            _ => unsafe { take(state, qp, &*wr) },
        };
        if let Err(errno) = taken {
            *bad = wr;
            result = Err(errno);
            break;
        }
        if let Some((left, _)) = &mut short {
            *left -= 1;
        }
        // SAFETY: as above.
        wr = unsafe { (*wr).next };
    }
    state.end_post(qp);
    result
}

/// # Safety
/// As [`crate::sys::Verbs::post_send`], for one WR.
#[inline]
unsafe fn take(state: &mut State, qp: u32, wr: &ibv_send_wr) -> Result<(), Errno> {
    let has = |flag: ibv_send_flags| wr.send_flags & flag.0 != 0;
    // SAFETY: the list has so many, by the caller's promise.
    let sges = unsafe { sges(wr.sg_list, wr.num_sge) }?;
    let local = matches!(wr.opcode, ibv_wr_opcode::IBV_WR_LOCAL_INV | ibv_wr_opcode::IBV_WR_BIND_MW);
    let mut wqe = Wqe {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        signaled: has(ibv_send_flags::IBV_SEND_SIGNALED),
        solicited: has(ibv_send_flags::IBV_SEND_SOLICITED),
        inline: has(ibv_send_flags::IBV_SEND_INLINE),
        // SAFETY: both members of the union are 32 bits without invalid patterns.
        imm: unsafe { wr.__bindgen_anon_1.imm_data },
        ..Wqe::default()
    };
    let mut bind = None;
    if local {
        if wqe.inline || !sges.is_empty() {
            return Err(Errno::EINVAL);
        }
        wqe.rkey = wqe.imm;
        if wr.opcode == ibv_wr_opcode::IBV_WR_BIND_MW {
            // SAFETY: the opcode says which member is meant; window and MR are live, by the caller's promise.
            let (posted, rkey) = unsafe {
                let posted = &wr.__bindgen_anon_2.bind_mw;
                (bind_of(posted.mw, &posted.bind_info), posted.rkey)
            };
            (wqe.rkey, bind) = (rkey, Some(posted));
        }
    } else {
        // SAFETY: numbers without invalid patterns; WRs that name no remote memory leave them unread.
        (wqe.remote_addr, wqe.rkey) = unsafe { (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) };
    }
    if wqe.inline {
        // SAFETY: the caller's promise for inline WRs.
        unsafe { carry_inline(state, qp, sges) }?;
    }
    state.take_send(qp, SendWish { wqe, sges, bind })
}

/// Copies the bytes of an inline WR into the place that the WR takes next, if it will fit.
///
/// # Safety
/// The ranges are readable.
unsafe fn carry_inline(state: &mut State, qp: u32, sges: &[ibv_sge]) -> Result<(), Errno> {
    let sq = &mut state.qps[qp as usize].sq;
    if sq.is_full() {
        return Err(Errno::ENOMEM);
    }
    let mut room = sq.inline_room();
    for sge in sges {
        let (now, later) = room.split_at_mut_checked(sge.length as usize).ok_or(Errno::EINVAL)?;
        // SAFETY: the caller's promise.
        unsafe { read_into(now, sge.addr) };
        room = later;
    }
    Ok(())
}

/// # Safety
/// The window is live, and so is the MR unless it is null.
pub(super) unsafe fn bind_of(mw: *mut ibv_mw, info: &ibv_mw_bind_info) -> Bind {
    // SAFETY: the caller's promise.
    let (mw, present) = unsafe { ((*mw).handle, (*mw).rkey) };
    Bind {
        mw,
        present,
        // SAFETY: the caller's promise.
        mr: (!info.mr.is_null()).then(|| unsafe { (*info.mr).handle }),
        address: info.addr,
        length: info.length,
        access: MrAccess::from_bits_truncate(info.mw_access_flags),
    }
}

/// Takes a chain of receives, up to the first that is refused.
///
/// # Safety
/// As [`crate::sys::Verbs::post_recv`].
pub(super) unsafe fn post_recv(
    mut wr: *mut ibv_recv_wr,
    bad: &mut *mut ibv_recv_wr,
    mut take: impl FnMut(u64, &[ibv_sge]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    while !wr.is_null() {
        // SAFETY: the chain and its lists are valid during the call, by the caller's promise.
        let (one, taken) = unsafe {
            let one = &*wr;
            (one, sges(one.sg_list, one.num_sge).and_then(|sges| take(one.wr_id, sges)))
        };
        if let Err(errno) = taken {
            *bad = wr;
            return Err(errno);
        }
        wr = one.next;
    }
    Ok(())
}
