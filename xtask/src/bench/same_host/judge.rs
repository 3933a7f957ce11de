//! What is demanded between processes of one host. Rule: a ratio is made within a round, and only of cases that one group measures; what
//! needs an engine that is not there is left open.

use super::super::demand::{Limit, Metric, Verdict, absolute, alone, ratio};
use super::super::plan::Case;
use super::super::sample::Sample;
use super::group::{
    BATCH, HOT, LARGE, NEIGHBOURS, Neighbour, OPS, PLAIN, SMALL, batch, cold, hot, list, whole,
};
use super::way::Way;

/// Of the C library's copy, and of the kernel's bare call.
const COPY_MIN: Limit = Limit::AtLeast(0.95);
const LIST_MIN: Limit = Limit::AtLeast(0.5);
const SMALL_MAX_US: Limit = Limit::AtMost(1.5);
const DECISION_MAX_NS: Limit = Limit::AtMost(300.0);

/// All of them, judged. `decisions_ns`: what choosing a route took, once a round.
pub(super) fn judge(samples: &[Sample], decisions_ns: &[f64]) -> Vec<Verdict> {
    let name = |way: Way, case: Case, what: &str| format!("{}, {case}: {what}", way.name());
    let speed = |way: Way, case: Case, (against, theirs): (&str, Case), label: &str, limit| {
        let demand = name(way, case, "throughput");
        ratio(samples, demand, Metric::Throughput, (way.name(), case), (label, against, theirs), limit)
    };
    let latency = |way: Way, case: Case, requests: f64| {
        let what = if requests > 1.0 { "p50 for each, µs" } else { "p50, µs" };
        let value = |s: &Sample| Some(s.p50_us? / requests);
        absolute(samples, name(way, case, what), (way.name(), case), "", SMALL_MAX_US, value)
    };
    let mut all = Vec::new();
    for op in OPS {
        for case in [cold(op, SMALL), hot(op, SMALL)] {
            all.push(latency(Way::Chosen, case, 1.0));
        }
        all.push(latency(Way::Shm, batch(op), BATCH as f64));
        for case in LARGE.map(|block| cold(op, block)) {
            all.push(speed(Way::Shm, case, (Way::Memcpy.name(), case), "memcpy", COPY_MIN));
        }
        for case in PLAIN.map(|block| cold(op, block)) {
            all.push(speed(Way::ProcessVm, case, (Way::Call.name(), case), "bare call", COPY_MIN));
        }
        let one_piece = (Way::Shm.name(), whole(op));
        all.push(speed(Way::Shm, list(op), one_piece, "own in one piece", LIST_MIN));
        for other in NEIGHBOURS {
            let case = |block| if other == Neighbour::TentShm { cold(op, block) } else { hot(op, block) };
            let small = case(SMALL);
            all.push(ratio(
                samples,
                name(Way::Chosen, small, "p50"),
                Metric::Median,
                (Way::Chosen.name(), small),
                (other.name(), other.name(), small),
                Limit::Below(1.0),
            ));
            for case in HOT.map(case) {
                all.push(speed(Way::Shm, case, (other.name(), case), other.name(), Limit::Above(1.0)));
            }
        }
    }
    all.push(alone("choosing a route when nothing changed, ns", DECISION_MAX_NS, decisions_ns));
    all
}

#[cfg(test)]
mod tests {
    use super::super::super::plan::{KIB, MIB, Op};
    use super::super::super::sample::tests::sample;
    use super::super::group::{Who, groups};
    use super::*;

