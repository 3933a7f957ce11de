//! The transport itself: its tables, its event queue, and the contract's calls. Rule: each call does what is ready and returns; a copy is
//! made step by step, so that nothing waits for a long one.

#![allow(unsafe_code)]

use crate::config::ShmConfig;
use crate::copier::{Copier, SHARED_BYTES};
use crate::counterpart::no_letters;
use crate::domain::name;
use crate::entry::{Entry, Shown, shown};
use crate::link::{Link, State};
use crate::mover::{self, Step};
use crate::ops::{OpSlot, OpState, OpTable};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use orbit_te_memory::KindSet;
use orbit_te_transport::{
    Arm, Capabilities, Event, LinkId, LinkLanes, Notice, Op, OpError, OpErrorCode, PriorityQueue, Progress,
    Signs, Token, Transport, TransportError, Undone,
};
use orbit_te_wire::limits::MAX_PIECES;
use orbit_te_wire::same_host::{SameHost, SameHostAddress, Way};
use orbit_te_wire::{Generation, PeerId, RegionId};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// The largest op: as large as TCP's, so that what fits one fits the other.
const MAX_OP_BYTES: u64 = u64::MAX >> 8;
/// What calls may copy between two polls: a tenth of a millisecond, and whoever submits is not held longer.
const EAGER_BYTES: u64 = 512 * 1024;
/// What one poll copies, so that its caller comes back to everything else.
const POLL_BYTES: u64 = 1024 * 1024;
/// How often connections are looked at while copies keep the transport busy.
const LOOK: Duration = Duration::from_micros(100);

struct LinkEntry {
    generation: u32,
    link: Option<Link>,
}

/// Moves bytes between processes of one host, in one of two ways. See [`Transport`] for what it promises.
///
/// It is the initiating side alone: a peer is let in by a [`crate::Door`].
pub struct ShmTransport {
    pub(crate) config: ShmConfig,
    pub(crate) way: Way,
    links: Vec<LinkEntry>,
    free_links: Vec<u32>,
    pub(crate) ops: OpTable,
    copier: Copier,
    /// Ops that can be copied.
    ready: PriorityQueue<OpSlot>,
    /// Ops whose region is entered when there is room: while nothing is ready, so that no region is left that somebody is about to use.
    room: Vec<OpSlot>,
    pub(crate) news: Vec<Event>,
    epoll: Epoll,
    /// What calls may still copy before the next poll.
    may_copy_bytes: u64,
    looked: Option<Instant>,
    /// What pages have cost since somebody asked.
    prepared: Duration,
    /// When something is due, at the earliest.
    next_timer: Option<Instant>,
    closed: bool,
}

