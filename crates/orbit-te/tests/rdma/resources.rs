//! What there is of verbs and of files: counted before and after, since what is not given back would run out.

use std::process::Command;

/// All that this process can count: QPs, CQs, MRs and others of each device, and file descriptors here and at the owner.
pub fn resources(owner: Option<u32>) -> String {
    let output = Command::new("rdma").args(["resource", "show"]).output().unwrap();
    assert!(output.status.success(), "rdma resource show");
    let verbs = String::from_utf8(output.stdout).unwrap();
    let files = |process: String| std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let theirs = owner.map_or(String::new(), |owner| format!(", {} at the owner", files(owner.to_string())));
    format!("{verbs}files: {}{theirs}\n", files("self".to_string()))
}

/// How many of a kind a device has: `count("rxe_a0", "qp")`.
pub fn count(device: &str, kind: &str) -> u64 {
    let all = resources(None);
    let line = all.lines().find(|line| line.contains(&format!("{device}:"))).unwrap();
    let mut words = line.split_whitespace().skip_while(|word| *word != kind);
    words.nth(1).unwrap().parse().unwrap()
}
