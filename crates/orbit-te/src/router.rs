//! A worker's transports as one: which of them an op takes, and what happens when that fails. Rule: an op is with one transport at a time;
//! it is tried again only when the transport that had it has said that neither side touches memory for it any more.
//!
//! The last transport is the base: it reaches every peer, carries notifications, and tells of lanes and signs of life. The others are
//! joined to a peer's link when the peer has said where they meet. All of them know a peer's region by the same key
//! ([`RemoteKey::of_host`]).

#![allow(unsafe_code)]

mod carry;
mod choose;
mod flight;
mod leg;
mod letters;

use crate::dead::DeadTransport;
use crate::features::is_of_one_host;
use crate::route::{Caps, Policy, Prior, Rates, Reason, ReasonCounts, Refusal, RouteId, Ruleset};
use choose::Recent;
use flight::Flights;
use leg::{Leg, Legs};
use letters::Outgoing;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use orbit_te_memory::{KindSet, RemoteKey};
use orbit_te_transport::{
    Arm, Capabilities, Completion, Event, LinkId, LinkLanes, Op, OpErrorCode, Progress, Signs, Token,
    Transport, TransportError,
};
use orbit_te_wire::PeerId;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

pub use flight::Attempt;
pub(crate) use leg::Reach;

/// A transport that has nothing under way is looked at so often while another keeps the worker awake.
const LOOK: Duration = Duration::from_micros(200);
/// Completions taken from one transport at a time.
const BUDGET: usize = 256;

/// The end of one op.
#[derive(Debug)]
pub(crate) struct Done {
    /// Under the token by which the op was given; a notification's under its own.
    pub(crate) completion: Completion,
    /// The route that carried it, or would have; none for notifications.
    pub(crate) route: Option<RouteId>,
    /// Why no route carried it.
    pub(crate) refusal: Option<Box<Refusal>>,
    /// Why its route's link went down, where it failed by that.
    pub(crate) why: Option<Arc<str>>,
    /// The tries that failed before.
    pub(crate) attempts: Vec<Attempt>,
}

/// What a poll found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) done: Vec<Done>,
    /// Of the base.
    pub(crate) events: Vec<Event>,
    /// What transports have to say to their counterparts.
    pub(crate) letters: Vec<Outgoing>,
}

/// What a joined route has come to: up, or why not.
pub(crate) type Joined = oneshot::Sender<Result<(), Reason>>;

impl Found {
    /// Buffers with room for so many ends.
    pub(crate) fn with_capacity(ends: usize) -> Found {
        Found { done: Vec::with_capacity(ends), events: Vec::new(), letters: Vec::new() }
    }

    pub(crate) fn clear(&mut self) {
        self.done.clear();
        self.events.clear();
        self.letters.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.events.is_empty() && self.letters.is_empty()
    }
}

struct Route {
    id: RouteId,
    caps: Caps,
    /// Whether it takes memory of ours that may vanish.
    vanishing: bool,
    transport: Box<dyn Transport>,
    /// Whether bytes are moved by the calls to the transport, and not meanwhile.
    is_own_work: bool,
    /// Whether it carries notifications.
    notifies: bool,
    under_way: usize,
    looked: Instant,
    /// Whom to tell when a link of this one is up, or is not to be had.
    joining: Vec<(LinkId, Joined)>,
}

/// A notification that a joined route has.
struct NoticeFlight {
    token: Token,
    /// The peer's link.
    link: LinkId,
    /// The route's place.
    at: usize,
    /// It was taken back, since the route is down: it is to go another way.
    taken_back: bool,
}

impl Route {
    fn new(transport: Box<dyn Transport>, now: Instant) -> Route {
        let can = transport.capabilities();
        Route {
            id: RouteId::named(can.name).unwrap_or(RouteId::TCP),
            caps: Caps::of(&can, KindSet::HOST),
            vanishing: can.vanishing,
            is_own_work: can.moves_by_calls,
            notifies: can.notifications,
            transport,
            under_way: 0,
            looked: now,
            joining: Vec::new(),
        }
    }
}

impl Route {
    /// What it can do with our memory, which may vanish or not.
    fn caps_for(&self, vanishing: bool) -> Caps {
        match vanishing && !self.vanishing {
            true => Caps { local: KindSet::default(), ..self.caps },
            false => self.caps,
        }
    }
}

/// The transports of one worker.
pub(crate) struct Router {
    /// In the order of preference; the base last.
    routes: Vec<Route>,
    /// By the slot of the base's link.
    peers: Vec<Option<Legs>>,
    flights: Flights,
    /// What waits to be tried again.
    again: VecDeque<Token>,
    done: VecDeque<Done>,
    /// None where one transport is alone, whose own descriptor serves.
    epoll: Option<Epoll>,
    everybody: Ruleset,
    /// Of a route to somebody of whom nothing is known.
    unmeasured: Rates,
    policy: Arc<Policy>,
    counts: Arc<ReasonCounts>,
    /// When an op last ended whose bytes were moved by calls, on whatever route: one thread makes them, so the next one began after it.
    own_work_end: Instant,
    /// The last choice, for those that come after it and are alike.
    recent: Option<Recent>,
    /// Kept for their memory.
    ops: Vec<Op>,
    progress: Progress,
    /// Of the base, until they are asked for.
    events: Vec<Event>,
    /// Of all, likewise.
    letters: Vec<Outgoing>,
    /// Notifications that joined routes have; one to each peer at most.
    notices: Vec<NoticeFlight>,
}

