//! The two sides of a bench: engine, buffers and target, and one point measured with them. Rule: bytes are made before the clock
//! runs and compared after it has stopped, by the side that received them.

use super::OpName;
use super::load::{Field, Runner};
use super::plan::Plan;
use crate::child::Child;
use crate::console;
use crate::failure::Failure;
use crate::pattern::{Pattern, Span, random_seed};
use crate::place;
use crate::record::{Record, Samples, gib};
use crate::routing::{Routing, Way};
use crate::taken::Taken;
use crate::target;
use orbit_te::route::RouteId;
use orbit_te::{Access, Engine, Region, Segment, TcpConfig};
use std::time::Duration;

/// For our own target's answers and every transfer.
const DEADLINE: Duration = Duration::from_secs(30);
/// Bytes moved at a time to and from a peer for checking.
const CHECK_BLOCK: u64 = 16 << 20;

pub(crate) struct Stage {
    // Dropped in this order: the engine says goodbye before the target ends.
    segment: Segment,
    region: Region,
    engine: Engine,
    child: Option<Child>,
    pattern: Pattern,
    demand: Option<RouteId>,
}

impl Stage {
    /// With a target process of our own.
    pub(crate) fn with_child(bytes: u64, lanes: u32, routing: &Routing) -> Result<Stage, Failure> {
        let child = Child::start(bytes, DEADLINE, routing.meeting())?;
        let token = child.token.clone();
        Stage::new(&token, &[], (bytes, lanes), routing, Some(child))
    }

    /// With a segment that somebody serves; of it, and of our buffer, so many bytes are used at most.
    pub(crate) fn with_peer(
        peer: &str,
        ops: &[OpName],
        bytes: u64,
        lanes: u32,
        routing: &Routing,
    ) -> Result<Stage, Failure> {
        Stage::new(peer, ops, (bytes, lanes), routing, None)
    }

    fn new(
        at: &str,
        ops: &[OpName],
        (bytes, lanes): (u64, u32),
        routing: &Routing,
        child: Option<Child>,
    ) -> Result<Stage, Failure> {
        let tcp = TcpConfig { lanes, ..TcpConfig::default() };
        let builder = Engine::builder().no_listen().deadline(DEADLINE).tcp(tcp);
        let engine = routing.apply(builder)?.start()?;
        for op in ops {
            place::open(&engine, at, right(*op))?;
        }
        let segment = place::open(&engine, at, Access::empty())?;
        let memory = target::memory(bytes.min(segment.len()))?;
        let region = engine.register(memory.into_backing(), Access::LOCAL)?;
        Ok(Stage { segment, region, engine, child, pattern: Pattern::new(), demand: routing.route })
    }

