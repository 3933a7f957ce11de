//! `cargo xtask msrv`: the workspace built by the oldest compiler it promises to work with, `rust-version` in its
//! manifest. That compiler comes from rustup where it is installed, otherwise from Debian's archive, unpacked beside
//! the system and not installed into it.

use crate::apt::Lists;
use crate::debian::{self, Bundle, libraries_in, rustc_in};
use crate::process::{self, capture, cargo, program, succeed};
use crate::step::{Outcome, alone};
use crate::tools::cache_dir;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Debian's package of a compiler newer than the release; its libraries carry its version in their names.
const DEBIAN_COMPILER: &str = "rustc-web";

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    Ok(alone("msrv", build()?))
}

/// Builds libraries, programs, tests and examples, in a target folder of their own.
pub(crate) fn build() -> anyhow::Result<Outcome> {
    let oldest = oldest()?;
    let compiler = match find(&oldest)? {
        Ok(compiler) => compiler,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    println!("Rust {oldest} from {}", compiler.origin());
    let mut build = compiler.cargo();
    build.args(["build", "--workspace", "--all-targets", "--all-features", "--target-dir", "target/msrv"]);
    // Nobody debugs what this builds.
    build.env("CARGO_PROFILE_DEV_DEBUG", "false").env("CARGO_PROFILE_TEST_DEBUG", "false");
    succeed(&mut build)?;
    Ok(Outcome::Passed)
}

/// Where the oldest compiler is.
enum Compiler {
    /// A toolchain of rustup's, by its name there.
    Rustup(String),
    /// Packages of Debian's, unpacked in this folder.
    Unpacked(PathBuf),
}

impl Compiler {
    fn origin(&self) -> String {
        match self {
            Compiler::Rustup(toolchain) => format!("rustup's toolchain {toolchain}"),
            Compiler::Unpacked(root) => format!("Debian's packages, unpacked in {}", root.display()),
        }
    }

    /// A cargo that compiles with it.
    fn cargo(&self) -> Command {
        match self {
            Compiler::Rustup(toolchain) => {
                let mut command = program("rustup");
                command.args(["run", toolchain, "cargo"]);
                command
            }
            Compiler::Unpacked(root) => {
                // Debian's own cargo of that version needs libraries that newer releases lack; any cargo will do.
                let mut command = cargo();
                command.env("RUSTC", rustc_in(root)).env("LD_LIBRARY_PATH", libraries_in(root));
                command
            }
        }
    }
}

/// `rust-version` of the workspace's manifest.
fn oldest() -> anyhow::Result<String> {
    let manifest = std::fs::read_to_string(process::root().join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version"));
    let version = line.and_then(|rest| rest.split('"').nth(1));
    version.map(str::to_string).context("the workspace's Cargo.toml has no `rust-version = \"…\"`")
}

/// The compiler, or why it can't be had and what to do about it.
fn find(oldest: &str) -> anyhow::Result<Result<Compiler, String>> {
    if let Some(toolchain) = rustup_toolchain(oldest) {
        return Ok(Ok(Compiler::Rustup(toolchain)));
    }
    let root = cache_dir()?.join(format!("rust-{oldest}"));
    if runs(&root, oldest) {
        return Ok(Ok(Compiler::Unpacked(root)));
    }
    Ok(match unpack(oldest, &root) {
        Ok(()) => Ok(Compiler::Unpacked(root)),
        Err(why) => Err(format!(
            "no Rust {oldest} here: {why:#}; `rustup toolchain install {oldest} --profile minimal` gives it"
        )),
    })
}

fn rustup_toolchain(oldest: &str) -> Option<String> {
    let list = capture(program("rustup").args(["toolchain", "list"])).ok()?;
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    let mut matching = names.filter(|name| {
        name.strip_prefix(oldest).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    });
    matching.next().map(str::to_string)
}

/// Unpacks Debian's packages of the compiler into `root`, which appears whole or not at all.
fn unpack(oldest: &str, root: &Path) -> anyhow::Result<()> {
    let version = debian::version_of(DEBIAN_COMPILER, oldest)?;
    let names =
        [DEBIAN_COMPILER.to_string(), "libstd-rust-web-dev".into(), format!("libstd-rust-web-{oldest}")];
    let works = |part: &Path| {
        let said = said_by(part)?;
        anyhow::ensure!(is_release(&said, oldest), "the unpacked compiler is not Rust {oldest}");
        Ok(())
    };
    let bundle = Bundle {
        what: format!("Rust {oldest}"),
        size: "about 90 MB to fetch, 270 to 400 MB on disk, under a minute",
        packages: names.iter().map(|name| format!("{name}={version}")).collect(),
        lists: &Lists::of_system(),
        with_libraries: true,
        finish: &works,
    };
    debian::unpack(&bundle, root)
}

fn runs(root: &Path, oldest: &str) -> bool {
    said_by(root).is_ok_and(|said| is_release(&said, oldest))
}

/// What the compiler says of its version.
fn said_by(root: &Path) -> anyhow::Result<String> {
    capture(program(rustc_in(root)).arg("--version").env("LD_LIBRARY_PATH", libraries_in(root)))
}

fn is_release(said: &str, oldest: &str) -> bool {
    said.starts_with(&format!("rustc {oldest}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_compiler_is_the_manifests() {
        assert_eq!(oldest().unwrap(), env!("CARGO_PKG_RUST_VERSION"));
    }
}
