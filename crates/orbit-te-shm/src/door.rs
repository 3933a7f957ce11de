//! The owner's side: who is let in to which region, and how he is made to leave. Rule: what a peer may touch is held until the peer has
//! said that it touches it no more, or is gone; memory is never let go on a guess.
//!
//! All of it is rare: a connection for each peer, and a message for each region that a peer begins to use. A peer's copies pass no code
//! of this side.

use crate::config::ShmConfig;
use crate::domain::{may_map, no_entry};
use crate::places::{Listening, listen};
use crate::sys::{Gates, Received, Socket, is_alive};
use arc_swap::ArcSwap;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use orbit_te_memory::registry::admit;
use orbit_te_memory::{Access, Grants, Hold, Recall, Recalled, Region, RegionTable, Registry, Request};
use orbit_te_transport::{Arm, TransportError};
use orbit_te_wire::same_host::{MAX_BYTES, NoEntry, SameHost, SameHostAddress, VERSION, Way};
use orbit_te_wire::{Generation, PeerId, RegionId, SessionId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection must say what it wants within this time.
const KNOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a connection that is to end is looked at: its process may have ended while a child of it keeps the socket.
const LOOK: Duration = Duration::from_millis(50);
/// Connections that have not said yet what they want.
const MAX_STRANGERS: usize = 256;
/// Connections that are accepted at one look.
const ACCEPTS: usize = 32;
/// Messages that are taken from one connection at one look.
const MESSAGES: usize = 64;

/// Tokens of the event queue: connections count from zero.
const KICK: u64 = u64::MAX;
const LISTENERS: u64 = 1 << 32;

/// Lets processes of this host in to the regions of a registry. Shared: sessions come and go by any thread, and one thread polls it.
pub struct Door {
    config: ShmConfig,
    regions: Arc<ArcSwap<RegionTable>>,
    grants: Arc<Grants>,
    listening: Vec<Listening>,
    epoll: Epoll,
    kick: EventFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<SessionId, Admitted>,
    connections: Vec<Option<Connection>>,
    closed: bool,
}

/// A session whose peer may come.
struct Admitted {
    peer: PeerId,
    ask: u128,
    answer: u128,
}

struct Connection {
    socket: Socket,
    /// Tells when the process at the other end has ended.
    process: Option<OwnedFd>,
    /// When it must have knocked.
    due: Instant,
    guest: Option<Guest>,
    /// It is to end, and does so when its peer closes it or nobody is inside any more.
    ending: bool,
}

/// A connection that has knocked.
struct Guest {
    session: SessionId,
    way: Way,
    gates: Gates,
    /// By gate.
    holds: Vec<Entry>,
    /// What the other side reads through the kernel, to see that it can.
    proof: Box<[u8; 16]>,
}

#[derive(Default)]
enum Entry {
    #[default]
    Free,
    /// The peer may be inside.
    Held(Hold),
    /// Nobody is inside, and the gate is closed; the peer has not said yet that it knows.
    Closed,
}

impl Door {
    /// A door to the regions of this registry, which tells it what is withdrawn.
    ///
    /// # Errors
    /// [`TransportError::Io`] when it can't listen.
    pub fn open(config: ShmConfig, registry: &Registry) -> Result<Arc<Door>, TransportError> {
        let config = config.bounded();
        let io = |source: io::Error| TransportError::Io { what: "an event queue".to_string(), source };
        let listening = listen(&config.folder)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| io(e.into()))?;
        let kick = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| io(e.into()))?;
        let watch = |fd, token| epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token));
        watch(kick.as_fd(), KICK).map_err(|e| io(e.into()))?;
        for (at, listening) in listening.iter().enumerate() {
            watch(listening.fd.as_fd(), LISTENERS + at as u64).map_err(|e| io(e.into()))?;
        }
        let (regions, grants) = (registry.table(), registry.grants().clone());
        let state = Mutex::default();
        let door = Arc::new(Door { config, regions, grants, listening, epoll, kick, state });
        let known: Arc<dyn Recall> = door.clone();
        registry.on_recall(Arc::downgrade(&known));
        Ok(door)
    }

    /// Lets the peer of this session come; the address to announce to it, and to nobody else.
    ///
    /// # Errors
    /// [`TransportError::Io`] when there are no random numbers.
    pub fn admit(&self, session: SessionId, peer: PeerId) -> Result<SameHostAddress, TransportError> {
        let random = || {
            let mut bytes = [0u8; 16];
            getrandom::fill(&mut bytes).map_err(|e| TransportError::Io {
                what: "a random number".to_string(),
                source: io::Error::other(e),
            })?;
            Ok::<_, TransportError>(u128::from_le_bytes(bytes))
        };
        let (ask, answer) = (random()?, random()?);
        self.state.lock().sessions.insert(session, Admitted { peer, ask, answer });
        let places = self.listening.iter().map(|listening| listening.place.clone()).collect();
        Ok(SameHostAddress { places, session, ask, answer })
    }

    /// Ends a session: its peer is let in to nothing more, and made to leave. What it may still be inside of stays held until it has left,
    /// or is gone.
    pub fn drop_session(&self, session: SessionId) {
        self.state.lock().sessions.remove(&session);
        self.disconnect(session);
    }

    /// Makes the peer of a session leave, as [`Door::drop_session`] does; it may come again.
    pub fn disconnect(&self, session: SessionId) {
        self.end_where(|guest| guest.session == session);
    }

    /// Makes the peers of all sessions leave; they may come again.
    pub fn disconnect_all(&self) {
        self.end_where(|_| true);
    }

    fn end_where(&self, which: impl Fn(&Guest) -> bool) {
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        for connection in state.connections.iter_mut().flatten() {
            if connection.guest.as_ref().is_some_and(&which) {
                connection.end(&mut gone);
            }
        }
        drop(state);
        // What was held last may be somebody's memory, with an owner that has code to run.
        drop(gone);
        self.kick();
    }

    /// How many regions peers may touch by themselves right now.
    pub fn held(&self) -> usize {
        let state = self.state.lock();
        let guests = state.connections.iter().flatten().filter_map(|connection| connection.guest.as_ref());
        guests.flat_map(|guest| &guest.holds).filter(|entry| matches!(entry, Entry::Held(_))).count()
    }

    /// Lets nobody in any more, and makes everybody leave, as [`Door::drop_session`] does.
    pub fn close(&self) {
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        state.closed = true;
        state.sessions.clear();
        for connection in state.connections.iter_mut().flatten() {
            connection.end(&mut gone);
        }
        drop(state);
        drop(gone);
        self.kick();
    }

    /// Takes what has come, without blocking; whether that was anything.
    pub fn poll(&self, now: Instant) -> bool {
        let mut events = [EpollEvent::empty(); 32];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        for event in &events[..count] {
            match event.data() {
                // Read, or it would keep the queue awake.
                KICK => drop(self.kick.read()),
                at if at >= LISTENERS => self.accept((at - LISTENERS) as usize, &mut state, now),
                at => self.serve(at as usize, &mut state, now, &mut gone),
            }
        }
        let late = self.look_after(&mut state, now, &mut gone);
        drop(state);
        drop(gone);
        count > 0 || late
    }

    /// How to wait for more.
    pub fn arm(&self, now: Instant) -> Arm {
        let state = self.state.lock();
        let due = |connection: &Connection| match (&connection.guest, connection.ending) {
            (_, true) => Some(now + LOOK),
            (None, false) => Some(connection.due),
            (Some(_), false) => None,
        };
        let until = state.connections.iter().flatten().filter_map(due).min();
        Arm::Sleep { fd: Some(self.epoll.0.as_raw_fd()), until }
    }

    fn kick(&self) {
        // Fails only when the counter is full, and then it is rung.
        let _ = self.kick.write(1);
    }

    fn accept(&self, at: usize, state: &mut State, now: Instant) {
        for _ in 0..ACCEPTS {
            let socket = match Socket::accept(self.listening[at].fd.as_fd()) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "a process of this host could not be let in");
                    return;
                }
            };
            let strangers = state.connections.iter().flatten().filter(|c| c.guest.is_none()).count();
            let refusal = match socket.credentials() {
                _ if state.closed => Some("it is shutting down".to_string()),
                _ if strangers >= MAX_STRANGERS => {
                    Some("too many processes come at once; try again".to_string())
                }
                Ok(who) if self.lets_in(who.uid()) => None,
                Ok(who) => Some(format!("processes of user {} are not let in", who.uid())),
                Err(error) => Some(format!("who comes can't be told: {error}")),
            };
            if let Some(reason) = refusal {
                tracing::debug!(reason, "a process of this host was turned away");
                say(&socket, &SameHost::Farewell { reason });
                continue;
            }
            let slot = state.connections.iter().position(Option::is_none).unwrap_or(state.connections.len());
            let event = EpollEvent::new(EpollFlags::EPOLLIN, slot as u64);
            if let Err(error) = self.epoll.add(socket.as_fd(), event) {
                tracing::warn!(%error, "a process of this host could not be let in");
                continue;
            }
            let process = socket.process();
            let connection =
                Connection { socket, process, due: now + KNOCK_TIMEOUT, guest: None, ending: false };
            match state.connections.get_mut(slot) {
                Some(place) => *place = Some(connection),
                None => state.connections.push(Some(connection)),
            }
        }
    }

    fn lets_in(&self, user: u32) -> bool {
        user == nix::unistd::geteuid().as_raw() || self.config.users.contains(&user)
    }

    /// Takes a connection's messages. Whoever says what is no message, or sends what nobody asked for, loses his connection.
    fn serve(&self, at: usize, state: &mut State, now: Instant, gone: &mut Vec<Hold>) {
        let State { sessions, connections, .. } = state;
        let Some(place) = connections.get_mut(at) else { return };
        let Some(connection) = place else { return };
        for _ in 0..MESSAGES {
            let mut bytes = [0; MAX_BYTES];
            let message = match connection.socket.receive(&mut bytes) {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(count, None)) => {
                    SameHost::decode(&bytes[..count]).map_err(|error| error.to_string())
                }
                Ok(Received::Message(_, Some(_))) => Err("a descriptor that nobody asked for".to_string()),
                // The peer has closed its end: it stopped copying before, or does not live any more.
                Ok(Received::End) => {
                    gone.extend(connection.guest.take().into_iter().flat_map(Guest::into_holds));
                    *place = None;
                    return;
                }
                Err(error) => Err(error.to_string()),
            };
            if let Err(reason) =
                message.and_then(|message| self.take(connection, sessions, message, now, gone))
            {
                tracing::warn!(reason, "a process of this host loses its connection");
                say(&connection.socket, &SameHost::Farewell { reason });
                connection.end(gone);
                // It is waited for as everybody who is made to leave; what it still says is not listened to.
                return;
            }
        }
    }

    fn take(
        &self,
        connection: &mut Connection,
        sessions: &HashMap<SessionId, Admitted>,
        message: SameHost,
        now: Instant,
        gone: &mut Vec<Hold>,
    ) -> Result<(), String> {
        let ending = connection.ending;
        match (message, &mut connection.guest) {
            (SameHost::Knock { version, session, ask, way }, None) => {
                if version != VERSION {
                    return Err(format!("it speaks version {version} and not {VERSION}"));
                }
                let Some(known) = sessions.get(&session).filter(|known| known.ask == ask) else {
                    return Err(
                        "no such session; the peer was restarted, or the control link has ended".to_string()
                    );
                };
                let guest = Guest::new(session, way, self.config.regions, known.answer)
                    .map_err(|error| format!("no gates: {error}"))?;
                let proof_address = guest.proof.as_ptr() as u64;
                let welcome =
                    SameHost::Welcome { answer: known.answer, gates: guest.gates.len(), proof_address };
                tracing::debug!(peer = %known.peer, ?way, "a process of this host is let in");
                send(&connection.socket, &welcome, guest.gates.file())?;
                connection.guest = Some(guest);
                Ok(())
            }
            (SameHost::Enter { request, .. }, Some(_)) if ending => {
                let why = NoEntry::admission(orbit_te_wire::Status::ShuttingDown);
                send(&connection.socket, &SameHost::Refused { request, why }, None)
            }
            (SameHost::Enter { request, region, generation, key }, Some(guest)) => {
                match self.enter(guest, request, (region, generation, key), now) {
                    Ok((entered, file)) => send(&connection.socket, &entered, file.as_ref().map(AsFd::as_fd)),
                    Err(why) => send(&connection.socket, &SameHost::Refused { request, why }, None),
                }
            }
            (SameHost::Left { gate }, Some(guest)) => match guest.holds.get_mut(gate as usize) {
                Some(Entry::Free) | None => Err("it left what it had not entered".to_string()),
                Some(entry) => {
                    if let Entry::Held(hold) = std::mem::take(entry) {
                        gone.push(hold);
                    }
                    Ok(())
                }
            },
            _ => Err("a message out of turn".to_string()),
        }
    }

    /// Lets a guest in to a region: what to answer, and the file beside it.
    fn enter(
        &self,
        guest: &mut Guest,
        request: u32,
        (id, generation, key): (RegionId, Generation, u64),
        now: Instant,
    ) -> Result<(SameHost, Option<OwnedFd>), NoEntry> {
        let free = guest.holds.iter().position(|entry| matches!(entry, Entry::Free)).ok_or(NoEntry::Full)?;
        let asked = Request { region: id, generation, key, offset: 0, length: 1, access: Access::empty() };
        let holder = self.grants.of(guest.session);
        let lease = admit(&self.regions.load(), &holder, &asked, now)
            .map_err(|error| NoEntry::admission(error.status()))?;
        if let Some(why) = no_entry(lease.region(), guest.way, self.config.share_parts) {
            return Err(why);
        }
        let (access, expires) = match lease.grant() {
            Some(grant) => (grant.access(), grant.expires_in(now)),
            None => (lease.region().access(), None),
        };
        if guest.way == Way::Mapping && !self.config.share_parts && !may_map(access) {
            return Err(NoEntry::admission(orbit_te_wire::Status::AccessDenied));
        }
        let region = lease.region().clone();
        let (begin, file) = match guest.way {
            Way::Kernel => (address(&region), None),
            Way::Mapping => {
                let file =
                    file_for(&region, access).map_err(|e| NoEntry::System(e.raw_os_error().unwrap_or(0)))?;
                (address(&region) - region.backing().base().as_ptr() as u64, Some(file))
            }
        };
        // What ended just now is told as it will be told from now on.
        let hold = Hold::new(lease, generation).ok_or_else(|| {
            let status = match region.is_retired() {
                true => orbit_te_wire::Status::UnknownRegion,
                false => orbit_te_wire::Status::StaleGeneration,
            };
            NoEntry::admission(status)
        })?;
        let gate = guest.gates.get(free as u32).ok_or(NoEntry::Full)?;
        gate.reset();
        guest.holds[free] = Entry::Held(hold);
        let entered = SameHost::Entered {
            request,
            gate: free as u32,
            begin,
            length: region.len(),
            access: access.bits(),
            // Zero stands for no end.
            expires_ns: expires.map_or(0, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX).max(1)),
        };
        Ok((entered, file))
    }

    /// Ends what is late, and what waited for a process that is gone or has left; whether there was any.
    fn look_after(&self, state: &mut State, now: Instant, gone: &mut Vec<Hold>) -> bool {
        let mut any = false;
        for place in &mut state.connections {
            let Some(connection) = place else { continue };
            let over = match (&mut connection.guest, connection.ending) {
                (None, _) => connection.ending || connection.due <= now,
                (Some(guest), true) => {
                    guest.recall(|_| true, gone);
                    let dead = connection.process.as_ref().is_some_and(|process| !is_alive(process));
                    dead || !guest.holds.iter().any(|entry| matches!(entry, Entry::Held(_)))
                }
                (Some(_), false) => false,
            };
            if over {
                gone.extend(connection.guest.take().into_iter().flat_map(Guest::into_holds));
                *place = None;
                any = true;
            }
        }
        any
    }
}

