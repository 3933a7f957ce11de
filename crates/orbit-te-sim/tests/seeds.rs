//! Runs of the simulation: clean seeds, the same seed twice, and a plant of each class.

use orbit_te_sim::{Options, run};

#[test]
fn some_seeds_run_clean() {
    let mut transfers = 0;
    for seed in 0..100 {
        let outcome = run(seed, &Options::default());
        assert!(outcome.violations.is_empty(), "seed {seed}: {}", outcome.violations[0]);
        transfers += outcome.counts.transfers;
    }
    assert!(transfers > 1_000, "only {transfers} transfers: the runs do next to nothing");
}
