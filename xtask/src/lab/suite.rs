//! `cargo xtask lab test`: the cases, one boot for each topology. Rule: a case passes only if every guest said so; one that was
//! not reached has failed.

use super::boot::{Lab, Plan, last_words};
use super::cases::{CASES, Case};
use super::image::{Carried, Task};
use super::kernel::Choice;
use super::machine::{Hardware, Machine};
use super::test_binary;
use super::topology::{Host, Topology};
use super::transcript::{Ended, Event};
use crate::process::{capture, program, root};
use crate::step::{Outcome, say_skipped};
use anyhow::ensure;
use std::time::{Duration, Instant};

/// Arguments of `cargo xtask lab test`.
#[derive(Debug, clap::Args)]
pub(crate) struct SuiteArgs {
    #[arg(long, value_enum, default_value = "stable")]
    pub(super) kernel: Choice,
    /// Only the cases that have this in `TOPOLOGY/NAME`.
    #[arg(long, value_name = "TEXT")]
    pub(super) filter: Option<String>,
}

/// How many cases ended how, and how much they left out themselves.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Runs the cases, each with a line of its own.
pub(super) fn run(args: &SuiteArgs) -> anyhow::Result<Outcome> {
    let filter = args.filter.as_deref().unwrap_or_default();
    let cases: Vec<&Case> = CASES.iter().filter(|case| title(case).contains(filter)).collect();
    ensure!(!cases.is_empty(), "no case has `{filter}` in its name");
    let lab = match Lab::obtain(args.kernel) {
        Ok(lab) => lab,
        Err(why) => return Ok(Outcome::Skipped(format!("no lab here: {why:#}"))),
    };
    let start = Instant::now();
    let mut counts = Counts::default();
    for cases in cases.chunk_by(|a, b| a.topology == b.topology) {
        group(&lab, cases, &mut counts)?;
    }
    let Counts { passed, failed, skipped } = counts;
    let (kernel, took) = (lab.kernel(), start.elapsed().as_secs());
    println!("Linux {kernel}: {passed} passed, {failed} failed, {skipped} skipped, in {took} s");
    Ok(match failed {
        0 => Outcome::Passed,
        _ => Outcome::Failed(format!("{failed} of {} cases failed", cases.len())),
    })
}

/// What one guest showed of one case.
#[derive(Debug, Clone)]
struct Seen {
    began: Option<Instant>,
    ended: Ended,
    took: Duration,
    output: Vec<u8>,
}

/// Boots for the cases of one topology.
fn group(lab: &Lab, cases: &[&Case], counts: &mut Counts) -> anyhow::Result<()> {
    let plan = plan(cases)?;
    let hosts = plan.topology.hosts();
    let unseen = Seen { began: None, ended: Ended::Never, took: Duration::ZERO, output: Vec::new() };
    let mut seen = vec![vec![unseen; cases.len()]; hosts.len()];
    let mut current = vec![None; hosts.len()];
    // What guests say before the first case.
    let mut before = Vec::new();
    let boot = Instant::now();
    let machines = lab.boot(&plan, |place, event| {
        match event {
            Event::Ready => {
                let guest = if hosts.len() > 1 { format!(" {}", hosts[place].name) } else { String::new() };
                let ready = boot.elapsed().as_secs_f64();
                println!("{}: guest{guest} ready after {ready:.1} s", plan.topology.name());
            }
            Event::Begin(number) => {
                current[place] = Some(number);
                seen[place][number].began = Some(Instant::now());
            }
            Event::Output(bytes) => match current[place] {
                Some(number) => seen[place][number].output.extend(bytes),
                None => before.extend(bytes),
            },
            Event::End(number, ended) => {
                let case = &mut seen[place][number];
                case.ended = ended;
                case.took = case.began.map(|began| began.elapsed()).unwrap_or_default();
            }
            Event::Over => current[place] = None,
        }
        Ok(())
    })?;
    print!("{}", String::from_utf8_lossy(&before));
    for (number, case) in cases.iter().enumerate() {
        let of_case: Vec<&Seen> = seen.iter().map(|host| &host[number]).collect();
        let files = |path: &str| file_of(&machines, path);
        let faults = faults(case, hosts, &of_case, files);
        let took = of_case.iter().map(|seen| seen.took).max().unwrap_or_default().as_secs_f64();
        if faults.is_empty() {
            counts.passed += 1;
            println!("passed  {:32} {took:6.1} s", title(case));
        } else {
            counts.failed += 1;
            println!("FAILED  {:32} {took:6.1} s: {}", title(case), faults.join("; "));
            print!("{}", printed(hosts, &of_case));
        }
        for seen in of_case {
            counts.skipped += say_skips(case, &seen.output)?;
        }
    }
    // A guest that died, or was ended when time was up, has something to say of it.
    for (of_host, machine) in seen.iter().zip(&machines) {
        let mut both = cases.iter().zip(of_host);
        if both.any(|(case, seen)| seen.ended == Ended::Never && case.ends != Ended::Never) {
            print!("{}", last_words(machine)?);
        }
    }
    Ok(())
}

