//! The decision for one op. Rule: the same question and states give the same plan; nothing is allocated, kept or measured here.
//!
//! In this order: a demand, the policy, what a route can do and whether it is there, the floor, rests and failures, and at last the time
//! that is expected. The first thing that rules a route out is its reason.

use super::id::{MAX_ROUTES, RouteId, RouteSet};
use super::plan::{Causes, Plan, Question, Refusal, RouteState, Why};
use super::policy::{CompactRule, Ruleset, Settings, Signature};
use super::rates::{SizeClass, Verdict};
use super::reason::Reason;
use orbit_te_transport::{OpKind, Priority};
use std::time::Duration;

/// A probe may be expected to take so many times what the chosen route takes. The limit doubles with every
/// [`PROBE_PATIENCE`] intervals of silence, so that nothing is left for ever.
const PROBE_MOST_TIMES: f32 = 20.0;
const PROBE_PATIENCE: u32 = 16;
/// So many ops say how fast a route is. Fewer only speak for it, since the first ones often pay for pages and connections: a route is not
/// left for them. And another one is not compared with it by a probe.
const SURE_SAMPLES: u32 = 4;
/// A route that so few ops spoke for has to be faster than another by this much more.
const UNSURE_FACTOR: f32 = 1.15;
/// Parts of a divided op end at a multiple of this, where the route's limit has room for one.
const CHUNK_GRAIN_BYTES: u64 = 4096;

/// What is worked out for a route that can take the op.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// How willingly it is taken before time counts: 0 at once, then those that are resting, that failed for this op, or both.
    tier: u8,
    /// Its place in the order of preference.
    rank: u8,
    /// It is below the floor, and may be taken only to be measured again.
    below: Option<u16>,
    /// So few ops were measured that they prove little.
    unsure: bool,
    /// What the op takes, in nanoseconds.
    alone_ns: f32,
    /// The same after what is under way there.
    loaded_ns: f32,
}

/// By place in the list of routes: those that can take the op.
type Candidates = [Option<Candidate>];

