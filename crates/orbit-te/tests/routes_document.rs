//! `docs/routes.md` and the code say the same: the table of reasons, the defaults, and an example that is read.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te::PeerId;
use orbit_te::route::{Policy, Reason, RouteId};

fn document() -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/routes.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_table_has_every_reason() {
    let document = document();
    let rows: Vec<&str> = document
        .lines()
        .filter(|line| {
            line.strip_prefix("| ").is_some_and(|row| row.starts_with(|c: char| c.is_ascii_digit()))
        })
        .collect();
    let coded: Vec<String> = Reason::ALL
        .iter()
        .map(|reason| {
            format!("| {} | `{}` | {} | {} |", reason.code(), reason.name(), reason.what(), reason.remedy())
        })
        .collect();
    assert_eq!(rows, coded);
}

#[test]
fn the_example_is_read_and_has_the_defaults() {
    let document = document();
    let example: Vec<&str> = document
        .lines()
        .skip_while(|line| *line != "```toml")
        .skip(1)
        .take_while(|line| *line != "```")
        .collect();
    let policy = Policy::parse(&example.join("\n")).unwrap();
    assert_eq!(policy.settings(), Policy::default().settings());
    assert_eq!(policy.rules().len(), 3);
    assert_eq!(policy.rules()[2].peer, Some(PeerId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff)));
    assert_eq!(policy.rules()[2].demand, Some(RouteId::RDMA));
    assert_eq!(Policy::parse(&policy.to_json()), Ok(policy));
}

#[test]
fn every_route_is_named() {
    let document = document();
    for route in RouteId::all() {
        assert!(document.contains(&format!("`{route}`")), "docs/routes.md does not name {route}");
    }
}
