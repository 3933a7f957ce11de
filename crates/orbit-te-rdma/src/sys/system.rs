//! The table of verbs filled by libibverbs. Rule: devices are listed by `ibverbs`; everything else is the call itself.

use super::verbs::Verbs;
use super::{extended, os, shims};
use crate::access::MrAccess;
use crate::device::{DeviceInfo, NodeType};
use crate::error::{Errno, Unavailable};
use crate::sysfs;
use ibverbs_sys::*;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};

/// The machine's verbs.
#[derive(Debug, Clone)]
pub struct SystemVerbs {
    sysfs: PathBuf,
}

impl SystemVerbs {
    /// Opens the library and looks for a device that may be opened.
    ///
    /// # Errors
    /// The first step that failed, with the remedy.
    pub fn load() -> Result<SystemVerbs, Unavailable> {
        SystemVerbs::load_from(Path::new("/sys"))
    }

    /// The same, with sysfs elsewhere.
    ///
    /// # Errors
    /// As [`SystemVerbs::load`].
    pub fn load_from(sysfs: &Path) -> Result<SystemVerbs, Unavailable> {
        shims::library().map_err(|reason| Unavailable::NoLibrary { reason })?;
        if let Some(symbol) = shims::missing() {
            return Err(Unavailable::NoSymbol { symbol });
        }
        let verbs = SystemVerbs { sysfs: sysfs.to_path_buf() };
        let devices = verbs.devices().map_err(|errno| match errno {
            Errno::ENOSYS => Unavailable::NoKernelSupport { errno },
            errno => Unavailable::NoList { errno },
        })?;
        let files = sysfs::character_devices(sysfs);
        if devices.is_empty() {
            let names: Vec<String> = files.into_iter().map(|(device, _)| device).collect();
            return Err(match names.is_empty() {
                true => Unavailable::NoDevice,
                false => Unavailable::NoProvider { devices: names.join(", ") },
            });
        }
        may_open_one(&devices, &files)?;
        Ok(verbs)
    }
}

/// Whether at least one device may be opened. A device whose file is not known may be tried.
fn may_open_one(devices: &[DeviceInfo], files: &[(String, String)]) -> Result<(), Unavailable> {
    let mut denied = None;
    for device in devices {
        let Some((_, file)) = files.iter().find(|(name, _)| *name == device.name) else { return Ok(()) };
        let path = format!("/dev/infiniband/{file}");
        match os::may_open(&path) {
            Ok(()) => return Ok(()),
            Err(errno) => denied = denied.or(Some(Unavailable::NoPermission { path, errno })),
        }
    }
    denied.map_or(Ok(()), Err)
}

/// Of a call that gives a pointer, or null and an errno aside.
fn some<T>(pointer: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(pointer).ok_or_else(Errno::last)
}

/// Calls a function of a context's table: what C has as inline functions.
macro_rules! op {
    ($context:expr, $op:ident($($arg:expr),*), $absent:expr) => {
        match (*$context).ops.$op {
            Some(function) => function($($arg),*),
            None => $absent,
        }
    };
}

// SAFETY: each method is one call of libibverbs, which keeps these promises.
unsafe impl Verbs for SystemVerbs {
    fn devices(&self) -> Result<Vec<DeviceInfo>, Errno> {
        let list = ibverbs::devices().map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
        let mut found = Vec::with_capacity(list.len());
        for device in &list {
            let Some(name) = device.name() else { continue };
            let name = name.to_string_lossy().into_owned();
            let guid = device.guid().map(u64::from).unwrap_or_default();
            found.push(DeviceInfo { node: node_type(&name), name, guid });
        }
        Ok(found)
    }

    fn numa_node(&self, device: &str) -> Option<u32> {
        sysfs::numa_node(&self.sysfs, device)
    }

    fn open_device(&self, name: &str) -> Result<NonNull<ibv_context>, Errno> {
        with_device(name, |device| {
            // SAFETY: the device is in the list, which is freed afterwards; the context has its own hold on it.
            some(unsafe { ibv_open_device(device) })
        })?
    }

