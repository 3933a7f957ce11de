//! `cargo xtask lab`: real RDMA verbs on any Debian machine. Debian's kernel runs in QEMU with Soft-RoCE devices, commands run in
//! that guest, and their exit codes, output and files come back. [`kit`] and [`kernel`] are fetched once, [`image`] is what lies
//! in a guest, [`machine`] is a guest as a process and [`transcript`] what it says, [`boot`] puts them together; [`mod@run`] and
//! [`suite`] are the commands. The guest's own scripts lie in `guest/`.

mod boot;
mod bzimage;
mod cases;
mod cpio;
mod image;
mod kernel;
mod kit;
mod machine;
mod modules;
mod run;
mod suite;
mod test_binary;
mod topology;
mod transcript;

use crate::step::{Outcome, alone};
use boot::Lab;
use kernel::Choice;
pub(crate) use run::collect;
use std::process::ExitCode;

/// What `cargo xtask lab` can do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum LabCommand {
    /// Fetch QEMU, what guests run, and the newest kernel.
    ///
    /// The other commands do it when there is none yet. Exits with 0 when all is there, and 2 when it can't be had here.
    Prepare {
        #[arg(long, value_enum, default_value = "stable")]
        kernel: Choice,
    },
    /// Run one command in a guest.
    ///
    /// Exits with the command's own code; with 124 when it was ended at its limit, and with 125 when there is no code.
    Run(run::RunArgs),
    /// Run the lab's cases, one boot for each topology.
    ///
    /// Exits with 0 when all passed, 1 when one failed, and 2 when there can be no lab here.
    Test(suite::SuiteArgs),
}

pub(crate) fn run(command: &LabCommand) -> anyhow::Result<ExitCode> {
    match command {
        LabCommand::Prepare { kernel } => Ok(alone("lab prepare", prepare(*kernel))),
        LabCommand::Run(args) => run::run(args).or_else(|error| {
            eprintln!("lab: {error:#}");
            Ok(ExitCode::from(run::NO_CODE))
        }),
        LabCommand::Test(args) => Ok(alone("lab test", suite::run(args)?)),
    }
}

/// The cases on Debian 12's own kernel, for the test command.
pub(crate) fn step() -> anyhow::Result<Outcome> {
    suite::run(&suite::SuiteArgs { kernel: Choice::Stable, filter: None })
}

fn prepare(kernel: Choice) -> Outcome {
    match Lab::newest(kernel) {
        Ok(lab) => {
            println!("the lab is ready, with Linux {}", lab.kernel());
            Outcome::Passed
        }
        Err(why) => Outcome::Skipped(format!("{why:#}")),
    }
}
