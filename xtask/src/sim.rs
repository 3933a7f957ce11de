//! `cargo xtask sim`: simulated runs of whole engines, many seeds in several processes. What is simulated, and what is checked, is
//! in the crate `orbit-te-sim`.

use crate::process::{cargo, program, read_lines, root, succeed};
use crate::step::Outcome;
use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::Instant;

/// The seeds that `cargo xtask test` runs.
const STEP_SEEDS: u64 = 2_000;
/// Seeds of which some have RDMA, for certain; and so many that each fault of it is met.
const ENOUGH_FOR_RDMA: u64 = 40;
const ENOUGH_FOR_FAULTS: u64 = 1_000;
/// Failing seeds that are told.
const MOST_TOLD: usize = 20;

#[derive(Args)]
pub(crate) struct SimArgs {
    /// How many seeds.
    #[arg(long, value_name = "N", default_value_t = STEP_SEEDS, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, value_name = "S", default_value_t = 0)]
    from: u64,
    /// Processes that simulate side by side. Default: one for each CPU.
    #[arg(long, value_name = "J")]
    jobs: Option<u64>,
    /// Print the result as one JSON object, alone on stdout.
    ///
    /// `seeds`, `seconds` (wall time), `transfers` (that began) and how many of them `succeeded` or `failed`,
    /// `same_host` (succeeded without the network), `rdma` (succeeded by RDMA), `rdma_faults` (how often each fault of RDMA devices was met),
    /// `retried` (requests, on another route or the same), `notifications`
    /// (delivered), `lists` (posted), `damaged` (payload bytes changed on their way), `opened` (segments), `withdrawn` (regions
    /// revoked or retired), `revoked` (grants alone), `disturbances` (crashes, shutdowns, stalls and cuts), `failures` (`seed`,
    /// and the `violations` in words).
    #[arg(long)]
    json: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct Sum {
    seeds: u64,
    transfers: u64,
    succeeded: u64,
    same_host: u64,
    rdma: u64,
    failed: u64,
    retried: u64,
    lists: u64,
    damaged: u64,
    notifications: u64,
    opened: u64,
    withdrawn: u64,
    revoked: u64,
    disturbances: u64,
    rdma_faults: BTreeMap<String, u64>,
}

#[derive(Serialize, Deserialize)]
struct Failure {
    seed: u64,
    violations: Vec<String>,
}

#[derive(Default, Serialize)]
struct Total {
    #[serde(flatten)]
    sum: Sum,
    seconds: f64,
    failures: Vec<Failure>,
}

/// What the program says in one line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Failure(Failure),
    Sum(Sum),
}

pub(crate) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    let total = simulate(args.from, args.seeds, args.jobs)?;
    if args.json {
        println!("{}", serde_json::to_string(&total).context("the result could not be written as JSON")?);
    } else {
        tell(&total);
    }
    Ok(if total.failures.is_empty() && !is_blind(&total.sum) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The step of `cargo xtask test`.
pub(crate) fn step() -> anyhow::Result<Outcome> {
    let total = simulate(0, STEP_SEEDS, None)?;
    tell(&total);
    Ok(match total.failures.first() {
        None if is_blind(&total.sum) => Outcome::Failed("RDMA is not simulated".to_string()),
        None => Outcome::Passed,
        Some(first) => Outcome::Failed(format!("seed {}: {}", first.seed, first.violations.join("; "))),
    })
}

fn simulate(from: u64, seeds: u64, jobs: Option<u64>) -> anyhow::Result<Total> {
    let mut build = cargo();
    build.args([
        "build",
        "--quiet",
        "--profile",
        "sim",
        "--package",
        "orbit-te-sim",
        "--bin",
        "orbit-te-sim",
    ]);
    succeed(&mut build)?;
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let jobs = jobs.unwrap_or(cpus).clamp(1, seeds);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {elapsed}, {eta} left; {msg}")?;
    let bar = ProgressBar::new(seeds).with_style(style);
    let start = Instant::now();
    let total = Mutex::new(Total::default());
    let results: Vec<anyhow::Result<()>> = std::thread::scope(|scope| {
        let job = |k: u64| {
            // Each job takes every so-many-th seed, so that all of them end at about the same time.
            let mine = (seeds - k).div_ceil(jobs);
            let command = simulator(from + k, mine, jobs);
            let (bar, total) = (&bar, &total);
            scope.spawn(move || one_job(&command, mine, bar, total))
        };
        let jobs: Vec<_> = (0..jobs).map(job).collect();
        jobs.into_iter()
            .map(|job| job.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked")))
            .collect()
    });
    bar.finish_and_clear();
    results.into_iter().collect::<anyhow::Result<()>>()?;
    let mut total = total.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    total.failures.sort_by_key(|failure| failure.seed);
    total.seconds = start.elapsed().as_secs_f64();
    Ok(total)
}

fn simulator(from: u64, seeds: u64, stride: u64) -> Command {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir));
    let mut command = program(target.join("sim").join("orbit-te-sim"));
    let numbers = [("--from", from), ("--seeds", seeds), ("--stride", stride)];
    numbers.iter().for_each(|(name, number)| {
        command.arg(name).arg(number.to_string());
    });
    command
}

