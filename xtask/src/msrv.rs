//! `cargo xtask msrv`: the workspace built by the oldest compiler it promises to work with, `rust-version` in its
//! manifest. That compiler comes from rustup where it is installed, otherwise from Debian's archive, unpacked beside
//! the system and not installed into it.

use crate::process::{self, answers, capture, cargo, program, succeed};
use crate::step::Outcome;
use crate::tools::cache_dir;
use anyhow::Context;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Debian's package of a compiler newer than the release; its libraries carry its version in their names.
const DEBIAN_COMPILER: &str = "rustc-web";

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    Ok(match build()? {
        Outcome::Passed => {
            println!("msrv: the workspace builds on Rust {}", oldest()?);
            ExitCode::SUCCESS
        }
        Outcome::Failed(why) => {
            println!("msrv: FAILED: {why}");
            ExitCode::FAILURE
        }
        Outcome::Skipped(why) => {
            println!("msrv: not run: {why}");
            ExitCode::from(2)
        }
    })
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

/// Downloads Debian's packages of the compiler, with those libraries it needs that are not installed, and unpacks them
/// into `root`, which appears whole or not at all.
fn unpack(oldest: &str, root: &Path) -> anyhow::Result<()> {
    if !answers(program("apt-get").arg("--version")) || !answers(program("dpkg").arg("--version")) {
        anyhow::bail!("rustup has none, and this is no Debian to take it from");
    }
    let version = debian_version(oldest)?;
    let part = root.with_extension(format!("part-{}", std::process::id()));
    println!(
        "Rust {oldest} is not here: unpacking Debian's {DEBIAN_COMPILER} {version} into {}",
        root.display()
    );
    println!("(about 90 MB to fetch, 270 to 400 MB on disk, under a minute; nothing is installed)");
    std::fs::create_dir_all(&part)?;
    let done = fill(&part, oldest, &version).and_then(|()| {
        if root.exists() {
            std::fs::remove_dir_all(root)?;
        }
        std::fs::rename(&part, root).context("the unpacked folder could not be put in its place")
    });
    if done.is_err() {
        // The first error is the one worth telling.
        std::fs::remove_dir_all(&part).ok();
    }
    done
}

fn fill(part: &Path, oldest: &str, version: &str) -> anyhow::Result<()> {
    let names =
        [DEBIAN_COMPILER.to_string(), "libstd-rust-web-dev".into(), format!("libstd-rust-web-{oldest}")];
    let mut packages: Vec<String> = names.iter().map(|name| format!("{name}={version}")).collect();
    let plan = capture(
        program("apt-get")
            .args(["install", "--simulate", "--yes", "--allow-downgrades", "--no-install-recommends"])
            .args(&packages),
    )?;
    packages.extend(missing_libraries(&plan, &names));
    let debs = part.join("packages");
    std::fs::create_dir_all(&debs)?;
    let mut download = program("apt-get");
    download.args(["download", "-q", "-o", "APT::Sandbox::User=root"]).args(&packages).current_dir(&debs);
    succeed(&mut download)?;
    for entry in std::fs::read_dir(&debs)? {
        succeed(program("dpkg").arg("-x").arg(entry?.path()).arg(part))?;
    }
    std::fs::remove_dir_all(&debs)?;
    if !runs(part, oldest) {
        let mut rustc = program(rustc_in(part));
        capture(rustc.arg("--version").env("LD_LIBRARY_PATH", libraries_in(part)))?;
        anyhow::bail!("the unpacked compiler is not Rust {oldest}");
    }
    Ok(())
}

/// The archive's exact version of the compiler.
fn debian_version(oldest: &str) -> anyhow::Result<String> {
    let look = || {
        let list = capture(program("apt-cache").args(["madison", DEBIAN_COMPILER]))?;
        anyhow::Ok(version_in(&list, oldest))
    };
    if let Some(version) = look()? {
        return Ok(version);
    }
    let uid = capture(program("id").arg("-u"))?;
    anyhow::ensure!(
        uid.trim() == "0",
        "apt's lists name no {DEBIAN_COMPILER} {oldest} (`apt-get update` as root may bring it)"
    );
    println!("apt's lists name no {DEBIAN_COMPILER} {oldest}: refreshing them with `apt-get update`");
    // A list that can't be fetched is no reason to stop: the others may name it.
    if let Err(error) = succeed(program("apt-get").args(["update", "-q"])) {
        println!("{error}");
    }
    look()?.with_context(|| format!("the archive has no {DEBIAN_COMPILER} {oldest}"))
}

/// The version in a table as `apt-cache madison` prints it.
fn version_in(list: &str, oldest: &str) -> Option<String> {
    let versions = list.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim);
    let mut matching = versions.filter(|version| version.starts_with(&format!("{oldest}.")));
    matching.next().map(str::to_string)
}

/// From apt's plan for an installation, the libraries that it would install beside the packages asked for. The C library
/// is the system's in any case.
fn missing_libraries(plan: &str, asked: &[String]) -> Vec<String> {
    let planned = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    planned
        .filter_map(|rest| {
            let name = rest.split_whitespace().next()?;
            let version = rest.split_once('(')?.1.split_whitespace().next()?;
            let wanted = name.starts_with("lib") && name != "libc6" && !asked.iter().any(|a| a == name);
            wanted.then(|| format!("{name}={version}"))
        })
        .collect()
}

fn rustc_in(root: &Path) -> PathBuf {
    root.join("usr").join("bin").join("rustc")
}

/// The folders of shared libraries in an unpacked tree, as the dynamic linker wants them.
fn libraries_in(root: &Path) -> OsString {
    let mut folders = Vec::new();
    for base in [root.join("usr").join("lib"), root.join("lib")] {
        // A base that is not there has no libraries.
        for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().contains("-linux-gnu") {
                folders.push(entry.path());
            }
        }
    }
    std::env::join_paths(folders).unwrap_or_default()
}

fn runs(root: &Path, oldest: &str) -> bool {
    let mut rustc = program(rustc_in(root));
    let said = capture(rustc.arg("--version").env("LD_LIBRARY_PATH", libraries_in(root)));
    said.is_ok_and(|said| said.starts_with(&format!("rustc {oldest}.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_compiler_is_the_manifests() {
        assert_eq!(oldest().unwrap(), env!("CARGO_PKG_RUST_VERSION"));
    }

    #[test]
    fn the_exact_version_comes_from_the_archives_table() {
        let list = " rustc-web | 1.96.0+dfsg1-1 | http://archive security/main\n \
                    rustc-web | 1.85.0+dfsg3-1~deb12u3 | http://archive main\n";
        assert_eq!(version_in(list, "1.85").as_deref(), Some("1.85.0+dfsg3-1~deb12u3"));
        assert_eq!(version_in(list, "1.8"), None);
        assert_eq!(version_in("", "1.85"), None);
    }

    #[test]
    fn libraries_that_are_not_installed_come_along() {
        let plan = "NOTE: only a simulation\n\
                    Inst libllvm19 (1:19.1.7-3 Debian:12 [amd64])\n\
                    Inst libc6 [2.36-8] (2.36-9 Debian:12 [amd64])\n\
                    Inst gcc (12.2 Debian:12 [amd64])\n\
                    Inst libstd-rust-web-dev (1.85.0 Debian:12 [amd64])\n\
                    Conf libllvm19 (1:19.1.7-3 Debian:12 [amd64])\n";
        assert_eq!(missing_libraries(plan, &["libstd-rust-web-dev".to_string()]), ["libllvm19=1:19.1.7-3"]);
    }
}
