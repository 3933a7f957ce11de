//! `cargo xtask loom` and `cargo xtask shuttle`: the models of what threads share, in every order of a few threads or in
//! random orders of many. Rule: each set of models has a planted race, and one that is not found fails the command.

use crate::process::{cargo, expect_success, line_of, read_lines};
use crate::step::Outcome;
use std::process::ExitCode;

/// The crates that have models.
const CRATES: [&str; 2] = ["orbit-te-memory", "orbit-te"];

/// A model checker.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Checker {
    Loom,
    Shuttle,
}

impl Checker {
    fn name(self) -> &'static str {
        match self {
            Checker::Loom => "loom",
            Checker::Shuttle => "shuttle",
        }
    }
}

/// Runs a checker as a command of its own.
pub(crate) fn run(checker: Checker) -> anyhow::Result<ExitCode> {
    Ok(crate::step::alone(checker.name(), check(checker)?))
}

/// Runs all models under a checker, in a target folder of its own.
pub(crate) fn check(checker: Checker) -> anyhow::Result<Outcome> {
    let name = checker.name();
    let mut test = cargo();
    test.args(["test", "--release", "--lib", "--target-dir", &format!("target/{name}")]);
    test.args(CRATES.iter().flat_map(|krate| ["--package", krate])).arg("model::");
    test.env("RUSTFLAGS", format!("--cfg orbit_{name}")).env("CARGO_PROFILE_RELEASE_LTO", "false");
    test.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    println!("$ RUSTFLAGS='--cfg orbit_{name}' {}", line_of(&test));
    let mut plants = 0;
    let status = read_lines(&test, |line| {
        println!("{line}");
        plants += usize::from(line.contains("planted") && line.ends_with("ok"));
    })?;
    expect_success(&line_of(&test), status)?;
    if plants < CRATES.len() {
        return Ok(Outcome::Failed(format!(
            "{plants} planted races were found, and {} crates have one",
            CRATES.len()
        )));
    }
    Ok(Outcome::Passed)
}
