//! `cargo xtask asan`, `tsan`, `careful` and `miri`: the tests under compilers that look closer. Rule: before the tests comes
//! a plant of each kind that the tool is for, and one that it does not find fails the command.

use crate::debian::Rebuilder;
use crate::process::{answers, line_of, program, succeed};
use crate::step::{Outcome, alone};
use std::process::{Command, ExitCode, Stdio};

/// The target whose name makes cargo leave build scripts alone.
const HOST: &str = "x86_64-unknown-linux-gnu";
/// Tests without other processes and without assertions about CPU time, which a sanitizer would fail.
const MEMORY: &[&str] = &["--package", "orbit-te-memory", "--tests"];
const TCP: &[&str] = &["--package", "orbit-te-tcp", "--tests"];
/// Without `intermediary`, which must catch a transfer half-way, and under ThreadSanitizer comes too late.
const TCP_SLOW: &[&str] = &[
    "--package",
    "orbit-te-tcp",
    "--lib",
    "--test",
    "conformance",
    "--test",
    "faults",
    "--test",
    "hostile",
    "--test",
    "hostile_lanes",
];
const ENGINE: &[&str] =
    &["--package", "orbit-te", "--test", "transfers", "--test", "notifications", "--test", "waiting"];
const WIRE: &[&str] = &["--package", "orbit-te-wire", "--tests"];

/// A tool, and what it looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Asan,
    Tsan,
    Careful,
    Miri,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Asan => "asan",
            Tool::Tsan => "tsan",
            Tool::Careful => "careful",
            Tool::Miri => "miri",
        }
    }

    /// The plants, by their names in `xtask/plants/examples`, and what is said when one is found.
    fn plants(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Tool::Asan => &[("overflow", "heap-buffer-overflow"), ("leak", "detected memory leaks")],
            Tool::Tsan => &[("race", "data race")],
            Tool::Careful => &[("precondition", "unsafe precondition(s) violated")],
            Tool::Miri => &[("overflow", "Undefined Behavior")],
        }
    }

    fn tests(self) -> &'static [&'static [&'static str]] {
        match self {
            Tool::Asan => &[MEMORY, TCP, ENGINE],
            Tool::Tsan => &[MEMORY, TCP_SLOW, ENGINE],
            Tool::Careful => &[MEMORY, WIRE],
            Tool::Miri => &[WIRE],
        }
    }

    /// A cargo under this tool, or why there is none here and what would give it.
    fn cargo(self) -> anyhow::Result<Result<Command, String>> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            return Ok(Err(format!("it is set up for {HOST} only")));
        }
        Ok(match self {
            Tool::Asan => nightly().map(|mut cargo| {
                cargo.env("RUSTFLAGS", "-Zsanitizer=address");
                cargo
            }),
            Tool::Tsan => Rebuilder::obtain()?.map(|rebuilder| {
                let mut cargo = rebuilder.cargo();
                let clang = rebuilder.clang();
                let linker = format!("-Clinker={} -Clink-arg=-fsanitize=thread", clang.display());
                cargo.env("RUSTFLAGS", format!("-Zsanitizer=thread -Zexternal-clangrt {linker}"));
                // The longest history: a race whose earlier side is forgotten is not reported.
                let at = crate::process::root().join("xtask").join("tsan.supp");
                cargo.env(
                    "TSAN_OPTIONS",
                    format!(
                        "suppressions={} external_symbolizer_path={} history_size=7",
                        at.display(),
                        rebuilder.symbolizer().display()
                    ),
                );
                cargo
            }),
            Tool::Careful => Rebuilder::obtain()?.map(|rebuilder| {
                let mut cargo = rebuilder.cargo();
                let checks = "-Cdebug-assertions -Zrandomize-layout -Zextra-const-ub-checks";
                cargo.env("RUSTFLAGS", checks);
                cargo
            }),
            Tool::Miri => miri(),
        })
    }
}

fn nightly() -> Result<Command, String> {
    if !answers(program("rustup").args(["run", "nightly", "rustc", "--version"])) {
        return Err(
            "no nightly Rust; `rustup toolchain install nightly --profile minimal` gives it".to_string()
        );
    }
    let mut cargo = program("rustup");
    cargo.args(["run", "nightly", "cargo"]).env_remove("CARGO");
    Ok(cargo)
}

fn miri() -> Result<Command, String> {
    if !answers(program("rustup").args(["run", "nightly", "cargo", "miri", "--version"])) {
        return Err("no Miri; `rustup component add miri rust-src --toolchain nightly` gives it".to_string());
    }
    let mut cargo = program("rustup");
    cargo.args(["run", "nightly", "cargo", "miri"]).env_remove("CARGO");
    cargo.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    Ok(cargo)
}

/// Runs the plants and then the tests under a tool.
pub(crate) fn run(tool: Tool) -> anyhow::Result<ExitCode> {
    Ok(alone(tool.name(), check(tool)?))
}

fn check(tool: Tool) -> anyhow::Result<Outcome> {
    let command = |what: &str| -> anyhow::Result<Result<Command, String>> {
        Ok(tool.cargo()?.map(|mut cargo| {
            cargo.args([what, "--target", HOST, "--target-dir", &format!("target/{}", tool.name())]);
            if matches!(tool, Tool::Tsan | Tool::Careful) {
                cargo.arg("-Zbuild-std");
            }
            // Names and lines in reports; the rest of what a debugger wants fills disks.
            cargo.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only").env("CARGO_INCREMENTAL", "0");
            cargo
        }))
    };
    for (plant, found) in tool.plants() {
        let mut run = match command("run")? {
            Ok(run) => run,
            Err(why) => return Ok(Outcome::Skipped(why)),
        };
        run.args(["--quiet", "--manifest-path", "xtask/plants/Cargo.toml", "--example", plant]);
        println!("$ {}", line_of(&run));
        let output = run.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !said.contains(found) {
            let why = format!("the planted {plant} was not found; it said: {}", said.trim());
            return Ok(Outcome::Failed(why));
        }
        println!("the planted {plant} is found");
    }
    for tests in tool.tests() {
        let Ok(mut test) = command("test")? else { continue };
        test.args(*tests);
        println!("$ {}", line_of(&test));
        succeed(&mut test)?;
    }
    Ok(Outcome::Passed)
}