impl Recall for Door {
    fn recall(&self, what: Recalled) {
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        for connection in state.connections.iter_mut().flatten() {
            if let Some(guest) = &mut connection.guest {
                guest.recall(|hold| what.ends(hold), &mut gone);
            }
        }
        drop(state);
        drop(gone);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        for connection in self.state.get_mut().connections.iter_mut().flatten() {
            let Some(guest) = &mut connection.guest else { continue };
            let mut gone = Vec::new();
            guest.recall(|_| true, &mut gone);
            let kept =
                std::mem::take(&mut guest.holds).into_iter().filter(|entry| matches!(entry, Entry::Held(_)));
            // A peer is inside, and there will be nobody to hear that it has left.
            let count = kept.map(std::mem::forget).count();
            if count > 0 {
                tracing::error!(count, "regions are kept for ever: a process of this host is still copying");
            }
        }
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("listening", &self.listening).finish_non_exhaustive()
    }
}

impl Connection {
    /// Makes the other side leave.
    fn end(&mut self, gone: &mut Vec<Hold>) {
        self.ending = true;
        if let Some(guest) = &mut self.guest {
            guest.recall(|_| true, gone);
        }
        self.socket.finish();
    }
}

impl Guest {
    fn new(session: SessionId, way: Way, regions: u32, answer: u128) -> io::Result<Guest> {
        let gates = Gates::new(regions)?;
        let holds = (0..regions).map(|_| Entry::Free).collect();
        Ok(Guest { session, way, gates, holds, proof: Box::new(answer.to_le_bytes()) })
    }

