//! `cargo xtask fuzz`: every fuzz target in `fuzz/`, run for a number of executions. New inputs go to a corpus under
//! `target/`; what stands in `fuzz/seeds/` and `fuzz/corpus/` is read and left as it is.

use crate::process::{self, answers, capture, expect_success, line_of, program, read_lines, succeed};
use crate::step::Outcome;
use crate::tools::CARGO_FUZZ;
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[derive(Args)]
pub(crate) struct FuzzArgs {
    /// Executions of each target.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Only these targets; may be given more than once.
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Print the counts as one JSON object, alone on stdout.
    ///
    /// `targets` has one entry a target: `executions` (inputs that were tried), `seconds` (wall time that libFuzzer
    /// reports), `passed` (false on a finding, with `executions` then the count up to it as far as it is known).
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Counts {
    target: String,
    executions: u64,
    seconds: u64,
    passed: bool,
}

#[derive(Serialize)]
struct Total {
    targets: Vec<Counts>,
    executions: u64,
}

pub(crate) fn run(args: &FuzzArgs) -> anyhow::Result<ExitCode> {
    let fuzz = match obtain()? {
        Ok(fuzz) => fuzz,
        Err(why) => {
            eprintln!("fuzz: not run: {why}");
            return Ok(ExitCode::from(2));
        }
    };
    let known = fuzz.targets()?;
    if let Some(unknown) = args.target.iter().find(|name| !known.contains(name)) {
        anyhow::bail!("there is no fuzz target `{unknown}`; there are: {}", known.join(", "));
    }
    let chosen = if args.target.is_empty() { known } else { args.target.clone() };
    anyhow::ensure!(!chosen.is_empty(), "fuzz/ has no targets");
    let mut targets = Vec::new();
    for target in chosen {
        eprintln!("\n==== fuzz {target}, {} executions", args.runs);
        targets.push(fuzz.run(target, args.runs)?);
    }
    let total = Total { executions: targets.iter().map(|counts| counts.executions).sum(), targets };
    report(&total, args.json)?;
    let failed = total.targets.iter().any(|counts| !counts.passed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Builds all targets with what is here; fetches nothing.
pub(crate) fn build() -> anyhow::Result<Outcome> {
    if let Err(why) = find_compiler()? {
        return Ok(Outcome::Skipped(why));
    }
    let Some(path) = CARGO_FUZZ.present()? else {
        return Ok(Outcome::Skipped("no cargo-fuzz here; `cargo xtask fuzz` builds it, once".to_string()));
    };
    succeed(Driver { path }.command().args(["build", "--fuzz-dir", "fuzz"]))?;
    Ok(Outcome::Passed)
}

/// cargo-fuzz, built now if need be, or why there can be no fuzzing here.
fn obtain() -> anyhow::Result<Result<Driver, String>> {
    if let Err(why) = find_compiler()? {
        return Ok(Err(why));
    }
    Ok(CARGO_FUZZ.obtain()?.map(|path| Driver { path }))
}

/// Why there can be no fuzzing here, if there can't.
fn find_compiler() -> anyhow::Result<Result<(), String>> {
    if !process::root().join("fuzz").join("Cargo.toml").is_file() {
        return Ok(Err("this tree has no fuzz/ package".to_string()));
    }
    if !answers(program("rustup").args(["run", "nightly", "rustc", "--version"])) {
        let remedy = "`rustup toolchain install nightly --profile minimal` gives it";
        return Ok(Err(format!("libFuzzer needs a nightly compiler, and rustup has none; {remedy}")));
    }
    Ok(Ok(()))
}

/// cargo-fuzz, run under the nightly toolchain.
struct Driver {
    path: PathBuf,
}

impl Driver {
    fn command(&self) -> Command {
        let mut command = program("rustup");
        command.args(["run", "nightly"]).arg(&self.path);
        // It would call the cargo that runs us, which is not the nightly one.
        command.env_remove("CARGO");
        command
    }

    fn targets(&self) -> anyhow::Result<Vec<String>> {
        let list = capture(self.command().args(["list", "--fuzz-dir", "fuzz"]))?;
        Ok(list.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string).collect())
    }

    fn run(&self, target: String, runs: u64) -> anyhow::Result<Counts> {
        let corpus = Path::new("target").join("fuzz-corpus").join(&target);
        std::fs::create_dir_all(process::root().join(&corpus))?;
        let mut command = self.command();
        command.args(["run", "--fuzz-dir", "fuzz", &target]).arg(&corpus);
        let kept = ["seeds", "corpus"].map(|folder| Path::new("fuzz").join(folder).join(&target));
        command.args(kept.iter().filter(|folder| process::root().join(folder).is_dir()));
        command.arg("--").arg(format!("-runs={runs}")).args(["-print_final_stats=1", "-timeout=20"]);
        let mut counts = Counts { target, executions: 0, seconds: 0, passed: true };
        let status = read_lines(&command, |line| {
            if is_news(line) {
                eprintln!("{line}");
            }
            counts.line(line);
        })?;
        if let Err(error) = expect_success(&line_of(&command), status) {
            counts.passed = false;
            eprintln!("FAILED: {error:#}");
        }
        Ok(counts)
    }
}

impl Counts {
    /// Takes one line of libFuzzer's output.
    fn line(&mut self, line: &str) {
        if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
            self.executions = number.trim().parse().unwrap_or(self.executions);
        } else if let Some(seconds) = seconds_of(line) {
            self.seconds = seconds;
        }
    }
}

/// Whether a line is worth showing: all but those about single inputs that went into the corpus.
fn is_news(line: &str) -> bool {
    !(line.starts_with('#') && ["\tNEW ", "\tREDUCE ", "\tRELOAD "].iter().any(|kind| line.contains(kind)))
}

/// The seconds of a line like `Done 1000 runs in 3 second(s)`.
fn seconds_of(line: &str) -> Option<u64> {
    let (_, rest) = line.strip_prefix("Done ")?.split_once(" runs in ")?;
    rest.split(' ').next()?.parse().ok()
}

fn report(total: &Total, json: bool) -> anyhow::Result<()> {
    if json {
        let text = serde_json::to_string(total).context("the counts could not be written as JSON")?;
        println!("{text}");
        return Ok(());
    }
    println!("\n{:24}  {:>12}  {:>7}  result", "target", "executions", "seconds");
    for Counts { target, executions, seconds, passed } in &total.targets {
        let result = if *passed { "nothing found" } else { "FAILED" };
        println!("{target:24}  {executions:12}  {seconds:7}  {result}");
    }
    println!("{} executions in all", total.executions);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_come_from_the_final_statistics() {
        let mut counts = Counts { target: "frame".to_string(), executions: 0, seconds: 0, passed: true };
        for line in [
            "#1024\tpulse  cov: 12 ft: 13 corp: 2/4b lim: 14 exec/s: 512 rss: 40Mb",
            "Done 2000 runs in 4 second(s)",
            "stat::number_of_executed_units: 2000",
            "stat::average_exec_per_sec:     500",
        ] {
            counts.line(line);
        }
        assert_eq!((counts.executions, counts.seconds), (2000, 4));
        assert_eq!(seconds_of("Done with it"), None);
        assert!(is_news("#4096\tpulse  cov: 1") && !is_news("#2903\tREDUCE cov: 105"));
    }
}
