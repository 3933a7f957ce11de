//! A peer, as this host reaches it. Rule: nothing of the peer's is written, and what it refuses is told with the catalogue's remedy.

use super::check::{Finding, State, size};
use crate::failure::Failure;
use crate::pattern::random_seed;
use crate::place;
use crate::record::Samples;
use crate::routing::Meeting;
use crate::verdict;
use orbit_te::{Access, Engine, Error, HostBuffer, OpKind, RefusalCode, Segment};
use std::time::{Duration, Instant};

/// How long reaching the peer may take, and making its lanes.
const LIMIT: Duration = Duration::from_secs(10);
/// Reads whose median is the round trip.
const READS: usize = 20;
/// The most bytes of each.
const READ_BYTES: u64 = 4096;
/// What routes are asked about.
const ROUTE_BYTES: u64 = 1 << 20;

/// Whom to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    /// As it was given.
    text: String,
    /// Whether it says which segment.
    named: bool,
}

/// What was learnt, and the first thing that failed.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    pub(crate) findings: Vec<Finding>,
    pub(crate) failure: Option<Failure>,
}

impl Peer {
    /// `HOST:PORT`, `HOST:PORT/NAME` or a token, as a clap value parser.
    pub(crate) fn parse(text: &str) -> Result<Peer, String> {
        let peer = |named| Peer { text: text.to_string(), named };
        if text.trim_start().starts_with("otseg") {
            return place::check(text).map(|()| peer(true)).map_err(|e| e.to_string());
        }
        let (at, name) = text.split_once('/').map_or((text, None), |(at, name)| (at, Some(name)));
        let port = at.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then_some(port));
        match (port.map(str::parse::<u16>), name) {
            (Some(Ok(_)), Some("")) => Err("the segment's name is empty".to_string()),
            (Some(Ok(_)), name) => Ok(peer(name.is_some())),
            _ => Err("write HOST:PORT, HOST:PORT/NAME or a token".to_string()),
        }
    }

    /// Reaches it, and measures what its segment permits.
    pub(crate) fn checks(&self, meeting: &Meeting) -> Learnt {
        let mut learnt = Learnt::default();
        let builder = match meeting.apply(Engine::builder().no_listen()) {
            Ok(builder) => builder,
            Err(failure) => return Learnt { failure: Some(failure), ..learnt },
        };
        match builder.start() {
            Ok(engine) => {
                if let Some(segment) = self.reach(&engine, &mut learnt) {
                    route_lines(&segment, &mut learnt);
                    if lanes(&segment, &mut learnt) {
                        round_trip(&engine, &segment, &mut learnt);
                    }
                }
                engine.shutdown();
            }
            Err(error) => learnt.fail("peer", REACH, &error.to_string(), error.remedy(), error.into()),
        }
        learnt
    }

    fn reach(&self, engine: &Engine, learnt: &mut Learnt) -> Option<Segment> {
        const NAME: &str = "peer";
        // Nobody has a segment of such a name; that the peer says so is the answer.
        let text = match self.named {
            true => self.text.clone(),
            false => format!("{}/orbit-te doctor {:016x}", self.text, random_seed()),
        };
        let started = Instant::now();
        let opened = engine.open(&text).wait(LIMIT);
        let took = started.elapsed().as_secs_f64() * 1e3;
        match opened {
            Ok(segment) => {
                let found = format!(
                    "segment `{}` of {}, {}, reached in {took:.1} ms",
                    printable(segment.name()),
                    size(segment.len()),
                    rights(segment.access())
                );
                learnt.findings.push(Finding::new(NAME, State::Ok, found, REACH));
                Some(segment)
            }
            Err(Error::Refused { code: Some(RefusalCode::UnknownSegment), .. }) if !self.named => {
                let found =
                    format!("{} answers, in a version that fits, after {took:.1} ms", printable(&self.text));
                learnt.findings.push(Finding::new(NAME, State::Ok, found, REACH));
                None
            }
            Err(error) => {
                let words = format!("{error} [{}], after {took:.1} ms", error.code());
                learnt.fail(NAME, REACH, &words, error.remedy(), unreached(error));
                None
            }
        }
    }
}

const REACH: &str = "connection, hello, one question";

impl Learnt {
    fn fail(&mut self, name: &'static str, why: &'static str, words: &str, remedy: &str, failure: Failure) {
        self.findings.push(Finding::new(name, State::Fail, printable(words), why).remedy(remedy));
        self.failure = self.failure.take().or(Some(failure));
    }
}

/// A peer that goes while it is reached was not reached.
fn unreached(error: Error) -> Failure {
    match Failure::from(error) {
        Failure::Listed { exit: 1, words, error } => Failure::Listed { exit: 3, words, error },
        other => other,
    }
}

fn rights(access: Access) -> &'static str {
    match (access.contains(Access::REMOTE_READ), access.contains(Access::REMOTE_WRITE)) {
        (true, true) => "read-write",
        (true, false) => "read-only",
        (false, true) => "write-only",
        (false, false) => "without a right",
    }
}

