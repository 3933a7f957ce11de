//! What is demanded of the engine, as ratios to others measured in the same run. Rule: a ratio is made within a round;
//! its value is the median over the rounds. What was not measured is said to be, and is neither passed nor failed.

use super::plan::{Case, KIB, MIB, Op, Point};
use super::sample::{Sample, median};
use serde::{Serialize, Serializer};
use std::fmt;

pub(super) const OURS: &str = "orbit-te";
pub(super) const RAW: &str = "raw";
/// Raw sockets, held against another case than the same one.
const STREAM: &str = "raw stream";
const OTHERS: [&str; 3] = ["mooncake", "nixl", "dlslime"];
pub(super) const UCX: &str = "ucx_perftest";
const DEPTH: usize = 16;

/// Where a value has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Limit {
    AtLeast(f64),
    AtMost(f64),
    Above(f64),
    Below(f64),
}

impl Limit {
    fn holds(self, value: f64) -> bool {
        match self {
            Limit::AtLeast(x) => value >= x,
            Limit::AtMost(x) => value <= x,
            Limit::Above(x) => value > x,
            Limit::Below(x) => value < x,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, x) = match self {
            Limit::AtLeast(x) => ("≥", x),
            Limit::AtMost(x) => ("≤", x),
            Limit::Above(x) => (">", x),
            Limit::Below(x) => ("<", x),
        };
        f.pad(&format!("{sign} {x}"))
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A demand and what was found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Verdict {
    pub(super) demand: String,
    pub(super) against: String,
    pub(super) limit: Limit,
    pub(super) value: Option<f64>,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) rounds: usize,
    /// The median over the rounds of what others used of the machine, at the worse of the two measurements.
    pub(super) noise: Option<f64>,
    /// None where it was not measured.
    pub(super) pass: Option<bool>,
}

impl Verdict {
    fn new(demand: String, against: &str, limit: Limit, found: &[Found]) -> Verdict {
        let values = || found.iter().map(|f| f.value);
        let value = median(values());
        Verdict {
            demand,
            against: against.into(),
            limit,
            value,
            min: values().reduce(f64::min),
            max: values().reduce(f64::max),
            rounds: found.len(),
            noise: median(found.iter().map(|f| f.noise)),
            pass: value.map(|v| limit.holds(v)),
        }
    }

    /// Whether it was not met, or not measured though it needs no other engine.
    pub(super) fn is_unmet(&self) -> bool {
        let needs_others = OTHERS.contains(&&*self.against)
            || self.against == UCX
            || super::same_host::needs_others(&self.against)
            || super::rdma::needs_others(&self.against);
        self.pass == Some(false) || (self.pass.is_none() && !needs_others)
    }
}

/// What one round found.
struct Found {
    value: f64,
    noise: f64,
}

/// What is measured of the engine beside repetitions; none where it could not be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Facts {
    /// The larger of both processes' peaks, beside the user's buffer.
    pub(super) beside_bytes: Option<f64>,
    /// Both processes together.
    pub(super) idle_cpu_s: Option<f64>,
}

/// What a comparison is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Metric {
    Throughput,
    Median,
    Cpu,
}

impl Metric {
    fn of(self, sample: &Sample) -> Option<f64> {
        match self {
            Metric::Throughput => Some(sample.gib_per_s),
            Metric::Median => sample.p50_us,
            Metric::Cpu => sample.cpu_s_per_gib,
        }
    }
}

/// The same case with many submissions in flight, over the whole buffer.
pub(super) fn deep(op: Op, block: usize) -> Case {
    Case { depth: DEPTH, ..Case::plain(op, Point { block, batch: 1 }) }
}

/// The same again, always the same bytes.
pub(super) fn deep_hot(op: Op, block: usize) -> Case {
    Case { hot: true, ..deep(op, block) }
}

/// The raw stream beside which [`deep`] is measured.
pub(super) fn is_stream(case: Case) -> bool {
    case.block == 64 * KIB && case.batch == 128
}

pub(super) fn is_large(case: Case) -> bool {
    case.batch == 1 && case.block >= MIB
}

