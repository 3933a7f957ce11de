//! Runs of the simulation: clean seeds, and the same seed twice.

use orbit_te_sim::{Faults, Options, run};

#[test]
fn some_seeds_run_clean() {
    let (mut transfers, mut succeeded, mut failed) = (0, 0, 0);
    for seed in 0..30 {
        let outcome = run(seed, &Options::default());
        assert!(outcome.violations.is_empty(), "seed {seed}: {}", outcome.violations[0]);
        transfers += outcome.counts.transfers;
        succeeded += outcome.counts.succeeded;
        failed += outcome.counts.failed;
    }
    // A simulation in which nothing happens finds nothing.
    assert!(
        transfers > 1_000 && succeeded > 300 && failed > 300,
        "{transfers} transfers, {succeeded} + {failed}"
    );
}

#[test]
fn a_seed_repeats_its_run() {
    for seed in [1, 7, 64] {
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
