//! What `explain` says of one direction, as lines of text and as a line of JSON. Rule: both say the same; a number that nobody measured
//! is said to be one.

use crate::record::gib;
use crate::size::Size;
use crate::verdict::{self, NotTaken};
use orbit_te::OpKind;
use orbit_te::route::{Description, Memory, Plan, SizeClass};
use serde::Serialize;
use std::fmt;

/// What is said of one direction.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub(super) op: &'static str,
    bytes: u64,
    /// The memory that the bytes come from.
    from: &'static str,
    /// The memory that they go to.
    to: &'static str,
    segment: String,
    peer: String,
    same_host: bool,
    /// The route; null when none can be taken.
    route: Option<&'static str>,
    why: Option<String>,
    expected_us: Option<f64>,
    gib_per_s: Option<f64>,
    /// Requests like this that the expectation was learnt by; of none it is what is usual.
    samples: Option<u32>,
    /// Why no route can be taken.
    refusal: Option<String>,
    not_taken: Vec<NotTaken>,
    #[serde(skip)]
    words: String,
}

/// The name of a kind of memory, as in a policy.
pub(super) fn name(memory: Memory) -> &'static str {
    match memory {
        Memory::Host => "host",
        Memory::PinnedHost => "pinned_host",
        Memory::Device => "device",
        Memory::File => "file",
    }
}

/// The line above the answers.
pub(super) fn head(description: &Description) -> String {
    let rights = match (description.may_read, description.may_write) {
        (true, false) => "read-only",
        (false, true) => "write-only",
        _ => "read-write",
    };
    let at = if description.same_host { "on this host" } else { "not met on this host" };
    let (segment, size) = (description.segment.escape_debug(), Size(description.bytes));
    format!("segment `{segment}` of {size}, {rights}, of peer {} {at}", description.peer)
}

impl Answer {
    pub(super) fn new(
        description: &Description,
        kind: OpKind,
        bytes: u64,
        local: Memory,
        plan: &Plan,
    ) -> Answer {
        let (local, remote) = (name(local), name(description.memory.into()));
        let (op, from, to) = match kind {
            OpKind::Write => ("write", local, remote),
            OpKind::Read => ("read", remote, local),
        };
        let route = plan.route.ok();
        let taken = |value: f64| route.map(|_| (value * 1000.0).round() / 1000.0);
        let facts = route.and_then(|route| description.route(route));
        Answer {
            op,
            bytes,
            from,
            to,
            segment: description.segment.clone(),
            peer: description.peer.to_string(),
            same_host: description.same_host,
            route: route.map(|route| route.name()),
            why: route.map(|_| plan.why.to_string()),
            expected_us: taken(plan.expected.as_nanos() as f64 / 1e3),
            gib_per_s: taken(gib(bytes) / plan.expected.as_secs_f64().max(1e-9)),
            samples: facts.map(|facts| facts.rates.samples(kind, SizeClass::of(bytes))),
            refusal: plan.route.err().map(|refusal| refusal.to_string()),
            not_taken: NotTaken::all(plan),
            words: verdict::why(plan.why),
        }
    }

    /// The line of JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answer { op, bytes, from, to, .. } = self;
        write!(f, "{op} {}, {from} to {to}", Size(*bytes))?;
        if let (Some(route), Some(us), Some(rate)) = (self.route, self.expected_us, self.gib_per_s) {
            let known = match self.samples {
                None | Some(0) => "nothing measured yet".to_string(),
                Some(1) => "by one like it".to_string(),
                Some(n) => format!("by {n} like it"),
            };
            let time = verdict::time(std::time::Duration::from_nanos((us * 1e3) as u64));
            write!(f, "\n  {route:<10}  taken: {}; expected {time}, {rate:.2} GiB/s ({known})", self.words)?;
        }
        for NotTaken { route, code, name, reason, remedy } in &self.not_taken {
            write!(f, "\n  {route:<10}  not taken: {code} {name}: {reason}\n{:14}remedy: {remedy}", "")?;
        }
        match &self.refusal {
            Some(refusal) => write!(f, "\n  {refusal}"),
            None => Ok(()),
        }
    }
}