/// A demand on our case `ours` as a ratio to another's: what stands in the table, the engine, and its case.
pub(super) fn compare(
    samples: &[Sample],
    what: &str,
    metric: Metric,
    ours: Case,
    theirs: (&str, &str, Case),
    limit: Limit,
) -> Verdict {
    ratio(samples, format!("{ours}: {what}"), metric, (OURS, ours), theirs, limit)
}

/// The same for a case of any name.
pub(super) fn ratio(
    samples: &[Sample],
    demand: String,
    metric: Metric,
    (name, ours): (&str, Case),
    (against, peer, theirs): (&str, &str, Case),
    limit: Limit,
) -> Verdict {
    let ratio = |s: &Sample| {
        let mut others = samples.iter().filter(|o| o.peer == peer && o.case() == theirs);
        let other = others.find(|o| o.round == s.round)?;
        Some(Found { value: metric.of(s)? / metric.of(other)?, noise: s.noise.max(other.noise) })
    };
    let mine = samples.iter().filter(|s| s.peer == name && s.case() == ours);
    Verdict::new(demand, against, limit, &mine.filter_map(ratio).collect::<Vec<_>>())
}

/// A demand on our case `ours` by a value that is its own.
pub(super) fn own(
    samples: &[Sample],
    what: &str,
    ours: Case,
    against: &str,
    limit: Limit,
    value: impl Fn(&Sample) -> Option<f64>,
) -> Verdict {
    absolute(samples, format!("{ours}: {what}"), (OURS, ours), against, limit, value)
}

/// The same for a case of any name.
pub(super) fn absolute(
    samples: &[Sample],
    demand: String,
    (name, ours): (&str, Case),
    against: &str,
    limit: Limit,
    value: impl Fn(&Sample) -> Option<f64>,
) -> Verdict {
    let mine = samples.iter().filter(|s| s.peer == name && s.case() == ours);
    let found = mine.filter_map(|s| Some(Found { value: value(s)?, noise: s.noise }));
    Verdict::new(demand, against, limit, &found.collect::<Vec<_>>())
}

/// A demand on what was measured apart from any case, once a round, without a look at what else ran.
pub(super) fn alone(demand: &str, limit: Limit, values: &[f64]) -> Verdict {
    let found: Vec<Found> = values.iter().map(|value| Found { value: *value, noise: f64::NAN }).collect();
    Verdict::new(demand.into(), "", limit, &found)
}

/// The demands on `points`, judged.
pub(super) fn judge(samples: &[Sample], points: &[Point], facts: Facts) -> Vec<Verdict> {
    let mut all = Vec::new();
    let against = |what: &str, metric: Metric, ours: Case, peer: &str, theirs: Case, limit| {
        let name = if peer == STREAM { RAW } else { peer };
        compare(samples, what, metric, ours, (peer, name, theirs), limit)
    };
    for op in [Op::Write, Op::Read] {
        for point in points {
            let case = Case::plain(op, *point);
            if is_large(case) {
                all.push(against("throughput", Metric::Throughput, case, RAW, case, Limit::AtLeast(1.0)));
                for peer in OTHERS {
                    let limit = if peer == "mooncake" { Limit::AtLeast(1.4) } else { Limit::Above(1.0) };
                    all.push(against("throughput", Metric::Throughput, case, peer, case, limit));
                }
                let hot = deep_hot(op, case.block);
                let limit = Limit::AtLeast(0.9);
                all.push(against("throughput", Metric::Throughput, hot, UCX, hot, limit));
            } else if case.batch == 1 {
                all.push(against("p50", Metric::Median, case, RAW, case, Limit::AtMost(1.25)));
                for peer in OTHERS {
                    all.push(against("p50", Metric::Median, case, peer, case, Limit::Below(1.0)));
                }
                let tail = |s: &Sample| Some(s.p99_us? / s.p50_us?);
                all.push(own(samples, "p99", case, "own p50", Limit::AtMost(4.0), tail));
            } else if is_stream(case) {
                let limit = Limit::AtLeast(0.9);
                all.push(against("throughput", Metric::Throughput, case, RAW, case, limit));
                let deep = deep(op, case.block);
                all.push(against("throughput", Metric::Throughput, deep, STREAM, case, limit));
            }
            all.push(against("CPU s/GiB", Metric::Cpu, case, RAW, case, Limit::AtMost(1.1)));
        }
    }
    let fact = |demand: &str, limit, value: Option<f64>| {
        let found = value.map(|value| Found { value, noise: 0.0 });
        Verdict::new(demand.into(), "", limit, found.as_slice())
    };
    let mib = facts.beside_bytes.map(|b| b / MIB as f64);
    all.push(fact("memory beside the user's, MiB", Limit::Below(32.0), mib));
    all.push(fact("CPU of an idle pair in 2 s, s", Limit::AtMost(0.002), facts.idle_cpu_s));
    all
}

