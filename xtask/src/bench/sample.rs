//! Records: one of each repetition, and medians of them. Rule: field names are the schema that all engines' records
//! share; a value that an engine can't give is null.

use super::engine::ListCosts;
use super::peers::OWN;
use super::plan::{Case, Form, Op};
use serde::Serialize;

/// One repetition of one engine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Sample {
    pub(super) peer: String,
    pub(super) version: String,
    pub(super) transport: String,
    pub(super) op: Op,
    pub(super) block_bytes: usize,
    pub(super) batch: usize,
    pub(super) depth: usize,
    pub(super) hot: bool,
    pub(super) form: Form,
    pub(super) checksum: bool,
    /// Samples of the same round were taken next to each other: ratios are made within a round.
    pub(super) round: usize,
    pub(super) gib_per_s: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) cpu_s_per_gib: Option<f64>,
    #[serde(flatten)]
    pub(super) costs: ListCosts,
    pub(super) verified: Option<bool>,
    /// The share of the machine that others used meanwhile, just before, or just after: whichever is most.
    pub(super) noise: f64,
}

impl Sample {
    pub(super) fn case(&self) -> Case {
        let Sample { op, block_bytes: block, batch, depth, hot, form, checksum, .. } = *self;
        Case { op, block, batch, depth, hot, form, checksum }
    }
}

/// Medians of one engine's repetitions of one case.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Summary {
    pub(super) peer: String,
    pub(super) version: String,
    pub(super) transport: String,
    pub(super) op: Op,
    pub(super) block_bytes: usize,
    pub(super) batch: usize,
    pub(super) depth: usize,
    pub(super) hot: bool,
    pub(super) form: Form,
    pub(super) checksum: bool,
    pub(super) gib_per_s: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) cpu_s_per_gib: Option<f64>,
    pub(super) verified: Option<bool>,
    pub(super) reps: usize,
    pub(super) gib_per_s_min: f64,
    pub(super) gib_per_s_max: f64,
    pub(super) p50_us_min: Option<f64>,
    pub(super) p50_us_max: Option<f64>,
    /// The median of the ratios to the raw sockets' throughput in the same round.
    pub(super) vs_raw: Option<f64>,
    pub(super) noise: f64,
}

impl Summary {
    pub(super) fn case(&self) -> Case {
        let Summary { op, block_bytes: block, batch, depth, hot, form, checksum, .. } = *self;
        Case { op, block, batch, depth, hot, form, checksum }
    }
}

/// Medians of all samples, a record for each engine and case, in the order of cases, ours first.
pub(super) fn summarize(samples: &[Sample]) -> Vec<Summary> {
    let mut groups: Vec<Vec<&Sample>> = Vec::new();
    for sample in samples {
        match groups.iter_mut().find(|g| g[0].peer == sample.peer && g[0].case() == sample.case()) {
            Some(group) => group.push(sample),
            None => groups.push(vec![sample]),
        }
    }
    let rank = |peer: &str| OWN.iter().position(|own| *own == peer).unwrap_or(OWN.len());
    groups.sort_by_key(|g| {
        let Case { op, block, batch, depth, hot, form, checksum } = g[0].case();
        (form, batch, block, depth, hot, op, checksum, rank(&g[0].peer), g[0].peer.clone())
    });
    groups.iter().map(|group| summary(group, samples)).collect()
}

fn summary(group: &[&Sample], all: &[Sample]) -> Summary {
    let first = group[0];
    let rates = || group.iter().map(|s| s.gib_per_s);
    let p50 = || group.iter().filter_map(|s| s.p50_us);
    let vs_raw = group.iter().filter_map(|s| {
        let raw = all.iter().find(|r| r.peer == "raw" && r.round == s.round && r.case() == s.case())?;
        Some(s.gib_per_s / raw.gib_per_s)
    });
    Summary {
        peer: first.peer.clone(),
        version: first.version.clone(),
        transport: first.transport.clone(),
        op: first.op,
        block_bytes: first.block_bytes,
        batch: first.batch,
        depth: first.depth,
        hot: first.hot,
        form: first.form,
        checksum: first.checksum,
        gib_per_s: median(rates()).unwrap_or(0.0),
        p50_us: median(p50()),
        p99_us: median(group.iter().filter_map(|s| s.p99_us)),
        cpu_s_per_gib: median(group.iter().filter_map(|s| s.cpu_s_per_gib)),
        verified: group.iter().map(|s| s.verified).reduce(|a, b| Some(a? && b?)).flatten(),
        reps: group.len(),
        gib_per_s_min: rates().fold(f64::INFINITY, f64::min),
        gib_per_s_max: rates().fold(0.0, f64::max),
        p50_us_min: p50().reduce(f64::min),
        p50_us_max: p50().reduce(f64::max),
        vs_raw: median(vs_raw),
        noise: median(group.iter().map(|s| s.noise)).unwrap_or(0.0),
    }
}

/// The middle value; of an even number, the mean of the two in the middle.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// The value of rank `q · n` in sorted values; the largest where there are too few for the rank. The other engines'
/// workers use the same rule.
pub(super) fn percentile<T: Copy>(sorted: &[T], q: f64) -> Option<T> {
    let rank = (q * sorted.len() as f64) as usize;
    sorted.get(rank).or(sorted.last()).copied()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::Point;
    use super::*;

    /// A sample of `peer` with only a throughput.
    pub(crate) fn sample(peer: &str, case: Case, round: usize, gib_per_s: f64) -> Sample {
        Sample {
            peer: peer.into(),
            version: "1".into(),
            transport: "tcp".into(),
            op: case.op,
            block_bytes: case.block,
            batch: case.batch,
            depth: case.depth,
            hot: case.hot,
            form: case.form,
            checksum: case.checksum,
            round,
            gib_per_s,
            p50_us: Some(10.0),
            p99_us: Some(30.0),
            cpu_s_per_gib: Some(0.5),
            costs: ListCosts::default(),
            verified: Some(true),
            noise: 0.0,
        }
    }

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
        let hundred: Vec<u32> = (0..100).collect();
        assert_eq!(percentile(&hundred, 0.5), Some(50));
        assert_eq!(percentile(&hundred, 0.99), Some(99));
        assert_eq!(percentile(&hundred[..3], 0.99), Some(2));
        assert_eq!(percentile::<u32>(&[], 0.5), None);
    }

    #[test]
    fn a_summary_pairs_by_round() {
        let case = Case::plain(Op::Write, Point { block: 4096, batch: 1 });
        let samples = [(1, 1.0, 2.0), (2, 4.0, 4.0), (3, 2.0, 6.0)]
            .iter()
            .flat_map(|(round, raw, ours)| {
                [sample("raw", case, *round, *raw), sample("orbit-te", case, *round, *ours)]
            })
            .collect::<Vec<_>>();
        let records = summarize(&samples);
        assert_eq!(records.len(), 2);
        assert_eq!(records[1].gib_per_s, 4.0);
        assert_eq!(records[1].vs_raw, Some(2.0));
        assert_eq!((records[1].gib_per_s_min, records[1].gib_per_s_max), (2.0, 6.0));
        assert_eq!(records[1].verified, Some(true));
    }
}
