//! The options about routes: demanded, by policy, switched off, and met in a folder.

use crate::common::{file, folder, run, serve, text};
use serde_json::Value;
use std::path::Path;

fn records(words: &[&str]) -> Vec<Value> {
    let out = run(&[words, &["--json"]].concat()).ok();
    out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn policy(folder: &Path, body: &str) -> String {
    let path = folder.join("policy.toml");
    std::fs::write(&path, body).expect("a file");
    text(&path).to_string()
}

#[test]
fn the_demo_takes_a_route_of_this_host_by_itself_and_says_why() {
    for record in records(&["demo", "--bytes", "16MiB"]) {
        assert_eq!(record["route"], record["transport"], "{record}");
        assert!(["shm", "process_vm"].contains(&record["route"].as_str().unwrap()), "{record}");
        assert_eq!((&record["why"], &record["retries"]), (&"fastest".into(), &0.into()), "{record}");
        let moved: u64 =
            record["routes"].as_array().unwrap().iter().map(|r| r["bytes"].as_u64().unwrap()).sum();
        assert_eq!(moved, 16 << 20, "{record}");
        for other in record["not_taken"].as_array().unwrap() {
            assert_eq!((&other["code"], &other["name"]), (&23.into(), &"slower".into()), "{record}");
        }
    }
    let told = run(&["demo", "--bytes", "16MiB"]).ok();
    assert!(
        told.contains("write route: shm, the fastest of those that can; not process_vm: slower"),
        "{told}"
    );
}

#[test]
fn the_demo_compares_all_routes_and_verifies_each() {
    let all = records(&["demo", "--bytes", "20000001", "--routes", "all"]);
    let taken: Vec<&str> = all.iter().filter_map(|r| r["route"].as_str()).collect();
    assert!(taken.starts_with(&["shm", "shm"]) && taken.ends_with(&["tcp", "tcp"]), "{all:?}");
    for record in all.iter().filter(|r| r["route"].is_string()) {
        let shares = record["routes"].as_array().unwrap();
        assert_eq!((shares.len(), &shares[0]["route"]), (1, &record["route"]), "{record}");
        assert_eq!((&record["verified"], &record["why"]), (&true.into(), &"demanded".into()), "{record}");
    }
    // Switched off, the others print their reason and fail nothing.
    let told = run(&["demo", "--bytes", "1MiB", "--routes", "all", "--no-same-host"]).ok();
    assert!(told.contains("shm         not taken: the configuration switches it off"), "{told}");
    assert_eq!(told.matches("tcp         ").count(), 2, "{told}");
}

#[test]
fn a_demanded_route_that_is_not_there_is_a_failure() {
    let demo = run(&["demo", "--bytes", "1MiB", "--routes", "tcp,rdma"]);
    demo.says(1, &["route rdma is demanded", "no such route"]);
    run(&["demo", "--bytes", "1MiB", "--routes", "shm", "--no-same-host"])
        .says(1, &["route shm", "switches it off"]);
    run(&["demo", "--routes", "warp"]).says(2, &["no route is called `warp`"]);
    let (folder, served) = (folder(), serve(&["--bytes", "1MiB", "--no-same-host"]));
    let source = file(folder.path(), "source", 1000);
    let put = run(&["put", text(&source), &served.segment, "--route", "shm"]);
    put.says(1, &["route shm is demanded and can't be taken", "the peer does not offer it"]);
    let bench = run(&["bench", "--seconds", "0.05", "--block", "4KiB", "--route", "rdma"]);
    assert_eq!(bench.code, Some(1), "{bench:?}");
}

#[test]
fn files_go_over_the_route_that_is_demanded() {
    let (folder, served) = (folder(), serve(&["--bytes", "1MiB"]));
    let source = file(folder.path(), "source", 700_001);
    let back = folder.path().join("back");
    for route in ["shm", "tcp"] {
        let put = run(&["put", text(&source), &served.segment, "--route", route]).ok();
        assert!(put.trim_end().ends_with(&format!("by {route}")), "{put}");
        let words = ["get", &served.token, text(&back), "--bytes", "700001", "--route", route];
        let get = run(&words).ok();
        assert!(get.trim_end().ends_with(&format!("by {route}")), "{get}");
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&source).unwrap());
    }
}

#[test]
fn a_policy_decides() {
    let (folder, served) = (folder(), serve(&["--bytes", "1MiB"]));
    let source = file(folder.path(), "source", 1000);
    let tcp = policy(folder.path(), "[[rule]]\nname = \"network\"\nroutes = [\"tcp\"]\n");
    let put = run(&["put", text(&source), &served.segment, "--policy", &tcp]).ok();
    assert!(put.trim_end().ends_with("by tcp"), "{put}");
    let words = ["bench", "--seconds", "0.05", "--block", "4KiB", "--policy", &tcp];
    for record in records(&words) {
        assert_eq!((&record["route"], &record["why"]), (&"tcp".into(), &Value::Null), "{record}");
    }
    let wrong = policy(folder.path(), "[[rule]]\nname = \"x\"\nroutes = [\"warp\"]\n");
    run(&["put", text(&source), &served.segment, "--policy", &wrong]).says(2, &["rule 1 (`x`)", "warp"]);
    let none = folder.path().join("none");
    run(&["put", text(&source), &served.segment, "--policy", text(&none)]).says(4, &["can't read"]);
}

#[test]
fn processes_meet_in_a_folder() {
    use std::os::unix::fs::PermissionsExt;
    let meeting = folder();
    std::fs::set_permissions(meeting.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let served = serve(&["--bytes", "1MiB", "--socket-folder", text(meeting.path())]);
    let words = ["explain", "--to", &served.segment, "--json", "--socket-folder", text(meeting.path())];
    let told = run(&words).ok();
    assert!(told.contains("\"route\":\"shm\""), "{told}");
    assert!(!crate::common::names(meeting.path()).is_empty());
    let record = &records(&["demo", "--bytes", "1MiB", "--socket-folder", text(meeting.path())])[0];
    assert_eq!(record["route"], "shm");
    let none = meeting.path().join("none");
    run(&["demo", "--socket-folder", text(&none)]).says(4, &["is no folder to meet in"]);
    run(&["demo", "--socket-folder", ".", "--no-same-host"]).says(2, &["--no-same-host"]);
}
