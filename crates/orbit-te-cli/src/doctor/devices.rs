//! RDMA devices, GPUs and storage that reaches them. Rule: this version uses none of them, and each line says so.

use super::check::{Finding, State};
use super::tree::{Miss, Tree, number, shown};

const INFINIBAND: &str = "sys/class/infiniband";
const NVIDIA: &str = "proc/driver/nvidia/version";
const GDS: &str = "proc/driver/nvidia-fs/stats";
const UNUSED: &str = "not used by this version";

pub(crate) fn checks(tree: &Tree) -> Vec<Finding> {
    let mut found = rdma(tree);
    found.extend([cuda(tree), gds(tree)]);
    found
}

fn rdma(tree: &Tree) -> Vec<Finding> {
    const NAME: &str = "rdma";
    let devices = match tree.names(INFINIBAND) {
        Ok(devices) => devices,
        Err(Miss::Absent) => Vec::new(),
        Err(miss) => return vec![Finding::missed(NAME, INFINIBAND, &miss, UNUSED)],
    };
    if devices.is_empty() {
        return vec![Finding::new(NAME, State::Absent, "no device", UNUSED)];
    }
    devices.iter().flat_map(|device| ports(tree, device)).collect()
}

fn ports(tree: &Tree, device: &str) -> Vec<Finding> {
    const NAME: &str = "rdma";
    let folder = format!("{INFINIBAND}/{device}/ports");
    let device = shown(device);
    let ports = match tree.names(&folder) {
        Ok(ports) if !ports.is_empty() => ports,
        Ok(_) | Err(Miss::Absent) => {
            return vec![Finding::new(NAME, State::Note, format!("{device}: it has no ports"), UNUSED)];
        }
        Err(Miss::Unreadable(why)) => {
            return vec![Finding::new(NAME, State::Note, format!("{device}: its ports: {why}"), UNUSED)];
        }
    };
    let about = |port: &String| {
        let word = |file: &str| match tree.text(&format!("{folder}/{port}/{file}")) {
            Ok(text) => shown(&text),
            Err(Miss::Absent) => format!("no {file}"),
            Err(Miss::Unreadable(why)) => format!("{file}: {why}"),
        };
        // As in `4: ACTIVE`.
        let state = word("state");
        let state =
            state.split_once(": ").filter(|(n, _)| number(n).is_ok()).map_or(state.as_str(), |(_, s)| s);
        let found =
            format!("{device} port {}: {state}, {}, {}", shown(port), word("link_layer"), word("rate"));
        Finding::new(NAME, State::Note, found, UNUSED)
    };
    ports.iter().map(about).collect()
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
    fn ports_are_told_with_state_layer_and_rate() {
        let (_folder, tree) = tree(&[
            ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n"),
            ("sys/class/infiniband/mlx5_1/ports/1/state", "\n"),
            ("sys/class/infiniband/mlx5_2/node_guid", "0"),
        ]);
        let found: Vec<String> = rdma(&tree).into_iter().map(|f| f.found).collect();
        assert_eq!(
            found,
            [
                "mlx5_0 port 1: ACTIVE, InfiniBand, 400 Gb/sec (4X NDR)",
                "mlx5_1 port 1: state: it is empty, no link_layer, no rate",
                "mlx5_2: it has no ports",
            ]
        );
    }

    #[test]
    fn a_host_without_devices() {
        let (_folder, tree) = tree(&[]);
        let found = checks(&tree);
        assert!(found.iter().all(|f| f.state == State::Absent && f.why == UNUSED), "{found:?}");
        assert_eq!(found[0].found, "no device");
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
