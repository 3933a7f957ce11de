//! What only sysfs says of a device. Rule: the root is a parameter, so that tests have trees of their own.

use std::fs;
use std::path::Path;

/// The NUMA node of a device, if it has one. A device made of a network card (rxe) has that of its card.
pub fn numa_node(sysfs: &Path, device: &str) -> Option<u32> {
    let ours = sysfs.join("class/infiniband").join(device);
    node_in(&ours.join("device")).or_else(|| {
        let card = fs::read_to_string(ours.join("parent")).ok()?;
        let card = sysfs.join("class/net").join(card.trim()).join("device");
        // A virtio card is a child of the PCI function, which has the node.
        node_in(&card).or_else(|| node_in(card.canonicalize().ok()?.parent()?))
    })
}

fn node_in(folder: &Path) -> Option<u32> {
    // -1 is the kernel's word for "none".
    fs::read_to_string(folder.join("numa_node")).ok()?.trim().parse().ok()
}

/// The kernel's RDMA devices with the names of their character devices under `/dev/infiniband`, also those for which libibverbs has no
/// provider.
pub fn character_devices(sysfs: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(sysfs.join("class/infiniband_verbs")).into_iter().flatten().flatten() {
        if let Ok(device) = fs::read_to_string(entry.path().join("ibdev")) {
            found.push((device.trim().to_string(), entry.file_name().to_string_lossy().into_owned()));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_node_is_the_devices_or_its_cards() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "class/infiniband/mlx5_0/device/numa_node", "1\n");
        write(root, "class/infiniband/mlx5_1/device/numa_node", "-1\n");
        write(root, "class/infiniband/rxe0/parent", "eth0\n");
        write(root, "class/net/eth0/device/numa_node", "0\n");
        write(root, "class/infiniband/rxe1/parent", "eth1\n");
        write(root, "devices/pci/numa_node", "3\n");
        write(root, "devices/pci/virtio0/vendor", "0\n");
        fs::create_dir_all(root.join("class/net/eth1")).unwrap();
        std::os::unix::fs::symlink(root.join("devices/pci/virtio0"), root.join("class/net/eth1/device"))
            .unwrap();
        for (device, node) in
            [("mlx5_0", Some(1)), ("mlx5_1", None), ("rxe0", Some(0)), ("rxe1", Some(3)), ("absent", None)]
        {
            assert_eq!(numa_node(root, device), node, "{device}");
        }
    }

    #[test]
    fn character_devices_are_named() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "class/infiniband_verbs/uverbs1/ibdev", "mlx5_0\n");
        write(root.path(), "class/infiniband_verbs/abi_version", "6\n");
        assert_eq!(character_devices(root.path()), [("mlx5_0".to_string(), "uverbs1".to_string())]);
        assert!(character_devices(Path::new("nowhere")).is_empty());
    }
}