/// A peer's words without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// The ways by which bytes go to a segment's owner, a line each; the one that is taken first.
fn route_lines(segment: &Segment, learnt: &mut Learnt) {
    const NAME: &str = "peer-route";
    const WHY: &str = "a way by which bytes may go";
    let kind = if segment.access().contains(Access::REMOTE_READ) { OpKind::Read } else { OpKind::Write };
    let bytes = segment.len().min(ROUTE_BYTES);
    let plan = match segment.explain(kind, bytes, None).wait(LIMIT) {
        Ok(plan) => plan,
        Err(error) => return learnt.fail(NAME, WHY, &error.to_string(), error.remedy(), unreached(error)),
    };
    let state = match plan.route {
        Ok(route) => {
            let (why, time) = (verdict::why(plan.why), verdict::time(plan.expected));
            let found = format!("{route} is taken, {why}: {time} expected for {}", size(bytes));
            learnt.findings.push(Finding::new(NAME, State::Ok, found, WHY));
            State::Note
        }
        Err(_) => State::Warn,
    };
    for (route, reason) in plan.others.iter() {
        let found =
            format!("{route} is not: {} [{} {}]", verdict::short(reason), reason.code(), reason.name());
        learnt.findings.push(Finding::new(NAME, state, found, WHY).remedy(reason.remedy()));
    }
}

/// Has the lanes made; whether there is one.
fn lanes(segment: &Segment, learnt: &mut Learnt) -> bool {
    const NAME: &str = "peer-lanes";
    const WHY: &str = "connections that share the bytes";
    let started = Instant::now();
    match segment.warm(LIMIT).wait() {
        Ok(lanes) => {
            let took = started.elapsed().as_secs_f64() * 1e3;
            let found = format!("{} of {} up after {took:.1} ms", lanes.up, lanes.wanted);
            let finding = match lanes.all_up() {
                true => Finding::new(NAME, State::Ok, found, WHY),
                false => Finding::new(NAME, State::Warn, found, WHY)
                    .remedy("see whether a firewall or the peer's limit of open files keeps connections off"),
            };
            learnt.findings.push(finding);
            true
        }
        Err(error) => {
            learnt.fail(NAME, WHY, &error.to_string(), error.remedy(), unreached(error));
            false
        }
    }
}

fn round_trip(engine: &Engine, segment: &Segment, learnt: &mut Learnt) {
    const NAME: &str = "peer-round-trip";
    const WHY: &str = "what one small read costs";
    if !segment.access().contains(Access::REMOTE_READ) {
        let found = "not measured: the segment may not be read";
        learnt.findings.push(Finding::new(NAME, State::Note, found, WHY));
        return;
    }
    let bytes = segment.len().min(READ_BYTES);
    match median_of_reads(engine, segment, bytes) {
        Ok(micros) => {
            let found = format!("{micros:.1} µs, the median of {READS} reads of {}", size(bytes));
            learnt.findings.push(Finding::new(NAME, State::Ok, found, WHY));
        }
        Err((words, remedy, failure)) => learnt.fail(NAME, WHY, &words, remedy, failure),
    }
}

/// Microseconds; or the words, the remedy and the failure.
fn median_of_reads(
    engine: &Engine,
    segment: &Segment,
    bytes: u64,
) -> Result<f64, (String, &'static str, Failure)> {
    let told = |error: Error| (error.to_string(), error.remedy(), error.into());
    let buffer = HostBuffer::new(bytes as usize).map_err(|e| told(e.into()))?;
    let region = engine.register(buffer.into_backing(), Access::LOCAL).map_err(told)?;
    let mut samples = Samples::with_capacity(READS);
    for _ in 0..READS {
        let started = Instant::now();
        let read = segment.read_and_wait(0, &region.whole()).map_err(told)?;
        read.map_err(|error| (error.to_string(), error.remedy(), error.into()))?;
        samples.add(started.elapsed());
    }
    let [_, median, _, _] = samples.summary();
    Ok(median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_a_name() {
        for (text, named) in [
            ("h:1", false),
            ("127.0.0.1:7411", false),
            ("[::1]:7411", false),
            ("h:1/n", true),
            ("h:1/a/b", true),
        ] {
            assert_eq!(Peer::parse(text), Ok(Peer { text: text.to_string(), named }));
        }
        for text in ["", "h", "h:", ":1", "h:99999", "h:x/n", "h:1/", "/n", "otseg1:AAAA"] {
            assert!(Peer::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_peer_that_goes_was_not_reached() {
        assert_eq!(unreached(Error::Closed).code(), 3);
        assert_eq!(unreached(Error::Config("x".to_string())).code(), 2);
        assert_eq!(unreached(Error::NameTaken("x".to_string())).code(), 4);
    }

    #[test]
    fn words_of_strangers_do_not_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\u{9b}é"), "a\\u{1b}[2Jb\\u{9b}é");
    }
}
