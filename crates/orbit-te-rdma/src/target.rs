//! The side that peers reach: their connections, and the keys that they were given. Rule: what a peer can touch is held until it has said
//! that it touches it no more, or its QPs here are gone; memory is never let go on a guess.
//!
//! All of it is rare: a few messages for each connection, and one for each region that a peer begins to use. A peer's reads and writes are
//! carried out by the device.

use crate::adapter::Adapters;
use crate::domain::{NAME, RdmaDomain};
use crate::guest::{Given, Guest, lasts};
use crate::memory::{Mrs, Registrations};
use crate::notices::{Notice, Reader};
use crate::postbox::{Arrived, Postbox};
use arc_swap::ArcSwap;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use orbit_te_memory::registry::admit;
use orbit_te_memory::{Access, Grants, Hold, Recall, Recalled, RegionTable, Registry, Request};
use orbit_te_transport::{Arm, Counterpart, Mailbox, Say, TransportError};
use orbit_te_wire::rdma::{Address, Body, CloseCode, Features, KeyRefusal, KeySet, Message};
use orbit_te_wire::{Generation, Incarnation, PeerId, RegionId, SessionId, Status};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Instant;

/// Messages of one session that wait to be taken. A peer has a few under way at a time.
const WAITING: usize = 1024;
/// Regions that a peer has keys of.
const GIVEN: usize = 64 * 1024;

/// Lets peers connect, and gives them keys. Shared: sessions come and go by any thread, and one thread polls it.
pub struct RdmaTarget {
    life: Incarnation,
    adapters: Arc<Adapters>,
    registrations: Arc<Registrations>,
    regions: Arc<ArcSwap<RegionTable>>,
    grants: Arc<Grants>,
    epoll: Arc<Epoll>,
    kick: EventFd,
    /// How far this has read what happened to the rails.
    reader: Mutex<Reader>,
    /// What came and was not taken yet. Apart from the state, so that whoever delivers never waits for a device.
    mail: Mutex<VecDeque<(SessionId, Message)>>,
    /// Regions and grants that ended, as far as they are not dealt with yet.
    recalled: Mutex<Vec<Recalled>>,
    sessions: Mutex<HashMap<SessionId, Session>>,
    /// In an order, so that what is said to several is said in the same order each time.
    state: Mutex<BTreeMap<SessionId, Guest>>,
    /// Where notices come in; none where they don't.
    postbox: Option<Arc<Postbox>>,
}

/// What is known of a session without looking at its connection.
struct Session {
    peer: PeerId,
    say: Arc<dyn Say>,
    waiting: usize,
}

impl RdmaTarget {
    /// The side of `life` that peers reach: for the regions of this registry, as they are registered with this domain.
    ///
    /// # Errors
    /// [`TransportError::Io`] when the system gives no event queue.
    pub fn new(
        domain: &RdmaDomain,
        registry: &Registry,
        life: Incarnation,
    ) -> Result<Arc<RdmaTarget>, TransportError> {
        RdmaTarget::make(domain, registry, life, None)
    }

    /// As [`RdmaTarget::new`], and hands the notices of its peers in to this mailbox, on the thread that polls it.
    ///
    /// # Errors
    /// As [`RdmaTarget::new`].
    pub fn with_mailbox(
        domain: &RdmaDomain,
        registry: &Registry,
        life: Incarnation,
        mailbox: Arc<dyn Mailbox>,
    ) -> Result<Arc<RdmaTarget>, TransportError> {
        RdmaTarget::make(domain, registry, life, Some(mailbox))
    }

