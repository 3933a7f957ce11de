//! `orbit-te`: the command line of OrbitTE. Rule: a command ends with its result on stdout and exit code 0, or with one line on
//! stderr that begins with `orbit-te: ` and an exit code that tells the kind of trouble.

#![deny(unsafe_code)]

mod bench;
mod child;
mod console;
mod demo;
mod doctor;
mod explain;
mod failure;
mod get;
mod pattern;
mod place;
mod put;
mod record;
mod routing;
mod serve;
mod signals;
mod size;
mod stream;
mod sys;
mod taken;
mod target;
mod verdict;

use clap::error::ErrorKind;
use clap::{ArgAction, Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

const CODES: &str = "\
Exit codes:
  0  done; every byte that was to be checked was right
  1  a transfer or a check failed, or no route can be taken
  2  usage: arguments that make no sense, or do not fit the segment
  3  the peer can't be reached, has no such segment, or refuses
  4  trouble on this host: a file, the disk, memory, an address in use, a check of `doctor`

Sizes are whole numbers of bytes, or of KiB, MiB, GiB or TiB (powers of 1024).";

/// OrbitTE moves bytes between the memories of processes and hosts, fast and checked.
///
/// `demo` shows it in one command; `serve`, `put` and `get` move real files; `bench` measures;
/// `explain` tells which route bytes would take and why; `doctor` checks this host.
#[derive(Debug, Parser)]
#[command(name = "orbit-te", version, after_help = CODES)]
struct Cli {
    /// Log more to stderr; twice for still more. RUST_LOG takes precedence.
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 900)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Serve(serve::Serve),
    Put(put::Put),
    Get(get::Get),
    Bench(bench::Bench),
    Explain(explain::Explain),
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    DemoTarget(target::DemoTarget),
}

impl Command {
    /// Whether results, and failures with them, are lines of JSON.
    fn is_json(&self) -> bool {
        match self {
            Command::Demo(command) => command.json,
            Command::Serve(command) => command.json,
            Command::Bench(command) => command.json,
            Command::Explain(command) => command.json,
            Command::Doctor(command) => command.json,
            Command::Put(_) | Command::Get(_) | Command::DemoTarget(_) => false,
        }
    }

    fn run(&self) -> Result<(), Failure> {
        match self {
            Command::Demo(command) => command.run(),
            Command::Serve(command) => command.run(),
            Command::Put(command) => command.run(),
            Command::Get(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Explain(command) => command.run(),
            Command::Doctor(command) => command.run(),
            Command::DemoTarget(command) => command.run(),
        }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misused(&error),
    };
    // A server's log is its only sign of life.
    console::start_log(usize::from(matches!(cli.command, Command::Serve(_))), cli.verbose);
    let json = cli.command.is_json();
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            console::note(&failure);
            if json {
                // Whoever reads it has the exit code as well.
                let _ = console::say(failure.json());
            }
            ExitCode::from(failure.code())
        }
    }
}

/// Help and version are results; anything else is one line.
fn misused(error: &clap::Error) -> ExitCode {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand) {
        let _ = error.print();
        return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
    }
    let text = error.to_string();
    let words =
        text.split("\n\nUsage:").next().unwrap_or(&text).split("\n\nFor more").next().unwrap_or(&text);
    let line = words.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ");
    console::note(format_args!("{line}; `orbit-te --help` tells more"));
    ExitCode::from(2)
}
