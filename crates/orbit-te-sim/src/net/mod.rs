//! The network in memory: connections, and when their bytes arrive. Rule: whatever happens later is an event with a virtual time; ties
//! are broken by the order in which events were made.

mod conn;
pub(crate) mod control;
pub(crate) mod stream;

use crate::check::damage::Damage;
use crate::check::once::Live;
use crate::check::touch::{Map, Side};
use crate::check::{Report, notes::Notes};
use crate::faults::Faults;
use crate::plant::Plant;
use crate::trace::Trace;
use conn::{Conn, End};
use fastrand::Rng;
use orbit_te_rdma::fake::DeviceId;
use orbit_te_tcp::net::Ready;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;

/// The network and what watches it, as the streams and the simulation share it.
pub(crate) type Shared = Arc<Mutex<Net>>;

/// A connection by its number, and one of its ends: 0 connected, 1 was connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EndId {
    pub(crate) conn: usize,
    pub(crate) end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Connect { conn: usize },
    Arrive { to: EndId },
    Fin { to: EndId },
    Room { at: EndId },
    More { at: EndId },
    Reset { conn: usize },
    Told { at: EndId },
    Hole { conn: usize },
    TimeOut { conn: usize },
}

/// All of it.
pub(crate) struct Net {
    pub(crate) now_ns: u64,
    pub(crate) rng: Rng,
    pub(crate) faults: Faults,
    pub(crate) plant: Option<Plant>,
    pub(crate) planted: bool,
    pub(crate) trace: Trace,
    pub(crate) report: Report,
    pub(crate) map: Map,
    pub(crate) live: BTreeMap<usize, Live>,
    pub(crate) notes: Notes,
    pub(crate) damage: Damage,
    /// Which life uses each RDMA device.
    pub(crate) devices: BTreeMap<DeviceId, usize>,
    keepalive_ns: u64,
    conns: Vec<Conn>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
    ready: BTreeMap<(usize, Side), BTreeMap<usize, Ready>>,
    listening: BTreeMap<SocketAddr, usize>,
    accepting: BTreeMap<usize, VecDeque<EndId>>,
    /// Lives for which something has happened.
    pub(crate) woken: Vec<usize>,
}

impl Net {
    pub(crate) fn new(mut rng: Rng, faults: Faults, plant: Option<Plant>, keepalive_ns: u64) -> Shared {
        let rng = rng.fork();
        Arc::new(Mutex::new(Net {
            now_ns: 0,
            rng,
            faults,
            plant,
            planted: false,
            trace: Trace::default(),
            report: Report::default(),
            map: Map::default(),
            live: BTreeMap::new(),
            notes: Notes::default(),
            damage: Damage::default(),
            devices: BTreeMap::new(),
            keepalive_ns,
            conns: Vec::new(),
            events: BinaryHeap::new(),
            made: 0,
            ready: BTreeMap::new(),
            listening: BTreeMap::new(),
            accepting: BTreeMap::new(),
            woken: Vec::new(),
        }))
    }