impl ShmTransport {
    /// A transport that reaches memory in this way.
    ///
    /// # Errors
    /// [`TransportError::Io`] when the system gives no event queue.
    pub fn new(config: ShmConfig, way: Way) -> Result<ShmTransport, TransportError> {
        let config = config.bounded();
        let io = |e: nix::Error| TransportError::Io { what: "an event queue".into(), source: e.into() };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io)?;
        Ok(ShmTransport {
            ops: OpTable::new(config.max_ops),
            // The kernel copies by the calling thread alone.
            copier: Copier::new(if way == Way::Mapping { config.copy_threads } else { 0 }),
            ready: PriorityQueue::with_capacity(config.max_ops as usize),
            room: Vec::new(),
            config,
            way,
            links: Vec::new(),
            free_links: Vec::new(),
            news: Vec::new(),
            epoll,
            may_copy_bytes: EAGER_BYTES,
            looked: None,
            prepared: Duration::ZERO,
            next_timer: None,
            closed: false,
        })
    }

    pub(crate) fn find(&mut self, id: LinkId) -> Option<&mut Link> {
        link_of(&mut self.links, id)
    }

    fn wake_by(&mut self, at: Instant) {
        self.next_timer = Some(self.next_timer.map_or(at, |t| t.min(at)));
    }

    fn fail(&mut self, slot: OpSlot, code: OpErrorCode) {
        self.ops.end(slot, Err(OpError::new(code)));
    }

    /// An op goes as far as it can without a copy: to its link, to its region, to those that are ready.
    pub(crate) fn place(&mut self, slot: OpSlot, now: Instant) {
        let unreachable_after = self.config.unreachable_after;
        let Some(state) = self.ops.get_mut(slot) else { return };
        let (id, key) = (state.op.link, shown(&state.op.remote.key));
        let Some(link) = link_of(&mut self.links, id) else { return self.fail(slot, OpErrorCode::NoLink) };
        if !link.is_up() {
            link.waiting.push(slot);
            let at = link.down_since.max(now) + unreachable_after;
            return self.wake_by(at);
        }
        state.begun = true;
        match link.entries.find(&key) {
            Some(Entry::Asked { waiting, .. }) => waiting.push(slot),
            Some(Entry::Open(open)) if open.expires.is_some_and(|at| at <= now) => {
                // The owner says whether it may be used for longer, or that it is over.
                self.leave(id, &key);
                self.ask(id, key, slot, now);
            }
            Some(Entry::Open(open)) => match if state.checked { Ok(()) } else { mover::check(state, open) } {
                Err(error) => self.ops.end(slot, Err(error)),
                Ok(()) => {
                    state.checked = true;
                    mover::look_up(&state.op, open);
                    self.ready.push(state.op.priority, slot);
                }
            },
            None => self.ask(id, key, slot, now),
        }
    }

    /// Asks the owner to be let in to a region, for this op and those that come meanwhile.
    fn ask(&mut self, id: LinkId, key: Shown, slot: OpSlot, now: Instant) {
        let most = self.config.regions as usize;
        let Some(link) = self.find(id) else { return self.fail(slot, OpErrorCode::NoLink) };
        let State::Up(up) = &link.state else { return self.fail(slot, OpErrorCode::LinkBroken) };
        let most = most.min(up.gates.len() as usize);
        if link.entries.len() >= most {
            match link.entries.oldest().filter(|_| self.ready.is_empty()) {
                Some(oldest) => self.leave(id, &oldest),
                None => return self.room.push(slot),
            }
        }
        let Some(link) = self.find(id) else { return };
        link.last_request = link.last_request.wrapping_add(1);
        let request = link.last_request;
        link.entries.insert(key, Entry::Asked { request, since: now, waiting: vec![slot] });
        let (region, generation) = (RegionId(key[0]), Generation(key[1]));
        let enter = SameHost::Enter { request, region, generation, key: key[2] };
        if let Err(error) = say(link, &enter) {
            self.break_link(id, error, now);
        }
    }

    /// Unmaps a region, and tells its owner.
    fn leave(&mut self, id: LinkId, key: &Shown) {
        let Some(link) = self.find(id) else { return };
        if let Some(Entry::Open(open)) = link.entries.remove(key) {
            let gate = open.gate;
            drop(open);
            // If it can't be said, the connection is ending, which says it as well.
            let _ = say(link, &SameHost::Left { gate });
        }
    }

    /// Copies one step of an op; how many bytes.
    fn step(&mut self, slot: OpSlot, most: u64, now: Instant) -> u64 {
        let mut most = most.min(self.config.chunk_bytes);
        let Some(state) = self.ops.get_mut(slot) else {
            // It has ended since, by a cancel or with its link.
            self.ready.pop();
            return 0;
        };
        let (id, key) = (state.op.link, shown(&state.op.remote.key));
        let parts =
            link_of(&mut self.links, id).and_then(|link| match (&link.state, link.entries.find(&key)) {
                (State::Up(up), Some(Entry::Open(open))) => Some((up, open)),
                _ => None,
            });
        let Some((up, open)) = parts else {
            // It was left since, to make room.
            self.ready.pop();
            self.place(slot, now);
            return 0;
        };
        let Some(gate) = up.gates.get(open.gate) else {
            self.ready.pop();
            self.fail(slot, OpErrorCode::Protocol);
            return 0;
        };
        let before = state.moved;
        if self.copier.has_helpers() && state.op.local.length - before >= SHARED_BYTES as u64 {
            // Worth it only for much at a time, which then takes no longer than a step of one thread.
            most = most.max(SHARED_BYTES as u64);
        }
        let (step, closed) = mover::step(state, open, gate, up.process.as_ref(), &mut self.copier, most);
        self.prepared += open.take_prepared();
        let moved = state.moved - before;
        match step {
            Step::On => drop(self.ready.take_turn(false)),
            Step::Done => {
                self.ready.take_turn(true);
                self.ops.end(slot, Ok(()));
            }
            Step::Failed(error) => {
                self.ready.take_turn(true);
                self.ops.end(slot, Err(error));
                if error.code == OpErrorCode::LinkBroken {
                    let source = io::Error::from_raw_os_error(error.os.unwrap_or(0));
                    let what = format!("{}: copying", name(self.way));
                    self.break_link(id, TransportError::Io { what, source }, now);
                }
            }
            Step::Closed => {
                self.ready.pop();
            }
        }
        if closed {
            self.leave(id, &key);
        }
        if step == Step::Closed {
            // What its owner says now is the reason.
            self.place(slot, now);
        }
        moved
    }

    /// Copies what is ready, up to so many bytes; how many. Ops that end without a copy count as some.
    fn copy(&mut self, mut budget: u64, now: Instant) -> u64 {
        let mut moved = 0;
        while let Some(slot) = self.ready.peek().copied().filter(|_| budget > 0) {
            let now_moved = self.step(slot, budget, now);
            moved += now_moved;
            budget = budget.saturating_sub(now_moved.max(64));
        }
        moved
    }

    /// Takes what peers have said.
    fn look(&mut self, now: Instant) -> bool {
        self.looked = Some(now);
        let mut any = false;
        let mut events = [EpollEvent::empty(); 32];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            let slot = event.data() as usize;
            let Some(generation) = self.links.get(slot).map(|entry| entry.generation) else { continue };
            let id = LinkId { slot: slot as u32, generation };
            // As many as there may be answers, and no more: others wait too.
            for _ in 0..64 {
                match self.hear(id, now) {
                    Ok(true) => any = true,
                    Ok(false) => break,
                    Err(error) => {
                        any = true;
                        self.break_link(id, error, now);
                        break;
                    }
                }
            }
        }
        any
    }

    /// A link is down: what was under way on it fails, what waited for it goes on waiting.
    fn break_link(&mut self, id: LinkId, error: TransportError, now: Instant) {
        let config = self.config.clone();
        let Some(link) = self.find(id) else { return };
        link.fall(&config, now);
        let State::Down { again } = link.state else { return };
        tracing::debug!(%error, "{}: a link is down", name(self.way));
        // Those that wait for the link have not begun, and go on waiting.
        self.ops.end_where(OpErrorCode::LinkBroken, |state| state.op.link == id && state.begun);
        self.wake_by(again);
        self.news.push(Event::LinkDown { link: id, error });
    }

    /// Makes links that are due, and fails what has waited too long; whether anything happened.
    fn look_after(&mut self, now: Instant) -> bool {
        if self.next_timer.is_none_or(|at| at > now) {
            return false;
        }
        self.next_timer = None;
        let (config, way) = (self.config.clone(), self.way);
        for slot in 0..self.links.len() {
            let id = LinkId { slot: slot as u32, generation: self.links[slot].generation };
            let Some(link) = self.find(id) else { continue };
            match &link.state {
                State::Down { again } if *again <= now => {
                    let knocked = link.knock(&config, way, now);
                    let watched = knocked.and_then(|()| self.watch(id));
                    match watched {
                        Ok(()) => self.wake_by(now + config.answer_timeout),
                        Err(error) => self.break_link(id, error, now),
                    }
                }
                State::Down { again } => {
                    let again = *again;
                    self.wake_by(again);
                }
                State::Knocked { due, .. } if *due <= now => {
                    let what = format!("{}: the peer's door does not answer", name(way));
                    let source = io::Error::from(io::ErrorKind::TimedOut);
                    self.break_link(id, TransportError::Io { what, source }, now);
                }
                State::Knocked { due, .. } => {
                    let due = *due;
                    self.wake_by(due);
                }
                State::Up(_) => {}
            }
            let Some(link) = self.find(id) else { continue };
            if !link.is_up() && !link.waiting.is_empty() {
                let at = link.down_since + config.unreachable_after;
                if at <= now {
                    let waiting = std::mem::take(&mut link.waiting);
                    waiting.into_iter().for_each(|slot| self.fail(slot, OpErrorCode::Unreachable));
                } else {
                    self.wake_by(at);
                }
            }
        }
        true
    }

    fn watch(&mut self, id: LinkId) -> Result<(), TransportError> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(id.slot));
        let entry = self.links.get(id.slot as usize);
        let Some(socket) = entry.and_then(|entry| entry.link.as_ref()).and_then(Link::socket) else {
            return Ok(());
        };
        self.epoll.add(socket.as_fd(), event).map_err(|e| TransportError::Io {
            what: format!("{}: watching a connection", name(self.way)),
            source: e.into(),
        })
    }
}

