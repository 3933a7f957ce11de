//! Two sides with everything that moving bytes needs, over verbs in memory, and WRs as plain values.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // Each test uses its part of it; helpers of tests are tests.

use orbit_te_rdma::fake::{DeviceId, DeviceSpec, FakeFabric};
use orbit_te_rdma::handle::*;
use orbit_te_rdma::sys::ffi::*;
use orbit_te_rdma::{Completion, Errno, GidEntry, GidKind, MrAccess, VerbsError, Wc, WcStatus};
use std::alloc::Layout;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that the device touches: reached by copies only.
pub struct Memory {
    base: NonNull<u8>,
    layout: Layout,
    freed: Option<Arc<AtomicUsize>>,
}

// SAFETY: its bytes are reached by copies through a pointer only.
unsafe impl std::marker::Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(length: usize) -> Memory {
        let layout = Layout::from_size_align(length, 64).unwrap();
        assert!(length > 0);
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
        Memory { base, layout, freed: None }
    }

    pub fn counted(length: usize, freed: &Arc<AtomicUsize>) -> Memory {
        let mut memory = Memory::new(length);
        memory.freed = Some(freed.clone());
        memory
    }

    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub fn len(&self) -> usize {
        self.layout.size()
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len());
        // SAFETY: inside of the allocation, which no reference is to.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) };
    }

    pub fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.len());
        let mut bytes = vec![0; length];
        // SAFETY: as above.
        unsafe { std::ptr::copy(self.base.as_ptr().add(at), bytes.as_mut_ptr(), length) };
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(freed) = &self.freed {
            freed.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: allocated by `new` with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

pub const OPEN: MrAccess =
    MrAccess::LOCAL_WRITE.union(MrAccess::REMOTE_READ).union(MrAccess::REMOTE_WRITE).union(MrAccess::MW_BIND);
pub const CAPS: QpCaps =
    QpCaps { max_send_wr: 16, max_recv_wr: 8, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
pub const MEMORY: usize = 4096;

/// One side. Fields are dropped from the first to the last.
pub struct Side {
    pub qp: Option<Qp>,
    pub mr: Option<Mr>,
    pub cq: Cq,
    pub channel: Channel,
    pub pd: Pd,
    pub context: Context,
    pub memory: Arc<Memory>,
    pub device: DeviceId,
}

pub fn fabric_of_two(seed: u64) -> (FakeFabric, DeviceId, DeviceId) {
    let fabric = FakeFabric::new(seed);
    let a = fabric.add_device(DeviceSpec::roce("mlx5_0", [10, 0, 0, 1]));
    let b = fabric.add_device(DeviceSpec::roce("mlx5_0", [10, 0, 0, 2]).on_host(1));
    (fabric, a, b)
}

impl Side {
    pub fn new(fabric: &FakeFabric, host: u32, device: DeviceId, memory: Memory) -> Result<Side, VerbsError> {
        Side::with(fabric, host, device, Arc::new(memory), CAPS, 64)
    }

    pub fn with(
        fabric: &FakeFabric,
        host: u32,
        device: DeviceId,
        memory: Arc<Memory>,
        caps: QpCaps,
        cqe: u32,
    ) -> Result<Side, VerbsError> {
        let verbs = fabric.verbs(host);
        let name = verbs.devices().map_err(|errno| error("list", errno))?[0].name.clone();
        Side::open(&verbs, &name, device, memory, caps, cqe)
    }

    /// A side over any verbs.
    pub fn open(
        verbs: &Arc<dyn orbit_te_rdma::sys::Verbs>,
        name: &str,
        device: DeviceId,
        memory: Arc<Memory>,
        caps: QpCaps,
        cqe: u32,
    ) -> Result<Side, VerbsError> {
        let context = Context::open(verbs, name)?;
        let pd = context.alloc_pd()?;
        let channel = context.create_channel()?;
        let cq = context.create_cq(cqe, Some(&channel), 0)?;
        // SAFETY: the memory is kept by the MR, and reached by copies only.
        let mr = unsafe {
            let base = memory.address() as usize as *mut u8;
            pd.register(base, memory.len(), memory.address(), OPEN, memory.clone())?
        };
        let qp = pd.create_qp(caps, &cq, &cq, None)?;
        Ok(Side { qp: Some(qp), mr: Some(mr), cq, channel, pd, context, memory, device })
    }

    pub fn qp(&self) -> &Qp {
        self.qp.as_ref().unwrap()
    }

    pub fn mr(&self) -> &Mr {
        self.mr.as_ref().unwrap()
    }

    pub fn connect_to(&self, peer: &Side, rts: RtsStep) -> Result<(), VerbsError> {
        connect(&self.context, self.qp(), &peer.context, peer.qp(), rts)
    }

    /// Posts a chain of sends; how many were taken, and why the next was not.
    pub fn post(&self, chain: &[Send]) -> Result<(), (usize, Errno)> {
        post(self.qp(), self.mr(), chain)
    }

    pub fn receive(&self, token: u64, ranges: &[(usize, u32)]) -> Result<(), Errno> {
        let mut sges = self.sges(ranges);
        let mut wr = ibv_recv_wr {
            wr_id: token,
            next: null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
        };
        let mut bad = null_mut();
        // SAFETY: the chain is ours; the memory is registered as long as the side lives.
        Errno::check(unsafe { self.qp().post_recv(&mut wr, &mut bad) })
    }

    fn sges(&self, ranges: &[(usize, u32)]) -> Vec<ibv_sge> {
        let sge = |&(at, length): &(usize, u32)| ibv_sge {
            addr: self.memory.address() + at as u64,
            length,
            lkey: self.mr().lkey(),
        };
        ranges.iter().map(sge).collect()
    }

    pub fn poll(&self) -> Vec<Completion> {
        let mut places = [Wc::default(); 64];
        let count = self.cq.poll(&mut places).unwrap();
        places[..count].iter().map(Wc::completion).collect()
    }

    /// The tokens and statuses of all that completed; `None` is success.
    pub fn statuses(&self) -> Vec<(u64, Option<WcStatus>)> {
        let of = |done: Completion| (done.token, done.result.err().map(|failed| failed.status));
        self.poll().into_iter().map(of).collect()
    }

    pub fn events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.context.next_event().unwrap()).collect()
    }
}

