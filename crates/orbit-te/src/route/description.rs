//! What the planner was told of a segment, to be kept and asked again elsewhere. Rule: it plans as the engine that it was made by did at
//! that time; of its text, nothing that is not understood is passed over.

mod raw;

use super::decide::plan;
use super::id::{MAX_ROUTES, RouteId, RouteSet};
use super::plan::{Caps, Plan, Question, RouteState};
use super::policy::Policy;
use super::rates::{Rates, SizeClass};
use super::reason::Reason;
use super::rule::{Memory, RawKind};
use orbit_te_memory::MemoryKind;
use orbit_te_transport::{OpKind, Priority};
use orbit_te_wire::PeerId;
use raw::{RawCaps, RawChosen, RawDescription, RawReason, RawRoute, route};
use serde::Deserialize;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The version of the written form.
const VERSION: u32 = 1;
/// No rest is longer than a day.
const MOST_REST_MS: u64 = 86_400_000;

/// Why a description can't be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the description can't be used: {0}")]
pub struct DescriptionError(String);

/// One route, as it was.
#[derive(Debug, Clone, Copy)]
pub struct RouteFacts {
    /// Which.
    pub id: RouteId,
    /// Whether its link and this region could be used; otherwise why not.
    pub usable: Result<(), Reason>,
    /// What it can do.
    pub caps: Caps,
    /// What it was measured to need.
    pub rates: Rates,
    /// Until when it rests.
    pub resting_until: Option<Instant>,
    /// Bytes that were under way on it.
    pub load_bytes: u64,
}

impl RouteFacts {
    /// What the planner is told of a route.
    pub fn of(state: &RouteState<'_>) -> RouteFacts {
        let RouteState { id, usable, caps, rates, resting_until, load_bytes } = *state;
        RouteFacts { id, usable, caps, rates: *rates, resting_until, load_bytes }
    }

    fn state(&self) -> RouteState<'_> {
        let RouteFacts { id, usable, caps, ref rates, resting_until, load_bytes } = *self;
        RouteState { id, usable, caps, rates, resting_until, load_bytes }
    }
}

/// All that decides about the routes of requests to a segment, as it was at one time: of [`crate::Segment::describe`], or read from its
/// written form.
#[derive(Debug, Clone)]
pub struct Description {
    /// When it was so.
    pub at: Instant,
    /// The segment's name.
    pub segment: String,
    /// Its length.
    pub bytes: u64,
    /// Whether it may be read.
    pub may_read: bool,
    /// Whether it may be written.
    pub may_write: bool,
    /// The memory it is in.
    pub memory: MemoryKind,
    /// Its owner.
    pub peer: PeerId,
    /// Whether that is on this host.
    pub same_host: bool,
    /// What the user wrote about routes.
    pub policy: Policy,
    /// The routes, in the order of preference; the one that goes everywhere last.
    pub routes: Vec<RouteFacts>,
    /// The routes that were chosen last, by direction and class of sizes.
    pub chosen: Vec<(OpKind, SizeClass, RouteId)>,
}

impl Description {
    /// What would be done with a contiguous request like this, at the time of the description. `demand` as [`crate::Batch::route`].
    pub fn plan(&self, kind: OpKind, bytes: u64, local: MemoryKind, demand: Option<RouteId>) -> Plan {
        let class = SizeClass::of(bytes);
        let last = self.chosen.iter().find(|(of, size, _)| (*of, *size) == (kind, class));
        let question = Question {
            kind,
            bytes,
            pieces: 1,
            verify: false,
            priority: Priority::Normal,
            local,
            remote: self.memory,
            demand,
            incumbent: last.map(|(_, _, route)| *route),
            attempt: 0,
            failed: RouteSet::NONE,
            now: self.at,
        };
        let states: Vec<RouteState<'_>> = self.routes.iter().map(RouteFacts::state).collect();
        plan(&question, &states, &self.policy.ruleset(&self.segment, self.peer, self.same_host))
    }

    /// What is known of a route; none if the engine did not have it.
    pub fn route(&self, id: RouteId) -> Option<&RouteFacts> {
        self.routes.iter().find(|route| route.id == id)
    }

