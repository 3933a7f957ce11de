//! Tests of the planner as a whole: rows for each decision, properties, a model of routes whose speeds change, and its cost.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod cost;
mod learning;
mod model;
mod policies;
mod properties;
mod rows;

use super::*;
use orbit_te_memory::{KindSet, MemoryKind};
use orbit_te_transport::{OpKind, Priority};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// The three routes of one host, in the usual order.
const LOCAL: [RouteId; 3] = [RouteId::SHM, RouteId::PROCESS_VM, RouteId::TCP];

fn caps() -> Caps {
    Caps {
        read: true,
        write: true,
        local: KindSet::HOST,
        remote: KindSet::HOST,
        max_op_bytes: 1 << 30,
        max_pieces: 1024,
        max_list_bytes: 1 << 26,
        checksums: true,
    }
}

/// A read of a mebibyte.
fn question(now: Instant) -> Question {
    Question {
        kind: OpKind::Read,
        bytes: MIB,
        pieces: 1,
        verify: false,
        priority: Priority::Normal,
        local: MemoryKind::Host,
        remote: MemoryKind::Host,
        demand: None,
        incumbent: None,
        attempt: 0,
        failed: RouteSet::NONE,
        now,
    }
}

fn state(id: RouteId, rates: &Rates) -> RouteState<'_> {
    RouteState { id, usable: Ok(()), caps: caps(), rates, resting_until: None, load_bytes: 0 }
}

/// Rates of a route that takes so long for a mebibyte, and in proportion for more or less.
fn taking(us: u64, now: Instant) -> Rates {
    let mut rates = Rates::new(Prior {
        latency: Duration::from_nanos(1),
        bytes_per_second: MIB * 1_000_000 / us,
        per_piece: Duration::from_nanos(100),
    });
    for kind in [OpKind::Read, OpKind::Write] {
        (0..10).for_each(|_| rates.observe(kind, MIB, 1, Duration::from_micros(us), now));
    }
    rates
}

fn ruleset(policy: &str) -> Ruleset {
    Policy::parse(policy).unwrap().ruleset("pool", orbit_te_wire::PeerId(7), true)
}
