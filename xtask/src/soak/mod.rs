//! `cargo xtask soak`: real chaos. Several processes move bytes, every byte is compared by whoever received it, and
//! meanwhile processes are killed and stopped and links are cut. [`conductor`] is the run, [`fault`] what is done,
//! [`target`] and [`driver`] what a process does, [`ledger`] what must have come of it.

mod child;
mod conductor;
mod driver;
mod fault;
mod hand;
mod ledger;
mod netns;
mod pattern;
mod protocol;
mod proxy;
mod stage;
mod tally;
mod target;
mod vitals;
mod worker;

use crate::step::Outcome;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) use worker::{WorkerArgs, run as run_worker};

/// Arguments of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct SoakArgs {
    /// How long faults come, in minutes; starting and ending take some seconds more.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Repeats the faults of an earlier run [default: a new one].
    #[arg(long)]
    seed: Option<u64>,
    /// Print the ledger as one JSON object, alone on stdout.
    #[arg(long)]
    json: bool,
    /// Break something on purpose: the run must fail.
    #[arg(long, hide = true)]
    plant: Option<Plant>,
}

/// What a test breaks on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Plant {
    /// Bytes of a write change before its receiver looks.
    WrongByte,
    /// Descriptors and memory are not given back.
    Leak,
    /// Transfers do not end in time.
    Hang,
}

/// Half a minute of it, for the test command.
pub(crate) fn smoke() -> anyhow::Result<Outcome> {
    let ledger = conductor::run(Duration::from_secs(30), new_seed(), None)?;
    println!("{ledger}");
    match ledger.problems().first() {
        None => Ok(Outcome::Passed),
        Some(problem) => Ok(Outcome::Failed(format!("seed {}: {problem}", ledger.seed))),
    }
}

/// A seed short enough to be typed again.
fn new_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 32
}

/// Runs, prints the ledger, and fails unless it is clean.
pub(crate) fn run(args: &SoakArgs) -> anyhow::Result<ExitCode> {
    let length = Duration::try_from_secs_f64(args.minutes * 60.0)?;
    let seed = args.seed.unwrap_or_else(new_seed);
    eprintln!("soak: {} minutes, seed {seed}", args.minutes);
    let ledger = conductor::run(length, seed, args.plant)?;
    if args.json {
        println!("{}", serde_json::to_string(&ledger)?);
        eprintln!("{ledger}");
    } else {
        println!("{ledger}");
    }
    Ok(if ledger.problems().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
