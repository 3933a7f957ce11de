//! The programs of the lab: QEMU, which runs on the host, and what the guest runs. Rule: they are Debian's packages of the
//! host's own release, unpacked beside the system, so that a program finds its libraries here or there.

use crate::apt::{self, Lists};
use crate::debian::{self, Bundle, libraries_in};
use crate::process::{capture, program};
use crate::tools::cache_dir;
use anyhow::{Context, anyhow, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGES: [&str; 11] = [
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "perftest",
    "qemu-system-common",
    "qemu-system-data",
    "qemu-system-x86",
    "seabios",
    "xz-utils",
    "zstd",
];

/// What of it the guest gets, beside a busybox that does everything else.
const GUEST_PROGRAMS: [&str; 10] = [
    "bash",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
    "ibv_devinfo",
    "ip",
    "rdma",
    "tc",
];

const QEMU: &str = "qemu-system-x86_64";

/// The folder of unpacked packages.
pub(super) struct Kit {
    root: PathBuf,
}

/// A program or a library: what it is called, and where it is here.
pub(super) type Named = (String, PathBuf);

impl Kit {
    /// The kit, unpacked now if it is not here.
    pub(super) fn obtain() -> anyhow::Result<Kit> {
        ensure!(cfg!(target_arch = "x86_64"), "its kernels are for x86-64 only");
        ensure!(apt::is_debian(), "this is no Debian to take QEMU from");
        let kit = Kit { root: cache_dir()?.join(format!("lab-tools-{}", release()?)) };
        if kit.works().is_ok() {
            return Ok(kit);
        }
        let unpack = || {
            let bundle = Bundle {
                what: "QEMU with what its guests run".to_string(),
                size: "about 40 MB to fetch, 100 MB on disk, 10 s",
                packages: PACKAGES.map(str::to_string).to_vec(),
                lists: &Lists::of_system(),
                with_libraries: true,
                finish: &|folder| Kit { root: folder.to_path_buf() }.works(),
            };
            debian::unpack(&bundle, &kit.root)
        };
        if let Err(why) = unpack() {
            // Lists of yesterday name packages that are no longer there.
            println!("{why:#}");
            apt::refresh().map_err(|remedy| anyhow!("{why:#} ({remedy})"))?;
            unpack()?;
        }
        Ok(kit)
    }

    /// A program on the host: out of the kit if it has it, otherwise the system's.
    pub(super) fn program(&self, name: &str) -> Command {
        let place = self.find(name).unwrap_or_else(|| PathBuf::from(name));
        let mut command = program(place);
        command.env("LD_LIBRARY_PATH", libraries_in(&self.root));
        command
    }

    /// QEMU, which is ended when the thread that starts it ends in whatever way.
    pub(super) fn qemu(&self) -> anyhow::Result<Command> {
        let place = self.find(QEMU).context("the kit has no QEMU")?;
        let mut command = program("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(place);
        command.env("LD_LIBRARY_PATH", libraries_in(&self.root));
        for folder in ["qemu", "seabios"] {
            command.arg("-L").arg(self.root.join("usr").join("share").join(folder));
        }
        Ok(command)
    }

    /// The one program in the guest that needs no library.
    pub(super) fn busybox(&self) -> anyhow::Result<PathBuf> {
        self.find("busybox").context("the kit has no busybox")
    }

    /// The guest's programs.
    pub(super) fn guest_programs(&self) -> anyhow::Result<Vec<Named>> {
        let place = |name: &str| {
            let system = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(name));
            let place = self.find(name).or_else(|| system.into_iter().find(|path| path.is_file()));
            anyhow::Ok((name.to_string(), place.with_context(|| format!("{name} is missing"))?))
        };
        GUEST_PROGRAMS.into_iter().map(place).collect()
    }

    /// What makes libibverbs know Soft-RoCE devices: the library, and the file that names it, as they lie below `/`.
    pub(super) fn providers(&self) -> anyhow::Result<Vec<Named>> {
        let mut found = Vec::new();
        for (folder, part) in
            [("usr/lib/x86_64-linux-gnu/libibverbs", "librxe"), ("etc/libibverbs.d", "rxe.")]
        {
            for entry in std::fs::read_dir(self.root.join(folder))? {
                let (name, path) = entry.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path()))?;
                if name.starts_with(part) {
                    found.push((format!("/{folder}/{name}"), path));
                }
            }
        }
        ensure!(found.len() == 2, "libibverbs' driver for Soft-RoCE is missing");
        Ok(found)
    }

    /// The shared libraries that a program needs. One that needs none has none.
    pub(super) fn libraries_of(&self, binary: &Path) -> anyhow::Result<Vec<Named>> {
        let mut ldd = program("ldd");
        let said = ldd.arg(binary).env("LD_LIBRARY_PATH", libraries_in(&self.root)).output()?;
        libraries_from(&String::from_utf8_lossy(&said.stdout)).with_context(|| binary.display().to_string())
    }

    fn find(&self, name: &str) -> Option<PathBuf> {
        let folders = ["usr/bin", "bin", "usr/sbin", "sbin"].map(|folder| self.root.join(folder).join(name));
        folders.into_iter().find(|path| path.is_file())
    }

    fn works(&self) -> anyhow::Result<()> {
        capture(self.qemu()?.arg("--version"))?;
        // What every guest begins with.
        for file in ["usr/share/seabios/bios-256k.bin", "usr/share/qemu/pvh.bin"] {
            ensure!(self.root.join(file).is_file(), "QEMU's {file} is missing");
        }
        self.busybox()?;
        self.providers()?;
        for (_, path) in self.guest_programs()? {
            self.libraries_of(&path)?;
        }
        Ok(())
    }
}

/// The name of the host's release, which the libraries that are not in the kit belong to.
fn release() -> anyhow::Result<String> {
    let about = std::fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let name = about.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(|name| name.trim_matches('"').to_string()).context("/etc/os-release names no release")
}

/// From what `ldd` prints: the name under which a library is looked for, and its file.
fn libraries_from(said: &str) -> anyhow::Result<Vec<Named>> {
    let mut found = Vec::new();
    for line in said.lines().map(str::trim) {
        // The address behind the path is of no use; the kernel's own library has nothing but one.
        let line = line.rsplit_once(" (0x").map_or(line, |(line, _)| line);
        if let Some((name, path)) = line.split_once(" => ") {
            ensure!(path != "not found", "needs {name}, which is not here");
            found.push((name.to_string(), PathBuf::from(path)));
        } else if line.starts_with('/') {
            found.push((line.to_string(), PathBuf::from(line)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_have_their_names_and_files() {
        let said = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found = libraries_from(said).unwrap();
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert_eq!(found[0].1, Path::new("/lib/x86_64-linux-gnu/libc.so.6"));
        assert!(libraries_from("\tstatically linked\n").unwrap().is_empty());
        let why = libraries_from("\tlibgone.so.1 => not found\n").unwrap_err().to_string();
        assert_eq!(why, "needs libgone.so.1, which is not here");
    }
}
