//! What is learnt, as properties: a true rate is found soon, and one odd op moves little.

use super::*;
use proptest::prelude::*;

fn any_prior() -> impl Strategy<Value = Prior> {
    (1u64..1_000_000, 10_000_000u64..50_000_000_000, 0u64..1000).prop_map(
        |(latency, bytes_per_second, piece)| Prior {
            latency: Duration::from_nanos(latency),
            bytes_per_second,
            per_piece: Duration::from_nanos(piece),
        },
    )
}

proptest! {
    /// However wrong the prior is, twenty ops with a tenth of noise are enough.
    #[test]
    fn a_true_rate_is_found(
        prior in any_prior(),
        bytes in 1u64..1 << 30,
        true_ns in 1_000f64..1e9,
        noise in prop::collection::vec(0.9f64..1.1, 20..60),
    ) {
        let (mut rates, now) = (Rates::new(prior), Instant::now());
        for times in noise {
            rates.observe(OpKind::Write, bytes, 1, Duration::from_nanos((true_ns * times) as u64), now);
        }
        let found = rates.expected(OpKind::Write, bytes, 1).as_nanos() as f64;
        // The expectation is cut to whole nanoseconds, the factor has seven digits.
        prop_assert!((found / true_ns - 1.0).abs() < 0.11, "{found} for {true_ns}");
        prop_assert!(rates.spread(OpKind::Write, SizeClass::of(bytes)) < 0.2);
    }

    /// Also when the first op paid for much that the others do not.
    #[test]
    fn a_slow_first_op_is_forgotten(times in 1f64..50.0) {
        let (mut rates, now) = (Rates::new(Prior::of(RouteId::SHM, true)), Instant::now());
        let usual = Duration::from_micros(200);
        rates.observe(OpKind::Read, MIB, 1, usual.mul_f64(times), now);
        (0..20).for_each(|_| rates.observe(OpKind::Read, MIB, 1, usual, now));
        let found = rates.expected(OpKind::Read, MIB, 1);
        prop_assert!(found < usual.mul_f64(1.2), "{found:?}");
    }

    #[test]
    fn one_odd_op_moves_little(before in 1usize..40, times in 0.001f64..1000.0) {
        let (mut rates, now) = (Rates::new(Prior::of(RouteId::SHM, true)), Instant::now());
        let usual = Duration::from_micros(200);
        (0..before).for_each(|_| rates.observe(OpKind::Read, MIB, 1, usual, now));
        let was = rates.expected(OpKind::Read, MIB, 1);
        rates.observe(OpKind::Read, MIB, 1, usual.mul_f64(times), now);
        let is = rates.expected(OpKind::Read, MIB, 1);
        prop_assert!(is < was * 4 && is * 4 > was, "{was:?} to {is:?}");
        if before >= 8 {
            prop_assert!(is < was.mul_f64(1.3), "not enough to leave one of two that are alike: {was:?} to {is:?}");
        }
    }

    /// A real change is taken in within a dozen ops, up or down, and in no less than some hundred microseconds.
    #[test]
    fn a_change_is_followed(times in 0.02f64..50.0) {
        let (mut rates, mut now) = (Rates::new(Prior::of(RouteId::SHM, true)), Instant::now());
        let usual = Duration::from_micros(200);
        (0..40).for_each(|_| rates.observe(OpKind::Read, MIB, 1, usual, now));
        let (begin, mut ops) = (now, 0);
        while ops < 16 || now - begin < Duration::from_millis(3) {
            (now, ops) = (now + usual.mul_f64(times), ops + 1);
            rates.observe(OpKind::Read, MIB, 1, usual.mul_f64(times), now);
        }
        let off = rates.expected(OpKind::Read, MIB, 1).as_secs_f64() / usual.mul_f64(times).as_secs_f64();
        prop_assert!((0.5..2.0).contains(&off), "{off}");
    }
}

/// What disturbs a thread for a moment makes many short ops slow, and is no reason to leave a route.
#[test]
fn a_short_disturbance_moves_little() {
    let (mut rates, mut now) = (Rates::new(Prior::of(RouteId::SHM, true)), Instant::now());
    let usual = Duration::from_nanos(1200);
    let mut run = |rates: &mut Rates, ops: u32, service: Duration| {
        for _ in 0..ops {
            now += service;
            rates.observe(OpKind::Write, 4096, 1, service, now);
        }
    };
    run(&mut rates, 100, usual);
    let was = rates.expected(OpKind::Write, 4096, 1);
    run(&mut rates, 15, usual * 10);
    let is = rates.expected(OpKind::Write, 4096, 1);
    assert!(is < was.mul_f64(1.3), "{was:?} to {is:?}");
    // What lasts is believed, and forgotten as soon as it is over.
    run(&mut rates, 200, usual * 10);
    assert!(rates.expected(OpKind::Write, 4096, 1) > usual * 5);
    run(&mut rates, 2000, usual);
    assert!(rates.expected(OpKind::Write, 4096, 1) < usual * 2);
}

/// Ops of many sizes in one class teach one thing.
#[test]
fn sizes_in_a_class_agree() {
    let (mut rates, now) = (Rates::new(Prior::of(RouteId::SHM, true)), Instant::now());
    // Three times as slow as is expected, at every size of the class.
    for step in 0..60u64 {
        let bytes = (MIB / 4 + 1) + step * 12_345;
        rates.observe(OpKind::Read, bytes, 1, rates.prior(bytes, 1) * 3, now);
    }
    for bytes in [MIB / 4 + 1, MIB / 2, MIB] {
        let off = rates.expected(OpKind::Read, bytes, 1).as_secs_f64() / rates.prior(bytes, 1).as_secs_f64();
        assert!((off - 3.0).abs() < 0.01, "{bytes}: {off}");
    }
}
