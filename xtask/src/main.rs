//! `cargo xtask`: what a change to this repository needs beside `cargo` itself. One file a command.

mod apt;
mod bench;
mod bindings;
mod debian;
mod fuzz;
mod lab;
mod models;
mod msrv;
mod process;
mod sanitize;
mod sim;
mod soak;
mod step;
mod tally;
mod test;
mod tools;

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about)]
enum Command {
    /// Check everything: formatting, lints, docs, dependencies, all tests, the oldest compiler, fuzz targets.
    Test(test::TestArgs),
    /// Build the workspace with the oldest compiler it promises to work with.
    ///
    /// Exits with 0 when it built, 1 when it did not, and 2 when that compiler can't be had here.
    Msrv,
    /// Run every fuzz target, and count the executions.
    ///
    /// Exits with 0 when nothing was found, 1 on a finding, and 2 when fuzzing can't be had here.
    Fuzz(fuzz::FuzzArgs),
    /// Simulate whole engines on a network in memory, with faults: one run for each seed.
    ///
    /// Exits with 0 when all promises held, and 1 when not, with the failing seeds.
    Sim(sim::SimArgs),
    /// Make the checked-in bindings of libibverbs again from the published crate, or only compare them.
    ///
    /// Exits with 1 when `--check` finds that they differ.
    Bindings(bindings::BindingsArgs),
    /// Compare the engine with plain sockets, and with other engines, over loopback.
    ///
    /// Exits with 3 when `--check` finds a demand unmet.
    Bench(bench::BenchArgs),
    /// Run the models of what threads share in every order of a few threads.
    ///
    /// Exits with 0 when all passed and the planted races were found, and 1 otherwise.
    Loom,
    /// Run the models of what threads share in random orders of many threads.
    ///
    /// Exits as `loom` does.
    Shuttle,
    /// Run tests under AddressSanitizer and LeakSanitizer.
    ///
    /// Exits with 0 when the plants were found and nothing else, 1 otherwise, and 2 when it can't be had here.
    Asan,
    /// Run tests under ThreadSanitizer.
    ///
    /// Exits as `asan` does.
    Tsan,
    /// Run tests with a standard library whose checks of its unsafe functions are on.
    ///
    /// Exits as `asan` does.
    Careful,
    /// Run tests under Miri.
    ///
    /// Exits as `asan` does.
    Miri,
    /// Move bytes between processes that are killed, stopped and cut off, and see that nothing is wrong, hangs or leaks.
    ///
    /// Exits with 1 unless the ledger is clean.
    Soak(soak::SoakArgs),
    /// Run commands and tests on real RDMA verbs, in a guest of QEMU's.
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// One side of a pair that the bench measures; speaks JSON lines on stdin and stdout.
    #[command(hide = true)]
    BenchWorker(bench::WorkerArgs),
    /// One process of a soak; speaks JSON lines on stdin and stdout.
    #[command(hide = true)]
    SoakWorker(soak::WorkerArgs),
}

fn main() -> ExitCode {
    let ended = match Command::parse() {
        Command::Test(args) => test::run(&args),
        Command::Msrv => msrv::run(),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Bindings(args) => bindings::run(&args),
        Command::Bench(args) => bench::run(args).map(|()| ExitCode::SUCCESS),
        Command::Loom => models::run(models::Checker::Loom),
        Command::Shuttle => models::run(models::Checker::Shuttle),
        Command::Asan => sanitize::run(sanitize::Tool::Asan),
        Command::Tsan => sanitize::run(sanitize::Tool::Tsan),
        Command::Careful => sanitize::run(sanitize::Tool::Careful),
        Command::Miri => sanitize::run(sanitize::Tool::Miri),
        Command::Soak(args) => soak::run(&args),
        Command::Lab(command) => lab::run(&command),
        Command::SoakWorker(args) => soak::run_worker(&args).map(|()| ExitCode::SUCCESS),
        Command::BenchWorker(args) => bench::run_worker(&args).map(|()| ExitCode::SUCCESS),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
