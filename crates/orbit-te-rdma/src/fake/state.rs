//! All that a fabric consists of. Rule: objects are numbered from 0 among their kind, and a number is never used again; the `handle` of what a
//! program sees is that number.

use super::events::Event;
use super::fabric::{Clock, Mode};
use super::plan::Plan;
use super::queue::{CqRing, Cqe, RecvQueue, SendQueue};
use super::rng::Rng;
use super::spec::{DeviceSpec, GidSpec, PortSpec};
use super::stray::Stray;
use super::sys::{EventFd, Mapping, RawBox};
use super::virtual_time::Watcher;
use crate::access::MrAccess;
use crate::error::Errno;
use crate::verb::Verb;
use ibverbs_sys::*;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

pub(super) struct State {
    pub(super) clock: Clock,
    /// The time of a clock that is moved by hand.
    pub(super) elapsed: Duration,
    pub(super) started: Instant,
    pub(super) mode: Mode,
    /// Whether WRs of several QPs are done in a random order.
    pub(super) scrambled: bool,
    pub(super) moves_bytes: bool,
    pub(super) rng: Rng,
    pub(super) devices: Vec<Device>,
    pub(super) contexts: Vec<Context>,
    pub(super) channels: Vec<Channel>,
    pub(super) pds: Vec<Pd>,
    pub(super) keys: Vec<Key>,
    pub(super) cqs: Vec<Cq>,
    pub(super) qps: Vec<Qp>,
    pub(super) srqs: Vec<Srq>,
    /// QPs with something to do.
    pub(super) ready: VecDeque<u32>,
    /// QPs that wait for an answer; tried again each time.
    pub(super) waiting: Vec<u32>,
    /// Changes whenever one QP may reach another, or not any more.
    pub(super) epoch: u64,
    pub(super) late: BinaryHeap<Late>,
    pub(super) late_seq: u64,
    /// Pairs of ports that can't reach each other, the lesser first.
    pub(super) cuts: HashSet<(PortAt, PortAt)>,
    /// What binds, for WRs that bind: by QP and number of the WR.
    pub(super) binds: HashMap<(u32, u64), Bind>,
    /// Room for the ranges of a WR, and for those of a receive.
    pub(super) local_ranges: Vec<Span>,
    pub(super) far_ranges: Vec<Span>,
    pub(super) plan: Plan,
    /// WRITEs whose QP has failed, on their way.
    pub(super) strays: Vec<Stray>,
    /// [`State::epoch`] when WRs were last carried out.
    pub(super) ran_epoch: u64,
    /// Hosts that have a CQE or an event since it was last asked, by bits.
    pub(super) told: u64,
    pub(super) watcher: Option<Watcher>,
    pub(super) violations: Vec<String>,
}

/// Memory that is open to a WR: where, and how long.
pub(super) type Span = (u64, u64);

/// A port, by its device's number and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PortAt {
    pub(super) device: u32,
    pub(super) port: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Good,
    Broken,
    Removed,
}

pub(super) struct Device {
    pub(super) spec: DeviceSpec,
    pub(super) health: Health,
    pub(super) ports: Vec<Port>,
    /// The QP of each number that was given out, from [`FIRST_QPN`] on.
    pub(super) qpns: Vec<u32>,
    pub(super) live: Live,
}

/// The number of a device's first QP; lower ones are special.
pub(super) const FIRST_QPN: u32 = 0x11;

/// How much of each kind a device has.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) qps: u32,
    pub(super) mrs: u32,
    pub(super) mws: u32,
    pub(super) cqs: u32,
    pub(super) pds: u32,
    pub(super) srqs: u32,
}

pub(super) struct Port {
    pub(super) spec: PortSpec,
    pub(super) up: bool,
    /// What goes out or comes in is lost.
    pub(super) black_hole: bool,
    /// What is to go out waits for ever.
    pub(super) stuck: bool,
}

