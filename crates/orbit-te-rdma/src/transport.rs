//! The transport: ops to links, links to QPs. Rule: nothing here waits; what a peer or a device does not answer has an end in time.

#![allow(unsafe_code)]

use crate::adapter::Adapters;
use crate::announcing::{Announcing, is_of_notice};
use crate::completion::Wc;
use crate::config::{Completions, RdmaConfig};
use crate::cut::Range;
use crate::domain::{NAME, RdmaDomain};
use crate::handshake::{Action, Input, Pace};
use crate::lane::Lanes;
use crate::link::Link;
use crate::local::Local;
use crate::notices::Reader;
use crate::ops::{Cut, OpSlot, OpTable};
use crate::placement::Placement;
use crate::rail_queue::RailQueue;
use crate::sys::{CHAIN, Chain, RANGES};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use orbit_te_memory::{KindSet, LocalSpan};
use orbit_te_transport::{
    Arm, Capabilities, Event, LinkId, LinkLanes, Notice, Op, OpError, OpErrorCode, Progress, Signs, Token,
    Transport, TransportError,
};
use orbit_te_wire::limits::MAX_PIECES;
use orbit_te_wire::rdma::notice::{self, MAX_NOTICE_BYTES};
use orbit_te_wire::rdma::{Address, Features};
use orbit_te_wire::{Incarnation, PeerId};
use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Instant;

pub(crate) const MAX_OP_BYTES: u64 = u64::MAX >> 8;
/// CQEs that are taken from one CQ at a time.
const CQES: usize = 64;

pub(crate) struct LinkEntry {
    pub(crate) generation: u32,
    pub(crate) link: Option<Link>,
}

/// Reads and writes the memory of peers by RDMA.
pub struct RdmaTransport {
    pub(crate) config: RdmaConfig,
    pub(crate) life: Incarnation,
    pub(crate) placement: Placement,
    pub(crate) adapters: Arc<Adapters>,
    pub(crate) local: Local,
    /// By the rail's number; made when they are first used.
    pub(crate) queues: Vec<Option<RailQueue>>,
    pub(crate) lanes: Lanes,
    pub(crate) links: Vec<LinkEntry>,
    free_links: Vec<u32>,
    pub(crate) ops: OpTable,
    pub(crate) announcing: Announcing,
    /// Links that have something to post, and room for it.
    pub(crate) active: VecDeque<LinkId>,
    pub(crate) chain: Chain,
    pub(crate) ranges: [Range; RANGES],
    /// By WR of the chain: how far its op was cut before.
    pub(crate) befores: [Cut; CHAIN],
    /// Ops that have to be looked at after a CQE; kept for its memory.
    pub(crate) odd: Vec<OpSlot>,
    /// Where CQEs come to.
    wcs: Vec<Wc>,
    pub(crate) actions: Vec<Action>,
    pub(crate) news: Vec<Event>,
    pub(crate) epoll: Epoll,
    pub(crate) next_timer: Option<Instant>,
    /// How far this has read what happened to the rails.
    pub(crate) reader: Reader,
    /// When something was last found: [`Completions::Adaptive`] waits by an event only a while after it.
    found: Instant,
    closed: bool,
}

