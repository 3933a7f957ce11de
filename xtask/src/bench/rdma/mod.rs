//! The series over RDMA: [`cost`] is what an op and a piece cost over verbs in memory, beside the same WRs posted raw; [`guest`] is the engine over
//! real verbs in the lab's guest, beside perftest's programs and the bare call, in one boot. Rule: what can't be had here is left out aloud.

mod cost;
mod guest;

use super::demand::Verdict;
use super::sample::summarize;
use super::{BenchArgs, Found};
use crate::process::{cargo, expect_success, line_of};
use anyhow::Context;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The name by which the series is chosen.
pub(super) const NAME: &str = "rdma";

/// Whether it is measured, given the names that were chosen.
pub(super) fn is_wanted(only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|name| name == NAME)
}

/// Whether a demand against this needs a program that may not be there.
pub(super) fn needs_others(against: &str) -> bool {
    cost::AGAINST == against || guest::AGAINST.contains(&against)
}

/// Measures all of it.
pub(super) fn measure(args: &BenchArgs, out: &Path) -> anyhow::Result<Found> {
    let mut raw = File::create(out.join("rdma.jsonl"))?;
    let mut failures = Vec::new();
    let mut verdicts: Vec<Verdict> = cost::measure(args.reps.into(), &mut raw, &mut failures)?;
    let samples = match guest::measure(args.reps.into(), args.seconds, &mut raw) {
        Ok((samples, judged)) => {
            verdicts.extend(judged);
            samples
        }
        Err(error) => {
            verdicts.extend(guest::judge(&[], &[]));
            failures.push(format!("{NAME}, in the lab's guest: {error:#}"));
            Vec::new()
        }
    };
    for failure in &failures {
        eprintln!("bench: left out: {failure}");
    }
    Ok((summarize(&samples), verdicts, failures))
}

/// Builds one program with optimizations, and says where it is.
fn build(words: &[&str]) -> anyhow::Result<PathBuf> {
    let mut build = cargo();
    build.args(words).args(["--message-format", "json"]);
    let output = build.stderr(Stdio::inherit()).output().context("cargo could not be started")?;
    expect_success(&line_of(&build), output.status)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut found = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    found.next_back().with_context(|| format!("`{}` built no program", line_of(&build)))
}