impl Port {
    pub(super) fn gid(&self, index: u8) -> Option<GidSpec> {
        self.spec.gids.get(usize::from(index)).copied().flatten()
    }
}

pub(super) struct Context {
    pub(super) raw: RawBox<ibv_context>,
    /// What the context points to, for programs that look.
    pub(super) _device: RawBox<ibv_device>,
    pub(super) device: u32,
    pub(super) alive: bool,
    /// Its device broke or was removed since it was opened.
    pub(super) dead: bool,
    pub(super) children: u32,
    pub(super) fd: Option<EventFd>,
    pub(super) events: VecDeque<Event>,
}

pub(super) struct Channel {
    pub(super) raw: RawBox<ibv_comp_channel>,
    pub(super) context: u32,
    pub(super) alive: bool,
    pub(super) cqs: u32,
    pub(super) fd: Option<EventFd>,
    pub(super) events: VecDeque<u32>,
}

pub(super) struct Pd {
    pub(super) raw: RawBox<ibv_pd>,
    pub(super) context: u32,
    pub(super) alive: bool,
    pub(super) children: u32,
}

/// An MR or an MW: what a key opens.
pub(super) struct Key {
    /// The whole key: the number of the object, and 8 bits that say which of its keys.
    pub(super) value: u32,
    pub(super) pd: u32,
    pub(super) alive: bool,
    /// Where the first byte is.
    pub(super) address: u64,
    /// By which address the first byte is named.
    pub(super) iova: u64,
    pub(super) length: u64,
    pub(super) access: MrAccess,
    pub(super) kind: KeyKind,
}

pub(super) enum KeyKind {
    Mr { _raw: RawBox<ibv_mr>, windows: u32, _mapping: Option<Mapping> },
    Mw { _raw: RawBox<ibv_mw>, type_2: bool, bound: Option<Bound> },
}

/// To what a window is bound.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) mr: u32,
    /// The only QP that it opens the memory to, for windows of type 2.
    pub(super) qp: u32,
}

/// A bind that was posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bind {
    pub(super) mw: u32,
    /// The window's key as the program has it.
    pub(super) present: u32,
    pub(super) mr: Option<u32>,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) access: MrAccess,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Armed {
    No,
    Next,
    Solicited,
}

pub(super) struct Cq {
    pub(super) raw: RawBox<ibv_cq>,
    pub(super) context: u32,
    pub(super) alive: bool,
    pub(super) ring: CqRing,
    pub(super) channel: Option<u32>,
    pub(super) cookie: u64,
    pub(super) armed: Armed,
    pub(super) broken: bool,
    pub(super) users: u32,
    /// Events that a program took, and did not give back.
    pub(super) unacked: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QpState {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqd,
    Err,
}

/// What a QP finds where its peer should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Its peer.
    Peer(u32),
    /// Nobody who answers.
    Nobody,
    /// It can't even send: WRs wait for ever.
    Stuck,
    /// It may not send: its own GID is gone.
    NoSource,
}

pub(super) struct Qp {
    pub(super) raw: RawBox<ibv_qp>,
    pub(super) context: u32,
    pub(super) device: u32,
    pub(super) pd: u32,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) srq: Option<u32>,
    pub(super) number: u32,
    pub(super) alive: bool,
    pub(super) state: QpState,
    pub(super) sig_all: bool,
    pub(super) attr: ibv_qp_attr,
    /// The own GID when the QP was told of its peer.
    pub(super) source: Option<[u8; 16]>,
    pub(super) access: MrAccess,
    pub(super) sq: SendQueue,
    pub(super) rq: RecvQueue,
    /// In `ready` or `waiting`.
    pub(super) queued: bool,
    pub(super) reach: Reach,
    pub(super) reach_epoch: u64,
    /// When it gives up on an answer; `None` if it has not begun to wait.
    pub(super) retry_at: Option<Duration>,
    /// When it gives up on a receive.
    pub(super) rnr_at: Option<Duration>,
    /// No CQE of it comes before.
    pub(super) late_until: Duration,
    /// Changes when it is made as new.
    pub(super) life: u32,
    pub(super) unacked: u32,
}