    /// Its written form: JSON.
    pub fn to_json(&self) -> String {
        let routes = self.routes.iter().map(|route| {
            let (prior, measured) = route.rates.save(self.at);
            let left = route.resting_until.map_or(Duration::ZERO, |t| t.saturating_duration_since(self.at));
            RawRoute {
                name: route.id.name().to_string(),
                obstacle: route.usable.err().map(RawReason::of),
                caps: RawCaps::of(&route.caps),
                prior,
                measured,
                // Upwards, so that a rest is not lost.
                rest_left_ms: left.as_micros().div_ceil(1000) as u64,
                load_bytes: route.load_bytes,
            }
        });
        let chosen = self.chosen.iter().map(|(kind, class, route)| RawChosen {
            kind: RawKind::of(*kind),
            bytes: class.most_bytes(),
            route: route.name().to_string(),
        });
        let raw = RawDescription {
            version: VERSION,
            segment: self.segment.clone(),
            bytes: self.bytes,
            may_read: self.may_read,
            may_write: self.may_write,
            memory: self.memory.into(),
            peer: self.peer.to_string(),
            same_host: self.same_host,
            // What a policy writes is JSON.
            policy: serde_json::from_str(&self.policy.to_json()).unwrap_or_default(),
            routes: routes.collect(),
            chosen: chosen.collect(),
        };
        // It has only strings, numbers and lists, which always can be written.
        serde_json::to_string_pretty(&raw).unwrap_or_default()
    }

    /// Reads a written form, as if it had been made at this time.
    pub fn parse(text: &str, now: Instant) -> Result<Description, DescriptionError> {
        Description::read(text, now).map_err(DescriptionError)
    }

    fn read(text: &str, now: Instant) -> Result<Description, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let wrong = |error: serde_json::Error| error.to_string();
        // Before anything else: what another version writes is not understood anyhow.
        let Version { version } = serde_json::from_str(text).map_err(wrong)?;
        if version != VERSION {
            return Err(format!("it is of version {version}, and this program reads version {VERSION}"));
        }
        let raw: RawDescription = serde_json::from_str(text).map_err(wrong)?;
        let policy = Policy::parse(&raw.policy.to_string()).map_err(|error| error.to_string())?;
        if raw.routes.is_empty() || raw.routes.len() > MAX_ROUTES {
            return Err(format!("it has {} routes, not 1 to {MAX_ROUTES}", raw.routes.len()));
        }
        let mut routes: Vec<RouteFacts> = Vec::with_capacity(raw.routes.len());
        for raw in raw.routes {
            let id = route(&raw.name)?;
            if routes.iter().any(|known| known.id == id) {
                return Err(format!("it has route {id} twice"));
            }
            let facts = facts(id, raw, now).map_err(|why| format!("route {id}: {why}"))?;
            routes.push(facts);
        }
        let chosen = raw
            .chosen
            .iter()
            .map(|raw| Ok((raw.kind.op(), SizeClass::of(raw.bytes), route(&raw.route)?)))
            .collect::<Result<Vec<_>, String>>()?;
        Ok(Description {
            at: now,
            segment: raw.segment,
            bytes: raw.bytes,
            may_read: raw.may_read,
            may_write: raw.may_write,
            memory: raw.memory.into(),
            peer: super::rule::peer(&raw.peer)?,
            same_host: raw.same_host,
            policy,
            routes,
            chosen,
        })
    }
}

fn facts(id: RouteId, raw: RawRoute, now: Instant) -> Result<RouteFacts, String> {
    if raw.rest_left_ms > MOST_REST_MS {
        return Err("its rest is over a day".to_string());
    }
    Ok(RouteFacts {
        id,
        usable: raw.obstacle.map(RawReason::reason).transpose()?.map_or(Ok(()), Err),
        caps: raw.caps.caps(),
        rates: Rates::restore(raw.prior, &raw.measured, now)?,
        resting_until: (raw.rest_left_ms > 0).then(|| now + Duration::from_millis(raw.rest_left_ms)),
        load_bytes: raw.load_bytes,
    })
}

