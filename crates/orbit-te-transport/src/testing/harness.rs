//! What rows are written with: links, memory and ops of one pair. Rule: an op is made only from memory that the harness
//! owns, and all of it outlives everything that may touch it.
//!
//! It does not check anything by itself; `drive` and `outcome` do.

use crate::capability::Capabilities;
use crate::op::{LinkId, Op, OpKind, RemoteSpan, Token, Verify};
use crate::priority::Priority;
use crate::progress::Progress;
use crate::testing::ledger::{Ledger, Part, Slices};
use crate::testing::memory::{Memory, must};
use crate::testing::pair::{Pair, Side};
use crate::testing::pattern::{Family, mix, pattern};
use orbit_te_memory::{Access, LocalSpan, MemoryError, RemoteKey};
use orbit_te_wire::{Piece, RegionDescriptor};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The memory of rows that failed.
static KEPT: Mutex<Vec<(Vec<Memory>, Ledger)>> = Mutex::new(Vec::new());

/// A region of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mem(pub(crate) usize);

impl Mem {
    /// A place in it.
    pub fn at(self, offset: u64) -> Spot {
        Spot { mem: self, offset }
    }
}

/// A place in a region of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// Which region.
    pub mem: Mem,
    /// Where in it.
    pub offset: u64,
}

/// What was heard of a link.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkNews {
    /// How often it came up.
    pub ups: u32,
    /// How often it broke.
    pub downs: u32,
    /// Whether the latest news was that it is up.
    pub is_up: bool,
}

/// Drives one pair through one row.
pub struct Harness<'p> {
    pub(crate) pair: &'p mut dyn Pair,
    pub(crate) here: Side,
    pub(crate) there: Side,
    /// Ops that a row submitted and the transport did not take yet.
    pub(crate) waiting: VecDeque<Op>,
    pub(crate) ledger: Ledger,
    pub(crate) memories: Vec<Memory>,
    pub(crate) progress: Progress,
    pub(crate) news: HashMap<LinkId, LinkNews>,
    /// The latest events, for reports.
    pub(crate) events: Vec<String>,
    pub(crate) limit: Duration,
    pub(crate) quiet: Duration,
    pub(crate) began: Instant,
    /// Regions in both registries before the row.
    pub(crate) regions_before: (usize, usize),
    capabilities: Capabilities,
    next: u64,
    /// Whether ops made from now on are verified.
    pub(crate) verify: Verify,
}

