//! A transport whose links are made by words over the control link, in both directions: hello, welcome, thanks. Rule: bytes are copied by
//! polls, in one process, so it is neither own work of a call nor the one that reaches everybody.

#![allow(unsafe_code)]

use crate::features::Extra;
use crate::route::RouteId;
use orbit_te_memory::registry::admit;
use orbit_te_memory::{
    Access, AdmitError, Domain, KindSet, Lease, LocalKey, MemoryError, Region, Registry, RemoteKey, Request,
};
use orbit_te_transport::{
    Arm, Capabilities, Completion, Counterpart, Event, LinkId, LinkLanes, Mailbox, Notice, Op, OpError,
    OpErrorCode, OpKind, Progress, Say, Signs, Token, Transport, TransportError,
};
use orbit_te_wire::{Generation, PeerId, RegionDescriptor, RegionId, SessionId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The route whose name it takes.
pub(super) const ROUTE: RouteId = RouteId::RDMA;
/// Makes a transport say that its link is down.
pub(super) const FALL: &[u8] = b"fall";
/// Makes a transport say more than one message takes.
pub(super) const SHOUT: &[u8] = b"shout";

const NAME: &str = "rdma";

/// Admits a request of a session's peer at its target.
type Admit = Arc<dyn Fn(SessionId, &Request) -> Result<Lease, AdmitError> + Send + Sync>;

/// What both ends share, and how they behave.
#[derive(Default)]
pub(super) struct Fabric {
    /// The targets of sessions whose links are up.
    targets: Mutex<BTreeMap<SessionId, Admit>>,
    /// What the target may say in each session.
    pub(super) voices: Mutex<BTreeMap<SessionId, Arc<dyn Say>>>,
    pub(super) log: Mutex<Vec<&'static str>>,
    /// The target does not want anybody.
    pub(super) refuses: AtomicBool,
    /// Links take longer to be made than is waited for when a peer is opened.
    pub(super) slow: AtomicBool,
    /// Ops are kept and not carried out.
    pub(super) holds: AtomicBool,
    /// A poll does not return.
    pub(super) stalls: AtomicBool,
    /// Ops that have been submitted.
    pub(super) submitted: AtomicUsize,
    pub(super) polls: AtomicUsize,
    pub(super) refuses_renewal: AtomicBool,
    /// Where the target's notifications come in.
    mailbox: Mutex<Option<Arc<dyn Mailbox>>>,
    pub(super) notices: Mutex<Notices>,
    /// Notifications that have been taken, delivered or not.
    pub(super) notified: AtomicUsize,
}

/// What becomes of notifications.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Notices {
    /// They are not taken.
    #[default]
    None,
    /// They are delivered.
    Delivered,
    /// They are delivered, and the answer is lost: this is what their sender hears.
    Lost(OpErrorCode),
    /// They are not delivered.
    Failed(OpErrorCode),
    /// They are kept.
    Kept,
}

impl Fabric {
    pub(super) fn note(&self, what: &'static str) {
        self.log.lock().push(what);
    }

    pub(super) fn count(&self, what: &str) -> usize {
        self.log.lock().iter().filter(|noted| **noted == what).count()
    }

    /// Has the targets of all sessions say something.
    pub(super) fn say(&self, bytes: &[u8]) -> bool {
        self.voices.lock().values().all(|voice| voice.say(bytes.to_vec()))
    }
}

/// The transport as an engine gets it.
pub(super) struct Foreign(pub(super) Arc<Fabric>);

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(NAME)
    }
}

impl Extra for Foreign {
    fn domain(&self) -> Arc<dyn Domain> {
        Arc::new(ForeignDomain(self.0.clone()))
    }

    fn transport(&self) -> Box<dyn Transport> {
        Box::new(Caller {
            fabric: self.0.clone(),
            links: Vec::new(),
            ops: VecDeque::new(),
            events: VecDeque::new(),
            done: VecDeque::new(),
            kept: Vec::new(),
        })
    }

