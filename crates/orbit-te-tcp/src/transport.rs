//! The transport itself: its tables, its event queue, and the contract's calls. Rule: each call does what is ready and
//! returns; the two sides of a lane are in `initiator.rs` and `target.rs`.

#![allow(unsafe_code)]

use crate::address::{TRANSPORT, TcpAddress};
use crate::config::{Identity, TcpConfig};
use crate::lane::{Asked, Lane, Lanes, Role};
use crate::link::{LaneSlot, Link};
use crate::net::{Net, Os};
use crate::ops::{OpSlot, OpTable};
use arc_swap::ArcSwap;
use orbit_te_memory::{Grants, KindSet, RegionTable, Registry};
use orbit_te_transport::{
    Arm, Capabilities, Completion, Event, LinkId, LinkLanes, Mailbox, Notice, Op, OpError, OpErrorCode,
    OpKind, Pieces, Progress, Signs, Token, Transport, TransportError,
};
use orbit_te_wire::limits::{MAX_PAYLOAD_BYTES, MAX_PIECES};
use orbit_te_wire::notification::MAX_BYTES;
use orbit_te_wire::{PeerId, SessionId};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where refused payloads go.
const SCRATCH_BYTES: usize = 64 * 1024;
/// A call that moved less than it might have is mostly followed by an event for the rest. Where it stopped at memory that can't be
/// touched none comes, so the lane is tried again after this time.
const SHORT_RETRY: Duration = Duration::from_millis(1);
/// A timer that is late by more than this tells that the process was stopped; its peers then get this long to be heard. While lanes are
/// made there is a timer at least this often, so that a stop is told from a peer that does not answer wherever it ends.
pub(crate) const VERY_LATE: Duration = Duration::from_secs(1);
const EXCUSE: Duration = Duration::from_millis(250);
/// Bytes that calls between two polls hand to the kernel together: copying them takes a fraction of a millisecond, and whoever
/// submits is not held longer.
const EAGER_BYTES: u64 = 2 * 1024 * 1024;
/// Lanes that may have something to do before their lists grow.
const LANES: usize = 256;

/// What is known about a session whose lanes we answer.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Lanes by number.
    pub(crate) lanes: BTreeMap<u32, LaneSlot>,
    /// Numbers that were fenced, and may not come again.
    pub(crate) fenced: HashSet<u32>,
}

struct LinkEntry {
    generation: u32,
    link: Option<Link>,
}

/// Moves bytes over TCP. See [`Transport`] for what it promises.
///
/// One object serves both sides: it makes lanes to peers ([`Transport::connect`]) and answers the lanes of peers
/// ([`TcpTransport::adopt`]). It owns no thread; whoever owns it polls it.
pub struct TcpTransport<N: Net = Os> {
    pub(crate) config: TcpConfig,
    pub(crate) identity: Identity,
    /// Looked at anew for each request: a kept snapshot would keep the memory of regions that were withdrawn.
    pub(crate) regions: Arc<ArcSwap<RegionTable>>,
    pub(crate) grants: Arc<Grants>,
    /// Where notifications go; without it nobody listens.
    pub(crate) mailbox: Option<Arc<dyn Mailbox>>,
    pub(crate) net: N,
    pub(crate) lanes: Lanes<N::Stream>,
    links: Vec<LinkEntry>,
    free_links: Vec<u32>,
    pub(crate) ops: OpTable,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// Lanes with something to do.
    to_serve: VecDeque<LaneSlot>,
    /// Lanes whose last call moved less than it might have, to be tried once more before sleeping.
    short: Vec<LaneSlot>,
    /// Links whose queue may move again.
    pub(crate) to_pump: Vec<u32>,
    /// Those of them whose turn it is.
    pub(crate) pumping: Vec<u32>,
    /// What calls may still hand to the kernel before the next poll, which has no bound itself.
    may_send_bytes: u64,
    pub(crate) done: VecDeque<Completion>,
    pub(crate) news: Vec<Event>,
    pub(crate) scratch: Box<[u8]>,
    pub(crate) next_request: u64,
    /// When something is due, at the earliest.
    next_timer: Option<Instant>,
    /// When a cancelled write has waited long enough for its answer, at the earliest.
    pub(crate) next_cancel: Option<Instant>,
    /// The end of the time for which being late is excused.
    excused_until: Option<Instant>,
    closed: bool,
}

