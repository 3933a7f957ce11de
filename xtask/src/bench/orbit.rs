//! OrbitTE under test, through its facade as a user would call it. Rule: slices and lists are made in `prepare`; batches are made
//! in the timed loop, since every user makes them.

use super::engine::{Engine, ListCosts, Role};
use super::inbox::{Inbox, note};
use super::lists::pages;
use super::plan::{Case, Form, Op, Point};
use super::sample::median;
use anyhow::Context;
use orbit_te::{
    Access, Batch, HostBuffer, HostOptions, Layout, OpKind, PageSize, Prepared, Region, Segment, Sharing,
    Slice, Transfer,
};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How often a list is built; the costs of building are the median's.
const BUILDS: usize = 5;
/// Posts of a list for which there is room; more than a run of a few seconds has.
const POSTS: usize = 1024;
const NAME: &str = "bench";
const ANSWER_MAX: Duration = Duration::from_secs(10);

pub(super) struct Orbit {
    engine: orbit_te::Engine,
    region: Region,
    token: Option<String>,
    /// At the target.
    inbox: Option<Inbox>,
    segment: Option<Segment>,
    case: Case,
    slices: Vec<Vec<(u64, Slice)>>,
    list: Option<Prepared>,
    /// For each piece, of each time that the list was built.
    builds_ns: Vec<f64>,
    /// How long each post of it held this thread.
    posts_ms: Vec<f64>,
    payload: Vec<u8>,
    /// Notifications sent so far.
    sent: u64,
    under_way: VecDeque<Transfer>,
}

impl Orbit {
    pub(super) fn new(role: Role, bytes: usize) -> anyhow::Result<Orbit> {
        // The same pages as the raw baseline's.
        let options = HostOptions { pages: PageSize::Huge, prefault_threads: 1, sharing: Sharing::Never };
        let buffer = HostBuffer::with_options(bytes, options)?;
        // What is measured here is TCP; the ways to processes of the same host have a series of their own.
        let builder = orbit_te::Engine::builder().shm(None);
        let engine = match role {
            Role::Target => builder.start()?,
            Role::Initiator => builder.no_listen().start()?,
        };
        let region = engine.register(buffer.into_backing(), Access::SHARED)?;
        let (token, inbox) = match role {
            Role::Target => {
                let token = engine.expose("bench", &region)?.to_token()?;
                let notifications = engine.notifications().context("the notifications are taken")?;
                (Some(token), Some(Inbox::start(notifications)?))
            }
            Role::Initiator => (None, None),
        };
        Ok(Orbit {
            engine,
            region,
            token,
            inbox,
            segment: None,
            case: Case::plain(Op::Write, Point { block: bytes, batch: 1 }),
            slices: Vec::new(),
            list: None,
            builds_ns: Vec::with_capacity(BUILDS),
            posts_ms: Vec::with_capacity(POSTS),
            payload: Vec::new(),
            sent: 0,
            under_way: VecDeque::new(),
        })
    }

    fn start(&self, slot: usize) -> anyhow::Result<Transfer> {
        let segment = self.segment.as_ref().context("not connected")?;
        let pieces = &self.slices[slot];
        let mut batch = Batch::with_capacity(pieces.len());
        for (offset, slice) in pieces {
            match self.case.op {
                Op::Write => batch.write(segment, *offset, slice),
                Op::Read => batch.read(segment, *offset, slice),
            };
        }
        batch.verify(self.case.checksum);
        Ok(self.engine.submit(batch)?)
    }

    fn submit_list(&mut self) -> anyhow::Result<()> {
        let list = self.list.as_ref().context("no list was prepared")?;
        let begun = Instant::now();
        let mut batch = Batch::new();
        batch.list(list).verify(self.case.checksum);
        let transfer = self.engine.submit(batch)?;
        self.posts_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        transfer.wait()?;
        Ok(())
    }

    fn notify(&mut self) -> anyhow::Result<()> {
        let segment = self.segment.as_ref().context("not connected")?;
        note(self.sent, &mut self.payload);
        self.sent += 1;
        Ok(self.engine.notify(segment, NAME, &self.payload).wait(ANSWER_MAX)?)
    }

    fn prepare_blocks(&mut self) -> anyhow::Result<()> {
        let plan = self.case.plan();
        let piece = |slot, i| -> anyhow::Result<(u64, Slice)> {
            let offset = plan.offset(slot, i) as u64;
            Ok((offset, self.region.slice(offset, plan.block as u64)?))
        };
        let slot = |slot| (0..plan.batch).map(|i| piece(slot, i)).collect::<anyhow::Result<Vec<_>>>();
        self.slices = (0..plan.slots).map(slot).collect::<anyhow::Result<_>>()?;
        Ok(())
    }

    fn prepare_list(&mut self) -> anyhow::Result<()> {
        let Case { op, block, batch, .. } = self.case;
        let segment = self.segment.as_ref().context("not connected")?;
        let kind = match op {
            Op::Write => OpKind::Write,
            Op::Read => OpKind::Read,
        };
        let (here, there) = (pages(Role::Initiator, batch), pages(Role::Target, batch));
        let pool = self.region.whole();
        self.builds_ns.clear();
        self.posts_ms.clear();
        for _ in 0..BUILDS {
            self.list = None;
            let begun = Instant::now();
            let list =
                self.engine.prepare(kind, &pool, layout(block, &here), segment, layout(block, &there))?;
            self.builds_ns.push(begun.elapsed().as_secs_f64() * 1e9 / batch as f64);
            self.list = Some(list);
        }
        Ok(())
    }
}

fn layout(block: usize, pages: &[u32]) -> Layout<'_> {
    Layout::Pages { offset: 0, page_bytes: block as u64, pages }
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
        self.segment = Some(self.engine.open(token).wait(ANSWER_MAX)?);
        Ok(())
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.region.write_at(offset as u64, bytes)?)
    }

    fn load(&mut self, offset: usize, into: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.region.read_at(offset as u64, into)?)
    }

    fn prepare(&mut self, case: &Case) -> anyhow::Result<()> {
        self.case = *case;
        match case.form {
            Form::Blocks => self.prepare_blocks(),
            Form::List => self.prepare_list(),
            Form::Notification => {
                self.payload = vec![0; case.block];
                Ok(())
            }
        }
    }

    fn submit(&mut self, slot: usize) -> anyhow::Result<()> {
        match self.case.form {
            Form::Blocks => {
                self.start(slot)?.wait()?;
                Ok(())
            }
            Form::List => self.submit_list(),
            Form::Notification => self.notify(),
        }
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

    fn list_costs(&self) -> ListCosts {
        if self.case.form != Form::List {
            return ListCosts::default();
        }
        // The demand is on posting again.
        let again = self.posts_ms.iter().skip(1).copied();
        ListCosts { build_ns: median(self.builds_ns.iter().copied()), post_ms: again.reduce(f64::max) }
    }

    fn notifications_taken(&mut self) -> anyhow::Result<usize> {
        self.inbox.as_mut().context("only the target takes notifications")?.taken()
    }
}