impl From<Memory> for MemoryKind {
    /// The kind; of GPUs the first.
    fn from(memory: Memory) -> MemoryKind {
        match memory {
            Memory::Host => MemoryKind::Host,
            Memory::PinnedHost => MemoryKind::PinnedHost,
            Memory::Device => MemoryKind::Device { ordinal: 0 },
            Memory::File => MemoryKind::File,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Why;
    use super::super::rates::Prior;
    use super::*;
    use orbit_te_memory::KindSet;

    const MIB: u64 = 1 << 20;

    fn description(now: Instant) -> Description {
        let caps = Caps {
            read: true,
            write: true,
            local: KindSet::HOST,
            remote: KindSet::HOST,
            max_op_bytes: 1 << 30,
            max_pieces: 1024,
            max_list_bytes: 1 << 26,
            checksums: true,
        };
        let route = |id| RouteFacts {
            id,
            usable: Ok(()),
            caps,
            rates: Rates::new(Prior::of(id, true)),
            resting_until: None,
            load_bytes: 0,
        };
        let mut routes = [RouteId::SHM, RouteId::PROCESS_VM, RouteId::TCP].map(route);
        for n in 0..20 {
            let took = Duration::from_micros(150 + n);
            routes[0].rates.observe(OpKind::Read, MIB, 1, took, now - Duration::from_millis(30 * n));
        }
        routes[1].usable = Err(Reason::KernelRefuses { errno: 1 });
        routes[2].resting_until = Some(now + Duration::from_millis(70));
        Description {
            at: now,
            segment: "pool".to_string(),
            bytes: 3 * MIB,
            may_read: true,
            may_write: false,
            memory: MemoryKind::Host,
            peer: PeerId(0x1234),
            same_host: true,
            policy: Policy::default(),
            routes: routes.to_vec(),
            chosen: vec![(OpKind::Read, SizeClass::of(MIB), RouteId::SHM)],
        }
    }

    #[test]
    fn what_is_written_plans_the_same() {
        let now = Instant::now();
        let first = description(now);
        let second = Description::parse(&first.to_json(), now + Duration::from_secs(3600)).unwrap();
        assert_eq!(first.to_json(), second.to_json());
        for kind in [OpKind::Read, OpKind::Write] {
            for bytes in [1, 4096, MIB, 64 * MIB, 1 << 32] {
                for demand in [None, Some(RouteId::TCP), Some(RouteId::PROCESS_VM), Some(RouteId::RDMA)] {
                    let [a, b] = [&first, &second].map(|d| d.plan(kind, bytes, MemoryKind::Host, demand));
                    assert_eq!((a.route, a.why, a.others), (b.route, b.why, b.others));
                    let off = a.expected.abs_diff(b.expected);
                    assert!(off <= a.expected / 10_000 + Duration::from_nanos(2), "{a:?} {b:?}");
                }
            }
        }
        let plan = second.plan(OpKind::Read, MIB, MemoryKind::Host, None);
        assert_eq!((plan.route, plan.why), (Ok(RouteId::SHM), Why::OnlyOne));
        let device = second.plan(OpKind::Read, MIB, MemoryKind::Device { ordinal: 0 }, None);
        assert_eq!(device.others.of(RouteId::SHM), Some(Reason::LocalMemory));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let now = Instant::now();
        let text = description(now).to_json();
        let with = |from: &str, to: &str| {
            assert!(text.contains(from), "{from} is not in {text}");
            text.replacen(from, to, 1)
        };
        let rows = [
            (with("\"version\": 1", "\"version\": 2"), "version 2"),
            (with("\"segment\"", "\"colour\": 1, \"segment\""), "unknown field `colour`"),
            (with("\"checksums\"", "\"sums\""), "unknown field `sums`"),
            (with("\"shm\"", "\"warp\""), "no route is called `warp`"),
            (with("\"process_vm\"", "\"shm\""), "route shm twice"),
            (with("\"samples\": 20", "\"samples\": 0"), "no samples"),
            (with("\"kernel-refuses\"", "\"other-host\""), "no reason has code 8"),
            (with("\"attempts\": 3", "\"attempts\": 0"), "`attempts` is 0"),
            (with("00001234\"", "1234\""), "is no peer"),
            (with("\"ns_per_piece\": 50.0", "\"ns_per_piece\": -1.0"), "no time"),
            (text[..text.len() / 2].to_string(), "EOF"),
            (String::new(), "EOF"),
            ("[]".to_string(), "invalid"),
        ];
        for (text, words) in rows {
            let why = Description::parse(&text, now).unwrap_err().to_string();
            assert!(why.contains(words) && !why.contains('\n'), "{why}");
        }
    }
}
