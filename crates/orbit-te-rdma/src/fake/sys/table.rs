//! The table of verbs over a fabric. Rule: each method finds the object's number, takes the lock, and asks the state.

use super::fd::{self, EventFd};
use super::raw::{Mapping, RawBox, write_wc};
use super::wr;
use crate::access::MrAccess;
use crate::device::{DeviceInfo, LinkLayer, NodeType};
use crate::error::Errno;
use crate::fake::events::Element;
use crate::fake::fabric::FakeFabric;
use crate::fake::objects::{QpWish, Range};
use crate::fake::post::SendWish;
use crate::fake::queue::Wqe;
use crate::fake::state::{Channel, Context, Health, KeyKind, State};
use crate::sys::Verbs;
use crate::verb::Verb;
use ibverbs_sys::*;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// A host's view of a fabric.
pub(in crate::fake) struct FakeVerbs {
    fabric: FakeFabric,
    host: u32,
}

impl FakeVerbs {
    pub(in crate::fake) fn new(fabric: FakeFabric, host: u32) -> FakeVerbs {
        FakeVerbs { fabric, host }
    }

    fn context(&self, state: &mut State, device: u32, name: &str) -> Result<NonNull<ibv_context>, Errno> {
        let fd = EventFd::new()?;
        let mut shown = ibv_device { node_type: IBV_NODE_CA, ..Default::default() };
        for (to, from) in shown.name.iter_mut().zip(name.bytes().take(63)) {
            *to = from as _;
        }
        let shown = RawBox::new(shown);
        let raw = RawBox::new(ibv_context {
            device: shown.pointer().as_ptr(),
            cmd_fd: state.contexts.len() as c_int,
            async_fd: fd.raw(),
            num_comp_vectors: state.devices[device as usize].spec.completion_vectors as c_int,
            ..Default::default()
        });
        let pointer = raw.pointer();
        state.contexts.push(Context {
            raw,
            _device: shown,
            device,
            alive: true,
            dead: false,
            children: 0,
            fd: Some(fd),
            events: VecDeque::new(),
        });
        Ok(pointer)
    }
}

/// The number of a context.
///
/// # Safety
/// It came from this table.
unsafe fn at(context: *mut ibv_context) -> u32 {
    // SAFETY: the caller's promise; objects stay where they are as long as the fabric does.
    unsafe { (*context).cmd_fd as u32 }
}

/// The number of an object that carries it.
macro_rules! number {
    ($object:expr) => {{
        // SAFETY: it came from this table, by the trait's promise, and stays where it is as long as the fabric does.
        unsafe { (*$object).handle }
    }};
}

/// The number of a channel, which has no handle.
macro_rules! channel_number {
    ($channel:expr) => {{
        // SAFETY: as above.
        unsafe { (*$channel).refcnt as u32 }
    }};
}

fn returned(result: Result<(), Errno>) -> c_int {
    result.map_or_else(|errno| errno.0, |()| 0)
}

// SAFETY: objects stay where they are until the fabric is gone, which this table holds; memory is touched under the fabric's lock, for WRs of
// live QPs, through keys of live MRs.
unsafe impl Verbs for FakeVerbs {
    fn devices(&self) -> Result<Vec<DeviceInfo>, Errno> {
        let mut state = self.fabric.state();
        state.enter(Verb::GetDeviceList, self.host)?;
        let here = state
            .devices
            .iter()
            .filter(|device| device.spec.host == self.host && device.health != Health::Removed);
        let info = |device: &crate::fake::state::Device| DeviceInfo {
            name: device.spec.name.clone(),
            guid: device.spec.guid,
            node: NodeType::Ca,
        };
        Ok(here.map(info).collect())
    }

    fn numa_node(&self, device: &str) -> Option<u32> {
        let state = self.fabric.state();
        let mut here = state.devices.iter().filter(|at| at.spec.host == self.host);
        here.find(|at| at.spec.name == device)?.spec.numa_node
    }

