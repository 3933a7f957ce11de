//! One process of a pair: answers commands, one JSON object a line, until stdin ends. Rule: the protocol is that of the
//! other engines' workers; what those do not have (depth, `hot`, forms, checksums, `memory`) they are never sent.
//!
//! The first line says `ready`, `version`, `endpoint` and `depth`. Then, each with one line in reply: `connect`,
//! `fill` and `clear` (the buffer's first `span` bytes), `prepare`, `run`, `check`, `cpu`, `memory`, `quit`.

use super::engine::{Engine, Role};
use super::lists::partners;
use super::plan::{Case, Form, KIB, Op, Plan, Point, pattern_word};
use super::sample::percentile;
use super::usage;
use super::{EngineKind, orbit, raw};
use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant};

/// Moved before the clock starts.
const WARM: Duration = Duration::from_millis(30);
/// The end of the timed part of points so slow that the wanted number of submissions does not come together.
const TIMED_MAX: Duration = Duration::from_secs(3);
/// Latencies kept of one run: 4 MiB, and more than a run of a few seconds has.
const SAMPLES_MAX: usize = 1 << 20;
const SCRATCH_BYTES: usize = 64 * KIB;

#[derive(Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
enum Command {
    Connect {
        endpoint: Value,
    },
    Fill {
        seed: u64,
        span: usize,
    },
    Clear {
        span: usize,
    },
    Prepare {
        #[serde(flatten)]
        case: Case,
    },
    Run {
        min_s: f64,
        min_n: usize,
    },
    Check {
        seed: u64,
        block: usize,
        batch: usize,
        submissions: usize,
        #[serde(default)]
        hot: bool,
        #[serde(default)]
        form: Form,
    },
    Cpu,
    Memory,
    Quit,
}

/// Serves one engine, with a buffer of so many bytes, on stdin and stdout.
pub(super) fn run(kind: EngineKind, role: Role, bytes: usize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut say = |reply: Value| -> std::io::Result<()> {
        writeln!(out, "{reply}")?;
        out.flush()
    };
    let mut worker = match make(kind, role, bytes) {
        Ok(engine) => Worker::new(engine, role, bytes),
        Err(e) => return Ok(say(failure(&e))?),
    };
    say(json!({
        "ready": true, "version": worker.engine.version(), "endpoint": worker.engine.endpoint()?,
        "depth": worker.engine.has_depth(),
    }))?;
    for line in std::io::stdin().lines() {
        let command: Command = serde_json::from_str(&line?).context("a command that is none")?;
        let last = matches!(command, Command::Quit);
        say(worker.answer(command).unwrap_or_else(|e| failure(&e)))?;
        if last {
            break;
        }
    }
    Ok(())
}

fn make(kind: EngineKind, role: Role, bytes: usize) -> anyhow::Result<Box<dyn Engine>> {
    match kind {
        EngineKind::Raw => Ok(Box::new(raw::Raw::new(role, bytes)?)),
        EngineKind::OrbitTe => Ok(Box::new(orbit::Orbit::new(role, bytes)?)),
        EngineKind::SameHost => anyhow::bail!("the pair of one host has a worker of its own"),
    }
}

fn failure(error: &anyhow::Error) -> Value {
    json!({ "error": format!("{error:#}") })
}

struct Worker {
    engine: Box<dyn Engine>,
    role: Role,
    bytes: usize,
    case: Case,
    latencies_ns: Vec<u32>,
    scratch: Vec<u8>,
}

impl Worker {
    fn new(engine: Box<dyn Engine>, role: Role, bytes: usize) -> Worker {
        Worker {
            engine,
            role,
            bytes,
            case: Case::plain(Op::Write, Point { block: 4 * KIB, batch: 1 }),
            latencies_ns: Vec::with_capacity(SAMPLES_MAX),
            scratch: vec![0; SCRATCH_BYTES],
        }
    }

    fn answer(&mut self, command: Command) -> anyhow::Result<Value> {
        let done = json!({ "ok": true });
        Ok(match command {
            Command::Connect { endpoint } => {
                self.engine.connect(&endpoint)?;
                done
            }
            Command::Fill { seed, span } => {
                self.fill(span, |index| pattern_word(index, seed))?;
                done
            }
            Command::Clear { span } => {
                self.fill(span, |_| 0)?;
                done
            }
            Command::Prepare { case } => {
                self.case = case;
                self.engine.prepare(&case)?;
                done
            }
            Command::Run { min_s, min_n } => self.run(Duration::try_from_secs_f64(min_s)?, min_n)?,
            Command::Check { seed, block, batch, submissions, hot, form } => {
                let plan = Plan::new(block, batch, hot);
                let verified = match form {
                    Form::Blocks => self.check(&plan, seed, submissions)?,
                    Form::List => self.check_list(&plan, seed)?,
                    Form::Notification => self.engine.notifications_taken()? == submissions,
                };
                json!({ "verified": verified })
            }
            Command::Cpu => json!({ "cpu_s": usage::cpu_seconds()? }),
            Command::Memory => {
                json!({ "beside_bytes": usage::peak_resident_bytes()?.saturating_sub(self.bytes as u64) })
            }
            Command::Quit => done,
        })
    }

