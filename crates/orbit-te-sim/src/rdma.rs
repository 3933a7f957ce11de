//! The RDMA devices of a run, and the network between them: verbs in memory, in virtual time, with faults that the seed decides. Rule: a device
//! belongs to a place, and works for one life after the other; what a life could not free is known, and is freed before the run ends.

use crate::check::touch::Side;
use crate::check::{Checker, Report};
use crate::faults::RdmaFaults;
use crate::net::Shared;
use fastrand::Rng;
use orbit_te_rdma::fake::{
    Carrier, Clock, CqeFault, DeviceId, DeviceSpec, FakeFabric, Limits, Mode, PortSpec, Touch, When, Where,
};
use orbit_te_rdma::handle::Retention;
use orbit_te_rdma::{Adapters, Completions, Errno, RdmaConfig, RdmaDomain, Verb};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What of the faults was met: the names of [`Met`].
pub const RDMA_FAULTS: [&str; 11] = [
    "late_cqes",
    "lost_cqes",
    "refused_calls",
    "short_posts",
    "stray_writes",
    "broken_queues",
    "flush_storms",
    "lost_paths",
    "changed_addresses",
    "lost_devices",
    "retained_objects",
];

/// How often each of [`RDMA_FAULTS`] was met.
pub type Met = [u64; RDMA_FAULTS.len()];

const BROKEN_QUEUES: usize = 5;
const FLUSH_STORMS: usize = 6;
const LOST_PATHS: usize = 7;
const CHANGED_ADDRESSES: usize = 8;
const LOST_DEVICES: usize = 9;
const RETAINED: usize = 10;

/// So long a fault waits for something that it can hit.
const PATIENCE_NS: u64 = 30_000_000;
/// Sweeps after which what is still there is there for good: each fails by chance.
const SWEEPS: usize = 1_000;

/// What ends after a while.
#[derive(Debug, Clone, Copy)]
enum Undo {
    Carrier(DeviceId),
    BlackHole(DeviceId),
    Cut(DeviceId, DeviceId),
    Address(DeviceId),
    Device(DeviceId),
}

/// All of it.
pub(crate) struct Fabric {
    fake: FakeFabric,
    clock: Arc<AtomicU64>,
    net: Shared,
    rng: Rng,
    faults: RdmaFaults,
    config: RdmaConfig,
    /// Of each place.
    devices: Vec<Vec<DeviceId>>,
    /// Who uses the devices of each place.
    lives: Vec<usize>,
    /// What lives could not free, each with its place.
    lists: Vec<(usize, Arc<Retention>)>,
    undo: BTreeMap<(u64, u64), Undo>,
    made: u64,
    next_fault: Option<u64>,
    /// Until when a fault that is due waits for something to be under way.
    waits_until: Option<u64>,
    next_step: Option<u64>,
    /// What programs did that they must not, as far as it is known.
    wrongs: usize,
    met: Met,
}

/// Of a million.
fn share(probability: f64) -> u32 {
    (probability * 1e6) as u32
}

impl Fabric {
    pub(crate) fn new(net: &Shared, mut rng: Rng, faults: RdmaFaults, places: usize) -> Fabric {
        let fake = FakeFabric::new(rng.u64(..));
        let clock = Arc::new(AtomicU64::new(0));
        let time = clock.clone();
        fake.set_clock(Clock::Given(Arc::new(move || Duration::from_nanos(time.load(Ordering::Relaxed)))));
        fake.set_mode(Mode::ByHand);
        fake.scramble(rng.bool());
        let known = Arc::downgrade(net);
        fake.watch(Some(Arc::new(move |touch: Touch| {
            let Some(net) = known.upgrade() else { return };
            let mut net = net.lock();
            let net = &mut *net;
            let Some(life) = net.devices.get(&touch.device).copied() else { return };
            net.trace.note("rdma", &[net.now_ns, life as u64, u64::from(touch.written), touch.length]);
            let side = if touch.asks { Side::Asking } else { Side::Device };
            let live = net.live.entry(life).or_default();
            let range = (touch.address, touch.length);
            net.map.touched(range, touch.written, (life, side), live, &mut net.report);
        })));
        let config = config(&mut rng);
        let several = rng.u32(0..3) == 0;
        let limits = Limits {
            max_mr_size: if rng.bool() { 4_096 * rng.u64(1..=4) } else { 1 << 40 },
            max_sge: rng.u32(1..=20),
            max_cqe: rng.u32(64..=2_048),
            max_qp: rng.u32(8..=128),
            max_rd_atomic: rng.u8(1..=16),
            ..Limits::default()
        };
        let outlives = rng.bool();
        let device = |place: usize, number: u8| {
            let port = PortSpec::roce([10, number, 0, place as u8]);
            let spec = DeviceSpec::new(&format!("rdma{number}"), vec![port]).on_host(place as u32);
            fake.add_device(DeviceSpec { limits, cqes_outlive_qp: outlives, ..spec })
        };
        let numbers = if several { 0..2 } else { 0..1 };
        let devices: Vec<Vec<DeviceId>> =
            (0..places).map(|place| numbers.clone().map(|number| device(place, number)).collect()).collect();
        let mut fabric = Fabric {
            fake,
            clock,
            net: net.clone(),
            rng,
            faults,
            config,
            lives: vec![usize::MAX; places],
            devices,
            lists: Vec::new(),
            undo: BTreeMap::new(),
            made: 0,
            next_fault: None,
            waits_until: None,
            next_step: None,
            wrongs: 0,
            met: [0; RDMA_FAULTS.len()],
        };
        fabric.plan();
        fabric.next_fault = fabric.fault_after(0);
        fabric
    }