/// A send WR.
#[derive(Debug, Clone)]
pub struct Send {
    pub opcode: u32,
    pub token: u64,
    pub ranges: Vec<(usize, u32)>,
    pub remote: u64,
    pub rkey: u32,
    pub signaled: bool,
    pub inline: bool,
    pub imm: u32,
    pub lkey: Option<u32>,
}

impl Send {
    pub fn new(opcode: u32, token: u64, ranges: &[(usize, u32)]) -> Send {
        let ranges = ranges.to_vec();
        Send { opcode, token, ranges, remote: 0, rkey: 0, signaled: true, inline: false, imm: 0, lkey: None }
    }

    pub fn write(token: u64, from: (usize, u32), to: &Side, at: usize) -> Send {
        Send::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, token, &[from]).to(to, at)
    }

    pub fn read(token: u64, into: (usize, u32), from: &Side, at: usize) -> Send {
        Send::new(ibv_wr_opcode::IBV_WR_RDMA_READ, token, &[into]).to(from, at)
    }

    pub fn to(self, peer: &Side, at: usize) -> Send {
        Send { remote: peer.memory.address() + at as u64, rkey: peer.mr().rkey(), ..self }
    }

    pub fn quiet(self) -> Send {
        Send { signaled: false, ..self }
    }
}

pub fn post(qp: &Qp, mr: &Mr, chain: &[Send]) -> Result<(), (usize, Errno)> {
    let lists = chain.iter().map(|send| {
        let lkey = send.lkey.unwrap_or(mr.lkey());
        let sge = |&(at, length): &(usize, u32)| ibv_sge { addr: mr.iova() + at as u64, length, lkey };
        send.ranges.iter().map(sge).collect::<Vec<_>>()
    });
    let mut lists: Vec<_> = lists.collect();
    let mut wrs: Vec<ibv_send_wr> = vec![ibv_send_wr::default(); chain.len()];
    for ((wr, send), list) in wrs.iter_mut().zip(chain).zip(&mut lists) {
        let flag = |on: bool, flag: ibv_send_flags| if on { flag.0 } else { 0 };
        wr.wr_id = send.token;
        wr.sg_list = list.as_mut_ptr();
        wr.num_sge = list.len() as i32;
        wr.opcode = send.opcode;
        wr.send_flags = flag(send.signaled, ibv_send_flags::IBV_SEND_SIGNALED)
            | flag(send.inline, ibv_send_flags::IBV_SEND_INLINE);
        wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: send.remote, rkey: send.rkey };
        wr.__bindgen_anon_1.imm_data = send.imm.to_be();
    }
    post_raw(qp, &mut wrs)
}