    fn fill(&mut self, span: usize, word: impl Fn(u64) -> u64) -> anyhow::Result<()> {
        for at in (0..span).step_by(SCRATCH_BYTES) {
            let length = SCRATCH_BYTES.min(span - at);
            let words = self.scratch[..length].chunks_exact_mut(8);
            for (index, bytes) in (at as u64 / 8..).zip(words) {
                bytes.copy_from_slice(&word(index).to_le_bytes());
            }
            self.engine.store(at, &self.scratch[..length])?;
        }
        Ok(())
    }

    /// Whether every block of the first `submissions` submissions holds the pattern, and every gap is zero.
    fn check(&mut self, plan: &Plan, seed: u64, submissions: usize) -> anyhow::Result<bool> {
        let span = submissions.min(plan.slots) * plan.batch * plan.stride;
        self.holds(span, |offset| {
            if offset % plan.stride < plan.block { pattern_word(offset as u64 / 8, seed) } else { 0 }
        })
    }

    /// Whether every page that a piece was written to holds the piece, and every other is zero.
    fn check_list(&mut self, plan: &Plan, seed: u64) -> anyhow::Result<bool> {
        let partners = partners(self.role, plan.batch);
        self.holds(plan.span(), |offset| match partners[offset / plan.block] {
            Some(page) => {
                let source = page as usize * plan.block + offset % plan.block;
                pattern_word(source as u64 / 8, seed)
            }
            None => 0,
        })
    }

    /// Whether the buffer's first `span` bytes are the words that are wanted at their offsets.
    fn holds(&mut self, span: usize, want: impl Fn(usize) -> u64) -> anyhow::Result<bool> {
        for at in (0..span).step_by(SCRATCH_BYTES) {
            let length = SCRATCH_BYTES.min(span - at);
            self.engine.load(at, &mut self.scratch[..length])?;
            let words = self.scratch[..length].chunks_exact(8);
            let good =
                (at..).step_by(8).zip(words).all(|(offset, bytes)| bytes == want(offset).to_le_bytes());
            if !good {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn run(&mut self, min: Duration, min_n: usize) -> anyhow::Result<Value> {
        self.latencies_ns.clear();
        let cpu = usage::cpu_seconds()?;
        let (submissions, wall) =
            if self.case.depth > 1 { self.run_deep(min, min_n) } else { self.run_single(min, min_n) }?;
        let cpu = usage::cpu_seconds()? - cpu;
        let timed = self.latencies_ns.len();
        self.latencies_ns.sort_unstable();
        let costs = self.engine.list_costs();
        let us = |q| percentile(&self.latencies_ns, q).map(|ns| f64::from(ns) / 1e3);
        Ok(json!({
            "submissions": submissions, "timed": timed, "wall_s": wall.as_secs_f64(),
            "p50_us": us(0.50), "p99_us": us(0.99), "cpu_s": cpu,
            "build_ns": costs.build_ns, "post_ms": costs.post_ms,
        }))
    }

    /// One submission at a time.
    fn run_single(&mut self, min: Duration, min_n: usize) -> anyhow::Result<(usize, Duration)> {
        let slots = self.case.plan().slots;
        let mut n = 0;
        let warm = Instant::now();
        while n < 1 || warm.elapsed() < WARM {
            self.engine.submit(n % slots)?;
            n += 1;
        }
        let start = Instant::now();
        let mut now = start;
        while wants_more(now - start, min, self.latencies_ns.len(), min_n) {
            let begun = Instant::now();
            self.engine.submit(n % slots)?;
            now = Instant::now();
            self.latencies_ns.push(nanos(now - begun));
            n += 1;
        }
        Ok((n, now - start))
    }

    /// `depth` submissions in flight. The clock runs from an empty pipeline to an empty pipeline.
    fn run_deep(&mut self, min: Duration, min_n: usize) -> anyhow::Result<(usize, Duration)> {
        let (slots, depth) = (self.case.plan().slots, self.case.depth);
        let mut begun = VecDeque::with_capacity(depth);
        let mut n = 0;
        let warm = Instant::now();
        while n < depth || warm.elapsed() < WARM {
            if begun.len() == depth {
                self.engine.finish()?;
                begun.pop_front();
            }
            self.engine.begin(n % slots)?;
            begun.push_back(warm);
            n += 1;
        }
        while begun.pop_front().is_some() {
            self.engine.finish()?;
        }
        let start = Instant::now();
        let mut now = start;
        loop {
            let count = self.latencies_ns.len() + begun.len();
            let more = wants_more(now - start, min, count, min_n.max(2 * depth));
            while more && begun.len() < depth {
                begun.push_back(now);
                self.engine.begin(n % slots)?;
                n += 1;
            }
            let Some(then) = begun.pop_front() else { break };
            self.engine.finish()?;
            now = Instant::now();
            self.latencies_ns.push(nanos(now - then));
        }
        Ok((n, now - start))
    }
}

fn wants_more(elapsed: Duration, min: Duration, count: usize, min_n: usize) -> bool {
    count < SAMPLES_MAX && (elapsed < min || (count < min_n && elapsed < TIMED_MAX))
}

fn nanos(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}
