//! `cargo xtask test`: everything that must hold before a change is taken. Steps run in order, all of them, also after a
//! failure; the run ends with a table and one line of counts.

use crate::models::{self, Checker};
use crate::process::{cargo, expect_success, line_of, program, quietly_within, read_lines, root, succeed};
use crate::step::{Ledger, Outcome, SKIP_FILE};
use crate::tally::Tally;
use crate::tools::CARGO_DENY;
use crate::{fuzz, lab, msrv, sim, soak};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

#[derive(Args)]
pub(crate) struct TestArgs {
    /// Formatting, lints and tests only. The other steps are counted as skipped.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &TestArgs) -> anyhow::Result<ExitCode> {
    let mut ledger = Ledger::default();
    let mut tally = Tally::default();
    let full = |step: fn() -> anyhow::Result<Outcome>| {
        let quick = args.quick;
        move || if quick { Ok(Outcome::Skipped("--quick".to_string())) } else { step() }
    };
    ledger.step("formatting", formatting);
    ledger.step("lints", lints);
    ledger.step("docs", full(docs));
    ledger.step("licences, bans, sources", full(deny));
    ledger.step("advisories", full(advisories));
    ledger.step("tests", || tests(&mut tally));
    ledger.step("simulation", full(sim::step));
    ledger.step("models in every order", full(|| models::check(Checker::Loom)));
    ledger.step("models in random orders", full(|| models::check(Checker::Shuttle)));
    ledger.step("soak of half a minute", full(soak::smoke));
    ledger.step("lab", full(lab::step));
    ledger.step("oldest compiler", full(msrv::build));
    ledger.step("fuzz targets build", full(fuzz::build));
    println!("\n{}\n{}", tally.table(), ledger.table());
    println!("{}", ledger.last_line());
    Ok(if ledger.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn formatting() -> anyhow::Result<Outcome> {
    component("fmt", "rustfmt", cargo().args(["fmt", "--all", "--check"]))
}

fn lints() -> anyhow::Result<Outcome> {
    let mut clippy = cargo();
    clippy.args(["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]);
    let whole = component("clippy", "clippy", &mut clippy)?;
    if !matches!(whole, Outcome::Passed) {
        return Ok(whole);
    }
    // The engine of those who want no RDMA in their build.
    let mut bare = cargo();
    bare.args(["clippy", "-p", "orbit-te", "--no-default-features", "--all-targets", "--", "-D", "warnings"]);
    component("clippy", "clippy", &mut bare)
}

/// Runs a subcommand that comes with a component of the toolchain, if that is installed.
fn component(subcommand: &str, component: &str, command: &mut Command) -> anyhow::Result<Outcome> {
    if !crate::process::answers(cargo().args([subcommand, "--version"])) {
        let remedy = format!("`rustup component add {component}` gives it");
        return Ok(Outcome::Skipped(format!("the toolchain has no {component}; {remedy}")));
    }
    shown(command)
}

fn docs() -> anyhow::Result<Outcome> {
    let mut doc = cargo();
    doc.args(["doc", "--workspace", "--no-deps", "--all-features"]).env("RUSTDOCFLAGS", "-D warnings");
    shown(&mut doc)
}

fn deny() -> anyhow::Result<Outcome> {
    let deny = match CARGO_DENY.obtain()? {
        Ok(deny) => deny,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    // The check reads the manifests of all dependencies, those for other platforms too, and a build has not fetched these.
    succeed(cargo().args(["fetch", "--quiet"]))?;
    shown(offline(&deny).args(["licenses", "bans", "sources"]))
}

fn advisories() -> anyhow::Result<Outcome> {
    let Some(deny) = CARGO_DENY.present()? else {
        return Ok(Outcome::Skipped("no cargo-deny (see the step before)".to_string()));
    };
    let refreshed = quietly_within(
        program(&deny).args(["fetch", "db"]).env("GIT_TERMINAL_PROMPT", "0"),
        Duration::from_secs(120),
    );
    if let Err(why) = refreshed {
        if !database_is_here() {
            return Ok(Outcome::Skipped(format!("the advisory database can't be had here: {why}")));
        }
        println!("the advisory database could not be refreshed ({why}); the copy from before is used");
    }
    shown(offline(&deny).arg("advisories"))
}

fn offline(deny: &Path) -> Command {
    let mut command = program(deny);
    command.args(["--offline", "check"]);
    command
}

/// Whether cargo-deny has fetched a database before, in its folder beside cargo's registry.
fn database_is_here() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let databases = home.and_then(|home| std::fs::read_dir(home.join("advisory-dbs")).ok());
    databases.into_iter().flatten().flatten().any(|entry| entry.path().join("crates").is_dir())
}

fn tests(tally: &mut Tally) -> anyhow::Result<Outcome> {
    let folder = root().join("target").join("xtask");
    std::fs::create_dir_all(&folder)?;
    let skips = folder.join("skips.txt");
    std::fs::write(&skips, "")?;
    let mut test = cargo();
    test.args(["test", "--workspace", "--all-features", "--no-fail-fast"]).env(SKIP_FILE, &skips);
    println!("$ {}", line_of(&test));
    let status = read_lines(&test, |line| {
        println!("{line}");
        tally.line(line);
    })?;
    tally.skips(&std::fs::read_to_string(&skips)?);
    expect_success(&line_of(&test), status)?;
    Ok(Outcome::Passed)
}

/// Shows the command, runs it, and passes if it succeeds.
fn shown(command: &mut Command) -> anyhow::Result<Outcome> {
    println!("$ {}", line_of(command));
    succeed(command)?;
    Ok(Outcome::Passed)
}
