//! Steps: what was checked, how it ended and how long it took. Rule: a step that could not run is counted and says why;
//! it is never left out in silence.

use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// What was to hold holds.
    Passed,
    /// It does not, and this is why.
    Failed(String),
    /// It could not be tried, and this is why.
    Skipped(String),
}

struct Entry {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
}

/// The steps of one run, in order.
#[derive(Default)]
pub(crate) struct Ledger {
    entries: Vec<Entry>,
}

impl Ledger {
    /// Runs a step under a heading. An error of `run` is a failure of the step.
    pub(crate) fn step(&mut self, name: &'static str, run: impl FnOnce() -> anyhow::Result<Outcome>) {
        println!("\n==== {name}");
        let start = Instant::now();
        let outcome = run().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        let took = start.elapsed();
        match &outcome {
            Outcome::Passed => println!("==== {name}: passed, {}", seconds(took)),
            Outcome::Failed(why) => println!("==== {name}: FAILED, {}: {why}", seconds(took)),
            Outcome::Skipped(why) => println!("==== {name}: skipped: {why}"),
        }
        self.entries.push(Entry { name, outcome, took });
    }

    /// Whether anything failed.
    pub(crate) fn failed(&self) -> bool {
        self.count(|outcome| matches!(outcome, Outcome::Failed(_))) > 0
    }

    /// One row a step.
    pub(crate) fn table(&self) -> String {
        let width = self.entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
        let mut table = String::new();
        for Entry { name, outcome, took } in &self.entries {
            let (word, why) = match outcome {
                Outcome::Passed => ("passed", ""),
                Outcome::Failed(why) => ("FAILED", why.as_str()),
                Outcome::Skipped(why) => ("skipped", why.as_str()),
            };
            let row = format!("{name:width$}  {word:7}  {:>8}  {why}", seconds(*took));
            table.push_str(row.trim_end());
            table.push('\n');
        }
        table
    }

    /// The one line that a run ends with.
    pub(crate) fn last_line(&self) -> String {
        let passed = self.count(|outcome| matches!(outcome, Outcome::Passed));
        let failed = self.count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let skipped = self.count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        format!("{passed} passed, {failed} failed, {skipped} skipped")
    }

    fn count(&self, which: impl Fn(&Outcome) -> bool) -> usize {
        self.entries.iter().filter(|entry| which(&entry.outcome)).count()
    }
}

/// Says how a step ended that is a command of its own: 0 passed, 1 failed, 2 not run.
pub(crate) fn alone(name: &str, outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Passed => {
            println!("{name}: passed");
            ExitCode::SUCCESS
        }
        Outcome::Failed(why) => {
            println!("{name}: FAILED: {why}");
            ExitCode::FAILURE
        }
        Outcome::Skipped(why) => {
            println!("{name}: not run: {why}");
            ExitCode::from(2)
        }
    }
}

/// The file in which what is left out by a test or a part of a step is said: `skipped: NAME: REASON` a line.
pub(crate) const SKIP_FILE: &str = "ORBIT_TE_SKIP_FILE";

/// Says aloud that a part is left out, and why.
pub(crate) fn say_skipped(what: &str) -> std::io::Result<()> {
    let line = format!("skipped: {what}\n");
    eprint!("{line}");
    let Some(path) = std::env::var_os(SKIP_FILE) else { return Ok(()) };
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
    std::io::Write::write_all(&mut file, line.as_bytes())
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_counted_once() {
        let mut ledger = Ledger::default();
        ledger.step("good", || Ok(Outcome::Passed));
        ledger.step("absent", || Ok(Outcome::Skipped("no such thing".to_string())));
        assert!(!ledger.failed());
        ledger.step("bad", || anyhow::bail!("broken"));
        assert!(ledger.failed());
        assert_eq!(ledger.last_line(), "1 passed, 1 failed, 1 skipped");
        assert!(ledger.table().contains("no such thing"));
        assert!(ledger.table().contains("broken"));
    }
}