    fn counterpart(&self, registry: &Registry, mailbox: &Arc<dyn Mailbox>) -> Option<Arc<dyn Counterpart>> {
        *self.0.mailbox.lock() = Some(mailbox.clone());
        let (table, grants) = (registry.table(), registry.grants().clone());
        let admit: Admit = Arc::new(move |session, request| {
            admit(&table.load(), &grants.of(session), request, Instant::now())
        });
        Some(Arc::new(Callee { fabric: self.0.clone(), admit }))
    }
}

struct ForeignDomain(Arc<Fabric>);

impl Domain for ForeignDomain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn kinds(&self) -> KindSet {
        KindSet::HOST
    }

    fn register(&self, region: &Region) -> Result<LocalKey, MemoryError> {
        Ok(LocalKey::of_host(region))
    }

    fn remote_key(&self, _region: &Region, key: u64) -> Vec<u8> {
        key.to_le_bytes().to_vec()
    }

    fn renew(&self, region: &Region, key: LocalKey) -> Result<(), MemoryError> {
        assert_eq!((region.leases(), region.takes_leases()), (0, false));
        assert_eq!(key.region(), region.id());
        self.0.note("renewed");
        match self.0.refuses_renewal.load(Ordering::Acquire) {
            true => Err(MemoryError::Refused { domain: NAME, reason: "planted".to_string() }),
            false => Ok(()),
        }
    }

    fn deregister(&self, _region: &Region, _key: LocalKey) -> Result<(), MemoryError> {
        self.0.note("deregistered");
        Ok(())
    }

    fn import(&self, descriptor: &RegionDescriptor) -> Result<RemoteKey, MemoryError> {
        let bad = || MemoryError::BadRemoteKey { domain: NAME, reason: "it is no key".to_string() };
        let bytes = descriptor.key(NAME).and_then(|bytes| bytes.try_into().ok()).ok_or_else(bad)?;
        Ok(RemoteKey::of_host(descriptor, u64::from_le_bytes(bytes)))
    }

    fn forget(&self, _key: RemoteKey) {}
}

/// The side that peers reach.
struct Callee {
    fabric: Arc<Fabric>,
    admit: Admit,
}

impl Counterpart for Callee {
    fn names(&self) -> &[&'static str] {
        &[NAME]
    }

    fn admit(
        &self,
        session: SessionId,
        _peer: PeerId,
        say: Arc<dyn Say>,
    ) -> Result<Vec<(&'static str, Vec<u8>)>, TransportError> {
        self.fabric.note("admitted");
        self.fabric.voices.lock().insert(session, say);
        Ok(vec![(NAME, session.0.to_le_bytes().to_vec())])
    }

    fn deliver(&self, session: SessionId, bytes: &[u8], _now: Instant) -> Result<(), TransportError> {
        match bytes {
            b"hello" => {
                let refuses = self.fabric.refuses.load(Ordering::Acquire);
                let answer: &[u8] = if refuses { b"go away" } else { b"welcome" };
                let voice = self.fabric.voices.lock()[&session].clone();
                match self.fabric.slow.load(Ordering::Acquire) {
                    false => assert!(voice.say(answer.to_vec())),
                    true => drop(std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(1500));
                        voice.say(answer.to_vec())
                    })),
                }
                Ok(())
            }
            b"thanks" => {
                self.fabric.targets.lock().insert(session, self.admit.clone());
                Ok(())
            }
            _ => {
                self.fabric.note("nonsense");
                Err(TransportError::RefusedByPeer("it does not make sense".to_string()))
            }
        }
    }

    fn drop_session(&self, session: SessionId) {
        self.fabric.note("dropped");
        self.fabric.targets.lock().remove(&session);
    }

    fn arm(&self, now: Instant) -> Option<Arm> {
        Some(Arm::Sleep { fd: None, until: Some(now + Duration::from_millis(10)) })
    }

    fn poll(&self, _now: Instant) -> bool {
        self.fabric.polls.fetch_add(1, Ordering::AcqRel);
        false
    }

    fn close(&self) {
        self.fabric.note("closed");
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Greeting,
    Up,
    Gone,
}

/// The side that moves bytes.
struct Caller {
    fabric: Arc<Fabric>,
    links: Vec<(SessionId, State)>,
    ops: VecDeque<Op>,
    events: VecDeque<Event>,
    /// Ends of notifications.
    done: VecDeque<Completion>,
    kept: Vec<Token>,
}

