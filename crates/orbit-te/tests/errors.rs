//! The catalogue of errors: the document and the code say the same, numbers and names are unique, and real failures have the code
//! that the catalogue gives them.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{Access, Batch, Engine, ErrorCode, HostBuffer, Landed, OpError, OpErrorCode, TransferError};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use support::{SOON, pair, region, watchdog};

/// The rows of the document: number, and the other columns.
fn documented() -> BTreeMap<u16, Vec<String>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = rows.map(|row| row.split(" | ").map(str::to_string).collect::<Vec<_>>());
    let numbered = cells.filter_map(|cells| Some((cells[0].parse().ok()?, cells[1..].to_vec())));
    let mut all = BTreeMap::new();
    numbered
        .for_each(|(number, cells)| assert!(all.insert(number, cells).is_none(), "{number} stands twice"));
    all
}

#[test]
fn the_document_and_the_code_agree() {
    let documented = documented();
    let coded: BTreeMap<u16, Vec<String>> = ErrorCode::all()
        .map(|code| {
            let route = if code.another_route_may_help() { "may help" } else { "no" };
            let name = format!("`{}`", code.name());
            let cells = [&name, code.what(), route, code.remedy()].map(str::to_string);
            (code.number(), cells.to_vec())
        })
        .collect();
    for (number, cells) in &coded {
        assert_eq!(documented.get(number), Some(cells), "docs/errors.md, row {number}");
    }
    for number in documented.keys() {
        assert!(coded.contains_key(number), "docs/errors.md has {number}, which no error has");
    }
}

#[test]
fn numbers_and_names_are_unique() {
    let names: BTreeSet<&str> = ErrorCode::all().map(ErrorCode::name).collect();
    let numbers: Vec<u16> = ErrorCode::all().map(ErrorCode::number).collect();
    assert_eq!(names.len(), numbers.len());
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "in order, each once");
}

/// Every code of an op is listed, with the class that the transport gives it.
#[test]
fn every_op_code_is_listed() {
    use OpErrorCode::*;
    let all = [
        UnknownRegion,
        StaleGeneration,
        OutOfRange,
        AccessDenied,
        BadKey,
        BadLength,
        RemoteMemoryFault,
        LocalMemoryFault,
        Checksum,
        PeerShuttingDown,
        Cancelled,
        CancelledUnfenced,
        NoLink,
        LinkBroken,
        LinkBrokenUnfenced,
        Unreachable,
        Protocol,
        Closed,
        Unsupported,
        GrantEnded,
        Overlap,
        QueueFull,
        NobodyListens,
        NoRoute,
    ];
    for code in all {
        let listed = ErrorCode::of_op(code);
        assert_eq!((listed.number(), listed.class()), (code.number(), code.class()), "{code:?}");
        let error = TransferError::Request { request: 0, error: OpError::new(code), cause: None };
        assert_eq!((error.code(), error.remedy()), (listed, listed.remedy()));
    }
    let of_ops = ErrorCode::all().filter(|code| code.number() < 100).count();
    assert_eq!(of_ops, all.len(), "a code of an op that no transport gives");
}

#[test]
fn real_failures_have_their_codes() {
    let _dog = watchdog("real_failures_have_their_codes", Duration::from_secs(60));
    let pair = pair(100);
    let local = region(&pair.engine, &[1; 200], Access::LOCAL);
    let at = pair.target.address().unwrap();
    let name = |error: &orbit_te::Error| error.code().to_string();
    let cases = [
        (pair.segment.write(0, &local.whole()).unwrap_err(), "E109 bad-request"),
        (pair.engine.submit(Batch::new()).unwrap_err(), "E109 bad-request"),
        (pair.engine.open("nonsense").wait(SOON).unwrap_err(), "E102 bad-address"),
        (pair.engine.open(&format!("{at}/other")).wait(SOON).unwrap_err(), "E104 refused"),
        (pair.engine.open("127.0.0.1:1/pool").wait(SOON).unwrap_err(), "E103 no-connection"),
        (pair.target.expose("pool", &pair.remote).unwrap_err(), "E107 name-taken"),
        (pair.target.expose("", &pair.remote).unwrap_err(), "E108 bad-name"),
        (HostBuffer::new(0).map(|_| ()).map_err(orbit_te::Error::from).unwrap_err(), "E301 zero-length"),
        (
            Engine::builder().listen("0.0.0.0:0".parse().unwrap()).start().unwrap_err(),
            "E101 untrusted-network",
        ),
    ];
    for (error, wanted) in &cases {
        assert_eq!(name(error), *wanted, "{error}");
        assert!(!error.remedy().is_empty());
    }
    pair.target.revoke(&pair.remote, SOON).unwrap();
    let error = pair.segment.read(0, &local.slice(0, 10).unwrap()).unwrap().wait().unwrap_err();
    assert_eq!(error.code().to_string(), "E2 stale-generation");
    pair.engine.shutdown();
    let error = pair.segment.read(0, &local.slice(0, 10).unwrap()).unwrap_err();
    assert_eq!(name(&error), "E113 engine-closed");
    let closed = TransferError::Closed { landed: Landed::Nothing, fenced: true };
    assert_eq!((closed.code().to_string().as_str(), closed.cause()), ("E203 transfer-closed", None));
}
