//! What is demanded of the engine beside plain transfers: lists, notifications, checksums. Rule: what a demand compares is one group,
//! whose cases every round measures next to each other.

use super::demand::{Limit, Metric, OURS, RAW, Verdict, compare, own};
use super::lists::{CONTIGUOUS, LIST};
use super::plan::{Case, Form, MIB, Op, Point};
use super::rounds::Who;
use super::sample::Sample;

/// A kind of demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Promise {
    /// Prepared lists of scattered pieces, against the same bytes in one piece.
    Lists,
    /// Notifications, against the same bytes to and fro on a plain socket.
    Notifications,
    /// Transfers with CRC32C, against the same ones without.
    Checksums,
}

pub(super) const PROMISES: [Promise; 3] = [Promise::Lists, Promise::Notifications, Promise::Checksums];

/// How many times the rounds of a point each has: single rounds differ by more than some values do from their limits.
pub(super) const ROUNDS_TIMES: usize = 4;

/// Blocks with and without a checksum.
const CHECKED: [Point; 2] = [Point { block: MIB, batch: 1 }, Point { block: 16 * MIB, batch: 1 }];

/// The payload of a notification.
const NOTE: Point = Point { block: 64, batch: 1 };

const LIST_MIN: Limit = Limit::AtLeast(0.7);
const BUILD_MAX_NS: Limit = Limit::AtMost(50.0);
const POST_MAX_MS: Limit = Limit::AtMost(5.0);
const NOTE_MAX: Limit = Limit::AtMost(1.5);
const CHECKED_MIN: Limit = Limit::AtLeast(0.85);

fn list(op: Op) -> Case {
    Case { form: Form::List, ..Case::plain(op, LIST) }
}

fn checked(case: Case) -> Case {
    Case { checksum: true, ..case }
}

/// Always from the initiator to the target.
fn notification() -> Case {
    Case { form: Form::Notification, ..Case::plain(Op::Write, NOTE) }
}

impl Promise {
    /// What is measured next to each other.
    pub(super) fn groups(self) -> Vec<Vec<(Who, Case)>> {
        let ours = || Who::Pair(OURS.into());
        let both = [Op::Write, Op::Read].into_iter();
        match self {
            Promise::Lists => both
                .map(|op| {
                    let cases = [Case::plain(op, CONTIGUOUS), list(op), checked(list(op))];
                    cases.map(|case| (Who::Pool, case)).into()
                })
                .collect(),
            Promise::Notifications => {
                let raw = (Who::Pair(RAW.into()), Case::plain(Op::Write, NOTE));
                vec![vec![raw, (ours(), notification())]]
            }
            Promise::Checksums => CHECKED
                .into_iter()
                .flat_map(|point| both.clone().map(move |op| Case::plain(op, point)))
                .map(|case| vec![(ours(), case), (ours(), checked(case))])
                .collect(),
        }
    }

