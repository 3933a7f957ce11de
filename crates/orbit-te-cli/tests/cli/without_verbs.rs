//! The program where libibverbs is missing: in a root folder of its own, with the libraries that it asks the loader for and no other.

use crate::common::{folder, skipped};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_orbit-te");

/// Where the program runs.
struct Rooted {
    root: tempfile::TempDir,
    /// The words before the program's own.
    enter: Vec<String>,
}

impl Rooted {
    /// A root with the program and its libraries, and how to enter it; or why that can't be done here.
    fn new() -> Result<Rooted, String> {
        let root = folder();
        copy(Path::new(PROGRAM), &root.path().join("orbit-te"))?;
        for library in libraries()? {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            assert!(!name.contains("ibverbs"), "the program asks the loader for {name}");
            copy(&library, &root.path().join(library.strip_prefix("/").expect("an absolute path")))?;
        }
        for folder in ["tmp", "run"] {
            std::fs::create_dir_all(root.path().join(folder)).expect("a folder");
        }
        let enter = match nix::unistd::geteuid().is_root() {
            true => vec!["chroot"],
            false => vec!["unshare", "-r", "chroot"],
        };
        let rooted = Rooted { root, enter: enter.into_iter().map(str::to_string).collect() };
        match rooted.output(&["--version"]) {
            Ok(output) if output.status.success() => Ok(rooted),
            // What keeps us out says so itself; a program that does not start is what this looks for.
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
                assert!(
                    said.contains("permitted") || said.contains("unshare"),
                    "it does not start: {output:?}"
                );
                Err(said)
            }
            Err(error) => Err(format!("{}: {error}", rooted.enter[0])),
        }
    }

    fn output(&self, words: &[&str]) -> std::io::Result<Output> {
        let mut command = Command::new(&self.enter[0]);
        command.args(&self.enter[1..]).arg(self.root.path()).arg("/orbit-te").args(words);
        command.env_remove("RUST_LOG").env("LC_ALL", "C").output()
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
    std::fs::copy(from, to).map(|_| ()).map_err(|error| format!("{}: {error}", from.display()))
}

/// The libraries of the program, and its loader, by `ldd`.
fn libraries() -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd").arg(PROGRAM).output().map_err(|error| format!("ldd: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // As in `libc.so.6 => /lib/libc.so.6 (0x…)` and `/lib64/ld-linux-x86-64.so.2 (0x…)`.
    let paths = said.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let paths: Vec<PathBuf> = paths.map(PathBuf::from).collect();
    if paths.is_empty() { Err(format!("ldd names no library: {output:?}")) } else { Ok(paths) }
}

/// Lines of JSON.
fn lines(output: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn the_program_starts_without_libibverbs_and_says_why_there_is_no_rdma() {
    let rooted = match Rooted::new() {
        Ok(rooted) => rooted,
        Err(why) => return skipped(&format!("without libibverbs: no root folder of its own: {why}")),
    };
    let words = rooted.output(&["doctor"]).expect("it starts");
    let said = String::from_utf8_lossy(&words.stdout);
    let at = said.find("rdma: unavailable, because ").unwrap_or_else(|| panic!("{words:?}"));
    // The line goes on below, and the next check begins at the margin.
    let line =
        said[at..].split("\nabsent").next().unwrap_or_default().split("\nwarn").next().unwrap_or_default();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in
        ["because libibverbs.so.1 is not installed", "cannot open shared object file", "apt-get install"]
    {
        assert!(line.contains(part), "`{part}` is not in `{line}`");
    }
    let json = rooted.output(&["doctor", "--json"]).expect("it starts");
    let lines = lines(&json);
    let rdma = lines.iter().find(|line| line["name"] == "rdma").expect("a line about RDMA");
    assert!(
        rdma["found"].as_str().is_some_and(|found| found.starts_with("rdma: unavailable, because ")),
        "{rdma}"
    );
    assert!(rdma["remedy"].as_str().is_some_and(|remedy| remedy.contains("apt-get install")), "{rdma}");
}

#[test]
fn a_device_that_is_demanded_there_is_an_error_with_the_remedy() {
    let rooted = match Rooted::new() {
        Ok(rooted) => rooted,
        Err(why) => return skipped(&format!("without libibverbs: no root folder of its own: {why}")),
    };
    let words =
        ["serve", "--listen", "127.0.0.1:0", "--bytes", "1MiB", "--name", "seg", "--rdma-device", "mlx5_0"];
    let output = rooted.output(&words).expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    for part in ["rdma: unavailable, because libibverbs.so.1 is not installed", "apt-get install"] {
        assert!(said.contains(part), "`{part}` is not in {said}");
    }
}
