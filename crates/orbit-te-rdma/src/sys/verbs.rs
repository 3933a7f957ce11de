//! The table of verbs. Rule: one method for each call, as thin as the call itself, so that a table in memory can stand in for a device.

use crate::access::MrAccess;
use crate::device::DeviceInfo;
use crate::error::Errno;
use ibverbs_sys::*;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// All calls of verbs that the crate makes. Callable from any thread.
///
/// Pointers go in as verbs have them, and come out not null. The calls of the hot path ([`post_send`](Verbs::post_send) and its like)
/// give the plain number that verbs give: 0 or an errno, or a count.
///
/// # Safety
/// An implementor gives pointers to objects whose public fields are as libibverbs fills them, and which stay valid until the call that
/// destroys them succeeds. It touches registered memory only for WRs that were posted, while its MR is registered.
///
/// # Safety of the methods
/// Each pointer that goes in came out of this same table, and what it points to was not destroyed; it is destroyed by one thread,
/// while no other uses it. What else a method asks for is said there.
#[allow(clippy::missing_safety_doc)] // Said once, above.
pub unsafe trait Verbs: Send + Sync {
    /// All devices.
    ///
    /// # Errors
    /// Those of `ibv_get_device_list`, as for every method here: those of the call that it is named after.
    fn devices(&self) -> Result<Vec<DeviceInfo>, Errno>;

    /// The NUMA node of a device.
    fn numa_node(&self, device: &str) -> Option<u32>;

    /// Opens a device by its name; `ENODEV` if there is none of that name.
    fn open_device(&self, name: &str) -> Result<NonNull<ibv_context>, Errno>;

    /// Closes a device. Nothing made from the context is left.
    unsafe fn close_device(&self, context: *mut ibv_context) -> Result<(), Errno>;

    /// What the device has and takes.
    unsafe fn query_device(&self, context: *mut ibv_context) -> Result<ibv_device_attr, Errno>;

    /// The same and more, of devices and libraries that have it.
    unsafe fn query_device_ex(&self, context: *mut ibv_context) -> Result<ibv_device_attr_ex, Errno>;

    /// What a port is.
    unsafe fn query_port(&self, context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, Errno>;

    /// The places that are taken in the GID tables of all ports.
    unsafe fn query_gid_table(&self, context: *mut ibv_context) -> Result<Vec<ibv_gid_entry>, Errno>;

    /// An entry of a port's P_Key table, in the byte order of this machine.
    unsafe fn query_pkey(&self, context: *mut ibv_context, port: u8, index: u16) -> Result<u16, Errno>;

    /// The descriptor that becomes readable with an async event. The context's; nobody else closes it.
    unsafe fn async_fd(&self, context: *mut ibv_context) -> RawFd {
        // SAFETY: the context is open, as the caller promises.
        unsafe { (*context).async_fd }
    }

    /// Takes an async event; waits for one unless the descriptor is non-blocking, which then gives `EAGAIN`.
    unsafe fn get_async_event(&self, context: *mut ibv_context) -> Result<ibv_async_event, Errno>;

    /// Gives an async event back. What it is about can't be destroyed before. Exactly once for each.
    unsafe fn ack_async_event(&self, event: &mut ibv_async_event);

    /// Makes a protection domain.
    unsafe fn alloc_pd(&self, context: *mut ibv_context) -> Result<NonNull<ibv_pd>, Errno>;

    /// Frees a PD; `EBUSY` while anything is in it.
    unsafe fn dealloc_pd(&self, pd: *mut ibv_pd) -> Result<(), Errno>;

    /// Registers memory. Peers name its bytes by addresses that begin at `iova`. The memory is mapped until the MR is deregistered.
    unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        address: *mut u8,
        length: usize,
        iova: u64,
        access: MrAccess,
    ) -> Result<NonNull<ibv_mr>, Errno>;

    /// Registers memory of another device, by its dma-buf.
    unsafe fn reg_dmabuf_mr(
        &self,
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: RawFd,
        access: MrAccess,
    ) -> Result<NonNull<ibv_mr>, Errno>;

    /// Ends a registration; `EBUSY` while windows are bound to it.
    unsafe fn dereg_mr(&self, mr: *mut ibv_mr) -> Result<(), Errno>;

    /// Makes a memory window of type 1 or 2 ([`IBV_MW_TYPE_1`], [`IBV_MW_TYPE_2`]).
    unsafe fn alloc_mw(&self, pd: *mut ibv_pd, kind: ibv_mw_type) -> Result<NonNull<ibv_mw>, Errno>;