    /// Closes the gates of what ends. Where nobody is inside, it is not held any more; otherwise the guest says when it has left, which
    /// it does as soon as it finds the gate closed.
    fn recall(&mut self, ends: impl Fn(&Hold) -> bool, gone: &mut Vec<Hold>) {
        for (gate, entry) in self.holds.iter_mut().enumerate() {
            if !matches!(entry, Entry::Held(hold) if ends(hold)) {
                continue;
            }
            if self.gates.get(gate as u32).is_some_and(|gate| gate.close()) {
                if let Entry::Held(hold) = std::mem::replace(entry, Entry::Closed) {
                    gone.push(hold);
                }
            }
        }
    }

    fn into_holds(self) -> impl Iterator<Item = Hold> {
        self.holds.into_iter().filter_map(|entry| match entry {
            Entry::Held(hold) => Some(hold),
            Entry::Free | Entry::Closed => None,
        })
    }
}

fn address(region: &Region) -> u64 {
    region.as_ptr().as_ptr() as u64
}

/// The file of a region's memory, for a peer with these rights: one through which nothing can be written, where they do not include it.
fn file_for(region: &Region, access: Access) -> io::Result<OwnedFd> {
    let file = region.backing().file().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    if access.contains(Access::REMOTE_WRITE) {
        return file.try_clone_to_owned();
    }
    Ok(std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into())
}

fn send(socket: &Socket, message: &SameHost, fd: Option<std::os::fd::BorrowedFd<'_>>) -> Result<(), String> {
    let bytes = message.encode().map_err(|error| error.to_string())?;
    socket.send(&bytes, fd).map_err(|error| format!("an answer to it can't be sent: {error}"))
}

/// Says something to somebody who may not listen any more.
fn say(socket: &Socket, message: &SameHost) {
    let _ = send(socket, message, None);
}
