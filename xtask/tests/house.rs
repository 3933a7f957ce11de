//! The house's rules, as tests over the files that belong to the repository. Each rule says in its message what to do;
//! `planted_faults_are_found` shows that each finds what it is for.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file longer than this is not read in one sitting.
const MOST_LINES: usize = 600;

/// The files beside `sys` modules that may contain unsafe code, and what for. It is granted nowhere else. Tests, examples
/// and benches need no grant: they call a contract that is unsafe in places, and clippy asks them for their proofs.
const UNSAFE: &[(&str, &str)] = &[
    ("crates/orbit-te-memory/src/backing.rs", "the owner of a range of addresses"),
    ("crates/orbit-te-memory/src/host.rs", "the owner of a mapping, before it becomes a backing"),
    ("crates/orbit-te-memory/src/region.rs", "copies and addresses inside a backing"),
    ("crates/orbit-te-rdma/src/carrying.rs", "hands the addresses of leased regions to verbs"),
    ("crates/orbit-te-rdma/src/cut.rs", "reads the slices of a list in flight"),
    ("crates/orbit-te-rdma/src/handle/channel.rs", "the owner of a completion channel"),
    ("crates/orbit-te-rdma/src/handle/context.rs", "the owner of an open device"),
    ("crates/orbit-te-rdma/src/handle/cq.rs", "the owner of a CQ"),
    ("crates/orbit-te-rdma/src/handle/event.rs", "reads the object of an event before it is given back"),
    ("crates/orbit-te-rdma/src/handle/mr.rs", "the owner of an MR"),
    ("crates/orbit-te-rdma/src/handle/mw.rs", "the owner of an MW"),
    ("crates/orbit-te-rdma/src/handle/owner.rs", "the one owner of an object of verbs"),
    ("crates/orbit-te-rdma/src/handle/pd.rs", "the owner of a PD"),
    ("crates/orbit-te-rdma/src/handle/qp.rs", "the owner of a QP"),
    ("crates/orbit-te-rdma/src/handle/retention.rs", "frees what could not be freed before"),
    ("crates/orbit-te-rdma/src/handle/srq.rs", "the owner of an SRQ"),
    ("crates/orbit-te-rdma/src/memory.rs", "registers the memory of a backing with a device"),
    ("crates/orbit-te-rdma/src/transport.rs", "the promises of the transport contract"),
    ("crates/orbit-te-sim/src/net/stream.rs", "sends and receives by address, over a network in memory"),
    (
        "crates/orbit-te-sim/src/watch.rs",
        "hands on the promises of the transport contract, or breaks them on purpose",
    ),
    ("crates/orbit-te-shm/src/copier.rs", "hands on copies under the promises of whoever asks for them"),
    (
        "crates/orbit-te-shm/src/mover.rs",
        "copies between leased regions and peers' memory, behind their gates",
    ),
    ("crates/orbit-te-shm/src/transport.rs", "the promises of the transport contract"),
    ("crates/orbit-te-tcp/src/checksum.rs", "makes sums over ranges of leased regions"),
    ("crates/orbit-te-tcp/src/conn.rs", "hands ranges of leased regions to the socket calls"),
    ("crates/orbit-te-tcp/src/net.rs", "the trait of streams that send and receive by address"),
    ("crates/orbit-te-tcp/src/transport.rs", "the promises of the transport contract"),
    ("crates/orbit-te-transport/src/transport.rs", "the trait whose promises memory safety rests on"),
    ("crates/orbit-te-tcp/src/body.rs", "reads the slices of a list in flight"),
    ("crates/orbit-te-transport/src/op.rs", "the view of a list, which whoever submits it keeps alive"),
    ("crates/orbit-te-transport/src/testing/drive.rs", "submits ops over memory that the harness leases"),
    ("crates/orbit-te-transport/src/testing/faulty.rs", "a transport that breaks its promises one at a time"),
    ("crates/orbit-te-transport/src/testing/rows/notices.rs", "submits notices whose bytes the row keeps"),
    (
        "crates/orbit-te-transport/src/testing/reference.rs",
        "the promises of the contract, by the simplest transport",
    ),
    ("crates/orbit-te-transport/src/testing/reference/target.rs", "the copy between two leased regions"),
    ("crates/orbit-te/src/announcer.rs", "submits notifications whose bytes their transfers keep"),
    ("crates/orbit-te/src/core.rs", "submits ops whose transfers hold the leases"),
    (
        "crates/orbit-te/src/dead.rs",
        "the promises of the transport contract, by a transport that takes nothing",
    ),
    ("crates/orbit-te/src/router.rs", "lends transports' descriptors to the event queue"),
    ("crates/orbit-te/src/router/carry.rs", "hands on ops under the promises of whoever submits them"),
    ("crates/orbit-te/src/sleeper.rs", "lends a transport's descriptor to the event queue"),
];