    fn open_device(&self, name: &str) -> Result<NonNull<ibv_context>, Errno> {
        let mut state = self.fabric.state();
        state.enter(Verb::OpenDevice, self.host)?;
        let mut devices = (0..).zip(&state.devices);
        let found = devices.find(|(_, at)| at.spec.host == self.host && at.spec.name == name);
        match found.map(|(device, at)| (device, at.health)) {
            None | Some((_, Health::Removed)) => Err(Errno::ENODEV),
            Some((_, Health::Broken)) => Err(Errno::EIO),
            Some((device, Health::Good)) => self.context(&mut state, device, name),
        }
    }

    unsafe fn close_device(&self, context: *mut ibv_context) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        self.fabric.state().close(unsafe { at(context) })
    }

    unsafe fn query_device(&self, context: *mut ibv_context) -> Result<ibv_device_attr, Errno> {
        // SAFETY: the trait's promise.
        let context = unsafe { at(context) };
        let mut state = self.fabric.state();
        state.live_context(Verb::QueryDevice, context)?;
        let spec = &state.devices[state.contexts[context as usize].device as usize].spec;
        let limits = spec.limits;
        let most = |n: u32| n.min(c_int::MAX as u32) as c_int;
        let windows = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
        Ok(ibv_device_attr {
            node_guid: spec.guid.to_be(),
            sys_image_guid: spec.guid.to_be(),
            max_mr_size: limits.max_mr_size,
            page_size_cap: 0xffff_f000,
            max_qp: most(limits.max_qp),
            max_qp_wr: most(limits.max_wr),
            device_cap_flags: IBV_DEVICE_RC_RNR_NAK_GEN | if spec.windows { windows } else { 0 },
            max_sge: most(limits.max_sge),
            max_sge_rd: most(limits.max_sge),
            max_cq: most(limits.max_cq),
            max_cqe: most(limits.max_cqe),
            max_mr: most(limits.max_mr),
            max_pd: most(limits.max_pd),
            max_qp_rd_atom: limits.max_rd_atomic.into(),
            max_qp_init_rd_atom: limits.max_rd_atomic.into(),
            max_mw: if spec.windows { most(limits.max_mw) } else { 0 },
            max_srq: most(limits.max_srq),
            max_srq_wr: most(limits.max_wr),
            max_srq_sge: most(limits.max_sge),
            max_pkeys: spec.ports.iter().map(|port| port.pkeys.len()).max().unwrap_or(0) as u16,
            phys_port_cnt: spec.ports.len() as u8,
            ..Default::default()
        })
    }

    unsafe fn query_device_ex(&self, context: *mut ibv_context) -> Result<ibv_device_attr_ex, Errno> {
        // SAFETY: the trait's promise.
        self.fabric.state().live_context(Verb::QueryDeviceEx, unsafe { at(context) })?;
        Ok(ibv_device_attr_ex::default())
    }

    unsafe fn query_port(&self, context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, Errno> {
        // SAFETY: the trait's promise.
        let context = unsafe { at(context) };
        let mut state = self.fabric.state();
        state.live_context(Verb::QueryPort, context)?;
        let device = state.contexts[context as usize].device;
        let limits = state.devices[device as usize].spec.limits;
        let place = crate::fake::state::PortAt { device, port };
        let port = state.port(place).ok_or(Errno::EINVAL)?;
        let ethernet = port.spec.link_layer == LinkLayer::Ethernet;
        Ok(ibv_port_attr {
            state: if port.up { ibv_port_state::IBV_PORT_ACTIVE } else { ibv_port_state::IBV_PORT_DOWN },
            max_mtu: IBV_MTU_4096,
            active_mtu: port.spec.mtu.number(),
            gid_tbl_len: port.spec.gids.len() as c_int,
            max_msg_sz: limits.max_message,
            pkey_tbl_len: port.spec.pkeys.len() as u16,
            lid: port.spec.lid,
            sm_lid: if ethernet { 0 } else { 1 },
            active_width: 2,
            active_speed: 32,
            phys_state: if port.up { 5 } else { 3 },
            link_layer: if ethernet { IBV_LINK_LAYER_ETHERNET } else { IBV_LINK_LAYER_INFINIBAND } as u8,
            flags: ethernet.into(),
            ..Default::default()
        })
    }

    unsafe fn query_gid_table(&self, context: *mut ibv_context) -> Result<Vec<ibv_gid_entry>, Errno> {
        // SAFETY: the trait's promise.
        let context = unsafe { at(context) };
        let mut state = self.fabric.state();
        state.live_context(Verb::QueryGidTable, context)?;
        let device = &state.devices[state.contexts[context as usize].device as usize];
        let mut table = Vec::new();
        for (port_num, port) in (1..).zip(&device.ports) {
            for (gid_index, gid) in (0..).zip(&port.spec.gids).filter_map(|(at, gid)| Some((at, (*gid)?))) {
                table.push(ibv_gid_entry {
                    gid: ibv_gid { raw: gid.gid },
                    gid_index,
                    port_num,
                    gid_type: gid.kind.number(),
                    ndev_ifindex: gid.ifindex,
                });
            }
        }
        Ok(table)
    }

    unsafe fn query_pkey(&self, context: *mut ibv_context, port: u8, index: u16) -> Result<u16, Errno> {
        // SAFETY: the trait's promise.
        let context = unsafe { at(context) };
        let mut state = self.fabric.state();
        state.live_context(Verb::QueryPkey, context)?;
        let device = state.contexts[context as usize].device;
        let port = state.port(crate::fake::state::PortAt { device, port }).ok_or(Errno::EINVAL)?;
        port.spec.pkeys.get(usize::from(index)).copied().ok_or(Errno::EINVAL)
    }

    unsafe fn get_async_event(&self, context: *mut ibv_context) -> Result<ibv_async_event, Errno> {
        // SAFETY: the trait's promise.
        let (number, waits_on) = unsafe { (at(context), (*context).async_fd) };
        self.fabric.state().enter(Verb::GetAsyncEvent, number)?;
        fd::wait(waits_on)?;
        let mut state = self.fabric.state();
        let event = state.contexts[number as usize].events.pop_front().ok_or(Errno::EAGAIN)?;
        state.count_unacked(event.about, true);
        let mut raw = ibv_async_event { event_type: event.kind, ..Default::default() };
        match event.about {
            Element::Port(port) => raw.element.port_num = port.into(),
            Element::Cq(cq) => raw.element.cq = state.cqs[cq as usize].raw.pointer().as_ptr(),
            Element::Qp(qp) => raw.element.qp = state.qps[qp as usize].raw.pointer().as_ptr(),
        }
        Ok(raw)
    }

    unsafe fn ack_async_event(&self, event: &mut ibv_async_event) {
        // SAFETY: which member is valid follows from the type; the object is there, by the trait's promise.
        let about = unsafe {
            match event.event_type {
                IBV_EVENT_CQ_ERR => Element::Cq((*event.element.cq).handle),
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED
                | IBV_EVENT_PATH_MIG
                | IBV_EVENT_PATH_MIG_ERR
                | IBV_EVENT_QP_LAST_WQE_REACHED => Element::Qp((*event.element.qp).handle),
                _ => Element::Port(0),
            }
        };
        self.fabric.state().count_unacked(about, false);
    }

    unsafe fn alloc_pd(&self, context: *mut ibv_context) -> Result<NonNull<ibv_pd>, Errno> {
        // SAFETY: the trait's promise.
        self.fabric.state().alloc_pd(unsafe { at(context) }, context)
    }

    unsafe fn dealloc_pd(&self, pd: *mut ibv_pd) -> Result<(), Errno> {
        self.fabric.state().dealloc_pd(number!(pd))
    }

    unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        address: *mut u8,
        length: usize,
        iova: u64,
        access: MrAccess,
    ) -> Result<NonNull<ibv_mr>, Errno> {
        let address = address.expose_provenance() as u64;
        let range = Range { address, length: length as u64, iova, access, mapping: None };
        self.fabric.state().reg_mr(Verb::RegMr, number!(pd), range)
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
        let mut state = self.fabric.state();
        let context = state.pds[number!(pd) as usize].context;
        if !state.devices[state.contexts[context as usize].device as usize].spec.dmabuf {
            state.enter(Verb::RegDmabufMr, number!(pd))?;
            return Err(Errno::EOPNOTSUPP);
        }
        let mapping = Mapping::new(fd, offset, length)?;
        let range =
            Range { address: mapping.address(), length: length as u64, iova, access, mapping: Some(mapping) };
        state.reg_mr(Verb::RegDmabufMr, number!(pd), range)
    }

    unsafe fn dereg_mr(&self, mr: *mut ibv_mr) -> Result<(), Errno> {
        self.fabric.state().dereg_mr(number!(mr))
    }

    unsafe fn alloc_mw(&self, pd: *mut ibv_pd, kind: ibv_mw_type) -> Result<NonNull<ibv_mw>, Errno> {
        self.fabric.state().alloc_mw(number!(pd), kind)
    }

    unsafe fn dealloc_mw(&self, mw: *mut ibv_mw) -> Result<(), Errno> {
        self.fabric.state().dealloc_mw(number!(mw))
    }

    unsafe fn bind_mw(&self, qp: *mut ibv_qp, mw: *mut ibv_mw, bind: &mut ibv_mw_bind) -> Result<(), Errno> {
        // SAFETY: the trait's promise.
        let posted = unsafe { wr::bind_of(mw, &bind.bind_info) };
        let mut state = self.fabric.state();
        state.enter(Verb::BindMw, number!(mw))?;
        state.begin_send(number!(qp))?;
        let key = &state.keys[posted.mw as usize];
        if !matches!(key.kind, KeyKind::Mw { type_2: false, .. }) {
            return Err(Errno::EINVAL);
        }
        let rkey = (key.value & !0xff) | (key.value.wrapping_add(1) & 0xff);
        let wqe = Wqe {
            wr_id: bind.wr_id,
            opcode: ibv_wr_opcode::IBV_WR_BIND_MW,
            rkey,
            signaled: bind.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0,
            ..Wqe::default()
        };
        state.take_send(number!(qp), SendWish { wqe, sges: &[], bind: Some(posted) })?;
        // SAFETY: the window is the caller's, who reads the key after this call.
        unsafe { (*mw).rkey = rkey };
        state.end_post(number!(qp));
        Ok(())
    }

    unsafe fn create_comp_channel(
        &self,
        context: *mut ibv_context,
    ) -> Result<NonNull<ibv_comp_channel>, Errno> {
        // SAFETY: the trait's promise.
        let number = unsafe { at(context) };
        let mut state = self.fabric.state();
        state.live_context(Verb::CreateCompChannel, number)?;
        let fd = EventFd::new()?;
        let object = ibv_comp_channel { context, fd: fd.raw(), refcnt: state.channels.len() as c_int };
        let raw = RawBox::new(object);
        let pointer = raw.pointer();
        state.contexts[number as usize].children += 1;
        let events = VecDeque::new();
        state.channels.push(Channel { raw, context: number, alive: true, cqs: 0, fd: Some(fd), events });
        Ok(pointer)
    }

    unsafe fn destroy_comp_channel(&self, channel: *mut ibv_comp_channel) -> Result<(), Errno> {
        self.fabric.state().destroy_channel(channel_number!(channel))
    }

    unsafe fn create_cq(
        &self,
        context: *mut ibv_context,
        cqe: u32,
        cookie: u64,
        channel: *mut ibv_comp_channel,
        vector: u32,
    ) -> Result<NonNull<ibv_cq>, Errno> {
        let channel = (!channel.is_null()).then(|| channel_number!(channel));
        // SAFETY: the trait's promise.
        self.fabric.state().create_cq(unsafe { at(context) }, cqe, cookie, channel, vector)
    }

    unsafe fn destroy_cq(&self, cq: *mut ibv_cq) -> Result<(), Errno> {
        self.fabric.state().destroy_cq(number!(cq))
    }

    unsafe fn req_notify_cq(&self, cq: *mut ibv_cq, solicited_only: bool) -> c_int {
        returned(self.fabric.state().arm(number!(cq), solicited_only))
    }

    unsafe fn get_cq_event(&self, channel: *mut ibv_comp_channel) -> Result<(NonNull<ibv_cq>, u64), Errno> {
        let number = channel_number!(channel);
        self.fabric.state().enter(Verb::GetCqEvent, number)?;
        // SAFETY: the trait's promise.
        fd::wait(unsafe { (*channel).fd })?;
        let mut state = self.fabric.state();
        let cq = state.channels[number as usize].events.pop_front().ok_or(Errno::EAGAIN)?;
        let cq = &mut state.cqs[cq as usize];
        cq.unacked += 1;
        Ok((cq.raw.pointer(), cq.cookie))
    }

    unsafe fn ack_cq_events(&self, cq: *mut ibv_cq, count: u32) {
        let mut state = self.fabric.state();
        let unacked = &mut state.cqs[number!(cq) as usize].unacked;
        match unacked.checked_sub(count) {
            Some(left) => *unacked = left,
            None => {
                state.violation(format!("{count} events of a CQ were given back, more than were taken"));
            }
        }
    }

    unsafe fn poll_cq(&self, cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
        let cq = number!(cq);
        let mut state = self.fabric.state();
        if let Err(errno) = state.begin_poll(cq) {
            return -errno.0;
        }
        let mut count = 0;
        while count < most {
            let Some(cqe) = state.take_cqe(cq) else { break };
            // SAFETY: there is room for `most`, by the trait's promise.
            unsafe { write_wc(wc.add(count as usize), &cqe) };
            count += 1;
        }
        count
    }

    unsafe fn create_qp(
        &self,
        pd: *mut ibv_pd,
        attr: &mut ibv_qp_init_attr,
    ) -> Result<NonNull<ibv_qp>, Errno> {
        let wish = QpWish {
            send_cq: number!(attr.send_cq),
            recv_cq: number!(attr.recv_cq),
            srq: (!attr.srq.is_null()).then(|| number!(attr.srq)),
            cap: attr.cap,
            qp_type: attr.qp_type,
            sig_all: attr.sq_sig_all != 0,
        };
        self.fabric.state().create_qp(number!(pd), &wish)
    }

    unsafe fn modify_qp(
        &self,
        qp: *mut ibv_qp,
        attr: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), Errno> {
        self.fabric.state().modify_qp(number!(qp), attr, mask.0)
    }

    unsafe fn query_qp(
        &self,
        qp: *mut ibv_qp,
        _mask: ibv_qp_attr_mask,
    ) -> Result<(ibv_qp_attr, ibv_qp_init_attr), Errno> {
        self.fabric.state().query_qp(number!(qp))
    }

    unsafe fn destroy_qp(&self, qp: *mut ibv_qp) -> Result<(), Errno> {
        self.fabric.state().destroy_qp(number!(qp))
    }

    unsafe fn post_send(&self, qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int {
        let qp = number!(qp);
        // SAFETY: the trait's promise.
        returned(unsafe { wr::post_send(&mut self.fabric.state(), qp, wr, bad) })
    }

    unsafe fn post_recv(&self, qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
        let (qp, mut state) = (number!(qp), self.fabric.state());
        *bad = wr;
        let begun = state.begin_recv(qp);
        // SAFETY: the trait's promise.
        let taken =
            begun.and_then(|()| unsafe { wr::post_recv(wr, bad, |id, sges| state.take_recv(qp, id, sges)) });
        // Senders may wait for it; and a QP in the error state flushes it.
        state.end_post(qp);
        returned(taken)
    }

    unsafe fn create_srq(
        &self,
        pd: *mut ibv_pd,
        attr: &mut ibv_srq_init_attr,
    ) -> Result<NonNull<ibv_srq>, Errno> {
        self.fabric.state().create_srq(number!(pd), attr.srq_context as u64, &mut attr.attr)
    }

    unsafe fn destroy_srq(&self, srq: *mut ibv_srq) -> Result<(), Errno> {
        self.fabric.state().destroy_srq(number!(srq))
    }

    unsafe fn post_srq_recv(
        &self,
        srq: *mut ibv_srq,
        wr: *mut ibv_recv_wr,
        bad: &mut *mut ibv_recv_wr,
    ) -> c_int {
        let (srq, mut state) = (number!(srq), self.fabric.state());
        *bad = wr;
        let begun = state.begin_srq_recv(srq);
        // SAFETY: the trait's promise.
        let taken = begun
            .and_then(|()| unsafe { wr::post_recv(wr, bad, |id, sges| state.take_srq_recv(srq, id, sges)) });
        // Senders may wait for it.
        state.end_srq_post();
        returned(taken)
    }
}
