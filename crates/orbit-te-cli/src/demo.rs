//! `orbit-te demo`: bytes between two processes, every one checked by the side that received it. Rule: the clock runs while bytes
//! move and stands while they are made and checked.

use crate::child::Child;
use crate::console;
use crate::failure::Failure;
use crate::pattern::{Pattern, Span, random_seed};
use crate::record::{Record, Samples, gib};
use crate::size::{Size, nonzero};
use crate::target;
use clap::Args;
use indicatif::ProgressBar;
use orbit_te::{Access, Engine, Region, Segment, Slice, TcpConfig, Transfer};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const BLOCK: u64 = 16 << 20;
/// What is written, checked, read back and checked before the next round: the size of each of the three buffers.
const LAP: u64 = 128 << 20;
/// Blocks under way at a time.
const DEPTH: usize = 2;

/// Move bytes between two processes on this machine, and check every one.
///
/// Starts a second process, writes test bytes into its memory in blocks of 16 MiB, two at a time, has that process compare all of
/// them, reads them back into other memory and compares them here; this in rounds of 128 MiB, each with other bytes, until --bytes
/// have gone each way. Each process uses less than 300 MiB. The columns of the table are defined in `orbit-te bench --help`; the
/// clock stands while bytes are made and checked.
///
/// Ends with exit code 1 and the first cause when a byte is wrong, a transfer fails or the second process dies.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// How much to write, and to read.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = nonzero)]
    bytes: Size,
    /// Print JSON lines instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds within which every transfer, and every answer of the second process, must come.
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,
    /// Print the second process's id to stderr when bytes begin to move.
    #[arg(long, hide = true)]
    show_target: bool,
}

/// What one direction adds up to.
#[derive(Default)]
struct Sum {
    bytes: u64,
    time: Duration,
    cpu: f64,
    samples: Samples,
}

impl Demo {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let deadline = Duration::from_secs(self.deadline);
        let lap = self.bytes.0.min(LAP);
        let mut child = Child::start(lap, deadline)?;
        if self.show_target {
            console::note(format_args!("target process {}", child.pid()));
        }
        let result = self.rounds(&mut child, lap, deadline);
        let records = result.map_err(|failure| child.blame(failure))?;
        if !self.json {
            console::say(Record::HEAD)?;
        }
        records.iter().try_for_each(|r| console::say(if self.json { r.json() } else { r.row() }))?;
        if !self.json {
            let size = self.bytes;
            console::say(format_args!(
                "{size} each way between two processes, every byte compared by the side that received it"
            ))?;
        }
        Ok(())
    }

    fn rounds(&self, child: &mut Child, lap: u64, deadline: Duration) -> Result<[Record; 2], Failure> {
        let engine = Engine::builder().no_listen().deadline(deadline).start()?;
        let segment = engine.open(&child.token).wait(deadline)?;
        let source = engine.register(target::memory(lap)?.into_backing(), Access::LOCAL)?;
        let sink = engine.register(target::memory(lap)?.into_backing(), Access::LOCAL)?;
        let (pattern, seed, total) = (Pattern::new(), random_seed(), self.bytes.0);
        let blocks = total.div_ceil(BLOCK) as usize;
        let sum = || Sum { samples: Samples::with_capacity(blocks), ..Sum::default() };
        let (mut written, mut read) = (sum(), sum());
        let bar = console::bar(total * 2);

        let mut position = 0;
        while position < total {
            let length = lap.min(total - position);
            let span = Span::one(seed, position, 0, length);
            let from = |failure: Failure, verb: &str| {
                failure.while_doing(format_args!("{verb} bytes {position}..{} of {total}", position + length))
            };
            pattern.fill(&source, &span)?;
            bar.set_message("write");
            carry(child, &source, length, &mut written, &bar, |at, slice| segment.write(at, slice))
                .map_err(|e| from(e, "writing"))?;
            bar.set_message("check");
            judge(child.check(span)?, position, "written to the target process")?;
            bar.set_message("read");
            carry(child, &sink, length, &mut read, &bar, |at, slice| segment.read(at, slice))
                .map_err(|e| from(e, "reading"))?;
            bar.set_message("check");
            judge(pattern.check(&sink, &span)?, position, "read back")?;
            position += length;
        }
        bar.finish_and_clear();
        Ok([record("write", written, &segment), record("read", read, &segment)])
    }
}

/// Moves a round's blocks, a few at a time.
fn carry(
    child: &mut Child,
    region: &Region,
    length: u64,
    sum: &mut Sum,
    bar: &ProgressBar,
    start: impl Fn(u64, &Slice) -> Result<Transfer, orbit_te::Error>,
) -> Result<(), Failure> {
    let cpu = child.cpu_of_both()?;
    let started = Instant::now();
    let mut flying: VecDeque<(Instant, Transfer)> = VecDeque::with_capacity(DEPTH);
    let mut next = 0;
    while next < length || !flying.is_empty() {
        while next < length && flying.len() < DEPTH {
            let size = BLOCK.min(length - next);
            flying.push_back((Instant::now(), start(next, &region.slice(next, size)?)?));
            next += size;
        }
        if let Some((begun, transfer)) = flying.pop_front() {
            let receipt = transfer.wait()?;
            sum.samples.add(begun.elapsed());
            bar.inc(receipt.bytes);
        }
    }
    sum.time += started.elapsed();
    sum.cpu += child.cpu_of_both()? - cpu;
    sum.bytes += length;
    Ok(())
}

fn judge(wrong: Option<u64>, position: u64, what: &str) -> Result<(), Failure> {
    match wrong {
        None => Ok(()),
        Some(at) => Err(Failure::Transfer(format!("byte {} {what} is wrong", position + at))),
    }
}

fn record(op: &'static str, mut sum: Sum, segment: &Segment) -> Record {
    let [min_us, p50_us, p99_us, max_us] = sum.samples.summary();
    let seconds = sum.time.as_secs_f64();
    Record {
        peer: "orbit-te",
        version: env!("CARGO_PKG_VERSION"),
        transport: "tcp",
        op,
        block_bytes: BLOCK.min(sum.bytes),
        batch: 1,
        gib_per_s: gib(sum.bytes) / seconds,
        p50_us,
        p99_us,
        cpu_s_per_gib: sum.cpu / gib(sum.bytes),
        verified: Some(true),
        depth: DEPTH,
        threads: 1,
        lanes: TcpConfig::default().lanes,
        bytes: sum.bytes,
        seconds,
        submissions: sum.bytes.div_ceil(BLOCK),
        min_us,
        max_us,
        buffer_bytes: segment.len(),
        cpu_of: "both",
    }
}
