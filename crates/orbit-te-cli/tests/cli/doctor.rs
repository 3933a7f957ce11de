//! `doctor`: saved machines against the words that are expected of them, this host, and peers.

use crate::common::{Ended, file, folder, machine_words, run, serve, text};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/doctor").join(name)
}

/// Runs it on a saved machine; both outputs must be as expected, and end with this code.
#[track_caller]
fn check(name: &str, code: i32) -> Ended {
    let folder = machine(name);
    let tree = folder.join("tree");
    let words = run(&["doctor", "--root", text(&tree)]);
    assert_eq!(words.code, Some(code), "{words:?}");
    assert!(words.out.lines().all(|line| line.chars().count() <= 100), "{words:?}");
    assert!(words.out.chars().all(|c| c == '\n' || !c.is_control()), "{words:?}");
    machine_words(&folder.join("expected.txt"), &words.out);
    let json = run(&["doctor", "--json", "--root", text(&tree)]);
    assert_eq!(json.code, Some(code), "{json:?}");
    machine_words(&folder.join("expected.json"), &json.out);
    words
}

fn objects(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[track_caller]
fn finding<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    objects.iter().find(|o| o["name"] == name).unwrap_or_else(|| panic!("no {name} in {objects:?}"))
}

#[test]
fn a_small_virtual_machine() {
    check("small-vm", 0);
}

#[test]
fn a_hardened_container_fails_a_check() {
    check("hardened-container", 4).says(4, &["open-files", "this host fails"]);
}

#[test]
fn a_server_with_gpus_and_rdma() {
    check("gpu-rdma-server", 0);
}

#[test]
fn a_damaged_tree_is_told_fact_by_fact() {
    check("broken", 0);
}

#[test]
fn this_host_is_checked_in_both_forms() {
    let json = run(&["doctor", "--json"]);
    let objects = objects(&json.out);
    let failed = objects.iter().filter(|o| o["state"] == "fail").count();
    assert_eq!(json.code, Some(if failed == 0 { 0 } else { 4 }), "{json:?}");
    let summary = objects.iter().find(|o| o["summary"].is_object()).expect("a summary");
    let findings = objects.iter().filter(|o| o["name"].is_string()).count();
    assert_eq!(summary["summary"]["checks"], findings);
    assert_ne!(finding(&objects, "open-files")["found"], "");
    let words = run(&["doctor"]);
    assert_eq!(words.code, json.code);
    assert!(words.out.lines().last().is_some_and(|l| l.starts_with(&format!("{findings} checks: "))));
}

#[test]
fn limits_of_the_process_are_seen() {
    let limited = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 24 && exec \"$0\" doctor --json", env!("CARGO_BIN_EXE_orbit-te")])
        .output()
        .expect("a shell");
    assert_eq!(limited.status.code(), Some(4), "{limited:?}");
    let objects = objects(&String::from_utf8_lossy(&limited.stdout));
    assert_eq!(finding(&objects, "open-files")["state"], "fail");
    assert_eq!(objects.last().expect("an error")["error"]["exit"], 4);
}

#[test]
fn a_peer_is_reached_by_address_by_name_and_by_token() {
    let served = serve(&["--bytes", "1MiB"]);
    let bare = run(&["doctor", "--json", "--peer", &served.address]);
    let objects_of_bare = objects(&bare.out);
    let peer = finding(&objects_of_bare, "peer");
    assert_eq!(peer["state"], "ok", "{bare:?}");
    assert!(peer["found"].as_str().is_some_and(|f| f.contains("answers")), "{peer}");
    for segment in [&served.segment, &served.token] {
        let named = run(&["doctor", "--json", "--peer", segment]);
        let objects = objects(&named.out);
        for name in ["peer", "peer-route", "peer-lanes", "peer-round-trip"] {
            assert_eq!(finding(&objects, name)["state"], "ok", "{named:?}");
        }
        // A line for each route: the one that is taken, then those that are not, with their reason and remedy.
        let routes: Vec<&Value> = objects.iter().filter(|o| o["name"] == "peer-route").collect();
        assert_eq!(routes.len(), 3, "{named:?}");
        assert!(
            routes[0]["found"].as_str().is_some_and(|f| f.starts_with("shm is taken, the fastest")),
            "{named:?}"
        );
        for other in &routes[1..] {
            assert_eq!(other["state"], "note", "{named:?}");
            assert!(other["found"].as_str().is_some_and(|f| f.contains("[23 slower]")), "{named:?}");
            assert!(other["remedy"].is_string(), "{named:?}");
        }
        let lanes = finding(&objects, "peer-lanes")["found"].as_str().unwrap_or_default().to_string();
        assert!(lanes.starts_with("4 of 4 up after "), "{lanes}");
        let trip = finding(&objects, "peer-round-trip")["found"].as_str().unwrap_or_default().to_string();
        assert!(trip.ends_with("µs, the median of 20 reads of 4 KiB"), "{trip}");
    }
}

#[test]
fn a_short_segment_is_read_as_far_as_it_goes() {
    let folder = folder();
    let source = file(folder.path(), "source", 513);
    let served = serve(&["--file", text(&source), "--read-only"]);
    let told = run(&["doctor", "--peer", &served.segment]);
    assert!(told.out.contains("segment `seg` of 513 B, read-only"), "{told:?}");
    assert!(told.out.contains("20 reads of 513 B"), "{told:?}");
}

#[test]
fn a_peer_that_is_not_there_or_refuses_is_told_with_its_remedy() {
    let served = serve(&["--bytes", "1MiB"]);
    let refused = run(&["doctor", "--peer", &format!("{}/other", served.address)]);
    refused.says(3, &["refused", "other"]);
    assert!(refused.out.contains("fail    peer  ") && refused.out.contains("remedy: "), "{refused:?}");
    let address = served.address.clone();
    drop(served);
    let gone = run(&["doctor", "--json", "--peer", &address]);
    gone.says(3, &["no connection"]);
    let objects = objects(&gone.out);
    assert_eq!(finding(&objects, "peer")["state"], "fail");
    assert_eq!(objects.last().expect("an error")["error"]["exit"], 3);
}

#[test]
fn words_that_make_no_sense() {
    run(&["doctor", "--peer", "nowhere"]).says(2, &["HOST:PORT"]);
    run(&["doctor", "--peer", "127.0.0.1:1/"]).says(2, &["name is empty"]);
    run(&["doctor", "--peer", "otseg1:AAAA"]).says(2, &["token"]);
    run(&["doctor", "--peer", "h:1", "--root", "."]).says(2, &["--root"]);
    let none = folder().path().join("none");
    run(&["doctor", "--root", text(&none)]).says(4, &["No such file"]);
}