impl TcpTransport {
    /// A transport that answers requests for the regions of this registry.
    ///
    /// # Errors
    /// [`TransportError::Io`] when the system gives no event queue.
    pub fn new(
        config: TcpConfig,
        identity: Identity,
        registry: &Registry,
    ) -> Result<TcpTransport, TransportError> {
        let os = Os::new().map_err(|source| TransportError::Io { what: "an event queue".into(), source })?;
        Ok(TcpTransport::over(os, config, identity, registry))
    }
}

impl<N: Net> TcpTransport<N> {
    /// A transport over this network, that answers requests for the regions of this registry.
    pub fn over(net: N, config: TcpConfig, identity: Identity, registry: &Registry) -> TcpTransport<N> {
        let config = config.bounded();
        let max_ops = config.max_ops.max(1);
        TcpTransport {
            regions: registry.table(),
            grants: registry.grants().clone(),
            mailbox: None,
            net,
            lanes: Lanes::new(),
            links: Vec::new(),
            free_links: Vec::new(),
            ops: OpTable::new(max_ops),
            sessions: BTreeMap::new(),
            to_serve: VecDeque::with_capacity(LANES),
            short: Vec::with_capacity(LANES),
            to_pump: Vec::with_capacity(16),
            pumping: Vec::with_capacity(16),
            may_send_bytes: EAGER_BYTES,
            done: VecDeque::with_capacity(max_ops as usize),
            news: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            next_request: 1,
            next_timer: None,
            next_cancel: None,
            excused_until: None,
            closed: false,
            config,
            identity,
        }
    }

    /// Hands the notifications of peers in here from now on.
    pub fn deliver_to(&mut self, mailbox: Arc<dyn Mailbox>) {
        self.mailbox = Some(mailbox);
    }

    pub(crate) fn link_mut(&mut self, slot: u32) -> Option<&mut Link> {
        self.links.get_mut(slot as usize)?.link.as_mut()
    }

    fn find_link(&mut self, id: LinkId) -> Option<&mut Link> {
        let entry = self.links.get_mut(id.slot as usize)?;
        entry.link.as_mut().filter(|_| entry.generation == id.generation)
    }

    /// Something is due at this time.
    pub(crate) fn wake_by(&mut self, at: Instant) {
        self.next_timer = Some(self.next_timer.map_or(at, |t| t.min(at)));
    }

    /// A lane has something to do.
    pub(crate) fn list(&mut self, slot: LaneSlot) {
        if let Some(lane) = self.lanes.get_mut(slot) {
            if !lane.listed {
                lane.listed = true;
                self.to_serve.push_back(slot);
            }
        }
    }

    /// Gives an op's completion out if nothing of it is under way any more.
    pub(crate) fn settle(&mut self, op: OpSlot) {
        if let Some(completion) = self.ops.settle(op) {
            self.done.push_back(completion);
        }
    }

    /// Fails an op for good; what is with lanes is waited for.
    pub(crate) fn fail_op(&mut self, op: OpSlot, error: OpError) {
        let Some(state) = self.ops.get_mut(op) else { return };
        state.fail(error);
        if std::mem::take(&mut state.queued) {
            let link = state.op.link.slot;
            if let Some(link) = self.link_mut(link) {
                link.queue.retain(|o| *o != op);
            }
        }
        self.settle(op);
    }

    /// Hands a lane's frames to the kernel, as far as it takes them and as many bytes may be sent now; the next poll sends the rest.
    pub(crate) fn flush_lane(&mut self, slot: LaneSlot, now: Instant) {
        let Some(lane) = self.lanes.get_mut(slot) else { return };
        let mut result = Ok(());
        while result.is_ok() && self.may_send_bytes > 0 && lane.conn.can_send() {
            result = lane.conn.flush_call().map(|sent| {
                self.may_send_bytes = self.may_send_bytes.saturating_sub(sent);
            });
        }
        let (left, short) = (lane.conn.can_send(), lane.conn.moved_short());
        if short {
            self.short.push(slot);
        }
        match result {
            Ok(()) if left => self.list(slot),
            Ok(()) => {}
            Err(error) => {
                if let Some(lane) = self.lanes.take(slot) {
                    self.lane_broke(slot, lane, error.into(), now);
                }
            }
        }
    }

    /// Takes an op in that waits for a lane of its link.
    fn queue_op(&mut self, op: Op, notice: Option<u64>, now: Instant) {
        if let (Some(slot), Some(link)) = (self.ops.insert(op, notice), self.find_link(op.link)) {
            link.queue.push(op.priority, slot);
            if let Some(down) = link.down_since {
                // A time in the past would look as if this process had been stopped since.
                let at = (down + self.config.unreachable_after).max(now);
                self.wake_by(at);
            }
            self.pump_later(op.link.slot);
        }
    }

