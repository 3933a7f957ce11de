//! The rounds of `demo`: written, compared over there, read back, compared here. Rule: the clock runs while bytes move and stands while they
//! are made and checked.

use super::DEPTH;
use crate::child::Child;
use crate::console;
use crate::failure::Failure;
use crate::pattern::{Pattern, Span, random_seed};
use crate::record::{Record, Samples, gib};
use crate::routing::{Meeting, Way};
use crate::size::Size;
use crate::taken::Taken;
use crate::target;
use crate::verdict::{self, NotTaken};
use indicatif::ProgressBar;
use orbit_te::route::{Plan, RouteId, Why};
use orbit_te::{Access, Engine, OpKind, Region, Segment, Slice, TcpConfig, Transfer};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes of one request.
pub(super) const BLOCK: u64 = 16 << 20;

/// This process's side, made once for all routes.
pub(super) struct Course {
    // Dropped in this order: the engine last.
    segment: Segment,
    source: Region,
    sink: Region,
    engine: Engine,
    pattern: Pattern,
    deadline: Duration,
}

/// What one direction adds up to.
#[derive(Default)]
struct Sum {
    bytes: u64,
    time: Duration,
    cpu: f64,
    samples: Samples,
    taken: Taken,
}

/// One direction of a run: its numbers, and its route in words.
pub(super) struct Outcome {
    pub(super) record: Record,
    pub(super) route: String,
}

impl Course {
    pub(super) fn new(
        token: &str,
        lap: u64,
        deadline: Duration,
        meeting: &Meeting,
    ) -> Result<Course, Failure> {
        let engine = meeting.apply(Engine::builder().no_listen().deadline(deadline))?.start()?;
        let segment = engine.open(token).wait(deadline)?;
        let source = engine.register(target::memory(lap)?.into_backing(), Access::LOCAL)?;
        let sink = engine.register(target::memory(lap)?.into_backing(), Access::LOCAL)?;
        Ok(Course { segment, source, sink, engine, pattern: Pattern::new(), deadline })
    }

    /// What would be done with a block.
    pub(super) fn plan(&self, kind: OpKind, total: u64, demand: Option<RouteId>) -> Result<Plan, Failure> {
        Ok(self.segment.explain(kind, BLOCK.min(total), demand).wait(self.deadline)?)
    }

    /// Moves so many bytes each way, over one route if it is demanded.
    pub(super) fn run(
        &self,
        child: &mut Child,
        total: u64,
        demand: Option<RouteId>,
    ) -> Result<[Outcome; 2], Failure> {
        let Course { segment, source, sink, engine, pattern, .. } = self;
        let (way, lap, seed) = (Way { engine, demand }, source.len(), random_seed());
        let before = [self.plan(OpKind::Write, total, demand)?, self.plan(OpKind::Read, total, demand)?];
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
            pattern.fill(source, &span)?;
            bar.set_message("write");
            carry(child, source, length, &mut written, &bar, |at, slice| way.write(segment, at, slice))
                .map_err(|e| from(e, "writing"))?;
            bar.set_message("check");
            judge(child.check(span)?, position, "written to the target process")?;
            bar.set_message("read");
            carry(child, sink, length, &mut read, &bar, |at, slice| way.read(segment, at, slice))
                .map_err(|e| from(e, "reading"))?;
            bar.set_message("check");
            judge(pattern.check(sink, &span)?, position, "read back")?;
            position += length;
        }
        bar.finish_and_clear();
        let after = [self.plan(OpKind::Write, total, demand)?, self.plan(OpKind::Read, total, demand)?];
        Ok([
            outcome("write", written, segment, [&after[0], &before[0]]),
            outcome("read", read, segment, [&after[1], &before[1]]),
        ])
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
            sum.taken.add(&receipt);
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

fn outcome(op: &'static str, mut sum: Sum, segment: &Segment, plans: [&Plan; 2]) -> Outcome {
    let [min_us, p50_us, p99_us, max_us] = sum.samples.summary();
    let seconds = sum.time.as_secs_f64();
    let main = sum.taken.main();
    // The newest plan that says why this route is the usual one; one of another route says nothing of it.
    let lasts = |plan: &Plan| plan.why == Why::Demanded || !plan.why.is_passing();
    let fits = |plan: &&Plan| main.is_some() && plan.route.ok() == main && lasts(plan);
    let told = plans.into_iter().find(fits);
    let shares = sum.taken.shares();
    let mut words = match (told, main) {
        (Some(plan), _) => verdict::line(plan),
        (None, Some(route)) => format!("{route}, as was found while the bytes moved"),
        (None, None) => "none".to_string(),
    };
    if shares.len() > 1 {
        let all: Vec<String> = shares.iter().map(|s| format!("{} by {}", Size(s.bytes), s.route)).collect();
        words.push_str(&format!("; {}", all.join(", ")));
    }
    if sum.taken.retries > 0 {
        words.push_str(&format!("; tried again {} times", sum.taken.retries));
    }
    let record = Record {
        peer: "orbit-te",
        version: env!("CARGO_PKG_VERSION"),
        transport: main.map_or("none", RouteId::name),
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
        route: main.map(RouteId::name),
        routes: shares,
        retries: sum.taken.retries,
        why: told.map(|plan| plan.why.name()),
        not_taken: told.map(NotTaken::all),
    };
    Outcome { record, route: words }
}
