//! What a guest says on its stream: what its commands print, and between that its first process's reports. A report begins with
//! `\x1elab ` (the byte is ASCII's record separator) and goes to the end of its line. Rule: whatever is no report is output.

/// A part of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The commands come next.
    Ready,
    /// A command begins.
    Begin(usize),
    /// What a command prints.
    Output(Vec<u8>),
    /// A command has ended.
    End(usize, Ended),
    /// All is done.
    Over,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// With this exit code.
    Code(u8),
    /// It was ended at its limit.
    AtLimit,
    /// Not at all: its guest ended first.
    Never,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Code(code) => write!(f, "ended with {code}"),
            Ended::AtLimit => f.write_str("was ended at its limit"),
            Ended::Never => f.write_str("came to no end: the guest ended first"),
        }
    }
}

const MARK: &[u8] = b"\x1elab ";

/// Reads a stream that comes in pieces.
#[derive(Default)]
pub(super) struct Transcript {
    /// The beginning of what may be a report.
    pending: Vec<u8>,
}

impl Transcript {
    /// Takes the next piece.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Vec<Event> {
        self.pending.extend_from_slice(piece);
        let mut events = Vec::new();
        loop {
            let mark = self.pending.windows(MARK.len()).position(|window| window == MARK);
            let output = mark.unwrap_or_else(|| self.pending.len() - begun_mark(&self.pending));
            if output > 0 {
                events.push(Event::Output(self.pending.drain(..output).collect()));
            }
            if mark.is_none() {
                return events;
            }
            let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') else { return events };
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let words = String::from_utf8_lossy(&line[MARK.len()..]).into_owned();
            events.push(report(&words).unwrap_or(Event::Output(line)));
        }
    }
}

/// How many bytes at the end may be the beginning of a mark.
fn begun_mark(bytes: &[u8]) -> usize {
    (1..MARK.len()).rev().find(|length| bytes.ends_with(&MARK[..*length])).unwrap_or(0)
}

fn report(words: &str) -> Option<Event> {
    let words: Vec<&str> = words.split_whitespace().collect();
    match words.as_slice() {
        ["ready"] => Some(Event::Ready),
        ["begin", number] => Some(Event::Begin(number.parse().ok()?)),
        ["end", number, code] => Some(Event::End(number.parse().ok()?, Ended::Code(code.parse().ok()?))),
        ["limit", number] => Some(Event::End(number.parse().ok()?, Ended::AtLimit)),
        ["over"] => Some(Event::Over),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"noise\n\x1elab ready\n\x1elab begin 0\none\ntwo\x1elab end 0 255\n\x1elab begin 1\n\
                            \x1elab limit 1\n\x1elab over\n";

    fn output(text: &str) -> Event {
        Event::Output(text.into())
    }

    #[test]
    fn reports_are_told_from_output() {
        let expected = [
            output("noise\n"),
            Event::Ready,
            Event::Begin(0),
            output("one\ntwo"),
            Event::End(0, Ended::Code(255)),
            Event::Begin(1),
            Event::End(1, Ended::AtLimit),
            Event::Over,
        ];
        assert_eq!(Transcript::default().feed(STREAM), expected);
    }

    #[test]
    fn it_is_the_same_in_whatever_pieces_it_comes() {
        let joined = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let mut transcript = Transcript::default();
            let mut events: Vec<Event> = Vec::new();
            for event in pieces.flat_map(|piece| transcript.feed(piece)).collect::<Vec<_>>() {
                match (events.last_mut(), event) {
                    (Some(Event::Output(all)), Event::Output(more)) => all.extend(more),
                    (_, event) => events.push(event),
                }
            }
            events
        };
        let whole = joined(&mut std::iter::once(STREAM));
        for size in 1..20 {
            assert_eq!(joined(&mut STREAM.chunks(size)), whole, "in pieces of {size}");
        }
    }

    #[test]
    fn what_only_looks_like_a_report_is_output() {
        let odd = b"\x1elab end x\n\x1elab end 0 256\n\x1e alone";
        let events = Transcript::default().feed(odd);
        assert!(events.iter().all(|event| matches!(event, Event::Output(_))), "{events:?}");
    }
}