    fn refuse_op(&mut self, op: &Op, code: OpErrorCode) {
        let result = Err(OpError::new(code));
        self.done.push_back(Completion { token: op.token, result, bytes: 0, touched: false });
    }

    fn take_events(&mut self) {
        let TcpTransport { net, lanes, to_serve, .. } = self;
        net.take_ready(|slot, event| {
            if let Some(lane) = lanes.get_mut(slot) {
                lane.conn.ready(
                    event.readable || event.failed,
                    event.writable || event.failed,
                    event.read_closed || event.failed,
                );
                if !lane.listed {
                    lane.listed = true;
                    to_serve.push_back(slot);
                }
            }
        });
    }

    fn serve(&mut self, slot: LaneSlot, now: Instant) {
        let Some(mut lane) = self.lanes.take(slot) else { return };
        lane.listed = false;
        let result = match &lane.role {
            Role::Opening { .. } => self.serve_opening(slot, &mut lane),
            Role::Asking(_) => self.serve_asking(&mut lane),
            Role::Answering(_) => self.serve_answering(&mut lane, now),
        };
        match result {
            Ok(()) => {
                let again = lane.is_ready();
                let short = lane.conn.moved_short();
                self.lanes.put(slot, lane);
                if short {
                    self.short.push(slot);
                }
                if again {
                    self.list(slot);
                }
            }
            Err(error) => self.lane_broke(slot, lane, error, now),
        }
    }

    /// Ends a lane that is taken out of the table.
    pub(crate) fn lane_broke(
        &mut self,
        slot: LaneSlot,
        mut lane: Lane<N::Stream>,
        error: TransportError,
        now: Instant,
    ) {
        self.net.deregister(lane.conn.stream());
        self.lanes.release(slot);
        let Lane { conn, role, .. } = lane;
        match role {
            Role::Opening { link, place, said_hello, by, .. } => {
                let began = by.checked_sub(self.config.connect_timeout).unwrap_or(now);
                if let Some(link) = self.link_mut(link) {
                    link.attempt_failed(began, said_hello, &error);
                }
                self.place_down(link, place, error, now);
            }
            Role::Asking(asking) => self.asking_broke(asking, conn, error, now),
            Role::Answering(answering) => {
                tracing::debug!(session = %answering.session, lane = answering.number, %error, "a peer's lane ended");
                if let Some(session) = self.sessions.get_mut(&answering.session) {
                    session.lanes.remove(&answering.number);
                }
            }
        }
    }

    /// Time while this process was stopped does not count for links without a lane: their peers may have been stopped as well, or may
    /// have given up connections on which nothing came.
    fn begin_anew(&mut self, now: Instant) {
        for link in self.links.iter_mut().filter_map(|entry| entry.link.as_mut()) {
            link.down_since = link.down_since.map(|_| now);
        }
        for lane in self.lanes.iter_mut() {
            if let Role::Opening { by, .. } = &mut lane.role {
                *by = now + self.config.connect_timeout;
            }
        }
    }

    fn run_timers(&mut self, now: Instant) {
        self.next_timer = None;
        while let Some(slot) = self.short.pop() {
            if let Some(lane) = self.lanes.get_mut(slot) {
                lane.conn.try_again();
                self.list(slot);
            }
        }
        for slot in 0..self.links.len() as u32 {
            if self.links[slot as usize].link.is_some() {
                self.link_timers(slot, now);
            }
        }
        let late: Vec<(LaneSlot, Instant)> = self
            .lanes
            .iter()
            .filter_map(
                |(slot, lane)| {
                    if let Role::Opening { by, .. } = &lane.role { Some((slot, *by)) } else { None }
                },
            )
            .collect();
        for (slot, by) in late {
            if by > now {
                self.wake_by(by.min(now + VERY_LATE));
            } else if let Some(lane) = self.lanes.take(slot) {
                let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
                self.lane_broke(
                    slot,
                    lane,
                    TransportError::Io { what: "making a data lane".into(), source },
                    now,
                );
            }
        }
        self.cancel_timers(now);
    }

