//! The engine over Soft-RoCE in the lab's guest, beside perftest and the bare call. Rule: all of it is one boot, and a ratio is made within a round.
//!
//! `ib_write_lat` tells half of a round trip of two writes, each seen by whoever waits for it in memory; a write of the engine's is over when its
//! completion has come. So it is held against twice that, and against `ib_write_bw` of depth 1, which waits for the same completion.

use super::super::demand::{Limit, Metric, Verdict, alone, ratio};
use super::super::engine::ListCosts;
use super::super::plan::{Case, KIB, MIB, Op, Point};
use super::super::sample::Sample;
use super::build;
use crate::lab;
use anyhow::Context;
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::time::Duration;

const OURS: &str = "orbit-te rdma";
const TWICE_LAT: &str = "2 × ib_write_lat";
const ALONE: &str = "ib_write_bw, depth 1";
/// What demands are against that need the lab.
pub(super) const AGAINST: [&str; 5] = ["ib_write_bw", "ib_read_bw", TWICE_LAT, ALONE, "bare verbs call"];

const DEPTH: usize = 16;
const LARGE: [usize; 2] = [64 * KIB, MIB];
const SMALL: [usize; 2] = [8, 4 * KIB];
const THROUGHPUT_MIN: Limit = Limit::AtLeast(0.95);
const LATENCY_MAX: Limit = Limit::AtMost(1.15);
const REGISTERING_MAX: Limit = Limit::AtMost(1.05);
/// Rounds of registering: each is short.
const REGISTERED: usize = 15;
/// 1 GiB is registered there.
const MEMORY_MIB: u32 = 2600;
const LIMIT_EACH: Duration = Duration::from_secs(90);

/// Boots and measures.
pub(super) fn measure(
    rounds: usize,
    seconds: f64,
    raw: &mut File,
) -> anyhow::Result<(Vec<Sample>, Vec<Verdict>)> {
    let engine = build(&["build", "--release", "--package", "orbit-te-cli"])?;
    let register = build(&["build", "--release", "--package", "orbit-te-rdma", "--example", "register"])?;
    eprintln!("bench: rdma: the lab's guest");
    let script = format!(
        "ROUNDS={rounds} REGISTERED={REGISTERED} SECONDS_EACH={seconds}\n{}",
        include_str!("guest.sh")
    );
    let said = lab::collect(&[engine, register], MEMORY_MIB, &script, LIMIT_EACH * (rounds as u32 + 1))?;
    for line in said.lines() {
        writeln!(raw, "{}", Value::from(line))?;
    }
    let (samples, registered) = read(&said)?;
    let verdicts = judge(&samples, &registered);
    Ok((samples, verdicts))
}

fn deep(op: Op, block: usize) -> Case {
    Case { depth: DEPTH, hot: true, ..Case::plain(op, Point { block, batch: 1 }) }
}

fn single(op: Op, block: usize) -> Case {
    Case { hot: true, ..Case::plain(op, Point { block, batch: 1 }) }
}

fn program_of(op: Op) -> &'static str {
    match op {
        Op::Write => "ib_write_bw",
        Op::Read => "ib_read_bw",
    }
}

/// The demands. `registered`: the ratios of registering to the bare call.
pub(super) fn judge(samples: &[Sample], registered: &[f64]) -> Vec<Verdict> {
    let mut all = Vec::new();
    for op in [Op::Write, Op::Read] {
        for block in LARGE {
            let (case, theirs) = (deep(op, block), program_of(op));
            let demand = format!("{OURS}, {case}: throughput");
            let against = (theirs, theirs, case);
            all.push(ratio(samples, demand, Metric::Throughput, (OURS, case), against, THROUGHPUT_MIN));
        }
    }
    for block in SMALL {
        let case = single(Op::Write, block);
        for theirs in [TWICE_LAT, ALONE] {
            let (what, metric) =
                if theirs == ALONE { ("rate", Metric::Throughput) } else { ("p50", Metric::Median) };
            let limit = if theirs == ALONE { Limit::AtLeast(0.87) } else { LATENCY_MAX };
            let demand = format!("{OURS}, {case}: {what}");
            all.push(ratio(samples, demand, metric, (OURS, case), (theirs, theirs, case), limit));
        }
    }
    let registering = alone("rdma, registering 1 GiB", REGISTERING_MAX, registered);
    all.push(Verdict { against: "bare verbs call".into(), ..registering });
    all
}