    fn plan(&self) {
        let (fake, faults) = (&self.fake, &self.faults);
        if faults.lost > 0.0 {
            fake.fault_cqes(Where::Everywhere, CqeFault::Lost(share(faults.lost)));
        }
        if faults.late_us > 0 {
            let most = Duration::from_micros(faults.late_us);
            fake.fault_cqes(Where::Everywhere, CqeFault::Late(Duration::ZERO, most));
        }
        let often = |verbs: &[Verb], probability: f64, errno: Errno| {
            if probability > 0.0 {
                verbs.iter().for_each(|verb| fake.fail(*verb, When::Share(share(probability)), errno));
            }
        };
        often(&[Verb::CreateQp, Verb::CreateCq, Verb::CreateCompChannel], faults.refused, Errno::ENOMEM);
        often(&[Verb::RegMr], faults.refused / 4.0, Errno::ENOMEM);
        often(&[Verb::ModifyQp], faults.refused / 4.0, Errno::ETIMEDOUT);
        often(&[Verb::QueryPort], faults.refused / 8.0, Errno::EIO);
        let frees = [Verb::DestroyQp, Verb::DeregMr, Verb::DestroyCq, Verb::DestroyCompChannel];
        often(&frees, faults.unfreed, Errno::EBUSY);
        often(&[Verb::DeallocPd, Verb::CloseDevice], faults.unfreed, Errno::EBUSY);
        if faults.short_posts > 0.0 {
            let probability = share(faults.short_posts / 3.0);
            fake.short_posts(When::Share(probability), 0, Errno::ENOMEM);
            fake.short_posts(When::Share(probability), 1, Errno::EAGAIN);
            fake.short_posts(When::Share(probability), 2, Errno::ENOMEM);
        }
        if faults.strays > 0.0 {
            fake.stray_writes(share(faults.strays), Duration::from_micros(faults.stray_us));
        }
    }

    /// What a new life at a place has of its devices; none when it goes without.
    pub(crate) fn open(&mut self, place: usize, life: usize) -> Option<RdmaDomain> {
        self.lives[place] = life;
        let mut net = self.net.lock();
        self.devices[place].iter().for_each(|device| {
            net.devices.insert(*device, life);
        });
        drop(net);
        let adapters = Adapters::open(&self.fake.verbs(place as u32), &self.config).ok()?;
        self.lists.extend(adapters.retentions().into_iter().map(|list| (place, list)));
        Some(RdmaDomain::new(adapters))
    }

    /// How many ops a transport holds at most.
    pub(crate) fn max_ops(&self) -> u32 {
        self.config.max_ops
    }

    /// What may follow the deadline of a transfer: until a completion is missed, its QP flushed, and destroyed at last; and a fence.
    pub(crate) fn bound_ns(&self) -> u64 {
        let RdmaConfig { ack_budget, fence_timeout, .. } = self.config;
        (ack_budget * 2 + fence_timeout + Duration::from_millis(200 + 100 + 200 + 1_000)).as_nanos() as u64
    }