    fn close_link(&mut self, slot: u32, code: OpErrorCode, now: Instant) {
        let Some(link) = self.link_mut(slot) else { return };
        let lanes: Vec<LaneSlot> = link.open().collect();
        let id = link.id;
        // First the ops that no lane has begun, so that they are told the plain reason.
        for op in self.ops.find(|o| o.op.link == id) {
            self.fail_op(op, OpError::new(code));
        }
        for lane_slot in lanes {
            if let Some(lane) = self.lanes.take(lane_slot) {
                let source = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
                self.lane_broke(
                    lane_slot,
                    lane,
                    TransportError::Io { what: "the link was closed".into(), source },
                    now,
                );
            }
        }
        let fences = self.link_mut(slot).map(|l| std::mem::take(&mut l.fences)).unwrap_or_default();
        for wait in fences {
            self.fence_lost(wait);
        }
        self.links[slot as usize].link = None;
        self.free_links.push(slot);
        self.news
            .retain(|e| !matches!(e, Event::LinkUp { link } | Event::LinkDown { link, .. } if *link == id));
    }
}

// SAFETY: (1) an accepted op is either refused at once, with one completion, or in the op table, which gives one completion
// out when its slot is freed; every way in which a lane or a link ends settles the ops it had. (2) A read's part counts as
// landed when its last byte was received in place; a write's part when the target answered, which it does after the last byte
// is in place. (3) An op is settled when no lane has a part of it: its addresses are then in no outbox and in no inbox, since a
// lane's parts are given up only with its socket, or by withdrawing the frame, or by turning the inbox to scratch memory.
// (4) Ops are failed by their own link's lanes only; `Cancelled` is given out only when every part was answered or its lane
// was closed and fenced.
unsafe impl<N: Net> Transport for TcpTransport<N> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: TRANSPORT,
            read: true,
            write: true,
            kinds: KindSet::HOST,
            vanishing: true,
            max_op_bytes: u64::MAX >> 8,
            max_pieces: MAX_PIECES,
            max_list_bytes: self.config.chunk_bytes.max(1).min(part_limit(self.config.limits.payload_bytes)),
            max_ops: self.config.max_ops,
            needs_target_cpu: true,
            moves_by_calls: false,
            admits: true,
            fences: true,
            checksums: true,
            notifications: true,
        }
    }

    fn connect(&mut self, peer: PeerId, address: &[u8], now: Instant) -> Result<LinkId, TransportError> {
        let address = TcpAddress::decode(address)?;
        let slot = match self.free_links.pop() {
            Some(slot) => slot,
            None if self.links.len() < self.config.max_links as usize => {
                self.links.push(LinkEntry { generation: 0, link: None });
                (self.links.len() - 1) as u32
            }
            None => {
                return Err(TransportError::TooManyLinks { transport: TRANSPORT, limit: self.links.len() });
            }
        };
        let entry = &mut self.links[slot as usize];
        entry.generation += 1;
        let id = LinkId { slot, generation: entry.generation };
        entry.link = Some(Link::new(id, peer, address, &self.config, now));
        self.link_timers(slot, now);
        Ok(id)
    }

    fn deliver(&mut self, link: LinkId, _bytes: &[u8], now: Instant) -> Result<(), TransportError> {
        if self.find_link(link).is_none() {
            return Err(TransportError::NoLink { transport: TRANSPORT });
        }
        self.close_link(link.slot, OpErrorCode::Protocol, now);
        Err(orbit_te_wire::WireError::Invalid { what: "TCP has no messages for the control link" }.into())
    }

    unsafe fn submit(&mut self, ops: &[Op], now: Instant) -> usize {
        let mut taken = 0;
        for op in ops {
            if self.ops.is_full() || self.done.len() >= self.config.max_ops as usize {
                break;
            }
            taken += 1;
            if self.closed {
                self.refuse_op(op, OpErrorCode::Closed);
            } else if !fits(op, &self.capabilities()) {
                self.refuse_op(op, OpErrorCode::BadLength);
            } else if op.pieces.is_none()
                && op.remote.offset.checked_add(op.local.length).is_none_or(|end| end > op.remote.key.0[3])
            {
                self.refuse_op(op, OpErrorCode::OutOfRange);
            } else if self.find_link(op.link).is_none() {
                self.refuse_op(op, OpErrorCode::NoLink);
            } else {
                self.queue_op(*op, None, now);
            }
        }
        self.pump_all(now);
        taken
    }

    unsafe fn notify(&mut self, notice: &Notice, now: Instant) -> bool {
        if self.ops.is_full() || self.done.len() >= self.config.max_ops as usize {
            return false;
        }
        let op = notice.as_op();
        if self.closed {
            self.refuse_op(&op, OpErrorCode::Closed);
        } else if !(1..=MAX_BYTES as u64).contains(&notice.bytes.length) {
            self.refuse_op(&op, OpErrorCode::BadLength);
        } else if self.find_link(op.link).is_none() {
            self.refuse_op(&op, OpErrorCode::NoLink);
        } else {
            self.queue_op(op, Some(notice.number), now);
            self.pump_all(now);
        }
        true
    }

    fn cancel(&mut self, tokens: RangeInclusive<Token>, now: Instant) {
        for op in self.ops.find(|o| tokens.contains(&o.op.token)) {
            self.cancel_op(op, now);
        }
    }

    fn poll(&mut self, now: Instant, budget: usize, out: &mut Progress) -> bool {
        let found = out.completions.len() + out.events.len();
        self.take_events();
        if let Some(at) = self.next_timer.filter(|at| *at <= now) {
            match self.excused_until {
                // This process was stopped, not its peers: what they have sent meanwhile is looked at first.
                None if now - at > VERY_LATE => {
                    self.excused_until = Some(now + EXCUSE);
                    self.next_timer = self.excused_until;
                    self.begin_anew(now);
                }
                // What an op that was submitted just now finds overdue is no news.
                Some(until) if until > now => self.next_timer = Some(until),
                _ => {
                    self.excused_until = None;
                    self.run_timers(now);
                }
            }
        }
        let round = self.to_serve.len();
        for _ in 0..round {
            if let Some(slot) = self.to_serve.pop_front() {
                self.serve(slot, now);
            }
        }
        self.may_send_bytes = u64::MAX;
        self.pump_all(now);
        self.may_send_bytes = EAGER_BYTES;
        for _ in 0..budget {
            let Some(completion) = self.done.pop_front() else { break };
            out.completions.push(completion);
        }
        out.events.append(&mut self.news);
        round > 0 || out.completions.len() + out.events.len() > found
    }

    fn arm(&mut self, now: Instant) -> Arm {
        if !self.short.is_empty() {
            self.wake_by(now + SHORT_RETRY);
        }
        let due = self.next_timer.is_some_and(|at| at <= now);
        let listed = !self.to_serve.is_empty() || !self.to_pump.is_empty();
        if due || listed || !self.done.is_empty() || !self.news.is_empty() {
            return Arm::Ready;
        }
        Arm::Sleep { fd: self.net.descriptor(), until: self.next_timer }
    }

    fn lanes(&self, link: LinkId, now: Instant) -> Option<LinkLanes> {
        let entry = self.links.get(link.slot as usize).filter(|entry| entry.generation == link.generation)?;
        Some(entry.link.as_ref()?.lanes(now, self.config.unreachable_after))
    }

    fn signs(&mut self, link: LinkId, now: Instant) -> Signs {
        if self.find_link(link).is_some() { self.link_signs(link.slot, now) } else { Signs::default() }
    }

    fn disconnect(&mut self, link: LinkId, now: Instant) {
        if self.find_link(link).is_some() {
            self.close_link(link.slot, OpErrorCode::NoLink, now);
        }
    }

    fn close(&mut self, now: Instant) {
        self.closed = true;
        for slot in 0..self.links.len() as u32 {
            self.close_link(slot, OpErrorCode::Closed, now);
        }
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.drop_session(session, now);
        }
    }

    fn is_drained(&self) -> bool {
        self.ops.is_empty() && self.done.is_empty()
    }
}