    fn make(
        domain: &RdmaDomain,
        registry: &Registry,
        life: Incarnation,
        mailbox: Option<Arc<dyn Mailbox>>,
    ) -> Result<Arc<RdmaTarget>, TransportError> {
        let failed = |source: io::Error| TransportError::Io { what: "an event queue".to_string(), source };
        let registrations = domain.registrations().clone();
        let adapters = registrations.adapters().clone();
        let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| failed(e.into()))?);
        let kick = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| failed(e.into()))?;
        let watch = |fd| epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(|e| failed(e.into()));
        watch(kick.as_fd())?;
        let reader = adapters.notices().reader().map_err(failed)?;
        watch(reader.as_fd())?;
        for adapter in adapters.all().iter().filter(|adapter| adapter.is_watched()) {
            watch(adapter.pd.context().as_fd())?;
        }
        let (rails, peers) = (adapters.all().len(), adapters.config().notice_peers);
        let postbox = mailbox
            .filter(|_| adapters.config().notifications)
            .map(|mailbox| Arc::new(Postbox::new(mailbox, epoll.clone(), rails, peers)));
        let target = Arc::new(RdmaTarget {
            postbox,
            life,
            adapters,
            registrations,
            regions: registry.table(),
            grants: registry.grants().clone(),
            epoll,
            kick,
            reader: Mutex::new(reader),
            mail: Mutex::default(),
            recalled: Mutex::default(),
            sessions: Mutex::default(),
            state: Mutex::default(),
        });
        let known: Arc<dyn Recall> = target.clone();
        registry.on_recall(Arc::downgrade(&known));
        Ok(target)
    }

    /// Breaks the connection of a session, which may be made again.
    pub fn disconnect(&self, session: SessionId, now: Instant) {
        if let Some(guest) = self.state.lock().get_mut(&session) {
            guest.end(CloseCode::QueueFailed, now);
        }
        self.ring();
    }

    /// Reads what has happened to the rails, and does what follows from it; whether there was anything.
    fn react(&self, state: &mut BTreeMap<SessionId, Guest>, now: Instant) -> bool {
        let mut reader = self.reader.lock();
        if !self.adapters.notices().any_for(&reader) {
            return false;
        }
        let notices = self.adapters.notices().read(&mut reader);
        for notice in &notices {
            state.values_mut().for_each(|guest| guest.happened(*notice, now));
            if let Some(postbox) = &self.postbox {
                postbox.forget(|rail, cookie| match *notice {
                    Notice::Completions { cookie: of } => of == cookie,
                    Notice::DeviceLost { device } => {
                        self.adapters.get(rail).is_some_and(|adapter| adapter.device_number() == device)
                    }
                    Notice::Missed => true,
                    _ => false,
                });
            }
        }
        if notices.iter().any(|notice| matches!(notice, Notice::DeviceLost { .. } | Notice::Missed)) {
            self.adapters.unwatch_lost(&self.epoll);
        }
        let better = |notice: &Notice| {
            matches!(notice, Notice::RailAgain { .. } | Notice::Addresses { .. } | Notice::Missed)
        };
        if notices.iter().any(better) {
            let side = self.adapters.side();
            state.values().for_each(|guest| guest.tell_rails(&side));
        }
        true
    }

    fn ring(&self) {
        // Fails only when the counter is full, and then it is rung.
        let _ = self.kick.write(1);
    }

    fn take(&self, state: &mut BTreeMap<SessionId, Guest>, id: SessionId, message: Message, now: Instant) {
        let Some((peer, say)) = self.sessions.lock().get_mut(&id).map(|session| {
            session.waiting = session.waiting.saturating_sub(1);
            (session.peer, session.say.clone())
        }) else {
            return;
        };
        let new = || {
            let shared = (self.adapters.clone(), self.postbox.clone());
            Guest::new(self.life, message.from.incarnation, (id, peer), say, shared, now)
        };
        let guest = state.entry(id).or_insert_with(new);
        let to_us = message.to.incarnation == self.life;
        match message.body {
            Body::KeysWanted { request, region, generation, key } if to_us => {
                let answer = match self.keys(id, guest, (region, generation, key), now) {
                    Ok(keys) => Body::Keys { request, keys },
                    Err(code) => Body::KeysRefused { request, code },
                };
                guest.answer(message.from, answer);
            }
            Body::LetGo { request } if to_us => guest.let_go(request),
            Body::FenceWanted { request } if to_us => guest.fence(request, message.from, now),
            Body::KeysWanted { .. } | Body::LetGo { .. } | Body::FenceWanted { .. } => {}
            _ => guest.hear(message, now),
        }
    }

    /// Takes what has come of notices; whether there was anything. They are to be handed in without any lock.
    fn take_notices(
        &self,
        state: &mut BTreeMap<SessionId, Guest>,
        arrived: &mut Vec<Arrived>,
        now: Instant,
    ) -> bool {
        let Some(postbox) = &self.postbox else { return false };
        let (wcs, failed) = postbox.take();
        for rail in &failed {
            state.values_mut().for_each(|guest| guest.notices_failed(*rail, now));
        }
        for (session, wc) in &wcs {
            arrived.extend(state.get_mut(session).and_then(|guest| guest.arrived(wc, now)));
        }
        !wcs.is_empty() || !failed.is_empty()
    }

    /// Hands notices in, and answers them.
    fn hand_in(&self, arrived: Vec<Arrived>, now: Instant) {
        let Some(postbox) = &self.postbox else { return };
        for one in arrived {
            let handed = one.hand_in(postbox.mailbox());
            if let Some(guest) = self.state.lock().get_mut(&one.session) {
                guest.handed(one.line, handed, now);
            }
        }
    }

    /// The keys of a region, for a peer that shows these; held from now on.
    fn keys(
        &self,
        session: SessionId,
        guest: &mut Guest,
        (id, generation, key): (RegionId, Generation, u64),
        now: Instant,
    ) -> Result<KeySet, KeyRefusal> {
        let asked = Request { region: id, generation, key, offset: 0, length: 1, access: Access::empty() };
        let holder = self.grants.of(session);
        let lease =
            admit(&self.regions.load(), &holder, &asked, now).map_err(|error| refusal(error.status()))?;
        let region = lease.region().clone();
        // Looked up and let go at once: whoever withdraws the region waits for it.
        let common = self.registrations.get(id).ok_or(KeyRefusal::NotRegistered)?.remote(region.access(), 0);
        let granted = lease.grant().map(|grant| (grant.access(), grant.expires_in(now)));
        if let Some(own) = guest.again((id, generation, key), granted, now) {
            return Ok(own.unwrap_or(common));
        }
        if guest.given() >= GIVEN {
            return Err(KeyRefusal::NoRoom);
        }
        let (keys, own) = match granted {
            None => (common, None),
            // Keys of its own, so that they can end alone.
            Some((access, left)) => {
                let own = Mrs::register(&self.adapters, &region, access).map_err(|error| {
                    tracing::warn!(%error, "{NAME}: no keys for a grant");
                    KeyRefusal::NoRoom
                })?;
                (own.remote(access, lasts(left)), Some((own, left.map(|left| now + left))))
            }
        };
        if keys.rails.is_empty() {
            return Err(KeyRefusal::NotRegistered);
        }
        // What ended just now is told as it will be told from now on.
        let hold = Hold::new(lease, generation).ok_or_else(|| match region.is_retired() {
            true => KeyRefusal::UnknownRegion,
            false => KeyRefusal::StaleGeneration,
        })?;
        guest.give(Given::new(hold, (id, generation, key), own));
        Ok(keys)
    }
}

