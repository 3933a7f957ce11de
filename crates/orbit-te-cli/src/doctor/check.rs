//! What a check finds, as a line of text and of JSON. Rule: a line of text fits 100 columns and is wrapped where it does not; what
//! is a warning or a failure has a remedy.

use super::tree::{Miss, shown_path};
use serde::Serialize;
use std::fmt;

/// The columns of a terminal that the text is made for.
const COLUMNS: usize = 100;
/// Where the words of a line begin.
const INDENT: usize = 26;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing to be done for most.
    Note,
    /// It works, but slower, or less of it than it could.
    Warn,
    /// It does not work.
    Fail,
    /// This host has no such thing.
    Absent,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Note => "note",
            State::Warn => "warn",
            State::Fail => "fail",
            State::Absent => "absent",
        }
    }
}

/// One line of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The check's name. Several of one name are about several devices.
    pub(crate) name: &'static str,
    pub(crate) state: State,
    pub(crate) found: String,
    /// Why it matters.
    pub(crate) why: &'static str,
    pub(crate) remedy: Option<String>,
}

impl Finding {
    pub(crate) fn new(
        name: &'static str,
        state: State,
        found: impl Into<String>,
        why: &'static str,
    ) -> Finding {
        Finding { name, state, found: found.into(), why, remedy: None }
    }

    /// The same with what to do about it.
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }

    /// A check whose file is not there or not understood.
    pub(crate) fn missed(name: &'static str, path: &str, miss: &Miss, why: &'static str) -> Finding {
        let path = shown_path(path);
        match miss {
            Miss::Absent => Finding::new(name, State::Absent, format!("there is no /{path}"), why),
            Miss::Unreadable(cause) => Finding::new(name, State::Warn, format!("/{path}: {cause}"), why)
                .remedy(format!("look at /{path}: a container may hide it, a saved copy be damaged")),
        }
    }

    /// A check whose file every Linux host has.
    pub(crate) fn missed_always(name: &'static str, path: &str, miss: &Miss, why: &'static str) -> Finding {
        let finding = Finding::missed(name, path, miss, why);
        match finding.state {
            State::Absent => Finding { state: State::Warn, ..finding }
                .remedy(format!("have /{path} visible: is /{} mounted?", first_folder(path))),
            _ => finding,
        }
    }

    /// A line of JSON.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

fn first_folder(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

/// A column head for the lines of text.
pub(crate) const HEAD: &str = "state   check             what was found; why it matters";

impl fmt::Display for Finding {
    /// A line, wrapped where it is too long, and with the remedy below it where something should be done.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { name, state, found, why, remedy } = self;
        write!(f, "{:<6}  {name:<16}  ", state.word())?;
        wrap(f, &format!("{found}; {why}"), INDENT)?;
        match remedy {
            Some(remedy) if matches!(state, State::Warn | State::Fail) => {
                write!(f, "\n{:8}remedy: ", "")?;
                wrap(f, remedy, 16)
            }
            _ => Ok(()),
        }
    }
}

/// Words from this column on, in as many lines as they need; a word longer than a line is divided.
fn wrap(f: &mut fmt::Formatter<'_>, words: &str, indent: usize) -> fmt::Result {
    let mut column = indent;
    let widest = COLUMNS - indent;
    let split = |word: &str| {
        let letters: Vec<char> = word.chars().collect();
        letters.chunks(widest).map(|part| part.iter().collect::<String>()).collect::<Vec<_>>()
    };
    for word in words.split_whitespace().flat_map(split) {
        let width = word.chars().count();
        if column > indent && column + 1 + width > COLUMNS {
            write!(f, "\n{:indent$}", "")?;
            column = indent;
        }
        if column > indent {
            f.write_str(" ")?;
            column += 1;
        }
        f.write_str(&word)?;
        column += width;
    }
    Ok(())
}

/// How many findings there are of each state.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    checks: usize,
    ok: usize,
    note: usize,
    warn: usize,
    fail: usize,
    absent: usize,
}