fn link_of(links: &mut [LinkEntry], id: LinkId) -> Option<&mut Link> {
    let entry = links.get_mut(id.slot as usize)?;
    entry.link.as_mut().filter(|_| entry.generation == id.generation)
}

pub(crate) fn say(link: &Link, message: &SameHost) -> Result<(), TransportError> {
    let bytes = message.encode()?;
    let Some(socket) = link.socket() else { return Ok(()) };
    let what = || "the connection to the peer's door".to_string();
    socket.send(&bytes, None).map_err(|source| TransportError::Io { what: what(), source })
}

// SAFETY: each op that is taken stands in the table until its completion was given out, and completes once (promise 1). It completes with
// success when all its bytes are copied, by this thread, which makes them visible to whoever is told (2). Copies are made by calls of this
// object alone, and only for ops that are not over (3); so a cancelled op, or one of a link that fell, is touched no more, at either side (4).
unsafe impl Transport for ShmTransport {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: name(self.way),
            read: true,
            write: true,
            kinds: KindSet::HOST,
            vanishing: true,
            max_op_bytes: MAX_OP_BYTES,
            max_pieces: MAX_PIECES,
            max_list_bytes: MAX_OP_BYTES,
            max_ops: self.config.max_ops,
            needs_target_cpu: false,
            moves_by_calls: true,
            admits: true,
            fences: true,
            checksums: false,
            notifications: false,
        }
    }

    fn connect(&mut self, _peer: PeerId, address: &[u8], now: Instant) -> Result<LinkId, TransportError> {
        let transport = name(self.way);
        let bad = |reason: String| TransportError::BadAddress { transport, reason };
        let address = SameHostAddress::decode(address).map_err(|error| bad(error.to_string()))?;
        if address.places.is_empty() {
            return Err(bad("it names no place".to_string()));
        }
        let slot = match self.free_links.pop() {
            Some(slot) => slot,
            None if self.links.len() < self.config.max_links as usize => {
                self.links.push(LinkEntry { generation: 0, link: None });
                self.links.len() as u32 - 1
            }
            None => return Err(TransportError::TooManyLinks { transport, limit: self.links.len() }),
        };
        let link = Link::new(address, &self.config, now);
        let entry = &mut self.links[slot as usize];
        entry.link = Some(link);
        let id = LinkId { slot, generation: entry.generation };
        self.wake_by(now);
        Ok(id)
    }

    fn deliver(&mut self, link: LinkId, _bytes: &[u8], now: Instant) -> Result<(), TransportError> {
        if self.find(link).is_none() {
            return Err(TransportError::NoLink { transport: name(self.way) });
        }
        self.disconnect(link, now);
        Err(no_letters())
    }

    unsafe fn submit(&mut self, ops: &[Op], now: Instant) -> usize {
        let mut taken = 0;
        for op in ops {
            if self.closed {
                break;
            }
            let Some(slot) = self.ops.insert(*op) else { break };
            taken += 1;
            let length = op.local.length;
            // SAFETY: whoever submits vouches for the slices.
            let whole = op.pieces.is_none_or(|pieces| sum(unsafe { pieces.remote() }) == Some(length));
            if length == 0 || length > MAX_OP_BYTES || !whole {
                self.fail(slot, OpErrorCode::BadLength);
            } else if op.verify.is_on() {
                self.fail(slot, OpErrorCode::Unsupported);
            } else if op.pieces.is_some_and(|pieces| pieces.len() > MAX_PIECES as usize) {
                self.fail(slot, OpErrorCode::BadLength);
            } else {
                self.place(slot, now);
            }
        }
        if !self.ready.is_empty() && self.may_copy_bytes > 0 {
            let moved = self.copy(self.may_copy_bytes, now);
            self.may_copy_bytes = self.may_copy_bytes.saturating_sub(moved);
        }
        taken
    }

    unsafe fn at_once(&mut self, op: &Op, now: Instant) -> Result<(), Undone> {
        const NOTHING: Result<(), Undone> = Err(Undone { touched: false });
        let length = op.local.length;
        let is_small = (1..=POLL_BYTES).contains(&length) && op.pieces.is_none() && !op.verify.is_on();
        if self.closed || !is_small || !self.ready.is_empty() {
            return NOTHING;
        }
        let (id, key) = (op.link, shown(&op.remote.key));
        let Some(link) = link_of(&mut self.links, id) else { return NOTHING };
        let (State::Up(up), Some(Entry::Open(open))) = (&link.state, link.entries.find(&key)) else {
            return NOTHING;
        };
        let mut state = OpState::new(*op);
        if open.expires.is_some_and(|at| at <= now) || mover::check(&state, open).is_err() {
            return NOTHING;
        }
        let Some(gate) = up.gates.get(open.gate) else { return NOTHING };
        let (step, closed) =
            mover::step(&mut state, open, gate, up.process.as_ref(), &mut self.copier, length);
        self.prepared += open.take_prepared();
        if closed {
            self.leave(id, &key);
        }
        if step == Step::Done { Ok(()) } else { Err(Undone { touched: state.moved > 0 }) }
    }

    unsafe fn notify(&mut self, _notice: &Notice, _now: Instant) -> bool {
        false
    }

    fn cancel(&mut self, tokens: RangeInclusive<Token>, _now: Instant) {
        // Nothing is copied for them any more, at either side.
        self.ops.end_where(OpErrorCode::Cancelled, |state| tokens.contains(&state.op.token));
    }

    fn poll(&mut self, now: Instant, budget: usize, out: &mut Progress) -> bool {
        self.may_copy_bytes = EAGER_BYTES;
        let mut any = self.look_after(now);
        if !self.ops.has_done() || self.looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK) {
            any |= self.look(now);
        }
        if !self.ready.is_empty() {
            self.copy(POLL_BYTES, now);
            any = true;
        }
        if self.ready.is_empty() && !self.room.is_empty() {
            std::mem::take(&mut self.room).into_iter().for_each(|slot| self.place(slot, now));
        }
        for _ in 0..budget {
            let Some(completion) = self.ops.next_done() else { break };
            out.completions.push(completion);
            any = true;
        }
        any |= !self.news.is_empty();
        out.events.append(&mut self.news);
        any
    }

    fn take_prepared(&mut self) -> Duration {
        std::mem::take(&mut self.prepared)
    }

    fn arm(&mut self, now: Instant) -> Arm {
        let ready = !self.ready.is_empty() || self.ops.has_done() || !self.news.is_empty();
        if ready || self.next_timer.is_some_and(|at| at <= now) {
            return Arm::Ready;
        }
        Arm::Sleep { fd: Some(self.epoll.0.as_raw_fd()), until: self.next_timer }
    }

    fn lanes(&self, link: LinkId, now: Instant) -> Option<LinkLanes> {
        let entry = self.links.get(link.slot as usize)?;
        let known = entry.link.as_ref().filter(|_| entry.generation == link.generation)?;
        let unreachable = !known.is_up() && now >= known.down_since + self.config.unreachable_after;
        Some(LinkLanes { up: u32::from(known.is_up()), wanted: 1, unreachable })
    }

    fn signs(&mut self, link: LinkId, now: Instant) -> Signs {
        // Copies need nobody at the other side; only the way into a region does.
        let since = self.find(link).and_then(|link| link.entries.waits_since());
        Signs { quiet_for: since.map(|since| now.saturating_duration_since(since)), ..Signs::default() }
    }

    fn disconnect(&mut self, id: LinkId, _now: Instant) {
        if self.find(id).is_none() {
            return;
        }
        self.ops.end_where(OpErrorCode::NoLink, |state| state.op.link == id);
        let entry = &mut self.links[id.slot as usize];
        entry.link = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free_links.push(id.slot);
        self.news
            .retain(|e| !matches!(e, Event::LinkUp { link } | Event::LinkDown { link, .. } if *link == id));
    }

    fn close(&mut self, _now: Instant) {
        self.closed = true;
        self.ops.end_where(OpErrorCode::Closed, |_| true);
        self.ready.clear();
        self.room.clear();
        self.links.clear();
        self.free_links.clear();
        self.next_timer = None;
    }

    fn is_drained(&self) -> bool {
        self.ops.is_empty()
    }
}

/// The bytes of all pieces; none when they are more than can be counted.
fn sum(table: &[orbit_te_wire::Piece]) -> Option<u64> {
    table.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.length()))
}

impl std::fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmTransport").field("way", &self.way).finish_non_exhaustive()
    }
}
