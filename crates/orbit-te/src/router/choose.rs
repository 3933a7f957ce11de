//! Which route an op takes: the question for the planner, and what is remembered of its answer. Rule: the decision is the planner's
//! alone; what it needs is gathered here, and nothing is allocated for it.

use super::Router;
use super::leg::{Known, Leg};
use crate::route::{
    Causes, Description, MAX_ROUTES, Plan, Question, Reason, Refusal, RouteFacts, RouteId, RouteSet,
    RouteState, Ruleset, SizeClass, Why, plan,
};
use orbit_te_memory::{MemoryKind, RemoteKey};
use orbit_te_transport::{LinkId, Op, OpKind, Priority};
use std::time::Instant;

/// What an op has that decides about its route.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Kind {
    pub(super) link: LinkId,
    pub(super) key: RemoteKey,
    pub(super) kind: OpKind,
    pub(super) bytes: u64,
    pub(super) pieces: u32,
    verify: bool,
    /// Whether our memory may vanish.
    vanishing: bool,
    priority: Priority,
    pub(super) demand: Option<RouteId>,
}

impl Kind {
    pub(super) fn of(op: &Op, demand: Option<RouteId>) -> Kind {
        Kind {
            link: op.link,
            key: op.remote.key,
            kind: op.kind,
            bytes: op.local.length,
            pieces: op.pieces.map_or(1, |pieces| pieces.len() as u32),
            verify: op.verify.is_on(),
            vanishing: op.local.key.may_vanish(),
            priority: op.priority,
            demand,
        }
    }
}

/// Alike ops in a row may follow one choice so many times. What is learnt from them moves slowly, and whatever else bears on a choice ends it.
const ALIKE: u32 = 32;

/// A choice that the next ops may follow.
pub(super) struct Recent {
    kind: Kind,
    at: usize,
    left: u32,
    others: Causes,
}

impl Router {
    /// The place of the route that was chosen just now for an op like this.
    pub(super) fn recent(&mut self, kind: &Kind) -> Option<usize> {
        let recent = self.recent.as_mut().filter(|recent| recent.left > 0 && recent.kind == *kind)?;
        recent.left -= 1;
        recent.others.iter().for_each(|(_, reason)| self.counts.add(reason));
        Some(recent.at)
    }

    /// What would be done with such an op now.
    pub(crate) fn explain(&mut self, op: &Op, demand: Option<RouteId>, now: Instant) -> Option<Plan> {
        self.peer(op.link)?;
        Some(self.plan(&Kind::of(op, demand), (0, RouteSet::NONE), now))
    }

    /// Puts what is known of such an op's routes into a description that has the rest.
    pub(crate) fn describe(&mut self, op: &Op, draft: Description, now: Instant) -> Option<Description> {
        self.peer(op.link)?;
        let mut made = self.told(&Kind::of(op, None), (0, RouteSet::NONE), now, |question, states, _| {
            let routes = states.iter().map(RouteFacts::of).collect();
            Description { at: now, memory: question.remote, routes, ..draft }
        });
        let (known, _) = self.peer(op.link)?.region(&op.remote.key);
        for kind in [OpKind::Read, OpKind::Write] {
            for class in SizeClass::all() {
                let last = known.as_ref().and_then(|known| known.choices.last(kind, class.most_bytes()));
                made.chosen.extend(last.map(|route| (kind, class, route)));
            }
        }
        Some(made)
    }

    pub(super) fn plan(&mut self, op: &Kind, tried: (u32, RouteSet), now: Instant) -> Plan {
        self.told(op, tried, now, plan)
    }

    /// Hands over what the planner is told of an op.
    fn told<T>(
        &mut self,
        op: &Kind,
        (attempt, failed): (u32, RouteSet),
        now: Instant,
        to: impl FnOnce(&Question, &[RouteState<'_>], &Ruleset) -> T,
    ) -> T {
        let Router { routes, peers, everybody, unmeasured, .. } = self;
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
        let mut states = [RouteState {
            id: RouteId::TCP,
            usable: Err(Reason::NotBuilt),
            caps: routes[base].caps,
            rates: &*unmeasured,
            resting_until: None,
            load_bytes: 0,
        }; MAX_ROUTES];
        for (at, route) in routes.iter().enumerate().take(MAX_ROUTES) {
            let leg = legs.get(at).and_then(Option::as_ref);
            let obstacle = match &known {
                Some(known) => known.obstacles[route.id.index()],
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
                caps: route.caps_for(op.vanishing),
                rates: leg.map_or(&*unmeasured, |leg| &leg.rates),
                resting_until: leg.and_then(|leg| leg.health.resting_until(now)),
                // What this thread does itself, it does one after the other, whatever the route.
                load_bytes: leg.filter(|_| !route.is_own_work).map_or(0, |leg| leg.load_bytes),
            };
        }
        let count = routes.len().min(MAX_ROUTES);
        let rules = reach.map_or(&*everybody, |reach| &reach.rules);
        to(&question, &states[..count], rules)
    }

    /// Chooses a route for an op; its place.
    pub(super) fn choose(
        &mut self,
        op: &Kind,
        tried: (u32, RouteSet),
        now: Instant,
    ) -> Result<usize, Box<Refusal>> {
        // Alone, the base has nobody to stand back for.
        if self.routes.len() == 1 && op.demand.is_none() && tried.0 == 0 {
            return Ok(0);
        }
        if let Some(at) = if tried.0 == 0 { self.recent(op) } else { None } {
            return Ok(at);
        }
        let plan = self.plan(op, tried, now);
        let route = plan.route.map_err(Box::new)?;
        let at = self.routes.iter().position(|known| known.id == route).unwrap_or(self.routes.len() - 1);
        self.note(op, at, &plan, now);
        Ok(at)
    }

    /// Takes down what a plan says, which is followed.
    pub(super) fn note(&mut self, op: &Kind, at: usize, plan: &Plan, now: Instant) {
        let counts = self.counts.clone();
        if let Some(legs) = self.peer(op.link) {
            let (known, legs) = legs.region(&op.key);
            if let Some(change) = known.and_then(|known| known.choices.note(op.kind, op.bytes, plan)) {
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
        // Bytes that are under way elsewhere may have the next op go another way.
        let may_follow = self.routes[at].is_own_work && !plan.why.is_passing();
        self.recent = may_follow.then_some(Recent { kind: *op, at, left: ALIKE, others: plan.others });
    }
}