    /// Whether a fault of this probability happens.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.f64() < probability
    }

    /// Whether this plant is the one of the run and has not happened yet; it has then.
    pub(crate) fn plant_now(&mut self, plant: Plant) -> bool {
        let now = self.plant == Some(plant) && !self.planted;
        self.planted |= now;
        now
    }

    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.report.now_ns = now_ns;
    }

    fn after(&mut self, delay_ns: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((self.now_ns + delay_ns, self.made, event)));
    }

    /// When the next event is due.
    pub(crate) fn next_event(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Lets happen what is due.
    pub(crate) fn run_events(&mut self) {
        while self.next_event().is_some_and(|at| at <= self.now_ns) {
            if let Some(Reverse((_, _, event))) = self.events.pop() {
                self.happen(event);
            }
        }
    }

    pub(crate) fn listen(&mut self, at: SocketAddr, life: usize) {
        self.listening.insert(at, life);
    }

    /// The next connection that was made to a life.
    pub(crate) fn accept(&mut self, life: usize) -> Option<EndId> {
        self.accepting.get_mut(&life)?.pop_front()
    }

    /// Begins to connect.
    pub(crate) fn connect(&mut self, life: usize, to: SocketAddr) -> EndId {
        let conn = self.conns.len();
        let (faults, rng) = (self.faults, &mut self.rng);
        let delay_ns = 20_000 + rng.u64(0..=faults.delay_us) * 1_000;
        let slow = faults.slow > 0.0 && rng.f64() < faults.slow;
        let ns_per_kib = if slow { 100_000 } else { 1_000 };
        let room = 8_192 << rng.u32(0..5);
        self.conns.push(Conn::new(life, to, delay_ns, ns_per_kib, room));
        if self.chance(faults.reset) {
            let at = self.rng.u64(0..3_000_000_000);
            self.after(at, Event::Reset { conn });
        }
        if self.chance(faults.half_open) {
            let at = self.rng.u64(0..3_000_000_000);
            self.after(at, Event::Hole { conn });
        }
        self.after(2 * delay_ns, Event::Connect { conn });
        EndId { conn, end: 0 }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Connect { conn } => self.connected(conn),
            Event::Arrive { to } => {
                let now_ns = self.now_ns;
                let open = self.end(to).open;
                let from = EndId { end: 1 - to.end, ..to };
                let arrived = self.conns[to.conn].arrive(to.end, now_ns);
                if arrived > 0 && !open {
                    let delay = self.conns[to.conn].delay_ns;
                    self.after(delay, Event::Told { at: from });
                } else if arrived > 0 {
                    self.trace.note("arrive", &[now_ns, to.conn as u64, to.end as u64, arrived as u64]);
                    self.tell(to, Ready { readable: true, ..Ready::default() });
                }
            }
            Event::Fin { to } => {
                self.conns[to.conn].pipe_to(to.end).fin = true;
                self.tell(to, Ready { readable: true, read_closed: true, ..Ready::default() });
            }
            Event::Room { at } => {
                self.tell(at, Ready { writable: true, ..Ready::default() });
            }
            Event::More { at } => self.tell(at, Ready { readable: true, ..Ready::default() }),
            Event::Reset { conn } => {
                self.trace.note("reset", &[self.now_ns, conn as u64]);
                for end in 0..2 {
                    self.break_end(EndId { conn, end }, ErrorKind::ConnectionReset);
                }
            }
            Event::Told { at } => self.break_end(at, ErrorKind::ConnectionReset),
            Event::Hole { conn } => {
                self.conns[conn].hole = true;
                let keepalive_ns = self.keepalive_ns;
                self.after(keepalive_ns, Event::TimeOut { conn });
            }
            Event::TimeOut { conn } => {
                for end in 0..2 {
                    self.break_end(EndId { conn, end }, ErrorKind::TimedOut);
                }
            }
        }
    }

    fn connected(&mut self, conn: usize) {
        let Conn { to, hole, .. } = self.conns[conn];
        if hole {
            return;
        }
        match self.listening.get(&to).copied() {
            None => self.break_end(EndId { conn, end: 0 }, ErrorKind::ConnectionRefused),
            Some(life) => {
                self.conns[conn].up(life);
                self.trace.note("connected", &[self.now_ns, conn as u64, life as u64]);
                self.accepting.entry(life).or_default().push_back(EndId { conn, end: 1 });
                self.woken.push(life);
                self.tell(EndId { conn, end: 0 }, Ready { writable: true, ..Ready::default() });
            }
        }
    }

    fn break_end(&mut self, at: EndId, error: ErrorKind) {
        let end = self.end_mut(at);
        if !end.open || end.error.is_some() {
            return;
        }
        end.error = Some(error);
        self.conns[at.conn].pipe_to(at.end).clear();
        self.tell(at, Ready { readable: true, writable: true, read_closed: true, failed: true });
    }

    /// Tells whoever waits at an end.
    fn tell(&mut self, at: EndId, ready: Ready) {
        let end = self.end_mut(at);
        if !end.open {
            return;
        }
        let Some(life) = end.life else { return };
        if ready.readable {
            end.reader.take().into_iter().for_each(Waker::wake);
        }
        if ready.writable {
            end.writer.take().into_iter().for_each(Waker::wake);
        }
        if let Some((side, slot)) = end.registered {
            let told = self.ready.entry((life, side)).or_default().entry(slot).or_default();
            told.readable |= ready.readable;
            told.writable |= ready.writable;
            told.read_closed |= ready.read_closed;
            told.failed |= ready.failed;
        }
        self.woken.push(life);
    }

    /// Takes what became ready for one transport.
    pub(crate) fn take_ready(&mut self, life: usize, side: Side) -> BTreeMap<usize, Ready> {
        self.ready.remove(&(life, side)).unwrap_or_default()
    }

    pub(crate) fn register(&mut self, at: EndId, side: Side, slot: usize) {
        let end = self.end_mut(at);
        end.registered = Some((side, slot));
        let failed = end.error.is_some();
        let up = self.conns[at.conn].is_up();
        let (arrived, fin) = {
            let pipe = self.conns[at.conn].pipe_to(at.end);
            (pipe.arrived() > 0, pipe.fin)
        };
        if up || failed {
            self.tell(at, Ready { readable: arrived || fin, writable: true, read_closed: fin, failed });
        }
    }

    pub(crate) fn deregister(&mut self, at: EndId) {
        let end = self.end_mut(at);
        if let (Some((side, slot)), Some(life)) = (end.registered.take(), end.life) {
            if let Some(ready) = self.ready.get_mut(&(life, side)) {
                ready.remove(&slot);
            }
        }
    }

    pub(crate) fn end(&self, at: EndId) -> &End {
        &self.conns[at.conn].ends[at.end]
    }

    pub(crate) fn end_mut(&mut self, at: EndId) -> &mut End {
        &mut self.conns[at.conn].ends[at.end]
    }

    /// Whether an end is connected, or why it can't be.
    pub(crate) fn is_up(&self, at: EndId) -> io::Result<bool> {
        match self.end(at).error {
            Some(error) => Err(error.into()),
            None => Ok(self.conns[at.conn].is_up()),
        }
    }

    /// How many bytes may be sent now, of so many that are wanted; all or nothing when `whole`.
    pub(crate) fn room(&mut self, at: EndId, wanted: usize, whole: bool) -> io::Result<usize> {
        if let Some(error) = self.end(at).error {
            return Err(error.into());
        }
        let free = self.conns[at.conn].pipe_from(at.end).free();
        if self.conns[at.conn].pipe_from(at.end).shut {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let partial = !whole && self.chance(self.faults.partial);
        let pipe = self.conns[at.conn].pipe_from(at.end);
        if free == 0 || (whole && free < wanted) {
            pipe.starved = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        let all = wanted.min(free);
        if all == wanted && !partial {
            return Ok(all);
        }
        if all < free || (partial && wanted > 1) {
            // Not for want of room: the sender is told soon that it may go on.
            let some = if all > 1 { self.rng.usize(1..all) } else { all };
            self.after(10_000, Event::Room { at });
            return Ok(some);
        }
        pipe.starved = true;
        Ok(all)
    }

    /// Sends bytes for which there is room.
    pub(crate) fn send(&mut self, at: EndId, bytes: Vec<u8>) {
        let jitter_ns = self.rng.u64(0..=self.faults.jitter_us) * 1_000;
        let now_ns = self.now_ns;
        self.trace.note("send", &[now_ns, at.conn as u64, at.end as u64, bytes.len() as u64]);
        if let Some(arrives) = self.conns[at.conn].send(at.end, bytes, now_ns, jitter_ns) {
            let to = EndId { end: 1 - at.end, ..at };
            self.after(arrives - now_ns, Event::Arrive { to });
        }
    }

    /// Takes bytes that have arrived, at most so many; empty at the end of the stream.
    pub(crate) fn receive(&mut self, at: EndId, most: usize) -> io::Result<Vec<u8>> {
        if let Some(error) = self.end(at).error {
            return Err(error.into());
        }
        let partial = self.chance(self.faults.partial);
        let pipe = self.conns[at.conn].pipe_to(at.end);
        let there = pipe.arrived().min(most);
        if there == 0 {
            return if pipe.fin && most > 0 { Ok(Vec::new()) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        let count = if partial && there > 1 { self.rng.usize(1..there) } else { there };
        let pipe = self.conns[at.conn].pipe_to(at.end);
        let bytes = pipe.take(count);
        let starved = std::mem::take(&mut pipe.starved);
        let more = pipe.arrived() > 0;
        let delay = self.conns[at.conn].delay_ns;
        if starved {
            let from = EndId { end: 1 - at.end, ..at };
            self.after(delay, Event::Room { at: from });
        }
        if count < most && more {
            self.after(10_000, Event::More { at });
        }
        Ok(bytes)
    }

    /// Ends the sending direction.
    pub(crate) fn shut(&mut self, at: EndId) {
        let now_ns = self.now_ns;
        if let Some(arrives) = self.conns[at.conn].shut(at.end, now_ns) {
            self.after(arrives - now_ns, Event::Fin { to: EndId { end: 1 - at.end, ..at } });
        }
    }

    /// The owner of an end drops it.
    pub(crate) fn close(&mut self, at: EndId) {
        if !self.end(at).open {
            return;
        }
        self.deregister(at);
        let unread = self.conns[at.conn].pipe_to(at.end).arrived() > 0;
        let broken = self.end(at).error.is_some();
        if unread && !broken && !self.conns[at.conn].hole {
            let delay = self.conns[at.conn].delay_ns;
            self.after(delay, Event::Told { at: EndId { end: 1 - at.end, ..at } });
        } else if !broken {
            self.shut(at);
        }
        let end = self.end_mut(at);
        end.open = false;
        (end.reader, end.writer) = (None, None);
        self.conns[at.conn].pipe_to(at.end).clear();
    }

    /// Nobody reaches a life any more who has not yet.
    pub(crate) fn stop_listening(&mut self, life: usize) {
        self.listening.retain(|_, l| *l != life);
    }

    /// A process is gone. Its peers are told by resets or, when it went silently, by nobody.
    pub(crate) fn crash(&mut self, life: usize, silent: bool) {
        self.stop_listening(life);
        self.accepting.remove(&life);
        self.ready.retain(|(l, _), _| *l != life);
        let mine = |c: &Conn, end: usize| c.ends[end].life == Some(life) && c.ends[end].open;
        for conn in 0..self.conns.len() {
            for end in 0..2 {
                if !mine(&self.conns[conn], end) {
                    continue;
                }
                self.conns[conn].ends[end] = End { life: Some(life), ..End::default() };
                let delay = self.conns[conn].delay_ns;
                if silent {
                    self.after(0, Event::Hole { conn });
                } else if !self.conns[conn].hole {
                    self.after(delay, Event::Told { at: EndId { conn, end: 1 - end } });
                }
            }
        }
    }
}
