//! `cargo xtask`: what a change to this repository needs beside `cargo` itself. One module a command.

mod bench;

use clap::Parser;

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about)]
enum Command {
    /// Compare the engine with plain sockets, and with other engines, over loopback.
    Bench(bench::BenchArgs),
    /// One side of a pair that the bench measures; speaks JSON lines on stdin and stdout.
    #[command(hide = true)]
    BenchWorker(bench::WorkerArgs),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Bench(args) => bench::run(args),
        Command::BenchWorker(args) => bench::run_worker(&args),
    }
}
