//! What was measured of a route, as a description keeps it. Rule: numbers that no measurement gives are refused; ages stand for times, since
//! a time of one machine means nothing on another.

use super::{Cell, Rates, SizeClass};
use crate::route::rule::RawKind;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The last class has no largest size; this one stands for it.
const LARGE_BYTES: u64 = 256 << 20;
/// No age is told that is longer: a day.
const MOST_AGE_MS: u64 = 86_400_000;

/// What was expected of the route at first.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::route) struct RawPrior {
    latency_ns: f32,
    ns_per_byte: f32,
    ns_per_piece: f32,
}

/// What ops of one direction and class of sizes were measured to take.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::route) struct RawCell {
    kind: RawKind,
    /// The largest size of the class.
    bytes: u64,
    /// What a contiguous op of that size takes.
    expected_ns: f32,
    /// How far ops lie from the mean, as a share of it.
    spread: f32,
    samples: u32,
    age_ms: u64,
}

impl Rates {
    /// What is known, as it was at this time.
    pub(in crate::route) fn save(&self, now: Instant) -> (RawPrior, Vec<RawCell>) {
        let prior = RawPrior {
            latency_ns: self.latency_ns,
            ns_per_byte: self.ns_per_byte,
            ns_per_piece: self.ns_per_piece,
        };
        let mut cells = Vec::new();
        for kind in [RawKind::Read, RawKind::Write] {
            for class in SizeClass::all() {
                let cell = &self.cells[kind.op() as usize][class.index()];
                if cell.samples == 0 {
                    continue;
                }
                let age = cell.touched.map_or(Duration::MAX, |then| now.saturating_duration_since(then));
                let bytes = class.most_bytes().min(LARGE_BYTES);
                cells.push(RawCell {
                    kind,
                    bytes,
                    expected_ns: self.prior_ns(bytes, 1) * cell.factor,
                    spread: cell.spread / cell.factor,
                    samples: cell.samples,
                    age_ms: u64::try_from(age.as_millis()).unwrap_or(MOST_AGE_MS).min(MOST_AGE_MS),
                });
            }
        }
        (prior, cells)
    }

    /// The same again, at this time.
    pub(in crate::route) fn restore(
        prior: RawPrior,
        cells: &[RawCell],
        now: Instant,
    ) -> Result<Rates, String> {
        let RawPrior { latency_ns, ns_per_byte, ns_per_piece } = prior;
        for (name, ns) in
            [("latency_ns", latency_ns), ("ns_per_byte", ns_per_byte), ("ns_per_piece", ns_per_piece)]
        {
            if !(0.0..=1e15).contains(&ns) {
                return Err(format!("`{name}` is {ns}, which is no time"));
            }
        }
        let mut rates = Rates { latency_ns, ns_per_byte, ns_per_piece, cells: Default::default() };
        for raw in cells {
            let class = SizeClass::of(raw.bytes);
            let prior = rates.prior_ns(raw.bytes, 1);
            let cell = &mut rates.cells[raw.kind.op() as usize][class.index()];
            if cell.samples > 0 {
                return Err(format!("ops like those of {} bytes are measured twice", raw.bytes));
            }
            if !(1e-3..=1e18).contains(&raw.expected_ns) || !(0.0..=1e6).contains(&raw.spread) {
                return Err(format!("what ops of {} bytes take is no time", raw.bytes));
            }
            if raw.samples == 0 || raw.age_ms > MOST_AGE_MS {
                return Err(format!("ops of {} bytes have no samples, or are over a day old", raw.bytes));
            }
            let factor = raw.expected_ns / prior;
            *cell = Cell {
                factor,
                spread: raw.spread * factor,
                samples: raw.samples,
                touched: now.checked_sub(Duration::from_millis(raw.age_ms)),
                ..Cell::default()
            };
        }
        Ok(rates)
    }
}