    /// The bytes that a point may use on each side.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.region.len()
    }

    /// Measures one point.
    pub(crate) fn measure(
        &mut self,
        plan: &Plan,
        seconds: f64,
        verify: bool,
        lanes: u32,
    ) -> Result<Record, Failure> {
        let result = self.try_measure(plan, seconds, verify, lanes);
        result.map_err(|failure| match &mut self.child {
            Some(child) => child.blame(failure),
            None => failure,
        })
    }

    fn try_measure(
        &mut self,
        plan: &Plan,
        seconds: f64,
        verify: bool,
        lanes: u32,
    ) -> Result<Record, Failure> {
        // A peer's bytes can be compared only if we may write and read them.
        let verify = verify && (self.child.is_some() || self.may_compare());
        let seed = random_seed();
        self.prepare(plan, seed, verify)?;
        let mut runners = Runner::all(plan, seconds);
        let way = Way { engine: &self.engine, demand: self.demand };
        let field = Field { way, segment: &self.segment, region: &self.region, plan };
        field.run(&mut runners, Duration::from_secs_f64((seconds / 5.0).min(0.3)))?;
        let warmed: u64 = runners.iter().map(|r| r.submissions).sum();
        for runner in &mut runners {
            runner.samples.clear();
            runner.taken = Taken::default();
        }

        let cpu = cpu(&mut self.child)?;
        let time = field.run(&mut runners, Duration::from_secs_f64(seconds))?;
        let cpu = self::cpu(&mut self.child)? - cpu;
        if verify {
            self.compare(plan, &runners, seed)?;
        }

        let submissions = runners.iter().map(|r| r.submissions).sum::<u64>() - warmed;
        let bytes = submissions * plan.batch as u64 * plan.block;
        let mut samples = Samples::default();
        runners.iter().for_each(|r| samples.append(&r.samples));
        let [min_us, p50_us, p99_us, max_us] = samples.summary();
        let mut taken = Taken::default();
        runners.iter().for_each(|r| taken.join(&r.taken));
        let route = taken.main().map(RouteId::name);
        Ok(Record {
            peer: "orbit-te",
            version: env!("CARGO_PKG_VERSION"),
            transport: route.unwrap_or("none"),
            op: plan.op.word(),
            block_bytes: plan.block,
            batch: plan.batch,
            gib_per_s: gib(bytes) / time.as_secs_f64(),
            p50_us,
            p99_us,
            cpu_s_per_gib: cpu / gib(bytes),
            verified: verify.then_some(true),
            depth: plan.depth,
            threads: plan.threads,
            lanes,
            bytes,
            seconds: time.as_secs_f64(),
            submissions,
            min_us,
            max_us,
            buffer_bytes: plan.total(),
            cpu_of: if self.child.is_some() { "both" } else { "initiator" },
            route,
            routes: taken.shares(),
            retries: taken.retries,
            why: None,
            not_taken: None,
        })
    }

    fn may_compare(&self) -> bool {
        let may = self.segment.access().contains(Access::REMOTE_READ | Access::REMOTE_WRITE);
        if !may {
            console::note("not verified: comparing needs the right to read and to write the peer's segment");
        }
        may
    }

    /// Puts the bytes to move at the sending side, and others at the receiving one.
    fn prepare(&mut self, plan: &Plan, seed: u64, verify: bool) -> Result<(), Failure> {
        let all = |seed| Span::one(seed, 0, 0, plan.total());
        let (ours, others) = if plan.op == OpName::Write { (seed, !seed) } else { (!seed, seed) };
        match &mut self.child {
            Some(child) => child.fill(all(others))?,
            None if verify => {
                self.pattern.fill(&self.region, &all(others))?;
                self.exchange(plan.total(), OpName::Write)?;
            }
            None => {}
        }
        self.pattern.fill(&self.region, &all(ours))?;
        Ok(())
    }

    /// Compares every block that was moved.
    fn compare(&mut self, plan: &Plan, runners: &[Runner], seed: u64) -> Result<(), Failure> {
        let at_target = plan.op == OpName::Write;
        if at_target && self.child.is_none() {
            self.pattern.fill(&self.region, &Span::one(!seed, 0, 0, plan.total()))?;
            self.exchange(plan.total(), OpName::Read)?;
        }
        for (thread, runner) in runners.iter().enumerate() {
            let offset = plan.base(thread);
            let count = plan.touched(runner.submissions);
            let span =
                Span { seed, position: offset, offset, length: plan.block, stride: plan.stride(), count };
            let wrong = match &mut self.child {
                Some(child) if at_target => child.check(span)?,
                _ => self.pattern.check(&self.region, &span)?,
            };
            if let Some(at) = wrong {
                let what = format!("{} of blocks of {} bytes", plan.op.word(), plan.block);
                return Err(Failure::Transfer(format!("{what}: the byte at offset {at} is wrong")));
            }
        }
        Ok(())
    }

    /// Copies the first bytes of our buffer to the peer's, or back.
    fn exchange(&self, bytes: u64, op: OpName) -> Result<(), Failure> {
        for at in (0..bytes).step_by(CHECK_BLOCK as usize) {
            let slice = self.region.slice(at, CHECK_BLOCK.min(bytes - at))?;
            match op {
                OpName::Write => self.segment.write(at, &slice)?.wait()?,
                OpName::Read => self.segment.read(at, &slice)?.wait()?,
            };
        }
        Ok(())
    }
}

fn right(op: OpName) -> Access {
    if op == OpName::Write { Access::REMOTE_WRITE } else { Access::REMOTE_READ }
}

/// CPU time of the processes whose time can be known.
fn cpu(child: &mut Option<Child>) -> Result<f64, Failure> {
    match child {
        Some(child) => child.cpu_of_both(),
        None => target::cpu_seconds(),
    }
}