impl Counterpart for RdmaTarget {
    fn names(&self) -> &[&'static str] {
        &[NAME]
    }

    fn admit(
        &self,
        session: SessionId,
        peer: PeerId,
        say: Arc<dyn Say>,
    ) -> Result<Vec<(&'static str, Vec<u8>)>, TransportError> {
        self.sessions.lock().insert(session, Session { peer, say, waiting: 0 });
        let address = Address {
            version: orbit_te_wire::rdma::VERSION,
            incarnation: self.life,
            features: match self.postbox {
                Some(_) => Features::NOTIFICATIONS,
                None => Features::empty(),
            },
            rails: self.adapters.all().len() as u8,
        };
        Ok(vec![(NAME, address.encode()?)])
    }

    /// What came is dealt with by [`RdmaTarget::poll`]: a device may take its time.
    fn deliver(&self, session: SessionId, bytes: &[u8], _now: Instant) -> Result<(), TransportError> {
        let message = Message::decode(bytes)?;
        let mut sessions = self.sessions.lock();
        let Some(known) = sessions.get_mut(&session) else { return Ok(()) };
        if known.waiting >= WAITING {
            return Err(TransportError::RefusedByPeer("it says more than is listened to".to_string()));
        }
        known.waiting += 1;
        drop(sessions);
        self.mail.lock().push_back((session, message));
        self.ring();
        Ok(())
    }

    fn drop_session(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
        self.ring();
    }

    fn arm(&self, now: Instant) -> Option<Arm> {
        if !self.mail.lock().is_empty() || !self.recalled.lock().is_empty() {
            return Some(Arm::Ready);
        }
        if self.postbox.as_ref().is_some_and(|postbox| postbox.arm()) {
            return Some(Arm::Ready);
        }
        let until = self.state.lock().values().filter_map(|guest| guest.due(now)).min();
        Some(Arm::Sleep { fd: Some(self.epoll.0.as_raw_fd()), until })
    }

    fn poll(&self, now: Instant) -> bool {
        let mut events = [EpollEvent::empty(); 16];
        let _ = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        // Read, or it would keep the queue awake.
        let _ = self.kick.read();
        self.adapters.take_events();
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        let mut any = self.react(&mut state, now);
        loop {
            let Some((session, message)) = self.mail.lock().pop_front() else { break };
            any = true;
            self.take(&mut state, session, message, now);
        }
        let mut arrived = Vec::new();
        any |= self.take_notices(&mut state, &mut arrived, now);
        for what in std::mem::take(&mut *self.recalled.lock()) {
            any = true;
            state.values_mut().for_each(|guest| guest.recall(what, now));
        }
        let sessions = self.sessions.lock();
        let over: Vec<_> = state.keys().filter(|session| !sessions.contains_key(session)).copied().collect();
        drop(sessions);
        for session in over {
            any = true;
            if let Some(guest) = state.get_mut(&session) {
                guest.leave(now);
            }
        }
        state.retain(|_, guest| {
            any |= guest.look_after(now, &mut gone);
            !guest.is_over()
        });
        drop(state);
        self.hand_in(arrived, now);
        // What was held last may be somebody's memory, with an owner that has code to run.
        drop(gone);
        any
    }

    fn close(&self) {
        self.sessions.lock().clear();
        self.ring();
    }

    fn held(&self) -> usize {
        self.state.lock().values().map(Guest::given).sum()
    }
}

fn refusal(status: Status) -> KeyRefusal {
    match status {
        Status::StaleGeneration => KeyRefusal::StaleGeneration,
        Status::BadKey => KeyRefusal::BadKey,
        Status::GrantEnded => KeyRefusal::GrantEnded,
        Status::AccessDenied => KeyRefusal::AccessDenied,
        Status::ShuttingDown => KeyRefusal::ShuttingDown,
        _ => KeyRefusal::UnknownRegion,
    }
}

impl Recall for RdmaTarget {
    fn recall(&self, what: Recalled) {
        self.recalled.lock().push(what);
        self.ring();
    }
}

impl std::fmt::Debug for RdmaTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaTarget").field("adapters", &self.adapters).finish_non_exhaustive()
    }
}
