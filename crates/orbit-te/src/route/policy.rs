//! A policy: what the user wrote about routes, and the part of it that holds for one segment of one peer. Rule: the first rule that
//! matches counts; what can be compared once for a segment is not compared for each op.

use super::id::{MAX_ROUTES, RouteId, RouteSet};
use super::rule::{Memory, RawRule, Rule};
use orbit_te_transport::{OpKind, Priority};
use orbit_te_wire::PeerId;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thiserror::Error;

/// The most rules of a policy.
const MAX_RULES: usize = 1000;

/// Why a policy can't be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// It is neither TOML nor JSON, or something outside of the rules is wrong.
    #[error("the policy can't be used: {0}")]
    Text(String),
    /// A rule is wrong.
    #[error("rule {rule}{}: {why}", if name.is_empty() { String::new() } else { format!(" (`{name}`)") })]
    Rule {
        /// Its number, from 1.
        rule: usize,
        /// Its name; empty if it has none.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}

/// What to do about a route that runs below the floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FloorAction {
    /// Tell it.
    Warn,
    /// Do not take the route.
    Refuse,
}

/// The least that a route has to give.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    /// As a share of what is expected of it.
    pub share: f32,
    /// What to do below it.
    pub action: FloorAction,
}

/// The numbers of a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The least that a route has to give; none for no floor.
    pub floor: Option<Floor>,
    /// How often an op is tried, all routes together.
    pub attempts: u32,
    /// The route that is used or preferred is left when another is faster by this factor.
    pub slow_factor: f32,
    /// How often a route that was left is measured again; zero for never.
    pub probe_interval: Duration,
    /// How long a route rests after its first failure.
    pub rest: Duration,
    /// The longest rest, up to which each failure doubles it.
    pub most_rest: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            floor: Some(Floor { share: 0.3, action: FloorAction::Warn }),
            attempts: 3,
            slow_factor: 1.3,
            probe_interval: Duration::from_secs(1),
            rest: Duration::from_millis(100),
            most_rest: Duration::from_secs(30),
        }
    }
}

/// What the user wrote about routes. By default there are no rules: each op takes the route that is expected to be the fastest.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    settings: Settings,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicy<R> {
    #[serde(default = "Vec::new")]
    rule: Vec<R>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    floor: Option<Floor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slow_factor: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    probe_interval_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rest_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_rest_ms: Option<u64>,
}

impl Policy {
    /// Reads a policy in TOML, or in JSON if it begins with `{`.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        let wrong = |why: String| PolicyError::Text(why.trim_end().to_string());
        let raw: RawPolicy<serde_json::Value> = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?
        } else {
            toml::from_str(text).map_err(|error| wrong(error.to_string()))?
        };
        let settings = settings(&raw).map_err(wrong)?;
        if raw.rule.len() > MAX_RULES {
            return Err(wrong(format!("it has {} rules, and {MAX_RULES} are the most", raw.rule.len())));
        }
        let rules = raw.rule.into_iter().enumerate().map(|(at, value)| {
            let name = value.get("name").and_then(|name| name.as_str()).unwrap_or_default().to_string();
            let rule = RawRule::deserialize(value).map_err(|error| error.to_string());
            rule.and_then(RawRule::check).map_err(|why| PolicyError::Rule { rule: at + 1, name, why })
        });
        Ok(Policy { rules: rules.collect::<Result<_, _>>()?, settings })
    }

    /// A policy of rules and numbers that were made elsewhere; checked like a written one.
    pub fn new(rules: Vec<Rule>, settings: Settings) -> Result<Policy, PolicyError> {
        let made = Policy { rules, settings };
        Policy::parse(&made.to_json())
    }

    /// The policy in JSON, which [`Policy::parse`] reads.
    pub fn to_json(&self) -> String {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let Settings { floor, attempts, slow_factor, probe_interval, rest, most_rest } = self.settings;
        let raw = RawPolicy {
            rule: self.rules.iter().map(RawRule::of).collect(),
            // Without a floor: one that nothing is below.
            floor: Some(floor.unwrap_or(Floor { share: 0.0, action: FloorAction::Warn })),
            attempts: Some(attempts),
            slow_factor: Some(slow_factor),
            probe_interval_ms: Some(ms(probe_interval)),
            rest_ms: Some(ms(rest)),
            max_rest_ms: Some(ms(most_rest)),
        };
        // It has only strings, numbers and lists, which always can be written.
        serde_json::to_string_pretty(&raw).unwrap_or_default()
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The numbers.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What of it holds for a segment of a peer. It is asked once for each, and then for every op there.
    pub fn ruleset(&self, segment: &str, peer: PeerId, same_host: bool) -> Ruleset {
        let mut rules = Vec::new();
        for (at, rule) in self.rules.iter().enumerate() {
            let here = rule.peer.is_none_or(|wanted| wanted == peer)
                && rule.same_host.is_none_or(|wanted| wanted == same_host)
                && rule.segment.as_ref().is_none_or(|pattern| pattern.fits(segment));
            if here {
                let compact = CompactRule::of(at, rule);
                rules.push(compact);
                if compact.takes_all() {
                    break;
                }
            }
        }
        Ruleset { rules: rules.into_boxed_slice(), settings: self.settings }
    }
}