/// Chooses a route for one op. `routes` come in the order in which they are preferred when no rule has another, the one that goes
/// everywhere last; those past [`MAX_ROUTES`] are not looked at.
///
/// What is chosen with [`Why::Probe`] has to be noted by [`super::Rates::note_probe`], and what is chosen at all is told to
/// [`super::Choices::note`], from which the next question's `incumbent` comes.
pub fn plan(question: &Question, routes: &[RouteState<'_>], rules: &Ruleset) -> Plan {
    let routes = &routes[..routes.len().min(MAX_ROUTES)];
    let settings = rules.settings();
    let signature = Signature::new(
        question.kind,
        question.priority,
        question.local.into(),
        question.remote.into(),
        question.bytes,
    );
    let rule = rules.rule(signature);
    let demanded = question.demand.or(rule.and_then(|rule| rule.demand));
    let mut others = Causes::default();
    let mut room = [None; MAX_ROUTES];
    let candidates = &mut room[..routes.len()];
    let mut best_tier = u8::MAX;
    for (place, route) in routes.iter().enumerate() {
        match candidate(question, route, place, rule, demanded.is_some(), settings) {
            Ok(candidate) => {
                best_tier = best_tier.min(candidate.tier);
                candidates[place] = Some(candidate);
            }
            Err(reason) => others.set(place, route.id, reason),
        }
    }
    if best_tier == u8::MAX {
        return refused(demanded, routes, others);
    }
    // Those of a worse tier stand back; they are last resorts.
    for (place, slot) in candidates.iter_mut().enumerate() {
        if let Some(worse) = slot.take_if(|candidate| candidate.tier > best_tier) {
            others.set(place, routes[place].id, stands_back(question, &routes[place], worse.below));
        }
    }
    let count = candidates.iter().flatten().count();
    let (chosen, why) = choose(question, routes, candidates, settings);
    let why = match rule {
        _ if question.demand.is_some() => Why::Demanded,
        Some(rule) if rule.demand.is_some() => Why::Policy { rule: rule.number },
        _ if why == Why::Probe => Why::Probe,
        _ if question.attempt > 0 => Why::Retry,
        _ if best_tier > 0 => Why::LastResort,
        Some(rule) if count == 1 && rule.allowed.len() == 1 => Why::Policy { rule: rule.number },
        _ if count == 1 => Why::OnlyOne,
        _ => why,
    };
    finish(question, routes, candidates, others, (chosen, why))
}

/// Whether a route can take the op at all, or the first reason why not.
fn candidate(
    question: &Question,
    route: &RouteState<'_>,
    place: usize,
    rule: Option<&CompactRule>,
    demanded: bool,
    settings: &Settings,
) -> Result<Candidate, Reason> {
    if let Some(demand) = question.demand.filter(|demand| *demand != route.id) {
        return Err(Reason::Demanded { route: demand });
    }
    if let Some(rule) = rule.filter(|rule| !rule.allowed.contains(route.id)) {
        return Err(Reason::Rule { rule: rule.number });
    }
    // What is demanded waits for a link that is still being made.
    route.usable.or_else(|why| if demanded && why == Reason::Linking { Ok(()) } else { Err(why) })?;
    can(question, route)?;
    if question.attempt >= settings.attempts {
        return Err(Reason::AttemptsSpent { attempts: settings.attempts });
    }
    let Question { kind, bytes, pieces, now, .. } = *question;
    let below = match route.rates.floor(kind, bytes, settings.floor) {
        Verdict::Refuse { share } => Some((share * 100.0) as u16),
        Verdict::Fine | Verdict::Warn { .. } => None,
    };
    if let Some(percent) = below {
        let due = route.rates.is_due(kind, SizeClass::of(bytes), now, settings.probe_interval);
        if due.is_none() {
            return Err(Reason::BelowFloor { percent });
        }
    }
    let unsure = (1..SURE_SAMPLES).contains(&route.rates.samples(kind, SizeClass::of(bytes)));
    let measured_ns = route.rates.expected_ns(kind, bytes, pieces);
    let alone_ns = if unsure { measured_ns.min(route.rates.prior_ns(bytes, pieces)) } else { measured_ns };
    let resting = route.resting_until.is_some_and(|until| now < until);
    let failed = question.failed.contains(route.id);
    let tier = u8::from(resting) + 2 * u8::from(failed) + 4 * u8::from(below.is_some());
    Ok(Candidate {
        // A demand leaves nothing that a rest would be spent on.
        tier: if demanded { 0 } else { tier },
        rank: rule.map_or(place as u8, |rule| rule.rank[route.id.index()]),
        below,
        unsure,
        alone_ns,
        loaded_ns: alone_ns + route.rates.load_ns(kind, route.load_bytes),
    })
}

/// Whether a route does ops like this.
fn can(question: &Question, route: &RouteState<'_>) -> Result<(), Reason> {
    let (caps, kind) = (&route.caps, question.kind);
    let does = match kind {
        OpKind::Read => caps.read,
        OpKind::Write => caps.write,
    };
    if !does {
        return Err(Reason::KindUnsupported { kind });
    }
    if !caps.local.contains(question.local) {
        return Err(Reason::LocalMemory);
    }
    if !caps.remote.contains(question.remote) {
        return Err(Reason::RemoteMemory);
    }
    if question.verify && !caps.checksums {
        return Err(Reason::NoChecksums);
    }
    let kib = |bytes: u64| u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
    if question.pieces > 1 {
        if caps.max_pieces == 0 {
            return Err(Reason::NoLists);
        }
        if question.pieces > caps.max_pieces {
            return Err(Reason::TooManyPieces { most: caps.max_pieces });
        }
        if question.bytes > caps.max_list_bytes {
            return Err(Reason::TooLarge { most_kib: kib(caps.max_list_bytes) });
        }
    } else if caps.max_op_bytes == 0 {
        return Err(Reason::TooLarge { most_kib: 0 });
    }
    Ok(())
}

/// Why a route of a worse tier is not taken.
fn stands_back(question: &Question, route: &RouteState<'_>, below: Option<u16>) -> Reason {
    if let Some(percent) = below {
        return Reason::BelowFloor { percent };
    }
    if question.failed.contains(route.id) {
        return Reason::FailedBefore;
    }
    let left =
        route.resting_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(question.now));
    Reason::Resting { left_us: u32::try_from(left.as_micros()).unwrap_or(u32::MAX) }
}