    unsafe fn close_device(&self, context: *mut ibv_context) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        Errno::check(unsafe { ibv_close_device(context) })
    }

    unsafe fn query_device(&self, context: *mut ibv_context) -> Result<ibv_device_attr, Errno> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the trait's promise; the structure is ours.
        Errno::check(unsafe { ibv_query_device(context, &mut attr) })?;
        Ok(attr)
    }

    unsafe fn query_device_ex(&self, context: *mut ibv_context) -> Result<ibv_device_attr_ex, Errno> {
        // SAFETY: the trait's promise.
        unsafe { extended::query_device_ex(context) }
    }

    unsafe fn query_port(&self, context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, Errno> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the trait's promise; the call fills the first members of the structure, which is ours.
        Errno::check(unsafe { ibv_query_port(context, port, (&raw mut attr).cast()) })?;
        Ok(attr)
    }

    unsafe fn query_gid_table(&self, context: *mut ibv_context) -> Result<Vec<ibv_gid_entry>, Errno> {
        // SAFETY: the trait's promise.
        let ports = unsafe { self.query_device(context) }?.phys_port_cnt;
        let mut room = 0;
        for port in 1..=ports {
            // SAFETY: the trait's promise.
            room += unsafe { self.query_port(context, port) }?.gid_tbl_len.max(0) as usize;
        }
        let mut table = vec![ibv_gid_entry::default(); room];
        // SAFETY: the trait's promise; the table has room for so many entries of this size.
        let filled =
            unsafe { _ibv_query_gid_table(context, table.as_mut_ptr(), room, 0, size_of::<ibv_gid_entry>()) };
        if filled < 0 {
            return Err(Errno(-filled as i32));
        }
        table.truncate(filled as usize);
        Ok(table)
    }

    unsafe fn query_pkey(&self, context: *mut ibv_context, port: u8, index: u16) -> Result<u16, Errno> {
        let mut pkey = 0;
        // SAFETY: the trait's promise; the number is ours.
        Errno::check(unsafe { ibv_query_pkey(context, port, index.into(), &mut pkey) })?;
        Ok(u16::from_be(pkey))
    }

    unsafe fn get_async_event(&self, context: *mut ibv_context) -> Result<ibv_async_event, Errno> {
        let mut event = ibv_async_event::default();
        // SAFETY: the trait's promise; the structure is ours.
        Errno::check(unsafe { ibv_get_async_event(context, &mut event) })?;
        Ok(event)
    }

    unsafe fn ack_async_event(&self, event: &mut ibv_async_event) {
        // SAFETY: the trait's promise.
        unsafe { ibv_ack_async_event(event) };
    }

    unsafe fn alloc_pd(&self, context: *mut ibv_context) -> Result<NonNull<ibv_pd>, Errno> {
        // SAFETY: the trait's promise.
        some(unsafe { ibv_alloc_pd(context) })
    }

    unsafe fn dealloc_pd(&self, pd: *mut ibv_pd) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        Errno::check(unsafe { ibv_dealloc_pd(pd) })
    }

    unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        address: *mut u8,
        length: usize,
        iova: u64,
        access: MrAccess,
    ) -> Result<NonNull<ibv_mr>, Errno> {
        let address = address.cast::<c_void>();
        // As the macro of this name does in C: only the newer call knows optional flags and other addresses.
        if access.intersects(MrAccess::OPTIONAL) || iova != address as u64 {
            // SAFETY: the trait's promise.
            return some(unsafe { ibv_reg_mr_iova2(pd, address, length, iova, access.bits()) });
        }
        // SAFETY: the trait's promise.
        some(unsafe { ibv_reg_mr(pd, address, length, access.bits() as c_int) })
    }

    unsafe fn reg_dmabuf_mr(
        &self,
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: RawFd,
        access: MrAccess,
    ) -> Result<NonNull<ibv_mr>, Errno> {
        // SAFETY: the trait's promise.
        some(unsafe { ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access.bits() as c_int) })
    }

    unsafe fn dereg_mr(&self, mr: *mut ibv_mr) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        Errno::check(unsafe { ibv_dereg_mr(mr) })
    }

    unsafe fn alloc_mw(&self, pd: *mut ibv_pd, kind: ibv_mw_type) -> Result<NonNull<ibv_mw>, Errno> {
        // SAFETY: the trait's promise.
        let mw = unsafe { op!((*pd).context, alloc_mw(pd, kind), return Err(Errno::EOPNOTSUPP)) };
        some(mw)
    }

    unsafe fn dealloc_mw(&self, mw: *mut ibv_mw) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        Errno::check(unsafe { op!((*mw).context, dealloc_mw(mw), libc::EOPNOTSUPP) })
    }

    unsafe fn bind_mw(&self, qp: *mut ibv_qp, mw: *mut ibv_mw, bind: &mut ibv_mw_bind) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        Errno::check(unsafe { op!((*qp).context, bind_mw(qp, mw, bind), libc::EOPNOTSUPP) })
    }

    unsafe fn create_comp_channel(
        &self,
        context: *mut ibv_context,
    ) -> Result<NonNull<ibv_comp_channel>, Errno> {
        // SAFETY: the trait's promise.
        some(unsafe { ibv_create_comp_channel(context) })
    }

    unsafe fn destroy_comp_channel(&self, channel: *mut ibv_comp_channel) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        Errno::check(unsafe { ibv_destroy_comp_channel(channel) })
    }

    unsafe fn create_cq(
        &self,
        context: *mut ibv_context,
        cqe: u32,
        cookie: u64,
        channel: *mut ibv_comp_channel,
        vector: u32,
    ) -> Result<NonNull<ibv_cq>, Errno> {
        let cqe = c_int::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        let cookie = cookie as usize as *mut c_void;
        // SAFETY: the trait's promise; the cookie is only carried.
        some(unsafe { ibv_create_cq(context, cqe, cookie, channel, vector as c_int) })
    }

    unsafe fn destroy_cq(&self, cq: *mut ibv_cq) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        Errno::check(unsafe { ibv_destroy_cq(cq) })
    }

    #[inline]
    unsafe fn req_notify_cq(&self, cq: *mut ibv_cq, solicited_only: bool) -> c_int {
        // SAFETY: the trait's promise.
        unsafe { op!((*cq).context, req_notify_cq(cq, solicited_only.into()), libc::EOPNOTSUPP) }
    }

    unsafe fn get_cq_event(&self, channel: *mut ibv_comp_channel) -> Result<(NonNull<ibv_cq>, u64), Errno> {
        let (mut cq, mut cookie) = (null_mut(), null_mut());
        // SAFETY: the trait's promise; the pointers are ours.
        Errno::check(unsafe { ibv_get_cq_event(channel, &mut cq, &mut cookie) })?;
        Ok((NonNull::new(cq).ok_or(Errno::EIO)?, cookie as u64))
    }

    unsafe fn ack_cq_events(&self, cq: *mut ibv_cq, count: u32) {
        // SAFETY: the trait's promise.
        unsafe { ibv_ack_cq_events(cq, count) };
    }

    #[inline]
    unsafe fn poll_cq(&self, cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
        // SAFETY: the trait's promise.
        let got = unsafe { op!((*cq).context, poll_cq(cq, most, wc), -libc::EOPNOTSUPP) };
        // Providers have numbers of their own for a CQ that is broken.
        if got < 0 { -libc::EIO } else { got }
    }

    unsafe fn create_qp(
        &self,
        pd: *mut ibv_pd,
        attr: &mut ibv_qp_init_attr,
    ) -> Result<NonNull<ibv_qp>, Errno> {
        // SAFETY: the trait's promise.
        some(unsafe { ibv_create_qp(pd, attr) })
    }

    unsafe fn modify_qp(
        &self,
        qp: *mut ibv_qp,
        attr: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        Errno::check(unsafe { ibv_modify_qp(qp, attr, mask.0 as c_int) })
    }

    unsafe fn query_qp(
        &self,
        qp: *mut ibv_qp,
        mask: ibv_qp_attr_mask,
    ) -> Result<(ibv_qp_attr, ibv_qp_init_attr), Errno> {
        let mut attr = ibv_qp_attr::default();
        let mut init = ibv_qp_init_attr::default();
        // SAFETY: the trait's promise; the structures are ours.
        Errno::check(unsafe { ibv_query_qp(qp, &mut attr, mask.0 as c_int, &mut init) })?;
        Ok((attr, init))
    }

    unsafe fn destroy_qp(&self, qp: *mut ibv_qp) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        Errno::check(unsafe { ibv_destroy_qp(qp) })
    }

    #[inline]
    unsafe fn post_send(&self, qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int {
        // SAFETY: the trait's promise.
        unsafe { op!((*qp).context, post_send(qp, wr, bad), libc::EOPNOTSUPP) }
    }

    #[inline]
    unsafe fn post_recv(&self, qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
        // SAFETY: the trait's promise.
        unsafe { op!((*qp).context, post_recv(qp, wr, bad), libc::EOPNOTSUPP) }
    }

    unsafe fn create_srq(
        &self,
        pd: *mut ibv_pd,
        attr: &mut ibv_srq_init_attr,
    ) -> Result<NonNull<ibv_srq>, Errno> {
        // SAFETY: the trait's promise.
        some(unsafe { ibv_create_srq(pd, attr) })
    }

    unsafe fn destroy_srq(&self, srq: *mut ibv_srq) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        Errno::check(unsafe { ibv_destroy_srq(srq) })
    }

    #[inline]
    unsafe fn post_srq_recv(
        &self,
        srq: *mut ibv_srq,
        wr: *mut ibv_recv_wr,
        bad: &mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: the trait's promise.
        unsafe { op!((*srq).context, post_srq_recv(srq, wr, bad), libc::EOPNOTSUPP) }
    }
}