#[test]
fn files_keep_the_rules() {
    let mut problems = Vec::new();
    for path in files() {
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else { continue };
        problems.extend(of_any_file(&path, &text));
        if path.ends_with(".rs") {
            problems.extend(of_rust_file(&path, &text));
        }
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn unsafe_is_granted_only_where_it_is_used() {
    for (path, _) in UNSAFE {
        let text = std::fs::read_to_string(root().join(path)).unwrap_or_default();
        assert!(
            uses_unsafe(&text),
            "{path} has no unsafe code: take it out of UNSAFE in xtask/tests/house.rs"
        );
    }
}

#[test]
fn crates_deny_unsafe_at_their_root() {
    for krate in crates() {
        for name in ["src/lib.rs", "src/main.rs"] {
            let Ok(text) = std::fs::read_to_string(root().join(&krate).join(name)) else { continue };
            let denies =
                ["#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"].iter().any(|line| text.contains(line));
            assert!(denies, "{krate}/{name} neither forbids nor denies unsafe_code");
        }
    }
}

#[test]
fn manifests_take_from_the_workspace() {
    let mut problems = Vec::new();
    for krate in crates().into_iter().chain(["xtask".to_string()]) {
        let path = format!("{krate}/Cargo.toml");
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        problems.extend(of_manifest(&path, &text));
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

fn of_any_file(path: &str, text: &str) -> Vec<String> {
    let numbered = text.lines().enumerate();
    let wrong = numbered.filter(|(_, line)| names_a_machine_path(line));
    wrong
        .map(|(at, _)| format!("{path}:{}: a path of one machine; say it relative to the repository", at + 1))
        .collect()
}

fn of_rust_file(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if !text.starts_with("//!") {
        problems.push(format!("{path} opens without a `//!` line that says what it owns"));
    }
    let lines = text.lines().count();
    if lines > MOST_LINES {
        problems.push(format!("{path} has {lines} lines, over {MOST_LINES}: split it by concept"));
    }
    for left_over in [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")] {
        if code_lines(text).any(|line| line.contains(left_over)) {
            problems.push(format!("{path} contains {left_over}…)"));
        }
    }
    if code_lines(text).any(|line| line.trim_start().starts_with(concat!("#[", "ignore"))) {
        problems
            .push(format!("{path} has a test that never runs: let it skip aloud instead (docs/testing.md)"));
    }
    if uses_unsafe(text) && !may_be_unsafe(path) {
        problems.push(format!(
            "{path} uses unsafe code: move it into a sys module or an owning handle, or grant it with a reason in \
             UNSAFE in xtask/tests/house.rs"
        ));
    }
    problems
}

fn may_be_unsafe(path: &str) -> bool {
    let by_place = ["/sys/", "/tests/", "/examples/", "/benches/"].iter().any(|place| path.contains(place));
    by_place || path.ends_with("/sys.rs") || UNSAFE.iter().any(|(granted, _)| *granted == path)
}

fn of_manifest(path: &str, text: &str) -> Vec<String> {
    let manifest: toml::Table = text.parse().unwrap();
    let mut problems = Vec::new();
    let package = manifest["package"].as_table().unwrap();
    for key in ["version", "edition", "rust-version", "license", "repository"] {
        if !from_workspace(package.get(key)) {
            problems.push(format!("{path}: `{key}.workspace = true` is missing"));
        }
    }
    if package.get("description").and_then(toml::Value::as_str).is_none_or(str::is_empty) {
        problems.push(format!("{path}: the package has no description"));
    }
    if !from_workspace(manifest.get("lints")) {
        problems.push(format!("{path}: `[lints] workspace = true` is missing"));
    }
    for (name, value) in dependencies(&manifest) {
        if !from_workspace(Some(value)) {
            problems.push(format!(
                "{path}: {name} is not from the workspace's table (`{name}.workspace = true`)"
            ));
        }
    }
    problems
}

/// All dependencies of a manifest, of every kind and for every target.
fn dependencies(manifest: &toml::Table) -> Vec<(&String, &toml::Value)> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets.into_iter().flat_map(|targets| targets.values()).filter_map(toml::Value::as_table);
    let mut found = Vec::new();
    for table in std::iter::once(manifest).chain(targets) {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            found.extend(table.get(kind).and_then(toml::Value::as_table).into_iter().flatten());
        }
    }
    found
}

fn from_workspace(value: Option<&toml::Value>) -> bool {
    value.and_then(|value| value.get("workspace")).and_then(toml::Value::as_bool) == Some(true)
}

/// Whether a line names a folder that only some machines have: an absolute path that begins in the line.
fn names_a_machine_path(line: &str) -> bool {
    ["root", "home", "Users", "work"].iter().any(|folder| {
        line.match_indices(&format!("/{folder}/")).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            before.is_none_or(|c| c.is_whitespace() || "\"'`(=:<[,".contains(c))
        })
    })
}

