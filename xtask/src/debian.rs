//! Packages from Debian's archive, compilers above all, unpacked into the user's cache folder beside the system and not installed
//! into it. Rule: a folder appears whole or not at all, and one that works is used again.

use crate::apt::{self, Lists};
use crate::process::{capture, program, succeed};
use crate::tools::cache_dir;
use anyhow::Context;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages that are unpacked together.
pub(crate) struct Bundle<'a> {
    /// What it is, for the line that announces it.
    pub(crate) what: String,
    /// How much is fetched and unpacked, for the same line.
    pub(crate) size: &'static str,
    /// Packages with their exact versions, `NAME=VERSION`, or without where any version will do.
    pub(crate) packages: Vec<String>,
    /// Where apt finds them.
    pub(crate) lists: &'a Lists,
    /// Whether those libraries come along that they need and that are not installed.
    pub(crate) with_libraries: bool,
    /// Makes what was unpacked into a folder ready, if there is anything to do, and fails unless it works.
    pub(crate) finish: &'a dyn Fn(&Path) -> anyhow::Result<()>,
}

/// Downloads a bundle and unpacks it into `root`.
pub(crate) fn unpack(bundle: &Bundle<'_>, root: &Path) -> anyhow::Result<()> {
    let part = root.with_extension(format!("part-{}", std::process::id()));
    println!("{} is not here: unpacking Debian's packages of it into {}", bundle.what, root.display());
    println!("({}; nothing is installed)", bundle.size);
    std::fs::create_dir_all(&part)?;
    let done = fill(&part, bundle).and_then(|()| {
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

fn fill(part: &Path, bundle: &Bundle<'_>) -> anyhow::Result<()> {
    let mut packages = bundle.packages.clone();
    if bundle.with_libraries {
        let mut plan = bundle.lists.apt("apt-get");
        plan.args(["install", "--simulate", "--yes", "--allow-downgrades", "--no-install-recommends"]);
        let plan = capture(plan.args(&packages))?;
        packages.extend(missing_libraries(&plan, &packages));
    }
    let debs = part.join("packages");
    std::fs::create_dir_all(&debs)?;
    let mut download = bundle.lists.apt("apt-get");
    download.args(["download", "-q=2", "-o", "APT::Sandbox::User=root"]).args(&packages).current_dir(&debs);
    let fetched = download.status().context("apt-get could not be started")?;
    anyhow::ensure!(fetched.success(), "apt can't fetch its packages; what it says of that stands above");
    for entry in std::fs::read_dir(&debs)? {
        succeed(program("dpkg").arg("-x").arg(entry?.path()).arg(part))?;
    }
    std::fs::remove_dir_all(&debs)?;
    (bundle.finish)(part)
}

/// The archive's exact version of a package, of the releases that begin so.
pub(crate) fn version_of(package: &str, begins: &str) -> anyhow::Result<String> {
    anyhow::ensure!(apt::is_debian(), "this is no Debian to take it from");
    let lists = Lists::of_system();
    if let Some(version) = lists.newest(package, begins)? {
        return Ok(version);
    }
    println!("apt's lists name no {package} {begins}");
    apt::refresh().with_context(|| format!("apt's lists name no {package} {begins}"))?;
    lists.newest(package, begins)?.with_context(|| format!("the archive has no {package} {begins}"))
}

/// From apt's plan for an installation, the libraries that it would install beside the packages asked for. The C library
/// is the system's in any case.
fn missing_libraries(plan: &str, asked: &[String]) -> Vec<String> {
    let planned = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    let named = |name: &str| asked.iter().any(|asked| asked.split('=').next() == Some(name));
    planned
        .filter_map(|rest| {
            let name = rest.split_whitespace().next()?;
            let version = rest.split_once('(')?.1.split_whitespace().next()?;
            let wanted = name.starts_with("lib") && name != "libc6" && !named(name);
            wanted.then(|| format!("{name}={version}"))
        })
        .collect()
}

/// The folders of shared libraries in an unpacked tree, as the dynamic linker wants them.
pub(crate) fn libraries_in(root: &Path) -> OsString {
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

/// The release of the compiler that comes with its standard library's sources.
const REBUILDING: &str = "1.96";

/// A compiler that can build its standard library anew, and a clang whose sanitizers fit it.
pub(crate) struct Rebuilder {
    root: PathBuf,
}

impl Rebuilder {
    /// The compiler, unpacked now if it is not here; or the reason why it can't be had.
    pub(crate) fn obtain() -> anyhow::Result<Result<Rebuilder, String>> {
        let root = cache_dir()?.join(format!("rust-{REBUILDING}-and-sources"));
        if works(&root).is_err() {
            if let Err(why) = unpack_rebuilder(&root) {
                return Ok(Err(format!("no compiler with its standard library's sources here: {why:#}")));
            }
        }
        Ok(Ok(Rebuilder { root }))
    }

    /// A cargo that compiles with it, and the standard library too.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = program(self.root.join("usr").join("bin").join("cargo"));
        cargo.env("RUSTC", rustc_in(&self.root)).env("LD_LIBRARY_PATH", libraries_in(&self.root));
        // The compiler's unstable switches, which its sanitizers are.
        cargo.env("RUSTC_BOOTSTRAP", "1").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
        cargo
    }

    pub(crate) fn clang(&self) -> PathBuf {
        llvm_in(&self.root).join("clang")
    }

    /// Gives the functions of a report their names, without which none could be suppressed.
    pub(crate) fn symbolizer(&self) -> PathBuf {
        llvm_in(&self.root).join("llvm-symbolizer")
    }
}

fn unpack_rebuilder(root: &Path) -> anyhow::Result<()> {
    let mut packages = Vec::new();
    let library = format!("libstd-rust-web-{REBUILDING}");
    for package in ["rustc-web", "cargo-web", "rust-web-src", "libstd-rust-web-dev", &library] {
        packages.push(format!("{package}={}", version_of(package, REBUILDING)?));
    }
    for package in ["clang-19", "libclang-rt-19-dev", "llvm-19"] {
        packages.push(format!("{package}={}", version_of(package, "1:19")?));
    }
    let bundle = Bundle {
        what: format!("Rust {REBUILDING} with its standard library's sources, and clang 19"),
        size: "about 220 MB to fetch, 1.3 GB on disk, a minute",
        packages,
        lists: &Lists::of_system(),
        with_libraries: true,
        finish: &works,
    };
    unpack(&bundle, root)
}

fn works(root: &Path) -> anyhow::Result<()> {
    let mut rustc = program(rustc_in(root));
    let said = capture(rustc.arg("--version").env("LD_LIBRARY_PATH", libraries_in(root)))?;
    anyhow::ensure!(said.starts_with(&format!("rustc {REBUILDING}.")), "the unpacked compiler says `{said}`");
    for tool in ["clang", "llvm-symbolizer"] {
        anyhow::ensure!(llvm_in(root).join(tool).is_file(), "{tool} is missing");
    }
    Ok(())
}

fn llvm_in(root: &Path) -> PathBuf {
    root.join("usr").join("lib").join("llvm-19").join("bin")
}

pub(crate) fn rustc_in(root: &Path) -> PathBuf {
    root.join("usr").join("bin").join("rustc")
}

#[cfg(test)]
mod tests {
    use super::*;

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
