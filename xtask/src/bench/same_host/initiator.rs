//! The initiator: makes the submissions of every contender of the pair, and times them. Rule: lists, and the slices of batches, are made before
//! the clock runs; batches and single requests are made in the timed loop, since every user makes them. After each run one more submission, with fresh bytes, is compared.

use super::super::lists::pages;
use super::super::plan::{Case, Form, MIB, Op};
use super::super::sample::percentile;
use super::super::usage;
use super::proof::Proof;
use super::walk::{BYTES, Piece, submissions};
use super::way::Way;
use super::worker::{Endpoint, buffer};
use anyhow::{Context, bail, ensure};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use orbit_te::{
    Access, Batch, Engine, HostBuffer, Layout, OpKind, Prepared, Receipt, Region, Segment, Sharing, Slice,
};
use serde_json::{Value, json};
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Moved before the clock starts.
const WARM: Duration = Duration::from_millis(30);
const SUBMISSIONS_MIN: usize = 3;
const TIMED_MAX: Duration = Duration::from_secs(3);
const SAMPLES_MAX: usize = 1 << 20;
/// By which all pages of both sides are touched once.
const STEP: usize = 64 << 20;

pub(super) struct Initiator {
    engine: Engine,
    region: Region,
    owned: Segment,
    plain: Segment,
    /// The target's process, and where its plain memory is.
    process: Pid,
    plain_address: usize,
    /// Of the baselines: pages of the same kind as the region's.
    here: HostBuffer,
    there: HostBuffer,
    proof: Proof,
    latencies_ns: Vec<u32>,
}

/// Everything that a timed submission needs.
struct Prepare {
    pieces: Vec<Vec<Piece>>,
    slices: Vec<Vec<Slice>>,
    list: Option<Prepared>,
}

impl Prepare {
    /// Whether a submission is one request that the calling thread may carry out itself.
    fn is_short(&self, case: &Case) -> bool {
        self.list.is_none() && case.batch == 1 && case.block <= MIB
    }
}

impl Initiator {
    pub(super) fn new(endpoint: Endpoint) -> anyhow::Result<Initiator> {
        let engine = Engine::builder().no_listen().start()?;
        let region = engine.register(buffer(Sharing::Always)?.into_backing(), Access::LOCAL)?;
        let owned = engine.open(&endpoint.owned).wait(ANSWER_MAX)?;
        let plain = engine.open(&endpoint.plain).wait(ANSWER_MAX)?;
        ensure!(owned.same_host(), "the target was not met on this host");
        let initiator = Initiator {
            proof: Proof::new(&engine)?,
            engine,
            region,
            owned,
            plain,
            process: Pid::from_raw(endpoint.process),
            plain_address: endpoint.plain_address,
            here: buffer(Sharing::Always)?,
            there: buffer(Sharing::Always)?,
            latencies_ns: Vec::with_capacity(SAMPLES_MAX),
        };
        initiator.touch_all()?;
        Ok(initiator)
    }

    /// Both sides' page tables have every page afterwards.
    fn touch_all(&self) -> anyhow::Result<()> {
        for at in (0..BYTES).step_by(STEP) {
            let slice = self.region.slice(at as u64, STEP.min(BYTES - at) as u64)?;
            for way in [Way::Shm, Way::ProcessVm] {
                let mut batch = Batch::new();
                batch.write(self.segment(way), at as u64, &slice);
                way.demand().inspect(|route| {
                    batch.route(*route);
                });
                self.engine.submit(batch)?.wait()?;
            }
        }
        Ok(())
    }

    fn segment(&self, way: Way) -> &Segment {
        if way.is_plain() { &self.plain } else { &self.owned }
    }

    /// One repetition.
    pub(super) fn run(&mut self, way: Way, case: &Case, min: Duration) -> anyhow::Result<Value> {
        let all = usage::cpu_seconds()?;
        let prepared = self.prepare(way, case)?;
        let count = prepared.pieces.len();
        self.latencies_ns.clear();
        let (mut n, mut elsewhere) = (0, 0);
        let warm = Instant::now();
        while n < 1 || warm.elapsed() < WARM {
            self.submit(way, case, &prepared, n % count)?;
            n += 1;
        }
        let cpu = usage::cpu_seconds()?;
        let start = Instant::now();
        let mut now = start;
        while wants_more(now - start, min, self.latencies_ns.len()) {
            // Where it lies is the series' business, and not timed.
            std::hint::black_box(prepared.pieces[n % count][0]);
            let begun = Instant::now();
            let went = self.submit(way, case, &prepared, n % count)?;
            now = Instant::now();
            self.latencies_ns.push(u32::try_from((now - begun).as_nanos()).unwrap_or(u32::MAX));
            elsewhere += usize::from(!went);
            n += 1;
        }
        let cpu = usage::cpu_seconds()? - cpu;
        let verified = self.verify(way, case, &prepared, n % count)?;
        let timed = self.latencies_ns.len();
        self.latencies_ns.sort_unstable();
        let us = |q| percentile(&self.latencies_ns, q).map(|ns| f64::from(ns) / 1e3);
        Ok(json!({
            "timed": timed, "wall_s": (now - start).as_secs_f64(), "p50_us": us(0.50), "p99_us": us(0.99),
            "cpu_s": cpu, "cpu_all_s": usage::cpu_seconds()? - all, "verified": verified, "elsewhere": elsewhere,
        }))
    }

