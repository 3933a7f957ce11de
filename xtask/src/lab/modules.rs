//! Kernel modules: which ones a guest needs, and in which order. Rule: a module comes after all that it depends on, as its own
//! file says; what the kernel has built in needs no file.

use super::bzimage;
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a guest loads. Checksums stand first: `rdma_rxe` asks the kernel for them by name.
pub(super) const WANTED: [&str; 10] = [
    "crc32_generic",
    "crc32c_generic",
    "ib_uverbs",
    "rdma_rxe",
    "veth",
    "bridge",
    "sch_netem",
    "virtio_pci",
    "virtio_net",
    "virtio_console",
];

/// A module's name and its file.
pub(super) type Module = (String, Vec<u8>);

/// Reads the wanted modules and all that they depend on from a folder `lib/modules/VERSION`, in the order of loading.
pub(super) fn load(folder: &Path, unpacker: &dyn Fn(&str) -> Command) -> anyhow::Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    index(folder, &mut files)?;
    let built_in = std::fs::read_to_string(folder.join("modules.builtin")).context("modules.builtin")?;
    let built_in = built_in.lines().map(|line| name_of(Path::new(line))).collect();
    let mut loader = Loader { files, built_in, unpacker, seen: BTreeSet::new(), modules: Vec::new() };
    for name in WANTED {
        loader.add(name)?;
    }
    Ok(loader.modules)
}

struct Loader<'a> {
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
    unpacker: &'a dyn Fn(&str) -> Command,
    seen: BTreeSet<String>,
    modules: Vec<Module>,
}

impl Loader<'_> {
    fn add(&mut self, name: &str) -> anyhow::Result<()> {
        if self.built_in.contains(name) || !self.seen.insert(name.to_string()) {
            return Ok(());
        }
        let path = self.files.get(name).with_context(|| format!("the kernel has no module {name}"))?;
        let module = bzimage::module(path, self.unpacker)?;
        for other in depends_on(&module) {
            self.add(&other)?;
        }
        self.modules.push((name.to_string(), module));
        Ok(())
    }
}

/// All files of modules in a folder, by name.
fn index(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // Links lead to sources, which are not here.
        if path.is_symlink() {
            continue;
        } else if path.is_dir() {
            index(&path, files)?;
        } else if path.to_string_lossy().contains(".ko") {
            files.insert(name_of(&path), path);
        }
    }
    Ok(())
}

/// The name of the module in a file: `crc32c-generic.ko.xz` has `crc32c_generic`.
fn name_of(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    file.split('.').next().unwrap_or_default().replace('-', "_")
}

/// The modules that a module needs, from its own list: `depends=a,b`, a string among others, each with a zero at its end.
fn depends_on(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else { return Vec::new() };
    let list = module[at + key.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list).into_owned();
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::program;

    #[test]
    fn a_module_names_what_it_needs() {
        let module = b"\x7fELF..license=GPL\0depends=ib-core,udp_tunnel\0name=x\0";
        assert_eq!(depends_on(module), ["ib_core", "udp_tunnel"]);
        assert!(depends_on(b"\x7fELF\0depends=\0name=x\0").is_empty());
        assert!(depends_on(b"\x7fELF").is_empty());
        assert_eq!(name_of(Path::new("kernel/crypto/crc32c-generic.ko.xz")), "crc32c_generic");
    }

    #[test]
    fn needed_ones_come_first_and_built_in_ones_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("net")).unwrap();
        for name in WANTED.iter().filter(|name| **name != "virtio_pci") {
            let needs = if *name == "bridge" { "llc,stp" } else { "" };
            let text = format!("\x7fELF\0depends={needs}\0");
            std::fs::write(folder.path().join(format!("net/{name}.ko")), text).unwrap();
        }
        std::fs::write(folder.path().join("net/stp.ko"), b"\x7fELF\0depends=llc\0").unwrap();
        std::fs::write(folder.path().join("net/llc.ko"), b"\x7fELF\0depends=virtio-pci\0").unwrap();
        std::fs::write(folder.path().join("modules.builtin"), "kernel/drivers/virtio/virtio_pci.ko\n")
            .unwrap();
        let order: Vec<String> =
            load(folder.path(), &|name| program(name)).unwrap().into_iter().map(|(name, _)| name).collect();
        let expected = [
            "crc32_generic",
            "crc32c_generic",
            "ib_uverbs",
            "rdma_rxe",
            "veth",
            "llc",
            "stp",
            "bridge",
            "sch_netem",
            "virtio_net",
            "virtio_console",
        ];
        assert_eq!(order, expected);
    }
}
