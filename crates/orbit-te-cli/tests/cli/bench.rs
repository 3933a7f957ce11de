//! `bench`: its lines, with a target of its own and with a served one.

use crate::common::{file, folder, run, serve, text};
use serde_json::Value;

const QUICK: [&str; 3] = ["bench", "--seconds", "0.05"];

fn records(words: &[&str]) -> Vec<Value> {
    let out = run(&[&QUICK, words].concat()).ok();
    out.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
}

#[test]
fn every_point_is_a_line_and_is_verified() {
    let found =
        records(&["--block", "4KiB,1MiB,513", "--depth", "3", "--threads", "2", "--verify", "--json"]);
    let points: Vec<(&str, u64)> =
        found.iter().map(|r| (r["op"].as_str().unwrap(), r["block_bytes"].as_u64().unwrap())).collect();
    let blocks = [4096, 1 << 20, 513];
    assert_eq!(points, [blocks.map(|b| ("write", b)), blocks.map(|b| ("read", b))].concat());
    for record in found {
        assert_eq!((&record["verified"], &record["cpu_of"]), (&true.into(), &"both".into()), "{record}");
        let [min, p50, p99, max] =
            ["min_us", "p50_us", "p99_us", "max_us"].map(|n| record[n].as_f64().unwrap());
        assert!(0.0 < min && min <= p50 && p50 <= p99 && p99 <= max, "{record}");
        let bytes = record["submissions"].as_u64().unwrap() * record["block_bytes"].as_u64().unwrap();
        assert_eq!(record["bytes"], bytes, "{record}");
    }
}

#[test]
fn batches_have_gaps_and_are_verified() {
    let found = records(&["--block", "64KiB", "--batch", "16", "--lanes", "2", "--verify", "--json"]);
    for record in found {
        assert_eq!(record["batch"], 16);
        assert_eq!(record["lanes"], 2);
        assert_eq!(record["verified"], true);
        assert_eq!(record["bytes"], record["submissions"].as_u64().unwrap() * 16 * 65_536);
    }
}

#[test]
fn a_served_segment_is_measured_within_its_bounds() {
    let served = serve(&["--bytes", "300000"]);
    let found = records(&["--peer", &served.segment, "--block", "64KiB", "--verify", "--json"]);
    for record in found {
        assert_eq!((&record["verified"], &record["cpu_of"]), (&true.into(), &"initiator".into()), "{record}");
        assert!(record["buffer_bytes"].as_u64().unwrap() <= 300_000);
    }
    run(&[&QUICK[..], &["--peer", &served.segment, "--block", "1MiB"]].concat()).says(2, &["1 MiB"]);
}

#[test]
fn a_read_only_segment_is_read_but_not_verified() {
    let folder = folder();
    let source = file(folder.path(), "source", 100_000);
    let served = serve(&["--file", text(&source), "--read-only"]);
    let words = ["--peer", &served.token, "--block", "4KiB", "--json"];
    assert_eq!(records(&[&words[..], &["--op", "read", "--verify"]].concat())[0]["verified"], Value::Null);
    run(&[&QUICK[..], &words].concat()).says(3, &["may not be written"]);
}
