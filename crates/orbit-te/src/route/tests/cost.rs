//! What the planner costs. It prints nanoseconds (`cargo test --release -p orbit-te --lib route::tests::cost -- --nocapture`); only an
//! optimized build is held to a bound, and a wide one, since the machine may be busy.

use super::*;
use std::hint::black_box;

/// The least time of one call in nanoseconds, of many series.
fn least_ns<T>(mut call: impl FnMut() -> T) -> f64 {
    const SERIES: usize = 200;
    const CALLS: u32 = 200;
    let series = (0..SERIES).map(|_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            black_box(call());
        }
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    });
    series.fold(f64::MAX, f64::min)
}

#[test]
fn a_plan_takes_little() {
    let now = Instant::now();
    let rates = [taking(100, now), taking(120, now), taking(300, now)];
    let states = [0, 1, 2].map(|at| state(LOCAL[at], &rates[at]));
    let asked = Question { incumbent: Some(RouteId::SHM), ..question(now) };
    let rules = ruleset(
        "[[rule]]\nname = 'a'\nmin_bytes = 9_000_000\nroutes = ['tcp']\n[[rule]]\nname = 'b'\nroutes = ['shm', 'process_vm', 'tcp']",
    );
    let mut learnt = rates[0];
    let counts = ReasonCounts::default();
    let rows = [
        ("a plan, three routes", least_ns(|| plan(black_box(&asked), &states, &Ruleset::default())), 400.0),
        ("a plan, three routes, two rules", least_ns(|| plan(black_box(&asked), &states, &rules)), 400.0),
        ("an expectation", least_ns(|| rates[0].expected(OpKind::Read, black_box(MIB), 1)), 50.0),
        (
            "an observation",
            least_ns(|| {
                learnt.observe(OpKind::Read, black_box(MIB), 1, black_box(Duration::from_micros(99)), now)
            }),
            50.0,
        ),
        ("a count", least_ns(|| counts.add(black_box(Reason::LinkDown))), 50.0),
    ];
    for (what, ns, most_ns) in rows {
        println!("{what}: {ns:.1} ns");
        assert!(cfg!(debug_assertions) || ns < most_ns, "{what} takes {ns:.1} ns");
    }
}

#[test]
fn sizes_are_bounded() {
    assert!(size_of::<Rates>() <= 1024 && size_of::<Plan>() <= 320 && size_of::<Health>() <= 128);
}
