//! The schedule. Rule: what is compared is measured in the same round, next to each other, and the order turns from round
//! to round, so that what the machine does meanwhile falls on all alike.

use super::demand::{deep, deep_hot, is_large, is_stream};
use super::pair::Pair;
use super::plan::{Case, Op, Point};
use super::quiet::Quiet;
use super::sample::Sample;
use super::ucx::Ucx;
use std::io::Write;

/// Everything a run measures with, and what it has found.
pub(super) struct Rounds<'a> {
    pub(super) pairs: Vec<Pair>,
    pub(super) ucx: Option<Ucx>,
    pub(super) quiet: Quiet,
    pub(super) seconds: f64,
    /// Where each sample goes at once, a line each.
    pub(super) raw: &'a mut dyn Write,
    pub(super) samples: Vec<Sample>,
    /// What could not be measured, and why.
    pub(super) failures: Vec<String>,
}

/// Whose turn it is.
#[derive(Debug, Clone, PartialEq)]
enum Who {
    Pair(String),
    Ucx,
}

impl Rounds<'_> {
    /// All points, `reps` rounds each.
    pub(super) fn run(&mut self, points: &[Point], reps: usize) -> anyhow::Result<()> {
        let mut round = 0;
        for point in points {
            for op in [Op::Write, Op::Read] {
                let case = Case::plain(op, *point);
                eprintln!("bench: {case}");
                for _ in 0..reps {
                    round += 1;
                    let jobs = self.jobs(case);
                    for k in 0..jobs.len() {
                        let (who, case) = &jobs[(k + round) % jobs.len()];
                        self.job(who, *case, round)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn jobs(&self, case: Case) -> Vec<(Who, Case)> {
        let mut jobs = Vec::new();
        for pair in &self.pairs {
            let who = Who::Pair(pair.launch.name.clone());
            jobs.push((who.clone(), case));
            if pair.has_depth() && is_stream(case) {
                jobs.push((who.clone(), deep(case.op, case.block)));
            }
            if pair.has_depth() && is_large(case) && self.ucx.is_some() {
                jobs.push((who, deep_hot(case.op, case.block)));
            }
        }
        if is_large(case) && self.ucx.is_some() {
            jobs.push((Who::Ucx, deep_hot(case.op, case.block)));
        }
        jobs
    }

    fn job(&mut self, who: &Who, case: Case, round: usize) -> anyhow::Result<()> {
        let seconds = self.seconds;
        let measured = match who {
            Who::Ucx => {
                let Some(ucx) = &mut self.ucx else { return Ok(()) };
                self.quiet.measure(|| ucx.measure(case, seconds))
            }
            Who::Pair(name) => {
                // A pair that failed in this round may be gone.
                let Some(pair) = self.pairs.iter_mut().find(|p| p.launch.name == *name) else {
                    return Ok(());
                };
                self.quiet.measure(|| pair.measure(case, seconds))
            }
        };
        match measured {
            Ok(sample) => {
                let sample = Sample { round, ..sample };
                serde_json::to_writer(&mut self.raw, &sample)?;
                self.raw.write_all(b"\n")?;
                self.samples.push(sample);
            }
            Err(e) => self.failed(who, case, &e),
        }
        Ok(())
    }

    fn failed(&mut self, who: &Who, case: Case, error: &anyhow::Error) {
        let Who::Pair(name) = who else {
            return self.note(format!("ucx_perftest, {case}: {error:#}"));
        };
        self.note(format!("{name}, {case}: {error:#}"));
        let Some(at) = self.pairs.iter().position(|p| p.launch.name == *name) else { return };
        if let Err(e) = self.pairs[at].restart() {
            self.pairs.remove(at);
            self.note(format!("{name} did not start again: {e:#}"));
        }
    }

    fn note(&mut self, failure: String) {
        eprintln!("bench: failed: {failure}");
        self.failures.push(failure);
    }
}