fn plan(cases: &[&Case]) -> anyhow::Result<Plan> {
    let topology = cases.first().map_or(Topology::None, |case| case.topology);
    let mut carried = Carried::default();
    // What several of them need is carried once.
    for binary in cases.iter().filter_map(|case| case.binary) {
        if carried.programs.iter().all(|(name, _)| name != binary.name) {
            carried.programs.push((binary.name.to_string(), test_binary::build(binary)?));
        }
    }
    for (to, from) in cases.iter().flat_map(|case| case.brings) {
        if carried.files.iter().all(|(there, _)| there != to) {
            carried.files.push((to.to_string(), root().join(from)));
        }
    }
    let task = |case: &&Case| Task {
        script: format!("set -e\n{}", case.script),
        limit: Duration::from_secs(case.limit),
    };
    let tasks: Vec<Task> = cases.iter().map(task).collect();
    Ok(Plan {
        topology,
        // A processor for each of two guests is as much as small hosts have.
        hardware: Hardware { processors: if topology == Topology::TwoVm { 1 } else { 2 }, ..Hardware::USUAL },
        tasks: vec![tasks; topology.hosts().len()],
        carried,
    })
}

/// What is wrong with a case, by guest.
fn faults(case: &Case, hosts: &[Host], seen: &[&Seen], file: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (host, seen) in hosts.iter().zip(seen) {
        let fault = match seen.began {
            None => "it was not reached".to_string(),
            Some(_) if seen.ended != case.ends => format!("it {}", seen.ended),
            Some(_) => continue,
        };
        faults.push(if hosts.len() > 1 { format!("{fault} in guest {}", host.name) } else { fault });
    }
    for (path, content) in case.leaves {
        match file(path) {
            None => faults.push(format!("it left no {path}")),
            Some(text) if text != *content => faults.push(format!("{path} has {text:?}")),
            Some(_) => {}
        }
    }
    faults
}

/// What a case printed, with the guests' names where there are two.
fn printed(hosts: &[Host], seen: &[&Seen]) -> String {
    let mut text = String::new();
    for (host, seen) in hosts.iter().zip(seen) {
        for line in String::from_utf8_lossy(&seen.output).lines() {
            text.push_str(&format!("    {}| {line}\n", if hosts.len() > 1 { host.name } else { "" }));
        }
    }
    text
}

/// Says on what tests in a guest left out, and how much that is.
fn say_skips(case: &Case, output: &[u8]) -> std::io::Result<usize> {
    let text = String::from_utf8_lossy(output);
    let skips: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("skipped: ")).collect();
    for skip in &skips {
        say_skipped(&format!("lab {}: {skip}", title(case)))?;
    }
    Ok(skips.len())
}

/// A file of the first guest's `/out`.
fn file_of(machines: &[Machine], path: &str) -> Option<String> {
    let files = machines.first()?.files().ok()?;
    capture(program("tar").args(["-xO", &format!("./{path}")]).stdin(files)).ok()
}

fn title(case: &Case) -> String {
    format!("{}/{}", case.topology.name(), case.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn seen(ended: Ended) -> Seen {
        Seen { began: Some(Instant::now()), ended, took: Duration::ZERO, output: b"one\ntwo".to_vec() }
    }

    fn case(name: &str) -> &'static Case {
        CASES.iter().find(|case| title(case) == name).unwrap()
    }

    #[test]
    fn cases_have_names_of_their_own_and_share_boots() {
        let titles: BTreeSet<String> = CASES.iter().map(title).collect();
        assert_eq!(titles.len(), CASES.len());
        let boots = CASES.chunk_by(|a, b| a.topology == b.topology).count();
        let topologies: BTreeSet<Topology> = CASES.iter().map(|case| case.topology).collect();
        assert_eq!(boots, topologies.len(), "cases of a topology stand beside each other");
    }

    #[test]
    fn every_guest_must_end_as_expected() {
        let hosts = Topology::TwoVm.hosts();
        let control = case("two-vm/control");
        let none = |_: &str| None;
        let (good, bad) = (seen(Ended::Code(0)), seen(Ended::Code(3)));
        assert!(faults(control, hosts, &[&good, &good], none).is_empty());
        assert_eq!(faults(control, hosts, &[&good, &bad], none), ["it ended with 3 in guest b"]);
        let unreached = Seen { began: None, ..seen(Ended::Never) };
        assert_eq!(faults(control, hosts, &[&unreached, &good], none), ["it was not reached in guest a"]);
        assert_eq!(printed(hosts, &[&good, &unreached]).lines().next(), Some("    a| one"));
        let hangs = case("none/hangs");
        assert_eq!(faults(hangs, Topology::None.hosts(), &[&good], none), ["it ended with 0"]);
        // Also a case that is to end its guest must have begun.
        let off = case("rails/switched-off");
        assert!(faults(off, Topology::Rails.hosts(), &[&seen(Ended::Never)], none).is_empty());
        assert_eq!(faults(off, Topology::Rails.hosts(), &[&unreached], none), ["it was not reached"]);
    }

    #[test]
    fn files_must_be_there_and_right() {
        let files = case("none/files-out");
        let good = seen(Ended::Code(0));
        let found = |text: &'static str| {
            faults(files, Topology::None.hosts(), &[&good], move |path| {
                (path == "a/text").then(|| text.to_string())
            })
        };
        assert_eq!(found("from the guest\n"), ["it left no empty"]);
        assert_eq!(found("x"), ["a/text has \"x\"", "it left no empty"]);
    }
}