impl Caller {
    fn end_kept(&mut self, code: OpErrorCode, which: impl Fn(Token) -> bool) {
        let done = &mut self.done;
        self.kept.retain(|token| {
            if which(*token) {
                let result = Err(OpError::new(code));
                done.push_back(Completion { token: *token, result, bytes: 0, touched: true });
            }
            !which(*token)
        });
    }

    fn say(&mut self, link: LinkId, bytes: &[u8]) {
        self.events.push_back(Event::Control { link, bytes: bytes.to_vec() });
    }

    fn state(&self, link: LinkId) -> State {
        self.links.get(link.slot as usize).map_or(State::Gone, |(_, state)| *state)
    }

    fn is_due(&self, op: &Op) -> bool {
        // The thanks may still be on their way to the target.
        let thanked =
            |session| self.fabric.targets.lock().contains_key(session) || self.fabric.count("dropped") > 0;
        match self.state(op.link) {
            State::Up
                if !self.links.get(op.link.slot as usize).is_some_and(|(session, _)| thanked(session)) =>
            {
                false
            }
            State::Greeting => false,
            State::Up => !self.fabric.holds.load(Ordering::Acquire),
            State::Gone => true,
        }
    }

    fn carry_out(&self, op: &Op) -> Result<(), OpError> {
        let gone = OpError::new(OpErrorCode::NoLink);
        let (session, State::Up) = self.links.get(op.link.slot as usize).copied().ok_or(gone)? else {
            return Err(gone);
        };
        let target = self.fabric.targets.lock().get(&session).cloned().ok_or(gone)?;
        let [region, generation, key, _] = op.remote.key.0;
        let request = Request {
            region: RegionId(region),
            generation: Generation(generation),
            key,
            offset: op.remote.offset,
            length: op.local.length,
            access: match op.kind {
                OpKind::Read => Access::REMOTE_READ,
                OpKind::Write => Access::REMOTE_WRITE,
            },
        };
        let lease = target(session, &request)
            .map_err(|error| OpError::from_status(error.status()).unwrap_or(gone))?;
        let theirs = lease.region().as_ptr().as_ptr().wrapping_add(op.remote.offset as usize);
        let ours = std::ptr::with_exposed_provenance_mut::<u8>(op.local.address as usize);
        let (from, into) = match op.kind {
            OpKind::Read => (theirs, ours),
            OpKind::Write => (ours, theirs),
        };
        // SAFETY: whoever submitted the op leases our side, and the target's is leased and was checked to have these bytes; tests do not
        // copy a region to itself.
        unsafe { std::ptr::copy_nonoverlapping(from, into, op.local.length as usize) };
        Ok(())
    }
}