/// The place of the route to take, among candidates of one tier.
fn choose(
    question: &Question,
    routes: &[RouteState<'_>],
    candidates: &Candidates,
    settings: &Settings,
) -> (usize, Why) {
    let factor = settings.slow_factor;
    let usual = usual(question, routes, candidates, factor);
    let at = |place: usize| candidates[place].map_or(f32::MAX, |candidate| candidate.loaded_ns);
    // What is under way counts for this op alone.
    if routes[usual].load_bytes > 0 {
        let quickest = fastest(candidates, |candidate| candidate.loaded_ns, |_| true).unwrap_or(usual);
        if at(quickest) * factor < at(usual) {
            return (quickest, Why::Spilled);
        }
    }
    if candidates[usual].is_some_and(|candidate| candidate.below.is_some()) {
        return (usual, Why::Probe);
    }
    if let Some(probe) = probe(question, routes, candidates, usual, settings) {
        return (probe, Why::Probe);
    }
    let usual_ns = candidates[usual].map_or(f32::MAX, |candidate| candidate.alone_ns);
    let why = if candidates.iter().flatten().all(|candidate| candidate.alone_ns >= usual_ns) {
        Why::Fastest
    } else {
        Why::Preferred
    };
    (usual, why)
}

/// The place of the route that ops like this take when nothing is under way.
///
/// The preferred one is left when another is faster by the factor. One that is less preferred and in use is left when another is faster
/// by the factor, or when one that is preferred to it is as fast again. Between the two is a band in which nothing changes.
fn usual(question: &Question, routes: &[RouteState<'_>], candidates: &Candidates, factor: f32) -> usize {
    let alone = |candidate: &Candidate| candidate.alone_ns;
    let present = || candidates.iter().enumerate().filter_map(|(place, slot)| Some((place, slot.as_ref()?)));
    let preferred = present().min_by_key(|(_, candidate)| candidate.rank).map_or(0, |(place, _)| place);
    let incumbent =
        question.incumbent.and_then(|id| present().map(|(place, _)| place).find(|p| routes[*p].id == id));
    let base = incumbent.unwrap_or(preferred);
    let (Some(base_is), Some(best)) = (candidates[base], fastest(candidates, alone, |_| true)) else {
        return base;
    };
    let faster = |best: Candidate| {
        let factor = if best.unsure { factor * UNSURE_FACTOR } else { factor };
        best.alone_ns * factor < base_is.alone_ns
    };
    if candidates[best].is_some_and(faster) {
        return best;
    }
    if base == preferred {
        return base;
    }
    let back = |other: &Candidate| other.rank < base_is.rank && other.alone_ns <= base_is.alone_ns;
    fastest(candidates, alone, back).unwrap_or(base)
}

/// The place of the fastest candidate of those that are let in; of equals the more preferred one.
fn fastest(
    candidates: &Candidates,
    ns: impl Fn(&Candidate) -> f32,
    lets: impl Fn(&Candidate) -> bool,
) -> Option<usize> {
    let mut best: Option<(usize, f32, u8)> = None;
    for (place, slot) in candidates.iter().enumerate() {
        let Some(candidate) = slot.as_ref().filter(|candidate| lets(candidate)) else { continue };
        let (time, rank) = (ns(candidate), candidate.rank);
        if best.is_none_or(|(_, least, least_rank)| time < least || (time == least && rank < least_rank)) {
            best = Some((place, time, rank));
        }
    }
    best.map(|(place, ..)| place)
}

/// The place of a route that this op should measure again, instead of taking the usual one.
///
/// A route that is preferred to the usual one is tried again now and then. One that is less preferred only if it would do about as well
/// as the usual one, were it as good as is expected of it at first: so TCP is not tried beside shared memory that is in order.
fn probe(
    question: &Question,
    routes: &[RouteState<'_>],
    candidates: &Candidates,
    usual: usize,
    settings: &Settings,
) -> Option<usize> {
    let Question { kind, bytes, pieces, now, priority, attempt, .. } = *question;
    if attempt > 0 || priority == Priority::High || settings.probe_interval.is_zero() {
        return None;
    }
    let (class, chosen) = (SizeClass::of(bytes), candidates[usual]?);
    if routes[usual].rates.samples(kind, class) < SURE_SAMPLES {
        return None;
    }
    let mut found = candidates.iter().enumerate().filter_map(|(place, slot)| {
        let other = slot.as_ref().filter(|_| place != usual)?;
        let rates = routes[place].rates;
        let may_gain = other.rank < chosen.rank
            || rates.prior_ns(bytes, pieces) < chosen.alone_ns * settings.slow_factor;
        // What is under way on it would be measured as well.
        if !may_gain || routes[place].load_bytes > 0 {
            return None;
        }
        let age = rates.is_due(kind, class, now, settings.probe_interval)?;
        let most_times = PROBE_MOST_TIMES * 2f32.powi((age / PROBE_PATIENCE) as i32);
        (other.alone_ns <= chosen.alone_ns * most_times).then_some(place)
    });
    found.next()
}

fn finish(
    question: &Question,
    routes: &[RouteState<'_>],
    candidates: &Candidates,
    mut others: Causes,
    (chosen, why): (usize, Why),
) -> Plan {
    let route = &routes[chosen];
    let ns = |place: usize| candidates[place].map_or(0.0, |candidate| candidate.loaded_ns);
    let us = |ns: f32| (ns / 1000.0).round() as u32;
    let chosen_us = us(ns(chosen));
    for (place, other) in routes.iter().enumerate() {
        if place != chosen && candidates[place].is_some() {
            let expected_us = us(ns(place));
            let reason = match why {
                Why::Probe => Reason::Probing { route: route.id },
                _ if ns(place) < ns(chosen) => Reason::TooLittleGain { expected_us, chosen_us },
                _ => Reason::Slower { expected_us, chosen_us },
            };
            others.set(place, other.id, reason);
        }
    }
    Plan {
        route: Ok(route.id),
        expected: Duration::from_nanos(ns(chosen) as u64),
        chunk_bytes: chunk_bytes(question, route.caps.max_op_bytes),
        why,
        others,
    }
}

/// Into which parts an op is divided; zero if it goes whole.
fn chunk_bytes(question: &Question, max_op_bytes: u64) -> u64 {
    if question.pieces > 1 || question.bytes <= max_op_bytes {
        return 0;
    }
    if max_op_bytes < CHUNK_GRAIN_BYTES {
        max_op_bytes
    } else {
        max_op_bytes - max_op_bytes % CHUNK_GRAIN_BYTES
    }
}

fn refused(demanded: Option<RouteId>, routes: &[RouteState<'_>], mut others: Causes) -> Plan {
    let told: RouteSet = routes.iter().map(|route| route.id).collect();
    if let Some(route) = demanded.filter(|route| !told.contains(*route)) {
        if routes.len() < MAX_ROUTES {
            // Every build has those of one host.
            let is_off = [RouteId::SHM, RouteId::PROCESS_VM].contains(&route);
            others.set(routes.len(), route, if is_off { Reason::Disabled } else { Reason::NotBuilt });
        }
    }
    Plan {
        route: Err(Refusal { demanded, causes: others }),
        expected: Duration::ZERO,
        chunk_bytes: 0,
        why: Why::OnlyOne,
        others,
    }
}
