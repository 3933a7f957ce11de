//! A worker's transports as one: which of them an op takes, and what happens when that fails. Rule: an op is with one transport at a time;
//! it is tried again only when the transport that had it has said that neither side touches memory for it any more.
//!
//! The last transport is the base: it reaches every peer, carries notifications, and tells of lanes and signs of life. The others are
//! joined to a peer's link when the peer has said where they meet. All of them know a peer's region by the same key
//! ([`RemoteKey::of_host`]).

#![allow(unsafe_code)]

mod flight;
mod leg;

use crate::dead::DeadTransport;
use crate::route::{
    Caps, MAX_ROUTES, Plan, Policy, Prior, Question, Rates, Reason, ReasonCounts, Refusal, RouteId, RouteSet,
    RouteState, Ruleset, Why, plan,
};
use flight::{Flight, Flights};
use leg::{Known, Leg, Legs};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use orbit_te_memory::{KindSet, MemoryKind, RemoteKey};
use orbit_te_transport::{
    Arm, Capabilities, Completion, ErrorClass, Event, LinkId, LinkLanes, Notice, Op, OpError, OpErrorCode,
    OpKind, Priority, Progress, Signs, Token, Transport, TransportError,
};
use orbit_te_wire::PeerId;
use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;
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
    /// The tries that failed before.
    pub(crate) attempts: Vec<Attempt>,
}

/// What a poll found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) done: Vec<Done>,
    /// Of the base.
    pub(crate) events: Vec<Event>,
}

/// What a joined route has come to: up, or why not.
pub(crate) type Joined = oneshot::Sender<Result<(), Reason>>;

impl Found {
    /// Buffers with room for so many ends.
    pub(crate) fn with_capacity(ends: usize) -> Found {
        Found { done: Vec::with_capacity(ends), events: Vec::new() }
    }

    pub(crate) fn clear(&mut self) {
        self.done.clear();
        self.events.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.events.is_empty()
    }
}

struct Route {
    id: RouteId,
    caps: Caps,
    transport: Box<dyn Transport>,
    under_way: usize,
    looked: Instant,
    /// Whom to tell when a link of this one is up, or is not to be had.
    joining: Vec<(LinkId, Joined)>,
}