    fn verdict<'a>(all: &'a [Verdict], demand: &str, against: &str) -> &'a Verdict {
        let found = all.iter().find(|v| v.demand == demand && v.against == against);
        found.unwrap_or_else(|| panic!("no demand {demand:?} against {against:?}"))
    }

    #[test]
    fn copies_are_held_against_memcpy_in_the_same_round() {
        let case = cold(Op::Write, MIB);
        let samples = [
            sample(Way::Memcpy.name(), case, 1, 10.0),
            sample(Way::Shm.name(), case, 1, 9.5),
            sample(Way::Memcpy.name(), case, 2, 5.0),
            sample(Way::Shm.name(), case, 2, 4.0),
            sample(Way::Shm.name(), case, 3, 1.0),
        ];
        let all = judge(&samples[..2], &[]);
        let found = verdict(&all, "orbit-te shm, write 1 MiB: throughput", "memcpy");
        assert_eq!((found.value, found.rounds, found.pass), (Some(0.95), 1, Some(true)));
        let all = judge(&samples, &[]);
        let found = verdict(&all, "orbit-te shm, write 1 MiB: throughput", "memcpy");
        assert_eq!((found.value, found.rounds, found.pass), (Some(0.875), 2, Some(false)));
    }

    #[test]
    fn plain_memory_is_held_against_the_bare_call_and_lists_against_one_piece() {
        let case = cold(Op::Read, 64 * KIB);
        let samples = [
            sample(Way::Call.name(), case, 1, 4.0),
            sample(Way::ProcessVm.name(), case, 1, 3.0),
            sample(Way::Shm.name(), whole(Op::Read), 2, 8.0),
            sample(Way::Shm.name(), list(Op::Read), 2, 4.0),
        ];
        let all = judge(&samples, &[]);
        let plain = verdict(&all, "orbit-te process_vm, read 64 KiB: throughput", "bare call");
        assert_eq!((plain.value, plain.pass), (Some(0.75), Some(false)));
        let list = verdict(&all, "orbit-te shm, read list, 4 KiB × 100000: throughput", "own in one piece");
        assert_eq!((list.value, list.pass), (Some(0.5), Some(true)));
    }

    #[test]
    fn small_ones_have_an_absolute_limit_and_batches_one_for_each() {
        let us = |way: Way, case, p50| Sample { p50_us: Some(p50), ..sample(way.name(), case, 1, 1.0) };
        let samples = [
            us(Way::Chosen, cold(Op::Write, SMALL), 1.5),
            us(Way::Chosen, hot(Op::Write, SMALL), 1.6),
            us(Way::Shm, batch(Op::Write), 64.0),
        ];
        let all = judge(&samples, &[299.0, 301.0, 305.0]);
        assert_eq!(verdict(&all, "orbit-te chosen, write 4 KiB: p50, µs", "").pass, Some(true));
        assert_eq!(verdict(&all, "orbit-te chosen, write 4 KiB, hot: p50, µs", "").pass, Some(false));
        let each = verdict(&all, "orbit-te shm, write 4 KiB × 64: p50 for each, µs", "");
        assert_eq!((each.value, each.pass), (Some(1.0), Some(true)));
        let decision = verdict(&all, "choosing a route when nothing changed, ns", "");
        assert_eq!((decision.value, decision.pass), (Some(301.0), Some(false)));
    }

    #[test]
    fn what_needs_others_is_open_without_them_and_never_passed() {
        let all = judge(&[], &[]);
        assert!(all.iter().all(|v| v.pass.is_none()));
        let open = all.iter().filter(|v| !v.is_unmet()).count();
        assert_eq!(open, 2 * NEIGHBOURS.len() * (1 + HOT.len()), "those alone");
    }

    #[test]
    fn every_case_that_is_judged_is_measured() {
        let samples: Vec<Sample> = (1..)
            .zip(groups())
            .flat_map(|(round, group)| group.into_iter().map(move |job| (round, job)))
            .map(|(round, (who, case))| match who {
                Who::Ours(way) => sample(way.name(), case, round, 1.0),
                Who::Other(other) => sample(other.name(), case, round, 1.0),
            })
            .collect();
        let verdicts = judge(&samples, &[1.0]);
        let open: Vec<&Verdict> = verdicts.iter().filter(|v| v.pass.is_none()).collect();
        assert!(open.is_empty(), "{open:?}");
    }
}