pub fn post_raw(qp: &Qp, wrs: &mut [ibv_send_wr]) -> Result<(), (usize, Errno)> {
    let base = wrs.as_mut_ptr();
    for at in 1..wrs.len() {
        // SAFETY: both are inside of the slice.
        unsafe { (*base.add(at - 1)).next = base.add(at) };
    }
    let mut bad = null_mut();
    // SAFETY: the chain is ours; the tests keep memory registered as long as it must be, or show what happens otherwise.
    let done = Errno::check(unsafe { qp.post_send(base, &mut bad) });
    done.map_err(|errno| ((bad as usize - base as usize) / size_of::<ibv_send_wr>(), errno))
}

pub const RTS: RtsStep = RtsStep { timeout: 10, retry_cnt: 6, rnr_retry: 6, sq_psn: 77, max_rd_atomic: 4 };

pub fn init_step() -> InitStep {
    InitStep { port: 1, pkey_index: 0, access: MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE }
}

/// The step that connects a QP to a peer's, by GID over Ethernet and by LID over InfiniBand.
pub fn rtr_step(peer: &Context, peer_qp: u32, rq_psn: u32) -> Result<RtrStep, VerbsError> {
    let port = peer.port(1)?;
    let grh = (port.lid == 0).then(|| -> Result<Grh, VerbsError> {
        let table = peer.gid_table()?;
        let mapped = |gid: &&GidEntry| gid.kind == GidKind::RoceV2 && gid.gid[..12] == MAPPED;
        // Both sides are made in the same way, so the place is the same in both.
        let gid = table.iter().find(mapped).unwrap();
        Ok(Grh { dgid: gid.gid, sgid_index: gid.index as u8, hop_limit: 64, ..Grh::default() })
    });
    let address = Address { port: 1, dlid: port.lid, grh: grh.transpose()?, ..Address::default() };
    Ok(RtrStep {
        address,
        path_mtu: port.active_mtu,
        dest_qp_num: peer_qp,
        rq_psn,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
    })
}

/// How GIDs of IPv4 addresses begin.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

pub fn connect(
    context: &Context,
    qp: &Qp,
    peer: &Context,
    peer_qp: &Qp,
    rts: RtsStep,
) -> Result<(), VerbsError> {
    let _ = context;
    qp.to_init(&init_step())?;
    qp.to_rtr(&rtr_step(peer, peer_qp.number(), rts.sq_psn)?)?;
    qp.to_rts(&rts)
}

/// Two sides, connected.
pub fn pair_on(fabric: &FakeFabric, a: DeviceId, b: DeviceId) -> (Side, Side) {
    let one = Side::new(fabric, 0, a, Memory::new(MEMORY)).unwrap();
    let two = Side::new(fabric, 1, b, Memory::new(MEMORY)).unwrap();
    one.connect_to(&two, RTS).unwrap();
    two.connect_to(&one, RTS).unwrap();
    (one, two)
}

pub fn pair(seed: u64) -> (FakeFabric, Side, Side) {
    let (fabric, a, b) = fabric_of_two(seed);
    let (one, two) = pair_on(&fabric, a, b);
    (fabric, one, two)
}

pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn error(on: &str, errno: Errno) -> VerbsError {
    VerbsError { verb: orbit_te_rdma::Verb::GetDeviceList, on: on.to_string(), errno, remedy: None }
}

/// Nothing is left, and nothing was done that must not be.
pub fn check_clean(fabric: &FakeFabric, what: &str) {
    assert_eq!(fabric.violations(), Vec::<String>::new(), "{what}");
    assert!(fabric.counts().is_empty(), "{what}: left over: {:?}", fabric.counts());
}

/// Says aloud that something can't be had here, and counts it where the test command looks.
pub fn skipped(what: &str) {
    eprintln!("skipped: {what}");
    if let Some(file) = std::env::var_os("ORBIT_TE_SKIP_FILE") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        writeln!(file.unwrap(), "skipped: {what}").unwrap();
    }
}
