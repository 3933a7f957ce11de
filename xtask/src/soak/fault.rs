//! The faults of a run, and which comes next. Rule: the seed alone decides what is done; only when depends on the machine.

use super::pattern::Random;
use std::fmt;
use std::time::Duration;

/// What is done to a process or to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Fault {
    /// SIGKILL to a target, which is started again.
    KillTarget,
    /// SIGKILL to a driver, which is started again.
    KillDriver,
    /// SIGSTOP and, later, SIGCONT.
    StopTarget,
    StopDriver,
    /// Every connection through a middle-man is cut.
    CutLinks,
    /// Connections through a middle-man stand, and nothing comes through for a while.
    HalfOpen,
    /// Connections through a middle-man are cut, and new ones are for a while.
    TurnAway,
    /// What goes through a middle-man is delayed for a while.
    DelayLinks,
    /// The interface of a namespace's link is down for a while.
    InterfaceDown,
    /// Packets are delayed and lost on a namespace's link for a while.
    Netem,
    /// A target retires its memory, changes it and offers it again.
    Recycle,
    /// A target makes what its peers know stale.
    Revoke,
}

/// Each fault with its weight, and for how long it lasts, in milliseconds.
const FAULTS: &[(Fault, u64, (u64, u64))] = &[
    (Fault::KillTarget, 36, (20, 500)),
    (Fault::KillDriver, 16, (20, 500)),
    (Fault::StopTarget, 10, (50, 4000)),
    (Fault::StopDriver, 6, (50, 3000)),
    (Fault::CutLinks, 8, (1, 2)),
    (Fault::HalfOpen, 6, (500, 4000)),
    (Fault::TurnAway, 4, (200, 3000)),
    (Fault::DelayLinks, 6, (500, 4000)),
    (Fault::InterfaceDown, 3, (200, 3000)),
    (Fault::Netem, 3, (500, 4000)),
    (Fault::Recycle, 6, (1, 2)),
    (Fault::Revoke, 4, (1, 2)),
];

/// The mean time from one fault to the next, in milliseconds.
const PAUSE_MS: u64 = 850;

/// A fault, when it comes after the last one, for how long, and a number that picks its victim.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    pub(super) fault: Fault,
    pub(super) after: Duration,
    pub(super) lasts: Duration,
    pub(super) pick: u64,
}

pub(super) fn next(random: &mut Random) -> Planned {
    let after = Duration::from_millis(random.between(PAUSE_MS / 4, PAUSE_MS * 7 / 4));
    let mut point = random.below(FAULTS.iter().map(|(_, weight, _)| weight).sum());
    let chosen = FAULTS.iter().find(|(_, weight, _)| {
        let found = point < *weight;
        point = point.saturating_sub(*weight);
        found
    });
    let (fault, _, (least, most)) = *chosen.unwrap_or(&FAULTS[0]);
    let lasts = Duration::from_millis(random.between(least, most));
    Planned { fault, after, lasts, pick: random.next() }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::KillTarget => "targets killed and restarted",
            Fault::KillDriver => "drivers killed and restarted",
            Fault::StopTarget => "targets stopped and continued",
            Fault::StopDriver => "drivers stopped and continued",
            Fault::CutLinks => "links cut",
            Fault::HalfOpen => "links half open",
            Fault::TurnAway => "links cut and turned away",
            Fault::DelayLinks => "links delayed",
            Fault::InterfaceDown => "interfaces down",
            Fault::Netem => "packets delayed and lost",
            Fault::Recycle => "memory retired and refilled",
            Fault::Revoke => "memory revoked",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_fault_comes_and_the_seed_repeats_them() {
        let plan = |seed| {
            let mut random = Random::new(seed);
            (0..2000).map(|_| next(&mut random)).collect::<Vec<_>>()
        };
        let (first, again, other) = (plan(1), plan(1), plan(2));
        let kinds = |plan: &[Planned]| plan.iter().map(|planned| planned.fault).collect::<Vec<_>>();
        assert_eq!(kinds(&first), kinds(&again));
        assert_ne!(kinds(&first), kinds(&other));
        let mut counts = BTreeMap::new();
        kinds(&first).into_iter().for_each(|fault| *counts.entry(fault).or_insert(0) += 1);
        assert_eq!(counts.len(), FAULTS.len());
        // As many as half an hour has: enough of them kill.
        assert!(counts[&Fault::KillTarget] + counts[&Fault::KillDriver] > 600);
    }
}