// SAFETY: an op is in one list and completed when it is taken out of it, after the copy, which is made by the poll that completes it.
unsafe impl Transport for Caller {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            read: true,
            write: true,
            kinds: KindSet::HOST,
            vanishing: true,
            max_op_bytes: 1 << 40,
            max_pieces: 0,
            max_list_bytes: 0,
            max_ops: 64,
            needs_target_cpu: false,
            moves_by_calls: false,
            admits: true,
            fences: true,
            checksums: false,
            notifications: true,
        }
    }

    fn connect(&mut self, _: PeerId, address: &[u8], _: Instant) -> Result<LinkId, TransportError> {
        let bad = |_| TransportError::BadAddress { transport: NAME, reason: "its length".to_string() };
        let session = SessionId(u128::from_le_bytes(address.try_into().map_err(bad)?));
        let link = LinkId { slot: self.links.len() as u32, generation: 1 };
        self.links.push((session, State::Greeting));
        self.say(link, b"hello");
        Ok(link)
    }

    fn deliver(&mut self, link: LinkId, bytes: &[u8], now: Instant) -> Result<(), TransportError> {
        match (self.state(link), bytes) {
            (State::Greeting, b"welcome") => {
                self.links[link.slot as usize].1 = State::Up;
                self.say(link, b"thanks");
                self.events.push_back(Event::LinkUp { link });
                Ok(())
            }
            (State::Up, FALL) => {
                let error =
                    TransportError::Io { what: NAME.to_string(), source: std::io::Error::other("planted") };
                self.events.push_back(Event::LinkDown { link, error });
                Ok(())
            }
            (State::Up, SHOUT) => {
                self.say(link, &[0; 1 << 17]);
                Ok(())
            }
            _ => {
                self.fabric.note("not taken");
                self.disconnect(link, now);
                Err(TransportError::RefusedByPeer("it does not want this".to_string()))
            }
        }
    }

    unsafe fn submit(&mut self, ops: &[Op], _: Instant) -> usize {
        self.fabric.submitted.fetch_add(ops.len(), Ordering::AcqRel);
        self.ops.extend(ops);
        ops.len()
    }

    unsafe fn notify(&mut self, notice: &Notice, _: Instant) -> bool {
        let notices = *self.fabric.notices.lock();
        if notices == Notices::None {
            return false;
        }
        self.fabric.notified.fetch_add(1, Ordering::AcqRel);
        let ours = std::ptr::with_exposed_provenance::<u8>(notice.bytes.address as usize);
        // SAFETY: whoever submits it keeps the bytes valid and unchanged until its completion.
        let bytes = unsafe { std::slice::from_raw_parts(ours, notice.bytes.length as usize) };
        let deliver = || {
            let (name, payload) = orbit_te_wire::notification::decode(bytes).unwrap();
            let session = self.links[notice.link.slot as usize].0;
            let mailbox = self.fabric.mailbox.lock().clone().unwrap();
            mailbox.deliver(session, notice.number, name, payload).unwrap();
        };
        let result = match notices {
            Notices::None => Ok(()),
            Notices::Delivered => {
                deliver();
                Ok(())
            }
            Notices::Lost(code) => {
                deliver();
                Err(OpError::new(code))
            }
            Notices::Failed(code) => Err(OpError::new(code)),
            Notices::Kept => {
                self.kept.push(notice.token);
                return true;
            }
        };
        self.done.push_back(Completion { token: notice.token, result, bytes: 0, touched: true });
        true
    }

    fn cancel(&mut self, tokens: RangeInclusive<Token>, _: Instant) {
        for op in self.ops.iter_mut().filter(|op| tokens.contains(&op.token)) {
            // Nothing has moved yet, and no link has this number.
            op.link.slot = u32::MAX;
        }
        self.end_kept(OpErrorCode::Cancelled, |token| tokens.contains(&token));
    }

    fn poll(&mut self, _: Instant, budget: usize, out: &mut Progress) -> bool {
        while self.fabric.stalls.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut any = !self.events.is_empty() || !self.done.is_empty();
        out.completions.extend(self.done.drain(..));
        out.events.extend(self.events.drain(..));
        for _ in 0..budget.min(self.ops.len()) {
            let Some(op) = self.ops.pop_front() else { break };
            if !self.is_due(&op) {
                self.ops.push_back(op);
                continue;
            }
            any = true;
            let result = self.carry_out(&op);
            let bytes = if result.is_ok() { op.local.length } else { 0 };
            out.completions.push(Completion { token: op.token, result, bytes, touched: result.is_ok() });
        }
        any
    }

    fn arm(&mut self, _: Instant) -> Arm {
        let is_due =
            !self.events.is_empty() || !self.done.is_empty() || self.ops.iter().any(|op| self.is_due(op));
        if is_due { Arm::Ready } else { Arm::Sleep { fd: None, until: None } }
    }

    fn lanes(&self, _: LinkId, _: Instant) -> Option<LinkLanes> {
        None
    }

    fn signs(&mut self, _: LinkId, _: Instant) -> Signs {
        Signs::default()
    }

    fn disconnect(&mut self, link: LinkId, _: Instant) {
        if let Some((_, state)) = self.links.get_mut(link.slot as usize) {
            if std::mem::replace(state, State::Gone) != State::Gone {
                self.fabric.note("disconnected");
            }
        }
    }

    fn close(&mut self, _: Instant) {
        self.links.iter_mut().for_each(|(_, state)| *state = State::Gone);
        self.end_kept(OpErrorCode::Closed, |_| true);
    }

    fn is_drained(&self) -> bool {
        self.ops.is_empty() && self.done.is_empty() && self.kept.is_empty()
    }
}
