//! Tables for people: on the terminal, and as markdown for the documentation.

use super::demand::Verdict;
use super::machine::Machine;
use super::sample::Summary;
use std::fmt::Write;

/// A table of words: the first row is its head.
struct Table {
    rows: Vec<Vec<String>>,
    /// Columns of words, which stand at the left; numbers stand at the right.
    words: usize,
}

impl Table {
    fn plain(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let chars = |text: &String| text.chars().count();
        let width = |i: usize| self.rows.iter().map(|row| chars(&row[i])).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = " ".repeat(width - chars(cell));
                line += &if i < self.words { format!("{cell}{gap}  ") } else { format!("{gap}{cell}  ") };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        for (n, row) in self.rows.iter().enumerate() {
            text += &format!("| {} |\n", row.join(" | "));
            if n == 0 {
                let rule = (0..row.len()).map(|i| if i < self.words { "---" } else { "---:" });
                text += &format!("| {} |\n", rule.collect::<Vec<_>>().join(" | "));
            }
        }
        text
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).into()
}

/// Three significant digits.
fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 6);
    format!("{value:.0$}", digits as usize)
}

/// What was not measured is no number.
fn percent(share: f64) -> String {
    if share.is_nan() {
        return "-".into();
    }
    format!("{:.0} %", share * 100.0)
}

fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), number)
}

fn spread(min: Option<f64>, max: Option<f64>) -> String {
    min.zip(max).map_or_else(|| "-".into(), |(a, b)| format!("{}..{}", number(a), number(b)))
}

fn medians(records: &[Summary]) -> Table {
    let head = [
        "case",
        "engine",
        "GiB/s",
        "min..max",
        "of raw",
        "p50 µs",
        "min..max",
        "p99 µs",
        "CPU s/GiB",
        "noise",
        "verified",
    ];
    let mut rows = vec![row(head)];
    for r in records {
        rows.push(vec![
            r.case().to_string(),
            r.peer.clone(),
            number(r.gib_per_s),
            spread(Some(r.gib_per_s_min), Some(r.gib_per_s_max)),
            maybe(r.vs_raw),
            maybe(r.p50_us),
            spread(r.p50_us_min, r.p50_us_max),
            maybe(r.p99_us),
            maybe(r.cpu_s_per_gib),
            percent(r.noise),
            r.verified.map_or("-", |ok| if ok { "yes" } else { "NO" }).into(),
        ]);
    }
    Table { rows, words: 2 }
}

fn demands(verdicts: &[Verdict]) -> Table {
    let mut rows =
        vec![row(["demand", "against", "limit", "value", "min..max", "rounds", "noise", "result"])];
    for v in verdicts {
        rows.push(vec![
            v.demand.clone(),
            v.against.clone(),
            v.limit.to_string(),
            maybe(v.value),
            spread(v.min, v.max),
            v.rounds.to_string(),
            v.noise.map_or("-".into(), percent),
            v.pass.map_or("not measured", |ok| if ok { "pass" } else { "FAIL" }).into(),
        ]);
    }
    Table { rows, words: 3 }
}

/// How many passed, failed, and were not measured.
pub(super) fn tally(verdicts: &[Verdict]) -> String {
    let count = |wanted| verdicts.iter().filter(|v| v.pass == wanted).count();
    let (passed, failed, absent) = (count(Some(true)), count(Some(false)), count(None));
    format!("{passed} demands passed, {failed} failed, {absent} not measured")
}

/// Everything, for a terminal.
pub(super) fn plain(
    machine: &Machine,
    records: &[Summary],
    verdicts: &[Verdict],
    failures: &[String],
) -> String {
    let mut text = format!("{machine}\n\n{}\n{}\n", medians(records).plain(), demands(verdicts).plain());
    text += &tally(verdicts);
    text.push('\n');
    for failure in failures {
        let _ = writeln!(text, "failed: {failure}");
    }
    text
}

/// Everything, as markdown.
pub(super) fn markdown(
    machine: &Machine,
    records: &[Summary],
    verdicts: &[Verdict],
    failures: &[String],
) -> String {
    let versions = records.iter().fold(Vec::new(), |mut seen, r| {
        let version = format!("{} {} ({})", r.peer, r.version, r.transport);
        if !seen.contains(&version) {
            seen.push(version);
        }
        seen
    });
    let mut text = tally(verdicts) + ".";
    for failure in failures {
        let _ = write!(text, "\n\nFailed or left out: {failure}.");
    }
    format!(
        "{machine}. Engines: {}.\n\n{text}\n\n{}\n{}",
        versions.join(", "),
        demands(verdicts).markdown(),
        medians(records).markdown(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        let rows = [
            (0.0, "0"),
            (0.01234, "0.0123"),
            (1.0, "1.00"),
            (12.34, "12.3"),
            (1234.5, "1234"),
            (1e-9, "0.000000"),
        ];
        for (value, text) in rows {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn columns_line_up() {
        let table = Table { rows: vec![row(["a", "µs"]), row(["long", "1.5"])], words: 1 };
        assert_eq!(table.plain(), "a      µs\nlong  1.5\n");
        assert_eq!(table.markdown(), "| a | µs |\n| --- | ---: |\n| long | 1.5 |\n");
    }
}