/// Does something with a device of the list, found by its name.
fn with_device<T>(name: &str, look: impl FnOnce(*mut ibv_device) -> T) -> Result<T, Errno> {
    let mut count = 0;
    // SAFETY: the number is ours.
    let list = some(unsafe { ibv_get_device_list(&mut count) })?;
    let mut places = 0..count.max(0) as usize;
    // SAFETY: the list has so many devices.
    let mut devices = places.by_ref().map(|at| unsafe { *list.as_ptr().add(at) });
    let found = devices.find(|device| {
        // SAFETY: the device is in the list, and its name ends with a zero.
        let found = unsafe {
            NonNull::new(ibv_get_device_name(*device).cast_mut()).map(|n| CStr::from_ptr(n.as_ptr()))
        };
        found.is_some_and(|found| found.to_bytes() == name.as_bytes())
    });
    let looked = found.map(look);
    // SAFETY: the list is from the call above, and freed once.
    unsafe { ibv_free_device_list(list.as_ptr()) };
    looked.ok_or(Errno::ENODEV)
}

/// What kind a device is; not said by `ibverbs`. Unknown, of one that vanished meanwhile.
fn node_type(name: &str) -> NodeType {
    // SAFETY: the device is in the list while this looks at it.
    let number = with_device(name, |device| unsafe { (*device).node_type });
    NodeType::from_number(number.unwrap_or(IBV_NODE_UNKNOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_verbs_says_which_step_failed() {
        match SystemVerbs::load() {
            Ok(verbs) => assert!(!verbs.devices().unwrap().is_empty()),
            Err(unavailable) => {
                let said = unavailable.to_string();
                println!("rdma: unavailable, because {said}");
                assert!(said.len() > 20);
            }
        }
    }

    #[test]
    fn one_device_that_may_be_opened_is_enough() {
        let device = |name: &str| DeviceInfo { name: name.to_string(), guid: 1, node: NodeType::Ca };
        let file = |name: &str, file: &str| (name.to_string(), file.to_string());
        let denied = may_open_one(&[device("a")], &[file("a", "no-such-file")]).unwrap_err();
        assert_eq!(
            denied,
            Unavailable::NoPermission { path: "/dev/infiniband/no-such-file".into(), errno: Errno::ENOENT }
        );
        let files = [file("a", "no-such-file")];
        assert_eq!(may_open_one(&[device("a"), device("b")], &files), Ok(()));
        assert_eq!(may_open_one(&[], &files), Ok(()));
    }
}