impl Route {
    fn new(transport: Box<dyn Transport>, now: Instant) -> Route {
        let can = transport.capabilities();
        Route {
            id: RouteId::named(can.name).unwrap_or(RouteId::TCP),
            caps: Caps::of(&can, KindSet::HOST),
            transport,
            under_way: 0,
            looked: now,
            joining: Vec::new(),
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
    /// Of a route that does not lead to the peer in question.
    nothing: Rates,
    policy: Arc<Policy>,
    counts: Arc<ReasonCounts>,
    /// Kept for their memory.
    ops: Vec<Op>,
    progress: Progress,
}

/// What an op has that decides about its route.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    link: LinkId,
    key: RemoteKey,
    kind: OpKind,
    bytes: u64,
    pieces: u32,
    verify: bool,
    priority: Priority,
    demand: Option<RouteId>,
}

impl Kind {
    fn of(op: &Op, demand: Option<RouteId>) -> Kind {
        Kind {
            link: op.link,
            key: op.remote.key,
            kind: op.kind,
            bytes: op.local.length,
            pieces: op.pieces.map_or(1, |pieces| pieces.len() as u32),
            verify: op.verify.is_on(),
            priority: op.priority,
            demand,
        }
    }
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
            nothing: Rates::new(Prior::of(RouteId::TCP, false)),
            policy,
            counts,
            ops: Vec::with_capacity(64),
            progress: Progress::with_capacity(BUDGET),
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
            nothing: Rates::new(Prior::of(RouteId::TCP, false)),
            policy: Arc::default(),
            counts: Arc::default(),
            ops: Vec::new(),
            progress: Progress::default(),
        }
    }

    /// One that takes nothing, in the place of one that has failed. Nothing of the old one is dropped.
    pub(crate) fn fail(&mut self) {
        for route in &mut self.routes {
            std::mem::forget(std::mem::replace(&mut route.transport, Box::new(DeadTransport)));
            route.joining.clear();
            route.under_way = 0;
        }
        self.again.clear();
        self.done.clear();
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

    /// What the base can do, and what all of them can: what fits one fits each.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let all = || self.routes.iter().map(|route| route.transport.capabilities());
        let base = self.routes.last().map(|base| base.transport.capabilities());
        let base = base.unwrap_or_else(|| DeadTransport.capabilities());
        Capabilities {
            max_op_bytes: all().map(|can| can.max_op_bytes).min().unwrap_or(0),
            max_pieces: all().map(|can| can.max_pieces).min().unwrap_or(0),
            max_list_bytes: all().map(|can| can.max_list_bytes).min().unwrap_or(0),
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
        let base = Leg { down: None, ..Leg::new(self.base().id, link, false, self.policy.settings(), now) };
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
                if let Some(place) = self.peer(link).and_then(|legs| legs.legs.get_mut(at)) {
                    *place = Some(Leg::new(route, own, true, &settings, now));
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
        if let Some(legs) = self.peer(link) {
            legs.learn(key, reach);
        }
    }

    /// What would be done with such an op now.
    pub(crate) fn explain(&mut self, op: &Op, demand: Option<RouteId>, now: Instant) -> Option<Plan> {
        self.peer(op.link)?;
        Some(self.plan(&Kind::of(op, demand), (0, RouteSet::NONE), now))
    }

    fn plan(&mut self, op: &Kind, (attempt, failed): (u32, RouteSet), now: Instant) -> Plan {
        let Router { routes, peers, everybody, nothing, .. } = self;
        let nothing = &*nothing;
        let peer = peers.get_mut(op.link.slot as usize).and_then(Option::as_mut);
        let (known, legs): (Option<&mut Known>, &[Option<Leg>]) =
            match peer.filter(|legs| legs.link == op.link) {
                Some(legs) => {
                    let (known, legs) = legs.region(&op.key);
                    (known, legs)
                }
                None => (None, &[]),
            };
        let reach = known.as_ref().map(|known| &*known.reach);
        let question = Question {
            kind: op.kind,
            bytes: op.bytes,
            pieces: op.pieces,
            verify: op.verify,
            priority: op.priority,
            local: MemoryKind::Host,
            remote: reach.map_or(MemoryKind::Host, |reach| reach.kind),
            demand: op.demand,
            incumbent: known.as_ref().and_then(|known| known.choices.last(op.kind, op.bytes)),
            attempt,
            failed,
            now,
        };
        let base = routes.len() - 1;
        let empty = RouteState {
            id: RouteId::TCP,
            usable: Err(Reason::NotBuilt),
            caps: routes[base].caps,
            rates: nothing,
            resting_until: None,
            load_bytes: 0,
        };
        let mut states = [empty; MAX_ROUTES];
        for (at, route) in routes.iter().enumerate().take(MAX_ROUTES) {
            let leg = legs.get(at).and_then(Option::as_ref);
            let obstacle = match reach {
                Some(reach) => reach.obstacles[route.id.index()],
                // What nobody has described is reached as everything is.
                None if at == base => None,
                None => Some(Reason::NotOffered),
            };
            let usable = match (obstacle, leg) {
                (Some(obstacle), _) => Err(obstacle),
                // The base takes ops to links that are gone as well, and says what is wrong with them.
                (None, None) if at == base => Ok(()),
                (None, None) => Err(Reason::NotOffered),
                (None, Some(leg)) => leg.down.map_or(Ok(()), Err),
            };
            states[at] = RouteState {
                id: route.id,
                usable,
                caps: route.caps,
                rates: leg.map_or(nothing, |leg| &leg.rates),
                resting_until: leg.and_then(|leg| leg.health.resting_until(now)),
                load_bytes: leg.map_or(0, |leg| leg.load_bytes),
            };
        }
        let count = routes.len().min(MAX_ROUTES);
        let rules = reach.map_or(&*everybody, |reach| &reach.rules);
        plan(&question, &states[..count], rules)
    }

    /// Chooses a route for an op; its place.
    fn choose(&mut self, op: &Kind, tried: (u32, RouteSet), now: Instant) -> Result<usize, Box<Refusal>> {
        // Alone, the base has nobody to stand back for.
        if self.routes.len() == 1 && op.demand.is_none() && tried.0 == 0 {
            return Ok(0);
        }
        let plan = self.plan(op, tried, now);
        let route = plan.route.map_err(Box::new)?;
        let at = self.routes.iter().position(|known| known.id == route).unwrap_or(self.routes.len() - 1);
        let counts = self.counts.clone();
        if let Some(legs) = self.peer(op.link) {
            let (known, legs) = legs.region(&op.key);
            if let Some(change) = known.and_then(|known| known.choices.note(op.kind, op.bytes, &plan)) {
                let from = change.from.map(RouteId::name);
                let reason = change.reason.map(Reason::name);
                tracing::info!(link = ?op.link, ?from, to = change.to.name(), ?reason, why = plan.why.name(), bytes = op.bytes, "route changed");
                change.reason.inspect(|reason| counts.add(*reason));
            }
            if let (Why::Probe, Some(leg)) = (plan.why, legs.get_mut(at).and_then(Option::as_mut)) {
                leg.rates.note_probe(op.kind, op.bytes, now);
            }
        }
        for (_, reason) in plan.others.iter() {
            self.counts.add(reason);
        }
        Ok(at)
    }

    /// Takes ops from the front, and says how many, as [`Transport::submit`].
    ///
    /// # Safety
    /// As [`Transport::submit`].
    pub(crate) unsafe fn submit(&mut self, ops: &[Op], demand: Option<RouteId>, now: Instant) -> usize {
        let mut taken = 0;
        let mut last: Option<(Kind, usize)> = None;
        while taken < ops.len() {
            self.ops.clear();
            let mut run: Option<usize> = None;
            let mut refused = false;
            for op in &ops[taken..] {
                let kind = Kind::of(op, demand);
                let at = match last {
                    Some((same, at)) if same == kind => Ok(at),
                    _ => self.choose(&kind, (0, RouteSet::NONE), now),
                };
                let at = match at {
                    Ok(at) => at,
                    Err(refusal) if run.is_none() => {
                        self.refuse(op.token, refusal);
                        taken += 1;
                        refused = true;
                        break;
                    }
                    Err(_) => break,
                };
                last = Some((kind, at));
                if run.is_some_and(|run| run != at) {
                    break;
                }
                let flight = Flight {
                    op: *op,
                    route: at,
                    demand,
                    failed: RouteSet::NONE,
                    began: now,
                    touched: false,
                    given_up: false,
                    waits: false,
                    attempts: Vec::new(),
                };
                if !self.flights.insert(flight) {
                    break;
                }
                run = Some(at);
                let op = self.launched(op, at);
                self.ops.push(op);
            }
            if refused {
                continue;
            }
            let Some(at) = run else { break };
            let count = self.ops.len();
            // SAFETY: the caller's promise, under the caller's tokens.
            let took = unsafe { self.routes[at].transport.submit(&self.ops, now) };
            for place in took..count {
                let token = self.ops[place].token;
                self.landed(token, at);
                self.flights.remove(token);
            }
            self.routes[at].under_way += took;
            taken += took;
            if took < count {
                break;
            }
        }
        taken
    }

    /// An op as the transport of a route gets it; counted as under way there.
    fn launched(&mut self, op: &Op, at: usize) -> Op {
        let leg = self.peer(op.link).and_then(|legs| legs.legs.get_mut(at)).and_then(Option::as_mut);
        let link = match leg {
            Some(leg) => {
                leg.load_bytes += op.local.length;
                leg.link
            }
            None => op.link,
        };
        Op { link, ..*op }
    }

    /// An op is not under way on a route any more.
    fn landed(&mut self, token: Token, at: usize) {
        let Some(flight) = self.flights.get_mut(token) else { return };
        let (link, bytes) = (flight.op.link, flight.op.local.length);
        if let Some(leg) = self.peer(link).and_then(|legs| legs.legs.get_mut(at)).and_then(Option::as_mut) {
            leg.load_bytes = leg.load_bytes.saturating_sub(bytes);
        }
    }

    fn refuse(&mut self, token: Token, refusal: Box<Refusal>) {
        self.counts.add(refusal.reason());
        let result = Err(OpError::new(OpErrorCode::NoRoute));
        let completion = Completion { token, result, bytes: 0, touched: false };
        let route = refusal.demanded;
        self.done.push_back(Done { completion, route, refusal: Some(refusal), attempts: Vec::new() });
    }

    /// Takes a notification, as [`Transport::notify`].
    ///
    /// # Safety
    /// As [`Transport::notify`].
    pub(crate) unsafe fn notify(&mut self, notice: &Notice, now: Instant) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.base().transport.notify(notice, now) }
    }

    /// Gives up the op or ops of these tokens, and notifications likewise, as [`Transport::cancel`].
    pub(crate) fn cancel(&mut self, tokens: RangeInclusive<Token>, now: Instant) {
        for flight in self.flights.iter_mut().filter(|flight| tokens.contains(&flight.op.token)) {
            flight.given_up = true;
        }
        self.finish_waiting(OpErrorCode::Cancelled, |flight| flight.given_up);
        for route in &mut self.routes {
            route.transport.cancel(tokens.clone(), now);
        }
    }

    /// Ends what waits to be tried again and satisfies a condition.
    fn finish_waiting(&mut self, code: OpErrorCode, which: impl Fn(&Flight) -> bool) {
        let waiting = self.flights.iter_mut().filter(|flight| flight.waits && which(flight));
        let tokens: Vec<Token> = waiting.map(|flight| flight.op.token).collect();
        for token in tokens {
            self.finish(token, Err(OpError::new(code)), 0, false);
        }
    }

    /// Ends an op.
    fn finish(&mut self, token: Token, result: Result<(), OpError>, bytes: u64, touched: bool) {
        let Some(flight) = self.flights.remove(token) else { return };
        let touched = touched || flight.touched;
        let completion = Completion { token: flight.op.token, result, bytes, touched };
        let route = self.routes.get(flight.route).map(|route| route.id);
        self.done.push_back(Done { completion, route, refusal: None, attempts: flight.attempts });
    }

    /// Makes progress; whether anything happened.
    pub(crate) fn poll(&mut self, now: Instant, budget: usize, found: &mut Found) -> bool {
        let mut any = false;
        let base = self.routes.len() - 1;
        for at in 0..self.routes.len() {
            let route = &mut self.routes[at];
            let alone = base == 0;
            if !alone && route.under_way == 0 && now.saturating_duration_since(route.looked) < LOOK {
                continue;
            }
            route.looked = now;
            let mut progress = std::mem::take(&mut self.progress);
            progress.clear();
            any |= route.transport.poll(now, BUDGET, &mut progress);
            for completion in progress.completions.drain(..) {
                self.completed(at, completion, now);
            }
            for event in progress.events.drain(..) {
                self.happened(at, &event, now);
                if at == base {
                    found.events.push(event);
                }
            }
            self.progress = progress;
        }
        while let Some(token) = self.again.pop_front() {
            any = true;
            if !self.try_again(token, now) {
                break;
            }
        }
        for _ in 0..budget {
            let Some(done) = self.done.pop_front() else { break };
            found.done.push(done);
            any = true;
        }
        any
    }

    fn completed(&mut self, at: usize, completion: Completion, now: Instant) {
        let token = completion.token;
        if crate::announcer::is_notification(token) {
            return self.done.push_back(Done {
                completion,
                route: None,
                refusal: None,
                attempts: Vec::new(),
            });
        }
        self.routes[at].under_way = self.routes[at].under_way.saturating_sub(1);
        self.landed(token, at);
        let Some(flight) = self.flights.get_mut(token) else {
            debug_assert!(false, "a completion for no op");
            return;
        };
        let (kind, began) = (Kind::of(&flight.op, flight.demand), flight.began);
        let leg = self.peers.get_mut(kind.link.slot as usize).and_then(Option::as_mut);
        let leg = leg.filter(|legs| legs.link == kind.link).and_then(|legs| legs.legs.get_mut(at));
        let leg = leg.and_then(Option::as_mut);
        match completion.result {
            Ok(()) => {
                if let Some(leg) = leg {
                    // What came before it on this leg was served first.
                    let service = now.saturating_duration_since(began.max(leg.last_end));
                    leg.rates.observe(kind.kind, kind.bytes, kind.pieces, service, now);
                    leg.health.succeeded(now);
                    leg.last_end = now;
                }
                self.finish(token, Ok(()), completion.bytes, completion.touched);
            }
            Err(error) => {
                let may_help = blames_route(error);
                if let Some(leg) = leg {
                    leg.last_end = now;
                    if may_help {
                        leg.health.failed(now, Reason::LinkDown);
                    }
                }
                let attempts = self.policy.settings().attempts;
                let used = flight.attempts.len() as u32 + 1;
                if !may_help || flight.given_up || used >= attempts {
                    return self.finish(token, completion.result, completion.bytes, completion.touched);
                }
                let id = self.routes[at].id;
                flight.failed.insert(id);
                flight.touched |= completion.touched;
                flight.waits = true;
                flight.attempts.push(Attempt {
                    request: 0,
                    route: id,
                    reason: Reason::LinkDown,
                    error,
                    bytes: completion.bytes,
                    took: now.saturating_duration_since(began),
                });
                self.again.push_back(token);
            }
        }
    }

    /// Tries an op again, on the route that is best for it now; false when that is full.
    fn try_again(&mut self, token: Token, now: Instant) -> bool {
        let Some(flight) = self.flights.get_mut(token).filter(|flight| flight.waits) else { return true };
        let (op, kind) = (flight.op, Kind::of(&flight.op, flight.demand));
        let tried = (flight.attempts.len() as u32, flight.failed);
        let last = flight.attempts.last().map(|attempt| (attempt.error, attempt.bytes));
        let at = match self.choose(&kind, tried, now) {
            Ok(at) => at,
            Err(_) => {
                // The error of the last try is the one to tell.
                let (error, bytes) = last.unwrap_or((OpError::new(OpErrorCode::NoRoute), 0));
                self.finish(token, Err(error), bytes, false);
                return true;
            }
        };
        let op = self.launched(&op, at);
        // SAFETY: the op is one that was given by `submit`, and whose completion was not given out; its transport has said that it does not
        // touch its memory any more.
        let took = unsafe { self.routes[at].transport.submit(&[op], now) };
        if took == 0 {
            self.landed(token, at);
            self.again.push_front(token);
            return false;
        }
        self.routes[at].under_way += 1;
        if let Some(flight) = self.flights.get_mut(token) {
            (flight.waits, flight.route, flight.began) = (false, at, now);
        }
        true
    }

    fn happened(&mut self, at: usize, event: &Event, now: Instant) {
        let (link, state) = match event {
            Event::LinkUp { link } => (*link, Ok(())),
            Event::LinkDown { link, error } => (*link, Err(leg::reason(error))),
            Event::Control { .. } => return,
        };
        let base = self.routes.len() - 1;
        let joining = &mut self.routes[at].joining;
        if let Some(place) = joining.iter().position(|(waiting, _)| *waiting == link) {
            let _ = joining.swap_remove(place).1.send(state);
        }
        let id = self.routes[at].id;
        let legs = self.peers.iter_mut().flatten().filter_map(|legs| legs.legs[at].as_mut());
        for leg in legs.filter(|leg| leg.link == link) {
            if let Event::LinkDown { error, .. } = event {
                if leg.down.is_none() && at != base {
                    tracing::warn!(route = id.name(), %error, "a route to a peer is down");
                    leg.health.failed(now, Reason::LinkDown);
                }
            }
            // The base is waited for.
            leg.down = if at == base { None } else { state.err() };
        }
    }

    /// How to wait for more.
    pub(crate) fn arm(&mut self, now: Instant) -> Arm {
        if !self.done.is_empty() {
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
                    route.looked = now.checked_sub(LOOK).unwrap_or(now);
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

/// Whether an error is the route's, and the op may be tried on another one: neither side touches memory for it any more.
fn blames_route(error: OpError) -> bool {
    match error.code {
        OpErrorCode::LinkBrokenUnfenced | OpErrorCode::PeerShuttingDown | OpErrorCode::NoLink => false,
        OpErrorCode::Unsupported => true,
        code => code.class() == ErrorClass::Link,
    }
}
