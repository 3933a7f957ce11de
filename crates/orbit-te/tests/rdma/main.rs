//! The engine over real verbs, between two processes: `owner` has memory, `moves` and `faults` use it. The lab runs it in its guests, by the
//! cases of xtask/src/lab/cases.rs; without arguments it says that it was left out.

#![allow(unreachable_pub)] // it is a program
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod bytes;
mod faults;
mod moves;
mod owner;
mod resources;
mod settings;
#[path = "../support/mod.rs"]
mod support;

use settings::Settings;
use std::time::Duration;

fn main() {
    let mut words = std::env::args().skip(1);
    let role = words.next().unwrap_or_default();
    if !matches!(role.as_str(), "owner" | "moves" | "faults") {
        return support::skipped("the engine over real verbs: it runs in the lab");
    }
    let settings = Settings::from(words);
    let _dog = support::watchdog("rdma", Duration::from_secs(settings.limit_secs));
    match role.as_str() {
        "owner" => owner::run(&settings),
        "moves" => moves::run(&settings),
        _ => faults::run(&settings),
    }
}
