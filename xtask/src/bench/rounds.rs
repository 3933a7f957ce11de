//! The schedule. Rule: what is compared is measured in the same round, next to each other, and the order turns from round
//! to round, so that what the machine does meanwhile falls on all alike.

use super::demand::{OURS, UCX, deep, deep_hot, is_large, is_stream};
use super::pair::Pair;
use super::plan::{Case, Op, Point};
use super::promises::{Promise, ROUNDS_TIMES};
use super::quiet::Quiet;
use super::sample::Sample;
use super::ucx::Ucx;
use std::io::Write;

/// Everything a run measures with, and what it has found.
pub(super) struct Rounds<'a> {
    pub(super) pairs: Vec<Pair>,
    /// Ours with a buffer that lists fit into, while they are measured.
    pub(super) pool: Option<Pair>,
    pub(super) ucx: Option<Ucx>,
    pub(super) quiet: Quiet,
    pub(super) seconds: f64,
    /// Where each sample goes at once, a line each.
    pub(super) raw: &'a mut dyn Write,
    pub(super) samples: Vec<Sample>,
    /// How many rounds there were.
    pub(super) count: usize,
    /// What could not be measured, and why.
    pub(super) failures: Vec<String>,
}

/// Whose turn it is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Who {
    /// The pair of that name.
    Pair(String),
    Pool,
    Ucx,
}

impl Rounds<'_> {
    /// All points, `reps` rounds each.
    pub(super) fn run(&mut self, points: &[Point], reps: usize) -> anyhow::Result<()> {
        for point in points {
            for op in [Op::Write, Op::Read] {
                let case = Case::plain(op, *point);
                eprintln!("bench: {case}");
                for _ in 0..reps {
                    self.round(&self.jobs(case))?;
                }
            }
        }
        Ok(())
    }

    /// The groups of a promise, [`ROUNDS_TIMES`] times `reps` rounds each.
    pub(super) fn promise(&mut self, promise: Promise, reps: usize) -> anyhow::Result<()> {
        for group in promise.groups() {
            if let Some((_, case)) = group.last() {
                eprintln!("bench: {case}");
            }
            for _ in 0..ROUNDS_TIMES * reps {
                self.round(&group)?;
            }
        }
        Ok(())
    }

    fn round(&mut self, jobs: &[(Who, Case)]) -> anyhow::Result<()> {
        self.count += 1;
        for k in 0..jobs.len() {
            let (who, case) = &jobs[(k + self.count) % jobs.len()];
            self.job(who, *case)?;
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

    fn job(&mut self, who: &Who, case: Case) -> anyhow::Result<()> {
        let (seconds, round) = (self.seconds, self.count);
        let measured = match who {
            Who::Ucx => {
                let Some(ucx) = &mut self.ucx else { return Ok(()) };
                self.quiet.measure(|| ucx.measure(case, seconds))
            }
            Who::Pair(_) | Who::Pool => {
                let pair = match who {
                    Who::Pair(name) => self.pairs.iter_mut().find(|p| p.launch.name == *name),
                    _ => self.pool.as_mut(),
                };
                // It is not wanted, or failed before and did not start again.
                let Some(pair) = pair else { return Ok(()) };
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
        let name = match who {
            Who::Pair(name) => name,
            Who::Pool => OURS,
            Who::Ucx => UCX,
        };
        self.note(format!("{name}, {case}: {error:#}"));
        let restarted = match who {
            Who::Pair(name) => match self.pairs.iter_mut().find(|p| p.launch.name == *name) {
                Some(pair) => pair.restart(),
                None => Ok(()),
            },
            Who::Pool => self.pool.as_mut().map_or(Ok(()), Pair::restart),
            Who::Ucx => Ok(()),
        };
        if let Err(e) = restarted {
            match who {
                Who::Pair(name) => self.pairs.retain(|p| p.launch.name != *name),
                _ => self.pool = None,
            }
            self.note(format!("{name} did not start again: {e:#}"));
        }
    }

    fn note(&mut self, failure: String) {
        eprintln!("bench: failed: {failure}");
        self.failures.push(failure);
    }
}
