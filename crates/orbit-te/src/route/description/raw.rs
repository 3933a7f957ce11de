//! A description in its written form. Rule: a key that is not known, a name that is not known and a value that is missing are refused;
//! nothing is guessed.

use super::super::id::RouteId;
use super::super::plan::Caps;
use super::super::rates::{RawCell, RawPrior};
use super::super::reason::Reason;
use super::super::rule::{Memory, RawKind};
use orbit_te_memory::KindSet;
use orbit_te_transport::OpKind;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// All of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDescription {
    pub(super) version: u32,
    pub(super) segment: String,
    pub(super) bytes: u64,
    pub(super) may_read: bool,
    pub(super) may_write: bool,
    pub(super) memory: Memory,
    pub(super) peer: String,
    pub(super) same_host: bool,
    pub(super) policy: Value,
    pub(super) routes: Vec<RawRoute>,
    #[serde(default)]
    pub(super) chosen: Vec<RawChosen>,
}

/// One route.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRoute {
    pub(super) name: String,
    /// Why it can't be used; null if it can.
    pub(super) obstacle: Option<RawReason>,
    pub(super) caps: RawCaps,
    pub(super) prior: RawPrior,
    #[serde(default)]
    pub(super) measured: Vec<RawCell>,
    #[serde(default)]
    pub(super) rest_left_ms: u64,
    #[serde(default)]
    pub(super) load_bytes: u64,
}

/// The route that ops like this took last.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawChosen {
    pub(super) kind: RawKind,
    pub(super) bytes: u64,
    pub(super) route: String,
}

/// What a route can do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCaps {
    read: bool,
    write: bool,
    local: Vec<Memory>,
    remote: Vec<Memory>,
    max_op_bytes: u64,
    max_pieces: u32,
    max_list_bytes: u64,
    checksums: bool,
}

impl RawCaps {
    pub(super) fn of(caps: &Caps) -> RawCaps {
        let Caps { read, write, max_op_bytes, max_pieces, max_list_bytes, checksums, .. } = *caps;
        let (local, remote) = (memories(&caps.local), memories(&caps.remote));
        RawCaps { read, write, local, remote, max_op_bytes, max_pieces, max_list_bytes, checksums }
    }

    pub(super) fn caps(self) -> Caps {
        let RawCaps { read, write, max_op_bytes, max_pieces, max_list_bytes, checksums, .. } = self;
        let (local, remote) = (kinds(&self.local), kinds(&self.remote));
        Caps { read, write, local, remote, max_op_bytes, max_pieces, max_list_bytes, checksums }
    }
}

fn memories(kinds: &KindSet) -> Vec<Memory> {
    let rows = [
        (kinds.host, Memory::Host),
        (kinds.pinned_host, Memory::PinnedHost),
        (kinds.device, Memory::Device),
        (kinds.file, Memory::File),
    ];
    rows.into_iter().filter(|(has, _)| *has).map(|(_, memory)| memory).collect()
}

fn kinds(memories: &[Memory]) -> KindSet {
    let has = |memory| memories.contains(&memory);
    KindSet {
        host: has(Memory::Host),
        pinned_host: has(Memory::PinnedHost),
        device: has(Memory::Device),
        file: has(Memory::File),
    }
}

/// A reason: its code and name, which must belong together, and its values.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReason {
    code: u16,
    name: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    values: Map<String, Value>,
}

impl RawReason {
    pub(super) fn of(reason: Reason) -> RawReason {
        let values = match reason {
            Reason::OtherUser { ours, theirs } => json!({ "ours": ours, "theirs": theirs }),
            Reason::KernelRefuses { errno } => json!({ "errno": errno }),
            Reason::KindUnsupported { kind } => json!({ "kind": RawKind::of(kind) }),
            Reason::TooManyPieces { most } => json!({ "most": most }),
            Reason::TooLarge { most_kib } => json!({ "most_kib": most_kib }),
            Reason::Resting { left_us } => json!({ "left_us": left_us }),
            Reason::Slower { expected_us, chosen_us } | Reason::TooLittleGain { expected_us, chosen_us } => {
                json!({ "expected_us": expected_us, "chosen_us": chosen_us })
            }
            Reason::Probing { route } | Reason::Demanded { route } => json!({ "route": route.name() }),
            Reason::Rule { rule } => json!({ "rule": rule }),
            Reason::AttemptsSpent { attempts } => json!({ "attempts": attempts }),
            Reason::BelowFloor { percent } => json!({ "percent": percent }),
            _ => Value::Null,
        };
        let values = if let Value::Object(values) = values { values } else { Map::new() };
        RawReason { code: reason.code(), name: reason.name().to_string(), values }
    }