/// What the guest has said: samples, and how long registering took in units of the bare call.
fn read(said: &str) -> anyhow::Result<(Vec<Sample>, Vec<f64>)> {
    let (mut round, mut samples, mut registered) = (0, Vec::new(), Vec::new());
    for line in said.lines() {
        let line = line.trim();
        if let Some(number) = line.strip_prefix("round ") {
            round = number.parse()?;
        } else if let Some(row) = line.strip_prefix("perf ") {
            samples.push(of_perf(row, round).with_context(|| format!("perftest said: {line}"))?);
        } else if line.starts_with('{') {
            let found: Value = serde_json::from_str(line)?;
            match found["bare_ms"].as_f64().zip(found["ours_ms"].as_f64()) {
                Some((bare, ours)) => registered.push(ours / bare),
                None => samples.push(of_ours(&found, round).with_context(|| format!("it said: {line}"))?),
            }
        }
    }
    Ok((samples, registered))
}

fn of_ours(found: &Value, round: usize) -> Option<Sample> {
    let op = if found["op"] == "read" { Op::Read } else { Op::Write };
    let (block, depth) = (found["block_bytes"].as_u64()? as usize, found["depth"].as_u64()? as usize);
    let case = Case { depth, ..single(op, block) };
    let p50 = found["p50_us"].as_f64().filter(|_| depth == 1);
    let version = found["version"].as_str()?;
    Some(sample((OURS, version), case, round, (found["gib_per_s"].as_f64()?, p50)))
}

/// `PROGRAM SIZE DEPTH` and the row: size, times, then for throughput the peak and the average in MiB/s, for latency the least, the most and the median.
fn of_perf(row: &str, round: usize) -> Option<Sample> {
    let words: Vec<&str> = row.split_whitespace().collect();
    let [program, size, depth, _, _, numbers @ ..] = &words[..] else { return None };
    let (block, depth) = (size.parse::<usize>().ok()?, depth.parse::<usize>().ok()?);
    let number = |at: usize| numbers.get(at)?.parse::<f64>().ok();
    let version = "perftest";
    match (*program, depth) {
        ("ib_write_lat", _) => {
            let p50 = number(2)? * 2.0;
            let gib = block as f64 / (1u64 << 30) as f64;
            let case = single(Op::Write, block);
            Some(sample((TWICE_LAT, version), case, round, (gib / (p50 / 1e6), Some(p50))))
        }
        ("ib_write_bw", 1) => {
            Some(sample((ALONE, version), single(Op::Write, block), round, (number(1)? / 1024.0, None)))
        }
        ("ib_write_bw" | "ib_read_bw", _) => {
            let op = if *program == "ib_read_bw" { Op::Read } else { Op::Write };
            let case = Case { depth, ..single(op, block) };
            Some(sample((program, version), case, round, (number(1)? / 1024.0, None)))
        }
        _ => None,
    }
}

fn sample(
    (peer, version): (&str, &str),
    case: Case,
    round: usize,
    (gib_per_s, p50_us): (f64, Option<f64>),
) -> Sample {
    Sample {
        peer: peer.into(),
        version: version.into(),
        transport: "rdma, Soft-RoCE in QEMU".into(),
        op: case.op,
        block_bytes: case.block,
        batch: case.batch,
        depth: case.depth,
        hot: case.hot,
        form: case.form,
        checksum: case.checksum,
        round,
        gib_per_s,
        p50_us,
        p99_us: None,
        cpu_s_per_gib: None,
        costs: ListCosts::default(),
        verified: None,
        // Nobody looked at what else ran meanwhile.
        noise: f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = r#"
round 1
{"peer":"orbit-te","version":"0.1.0","op":"write","block_bytes":65536,"depth":16,"gib_per_s":0.05,"p50_us":900.0}
perf ib_write_bw 65536 16  65536      400              61.66              40.96              0.000628
{"peer":"orbit-te","version":"0.1.0","op":"write","block_bytes":8,"depth":1,"gib_per_s":0.0001,"p50_us":110.0}
perf ib_write_lat 8 0 8       1000          26.04          10271.04      50.00   632.03  1755.22  8115.89  10271.04
perf ib_write_bw 8 1  8          1000             0.11               0.10              0.004567
{"bare_ms":100.0,"ours_ms":104.0}
"#;

    #[test]
    fn what_the_guest_says_is_judged() {
        let (samples, registered) = read(SAID).unwrap();
        let all = judge(&samples, &registered);
        let value = |against: &str, demand: &str| {
            let found = all.iter().find(|v| v.against == against && v.demand.contains(demand)).unwrap();
            (found.value.map(|value| (value * 1000.0).round() / 1000.0), found.pass)
        };
        assert_eq!(value("ib_write_bw", "write 64 KiB"), (Some(1.25), Some(true)));
        assert_eq!(value("ib_write_bw", "write 1 MiB"), (None, None));
        assert_eq!(value(TWICE_LAT, "write 8 B"), (Some(1.1), Some(true)));
        assert_eq!(value(ALONE, "write 8 B"), (Some(1.024), Some(true)));
        assert_eq!(value("bare verbs call", "registering"), (Some(1.04), Some(true)));
        assert!(all.iter().all(|v| AGAINST.contains(&&*v.against)));
        assert!(read("perf ib_write_bw 8").is_err());
    }
}
