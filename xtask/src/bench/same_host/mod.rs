//! The series between two processes of one host: what the mapped memory of a peer, the kernel's call and TCP are worth there, beside the
//! C library's copy, the bare call and other engines. [`group`] says what is measured next to each other, [`judge`] what is asked.

mod group;
mod initiator;
mod judge;
mod planner;
mod proof;
mod walk;
mod way;
mod worker;

use super::engine::ListCosts;
use super::pair::{Pair, number};
use super::plan::Case;
use super::promises::ROUNDS_TIMES;
use super::quiet::Quiet;
use super::sample::{Sample, summarize};
use super::ucx::Ucx;
use super::{BenchArgs, Found, peers};
use anyhow::{Context, bail};
use group::{NEIGHBOURS, Neighbour, Who, groups};
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use way::Way;

pub(super) use worker::run as run_worker;

/// The share of submissions that may go by another route than the best, to measure it.
const ELSEWHERE_MAX: f64 = 0.01;

/// The name by which the series is chosen.
pub(super) const NAME: &str = "same-host";

/// Whether it is measured, given the names that were chosen.
pub(super) fn is_wanted(only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|name| name == NAME)
}

/// Whether a demand against this needs an engine that may not be there.
pub(super) fn needs_others(against: &str) -> bool {
    NEIGHBOURS.iter().any(|other| other.name() == against)
}

/// Measures all of it, [`ROUNDS_TIMES`] times as many rounds as were asked for.
pub(super) fn measure(args: &BenchArgs, out: &Path) -> anyhow::Result<Found> {
    let mut series = Series {
        pair: Pair::start(peers::same_host()?, out).context("the pair of one host")?,
        ucx: Vec::new(),
        tent: None,
        seconds: args.seconds,
        samples: Vec::new(),
        failures: Vec::new(),
    };
    series.find_others(args, out)?;
    let mut quiet = Quiet::new(Duration::try_from_secs_f64(args.wait)?);
    let mut raw = File::create(out.join("same-host.jsonl"))?;
    let (mut count, mut decisions_ns) = (0, Vec::new());
    for group in groups() {
        if let Some((_, case)) = group.last() {
            eprintln!("bench: {NAME}: {case}");
        }
        for _ in 0..ROUNDS_TIMES * usize::from(args.reps) {
            count += 1;
            let samples = quiet.measure(|| series.round(&group, count))?;
            for sample in &samples {
                writeln!(raw, "{}", serde_json::to_string(sample)?)?;
            }
            series.samples.extend(samples);
        }
    }
    for _ in 0..ROUNDS_TIMES * usize::from(args.reps) {
        let ns = planner::decision_ns();
        writeln!(raw, "{}", json!({ "decision_ns": ns }))?;
        decisions_ns.push(ns);
    }
    let verdicts = judge::judge(&series.samples, &decisions_ns);
    Ok((summarize(&series.samples), verdicts, series.failures))
}

/// Everything that the series measures with.
struct Series {
    pair: Pair,
    ucx: Vec<(Neighbour, Ucx)>,
    tent: Option<Pair>,
    seconds: f64,
    samples: Vec<Sample>,
    failures: Vec<String>,
}

impl Series {
    /// Looks for the other engines; what is not there is told with the reason.
    fn find_others(&mut self, args: &BenchArgs, out: &Path) -> anyhow::Result<()> {
        let Some(scripts) = &args.peers else {
            self.failures.push(format!("{NAME}: other engines: --peers was not given"));
            return Ok(());
        };
        let scripts = scripts.canonicalize().with_context(|| scripts.display().to_string())?;
        let root = args.peers_root.clone().map_or_else(peers::default_root, Ok)?;
        if !root.join("ucx/bin/python").exists() {
            peers::install(&scripts, &root)?;
        }
        for (other, transport, tls) in [
            (Neighbour::UcxPosix, "ucx:posix", "posix"),
            // Alone it does not connect: something else has to carry messages.
            (Neighbour::UcxCma, "ucx:cma", "cma,tcp"),
        ] {
            match Ucx::over(&root, (other.name(), transport), tls) {
                Ok(ucx) => self.ucx.push((other, ucx)),
                Err(e) => self.failures.push(format!("{}: {e:#}", other.name())),
            }
        }
        match peers::tent(&scripts, &root).and_then(|launch| Pair::start(launch, out)) {
            Ok(pair) => self.tent = Some(pair),
            Err(e) => self.failures.push(format!("{}: {e:#}", Neighbour::TentShm.name())),
        }
        Ok(())
    }

