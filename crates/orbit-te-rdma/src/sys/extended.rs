//! `ibv_query_device_ex`, which C has only as an inline function over a structure that the bindings leave out. Rule: the structure's tail is
//! laid down here as in rdma-core's `verbs.h`, and is read only where the library says that it is there.

use crate::error::Errno;
use ibverbs_sys::{ibv_context, ibv_device_attr_ex};
use std::ffi::c_void;
use std::mem::size_of;

type QueryDeviceEx =
    unsafe extern "C" fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> std::ffi::c_int;

/// The end of `struct verbs_context`, just before its `struct ibv_context context`. New members are added at the front of the
/// structure, so the distance from the context stays.
#[repr(C)]
struct Tail {
    query_device_ex: Option<QueryDeviceEx>,
    destroy_flow: *const c_void,
    abi_placeholder2: *const c_void,
    create_flow: *const c_void,
    abi_placeholder1: *const c_void,
    open_qp: *const c_void,
    create_qp_ex: *const c_void,
    get_srq_num: *const c_void,
    create_srq_ex: *const c_void,
    open_xrcd: *const c_void,
    close_xrcd: *const c_void,
    abi_placeholder3: u64,
    size: usize,
}

/// The value of `abi_compat` of a context that is part of a `verbs_context`.
const EXTENDED: usize = usize::MAX;

/// # Safety
/// The context is one of libibverbs', and open.
pub(super) unsafe fn query_device_ex(context: *mut ibv_context) -> Result<ibv_device_attr_ex, Errno> {
    // SAFETY: the context is open.
    if unsafe { (*context).abi_compat } as usize != EXTENDED {
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: the library says that the context is the last member of a `verbs_context`, whose end is laid out as in `Tail`; both are
    // aligned to 8 bytes.
    let tail = unsafe { &*context.cast::<u8>().sub(size_of::<Tail>()).cast::<Tail>() };
    // `size` counts the whole structure; one that is shorter than what is read does not have the call.
    let query = tail.query_device_ex.filter(|_| tail.size >= size_of::<Tail>() + size_of::<ibv_context>());
    let query = query.ok_or(Errno::EOPNOTSUPP)?;
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: the provider fills at most so many bytes of our structure; no input means the defaults.
    Errno::check(unsafe { query(context, std::ptr::null(), &mut attr, size_of::<ibv_device_attr_ex>()) })?;
    Ok(attr)
}
