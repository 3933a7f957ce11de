//! Ops on their way: handing them to transports, taking their ends, and trying them again. Rule: an op is tried again only when the
//! transport that had it has said that neither side touches memory for it any more.

#![allow(unsafe_code)]

use super::choose::Kind;
use super::flight::{Attempt, Flight};
use super::leg;
use super::{BUDGET, Done, Found, LOOK, NoticeFlight, Router};
use crate::announcer::is_notification;
use crate::clock;
use crate::route::{Plan, Reason, Refusal, RouteId, RouteSet};
use orbit_te_transport::{
    Completion, ErrorClass, Event, LinkId, Notice, Op, OpError, OpErrorCode, Token, TransportError, Undone,
};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What an op takes whatever its size, as if it were bytes.
const SAME_FOR_ALL_BYTES: u64 = 4096;

/// After a joined route has failed to carry a notification, others to the peer go by the base for so long.
const QUIET: Duration = Duration::from_secs(1);

/// Of so much time, what may be taken off as spent on what is done once: some of it was the op's.
fn most_prepared(time: Duration) -> Duration {
    time * 3 / 4
}

impl Router {
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
                        self.refuse(op, refusal);
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
            if self.routes[at].is_own_work {
                // Done by the call, mostly: its end is now, and not when somebody asks.
                self.poll_one(at, clock::now());
            }
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

    fn refuse(&mut self, op: &Op, refusal: Box<Refusal>) {
        self.counts.add(refusal.reason());
        let result = Err(OpError::new(OpErrorCode::NoRoute));
        let completion = Completion { token: op.token, result, bytes: 0, touched: false };
        let route = refusal.demanded;
        let is_down = refusal.reason() == Reason::LinkDown;
        let demanded = self.routes.iter().position(|other| is_down && Some(other.id) == route);
        let why = demanded.and_then(|at| self.why(at, op.link));
        self.done.push_back(Done { completion, route, refusal: Some(refusal), why, attempts: Vec::new() });
    }

    /// Takes a notification, as [`Transport::notify`]. It goes by the first joined route that is up and takes it, otherwise by the base. Rules of
    /// a policy are about requests: where there are any, all notifications go by the base.
    ///
    /// # Safety
    /// As [`Transport::notify`].
    pub(crate) unsafe fn notify(&mut self, notice: &Notice, now: Instant) -> bool {
        let joined = if self.policy.rules().is_empty() { self.routes.len() - 1 } else { 0 };
        for at in 0..joined {
            let Some(link) = self.notice_link(at, notice.link, now) else { continue };
            // SAFETY: the caller's promise.
            if unsafe { self.routes[at].transport.notify(&Notice { link, ..*notice }, now) } {
                self.routes[at].under_way += 1;
                let (token, link) = (notice.token, notice.link);
                self.notices.push(NoticeFlight { token, link, at, taken_back: false });
                return true;
            }
        }
        let base = self.base();
        // SAFETY: the caller's promise.
        let taken = unsafe { base.transport.notify(notice, now) };
        // Under way like an op, so that its answer is looked for at once.
        base.under_way += usize::from(taken);
        taken
    }

    /// The link by which a joined route takes notifications to a peer now; none where it does not, or has failed to just now.
    fn notice_link(&mut self, at: usize, link: LinkId, now: Instant) -> Option<LinkId> {
        if !self.routes[at].notifies {
            return None;
        }
        let leg = self.peer(link)?.legs.get(at)?.as_ref()?;
        let quiet = leg.no_notices_until.is_some_and(|until| now < until);
        (leg.down.is_none() && !quiet).then_some(leg.link)
    }

    /// A notification has ended on a route. Where a joined route could not carry it, whoever sends it is to send it again under its number,
    /// which goes another way for a while: its receiver takes it once.
    fn notice_ended(&mut self, at: usize, mut completion: Completion, now: Instant) -> Completion {
        let Some(place) = self.notices.iter().position(|flight| flight.token == completion.token) else {
            return completion;
        };
        let NoticeFlight { link, taken_back, .. } = self.notices.swap_remove(place);
        let Err(error) = &mut completion.result else { return completion };
        let broken = match error.code {
            OpErrorCode::LinkBroken
            | OpErrorCode::LinkBrokenUnfenced
            | OpErrorCode::NoLink
            | OpErrorCode::Unreachable
            | OpErrorCode::Unsupported => true,
            OpErrorCode::Cancelled | OpErrorCode::CancelledUnfenced => taken_back,
            _ => false,
        };
        if broken {
            error.code = OpErrorCode::LinkBroken;
            if let Some(leg) = self.peer(link).and_then(|legs| legs.legs.get_mut(at)).and_then(Option::as_mut)
            {
                leg.no_notices_until = Some(now + QUIET);
            }
        }
        completion
    }