    /// One round of a group, whose order turns from round to round.
    fn round(&mut self, group: &[(Who, Case)], count: usize) -> anyhow::Result<Vec<Sample>> {
        let mut samples = Vec::with_capacity(group.len());
        for k in 0..group.len() {
            let (who, case) = group[(k + count) % group.len()];
            match self.job(who, case) {
                Ok(Some(sample)) => samples.push(Sample { round: count, ..sample }),
                Ok(None) => {}
                Err(e) => {
                    let name = match who {
                        Who::Ours(way) => way.name(),
                        Who::Other(other) => other.name(),
                    };
                    let failure = format!("{NAME}: {name}, {case}: {e:#}");
                    eprintln!("bench: failed: {failure}");
                    self.failures.push(failure);
                    if matches!(who, Who::Ours(_)) {
                        self.pair.restart()?;
                    }
                }
            }
        }
        Ok(samples)
    }

    /// None for what is not there.
    fn job(&mut self, who: Who, case: Case) -> anyhow::Result<Option<Sample>> {
        let seconds = self.seconds;
        match who {
            Who::Ours(way) => self.ours(way, case).map(Some),
            Who::Other(Neighbour::TentShm) => {
                self.tent.as_mut().map(|pair| pair.measure(case, seconds)).transpose()
            }
            Who::Other(other) => {
                let ucx = self.ucx.iter_mut().find(|(name, _)| *name == other);
                ucx.map(|(_, ucx)| ucx.measure(case, seconds)).transpose()
            }
        }
    }

    fn ours(&mut self, way: Way, case: Case) -> anyhow::Result<Sample> {
        let command = json!({ "cmd": "run", "way": way, "case": case, "min_s": self.seconds });
        let (run, of_target, load) = self.pair.instruct(command)?;
        let (own, timed) = (number(&run, "cpu_s")?, number(&run, "timed")?);
        let elsewhere = number(&run, "elsewhere")?;
        if elsewhere > timed * ELSEWHERE_MAX {
            bail!("{elsewhere} of {timed} went by another route");
        }
        let gib = timed * case.submission_gib();
        Ok(Sample {
            peer: way.name().into(),
            version: self.pair.version().into(),
            transport: way.transport().into(),
            op: case.op,
            block_bytes: case.block,
            batch: case.batch,
            depth: case.depth,
            hot: case.hot,
            form: case.form,
            checksum: case.checksum,
            round: 0,
            gib_per_s: gib / number(&run, "wall_s")?,
            p50_us: run["p50_us"].as_f64(),
            p99_us: run["p99_us"].as_f64(),
            // The target's is that of the whole repetition, with what is compared after it: only TCP has any.
            cpu_s_per_gib: Some((own + if way == Way::Tcp { of_target } else { 0.0 }) / gib),
            costs: ListCosts::default(),
            verified: run["verified"].as_bool(),
            // All of both processes' is not the timed part's alone: what is left is others'.
            noise: load.without(number(&run, "cpu_all_s")? + of_target),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::is_wanted;

    #[test]
    fn it_is_chosen_by_its_name() {
        let only = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        for (names, wanted) in
            [(&[][..], true), (&["same-host"], true), (&["raw", "same-host"], true), (&["raw"], false)]
        {
            assert_eq!(is_wanted(&only(names)), wanted, "{names:?}");
        }
    }
}