    /// Its demands, judged.
    pub(super) fn judge(self, samples: &[Sample]) -> Vec<Verdict> {
        const SPEED: Metric = Metric::Throughput;
        let crc = |case: Case| {
            let without = ("own without", OURS, case);
            compare(samples, "throughput", SPEED, checked(case), without, CHECKED_MIN)
        };
        let both = [Op::Write, Op::Read].into_iter();
        match self {
            Promise::Lists => both
                .flat_map(|op| {
                    let (list, whole) = (list(op), ("own in one piece", OURS, Case::plain(op, CONTIGUOUS)));
                    [
                        compare(samples, "throughput", SPEED, list, whole, LIST_MIN),
                        own(samples, "building, ns a piece", list, "", BUILD_MAX_NS, |s| s.costs.build_ns),
                        own(samples, "posting again, ms", list, "", POST_MAX_MS, |s| s.costs.post_ms),
                        crc(list),
                    ]
                })
                .collect(),
            Promise::Notifications => {
                let raw = (RAW, RAW, Case::plain(Op::Write, NOTE));
                vec![compare(samples, "p50", Metric::Median, notification(), raw, NOTE_MAX)]
            }
            Promise::Checksums => CHECKED
                .into_iter()
                .flat_map(|point| both.clone().map(move |op| Case::plain(op, point)))
                .map(crc)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::ListCosts;
    use super::super::sample::tests::sample;
    use super::*;

    /// The verdict on one demand: its value, and whether it passed.
    fn check(
        samples: &[Sample],
        promise: Promise,
        demand: &str,
        against: &str,
        value: Option<f64>,
        pass: Option<bool>,
    ) {
        let all = promise.judge(samples);
        let found = all.iter().find(|v| v.demand == demand && v.against == against);
        let found = found.unwrap_or_else(|| panic!("no demand {demand:?} against {against:?}"));
        assert_eq!((found.value, found.pass), (value, pass), "{demand}");
    }

    fn list_sample(gib_per_s: f64, build_ns: f64, post_ms: f64) -> Sample {
        let costs = ListCosts { build_ns: Some(build_ns), post_ms: Some(post_ms) };
        Sample { costs, ..sample(OURS, list(Op::Write), 1, gib_per_s) }
    }

    #[test]
    fn lists_are_held_against_one_piece() {
        let whole = sample(OURS, Case::plain(Op::Write, CONTIGUOUS), 1, 4.0);
        let verdicts = |ours: Sample, rows: [(&str, &str, f64, bool); 3]| {
            for (what, against, value, pass) in rows {
                let demand = format!("write list, 4 KiB × 100000: {what}");
                let samples = [whole.clone(), ours.clone()];
                check(&samples, Promise::Lists, &demand, against, Some(value), Some(pass));
            }
        };
        verdicts(
            list_sample(3.0, 50.0, 5.0),
            [
                ("throughput", "own in one piece", 0.75, true),
                ("building, ns a piece", "", 50.0, true),
                ("posting again, ms", "", 5.0, true),
            ],
        );
        verdicts(
            list_sample(2.0, 50.1, 5.1),
            [
                ("throughput", "own in one piece", 0.5, false),
                ("building, ns a piece", "", 50.1, false),
                ("posting again, ms", "", 5.1, false),
            ],
        );
        let read = "read list, 4 KiB × 100000: throughput";
        check(&[whole], Promise::Lists, read, "own in one piece", None, None);
    }

    #[test]
    fn checksums_are_held_against_none() {
        let cases = [
            (Promise::Lists, list(Op::Read), "read list, 4 KiB × 100000, CRC32C: throughput"),
            (Promise::Checksums, Case::plain(Op::Read, CHECKED[0]), "read 1 MiB, CRC32C: throughput"),
            (Promise::Checksums, Case::plain(Op::Write, CHECKED[1]), "write 16 MiB, CRC32C: throughput"),
        ];
        for (promise, case, demand) in cases {
            for (speed, ratio, pass) in [(3.5, 0.875, true), (3.0, 0.75, false)] {
                let samples = [sample(OURS, case, 1, 4.0), sample(OURS, checked(case), 1, speed)];
                check(&samples, promise, demand, "own without", Some(ratio), Some(pass));
            }
        }
    }

    #[test]
    fn notifications_are_held_against_raw() {
        for (p50_us, ratio, pass) in [(15.0, 1.5, true), (16.0, 1.6, false)] {
            let ours = Sample { p50_us: Some(p50_us), ..sample(OURS, notification(), 1, 1.0) };
            let samples = [sample(RAW, Case::plain(Op::Write, NOTE), 1, 1.0), ours];
            let demand = "notification, 64 B: p50";
            check(&samples, Promise::Notifications, demand, RAW, Some(ratio), Some(pass));
        }
    }

    #[test]
    fn every_case_that_is_judged_is_measured() {
        // A sample of each case that the groups name leaves no demand unmeasured.
        for promise in PROMISES {
            let cases = promise.groups().into_iter().flatten();
            let costs = ListCosts { build_ns: Some(1.0), post_ms: Some(1.0) };
            let samples: Vec<Sample> = cases
                .map(|(who, case)| {
                    let name = if who == Who::Pair(RAW.into()) { RAW } else { OURS };
                    Sample { costs, ..sample(name, case, 1, 1.0) }
                })
                .collect();
            let verdicts = promise.judge(&samples);
            assert!(!verdicts.is_empty() && verdicts.iter().all(|v| v.pass.is_some()), "{verdicts:?}");
        }
    }
}
