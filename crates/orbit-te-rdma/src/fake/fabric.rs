//! The fabric as a test holds it. Rule: one lock around all of it; a call of verbs holds it as long as it lasts, and is never held while a
//! descriptor is waited for.

use super::plan::Call;
use super::spec::{DeviceId, DeviceSpec};
use super::state::{Device, Health, Live, Port, State};
use super::sys::FakeVerbs;
use crate::sys::Verbs;
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// When work is carried out by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// When a CQ is polled or armed.
    AtPoll,
    /// Within the call that posts it, too.
    AtPost,
    /// Only by [`FakeFabric::step`].
    ByHand,
}

/// What time it is for retries and late CQEs.
#[derive(Clone, Default)]
pub enum Clock {
    /// It moves by [`FakeFabric::advance`] only.
    #[default]
    ByHand,
    /// The machine's.
    Real,
    /// Somebody else's: the time since an instant of its own.
    Given(Arc<dyn Fn() -> Duration + Send + Sync>),
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Clock::ByHand => "ByHand",
            Clock::Real => "Real",
            Clock::Given(_) => "Given",
        })
    }
}

/// How many objects live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Open devices.
    pub contexts: usize,
    /// PDs.
    pub pds: usize,
    /// MRs.
    pub mrs: usize,
    /// MWs.
    pub mws: usize,
    /// Completion channels.
    pub channels: usize,
    /// CQs.
    pub cqs: usize,
    /// SRQs.
    pub srqs: usize,
    /// QPs.
    pub qps: usize,
}

impl Counts {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        *self == Counts::default()
    }
}

/// Devices and the network between them. Cheap to clone; all clones are the same fabric.
#[derive(Clone)]
pub struct FakeFabric {
    state: Arc<Mutex<State>>,
}

impl FakeFabric {
    /// An empty one. What chance decides in it is repeated by the seed.
    pub fn new(seed: u64) -> FakeFabric {
        FakeFabric { state: Arc::new(Mutex::new(State::new(seed))) }
    }

    /// Adds a device, with all its ports up.
    pub fn add_device(&self, mut spec: DeviceSpec) -> DeviceId {
        let mut state = self.state();
        if spec.guid == 0 {
            spec.guid = state.rng.next() | 1;
        }
        let port = |spec: &_| Port { spec: Clone::clone(spec), up: true, black_hole: false, stuck: false };
        let ports = spec.ports.iter().map(port).collect();
        let device = Device { spec, health: Health::Good, ports, qpns: Vec::new(), live: Live::default() };
        state.devices.push(device);
        state.changed();
        DeviceId(state.devices.len() as u32 - 1)
    }

    /// The table of verbs as programs of a host see it.
    pub fn verbs(&self, host: u32) -> Arc<dyn Verbs> {
        Arc::new(FakeVerbs::new(self.clone(), host))
    }

    /// Says when work is carried out; at first [`Mode::AtPoll`].
    pub fn set_mode(&self, mode: Mode) {
        self.state().mode = mode;
    }

    /// Has WRs of different QPs carried out in an order that the seed decides, or in the order of posting.
    pub fn scramble(&self, on: bool) {
        self.state().scrambled = on;
    }

    /// Whether bytes are moved at all; without, only the engine's own cost is left to be measured.
    pub fn move_bytes(&self, on: bool) {
        self.state().moves_bytes = on;
    }

    /// Carries out at most so many WRs, and gives how many ended.
    pub fn step(&self, most: u64) -> u64 {
        self.state().run(most)
    }

    /// Carries out all that can be.
    pub fn settle(&self) -> u64 {
        self.step(u64::MAX)
    }

    /// Takes another clock.
    pub fn set_clock(&self, clock: Clock) {
        self.state().clock = clock;
    }

    /// The time that retries and late CQEs go by.
    pub fn now(&self) -> Duration {
        self.state().now()
    }

    /// Moves the clock, and carries out what is due, unless that is done by hand.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state();
        state.elapsed += by;
        state.run_by_itself();
    }

    /// Remembers each call from now on, or not any more.
    pub fn record(&self, on: bool) {
        self.state().plan.record(on);
    }

    /// The calls that were remembered.
    pub fn calls(&self) -> Vec<Call> {
        self.state().plan.calls().to_vec()
    }

    /// How many objects live.
    pub fn counts(&self) -> Counts {
        use super::state::KeyKind;
        let state = self.state();
        let keys = |mr: bool| {
            let live = state.keys.iter().filter(|key| key.alive);
            live.filter(|key| matches!(key.kind, KeyKind::Mr { .. }) == mr).count()
        };
        Counts {
            contexts: state.contexts.iter().filter(|at| at.alive).count(),
            pds: state.pds.iter().filter(|at| at.alive).count(),
            mrs: keys(true),
            mws: keys(false),
            channels: state.channels.iter().filter(|at| at.alive).count(),
            cqs: state.cqs.iter().filter(|at| at.alive).count(),
            srqs: state.srqs.iter().filter(|at| at.alive).count(),
            qps: state.qps.iter().filter(|at| at.alive).count(),
        }
    }

    /// The numbers of the QPs of a device that live, the oldest first.
    pub fn qps(&self, device: DeviceId) -> Vec<u32> {
        let state = self.state();
        let live = state.qps.iter().filter(|qp| qp.alive && qp.device == device.0);
        live.map(|qp| qp.number).collect()
    }

    /// The CQs of a device that live, by [`crate::handle::Cq::cookie`], the oldest first.
    pub fn cqs(&self, device: DeviceId) -> Vec<u64> {
        let state = self.state();
        let of = |context: u32| state.contexts[context as usize].device == device.0;
        let live = state.cqs.iter().filter(|cq| cq.alive && of(cq.context));
        live.map(|cq| cq.cookie).collect()
    }

    /// What programs did that they must not: used what they had freed, gave events back twice, deregistered memory under WRs in flight.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// How many WRs that were posted are not done, nor flushed.
    pub fn in_flight(&self) -> usize {
        let state = self.state();
        state.qps.iter().filter(|qp| qp.alive).map(|qp| qp.sq.waiting().count()).sum()
    }

    /// How many WRs and receives that are not done have local bytes in a range: what must not be freed.
    pub fn in_flight_over(&self, address: u64, length: u64) -> usize {
        self.state().waiting_over(address, length)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl fmt::Debug for FakeFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeFabric").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
