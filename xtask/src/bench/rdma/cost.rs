//! What the transport costs over verbs in memory. Rule: what the verbs cost themselves is measured by the same chains posted raw, in the same run, and
//! taken off; instructions are counted as the difference of two runs of different lengths, so that what comes before is not in them.

use super::super::demand::{Limit, Verdict, alone};
use super::super::sample::median;
use super::build;
use crate::process::{answers, program};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// What a demand is against that needs valgrind.
pub(super) const AGAINST: &str = "callgrind";

const BATCH: u64 = 64;
/// Batches of the two runs.
const FEW: u64 = 50;
const MANY: u64 = 250;

const INSTRUCTIONS_MAX: Limit = Limit::AtMost(250.0);
const PIECE_MAX_NS: Limit = Limit::AtMost(60.0);

/// Measures and judges.
pub(super) fn measure(
    rounds: usize,
    raw: &mut File,
    failures: &mut Vec<String>,
) -> anyhow::Result<Vec<Verdict>> {
    let words =
        ["bench", "--package", "orbit-te-rdma", "--features", "testing", "--bench", "cost", "--no-run"];
    let cost = build(&words)?;
    let counted = if answers(program("valgrind").arg("--version")) {
        eprintln!("bench: rdma: instructions of a batch");
        let of = |who| -> anyhow::Result<f64> {
            let difference = count(&cost, who, MANY)? as f64 - count(&cost, who, FEW)? as f64;
            Ok(difference / ((MANY - FEW) * BATCH) as f64)
        };
        let (engine, device) = (of("engine")?, of("raw")?);
        writeln!(raw, "{{\"instructions\":{engine:.1},\"of_the_verbs\":{device:.1}}}")?;
        vec![engine - device]
    } else {
        failures.push("rdma, instructions: valgrind is not here".to_string());
        Vec::new()
    };
    eprintln!("bench: rdma: nanoseconds of a batch and of a list");
    let times = times(&cost, rounds, raw)?;
    let all = |value: fn(&Time) -> f64| times.iter().map(value).collect::<Vec<_>>();
    let what = "rdma, 64 writes in a batch";
    let list = "rdma, list of 100,000 pieces";
    // Told, since nothing is asked of them.
    let middle = |value: fn(&Time) -> f64| median(all(value).into_iter()).unwrap_or(f64::NAN);
    eprintln!(
        "bench: {what}: {:.1} ns for one, of which the verbs' {:.1}",
        middle(|t| t.op),
        middle(|t| t.raw_op)
    );
    eprintln!(
        "bench: {list}: {:.1} ns a piece, of which the verbs' {:.1}",
        middle(|t| t.piece),
        middle(|t| t.raw_piece)
    );
    Ok(vec![
        against(alone(&format!("{what}: instructions of one beside the verbs'"), INSTRUCTIONS_MAX, &counted)),
        alone(
            &format!("{list}: ns of a piece beside the verbs'"),
            PIECE_MAX_NS,
            &all(|t| t.piece - t.raw_piece),
        ),
    ])
}

fn against(verdict: Verdict) -> Verdict {
    Verdict { against: AGAINST.into(), ..verdict }
}

/// The instructions of a run.
fn count(cost: &Path, who: &str, batches: u64) -> anyhow::Result<u64> {
    let mut command = program("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(cost);
    let said = command.args(["count", who, "batch", &batches.to_string()]).output()?;
    let said_here = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.success(), "valgrind: {}", said_here.lines().last().unwrap_or_default());
    collected(&said_here).context("valgrind told no count")
}

fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

/// Nanoseconds of one round.
struct Time {
    op: f64,
    raw_op: f64,
    piece: f64,
    raw_piece: f64,
}

fn times(cost: &Path, rounds: usize, raw: &mut File) -> anyhow::Result<Vec<Time>> {
    let said = crate::process::capture(program(cost).args(["time", &rounds.to_string()]))?;
    let mut times = Vec::new();
    for line in said.lines() {
        writeln!(raw, "{line}")?;
        let found: Value = serde_json::from_str(line)?;
        let number = |name: &str| found[name].as_f64().with_context(|| format!("{name} is missing: {line}"));
        let (op, raw_op) = (number("op_ns")?, number("raw_op_ns")?);
        times.push(Time { op, raw_op, piece: number("piece_ns")?, raw_piece: number("raw_piece_ns")? });
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read() {
        let said = "==7== Events    : Ir\n==7== Collected : 107235886\n==7== \n";
        assert_eq!(collected(said), Some(107_235_886));
        assert_eq!(collected("==7== Collected : many\n"), None);
    }
}