    fn prepare(&self, way: Way, case: &Case) -> anyhow::Result<Prepare> {
        let pieces = submissions(case);
        if matches!(way, Way::Memcpy | Way::Call) {
            return Ok(Prepare { pieces, slices: Vec::new(), list: None });
        }
        if case.form == Form::List {
            let kind = match case.op {
                Op::Write => OpKind::Write,
                Op::Read => OpKind::Read,
            };
            let sides = [super::super::engine::Role::Initiator, super::super::engine::Role::Target];
            let [here, there] = sides.map(|side| pages(side, case.batch));
            let layout = |pages| Layout::Pages { offset: 0, page_bytes: case.block as u64, pages };
            let (pool, segment) = (self.region.whole(), self.segment(way));
            let list = self.engine.prepare(kind, &pool, layout(&here), segment, layout(&there))?;
            return Ok(Prepare { pieces, slices: Vec::new(), list: Some(list) });
        }
        let slice = |piece: &Piece| self.region.slice(piece.here as u64, piece.length as u64);
        let slices = pieces.iter().map(|all| all.iter().map(slice).collect::<Result<Vec<_>, _>>());
        Ok(Prepare { slices: slices.collect::<Result<_, _>>()?, pieces, list: None })
    }

    /// Makes one submission and waits; whether all its bytes went the way that was meant.
    fn submit(&mut self, way: Way, case: &Case, prepared: &Prepare, at: usize) -> anyhow::Result<bool> {
        let pieces = &prepared.pieces[at];
        match way {
            Way::Memcpy => {
                self.copy(case.op, pieces);
                Ok(true)
            }
            Way::Call => {
                self.call(case.op, pieces)?;
                Ok(true)
            }
            Way::Chosen => self.chosen(&self.owned, Way::Shm, case.op, pieces[0]),
            // Nobody who moves so little makes a batch of one, and waits.
            Way::ProcessVm if prepared.is_short(case) => self.chosen(&self.plain, way, case.op, pieces[0]),
            Way::Shm if prepared.is_short(case) => self.chosen(&self.owned, way, case.op, pieces[0]),
            Way::Shm | Way::ProcessVm | Way::Tcp => {
                let receipt = self.batch(way, case, prepared, at)?;
                let bytes = (case.block * case.batch) as u64;
                ensure!(
                    receipt.bytes == bytes
                        && receipt.routes.iter().all(|(route, _)| Some(route) == way.demand()),
                    "{} bytes of {bytes} by {:?}",
                    receipt.bytes,
                    receipt.route
                );
                Ok(true)
            }
        }
    }

    /// One request without a handle, and without a demand; whether it took the route that is meant.
    fn chosen(&self, segment: &Segment, meant: Way, op: Op, piece: Piece) -> anyhow::Result<bool> {
        let slice = self.region.slice(piece.here as u64, piece.length as u64)?;
        let receipt = match op {
            Op::Write => segment.write_and_wait(piece.there as u64, &slice)??,
            Op::Read => segment.read_and_wait(piece.there as u64, &slice)??,
        };
        // Now and then a route is tried that is not the best one known; that is a part of choosing.
        Ok(receipt.route == meant.demand())
    }

    fn batch(&self, way: Way, case: &Case, prepared: &Prepare, at: usize) -> anyhow::Result<Receipt> {
        let segment = self.segment(way);
        let mut batch = Batch::with_capacity(if prepared.list.is_some() { 0 } else { case.batch });
        if let Some(list) = &prepared.list {
            batch.list(list);
        } else {
            for (piece, slice) in prepared.pieces[at].iter().zip(&prepared.slices[at]) {
                match case.op {
                    Op::Write => batch.write(segment, piece.there as u64, slice),
                    Op::Read => batch.read(segment, piece.there as u64, slice),
                };
            }
        }
        if let Some(route) = way.demand() {
            batch.route(route);
        }
        Ok(self.engine.submit(batch)?.wait()?)
    }

    fn copy(&mut self, op: Op, pieces: &[Piece]) {
        for Piece { here, there, length } in pieces.iter().copied() {
            let (here, there) = (
                &mut self.here.as_mut_slice()[here..][..length],
                &mut self.there.as_mut_slice()[there..][..length],
            );
            match op {
                Op::Write => there.copy_from_slice(here),
                Op::Read => here.copy_from_slice(there),
            }
        }
    }

    fn call(&mut self, op: Op, pieces: &[Piece]) -> anyhow::Result<()> {
        let [Piece { here, there, length }] = *pieces else { bail!("the bare call moves one block") };
        let remote = [RemoteIoVec { base: self.plain_address + there, len: length }];
        let local = &mut self.here.as_mut_slice()[here..][..length];
        let moved = match op {
            Op::Write => process_vm_writev(self.process, &[IoSlice::new(local)], &remote)?,
            Op::Read => process_vm_readv(self.process, &mut [IoSliceMut::new(local)], &remote)?,
        };
        ensure!(moved == length, "the call moved {moved} bytes of {length}");
        Ok(())
    }

    /// Whether a submission of fresh bytes puts all of them where they belong; none for the baselines.
    fn verify(
        &mut self,
        way: Way,
        case: &Case,
        prepared: &Prepare,
        at: usize,
    ) -> anyhow::Result<Option<bool>> {
        if matches!(way, Way::Memcpy | Way::Call) {
            return Ok(None);
        }
        let segment = self.segment(way).clone();
        let (seed, pieces) = (self.proof.next_seed(), &prepared.pieces[at]);
        self.proof.fill(&self.engine, &self.region, &segment, case.op, pieces, seed)?;
        self.submit(way, case, prepared, at).context("the submission that is compared")?;
        Ok(Some(self.proof.holds(&self.engine, &self.region, &segment, case.op, pieces, seed)?))
    }
}

fn wants_more(elapsed: Duration, min: Duration, count: usize) -> bool {
    count < SAMPLES_MAX && (elapsed < min || (count < SUBMISSIONS_MIN && elapsed < TIMED_MAX))
}
