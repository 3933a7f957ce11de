//! The soak finds what it is for: each fault that is planted makes it fail, and is named. Rule: one that stays silent about a
//! plant would stay silent about the real thing.

use serde_json::Value;
use std::process::Command;

/// Runs two seconds of it; whether it failed, and its ledger.
fn soak(plant: &[&str]) -> (Option<i32>, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["soak", "--minutes", "0.03", "--json"]).args(plant);
    let output = command.output().expect("the program starts");
    let ledger = serde_json::from_slice(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    (output.status.code(), ledger.unwrap_or_else(|error| panic!("no ledger ({error}): {said}")))
}

#[test]
fn a_wrong_byte_is_found() {
    let (code, ledger) = soak(&["--plant", "wrong-byte"]);
    assert_eq!(code, Some(1));
    assert!(ledger["tally"]["wrong_bytes"].as_u64() > Some(0), "{ledger}");
}

#[test]
fn a_leak_is_found() {
    let (code, ledger) = soak(&["--plant", "leak"]);
    assert_eq!(code, Some(1));
    let driver = &ledger["survivors"][1];
    let descriptors = |when: &str| driver[when]["descriptors"].as_u64();
    assert!(descriptors("ended") > descriptors("began"), "{driver}");
    assert!(driver["backings"].as_u64() > Some(0), "{driver}");
}

#[test]
fn a_hang_is_found() {
    let (code, ledger) = soak(&["--plant", "hang"]);
    assert_eq!(code, Some(1));
    assert!(ledger["tally"]["hangs"].as_u64() > Some(0), "{ledger}");
}