    /// Gives up the op or ops of these tokens, and notifications likewise, as [`Transport::cancel`].
    pub(crate) fn cancel(&mut self, tokens: RangeInclusive<Token>, now: Instant) {
        if is_notification(*tokens.start()) {
            // Given up by its sender: that is how it is to end.
            let given_up = |flight: &&mut NoticeFlight| tokens.contains(&flight.token);
            self.notices.iter_mut().filter(given_up).for_each(|flight| flight.taken_back = false);
            for route in self.routes.iter_mut().filter(|route| route.under_way > 0) {
                route.transport.cancel(tokens.clone(), now);
            }
            return;
        }
        for flight in self.flights.iter_mut().filter(|flight| tokens.contains(&flight.op.token)) {
            flight.given_up = true;
        }
        self.finish_waiting(OpErrorCode::Cancelled, |flight| flight.given_up);
        for route in self.routes.iter_mut().filter(|route| route.under_way > 0) {
            route.transport.cancel(tokens.clone(), now);
        }
    }

    /// Ends what waits to be tried again and satisfies a condition.
    pub(super) fn finish_waiting(&mut self, code: OpErrorCode, which: impl Fn(&Flight) -> bool) {
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
        let why = result.err().and_then(|error| {
            let is_by_link = error.code.class() == ErrorClass::Link;
            self.why(flight.route, flight.op.link)
                .filter(|_| is_by_link || self.is_cut(flight.route, flight.op.link))
        });
        self.done.push_back(Done { completion, route, refusal: None, why, attempts: flight.attempts });
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
            any |= self.poll_one(at, now);
        }
        found.events.append(&mut self.events);
        found.letters.append(&mut self.letters);
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

    /// Takes what one transport has.
    fn poll_one(&mut self, at: usize, mut now: Instant) -> bool {
        let mut progress = std::mem::take(&mut self.progress);
        progress.clear();
        let route = &mut self.routes[at];
        let any = route.transport.poll(now, BUDGET, &mut progress);
        let mut prepared = Duration::ZERO;
        if route.is_own_work && !progress.completions.is_empty() {
            // The poll has copied, which took its time.
            now = clock::now();
            prepared = route.transport.take_prepared();
        }
        let since = self.served_since(at, &progress.completions, prepared, now);
        let weight = |completion: &Completion| completion.bytes + SAME_FOR_ALL_BYTES;
        let all: u64 = progress.completions.iter().map(weight).sum();
        let mut so_far = 0;
        // Ops that end by it tell why.
        for event in &progress.events {
            if let Event::LinkDown { link, error } = event {
                self.tells_why(at, *link, error);
            }
        }
        for completion in progress.completions.drain(..) {
            so_far += weight(&completion);
            let ended = match since {
                Some(since) if so_far < all => since + (now - since).mul_f64(so_far as f64 / all as f64),
                _ => now,
            };
            self.completed(at, completion, ended);
        }
        let base = self.routes.len() - 1;
        for event in progress.events.drain(..) {
            if let Event::Control { link, bytes } = event {
                self.says(at, link, bytes);
                continue;
            }
            self.happened(at, &event, now);
            if at == base {
                self.events.push(event);
            }
        }
        self.progress = progress;
        any
    }