    /// Frees a window, bound or not.
    unsafe fn dealloc_mw(&self, mw: *mut ibv_mw) -> Result<(), Errno>;

    /// Posts a bind of a window of type 1. Windows of type 2 are bound by a WR ([`ibv_wr_opcode::IBV_WR_BIND_MW`]).
    unsafe fn bind_mw(&self, qp: *mut ibv_qp, mw: *mut ibv_mw, bind: &mut ibv_mw_bind) -> Result<(), Errno>;

    /// Makes a completion channel.
    unsafe fn create_comp_channel(
        &self,
        context: *mut ibv_context,
    ) -> Result<NonNull<ibv_comp_channel>, Errno>;

    /// The descriptor that becomes readable with a completion event. The channel's; nobody else closes it.
    unsafe fn comp_channel_fd(&self, channel: *mut ibv_comp_channel) -> RawFd {
        // SAFETY: the channel is there, as the caller promises.
        unsafe { (*channel).fd }
    }

    /// Frees a channel; `EBUSY` while a CQ uses it.
    unsafe fn destroy_comp_channel(&self, channel: *mut ibv_comp_channel) -> Result<(), Errno>;

    /// Makes a CQ for at least so many CQEs. `channel` may be null; `cookie` comes back with its events.
    unsafe fn create_cq(
        &self,
        context: *mut ibv_context,
        cqe: u32,
        cookie: u64,
        channel: *mut ibv_comp_channel,
        vector: u32,
    ) -> Result<NonNull<ibv_cq>, Errno>;

    /// Frees a CQ; `EBUSY` while a QP uses it.
    unsafe fn destroy_cq(&self, cq: *mut ibv_cq) -> Result<(), Errno>;

    /// Asks for one event at the next CQE (or the next solicited one). 0 or an errno.
    unsafe fn req_notify_cq(&self, cq: *mut ibv_cq, solicited_only: bool) -> c_int;

    /// Takes a completion event, as [`Verbs::get_async_event`] does; gives the CQ and its cookie.
    unsafe fn get_cq_event(&self, channel: *mut ibv_comp_channel) -> Result<(NonNull<ibv_cq>, u64), Errno>;

    /// Gives completion events back. The CQ can't be destroyed before.
    unsafe fn ack_cq_events(&self, cq: *mut ibv_cq, count: u32);

    /// Takes CQEs; gives how many, or a negative errno. `wc` has room for `most`.
    unsafe fn poll_cq(&self, cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int;

    /// Makes a QP. The attributes come back with what was really given.
    unsafe fn create_qp(
        &self,
        pd: *mut ibv_pd,
        attr: &mut ibv_qp_init_attr,
    ) -> Result<NonNull<ibv_qp>, Errno>;

    /// Changes a QP's state and attributes.
    unsafe fn modify_qp(
        &self,
        qp: *mut ibv_qp,
        attr: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), Errno>;

    /// Reads a QP's state and attributes.
    unsafe fn query_qp(
        &self,
        qp: *mut ibv_qp,
        mask: ibv_qp_attr_mask,
    ) -> Result<(ibv_qp_attr, ibv_qp_init_attr), Errno>;

    /// Frees a QP. When this has succeeded, no memory is touched for its WRs any more.
    unsafe fn destroy_qp(&self, qp: *mut ibv_qp) -> Result<(), Errno>;

    /// Posts a chain of WRs: 0 or an errno, and then `bad` is the first that was not posted. The WRs and their SGEs are read during the
    /// call; the memory of the SGEs stays as it must for the WR until that has completed.
    unsafe fn post_send(&self, qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int;

    /// Posts a chain of receives, as [`Verbs::post_send`].
    unsafe fn post_recv(&self, qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int;

    /// Makes a queue of receives for several QPs.
    unsafe fn create_srq(
        &self,
        pd: *mut ibv_pd,
        attr: &mut ibv_srq_init_attr,
    ) -> Result<NonNull<ibv_srq>, Errno>;

    /// Frees an SRQ; `EBUSY` while a QP uses it.
    unsafe fn destroy_srq(&self, srq: *mut ibv_srq) -> Result<(), Errno>;

    /// Posts a chain of receives to an SRQ, as [`Verbs::post_send`].
    unsafe fn post_srq_recv(
        &self,
        srq: *mut ibv_srq,
        wr: *mut ibv_recv_wr,
        bad: &mut *mut ibv_recv_wr,
    ) -> c_int;
}
