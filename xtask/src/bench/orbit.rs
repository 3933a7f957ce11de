//! OrbitTE under test, through its facade as a user would call it. Rule: slices are made in `prepare`; batches are made in the
//! timed loop, since every user makes them.

use super::engine::{Engine, Role};
use super::plan::{BUFFER_BYTES, Op, Plan};
use anyhow::Context;
use orbit_te::{Access, Batch, HostBuffer, HostOptions, PageSize, Region, Segment, Slice, Transfer};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;

pub(super) struct Orbit {
    engine: orbit_te::Engine,
    region: Region,
    token: Option<String>,
    segment: Option<Segment>,
    op: Op,
    slices: Vec<Vec<(u64, Slice)>>,
    under_way: VecDeque<Transfer>,
}

impl Orbit {
    pub(super) fn new(role: Role) -> anyhow::Result<Orbit> {
        // The same pages as the raw baseline's.
        let options = HostOptions { pages: PageSize::Huge, prefault_threads: 1 };
        let buffer = HostBuffer::with_options(BUFFER_BYTES, options)?;
        let builder = orbit_te::Engine::builder();
        let engine = match role {
            Role::Target => builder.start()?,
            Role::Initiator => builder.no_listen().start()?,
        };
        let region = engine.register(buffer.into_backing(), Access::SHARED)?;
        let token = match role {
            Role::Target => Some(engine.expose("bench", &region)?.to_token()?),
            Role::Initiator => None,
        };
        Ok(Orbit {
            engine,
            region,
            token,
            segment: None,
            op: Op::Write,
            slices: Vec::new(),
            under_way: VecDeque::new(),
        })
    }

    fn start(&self, slot: usize) -> anyhow::Result<Transfer> {
        let segment = self.segment.as_ref().context("not connected")?;
        let pieces = &self.slices[slot];
        let mut batch = Batch::with_capacity(pieces.len());
        for (offset, slice) in pieces {
            match self.op {
                Op::Write => batch.write(segment, *offset, slice),
                Op::Read => batch.read(segment, *offset, slice),
            };
        }
        Ok(self.engine.submit(batch)?)
    }
}

impl Engine for Orbit {
    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    fn endpoint(&self) -> anyhow::Result<Value> {
        Ok(json!({ "token": self.token }))
    }

    fn connect(&mut self, endpoint: &Value) -> anyhow::Result<()> {
        let token = endpoint["token"].as_str().context("the endpoint has no token")?;
        self.segment = Some(self.engine.open(token).wait(Duration::from_secs(10))?);
        Ok(())
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.region.write_at(offset as u64, bytes)?)
    }

    fn load(&mut self, offset: usize, into: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.region.read_at(offset as u64, into)?)
    }

    fn prepare(&mut self, op: Op, plan: &Plan, _depth: usize) -> anyhow::Result<()> {
        self.op = op;
        let piece = |slot, i| -> anyhow::Result<(u64, Slice)> {
            let offset = plan.offset(slot, i) as u64;
            Ok((offset, self.region.slice(offset, plan.block as u64)?))
        };
        let slot = |slot| (0..plan.batch).map(|i| piece(slot, i)).collect::<anyhow::Result<Vec<_>>>();
        self.slices = (0..plan.slots).map(slot).collect::<anyhow::Result<_>>()?;
        Ok(())
    }

    fn submit(&mut self, slot: usize) -> anyhow::Result<()> {
        self.start(slot)?.wait()?;
        Ok(())
    }

    fn has_depth(&self) -> bool {
        true
    }

    fn begin(&mut self, slot: usize) -> anyhow::Result<()> {
        let transfer = self.start(slot)?;
        self.under_way.push_back(transfer);
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.under_way.pop_front().context("nothing was begun")?.wait()?;
        Ok(())
    }
}
