//! The tests of one `cargo test` run, summed from what it printed, and the rows that tests themselves left out. Rule:
//! numbers come from the `test result:` lines, nothing is counted twice.

use std::fmt::Write;

/// The counts of one test target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Row {
    target: String,
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Reads the lines of `cargo test`, stdout and stderr in their order.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    rows: Vec<Row>,
    failures: Vec<String>,
    skips: Vec<String>,
    target: String,
}

impl Tally {
    /// Takes one line of output.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(target) = target_of(line) {
            self.target = target;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            let row = self.row();
            row.passed += count(counts, "passed");
            row.failed += count(counts, "failed");
            row.ignored += count(counts, "ignored");
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(format!("{}: {name}", self.target));
        }
    }

    /// Takes what tests wrote to the file of skips: `skipped: NAME: REASON` a line.
    pub(crate) fn skips(&mut self, text: &str) {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        self.skips.extend(lines.map(|line| line.strip_prefix("skipped: ").unwrap_or(line).to_string()));
        self.skips.sort();
    }

    /// One row a target that has tests, their sum, and what failed or was left out.
    pub(crate) fn table(&self) -> String {
        let rows: Vec<&Row> =
            self.rows.iter().filter(|row| row.passed + row.failed + row.ignored > 0).collect();
        let width = rows.iter().map(|row| row.target.len()).max().unwrap_or(0).max("tests".len());
        let mut out = format!("{:width$}  passed  failed  ignored\n", "tests");
        let mut sum = Row { target: "all".to_string(), ..Row::default() };
        for row in rows {
            sum.passed += row.passed;
            sum.failed += row.failed;
            sum.ignored += row.ignored;
            push_row(&mut out, row, width);
        }
        push_row(&mut out, &sum, width);
        for failure in &self.failures {
            // Writing to a string can't fail.
            let _ = writeln!(out, "failed: {failure}");
        }
        if !self.skips.is_empty() {
            let _ = writeln!(out, "left out by the tests themselves: {}", self.skips.len());
        }
        for skip in &self.skips {
            let _ = writeln!(out, "skipped: {skip}");
        }
        out
    }

    fn row(&mut self) -> &mut Row {
        let at = self.rows.iter().position(|row| row.target == self.target).unwrap_or_else(|| {
            self.rows.push(Row { target: self.target.clone(), ..Row::default() });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }
}

fn push_row(out: &mut String, row: &Row, width: usize) {
    let _ = writeln!(out, "{:width$}  {:6}  {:6}  {:7}", row.target, row.passed, row.failed, row.ignored);
}

/// The target whose tests come next: the name of its file in the build folder without the hash, or a crate's docs.
fn target_of(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{name} (docs)"));
    }
    let rest = line.strip_prefix("Running ")?;
    let (_, path) = rest.strip_suffix(')')?.rsplit_once('(')?;
    let file = path.rsplit(['/', '\\']).next()?;
    let name = file.rsplit_once('-').map_or(file, |(name, _hash)| name);
    Some(name.to_string())
}

fn count(counts: &str, what: &str) -> u64 {
    let part = counts.split([';', '.']).map(str::trim).find(|part| part.ends_with(what));
    part.and_then(|part| part.split(' ').next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
     Running unittests src/lib.rs (target/debug/deps/orbit_te_wire-0a1b2c)
running 3 tests
test frame::tests::round_trip ... ok
test frame::tests::flags ... FAILED
test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
     Running tests/golden.rs (target/debug/deps/golden-77)
test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
   Doc-tests orbit_te_wire
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
     Running unittests src/main.rs (target/debug/deps/orbit_te-9)
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";

    #[test]
    fn results_are_summed_by_target() {
        let mut tally = Tally::default();
        OUTPUT.lines().for_each(|line| tally.line(line));
        tally.skips("skipped: ipv6_loopback: no IPv6 here\n\n");
        let expected = "\
tests                 passed  failed  ignored
orbit_te_wire              1       1        1
golden                    12       0        0
orbit_te_wire (docs)       3       0        0
all                       16       1        1
failed: orbit_te_wire: frame::tests::flags
left out by the tests themselves: 1
skipped: ipv6_loopback: no IPv6 here
";
        assert_eq!(tally.table(), expected);
    }
}