impl RdmaTransport {
    /// One that moves memory that is registered with this domain. `life`: that of this side, as its counterpart announces it.
    ///
    /// # Errors
    /// When the system gives no event queue.
    pub fn new(domain: &RdmaDomain, life: Incarnation) -> io::Result<RdmaTransport> {
        let registrations = domain.registrations().clone();
        let adapters = registrations.adapters().clone();
        let config = adapters.config().clone();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for adapter in adapters.all().iter().filter(|adapter| adapter.is_watched()) {
            epoll.add(adapter.pd.context().as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        let reader = adapters.notices().reader()?;
        epoll.add(reader.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 2))?;
        let max_ops = config.max_ops;
        Ok(RdmaTransport {
            life,
            placement: Placement::default(),
            queues: adapters.all().iter().map(|_| None).collect(),
            local: Local::new(registrations),
            adapters,
            lanes: Lanes::default(),
            links: Vec::new(),
            free_links: Vec::new(),
            ops: OpTable::new(max_ops),
            announcing: Announcing::default(),
            active: VecDeque::new(),
            chain: Chain::new(),
            ranges: [Range::default(); RANGES],
            befores: [Cut::default(); CHAIN],
            odd: Vec::new(),
            wcs: vec![Wc::default(); CQES],
            actions: Vec::new(),
            news: Vec::new(),
            epoll,
            next_timer: None,
            reader,
            found: Instant::now(),
            closed: false,
            config,
        })
    }

    pub(crate) fn find(&mut self, id: LinkId) -> Option<&mut Link> {
        link_of(&mut self.links, id)
    }

    pub(crate) fn wake_by(&mut self, at: Instant) {
        self.next_timer = Some(self.next_timer.map_or(at, |t| t.min(at)));
    }

    /// All links there are.
    pub(crate) fn link_ids(&self) -> Vec<LinkId> {
        let there = |(_, entry): &(usize, &LinkEntry)| entry.link.is_some();
        let id =
            |(slot, entry): (usize, &LinkEntry)| LinkId { slot: slot as u32, generation: entry.generation };
        self.links.iter().enumerate().filter(there).map(id).collect()
    }

    /// Takes CQEs; whether there were any.
    pub(crate) fn poll_queues(&mut self, now: Instant) -> bool {
        let mut any = false;
        let mut wcs = std::mem::take(&mut self.wcs);
        for rail in 0..self.queues.len() {
            let Some(queue) = &self.queues[rail] else { continue };
            match queue.poll(&mut wcs[..]) {
                Ok(0) => {
                    let over = self.announcing.settled(rail, queue.cq.cookie());
                    if let Some(queue) = self.queues[rail].as_mut().filter(|_| over > 0) {
                        queue.release(over);
                    }
                }
                Ok(count) => {
                    any = true;
                    for wc in &wcs[..count] {
                        match is_of_notice(wc.token()) {
                            false => self.over(wc, now),
                            true => self.noticed(wc, now),
                        }
                    }
                }
                Err(error) => self.queue_failed(rail as u8, &error.to_string(), now),
            }
        }
        self.wcs = wcs;
        any
    }
}

#[inline]
pub(crate) fn link_of(links: &mut [LinkEntry], id: LinkId) -> Option<&mut Link> {
    let entry = links.get_mut(id.slot as usize)?;
    entry.link.as_mut().filter(|_| entry.generation == id.generation)
}

// SAFETY: each op that is taken stands in the table until its completion was given out, and completes once (promise 1); not before the last
// of its WRs is over, by its CQE or because its QP is gone, so that the device touches its memory no more (3). It completes with success when
// each of its WRs did, which the peer's device has acknowledged, or whose bytes are in place here (2). A write that has failed or was cancelled while the device
// had it completes as fenced only when the peer has said that the QP at its side is gone, or when all its WRs were acknowledged (4).
unsafe impl Transport for RdmaTransport {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            read: true,
            write: true,
            kinds: KindSet::HOST,
            vanishing: false,
            max_op_bytes: MAX_OP_BYTES,
            max_pieces: MAX_PIECES,
            max_list_bytes: MAX_OP_BYTES,
            max_ops: self.config.max_ops,
            needs_target_cpu: false,
            moves_by_calls: false,
            admits: true,
            fences: true,
            checksums: false,
            notifications: self.config.notifications,
        }
    }

    fn connect(&mut self, _peer: PeerId, address: &[u8], now: Instant) -> Result<LinkId, TransportError> {
        let bad = |reason: String| TransportError::BadAddress { transport: NAME, reason };
        let address = Address::decode(address).map_err(|error| bad(error.to_string()))?;
        let slot = match self.free_links.pop() {
            Some(slot) => slot,
            None if self.links.len() < self.config.max_links as usize => {
                self.links.push(LinkEntry { generation: 0, link: None });
                self.links.len() as u32 - 1
            }
            None => return Err(TransportError::TooManyLinks { transport: NAME, limit: self.links.len() }),
        };
        let entry = &mut self.links[slot as usize];
        entry.link = Some(Link::new(self.life, address.incarnation, Pace::default(), now));
        let id = LinkId { slot, generation: entry.generation };
        let able = self.config.notifications && address.features.contains(Features::NOTIFICATIONS);
        self.announcing.begin(id, able);
        self.drive(id, Input::Want, now);
        self.drive(id, Input::LinkUp { peer: address.incarnation }, now);
        self.wake_by(now);
        Ok(id)
    }

    fn deliver(&mut self, link: LinkId, bytes: &[u8], now: Instant) -> Result<(), TransportError> {
        if self.find(link).is_none() {
            return Err(TransportError::NoLink { transport: NAME });
        }
        let heard = self.hear(link, bytes, now);
        if heard.is_err() {
            self.disconnect(link, now);
        }
        heard
    }

    unsafe fn submit(&mut self, ops: &[Op], now: Instant) -> usize {
        let mut taken = 0;
        while !self.closed {
            taken += self.straight(&ops[taken..], now);
            let Some(op) = ops.get(taken) else { break };
            let Some(slot) = self.ops.insert(op) else { break };
            taken += 1;
            let length = op.local.length;
            // SAFETY: whoever submits vouches for the slices.
            let whole = op.pieces.is_none_or(|pieces| sum(unsafe { pieces.remote() }) == Some(length));
            let many = op.pieces.is_some_and(|pieces| pieces.len() > MAX_PIECES as usize);
            if length == 0 || length > MAX_OP_BYTES || !whole || many {
                self.ops.fail(slot, OpErrorCode::BadLength);
            } else if op.verify.is_on() || op.local.key.may_vanish() {
                self.ops.fail(slot, OpErrorCode::Unsupported);
            } else {
                self.place(slot, now);
            }
        }
        if !self.active.is_empty() {
            self.pump(now);
        }
        taken
    }

    unsafe fn notify(&mut self, notice: &Notice, now: Instant) -> bool {
        let LocalSpan { address, length, .. } = notice.bytes;
        if self.closed || !self.config.notifications || length == 0 || length > MAX_NOTICE_BYTES as u64 {
            return false;
        }
        // SAFETY: whoever submits it keeps the bytes valid and unchanged until its completion, which comes later.
        let given = unsafe { std::slice::from_raw_parts(address as *const u8, length as usize) };
        let mut bytes = [0; MAX_NOTICE_BYTES];
        match notice::encode(notice.number, given, &mut bytes) {
            Some(length) => self.take_notice(notice, (bytes, length), now),
            None => false,
        }
    }

    fn cancel(&mut self, tokens: RangeInclusive<Token>, now: Instant) {
        for slot in self.ops.find(|state| tokens.contains(&state.op.token) && state.failure.is_none()) {
            self.give_up(slot, OpError::new(OpErrorCode::Cancelled), now);
        }
    }

    fn poll(&mut self, now: Instant, budget: usize, out: &mut Progress) -> bool {
        let mut any = self.poll_queues(now);
        any |= self.look_after(now);
        if self.adapters.notices().any_for(&self.reader) {
            self.react(now);
            any = true;
        }
        if !self.active.is_empty() {
            any |= self.pump(now);
        }
        any |= self.ops.give_out(budget, &mut out.completions);
        any |= !self.news.is_empty();
        out.events.append(&mut self.news);
        if any {
            self.found = now;
        }
        any
    }

    fn arm(&mut self, now: Instant) -> Arm {
        let ready = !self.active.is_empty() || self.ops.has_done() || !self.news.is_empty();
        if ready || self.next_timer.is_some_and(|at| at <= now) {
            return Arm::Ready;
        }
        self.adapters.take_events();
        if self.adapters.notices().any_for(&self.reader) {
            return Arm::Ready;
        }
        let busy = self.lanes.any_under_way() || self.announcing.any_under_way();
        let spins = match self.config.completions {
            Completions::Polling => busy,
            Completions::Events => false,
            Completions::Adaptive => busy && now.saturating_duration_since(self.found) < self.config.spin,
        };
        if spins {
            return Arm::Ready;
        }
        // Events that came before are taken, each CQ is asked for its next one, and what is there already is looked for once more.
        let mut events = [EpollEvent::empty(); 16];
        let _ = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        let armed = self.queues.iter().flatten().try_for_each(RailQueue::arm);
        if armed.is_err() || self.poll_queues(now) {
            return Arm::Ready;
        }
        Arm::Sleep { fd: Some(self.epoll.0.as_raw_fd()), until: self.next_timer }
    }

    fn lanes(&self, link: LinkId, now: Instant) -> Option<LinkLanes> {
        let entry = self.links.get(link.slot as usize)?;
        let known = entry.link.as_ref().filter(|_| entry.generation == link.generation)?;
        let wanted = u32::from(self.config.width);
        let unreachable = !known.up && now >= known.down_since + self.config.unreachable_after;
        Some(LinkLanes { up: if known.up { wanted } else { 0 }, wanted, unreachable })
    }

    fn signs(&mut self, link: LinkId, now: Instant) -> Signs {
        // Devices need nobody at the other side; only keys do.
        let since = self.find(link).and_then(|link| link.entries.waits_since());
        Signs { quiet_for: since.map(|since| now.saturating_duration_since(since)), ..Signs::default() }
    }

    fn disconnect(&mut self, id: LinkId, now: Instant) {
        if self.find(id).is_none() {
            return;
        }
        self.drive(id, Input::Disconnect, now);
        self.end_ops(id, OpErrorCode::NoLink, |_| true, now);
        self.forget_notices(id);
        let entry = &mut self.links[id.slot as usize];
        let unfenced = entry.link.take().map(|link| link.unfenced).unwrap_or_default();
        entry.generation = entry.generation.wrapping_add(1);
        self.free_links.push(id.slot);
        unfenced.into_iter().for_each(|slot| self.end_unfenced(slot));
        // What is said last is still carried; nothing else of it is news.
        self.news
            .retain(|e| !matches!(e, Event::LinkUp { link } | Event::LinkDown { link, .. } if *link == id));
    }

    fn close(&mut self, now: Instant) {
        self.closed = true;
        for id in self.link_ids() {
            self.drive(id, Input::Disconnect, now);
            self.end_ops(id, OpErrorCode::Closed, |_| true, now);
            self.forget_notices(id);
            let unfenced = self.find(id).map(|link| std::mem::take(&mut link.unfenced)).unwrap_or_default();
            unfenced.into_iter().for_each(|slot| self.end_unfenced(slot));
        }
        self.links.clear();
        self.free_links.clear();
        self.active.clear();
    }

    fn is_drained(&self) -> bool {
        self.ops.is_empty()
    }
}

/// The bytes of all pieces; none when they are more than can be counted.
fn sum(table: &[orbit_te_wire::Piece]) -> Option<u64> {
    table.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.length()))
}

impl std::fmt::Debug for RdmaTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaTransport").field("links", &self.links.len()).finish_non_exhaustive()
    }
}