fn settings<R>(raw: &RawPolicy<R>) -> Result<Settings, String> {
    let usual = Settings::default();
    let ms = |given: Option<u64>, usual| given.map_or(usual, Duration::from_millis);
    let floor = raw.floor.or(usual.floor);
    let made = Settings {
        floor: floor.filter(|floor| floor.share != 0.0),
        attempts: raw.attempts.unwrap_or(usual.attempts),
        slow_factor: raw.slow_factor.unwrap_or(usual.slow_factor),
        probe_interval: ms(raw.probe_interval_ms, usual.probe_interval),
        rest: ms(raw.rest_ms, usual.rest),
        most_rest: ms(raw.max_rest_ms, usual.most_rest),
    };
    // So large a time would not fit an `Instant`.
    let day = Duration::from_secs(86400);
    let rows = [
        (floor.is_some_and(|floor| !(0.0..=1.0).contains(&floor.share)), "`floor.share` is not from 0 to 1"),
        (made.attempts == 0, "`attempts` is 0, so nothing would ever be tried"),
        (!(1.0..=1e6).contains(&made.slow_factor), "`slow_factor` is not from 1 to 1000000"),
        (made.rest.is_zero(), "`rest_ms` is 0"),
        (made.rest > made.most_rest, "`rest_ms` is over `max_rest_ms`"),
        (made.most_rest.max(made.probe_interval) > day, "a time is over a day"),
    ];
    rows.iter().find(|(wrong, _)| *wrong).map_or(Ok(made), |(_, why)| Err((*why).to_string()))
}

/// What a rule is for, as bits: each op has one of every group, and a rule matches if it has all of them.
const ANY_KIND: u16 = 0b11;
const ANY_PRIORITY: u16 = 0b111 << 2;
const ANY_FROM: u16 = 0b1111 << 5;
const ANY_TO: u16 = 0b1111 << 9;

fn kind_bit(kind: OpKind) -> u16 {
    1 << kind as u16
}

fn priority_bit(priority: Priority) -> u16 {
    1 << (2 + priority as u16)
}

fn from_bit(memory: Memory) -> u16 {
    1 << (5 + memory as u16)
}

fn to_bit(memory: Memory) -> u16 {
    1 << (9 + memory as u16)
}

/// What an op is, for a rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signature {
    bits: u16,
    bytes: u64,
}

impl Signature {
    pub(super) fn new(
        kind: OpKind,
        priority: Priority,
        local: Memory,
        remote: Memory,
        bytes: u64,
    ) -> Signature {
        let (from, to) = match kind {
            OpKind::Read => (remote, local),
            OpKind::Write => (local, remote),
        };
        let bits = kind_bit(kind) | priority_bit(priority) | from_bit(from) | to_bit(to);
        Signature { bits, bytes }
    }
}

/// A rule without what was compared already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CompactRule {
    min_bytes: u64,
    max_bytes: u64,
    bits: u16,
    /// Its number, from 1.
    pub(super) number: u16,
    pub(super) allowed: RouteSet,
    pub(super) demand: Option<RouteId>,
    /// By route: its place in the order of preference.
    pub(super) rank: [u8; MAX_ROUTES],
}

impl CompactRule {
    fn of(at: usize, rule: &Rule) -> CompactRule {
        let bits = rule.kind.map_or(ANY_KIND, kind_bit)
            | rule.priority.map_or(ANY_PRIORITY, priority_bit)
            | rule.from.map_or(ANY_FROM, from_bit)
            | rule.to.map_or(ANY_TO, to_bit);
        let mut rank = [MAX_ROUTES as u8; MAX_ROUTES];
        rule.routes.iter().enumerate().for_each(|(place, route)| rank[route.index()] = place as u8);
        let allowed = match rule.demand {
            Some(demand) => RouteSet::NONE.with(demand),
            None => rule.routes.iter().copied().collect(),
        };
        CompactRule {
            min_bytes: rule.min_bytes,
            max_bytes: rule.max_bytes,
            bits,
            number: at as u16 + 1,
            allowed,
            demand: rule.demand,
            rank,
        }
    }

    fn matches(&self, op: Signature) -> bool {
        (self.bits & op.bits == op.bits) & (self.min_bytes <= op.bytes) & (op.bytes <= self.max_bytes)
    }

    fn takes_all(&self) -> bool {
        let all = ANY_KIND | ANY_PRIORITY | ANY_FROM | ANY_TO;
        self.bits == all && self.min_bytes == 0 && self.max_bytes == u64::MAX
    }
}

/// What of a policy holds for one segment of one peer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ruleset {
    rules: Box<[CompactRule]>,
    settings: Settings,
}

impl Ruleset {
    /// How many rules may hold for an op there.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether no rule can hold for any op there.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The numbers.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The first rule that matches.
    pub(super) fn rule(&self, op: Signature) -> Option<&CompactRule> {
        self.rules.iter().find(|rule| rule.matches(op))
    }
}