#[derive(Serialize)]
struct SummaryLine<'a> {
    summary: &'a Summary,
    version: &'static str,
}

impl Summary {
    pub(crate) fn of(findings: &[Finding]) -> Summary {
        let count = |state| findings.iter().filter(|f| f.state == state).count();
        Summary {
            checks: findings.len(),
            ok: count(State::Ok),
            note: count(State::Note),
            warn: count(State::Warn),
            fail: count(State::Fail),
            absent: count(State::Absent),
        }
    }

    pub(crate) fn json(&self) -> String {
        let line = SummaryLine { summary: self, version: env!("CARGO_PKG_VERSION") };
        serde_json::to_string(&line).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { checks, ok, note, warn, fail, absent } = self;
        write!(f, "{checks} checks: {ok} ok, {note} note, {warn} warn, {fail} fail, {absent} absent")
    }
}

/// Bytes for people: the largest unit, with a tenth where it is not whole.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 6] =
        [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, shift)| bytes >> shift > 0) {
        None => format!("{bytes} B"),
        Some((unit, shift)) if bytes % (1 << shift) == 0 => format!("{} {unit}", bytes >> shift),
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_wrapped_and_have_their_remedy() {
        let plain = Finding::new("numa", State::Ok, "1 node", "why");
        assert_eq!(plain.to_string(), "ok      numa              1 node; why");
        assert_eq!(HEAD.find("what"), Some(INDENT));
        let note = Finding::new("numa", State::Note, "2 nodes", "why").remedy("do");
        assert_eq!(note.to_string(), "note    numa              2 nodes; why");
        let long =
            Finding::new("a-name", State::Warn, "word ".repeat(40), "because").remedy("do ".repeat(60));
        let lines = long.to_string();
        assert!(lines.lines().count() > 3);
        assert!(lines.lines().all(|l| l.len() <= COLUMNS && !l.ends_with(' ')), "{lines}");
        assert!(lines.contains("\n        remedy: do do"), "{lines}");
        let path = Finding::new("x", State::Ok, format!("/{}", "folder/".repeat(40)), "why").to_string();
        assert!(path.lines().count() == 4 && path.lines().all(|l| l.len() <= COLUMNS), "{path}");
        assert!(lines.lines().nth(1).unwrap().starts_with(&format!("{:INDENT$}word", "")));
    }

    #[test]
    fn what_is_missed_says_so() {
        let gone = Finding::missed("x", "proc/x", &Miss::Absent, "why");
        assert_eq!((gone.state, gone.found.as_str()), (State::Absent, "there is no /proc/x"));
        let odd = Finding::missed("x", "proc/x", &Miss::Unreadable("it is empty".to_string()), "why");
        assert_eq!((odd.state, odd.found.as_str()), (State::Warn, "/proc/x: it is empty"));
        assert!(odd.remedy.is_some());
        let needed = Finding::missed_always("x", "proc/x", &Miss::Absent, "why");
        assert_eq!(needed.state, State::Warn);
        assert!(needed.remedy.unwrap().ends_with("is /proc mounted?"));
    }

    #[test]
    fn findings_and_their_sum_are_json() {
        let finding = Finding::new("x", State::Fail, "a \"b\"", "why").remedy("do");
        let told = r#"{"name":"x","state":"fail","found":"a \"b\"","why":"why","remedy":"do"}"#;
        assert_eq!(finding.json(), told);
        let summary = Summary::of(&[finding.clone(), Finding { state: State::Ok, ..finding }]);
        assert!(summary.json().starts_with(
            r#"{"summary":{"checks":2,"ok":1,"note":0,"warn":0,"fail":1,"absent":0},"version":"#
        ));
        assert_eq!(summary.to_string(), "2 checks: 1 ok, 0 note, 0 warn, 1 fail, 0 absent");
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (64 << 10, "64 KiB"),
            (212_992, "208 KiB"),
            (1_500_000, "1.4 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