#[cfg(test)]
mod tests {
    use super::super::plan::POINTS;
    use super::super::sample::tests::sample;
    use super::*;

    fn verdict<'a>(all: &'a [Verdict], demand: &str, against: &str) -> &'a Verdict {
        all.iter().find(|v| v.demand == demand && v.against == against).unwrap()
    }

    #[test]
    fn ratios_are_made_within_a_round() {
        let case = Case::plain(Op::Write, Point { block: MIB, batch: 1 });
        // The machine was twice as fast in round 2: a ratio of medians would be wrong, one by round is not.
        let samples = [
            sample("raw", case, 1, 2.0),
            sample(OURS, case, 1, 2.2),
            sample("raw", case, 2, 4.0),
            sample(OURS, case, 2, 4.4),
            sample(OURS, case, 3, 1.0),
        ];
        let all = judge(&samples, &POINTS, Facts::default());
        let found = verdict(&all, "write 1 MiB: throughput", "raw");
        assert_eq!((found.value, found.rounds, found.pass), (Some(1.1), 2, Some(true)));
        assert_eq!(verdict(&all, "write 1 MiB: throughput", "mooncake").pass, None);
        assert_eq!(verdict(&all, "write 1 MiB: CPU s/GiB", "raw").value, Some(1.0));
        assert_eq!(verdict(&all, "read 1 MiB: throughput", "raw").pass, None);
    }

    #[test]
    fn depth_is_held_against_the_stream() {
        let stream = Case::plain(Op::Read, Point { block: 64 * KIB, batch: 128 });
        let samples = [sample("raw", stream, 1, 4.0), sample(OURS, deep(Op::Read, 64 * KIB), 1, 3.0)];
        let all = judge(&samples, &POINTS, Facts::default());
        let found = verdict(&all, "read 64 KiB, depth 16: throughput", "raw stream");
        assert_eq!((found.value, found.pass), (Some(0.75), Some(false)));
    }

    #[test]
    fn what_was_not_measured_is_unmet_unless_it_needs_others() {
        let case = Case::plain(Op::Read, POINTS[2]);
        for (against, unmet) in [("raw", true), ("own p50", true), ("", true), ("nixl", false), (UCX, false)]
        {
            let verdict =
                compare(&[], "p50", Metric::Median, case, (against, against, case), Limit::AtMost(1.0));
            assert_eq!((verdict.pass, verdict.is_unmet()), (None, unmet), "{against}");
        }
        let samples = [sample("nixl", case, 1, 4.0), sample(OURS, case, 1, 3.0)];
        let all = judge(&samples, &POINTS[2..3], Facts::default());
        assert!(verdict(&all, "read 1 MiB: throughput", "nixl").is_unmet());
    }

    #[test]
    fn tails_memory_and_idling() {
        let case = Case::plain(Op::Read, Point { block: 4 * KIB, batch: 1 });
        let facts = Facts { beside_bytes: Some(32.0 * MIB as f64), idle_cpu_s: Some(0.0) };
        let all = judge(&[sample(OURS, case, 1, 1.0)], &POINTS, facts);
        assert_eq!(verdict(&all, "read 4 KiB: p99", "own p50").value, Some(3.0));
        assert_eq!(verdict(&all, "memory beside the user's, MiB", "").pass, Some(false));
        assert_eq!(verdict(&all, "CPU of an idle pair in 2 s, s", "").pass, Some(true));
    }
}