pub(super) struct Srq {
    pub(super) raw: RawBox<ibv_srq>,
    pub(super) context: u32,
    pub(super) pd: u32,
    pub(super) alive: bool,
    pub(super) rq: RecvQueue,
    pub(super) users: u32,
}

/// A CQE on its way.
pub(super) struct Late {
    pub(super) due: Duration,
    pub(super) seq: u64,
    pub(super) cq: u32,
    /// The life of its QP, where it must be the same.
    pub(super) life: u32,
    pub(super) cqe: Cqe,
}

impl Ord for Late {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Late) -> Ordering {
        (other.due, other.seq).cmp(&(self.due, self.seq))
    }
}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Late) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Late {
    fn eq(&self, other: &Late) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Late {}

impl State {
    pub(super) fn new(seed: u64) -> State {
        State {
            clock: Clock::ByHand,
            elapsed: Duration::ZERO,
            started: Instant::now(),
            mode: Mode::AtPoll,
            scrambled: false,
            moves_bytes: true,
            rng: Rng::new(seed),
            devices: Vec::new(),
            contexts: Vec::new(),
            channels: Vec::new(),
            pds: Vec::new(),
            keys: Vec::new(),
            cqs: Vec::new(),
            qps: Vec::new(),
            srqs: Vec::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            epoch: 1,
            late: BinaryHeap::new(),
            late_seq: 0,
            cuts: HashSet::new(),
            binds: HashMap::new(),
            local_ranges: Vec::new(),
            far_ranges: Vec::new(),
            plan: Plan::default(),
            strays: Vec::new(),
            ran_epoch: 0,
            told: 0,
            watcher: None,
            violations: Vec::new(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        match &self.clock {
            Clock::ByHand => self.elapsed,
            Clock::Real => self.started.elapsed(),
            Clock::Given(clock) => clock(),
        }
    }

    /// Counts a call of the plan, if there is one.
    #[inline]
    pub(super) fn enter(&mut self, verb: Verb, object: u32) -> Result<(), Errno> {
        if self.plan.active { self.plan.ask(verb, object, &mut self.rng) } else { Ok(()) }
    }

    /// Counts a call on a context, which must be one of a device that works, unless the call frees.
    pub(super) fn enter_on(&mut self, verb: Verb, object: u32, context: u32) -> Result<(), Errno> {
        self.enter(verb, object)?;
        if self.contexts[context as usize].dead && !verb.frees() { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Remembers that a program did what it must not.
    #[cold]
    pub(super) fn violation(&mut self, what: String) -> Errno {
        self.violations.push(what);
        Errno::EINVAL
    }

    /// Refuses what was freed before.
    pub(super) fn must_live(&mut self, alive: bool, verb: Verb, object: u32) -> Result<(), Errno> {
        match alive {
            true => Ok(()),
            false => Err(self.violation(format!("{verb} on object {object}, which was freed before"))),
        }
    }

    /// Has a QP looked at.
    #[inline]
    pub(super) fn wake(&mut self, qp: u32) {
        let at = &mut self.qps[qp as usize];
        if !at.queued {
            at.queued = true;
            self.ready.push_back(qp);
        }
    }

    /// The QP of a device by its number.
    pub(super) fn qp_by_number(&self, device: u32, number: u32) -> Option<u32> {
        let at = number.checked_sub(FIRST_QPN)?;
        self.devices.get(device as usize)?.qpns.get(at as usize).copied()
    }

    pub(super) fn port(&self, at: PortAt) -> Option<&Port> {
        let place = at.port.checked_sub(1)?;
        self.devices.get(at.device as usize)?.ports.get(usize::from(place))
    }

    pub(super) fn port_mut(&mut self, at: PortAt) -> Option<&mut Port> {
        let place = at.port.checked_sub(1)?;
        self.devices.get_mut(at.device as usize)?.ports.get_mut(usize::from(place))
    }
}
