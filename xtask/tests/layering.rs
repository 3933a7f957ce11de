//! Arrows go down only: which crate of ours may depend on which. The tables below are the rule, `docs/architecture.md`
//! says why; the test compares them with what the manifests say, for dependencies of every kind.

use cargo_metadata::{MetadataCommand, Package};

/// A crate of ours and all that it may name among its like.
struct Layer {
    krate: &'static str,
    may_name: &'static [&'static str],
}

const TRANSPORT: &[&str] = &["orbit-te-wire", "orbit-te-memory", "orbit-te-transport"];
const FACADE: &[&str] = &[
    "orbit-te-wire",
    "orbit-te-memory",
    "orbit-te-transport",
    "orbit-te-tcp",
    "orbit-te-shm",
    "orbit-te-rdma",
    "orbit-te-cuda",
    "orbit-te-storage",
    "orbit-te-directory",
];
const SIMULATION: &[&str] = &[
    "orbit-te-wire",
    "orbit-te-memory",
    "orbit-te-transport",
    "orbit-te-shm",
    "orbit-te-tcp",
    "orbit-te-rdma",
    "orbit-te",
];
/// What stands on the facade reaches transports through it alone; memory and wire are values that everybody shares.
const APPLICATION: &[&str] = &["orbit-te-wire", "orbit-te-memory", "orbit-te"];

const LAYERS: &[Layer] = &[
    Layer { krate: "orbit-te-wire", may_name: &[] },
    Layer { krate: "orbit-te-memory", may_name: &["orbit-te-wire"] },
    Layer { krate: "orbit-te-transport", may_name: &["orbit-te-wire", "orbit-te-memory"] },
    Layer { krate: "orbit-te-tcp", may_name: TRANSPORT },
    Layer { krate: "orbit-te-shm", may_name: TRANSPORT },
    Layer { krate: "orbit-te-rdma", may_name: TRANSPORT },
    Layer { krate: "orbit-te-cuda", may_name: TRANSPORT },
    Layer { krate: "orbit-te-storage", may_name: TRANSPORT },
    Layer { krate: "orbit-te-directory", may_name: &["orbit-te-wire"] },
    Layer { krate: "orbit-te", may_name: FACADE },
    // Steps the facade and the TCP transport itself; nothing of it reaches users.
    Layer { krate: "orbit-te-sim", may_name: SIMULATION },
    Layer { krate: "orbit-te-cli", may_name: APPLICATION },
    Layer { krate: "orbit-te-python", may_name: APPLICATION },
    Layer { krate: "orbit-te-capi", may_name: APPLICATION },
    Layer { krate: "orbit-te-mooncake", may_name: APPLICATION },
];

/// Packages that drive the others, and that nothing may depend on.
const DRIVERS: &[&str] = &["xtask"];

/// Foreign crates that have one home: elsewhere they would carry a vendor, a clock or a socket into a layer that must
/// not know of it. Tests may use them anywhere.
const HOMES: &[(&str, &[&str])] = &[
    ("ibverbs", &["orbit-te-rdma"]),
    ("ibverbs-sys", &["orbit-te-rdma"]),
    ("cudarc", &["orbit-te-cuda"]),
    ("io-uring", &["orbit-te-storage"]),
    ("mio", &["orbit-te-tcp", "orbit-te-shm", "orbit-te"]),
    ("socket2", &["orbit-te-tcp", "orbit-te-shm", "orbit-te"]),
    (
        "tokio",
        &[
            "orbit-te",
            "orbit-te-sim",
            "orbit-te-cli",
            "orbit-te-directory",
            "orbit-te-python",
            "orbit-te-capi",
        ],
    ),
    ("anyhow", &["orbit-te-cli", "xtask"]),
];

#[test]
fn arrows_go_down_only() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let members: Vec<&Package> = metadata.workspace_packages();
    let wrong: Vec<String> = members.iter().flat_map(|package| problems(package)).collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn the_table_has_no_way_back_up() {
    // The table lists crates from the bottom up, so each may name only crates that stand before it.
    for (at, layer) in LAYERS.iter().enumerate() {
        for name in layer.may_name {
            let below = LAYERS.iter().position(|other| other.krate == *name).unwrap();
            assert!(below < at, "{} may name {name}, which does not stand below it", layer.krate);
        }
    }
}

#[test]
fn a_wrong_arrow_is_found() {
    let arrow = |from: &str, to: &str| of_arrow(from, to);
    assert_eq!(arrow("orbit-te-tcp", "orbit-te-transport"), None);
    assert_eq!(arrow("orbit-te", "orbit-te-tcp"), None);
    assert_eq!(arrow("orbit-te-cli", "orbit-te"), None);
    assert_eq!(arrow("orbit-te-wire", "serde"), None);
    for (from, to) in [
        ("orbit-te-wire", "orbit-te-memory"),
        ("orbit-te-memory", "orbit-te-transport"),
        ("orbit-te-tcp", "orbit-te-rdma"),
        ("orbit-te-tcp", "orbit-te"),
        ("orbit-te-cli", "orbit-te-tcp"),
        ("orbit-te-wire", "xtask"),
        ("orbit-te-unheard-of", "orbit-te-wire"),
        ("orbit-te", "orbit-te-unheard-of"),
    ] {
        assert!(arrow(from, to).is_some(), "{from} → {to} was let through");
    }
    assert!(of_home("orbit-te-wire", "tokio").is_some());
    assert!(of_home("orbit-te-tcp", "mio").is_none());
}

fn problems(package: &Package) -> Vec<String> {
    let from = package.name.as_str();
    let mut problems: Vec<String> = unplaced(from).into_iter().collect();
    for dependency in &package.dependencies {
        problems.extend(of_arrow(from, &dependency.name));
        if dependency.kind == cargo_metadata::DependencyKind::Normal {
            problems.extend(of_home(from, &dependency.name));
        }
    }
    problems.dedup();
    problems
}

fn layer(krate: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|layer| layer.krate == krate)
}

fn unplaced(krate: &str) -> Option<String> {
    let placed = layer(krate).is_some() || DRIVERS.contains(&krate);
    (!placed).then(|| {
        format!("{krate} has no place: put it into LAYERS in xtask/tests/layering.rs, and into docs/architecture.md")
    })
}

fn of_arrow(from: &str, to: &str) -> Option<String> {
    if DRIVERS.contains(&to) {
        return Some(format!("{from} depends on {to}, which nothing may depend on"));
    }
    if !to.starts_with("orbit-te") || DRIVERS.contains(&from) {
        return None;
    }
    let Some(layer) = layer(from) else { return unplaced(from) };
    (!layer.may_name.contains(&to)).then(|| {
        let allowed = if layer.may_name.is_empty() { "none".to_string() } else { layer.may_name.join(", ") };
        format!("{from} depends on {to}; of our crates it may name: {allowed}")
    })
}

fn of_home(from: &str, to: &str) -> Option<String> {
    let (_, homes) = HOMES.iter().find(|(krate, _)| *krate == to)?;
    let home = homes.contains(&from) || DRIVERS.contains(&from);
    (!home).then(|| format!("{from} depends on {to}, which only {} may", homes.join(", ")))
}
