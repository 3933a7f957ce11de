//! What apt knows of packages: the system's lists, or lists of our own for releases that the system's sources don't name. Rule:
//! the system's sources and lists are used as they are and never changed; lists of our own are gone with their value.

use crate::process::{answers, capture, program, succeed};
use anyhow::Context;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The keys with which Debian signs its releases, where its package of them puts them.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Lists of packages, and with them what apt can fetch.
pub(crate) struct Lists {
    options: Vec<OsString>,
    /// Ours, to be deleted.
    folder: Option<PathBuf>,
}

impl Lists {
    /// Those of the system.
    pub(crate) fn of_system() -> Lists {
        Lists { options: Vec::new(), folder: None }
    }

    /// Fresh ones of some of Debian's releases, from the mirror that the system takes its packages from. They are kept in
    /// `folder` for as long as this lives.
    pub(crate) fn of_releases(releases: &[&str], folder: &Path) -> anyhow::Result<Lists> {
        anyhow::ensure!(is_debian(), "this is no Debian to take packages from");
        anyhow::ensure!(Path::new(KEYS).is_file(), "Debian's keys are missing ({KEYS})");
        let targets = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"];
        let mirrors = capture(program("apt-get").args(targets))?;
        let mirror = mirror_in(&mirrors).context("apt's sources name no mirror of Debian")?;
        let mut options = Vec::new();
        let mut option = |name: &str, path: PathBuf| {
            let mut text = OsString::from(format!("{name}="));
            text.push(path);
            options.extend([OsString::from("-o"), text]);
        };
        option("Dir::Etc::SourceList", folder.join("sources.list"));
        option("Dir::Etc::SourceParts", "/dev/null".into());
        option("Dir::State::Lists", folder.join("lists"));
        option("Dir::Cache", folder.join("cache"));
        option("Acquire::Languages", "none".into());
        option("APT::Sandbox::User", "root".into());
        // From here on the folder is deleted in any case.
        let lists = Lists { options, folder: Some(folder.to_path_buf()) };
        for part in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(folder.join(part))?;
        }
        let lines =
            releases.iter().map(|release| format!("deb [signed-by={KEYS}] {mirror} {release} main\n"));
        std::fs::write(folder.join("sources.list"), lines.collect::<String>())?;
        let releases = releases.join(" and ");
        println!("fetching the lists of Debian's {releases}");
        let fetched = lists.apt("apt-get").args(["update", "-q=2", "--error-on=any"]).status()?;
        anyhow::ensure!(
            fetched.success(),
            "apt can't fetch the lists of {releases}; what it says of that stands above"
        );
        Ok(lists)
    }

    /// `apt-get` or `apt-cache` with these lists.
    pub(crate) fn apt(&self, name: &str) -> Command {
        let mut command = program(name);
        command.args(&self.options);
        command
    }

    /// The newest exact version of a package, of the releases that begin so.
    pub(crate) fn newest(&self, package: &str, begins: &str) -> anyhow::Result<Option<String>> {
        let list = capture(self.apt("apt-cache").args(["madison", package]))?;
        Ok(version_in(&list, begins))
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            // What is left of it lies in the cache folder, which may be deleted whole.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Whether this is a system with apt and dpkg.
pub(crate) fn is_debian() -> bool {
    answers(program("apt-get").arg("--version")) && answers(program("dpkg").arg("--version"))
}

/// Fetches the system's lists anew, which needs root.
pub(crate) fn refresh() -> anyhow::Result<()> {
    let uid = capture(program("id").arg("-u"))?;
    anyhow::ensure!(uid.trim() == "0", "`apt-get update` as root may help");
    println!("refreshing apt's lists with `apt-get update`");
    // A list that can't be fetched is no reason to stop: the others may do.
    if let Err(error) = succeed(program("apt-get").args(["update", "-q"])) {
        println!("{error}");
    }
    Ok(())
}

/// The mirror of Debian's main archive among the addresses of the sources.
fn mirror_in(addresses: &str) -> Option<&str> {
    addresses.lines().map(str::trim).find(|address| address.trim_end_matches('/').ends_with("/debian"))
}

/// The version in a table as `apt-cache madison` prints it.
fn version_in(list: &str, begins: &str) -> Option<String> {
    let versions = list.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim);
    let mut matching = versions.filter(|version| version.starts_with(&format!("{begins}.")));
    matching.next().map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_version_comes_from_the_archives_table() {
        let list = " rustc-web | 1.96.0+dfsg1-1 | http://archive security/main\n \
                    rustc-web | 1.85.0+dfsg3-1~deb12u3 | http://archive main\n";
        assert_eq!(version_in(list, "1.85").as_deref(), Some("1.85.0+dfsg3-1~deb12u3"));
        assert_eq!(version_in(list, "1.8"), None);
        assert_eq!(version_in("", "1.85"), None);
    }

    #[test]
    fn the_mirror_is_the_one_of_the_main_archive() {
        let addresses = "http://mirror/debian-security/\nhttp://mirror/debian/\nhttp://mirror/other/\n";
        assert_eq!(mirror_in(addresses), Some("http://mirror/debian/"));
        assert_eq!(mirror_in("http://mirror/ubuntu/\n"), None);
    }
}
