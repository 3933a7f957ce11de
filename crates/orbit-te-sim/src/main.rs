//! The program that `cargo xtask sim` starts: simulates a range of seeds, one after the other. Rule: what it prints is JSON, one
//! object a line: a sum every so often, and each seed that failed.

#![deny(unsafe_code)]

use clap::Parser;
use orbit_te_sim::{Counts, Options, Outcome, RDMA_FAULTS, run};
use serde_json::json;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Seeds after which a sum is printed.
const REPORT_EVERY: u64 = 20;

#[derive(Parser)]
#[command(name = "orbit-te-sim", about)]
struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How many.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// From one seed to the next.
    #[arg(long, default_value_t = 1)]
    stride: u64,
    /// With or without RDMA devices in all runs, instead of in those whose seed has it so.
    #[arg(long, value_name = "BOOL")]
    rdma: Option<bool>,
    /// Print how each seed ended.
    #[arg(long)]
    each: bool,
    /// Print what the engines log, to this filter: "debug", or "orbit_te_rdma=debug".
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(filter) = args.log.as_deref() {
        // The time of the system says nothing about a run.
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .without_time()
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
    }
    let options = Options { rdma: args.rdma, ..Options::default() };
    let mut failed = false;
    let (mut seeds, mut sum) = (0, Counts::default());
    for k in 0..args.seeds {
        let seed = args.from + k * args.stride;
        match catch_unwind(AssertUnwindSafe(|| run(seed, &options))) {
            Err(_) => {
                failed = true;
                say(&json!({ "seed": seed, "violations": ["it panicked; the words are on stderr"] }));
            }
            Ok(outcome) => {
                sum.add(&outcome.counts);
                if !outcome.violations.is_empty() {
                    failed = true;
                    say(&of_failure(&outcome));
                }
                if args.each {
                    let Outcome { seed, hash, virtual_ns, counts, faults, .. } = &outcome;
                    eprintln!(
                        "seed {seed}: hash {hash:016x}, {:.3} s, {counts:?}, {faults:?}",
                        *virtual_ns as f64 / 1e9
                    );
                }
            }
        }
        seeds += 1;
        if seeds == REPORT_EVERY || k + 1 == args.seeds {
            say(&of_sum(seeds, &sum));
            (seeds, sum) = (0, Counts::default());
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn of_failure(outcome: &Outcome) -> serde_json::Value {
    let words: Vec<String> = outcome.violations.iter().map(ToString::to_string).collect();
    json!({ "seed": outcome.seed, "violations": words })
}

fn of_sum(seeds: u64, sum: &Counts) -> serde_json::Value {
    json!({
        "seeds": seeds,
        "transfers": sum.transfers,
        "succeeded": sum.succeeded,
        "same_host": sum.same_host,
        "rdma": sum.rdma,
        "rdma_faults": RDMA_FAULTS.iter().zip(sum.rdma_faults).collect::<std::collections::BTreeMap<_, _>>(),
        "retried": sum.retried,
        "failed": sum.failed,
        "lists": sum.lists,
        "damaged": sum.damaged,
        "notifications": sum.notifications,
        "opened": sum.opened,
        "withdrawn": sum.withdrawn,
        "revoked": sum.revoked,
        "disturbances": sum.disturbances,
    })
}

fn say(line: &serde_json::Value) {
    // Whoever started us has gone, if nobody reads it.
    let _ = writeln!(std::io::stdout(), "{line}");
}
