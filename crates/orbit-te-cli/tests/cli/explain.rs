//! `explain`: saved descriptions against the words that are expected of them, and segments that are served.

use crate::common::{folder, machine_words, run, serve, text};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/explain").join(name)
}

/// Runs it on a saved description; both outputs must be as expected.
#[track_caller]
fn check(description: &str, expected: &str, words: &[&str]) -> String {
    let path = fixture(&format!("{description}.json"));
    let all = [&["explain", "--description", text(&path)], words].concat();
    let said = run(&all).ok();
    assert!(said.chars().all(|c| c == '\n' || !c.is_control()), "{said}");
    machine_words(&fixture(&format!("{expected}.expected.txt")), &said);
    let json = run(&[&all[..], &["--json"]].concat()).ok();
    machine_words(&fixture(&format!("{expected}.expected.json")), &json);
    said
}

fn objects(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_peer_of_the_same_host() {
    let said = check("same-host", "same-host", &[]);
    assert!(said.contains("72 µs") && said.contains("380 µs"), "{said}");
}

#[test]
fn a_peer_of_another_host() {
    assert!(check("other-host", "other-host", &[]).contains("4 other-host"));
}

#[test]
fn a_hardened_container() {
    let said = check("hardened-container", "hardened-container", &["--bytes", "64KiB"]);
    assert!(said.contains("8 kernel-refuses") && said.contains("9 memory-not-shared"), "{said}");
    assert!(!said.contains("write 64 KiB"), "the segment may not be written: {said}");
}

#[test]
fn a_policy_that_demands_a_route() {
    let policy = fixture("demand-tcp.toml");
    let said = check("same-host", "demand-tcp", &["--policy", text(&policy)]);
    assert!(said.contains("by rule 1 of the policy"), "{said}");
}

#[test]
fn a_route_below_the_floor() {
    assert!(check("below-floor", "below-floor", &[]).contains("29 below-floor"));
}

#[test]
fn what_can_not_be_read_is_refused() {
    let words = |name: &str| run(&["explain", "--description", text(&fixture(name))]);
    words("unknown-key.json").says(2, &["unknown-key.json", "unknown field `colour`"]);
    words("cut-short.json").says(2, &["cut-short.json", "EOF while parsing"]);
    words("none.json").says(4, &["can't read", "No such file"]);
    run(&["explain"]).says(2, &["--to"]);
    run(&["explain", "--to", "h:1/n", "--route", "warp"]).says(2, &["no route is called `warp`"]);
    run(&["explain", "--to", "h:1/n", "--from", "paper"]).says(2, &["host, pinned_host, device, file"]);
    let folder = folder();
    let policy = folder.path().join("policy.toml");
    std::fs::write(&policy, "attempts = 1\ncolour = 2\n").unwrap();
    let same_host = fixture("same-host.json");
    let words = ["explain", "--description", text(&same_host), "--policy", text(&policy)];
    run(&words).says(2, &["policy.toml", "unknown field `colour`"]);
}

#[test]
fn what_no_route_does_is_a_failure() {
    let same_host = fixture("same-host.json");
    let words = ["explain", "--description", text(&same_host), "--read"];
    let device = run(&[&words[..], &["--from", "device"]].concat());
    device.says(1, &["no route can be taken", "at this side"]);
    assert!(device.out.contains("12 local-memory"), "{device:?}");
    let rdma = run(&[&words[..], &["--route", "rdma", "--json"]].concat());
    rdma.says(1, &["route rdma is demanded", "no such route"]);
    assert_eq!(objects(&rdma.out)[0]["route"], Value::Null);
    run(&[&words[..], &["--bytes", "2GiB"]].concat()).says(2, &["fewer than the 2147483648"]);
    let hardened = fixture("hardened-container.json");
    run(&["explain", "--description", text(&hardened), "--write"]).says(3, &["may not be written"]);
}

#[test]
fn a_served_segment_is_explained_saved_and_planned_again() {
    let served = serve(&["--bytes", "4MiB"]);
    let folder = folder();
    let saved = folder.path().join("saved.json");
    let live = run(&["explain", "--to", &served.segment, "--json", "--save", text(&saved)]).ok();
    let again = run(&["explain", "--description", text(&saved), "--json"]).ok();
    assert_eq!(live, again);
    for (answer, op) in objects(&live).iter().zip(["write", "read"]) {
        assert_eq!((&answer["op"], &answer["bytes"]), (&op.into(), &(1 << 20).into()), "{answer}");
        let others = answer["not_taken"].as_array().unwrap();
        assert_eq!(others.len(), 2, "{answer}");
        assert!(others.iter().all(|o| o["code"].as_u64() > Some(0) && o["remedy"] != ""), "{answer}");
    }
    let demanded = run(&["explain", "--to", &served.token, "--route", "tcp", "--json", "--write"]).ok();
    let demanded = &objects(&demanded)[0];
    assert_eq!((&demanded["route"], &demanded["why"]), (&"tcp".into(), &"demanded".into()), "{demanded}");
}

#[test]
fn a_file_is_no_shared_memory() {
    let folder = folder();
    let source = crate::common::file(folder.path(), "source", 100_000);
    let served = serve(&["--file", text(&source), "--read-only"]);
    let told = run(&["explain", "--to", &served.segment, "--json"]).ok();
    let answers = objects(&told);
    assert_eq!((answers.len(), &answers[0]["op"]), (1, &"read".into()), "{told}");
    let others = answers[0]["not_taken"].as_array().unwrap();
    let shm = others.iter().find(|o| o["route"] == "shm").unwrap();
    assert_eq!((&shm["code"], &shm["name"]), (&9.into(), &"memory-not-shared".into()), "{shm}");
    run(&["explain", "--to", &served.segment, "--write"]).says(3, &["may not be written"]);
}
