//! What choosing a route costs when nothing has changed: the planner alone, with three routes that have been measured.

use orbit_te::PeerId;
use orbit_te::route::{Caps, Choices, Policy, Prior, Question, Rates, RouteId, RouteSet, RouteState, plan};
use orbit_te::{MemoryKind, OpKind, Priority};
use orbit_te_memory::KindSet;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Decisions in one measurement.
const DECISIONS: u32 = 200_000;
const BYTES: u64 = 4096;

/// Nanoseconds for one decision: the question, the plan, and noting it.
pub(super) fn decision_ns() -> f64 {
    let now = Instant::now();
    let measured = |route: RouteId, took: Duration| {
        let mut rates = Rates::new(Prior::of(route, true));
        (0..32).for_each(|_| rates.observe(OpKind::Write, BYTES, 1, took, now));
        rates
    };
    let routes = [
        (RouteId::SHM, measured(RouteId::SHM, Duration::from_nanos(900))),
        (RouteId::PROCESS_VM, measured(RouteId::PROCESS_VM, Duration::from_nanos(1_800))),
        (RouteId::TCP, measured(RouteId::TCP, Duration::from_micros(16))),
    ];
    let caps = Caps {
        read: true,
        write: true,
        local: KindSet::HOST,
        remote: KindSet::HOST,
        max_op_bytes: u64::MAX >> 8,
        max_pieces: 1 << 20,
        max_list_bytes: u64::MAX >> 8,
        checksums: false,
    };
    let states = routes.each_ref().map(|(id, rates)| RouteState {
        id: *id,
        usable: Ok(()),
        caps: Caps { checksums: *id == RouteId::TCP, ..caps },
        rates,
        resting_until: None,
        load_bytes: 0,
    });
    let rules = Policy::default().ruleset("bench", PeerId(1), true);
    let mut choices = Choices::default();
    let begun = Instant::now();
    for _ in 0..DECISIONS {
        let question = Question {
            kind: OpKind::Write,
            bytes: black_box(BYTES),
            pieces: 1,
            verify: false,
            priority: Priority::Normal,
            local: MemoryKind::Host,
            remote: MemoryKind::Host,
            demand: None,
            incumbent: choices.last(OpKind::Write, BYTES),
            attempt: 0,
            failed: RouteSet::NONE,
            now,
        };
        let plan = plan(black_box(&question), black_box(&states), &rules);
        black_box(choices.note(OpKind::Write, BYTES, &plan));
    }
    begun.elapsed().as_nanos() as f64 / f64::from(DECISIONS)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_decision_takes_some_time() {
        let ns = super::decision_ns();
        assert!(ns > 0.0 && ns.is_finite(), "{ns}");
    }
}