impl<'p> Harness<'p> {
    /// A harness for one row.
    pub fn new(pair: &'p mut dyn Pair) -> Harness<'p> {
        let (here, there) = (pair.here(), pair.target());
        Harness {
            regions_before: (here.registry.len(), there.registry.len()),
            limit: pair.limit(),
            quiet: pair.quiet(),
            capabilities: pair.initiator().capabilities(),
            pair,
            here,
            there,
            waiting: VecDeque::new(),
            ledger: Ledger::default(),
            memories: Vec::new(),
            progress: Progress::with_capacity(64),
            news: HashMap::new(),
            events: Vec::new(),
            began: Instant::now(),
            next: 0,
            verify: Verify::Off,
        }
    }

    /// What the transport declares.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// A fresh link to the target; may not be up yet.
    pub fn connect(&mut self) -> LinkId {
        self.pair.connect()
    }

    /// A fresh link to the second target, or to the first where there is no second.
    pub fn connect_elsewhere(&mut self) -> LinkId {
        if self.pair.second_target().is_some() { self.pair.connect_second() } else { self.pair.connect() }
    }

    /// What was heard of a link so far.
    pub fn news(&self, link: LinkId) -> LinkNews {
        self.news.get(&link).copied().unwrap_or_default()
    }

    /// Memory of the initiator, filled.
    pub fn local(&mut self, length: u64) -> Mem {
        let name = format!("the initiator's region {}", self.memories.len());
        let memory = Memory::filled(name, &self.here, Access::LOCAL, length as usize, Family::Here);
        self.keep(memory)
    }

    /// Memory of the initiator that is never looked at, so it may be huge.
    pub fn local_unfilled(&mut self, length: u64) -> Mem {
        let name = format!("the initiator's region {}", self.memories.len());
        let memory = Memory::empty(name, &self.here, Access::LOCAL, length as usize);
        self.keep(memory)
    }

    /// Memory of the target, filled, and imported by the initiator.
    pub fn remote(&mut self, length: u64, access: Access) -> Mem {
        let side = self.there.clone();
        self.remote_of(&side, "the target", length, access)
    }

    /// Memory of the second target, or of the first where there is no second.
    pub fn remote_elsewhere(&mut self, length: u64, access: Access) -> Mem {
        match self.pair.second_target() {
            Some(side) => self.remote_of(&side, "the second target", length, access),
            None => self.remote(length, access),
        }
    }

    fn remote_of(&mut self, side: &Side, whose: &str, length: u64, access: Access) -> Mem {
        let name = format!("{whose}'s region {}", self.memories.len());
        let mut memory = Memory::filled(name, side, access, length as usize, Family::There);
        let key = self.here.domain.import(&memory.descriptor);
        memory.remote = Some(must("import the target's region", key));
        self.keep(memory)
    }

    fn keep(&mut self, memory: Memory) -> Mem {
        self.memories.push(memory);
        Mem(self.memories.len() - 1)
    }

    /// The memory itself.
    pub fn memory(&mut self, mem: Mem) -> &mut Memory {
        &mut self.memories[mem.0]
    }

    /// The initiator's key for a target's region.
    pub fn remote_key(&self, mem: Mem) -> RemoteKey {
        match self.memories[mem.0].remote {
            Some(key) => key,
            None => panic!("a row names the initiator's own memory as the remote side"),
        }
    }

    /// Imports a description, as the initiator does.
    ///
    /// # Errors
    /// What the domain says.
    pub fn import(&self, descriptor: &RegionDescriptor) -> Result<RemoteKey, MemoryError> {
        self.here.domain.import(descriptor)
    }

    /// Undoes [`Harness::import`].
    pub fn forget(&self, key: RemoteKey) {
        self.here.domain.forget(key);
    }

    /// A description with a key that the owner never gave out.
    pub fn forge(&self, descriptor: &RegionDescriptor) -> RegionDescriptor {
        self.pair.forge(descriptor)
    }

    /// Describes a target's region anew, and reaches it by that from now on.
    pub fn reimport(&mut self, mem: Mem) {
        let domain = self.here.domain.clone();
        let memory = self.memory(mem);
        memory.descriptor = Memory::describe(&memory.side, &memory.region);
        let key = must("import the renewed region", domain.import(&memory.descriptor));
        if let Some(old) = memory.remote.replace(key) {
            domain.forget(old);
        }
    }

    /// Writes foreign bytes over a range, as an owner does who reuses memory that was let go.
    pub fn scribble(&mut self, spot: Spot, length: u64) {
        self.next += 1;
        let bytes = pattern(Family::Foreign, self.next, length as usize);
        self.memory(spot.mem).set(spot.offset, &bytes);
    }

    /// Whether ops that are made from now on are verified.
    pub fn verify_ops(&mut self, yes: bool) {
        self.verify = if yes { Verify::On } else { Verify::Off };
    }

    /// A byte of the next verified payload comes damaged.
    pub fn damage_next(&mut self) {
        self.pair.damage_next();
    }

    /// A write of `length` bytes from `from`, which is ours, to `to`, which is a target's.
    pub fn write(&mut self, link: LinkId, from: Spot, to: Spot, length: u64) -> Op {
        self.op(OpKind::Write, link, from, to, length)
    }

    /// A read of `length` bytes into `into`, which is ours, from `from`, which is a target's.
    pub fn read(&mut self, link: LinkId, into: Spot, from: Spot, length: u64) -> Op {
        self.op(OpKind::Read, link, into, from, length)
    }

    /// An op of either kind.
    pub fn op(&mut self, kind: OpKind, link: LinkId, local: Spot, remote: Spot, length: u64) -> Op {
        let Some(key) = self.memories[remote.mem.0].remote else {
            panic!("a row names the initiator's own memory as the remote side");
        };
        self.op_with_key(kind, link, local, remote, length, key)
    }

    /// An op that reaches its remote side by another key than the right one.
    pub fn op_with_key(
        &mut self,
        kind: OpKind,
        link: LinkId,
        local: Spot,
        remote: Spot,
        length: u64,
        key: RemoteKey,
    ) -> Op {
        self.next += 1;
        let token = Token(mix(self.next));
        let ours = &self.memories[local.mem.0];
        assert!(ours.remote.is_none(), "a row names a target's memory as the local side");
        let lease = must("lease the initiator's region", ours.region.lease());
        let local_span = ours.span(local.offset, length);
        let remote_span = RemoteSpan { offset: remote.offset, key };
        let op = Op {
            kind,
            link,
            local: local_span,
            remote: remote_span,
            pieces: None,
            token,
            priority: Priority::Normal,
            verify: self.verify,
        };
        self.ledger.add(op, vec![Part { local, remote, length }], Slices::default(), lease);
        op
    }

    /// An op of these pieces, all of which are in the same region at either side.
    pub fn list(&mut self, kind: OpKind, link: LinkId, parts: &[Part]) -> Op {
        let length = parts.iter().map(|part| part.length).sum();
        self.list_claiming(kind, link, parts, length)
    }

    /// As [`Harness::list`], of an op that says that its pieces have `length` bytes together.
    pub fn list_claiming(&mut self, kind: OpKind, link: LinkId, parts: &[Part], length: u64) -> Op {
        let Some(first) = parts.first() else { panic!("a row makes a list of no pieces") };
        let same = |p: &Part| p.local.mem == first.local.mem && p.remote.mem == first.remote.mem;
        assert!(parts.iter().all(same), "a row makes a list over several regions");
        self.next += 1;
        let token = Token(mix(self.next));
        let ours = &self.memories[first.local.mem.0];
        assert!(ours.remote.is_none(), "a row names a target's memory as the local side");
        let lease = must("lease the initiator's region", ours.region.lease());
        let addresses = parts.iter().map(|p| ours.span(p.local.offset, p.length).address).collect();
        let table = parts.iter().map(|p| Piece::new(p.remote.offset, p.length)).collect();
        let slices = Slices { addresses, table };
        let local = LocalSpan { address: slices.addresses[0], length, key: ours.local };
        let remote = RemoteSpan { offset: first.remote.offset, key: self.remote_key(first.remote.mem) };
        let op = Op {
            kind,
            link,
            local,
            remote,
            pieces: slices.view(),
            token,
            priority: Priority::Normal,
            verify: self.verify,
        };
        self.ledger.add(op, parts.to_vec(), slices, lease);
        op
    }

    /// Puts other values into the list of an op that is not in flight, as an owner does who reuses it. They name memory that
    /// exists: each address is that of `other`, and each place at the peer is one byte further.
    pub fn scribble_list(&mut self, op: &Op, other: Spot) {
        let address = self.memories[other.mem.0].span(other.offset, 0).address;
        let slices = self.ledger.slices(op.token);
        slices.addresses.fill(address);
        for piece in &mut slices.table {
            *piece = Piece::new(piece.offset() + 1, piece.length());
        }
    }

    /// The same op again, under the same token, which has completed.
    pub fn again(&mut self, op: Op) {
        assert!(op.pieces.is_none(), "a row makes a list anew, as its slices are gone");
        let parts = self.parts(&op);
        let lease = must("lease the initiator's region", self.memories[parts[0].local.mem.0].region.lease());
        self.ledger.add(op, parts, Slices::default(), lease);
    }

    /// The places of an op: one for a contiguous op, and each piece of a list.
    pub fn parts(&self, op: &Op) -> Vec<Part> {
        self.ledger.get(op.token).parts.clone()
    }

    /// How long to wait for what must come.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How long to watch for what must not come.
    pub fn quiet(&self) -> Duration {
        self.quiet
    }

    /// Something that belongs into a report.
    pub fn note(&mut self, what: String) {
        self.events.push(what);
    }

    /// Fails the row, with all there is to know.
    #[track_caller]
    pub fn fail(&self, what: &str) -> ! {
        let events = if self.events.is_empty() { "none".to_string() } else { self.events.join("\n  ") };
        panic!(
            "{}: {what}\n  after {} ms; {}\n  events: {events}",
            self.capabilities.name,
            self.began.elapsed().as_millis(),
            self.ledger.report(),
        );
    }
}

impl Drop for Harness<'_> {
    fn drop(&mut self) {
        // A row that failed leaves ops in flight, or a transport that broke its word: what it may touch stays for ever.
        if self.ledger.in_flight() > 0 || std::thread::panicking() {
            let kept = (std::mem::take(&mut self.memories), std::mem::take(&mut self.ledger));
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        }
    }
}
