//! GPUs and storage that reaches them. Rule: this version uses none of them, and each line says so.

use super::check::{Finding, State};
use super::tree::{Miss, Tree, number, shown};

const NVIDIA: &str = "proc/driver/nvidia/version";
const GDS: &str = "proc/driver/nvidia-fs/stats";
const UNUSED: &str = "not used by this version";

pub(crate) fn checks(tree: &Tree) -> Vec<Finding> {
    vec![cuda(tree), gds(tree)]
}

fn cuda(tree: &Tree) -> Finding {
    const NAME: &str = "cuda";
    let text = match tree.text(NVIDIA) {
        Ok(text) => text,
        Err(Miss::Absent) => return Finding::new(NAME, State::Absent, "no NVIDIA driver", UNUSED),
        Err(miss) => return Finding::missed(NAME, NVIDIA, &miss, UNUSED),
    };
    let version = version(&text).unwrap_or_else(|| "of unknown version".to_string());
    let nodes = tree.names("dev").unwrap_or_default();
    let gpus = nodes.iter().filter(|n| n.strip_prefix("nvidia").is_some_and(|n| number(n).is_ok())).count();
    let uvm = if nodes.iter().any(|n| n == "nvidia-uvm") { "nvidia-uvm" } else { "no nvidia-uvm" };
    let s = if gpus == 1 { "" } else { "s" };
    let finding = Finding::new(NAME, State::Note, format!("driver {version}, {gpus} GPU{s}, {uvm}"), UNUSED);
    match gpus {
        0 => finding.remedy("have the container given the GPUs (--gpus), where something else needs them"),
        _ => finding,
    }
}

/// The first word with two numbers and a dot: `550.54.15` of the driver's line, `1.11.1.6` of nvidia-fs's.
fn version(text: &str) -> Option<String> {
    let is_version = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        parts.len() > 1 && parts.iter().all(|part| number(part).is_ok())
    };
    text.split_whitespace().find(is_version).map(shown)
}

fn gds(tree: &Tree) -> Finding {
    const NAME: &str = "gds";
    match tree.text(GDS) {
        Ok(text) => {
            let version = version(&text).unwrap_or_else(|| "of unknown version".to_string());
            Finding::new(NAME, State::Note, format!("nvidia-fs {version}"), UNUSED)
        }
        Err(Miss::Absent) => Finding::new(NAME, State::Absent, "no nvidia-fs", UNUSED),
        Err(miss) => Finding::missed(NAME, GDS, &miss, UNUSED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::tree;

    #[test]
    fn a_host_without_devices() {
        let (_folder, tree) = tree(&[]);
        let found = checks(&tree);
        assert!(found.iter().all(|f| f.state == State::Absent && f.why == UNUSED), "{found:?}");
    }

    #[test]
    fn drivers_and_their_nodes() {
        let line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024";
        let (_folder, full) = tree(&[
            (NVIDIA, line),
            ("dev/nvidia0", ""),
            ("dev/nvidia1", ""),
            ("dev/nvidiactl", ""),
            ("dev/nvidia-uvm", ""),
        ]);
        assert_eq!(cuda(&full).found, "driver 550.54.15, 2 GPUs, nvidia-uvm");
        let (_folder, bare) = tree(&[(NVIDIA, "NVRM"), (GDS, "GDS Version: 1.11.1.6")]);
        assert_eq!(cuda(&bare).found, "driver of unknown version, 0 GPUs, no nvidia-uvm");
        assert_eq!(gds(&bare).found, "nvidia-fs 1.11.1.6");
    }
}