impl Router {
    /// A router over these, in the order of preference; the last one reaches everybody.
    ///
    /// # Errors
    /// When the system gives no event queue.
    pub(crate) fn new(
        mut transports: Vec<Box<dyn Transport>>,
        policy: Arc<Policy>,
        counts: Arc<ReasonCounts>,
        now: Instant,
    ) -> io::Result<Router> {
        let epoll = match transports.len() {
            0 | 1 => None,
            _ => Some(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?),
        };
        let mut most_ops = 0;
        let mut routes = Vec::with_capacity(transports.len());
        for mut transport in transports.drain(..) {
            if let (Some(epoll), Arm::Sleep { fd: Some(fd), .. }) = (&epoll, transport.arm(now)) {
                // SAFETY: the transport keeps its descriptor open while it lives, and it has just given it; it is borrowed for this call
                // alone, and a closed descriptor leaves the event queue by itself.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            }
            most_ops = transport.capabilities().max_ops;
            routes.push(Route::new(transport, now));
        }
        Ok(Router {
            routes,
            peers: Vec::new(),
            flights: Flights::new(most_ops),
            again: VecDeque::new(),
            done: VecDeque::with_capacity(BUDGET),
            epoll,
            everybody: policy.ruleset("", PeerId(0), false),
            unmeasured: Rates::new(Prior::of(RouteId::TCP, false)),
            policy,
            counts,
            own_work_end: now,
            recent: None,
            ops: Vec::with_capacity(64),
            progress: Progress::with_capacity(BUDGET),
            events: Vec::new(),
            letters: Vec::new(),
            notices: Vec::new(),
        })
    }

    /// One that takes nothing.
    #[cfg(feature = "simulation")]
    pub(crate) fn dead() -> Router {
        Router {
            routes: vec![Route::new(Box::new(DeadTransport), crate::clock::now())],
            peers: Vec::new(),
            flights: Flights::new(0),
            again: VecDeque::new(),
            done: VecDeque::new(),
            epoll: None,
            everybody: Policy::default().ruleset("", PeerId(0), false),
            unmeasured: Rates::new(Prior::of(RouteId::TCP, false)),
            policy: Arc::default(),
            counts: Arc::default(),
            own_work_end: crate::clock::now(),
            recent: None,
            ops: Vec::new(),
            progress: Progress::default(),
            events: Vec::new(),
            letters: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// One that takes nothing, in the place of one that has failed. Nothing of the old one is dropped.
    pub(crate) fn fail(&mut self) {
        for route in &mut self.routes {
            std::mem::forget(std::mem::replace(&mut route.transport, Box::new(DeadTransport)));
            route.joining.clear();
            route.under_way = 0;
        }
        self.recent = None;
        self.again.clear();
        self.done.clear();
        self.notices.clear();
        self.letters.clear();
        self.flights = Flights::new(0);
        self.peers.clear();
    }

    fn base(&mut self) -> &mut Route {
        let last = self.routes.len() - 1;
        &mut self.routes[last]
    }

    fn peer(&mut self, link: LinkId) -> Option<&mut Legs> {
        self.peers.get_mut(link.slot as usize)?.as_mut().filter(|legs| legs.link == link)
    }

    /// What the base can do, and what all of them can: what fits one fits each. Lists that fit those which take lists; the planner has
    /// another route for them where one takes none.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let all = || self.routes.iter().map(|route| route.transport.capabilities());
        let lists = || all().filter(|can| can.max_pieces > 0);
        let base = self.routes.last().map(|base| base.transport.capabilities());
        let base = base.unwrap_or_else(|| DeadTransport.capabilities());
        Capabilities {
            max_op_bytes: all().map(|can| can.max_op_bytes).min().unwrap_or(0),
            max_pieces: lists().map(|can| can.max_pieces).min().unwrap_or(0),
            max_list_bytes: lists().map(|can| can.max_list_bytes).min().unwrap_or(0),
            ..base
        }
    }

    /// Begins to make the base's link to a peer, which is the peer's link from then on.
    pub(crate) fn connect(
        &mut self,
        peer: PeerId,
        address: &[u8],
        now: Instant,
    ) -> Result<LinkId, TransportError> {
        let link = self.base().transport.connect(peer, address, now)?;
        let slot = link.slot as usize;
        if slot >= self.peers.len() {
            self.peers.resize_with(slot + 1, || None);
        }
        let mut legs = Legs::new(link, self.routes.len());
        // Ops may be submitted to it before it is up, and wait for it: to whom nothing else leads, it is as good as up.
        let mut base = Leg::new(self.base().id, link, false, self.policy.settings(), now);
        base.down = None;
        if let Some(place) = legs.legs.last_mut() {
            *place = Some(base);
        }
        self.peers[slot] = Some(legs);
        Ok(link)
    }

    /// Begins to reach a peer by another transport as well; `told` hears when it is up, or why it is not.
    pub(crate) fn join(
        &mut self,
        link: LinkId,
        peer: PeerId,
        route: RouteId,
        address: &[u8],
        told: Joined,
        now: Instant,
    ) {
        self.recent = None;
        let settings = *self.policy.settings();
        let Some(at) = self.routes.iter().position(|known| known.id == route) else {
            let _ = told.send(Err(Reason::Disabled));
            return;
        };
        if self.peer(link).is_none() {
            let _ = told.send(Err(Reason::LinkDown));
            return;
        }
        match self.routes[at].transport.connect(peer, address, now) {
            Ok(own) => {
                self.routes[at].joining.push((own, told));
                // It may have something to say at once.
                self.routes[at].looked = now.checked_sub(LOOK).unwrap_or(now);
                if let Some(place) = self.peer(link).and_then(|legs| legs.legs.get_mut(at)) {
                    *place = Some(Leg::new(route, own, is_of_one_host(route), &settings, now));
                }
            }
            Err(error) => {
                tracing::warn!(%error, route = route.name(), "a peer can't be joined");
                let _ = told.send(Err(leg::reason(&error)));
            }
        }
    }

    /// Keeps what is known of a peer's region.
    pub(crate) fn learn(&mut self, link: LinkId, key: &RemoteKey, reach: Arc<Reach>) {
        self.recent = None;
        if let Some(legs) = self.peer(link) {
            legs.learn(key, reach);
        }
    }

    /// Whether ends wait to be asked for.
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// How to wait for more; the next poll looks at every transport.
    pub(crate) fn arm(&mut self, now: Instant) -> Arm {
        let arm = self.due(now);
        if let Arm::Sleep { .. } = arm {
            for route in &mut self.routes {
                route.looked = now.checked_sub(LOOK).unwrap_or(now);
            }
        }
        arm
    }

    /// The same for a caller that does not sleep: what the next poll need not look at, it does not.
    pub(crate) fn due(&mut self, now: Instant) -> Arm {
        if !self.done.is_empty() || !self.letters.is_empty() {
            return Arm::Ready;
        }
        let mut earliest = None;
        let mut own = None;
        for route in &mut self.routes {
            match route.transport.arm(now) {
                Arm::Ready => {
                    // Not to be passed over by the next poll.
                    route.looked = now.checked_sub(LOOK).unwrap_or(now);
                    return Arm::Ready;
                }
                Arm::Sleep { fd, until } => {
                    earliest = [earliest, until].into_iter().flatten().min();
                    own = fd;
                }
            }
        }
        let fd = self.epoll.as_ref().map_or(own, |epoll| Some(epoll.0.as_raw_fd()));
        Arm::Sleep { fd, until: earliest }
    }

    /// As [`Transport::lanes`], of the base.
    pub(crate) fn lanes(&self, link: LinkId, now: Instant) -> Option<LinkLanes> {
        self.routes.last()?.transport.lanes(link, now)
    }

    /// As [`Transport::signs`], of all routes to the peer together.
    pub(crate) fn signs(&mut self, link: LinkId, now: Instant) -> Signs {
        let mut signs = Signs::default();
        for at in 0..self.routes.len() {
            let own = self.peer(link).and_then(|legs| legs.legs[at].as_ref()).map(|leg| leg.link);
            if let Some(own) = own {
                signs.add(self.routes[at].transport.signs(own, now));
            }
        }
        signs
    }

    /// Closes all links to a peer, as [`Transport::disconnect`].
    pub(crate) fn disconnect(&mut self, link: LinkId, now: Instant) {
        self.recent = None;
        let base = self.routes.len() - 1;
        let legs =
            self.peers.get_mut(link.slot as usize).and_then(|place| place.take_if(|legs| legs.link == link));
        for (at, leg) in legs.into_iter().flat_map(|legs| legs.legs).enumerate() {
            if let Some(leg) = leg.filter(|_| at != base) {
                self.routes[at].joining.retain(|(waiting, _)| *waiting != leg.link);
                self.routes[at].transport.disconnect(leg.link, now);
            }
        }
        self.base().transport.disconnect(link, now);
        self.finish_waiting(OpErrorCode::NoLink, |flight| flight.op.link == link);
    }

    /// Closes everything, as [`Transport::close`].
    pub(crate) fn close(&mut self, now: Instant) {
        self.routes.iter_mut().for_each(|route| route.transport.close(now));
        self.finish_waiting(OpErrorCode::Closed, |_| true);
        self.again.clear();
    }

    /// Whether nothing is under way, and no completion waits.
    pub(crate) fn is_drained(&self) -> bool {
        self.done.is_empty()
            && self.flights.is_empty()
            && self.routes.iter().all(|route| route.transport.is_drained())
    }
}