/// Whether an op has a length that it may have, and as many pieces.
fn fits(op: &Op, can: &Capabilities) -> bool {
    let length = op.local.length;
    let Some(pieces) = &op.pieces else { return (1..=can.max_op_bytes).contains(&length) };
    (1..=can.max_list_bytes).contains(&length)
        && pieces.len() <= can.max_pieces as usize
        && adds_up(pieces, length)
}

/// Whether the pieces have `length` bytes together: the sender would wait for ever for those that no piece has. Adding them up
/// takes a nanosecond a piece.
fn adds_up(pieces: &Pieces, length: u64) -> bool {
    // SAFETY: `submit`, for which this is asked, was promised that the slices live and do not change until the completion.
    let table = unsafe { pieces.remote() };
    let sum = table.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.length()));
    sum == Some(length)
}

/// Whether an op's part moves bytes into this side's memory.
pub(crate) fn lands_here(what: &Asked) -> bool {
    matches!(what, Asked::Part { kind: OpKind::Read, .. } | Asked::Abandoned { kind: OpKind::Read, .. })
}

/// The largest part of an op on a lane with this agreed limit.
pub(crate) fn part_limit(payload_bytes: u64) -> u64 {
    payload_bytes.clamp(1, MAX_PAYLOAD_BYTES)
}