    /// When a route began to serve ops whose ends were found together, and which ended one after the other, at even pace for their sizes; none
    /// where they may have ended side by side, just now. What the route did before it began with them was served first, and no op is to
    /// blame for `prepared`.
    fn served_since(
        &mut self,
        at: usize,
        ends: &[Completion],
        prepared: Duration,
        now: Instant,
    ) -> Option<Instant> {
        let flight = self.flights.get_mut(ends.first()?.token)?;
        let (link, began) = (flight.op.link, flight.began);
        if self.routes[at].is_own_work {
            let begun = began.max(self.own_work_end).min(now);
            self.own_work_end = begun + prepared.min(most_prepared(now - begun));
            return Some(self.own_work_end);
        }
        if ends[1..].iter().any(|end| self.flights.get_mut(end.token).is_none_or(|f| f.op.link != link)) {
            return None;
        }
        let leg = self.peer(link)?.legs.get(at)?.as_ref()?;
        Some(began.max(leg.last_end).min(now))
    }

    fn completed(&mut self, at: usize, completion: Completion, now: Instant) {
        let token = completion.token;
        if is_notification(token) {
            self.routes[at].under_way = self.routes[at].under_way.saturating_sub(1);
            let completion = self.notice_ended(at, completion, now);
            return self.done.push_back(Done {
                completion,
                route: None,
                refusal: None,
                why: None,
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
        match completion.result {
            Ok(()) => {
                self.succeeded(at, &kind, began, now);
                self.finish(token, Ok(()), completion.bytes, completion.touched);
            }
            Err(error) => {
                self.recent = None;
                if self.routes[at].is_own_work {
                    self.own_work_end = now;
                }
                let mut reason = reason(error);
                if reason.is_none() && error.code == OpErrorCode::NoLink && self.is_cut(at, kind.link) {
                    reason = Some(Reason::LinkDown);
                }
                let may_help = reason.is_some();
                let legs = self.peer(kind.link);
                if let Some(leg) = legs.and_then(|legs| legs.legs.get_mut(at)).and_then(Option::as_mut) {
                    leg.last_end = now;
                    if reason == Some(Reason::LinkDown) {
                        leg.health.failed(now, Reason::LinkDown);
                    }
                }
                let reason = reason.unwrap_or(Reason::FailedBefore);
                if may_help && reason != Reason::LinkDown {
                    // It is this region that the route can't reach: not to be tried for each op again.
                    let id = self.routes[at].id;
                    if let Some(known) = self.peer(kind.link).and_then(|legs| legs.region(&kind.key).0) {
                        known.obstacles[id.index()] = Some(reason);
                    }
                }
                let Some(flight) = self.flights.get_mut(token) else { return };
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
                    reason,
                    error,
                    bytes: completion.bytes,
                    took: now.saturating_duration_since(began),
                });
                self.again.push_back(token);
            }
        }
    }

    /// Learns from an op that a route has carried.
    fn succeeded(&mut self, at: usize, kind: &Kind, began: Instant, now: Instant) {
        let (id, floor) = (self.routes[at].id, self.policy.settings().floor);
        let mut before = began;
        if self.routes[at].is_own_work {
            before = std::mem::replace(&mut self.own_work_end, now);
        }
        let Some(legs) = self.peer(kind.link) else { return };
        let (known, legs) = legs.region(&kind.key);
        let is_first = known.is_some_and(|known| known.is_first_use(id, (began, now)));
        let Some(leg) = legs.get_mut(at).and_then(Option::as_mut) else { return };
        // What came before it was served first.
        let service = now.saturating_duration_since(began.max(before).max(leg.last_end));
        let op = (kind.kind, kind.bytes, kind.pieces);
        let low = if is_first { None } else { leg.observe(op, service, floor, now) };
        leg.health.succeeded(now);
        leg.last_end = now;
        if let Some(share) = low {
            let percent = (share * 100.0) as u16;
            self.counts.add(Reason::BelowFloor { percent });
            let route = id.name();
            tracing::warn!(route, link = ?kind.link, bytes = kind.bytes, percent, "a route runs below its floor");
        }
    }

    /// Carries an op from beginning to end by this call, if the route that is best for it moves bytes by calls and has nothing under way;
    /// which one it was, and when it ended.
    ///
    /// # Errors
    /// As [`Transport::at_once`].
    ///
    /// # Safety
    /// As [`Transport::at_once`].
    pub(crate) unsafe fn at_once(&mut self, op: &Op, now: Instant) -> Result<(RouteId, Instant), Undone> {
        let kind = Kind::of(op, None);
        let (at, plan) = self.own_work_for(&kind, now).ok_or(Undone { touched: false })?;
        let leg = self.peer(op.link).and_then(|legs| legs.legs.get(at)).and_then(Option::as_ref);
        let link = leg.ok_or(Undone { touched: false })?.link;
        // SAFETY: the caller's promise.
        unsafe { self.routes[at].transport.at_once(&Op { link, ..*op }, now) }?;
        let ended = clock::now();
        let prepared = self.routes[at].transport.take_prepared().min(most_prepared(ended - now));
        plan.inspect(|plan| self.note(&kind, at, plan, now));
        self.succeeded(at, &kind, now + prepared, ended);
        Ok((self.routes[at].id, ended))
    }

    /// The place of the route that is best for an op, if it moves bytes by calls and has nothing under way, and the plan, if one was made.
    fn own_work_for(&mut self, kind: &Kind, now: Instant) -> Option<(usize, Option<Plan>)> {
        if self.routes.len() == 1 {
            return None;
        }
        let (at, plan) = match self.recent(kind) {
            Some(at) => (at, None),
            None => {
                let plan = self.plan(kind, (0, RouteSet::NONE), now);
                let id = plan.route.ok()?;
                (self.routes.iter().position(|known| known.id == id)?, Some(plan))
            }
        };
        let route = &self.routes[at];
        (route.is_own_work && route.under_way == 0).then_some((at, plan))
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

    /// Keeps why a link that is not the base's went down.
    fn tells_why(&mut self, at: usize, link: LinkId, error: &TransportError) {
        if at + 1 < self.routes.len() {
            let legs = self.peers.iter_mut().flatten().filter_map(|legs| legs.legs[at].as_mut());
            let of_link = legs.filter(|leg| leg.link == link);
            of_link.for_each(|leg| leg.why = Some(Arc::from(error.to_string())));
        }
    }

    /// Why a leg went down last.
    fn why(&mut self, at: usize, link: LinkId) -> Option<Arc<str>> {
        let leg = self.peer(link)?.legs.get(at)?.as_ref()?;
        leg.why.clone()
    }

    pub(super) fn happened(&mut self, at: usize, event: &Event, now: Instant) {
        let (link, state) = match event {
            Event::LinkUp { link } => (*link, Ok(())),
            Event::LinkDown { link, error } => (*link, Err(leg::reason(error))),
            Event::Control { .. } => return,
        };
        self.recent = None;
        let base = self.routes.len() - 1;
        let joining = &mut self.routes[at].joining;
        if let Some(place) = joining.iter().position(|(waiting, _)| *waiting == link) {
            let _ = joining.swap_remove(place).1.send(state);
        }
        let id = self.routes[at].id;
        let mut fallen = None;
        for legs in self.peers.iter_mut().flatten() {
            let legs_link = legs.link;
            let Some(leg) = legs.legs[at].as_mut().filter(|leg| leg.link == link) else { continue };
            if let Event::LinkDown { error, .. } = event {
                if leg.down.is_none() && at != base {
                    tracing::info!(route = id.name(), %error, "a route to a peer is down");
                    leg.health.failed(now, Reason::LinkDown);
                }
            }
            // The base is waited for.
            leg.down = if at == base { None } else { state.err() };
            if at != base && leg.down.is_some() {
                fallen = Some(legs_link);
            }
        }
        if let Some(fallen) = fallen {
            // What waits there for the route to be up again goes another way at once.
            for flight in self.notices.iter_mut().filter(|flight| (flight.at, flight.link) == (at, fallen)) {
                flight.taken_back = true;
                self.routes[at].transport.cancel(flight.token..=flight.token, now);
            }
        }
    }
}

/// Why a route is left for an op that failed on it, where another one may do: neither side touches memory for it any more.
fn reason(error: OpError) -> Option<Reason> {
    match error.code {
        OpErrorCode::LinkBrokenUnfenced | OpErrorCode::PeerShuttingDown | OpErrorCode::NoLink => None,
        OpErrorCode::Unsupported => Some(match error.os {
            Some(errno) => Reason::KernelRefuses { errno },
            None => Reason::NotShared,
        }),
        code => (code.class() == ErrorClass::Link).then_some(Reason::LinkDown),
    }
}
