//! Runs of the simulation: clean seeds, and the same seed twice.

use orbit_te_sim::{Counts, Faults, Options, run};

#[test]
fn some_seeds_run_clean() {
    let (mut transfers, mut succeeded, mut failed) = (0, 0, 0);
    for seed in 0..12 {
        let outcome = run(seed, &Options::default());
        assert!(outcome.violations.is_empty(), "seed {seed}: {}", outcome.violations[0]);
        transfers += outcome.counts.transfers;
        succeeded += outcome.counts.succeeded;
        failed += outcome.counts.failed;
    }
    // A simulation in which nothing happens finds nothing.
    assert!(
        transfers > 500 && succeeded > 200 && failed > 100,
        "{transfers} transfers, {succeeded} + {failed}"
    );
}

/// Seeds that found something once: a right that lasted longer at its user than at its owner, by the time of an answer.
#[test]
fn seeds_that_found_something() {
    for seed in [2027, 4694, 7188, 18143, 18306, 19113, 28140] {
        let outcome = run(seed, &Options::default());
        assert!(outcome.violations.is_empty(), "seed {seed}: {}", outcome.violations[0]);
    }
}

#[test]
fn a_seed_repeats_its_run() {
    for seed in [7, 64] {
        let (first, second) = (run(seed, &Options::default()), run(seed, &Options::default()));
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first.hash, run(seed + 1, &Options::default()).hash);
    }
}

#[test]
fn without_faults_most_transfers_succeed() {
    let options = Options { faults: Some(Faults::NONE), ..Options::default() };
    let outcome = run(3, &options);
    assert!(outcome.violations.is_empty(), "{}", outcome.violations[0]);
    assert_eq!(outcome.counts.disturbances, 0);
}

#[test]
fn each_fault_alone_is_lived_with() {
    let none = Faults::NONE;
    let alone = [
        Faults { partial: 0.7, ..none },
        Faults { reset: 0.8, ..none },
        Faults { half_open: 0.8, ..none },
        Faults { slow: 0.5, delay_us: 20_000, jitter_us: 5_000, ..none },
        // Every control message comes twice: the second of a notification is not another one.
        Faults { duplicate: 1.0, ..none },
        Faults { refuse_registration: 0.5, ..none },
        Faults { stalls: 2.0, stall_ms: 2_000, ..none },
        Faults { crashes: 2.0, ..none },
        Faults { shutdowns: 2.0, ..none },
        Faults { damage: 0.2, ..none },
        Faults { cuts: 5.0, ..none },
    ];
    for faults in alone {
        let mut counts = Counts::default();
        for seed in 11..14 {
            let outcome = run(seed, &Options { faults: Some(faults), ..Options::default() });
            assert!(outcome.violations.is_empty(), "{faults:?}, seed {seed}: {}", outcome.violations[0]);
            counts.add(&outcome.counts);
        }
        assert_eq!(counts.damaged > 0, faults.damage > 0.0, "{faults:?}: {counts:?}");
        let disturbing = faults.stalls + faults.crashes + faults.shutdowns + faults.cuts;
        assert_eq!(counts.disturbances > 0, disturbing > 0.0, "{faults:?}: {counts:?}");
        let done = [counts.succeeded, counts.notifications, counts.lists, counts.withdrawn, counts.revoked];
        assert!(!done.contains(&0), "{faults:?}: nothing was done: {counts:?}");
    }
}