fn one_job(command: &Command, seeds: u64, bar: &ProgressBar, total: &Mutex<Total>) -> anyhow::Result<()> {
    let mut done = 0;
    let status = read_lines(command, |line| {
        let mut total = total.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match serde_json::from_str(line) {
            Ok(Line::Failure(failure)) => total.failures.push(failure),
            Ok(Line::Sum(sum)) => {
                done += sum.seeds;
                bar.inc(sum.seeds);
                total.sum.add(&sum);
            }
            // The words of a panic.
            Err(_) => bar.suspend(|| eprintln!("{line}")),
        }
        bar.set_message(format!("{} transfers, {} failures", total.sum.transfers, total.failures.len()));
    })?;
    anyhow::ensure!(done == seeds, "the simulation ended after {done} of {seeds} seeds: {status}");
    Ok(())
}

impl Sum {
    fn add(&mut self, other: &Sum) {
        self.seeds += other.seeds;
        self.transfers += other.transfers;
        self.succeeded += other.succeeded;
        self.same_host += other.same_host;
        self.rdma += other.rdma;
        for (fault, met) in &other.rdma_faults {
            *self.rdma_faults.entry(fault.clone()).or_default() += met;
        }
        self.failed += other.failed;
        self.retried += other.retried;
        self.lists += other.lists;
        self.damaged += other.damaged;
        self.notifications += other.notifications;
        self.opened += other.opened;
        self.withdrawn += other.withdrawn;
        self.revoked += other.revoked;
        self.disturbances += other.disturbances;
    }
}

fn tell(total: &Total) {
    for Failure { seed, violations } in total.failures.iter().take(MOST_TOLD) {
        println!("seed {seed} FAILED:");
        violations.iter().for_each(|violation| println!("  {violation}"));
        println!("  to repeat it: cargo xtask sim --seeds 1 --from {seed}");
    }
    let Sum {
        seeds,
        transfers,
        succeeded,
        same_host,
        rdma,
        failed,
        retried,
        lists,
        damaged,
        notifications,
        opened,
        withdrawn,
        revoked,
        disturbances,
        rdma_faults,
    } = &total.sum;
    println!(
        "{seeds} seeds in {:.1} s, {} failed: {transfers} transfers ({succeeded} succeeded, {same_host} of them \
         without the network, {rdma} by RDMA, {failed} failed as they should), {retried} requests tried again, {lists} lists posted, {damaged} bytes damaged, {notifications} notifications, {opened} segments opened, \
         {withdrawn} regions withdrawn, {revoked} peers' grants revoked, {disturbances} crashes, shutdowns, stalls and cuts",
        total.seconds,
        total.failures.len(),
    );
    let met: Vec<String> =
        rdma_faults.iter().map(|(fault, met)| format!("{met} {}", fault.replace('_', " "))).collect();
    println!("of RDMA devices were met: {}", met.join(", "));
    if is_blind(&total.sum) {
        println!("FAILED: RDMA carried nothing, or a fault of it was never met: it is not simulated");
    }
}

/// Whether a run is long enough to say so, and nothing of RDMA was simulated, or a fault of it never.
fn is_blind(sum: &Sum) -> bool {
    let never = sum.seeds >= ENOUGH_FOR_FAULTS && sum.rdma_faults.values().any(|met| *met == 0);
    sum.seeds >= ENOUGH_FOR_RDMA && (sum.rdma == 0 || never)
}
