//! `demo`: verified both ways, and what it says when the other process dies.

use crate::common::{Running, run, start, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::time::{Duration, Instant};

#[test]
fn the_table_shows_both_directions_verified() {
    let out = run(&["demo", "--bytes", "64MiB"]).ok();
    let rows: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..2], ["op", "block"], "{out}");
    for (row, op) in rows[1..3].iter().zip(["write", "read"]) {
        assert_eq!((row[0], row[1], row[2], row.last()), (op, "16", "MiB", Some(&"yes")), "{out}");
        assert!(row[5].parse::<f64>().unwrap() > 0.0, "{out}");
    }
    assert!(out.contains("64 MiB each way"), "{out}");
}

#[test]
fn json_lines_have_the_schema_of_the_peers() {
    // No multiple of a block, nor of a round.
    let out = run(&["demo", "--bytes", "150000001", "--json"]).ok();
    let records: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(records.iter().map(|r| r["op"].as_str().unwrap()).collect::<Vec<_>>(), ["write", "read"]);
    for record in &records {
        assert_eq!(record["peer"], "orbit-te");
        assert_eq!(record["transport"], record["route"]);
        assert_eq!(record["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(record["block_bytes"], 16 << 20);
        assert_eq!(record["batch"], 1);
        assert_eq!(record["bytes"], 150_000_001);
        assert_eq!(record["verified"], true);
        for number in ["gib_per_s", "p50_us", "p99_us", "cpu_s_per_gib"] {
            assert!(record[number].as_f64().unwrap() > 0.0, "{number} of {record}");
        }
        assert!(record["p99_us"].as_f64() >= record["p50_us"].as_f64());
    }
}

#[test]
fn sizes_below_a_block_work() {
    for bytes in ["1", "513"] {
        let out = run(&["demo", "--bytes", bytes, "--json"]).ok();
        assert_eq!(out.matches("\"verified\":true").count(), 2, "{out}");
    }
}

/// Starts a demo that would take long; its target's process.
fn long_demo(words: &[&str]) -> (Running, Pid) {
    let demo = start(&[&["demo", "--bytes", "512GiB", "--json", "--show-target"], words].concat());
    let line = demo.hear("target process");
    let pid = line.rsplit(' ').next().and_then(|n| n.parse().ok()).map(Pid::from_raw).expect("an id");
    std::thread::sleep(Duration::from_millis(700));
    (demo, pid)
}

#[test]
fn a_target_that_is_killed_half_way_is_named_as_the_cause() {
    let (demo, target) = long_demo(&[]);
    kill(target, Signal::SIGKILL).unwrap();
    let since = Instant::now();
    let ended = demo.end(Duration::from_secs(25));
    assert!(since.elapsed() < Duration::from_secs(10), "took {:?}", since.elapsed());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let failure: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(failure["error"]["exit"], 1, "{ended:?}");
    // The code is that of what failed first: a transfer's, where one was under way.
    let cause = failure["error"]["cause"].as_str().unwrap();
    assert!(cause.contains("was killed by signal 9"), "{ended:?}");
    let last = ended.err.lines().last().unwrap();
    assert!(last.starts_with("orbit-te: ") && last.contains("was killed by signal 9"), "{ended:?}");
}

#[test]
fn a_target_that_hangs_ends_the_demo_at_the_deadline() {
    let (demo, target) = long_demo(&["--deadline", "2"]);
    kill(target, Signal::SIGSTOP).unwrap();
    let ended = demo.end(Duration::from_secs(25));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let last = ended.err.lines().last().unwrap();
    assert!(last.contains("2s"), "{ended:?}");
    gone(target);
}

#[test]
fn the_target_dies_with_the_demo() {
    let (demo, target) = long_demo(&[]);
    demo.signal(Signal::SIGKILL);
    demo.end(Duration::from_secs(10));
    gone(target);
}

/// Waits until the process has ended, reaped by somebody or not.
fn gone(pid: Pid) {
    until("the end of the target process", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        state.is_none_or(|s| s == "Z" || s == "X").then_some(())
    });
}