    pub(super) fn reason(mut self) -> Result<Reason, String> {
        let known = Reason::ALL.iter().find(|reason| reason.code() == self.code).copied();
        let Some(known) = known.filter(|reason| reason.name() == self.name) else {
            return Err(format!("no reason has code {} and name `{}`", self.code, self.name));
        };
        let values = &mut self.values;
        let kind = |raw: RawKind| -> OpKind { raw.op() };
        let reason = match known {
            Reason::OtherUser { .. } => {
                Reason::OtherUser { ours: take(values, "ours")?, theirs: take(values, "theirs")? }
            }
            Reason::KernelRefuses { .. } => Reason::KernelRefuses { errno: take(values, "errno")? },
            Reason::KindUnsupported { .. } => Reason::KindUnsupported { kind: kind(take(values, "kind")?) },
            Reason::TooManyPieces { .. } => Reason::TooManyPieces { most: take(values, "most")? },
            Reason::TooLarge { .. } => Reason::TooLarge { most_kib: take(values, "most_kib")? },
            Reason::Resting { .. } => Reason::Resting { left_us: take(values, "left_us")? },
            Reason::Slower { .. } => Reason::Slower {
                expected_us: take(values, "expected_us")?,
                chosen_us: take(values, "chosen_us")?,
            },
            Reason::TooLittleGain { .. } => Reason::TooLittleGain {
                expected_us: take(values, "expected_us")?,
                chosen_us: take(values, "chosen_us")?,
            },
            Reason::Probing { .. } => Reason::Probing { route: route(&take::<String>(values, "route")?)? },
            Reason::Demanded { .. } => Reason::Demanded { route: route(&take::<String>(values, "route")?)? },
            Reason::Rule { .. } => Reason::Rule { rule: take(values, "rule")? },
            Reason::AttemptsSpent { .. } => Reason::AttemptsSpent { attempts: take(values, "attempts")? },
            Reason::BelowFloor { .. } => Reason::BelowFloor { percent: take(values, "percent")? },
            plain => plain,
        };
        match self.values.keys().next() {
            Some(key) => Err(format!("reason `{}` has no value `{key}`", self.name)),
            None => Ok(reason),
        }
    }
}

fn take<T: DeserializeOwned>(values: &mut Map<String, Value>, key: &str) -> Result<T, String> {
    let value = values.remove(key).ok_or_else(|| format!("a reason lacks its value `{key}`"))?;
    serde_json::from_value(value).map_err(|error| format!("a reason's value `{key}`: {error}"))
}

/// The route of a name.
pub(super) fn route(name: &str) -> Result<RouteId, String> {
    RouteId::named(name).ok_or_else(|| format!("no route is called `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_comes_back() {
        let valued = [
            Reason::OtherUser { ours: 1, theirs: 2 },
            Reason::KernelRefuses { errno: 1 },
            Reason::KindUnsupported { kind: OpKind::Write },
            Reason::Demanded { route: RouteId::RDMA },
            Reason::Slower { expected_us: 3, chosen_us: 2 },
        ];
        for reason in Reason::ALL.into_iter().chain(valued) {
            let text = serde_json::to_string(&RawReason::of(reason)).unwrap();
            let back: RawReason = serde_json::from_str(&text).unwrap();
            assert_eq!(back.reason(), Ok(reason), "{text}");
        }
    }

    #[test]
    fn reasons_that_make_no_sense_are_refused() {
        for (text, words) in [
            (r#"{"code":4,"name":"other-user"}"#, "no reason has code 4"),
            (r#"{"code":99,"name":"x"}"#, "no reason has code 99"),
            (r#"{"code":8,"name":"kernel-refuses"}"#, "lacks its value `errno`"),
            (r#"{"code":8,"name":"kernel-refuses","values":{"errno":"x"}}"#, "value `errno`"),
            (r#"{"code":4,"name":"other-host","values":{"errno":1}}"#, "has no value `errno`"),
        ] {
            let raw: RawReason = serde_json::from_str(text).unwrap();
            let why = raw.reason().unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