    /// When something is due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let undo = self.undo.keys().next().map(|(at, _)| *at);
        let fault = self.next_fault.map(|at| self.waits_until.unwrap_or(at));
        undo.into_iter().chain(fault).chain(self.next_step).min()
    }

    /// Lets happen what is due.
    pub(crate) fn run(&mut self, now_ns: u64) {
        self.clock.store(now_ns, Ordering::Relaxed);
        while let Some(due) = self.undo.first_entry().filter(|due| due.key().0 <= now_ns) {
            let undo = due.remove();
            self.undo(undo);
        }
        if self.next_fault.is_some_and(|at| at <= now_ns) {
            // Most of the time nothing is under way, and nothing is hit then.
            let until = *self.waits_until.get_or_insert(now_ns + PATIENCE_NS);
            if now_ns >= until || !self.fake.busy().is_empty() {
                self.waits_until = None;
                self.disturb(now_ns);
                self.next_fault = self.fault_after(now_ns);
            }
        }
        if self.next_step.is_some_and(|at| at <= now_ns) {
            self.next_step = None;
            let all = self.rng.u32(0..4) == 0;
            let most = if all { u64::MAX } else { self.rng.u64(1..=8) };
            let did = self.fake.step(most);
            self.net.lock().trace.note("step", &[now_ns, did]);
        }
        self.after(now_ns);
    }

    /// After processes did something: what follows from it.
    pub(crate) fn after(&mut self, now_ns: u64) {
        let told = self.fake.take_told();
        let mut net = self.net.lock();
        net.woken.extend(told.iter().map(|place| self.lives[*place as usize]));
        let wrongs = self.fake.violations();
        for wrong in &wrongs[self.wrongs..] {
            net.report.violated(Checker::Devices, wrong.clone());
        }
        self.wrongs = wrongs.len();
        drop(net);
        let Some(due) = self.fake.due().map(|due| due.as_nanos() as u64) else { return };
        let at = if due <= now_ns {
            if self.next_step.is_some_and(|at| at > now_ns) {
                return;
            }
            now_ns + 1_000 + self.rng.u64(0..=self.faults.slow_us) * 1_000
        } else {
            due
        };
        self.next_step = Some(self.next_step.map_or(at, |next| next.min(at)));
    }

    fn fault_after(&mut self, now_ns: u64) -> Option<u64> {
        let RdmaFaults { queues, ports, addresses, devices, .. } = self.faults;
        let rate = queues + ports + addresses + devices;
        (rate > 0.0).then(|| now_ns + (-(1.0 - self.rng.f64()).ln() / rate * 1e9) as u64)
    }

    /// A device, rather one that does something.
    fn any_device(&mut self) -> DeviceId {
        let busy = self.fake.busy();
        if !busy.is_empty() && self.rng.u32(0..4) > 0 {
            return busy[self.rng.usize(..busy.len())].0;
        }
        let place = self.rng.usize(..self.devices.len());
        let number = self.rng.usize(..self.devices[place].len());
        self.devices[place][number]
    }

    fn later(&mut self, at_ns: u64, undo: Undo) {
        self.made += 1;
        self.undo.insert((at_ns, self.made), undo);
    }

    /// Something happens to a device.
    fn disturb(&mut self, now_ns: u64) {
        let RdmaFaults { queues, ports, addresses, devices, .. } = self.faults;
        let device = self.any_device();
        let drawn = self.rng.f64() * (queues + ports + addresses + devices);
        let until = now_ns + self.rng.u64(1..600) * 1_000_000;
        let kind = self.rng.u32(0..6);
        self.net.lock().trace.note("broken", &[now_ns, drawn.to_bits(), u64::from(kind)]);
        let fault = if drawn < queues {
            self.break_queue(device, kind)
        } else if drawn < queues + ports {
            self.lose_path(device, kind, until);
            Some(LOST_PATHS)
        } else if drawn < queues + ports + addresses {
            self.fake.set_gid(device, 1, DeviceSpec::ROCE_V2, None);
            self.later(until, Undo::Address(device));
            Some(CHANGED_ADDRESSES)
        } else {
            if kind % 2 == 0 {
                self.fake.device_fatal(device);
            } else {
                self.fake.remove_device(device);
            }
            self.later(until, Undo::Device(device));
            Some(LOST_DEVICES)
        };
        fault.into_iter().for_each(|fault| self.met[fault] += 1);
    }

    fn break_queue(&mut self, device: DeviceId, kind: u32) -> Option<usize> {
        match kind {
            0..3 => {
                let busy: Vec<u32> =
                    self.fake.busy().iter().filter(|qp| qp.0 == device).map(|qp| qp.1).collect();
                let there = if busy.is_empty() { self.fake.qps(device) } else { busy };
                let qp = there.get(self.rng.usize(..there.len().max(1)))?;
                self.fake.qp_fatal(device, *qp);
                Some(BROKEN_QUEUES)
            }
            3 => {
                let there = self.fake.cqs(device);
                let cq = there.get(self.rng.usize(..there.len().max(1)))?;
                self.fake.cq_fatal(*cq);
                Some(BROKEN_QUEUES)
            }
            _ => {
                self.fake.flush_storm(device);
                Some(FLUSH_STORMS)
            }
        }
    }

    fn lose_path(&mut self, device: DeviceId, kind: u32, until: u64) {
        match kind {
            0..3 => {
                let how = [Carrier::Retried, Carrier::Flushed, Carrier::Stuck][kind as usize];
                self.fake.carrier_down(device, 1, how);
                self.later(until, Undo::Carrier(device));
            }
            3 => {
                self.fake.black_hole(device, 1, true);
                self.later(until, Undo::BlackHole(device));
            }
            _ => {
                let other = self.any_device();
                self.fake.cut((device, 1), (other, 1), true);
                self.later(until, Undo::Cut(device, other));
            }
        }
    }

    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Carrier(device) => self.fake.carrier_up(device, 1),
            Undo::BlackHole(device) => self.fake.black_hole(device, 1, false),
            Undo::Cut(one, other) => self.fake.cut((one, 1), (other, 1), false),
            Undo::Address(device) => {
                let place = self.devices.iter().position(|of| of.contains(&device)).unwrap_or_default();
                let number = self.devices[place].iter().position(|of| *of == device).unwrap_or_default();
                let port = PortSpec::roce([10, number as u8, 0, place as u8]);
                let gid = port.gids[usize::from(DeviceSpec::ROCE_V2)];
                self.fake.set_gid(device, 1, DeviceSpec::ROCE_V2, gid);
            }
            Undo::Device(device) => self.fake.device_back(device),
        }
    }

    /// Nothing goes wrong any more.
    pub(crate) fn calm(&mut self) {
        (self.next_fault, self.waits_until) = (None, None);
        self.fake.heal();
    }

    /// The process at a place is taken away, whatever it was doing: its devices stop with it.
    pub(crate) fn killed(&mut self, place: usize, take_away: impl FnOnce(), report: &mut Report) {
        take_away();
        // What is freed in the order in which Rust drops is freed at one moment by a kernel.
        self.wrongs = self.fake.violations().len();
        self.settle(place, report);
    }

    /// Frees what the life at a place could not free, which is gone; what can't be freed now is told.
    pub(crate) fn settle(&mut self, place: usize, report: &mut Report) {
        for (_, list) in self.lists.iter().filter(|(of, _)| *of == place) {
            let left = (0..SWEEPS).map(|_| list.sweep().left).find(|left| *left == 0);
            if left.is_none() {
                report.violated(Checker::Devices, format!("never freed: {:?}", list.list()));
            }
        }
    }

    /// After all lives are gone: nothing is left of any of them.
    pub(crate) fn check_end(&mut self, report: &mut Report) {
        (0..self.devices.len()).for_each(|place| self.settle(place, report));
        let left = self.fake.counts();
        if !left.is_empty() {
            report.violated(Checker::Devices, format!("devices still have {left:?}"));
        }
    }

    /// How often each fault was met.
    pub(crate) fn met(&self) -> Met {
        let of = self.fake.met();
        let mut met = self.met;
        met[RETAINED] = self.lists.iter().map(|(_, list)| list.ever()).sum();
        met[..5].copy_from_slice(&[of.late, of.lost, of.calls, of.short_posts, of.strays]);
        met
    }
}

/// Small limits and short times.
fn config(rng: &mut Rng) -> RdmaConfig {
    let ms = Duration::from_millis;
    RdmaConfig {
        width: rng.u8(1..=3),
        send_depth: rng.u32(2..=40),
        chunk_bytes: rng.u32(200..5_000),
        reads: rng.u8(1..=16),
        ack_budget: ms(rng.u64(20..100)),
        // Polling is a turn every few µs as long as anything is under way, and finds nothing else than the others.
        completions: if rng.bool() { Completions::Events } else { Completions::Adaptive },
        max_ops: rng.u32(4..=64),
        max_links: 64,
        regions: rng.u32(1..=6),
        unreachable_after: ms(300),
        fence_timeout: ms(200),
        revoke_timeout: ms(rng.u64(20..200)),
        ..RdmaConfig::default()
    }
}