/// Whether there is unsafe code: the word before a block, a function, an implementation, a trait or a foreign block.
fn uses_unsafe(text: &str) -> bool {
    let word = concat!("un", "safe");
    code_lines(text).any(|line| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let alone = before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '"');
            let next = line[at + word.len()..].trim_start();
            let opens = next.is_empty()
                || ["{", "fn ", "impl", "trait ", "extern ", "("].iter().any(|w| next.starts_with(w));
            alone && opens
        })
    })
}

/// The lines without what follows `//`. A `//` inside of a string cuts too much, which these rules can bear.
fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.split("//").next().unwrap_or(line))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The folders of our crates, relative to the root.
fn crates() -> Vec<String> {
    let manifests =
        files().into_iter().filter(|path| path.starts_with("crates/") && path.ends_with("/Cargo.toml"));
    manifests.filter_map(|path| path.strip_suffix("/Cargo.toml").map(str::to_string)).collect()
}

/// Code of others, as they wrote it or as their tools make it.
const FOREIGN: &str = "third_party/";

/// The files that are ours: those git tracks and those it would, or without git those beside it.
fn files() -> BTreeSet<String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root());
    let listed = git.output().ok().filter(|output| output.status.success());
    let Some(listed) = listed else {
        return beside(&root(), "").into_iter().filter(|path| !path.starts_with(FOREIGN)).collect();
    };
    let paths = listed.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    paths
        .map(|path| String::from_utf8_lossy(path).into_owned())
        .filter(|path| !path.starts_with(FOREIGN))
        .filter(|path| root().join(path).is_file())
        .collect()
}

fn beside(folder: &Path, prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if !entry.file_type().unwrap().is_dir() {
            found.insert(path);
        } else if name != "target" && name != ".git" {
            found.extend(beside(&entry.path(), &format!("{path}/")));
        }
    }
    found
}

#[test]
fn without_git_the_same_sources_are_found() {
    let walked = beside(&root(), "");
    let sources = files().into_iter().filter(|path| path.ends_with(".rs"));
    sources.for_each(|path| assert!(walked.contains(&path), "{path} was not found"));
}

#[test]
fn planted_faults_are_found() {
    let faults = |text: &str| of_rust_file("crates/x/src/lib.rs", text).len();
    assert_eq!(faults("//! Owns nothing.\n"), 0);
    assert_eq!(faults("// No introduction.\n"), 1);
    assert_eq!(faults(&format!("//! Long.\n{}", "\n".repeat(MOST_LINES))), 1);
    for macro_name in ["todo", "unimplemented", "dbg"] {
        assert_eq!(faults(&format!("//! Left over.\nfn f() {{ {macro_name}!() }}\n")), 1, "{macro_name}");
    }
    assert_eq!(faults(&format!("//! Never runs.\n#[{}]\nfn f() {{}}\n", "ignore")), 1);
    let word = concat!("un", "safe");
    for used in ["{ f() }", "fn f() {}", "impl T for S {}", "trait T {}", "extern \"C\" {}"] {
        assert_eq!(faults(&format!("//! Unsafe.\n{word} {used}\n")), 1, "{used}");
    }
    assert_eq!(
        faults(&format!("//! The word in a lint or a comment.\n#![deny({word}_code)]\n// {word} {{\n")),
        0
    );

    for folder in ["root", "home", "Users", "work"] {
        assert_eq!(of_any_file("x.md", &format!("a\nsee `/{folder}/x`\n")).len(), 1, "{folder}");
        assert_eq!(of_any_file("x.md", &format!("docs/{folder}/x\n")).len(), 0, "{folder}");
    }
}

#[test]
fn planted_faults_in_manifests_are_found() {
    let good = "[package]\nname = \"x\"\ndescription = \"X\"\nversion.workspace = true\nedition.workspace = true\n\
                rust-version.workspace = true\nlicense.workspace = true\nrepository.workspace = true\n\
                [lints]\nworkspace = true\n[dependencies]\na.workspace = true\nb = { workspace = true, optional = true }\n";
    assert_eq!(of_manifest("x", good), Vec::<String>::new());
    for (from, to) in [
        ("license.workspace = true", "license = \"MIT\""),
        ("rust-version.workspace = true\n", ""),
        ("description = \"X\"\n", ""),
        ("a.workspace = true", "a = \"1\""),
        ("[lints]\nworkspace = true\n", ""),
        ("[dependencies]", "[target.'cfg(loom)'.dev-dependencies]\nc = { version = \"1\" }\n[dependencies]"),
    ] {
        assert_eq!(of_manifest("x", &good.replace(from, to)).len(), 1, "{to}");
    }
}
