//! One rule of a policy, as it is written. Rule: a key that is not known, a route that is not known and a rule that can never match are
//! refused; nothing is guessed.

use super::id::RouteId;
use orbit_te_memory::MemoryKind;
use orbit_te_transport::{OpKind, Priority};
use orbit_te_wire::PeerId;
use serde::{Deserialize, Serialize};

/// A kind of memory, as a rule names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Ordinary memory of the host.
    Host,
    /// Memory of the host that a GPU driver has pinned.
    PinnedHost,
    /// Memory of a GPU.
    Device,
    /// A file or block device.
    File,
}

impl From<MemoryKind> for Memory {
    fn from(kind: MemoryKind) -> Memory {
        match kind {
            MemoryKind::Host => Memory::Host,
            MemoryKind::PinnedHost => Memory::PinnedHost,
            MemoryKind::Device { .. } => Memory::Device,
            MemoryKind::File => Memory::File,
        }
    }
}

/// The segments that a rule is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentPattern {
    /// The one of this name.
    Exact(String),
    /// Those whose names begin so; written with a `*` at the end.
    Prefix(String),
}

impl SegmentPattern {
    fn parse(text: &str) -> Result<SegmentPattern, String> {
        let (body, prefix) = text.strip_suffix('*').map_or((text, false), |body| (body, true));
        if text.is_empty() || body.contains('*') {
            return Err(format!("`{text}` is no segment: write its name, or how it begins and a `*`"));
        }
        let body = body.to_string();
        Ok(if prefix { SegmentPattern::Prefix(body) } else { SegmentPattern::Exact(body) })
    }

    /// Whether a segment's name fits.
    pub fn fits(&self, segment: &str) -> bool {
        match self {
            SegmentPattern::Exact(name) => segment == name,
            SegmentPattern::Prefix(begin) => segment.starts_with(begin),
        }
    }

    fn text(&self) -> String {
        match self {
            SegmentPattern::Exact(name) => name.clone(),
            SegmentPattern::Prefix(begin) => format!("{begin}*"),
        }
    }
}

/// A rule: which ops it is for, and the routes they may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What it is called, in messages.
    pub name: String,
    /// The smallest op it is for.
    pub min_bytes: u64,
    /// The largest op it is for.
    pub max_bytes: u64,
    /// The memory that the bytes come from; none for any.
    pub from: Option<Memory>,
    /// The memory that the bytes go to; none for any.
    pub to: Option<Memory>,
    /// The kind of op; none for any.
    pub kind: Option<OpKind>,
    /// The peer; none for any.
    pub peer: Option<PeerId>,
    /// The priority; none for any.
    pub priority: Option<Priority>,
    /// The segment; none for any.
    pub segment: Option<SegmentPattern>,
    /// Whether the peer is on this host; none for both.
    pub same_host: Option<bool>,
    /// The routes that are allowed, the preferred one first; at least one, unless one is demanded.
    pub routes: Vec<RouteId>,
    /// The one route that is taken; an op is refused if it can't be.
    pub demand: Option<RouteId>,
}

/// A direction in its written form.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RawKind {
    Read,
    Write,
}

impl RawKind {
    pub(super) fn of(kind: OpKind) -> RawKind {
        match kind {
            OpKind::Read => RawKind::Read,
            OpKind::Write => RawKind::Write,
        }
    }

    pub(super) fn op(self) -> OpKind {
        match self {
            RawKind::Read => OpKind::Read,
            RawKind::Write => OpKind::Write,
        }
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawPriority {
    High,
    Normal,
    Low,
}

/// A rule in its written form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<Memory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<Memory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<RawKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<RawPriority>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    segment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    same_host: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    demand: Option<String>,
}

impl RawRule {
    pub(super) fn check(self) -> Result<Rule, String> {
        let (min_bytes, max_bytes) = (self.min_bytes.unwrap_or(0), self.max_bytes.unwrap_or(u64::MAX));
        if min_bytes > max_bytes {
            return Err(format!(
                "it can never match: `min_bytes` {min_bytes} is over `max_bytes` {max_bytes}"
            ));
        }
        let routes: Vec<RouteId> = self.routes.iter().map(|name| route(name)).collect::<Result<_, _>>()?;
        if let Some(twice) = (1..routes.len()).find(|at| routes[..*at].contains(&routes[*at])) {
            return Err(format!("`routes` has {} twice", routes[twice]));
        }
        let demand = self.demand.as_deref().map(route).transpose()?;
        match demand {
            None if routes.is_empty() => return Err("it has neither `routes` nor `demand`".into()),
            Some(demand) if !routes.is_empty() && !routes.contains(&demand) => {
                return Err(format!("it demands {demand}, which its `routes` do not have"));
            }
            _ => {}
        }
        Ok(Rule {
            name: self.name,
            min_bytes,
            max_bytes,
            from: self.from,
            to: self.to,
            kind: self.kind.map(RawKind::op),
            peer: self.peer.as_deref().filter(|text| *text != "*").map(peer).transpose()?,
            priority: self.priority.map(|priority| match priority {
                RawPriority::High => Priority::High,
                RawPriority::Normal => Priority::Normal,
                RawPriority::Low => Priority::Low,
            }),
            segment: match self.segment.as_deref() {
                None | Some("*") => None,
                Some(text) => Some(SegmentPattern::parse(text)?),
            },
            same_host: self.same_host,
            routes,
            demand,
        })
    }

    pub(super) fn of(rule: &Rule) -> RawRule {
        RawRule {
            name: rule.name.clone(),
            min_bytes: Some(rule.min_bytes).filter(|min| *min > 0),
            max_bytes: Some(rule.max_bytes).filter(|max| *max < u64::MAX),
            from: rule.from,
            to: rule.to,
            kind: rule.kind.map(RawKind::of),
            peer: rule.peer.map(|peer| peer.to_string()),
            priority: rule.priority.map(|priority| match priority {
                Priority::High => RawPriority::High,
                Priority::Normal => RawPriority::Normal,
                Priority::Low => RawPriority::Low,
            }),
            segment: rule.segment.as_ref().map(SegmentPattern::text),
            same_host: rule.same_host,
            routes: rule.routes.iter().map(ToString::to_string).collect(),
            demand: rule.demand.map(|route| route.to_string()),
        }
    }
}

fn route(name: &str) -> Result<RouteId, String> {
    RouteId::named(name).ok_or_else(|| {
        let known: Vec<&str> = RouteId::all().map(RouteId::name).collect();
        format!("no route is called `{name}`; there are {}", known.join(", "))
    })
}

pub(super) fn peer(text: &str) -> Result<PeerId, String> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = Some(text).filter(|_| digits).and_then(|text| u128::from_str_radix(text, 16).ok());
    number.map(PeerId).ok_or_else(|| format!("`{text}` is no peer: write its 32 hexadecimal digits, or `*`"))
}
