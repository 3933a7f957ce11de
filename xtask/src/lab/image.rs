//! The files of a guest: a base that is the same for all guests of a kernel, and behind it what one guest gets of its own.

use super::cpio::Archive;
use super::kernel::Kernel;
use super::kit::{Kit, Named};
use super::topology::{Host, Topology};
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SCRIPTS: [(&str, &str); 3] = [
    ("/init", include_str!("guest/init.sh")),
    ("/lab/topology.sh", include_str!("guest/topology.sh")),
    ("/lab/library.sh", include_str!("guest/library.sh")),
];

/// Where the guest's dynamic linker looks.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// What the host brings into a guest.
#[derive(Debug, Clone, Default)]
pub(super) struct Carried {
    /// Programs by the names that they have in the guest.
    pub(super) programs: Vec<Named>,
    /// Files and folders by the paths that they have in the guest.
    pub(super) files: Vec<Named>,
}

/// A command of a guest.
#[derive(Debug, Clone)]
pub(super) struct Task {
    /// What bash gets.
    pub(super) script: String,
    /// When it is ended.
    pub(super) limit: Duration,
}

/// What a guest is told of itself.
pub(super) struct Settings<'a> {
    pub(super) topology: Topology,
    pub(super) host: &'a Host,
    pub(super) mtu: u32,
}

/// Kernel modules, programs and scripts.
pub(super) fn base(kit: &Kit, kernel: &Kernel) -> anyhow::Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["/dev", "/proc", "/sys", "/tmp", "/out", "/usr/local/bin"] {
        archive.folder(folder);
    }
    for (path, text) in SCRIPTS {
        archive.file(path, text.as_bytes());
    }
    let mut order = String::new();
    for (name, bytes) in kernel.modules()? {
        archive.file(&format!("/lab/modules/{name}.ko"), &bytes);
        order.push_str(&name);
        order.push('\n');
    }
    archive.file("/lab/modules/order", order.as_bytes());
    archive.file("/bin/busybox", &read(&kit.busybox()?)?);
    add_programs(&mut archive, "/bin", &kit.guest_programs()?, kit)?;
    for (path, from) in kit.providers()? {
        archive.file(&path, &read(&from)?);
        if path.contains(".so") {
            add_libraries(&mut archive, &from, kit)?;
        }
    }
    Ok(archive.finish())
}

/// What one guest gets.
pub(super) fn own(
    settings: &Settings<'_>,
    tasks: &[Task],
    carried: &Carried,
    kit: &Kit,
) -> anyhow::Result<Vec<u8>> {
    let mut archive = Archive::default();
    let Settings { topology, host, mtu } = settings;
    let text = format!(
        "LAB_TOPOLOGY={}\nLAB_HOST={}\nLAB_ADDRESS={}\nLAB_PEER={}\nLAB_MTU={mtu}\n",
        topology.name(),
        host.name,
        host.address,
        host.peer
    );
    archive.file("/lab/settings", text.as_bytes());
    for (number, task) in tasks.iter().enumerate() {
        let script = format!(". /lab/library.sh\n{}\n", task.script);
        archive.file(&format!("/lab/commands/{number}.sh"), script.as_bytes());
        archive.file(&format!("/lab/commands/{number}.limit"), task.limit.as_secs().to_string().as_bytes());
    }
    add_programs(&mut archive, "/usr/local/bin", &carried.programs, kit)?;
    for (path, from) in &carried.files {
        add_tree(&mut archive, path, from)?;
    }
    Ok(archive.finish())
}

fn add_programs(archive: &mut Archive, folder: &str, programs: &[Named], kit: &Kit) -> anyhow::Result<()> {
    for (name, from) in programs {
        archive.file(&format!("{folder}/{name}"), &read(from)?);
        add_libraries(archive, from, kit)?;
    }
    Ok(())
}

fn add_libraries(archive: &mut Archive, binary: &Path, kit: &Kit) -> anyhow::Result<()> {
    for (name, from) in kit.libraries_of(binary)? {
        let path = if name.starts_with('/') { name } else { format!("{LIBRARIES}/{name}") };
        if !archive.has(&path) {
            archive.file(&path, &read(&from)?);
        }
    }
    Ok(())
}

fn add_tree(archive: &mut Archive, path: &str, from: &Path) -> anyhow::Result<()> {
    if !from.is_dir() {
        archive.file(path, &read(from)?);
        return Ok(());
    }
    archive.folder(path);
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        add_tree(archive, &format!("{path}/{}", entry.file_name().to_string_lossy()), &entry.path())?;
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// What `--bin` names: a program, under its own name.
pub(super) fn program_at(path: &Path) -> anyhow::Result<Named> {
    ensure!(path.is_file(), "{} is no program", path.display());
    let name = path.file_name().context("a program without a name")?.to_string_lossy().into_owned();
    Ok((name, absolute(path)?))
}

/// What `--file` names: `SOURCE:DESTINATION`.
pub(super) fn file_at(text: &str) -> anyhow::Result<Named> {
    let (from, to) = text.rsplit_once(':').context("it is written SOURCE:DESTINATION")?;
    ensure!(to.starts_with('/') && to.len() > 1, "{to} is no absolute path in the guest");
    ensure!(!from.is_empty(), "it is written SOURCE:DESTINATION");
    Ok((to.trim_end_matches('/').to_string(), absolute(Path::new(from))?))
}

/// Other programs are started elsewhere.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::fs::canonicalize(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_with_their_places() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(file_at(".:/tmp/x/").unwrap(), ("/tmp/x".to_string(), here.canonicalize().unwrap()));
        for wrong in ["x", ":/tmp/x", ".:tmp/x", ".:/", "no such file:/tmp/x"] {
            assert!(file_at(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn scripts_are_bash() {
        for (path, text) in SCRIPTS {
            let checked = crate::process::capture(crate::process::program("bash").args(["-n", "-c", text]));
            assert!(checked.is_ok(), "{path}: {checked:?}");
        }
    }
}
