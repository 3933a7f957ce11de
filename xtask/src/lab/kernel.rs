//! Debian's kernels for the guest: fetched once, and of each only what a guest needs. Rule: a folder has its kernel's version in
//! its name and appears whole; one that is there is used until a newer one is asked for.

use super::kit::Kit;
use super::{bzimage, modules};
use crate::apt::Lists;
use crate::debian::{self, Bundle};
use crate::process::capture;
use crate::tools::cache_dir;
use anyhow::Context;
use std::path::{Path, PathBuf};

/// The releases that have the kernels.
const RELEASES: [&str; 2] = ["bookworm", "bookworm-backports"];

/// Which kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Choice {
    /// Debian 12's own, 6.1.
    Stable,
    /// The newer one for Debian 12, 6.12.
    Backports,
}

impl Choice {
    fn begins(self) -> &'static str {
        match self {
            Choice::Stable => "6.1",
            Choice::Backports => "6.12",
        }
    }
}

/// A kernel in its folder.
pub(super) struct Kernel {
    folder: PathBuf,
}

impl Kernel {
    /// The one that is here, or else the archive's newest, fetched now.
    pub(super) fn obtain(choice: Choice, kit: &Kit) -> anyhow::Result<Kernel> {
        match Kernel::present(choice)? {
            Some(kernel) => Ok(kernel),
            None => Kernel::newest(choice, kit),
        }
    }

    /// The archive's newest, fetched now unless it is here.
    pub(super) fn newest(choice: Choice, kit: &Kit) -> anyhow::Result<Kernel> {
        let cache = cache_dir()?;
        let lists = Lists::of_releases(&RELEASES, &cache.join(format!("lab-lists-{}", std::process::id())))?;
        // The package that always names the newest kernel, and the one with its files.
        let newest = "linux-image-amd64";
        let version = lists.newest(newest, choice.begins())?;
        let version = version.with_context(|| format!("the archive has no kernel {}", choice.begins()))?;
        let about = capture(lists.apt("apt-cache").args(["show", &format!("{newest}={version}")]))?;
        let package = package_in(&about).with_context(|| format!("{newest} {version} names no kernel"))?;
        let kernel = Kernel { folder: cache.join(format!("{PREFIX}{version}")) };
        if kernel.is_whole() {
            return Ok(kernel);
        }
        let bundle = Bundle {
            what: format!("Linux {version}"),
            size: "70 to 110 MB to fetch, 70 MB on disk, 15 s",
            packages: vec![package],
            lists: &lists,
            with_libraries: false,
            finish: &|folder| keep_needed(folder, kit),
        };
        debian::unpack(&bundle, &kernel.folder)?;
        Ok(kernel)
    }

    /// The last one that was fetched, if it has all that is wanted now.
    fn present(choice: Choice) -> anyhow::Result<Option<Kernel>> {
        let prefix = format!("{PREFIX}{}.", choice.begins());
        // Without a cache folder there is none.
        let entries = std::fs::read_dir(cache_dir()?).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with(&prefix) && !name.contains(".part-")
        });
        let kernels = folders.map(|entry| Kernel { folder: entry.path() }).filter(Kernel::is_whole);
        Ok(kernels.max_by_key(|kernel| kernel.folder.metadata().and_then(|about| about.modified()).ok()))
    }

    /// Its version, as Debian writes it.
    pub(super) fn version(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy();
        name.trim_start_matches(PREFIX).to_string()
    }

    /// The program that QEMU starts.
    pub(super) fn vmlinux(&self) -> PathBuf {
        self.folder.join("vmlinux")
    }

    /// The modules, in the order of loading.
    pub(super) fn modules(&self) -> anyhow::Result<Vec<modules::Module>> {
        let order = std::fs::read_to_string(self.folder.join(ORDER))?;
        let module = |name: &str| {
            let bytes = std::fs::read(self.folder.join(format!("{name}.ko")))?;
            anyhow::Ok((name.to_string(), bytes))
        };
        order.lines().map(module).collect()
    }

    /// Whether it was made for the modules that are wanted now.
    fn is_whole(&self) -> bool {
        std::fs::read_to_string(self.folder.join(WANTED))
            .is_ok_and(|wanted| wanted == modules::WANTED.join("\n"))
    }
}

/// What the names of kernels' folders begin with.
const PREFIX: &str = "lab-linux-";
/// The file with the names of the modules in the order of loading, and the one with those that were asked for.
const ORDER: &str = "modules";
const WANTED: &str = "wanted";

/// Leaves of an unpacked kernel package the kernel as a program, and the modules that a guest needs.
fn keep_needed(folder: &Path, kit: &Kit) -> anyhow::Result<()> {
    let unpacker = |name: &str| kit.program(name);
    let boot = std::fs::read_dir(folder.join("boot"))?.flatten().map(|entry| entry.path());
    let mut images = boot.filter(|path| path.to_string_lossy().contains("vmlinuz"));
    let image = std::fs::read(images.next().context("the package has no kernel")?)?;
    let versions = std::fs::read_dir(folder.join("lib").join("modules"))?.flatten();
    let version = versions.map(|entry| entry.path()).next().context("the package has no modules")?;
    let modules = modules::load(&version, &unpacker)?;
    let kernel = bzimage::vmlinux(&image, unpacker)?;
    for entry in std::fs::read_dir(folder)? {
        std::fs::remove_dir_all(entry?.path())?;
    }
    std::fs::write(folder.join("vmlinux"), kernel)?;
    let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
    std::fs::write(folder.join(ORDER), names.join("\n"))?;
    for (name, bytes) in &modules {
        std::fs::write(folder.join(format!("{name}.ko")), bytes)?;
    }
    std::fs::write(folder.join(WANTED), modules::WANTED.join("\n"))?;
    Ok(())
}

/// The package with a kernel's files and its exact version, from the dependencies of the one that names the newest.
fn package_in(about: &str) -> Option<String> {
    let depends = about.lines().find_map(|line| line.strip_prefix("Depends: "))?;
    let image = depends.split(',').map(str::trim).find(|package| package.starts_with("linux-image-"))?;
    let (name, version) = image.split_once(" (= ")?;
    Some(format!("{name}={}", version.trim_end_matches(')')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_package_is_the_one_depended_on() {
        let about = "Package: linux-image-amd64\nDepends: x, linux-image-6.1.0-50-amd64 (= 6.1.176-1)\n";
        assert_eq!(package_in(about).as_deref(), Some("linux-image-6.1.0-50-amd64=6.1.176-1"));
        assert_eq!(package_in("Package: linux-image-amd64\n"), None);
    }

    #[test]
    fn the_version_is_in_the_folders_name() {
        let kernel = Kernel { folder: PathBuf::from("lab-linux-6.12.95-1~bpo12+1") };
        assert_eq!(kernel.version(), "6.12.95-1~bpo12+1");
    }
}
