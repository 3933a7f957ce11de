//! The application on all processes: what it does is drawn from the seed, and what it sees goes to the checkers. Rule: it uses the
//! engine's public interface, and memory that an ended transfer had is written anew at once.

mod see;

use crate::check::bytes::Shadow;
use crate::host;
use crate::model::{Memory, Moving, Notifying, Opened, Opening, Place, Request, Slot, pattern};
use crate::net::Shared;
use crate::plant::Plant;
use crate::sys;
use fastrand::Rng;
use orbit_te::simulation::Process;
use orbit_te::{Access, Backing, Batch, Engine, Notifications};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Turns of a run in which the application does something.
const MOST_ACTS: u64 = 5_000;
/// The most requests of a batch.
const MOST_REQUESTS: usize = 8;
/// Transfers of one life that may be in flight: more than a small queue takes, so that it is full sometimes.
const MOST_MOVING: usize = 24;

/// How much was done; for whoever asks whether a run was worth it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transfers that began.
    pub transfers: u64,
    /// Of them, those that succeeded.
    pub succeeded: u64,
    /// Of them, those that failed, in whatever way.
    pub failed: u64,
    /// Notifications that were delivered.
    pub notifications: u64,
    /// Segments opened.
    pub opened: u64,
    /// Regions revoked or retired while peers used them.
    pub withdrawn: u64,
    /// Crashes and stalls.
    pub disturbances: u64,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Counts) {
        let Counts { transfers, succeeded, failed, notifications, opened, withdrawn, disturbances } = other;
        self.transfers += transfers;
        self.succeeded += succeeded;
        self.failed += failed;
        self.notifications += notifications;
        self.opened += opened;
        self.withdrawn += withdrawn;
        self.disturbances += disturbances;
    }
}

pub(crate) struct App {
    pub(crate) counts: Counts,
    pub(crate) quiet: bool,
    /// For how long each life has stood still.
    pub(crate) stalled_ns: BTreeMap<usize, u64>,
    bound_ns: u64,
    rng: Rng,
    net: Shared,
    memories: Vec<Memory>,
    opened: Vec<Opened>,
    opening: Vec<Opening>,
    moving: Vec<Moving>,
    notifying: Vec<Notifying>,
    made: u64,
    acts: u64,
}

impl App {
    pub(crate) fn new(net: Shared, rng: Rng, bound_ns: u64) -> App {
        App {
            counts: Counts::default(),
            quiet: false,
            stalled_ns: BTreeMap::new(),
            bound_ns,
            rng,
            net,
            memories: Vec::new(),
            opened: Vec::new(),
            opening: Vec::new(),
            moving: Vec::new(),
            notifying: Vec::new(),
            made: 0,
            acts: 0,
        }
    }

    fn fresh(&mut self, length: usize) -> Vec<u8> {
        self.made += 1;
        pattern(self.made, length)
    }

    /// A new life has its memory.
    pub(crate) fn begin(&mut self, life: usize, process: &Process) {
        for _ in 0..self.rng.usize(1..=2) {
            self.register(life, process.engine(), Access::SHARED);
        }
        // Its own transfers need some; a refusal is not for ever.
        while !self.memories.iter().any(|m| m.life == life && m.exposed.is_none()) {
            self.register(life, process.engine(), Access::LOCAL);
        }
    }

    fn register(&mut self, life: usize, engine: &Engine, access: Access) {
        let slots = self.rng.usize(2..=8);
        let most = if self.rng.bool() { 700 } else { 9_000 };
        let slot_bytes = self.rng.usize(1..=most);
        let bytes = self.fresh(slots * slot_bytes);
        let Ok(backing) = Backing::from_vec(bytes.clone()) else { return };
        let backing = Arc::new(backing);
        let Ok(handle) = engine.register(backing.clone(), access) else { return };
        let mut exposed = None;
        if access != Access::LOCAL {
            let name = format!("m{}", self.memories.len());
            let token = engine.expose(&name, &handle).ok().and_then(|token| token.to_token().ok());
            exposed = token.map(|token| (name, token));
        }
        let address = host::watch(&mut self.net.lock().map, life, &handle);
        self.memories.push(Memory {
            life,
            handle,
            _backing: backing,
            address,
            slot_bytes,
            slots: vec![Slot::Free; slots],
            shadow: Shadow::new(bytes),
            epoch: 0,
            exposed,
            retiring: false,
            retired: false,
            revoking: false,
            alive: true,
        });
    }

    fn peek(&self, memory: usize, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        sys::peek(self.memories[memory].address + offset as u64, length, &mut bytes);
        bytes
    }

    /// The owner writes; nobody else may have the range.
    fn poke(&mut self, memory: usize, offset: usize, bytes: &[u8]) {
        sys::poke(self.memories[memory].address + offset as u64, bytes);
        self.memories[memory].shadow.set(offset, bytes);
    }

    /// What the application does in a turn of a process.
    pub(crate) fn act(&mut self, life: usize, process: &Process, notes: &mut Notifications) {
        self.collect(life, process, notes);
        // Where the network is fast and each answer is a turn, there would be no end of them.
        if self.quiet || self.acts >= MOST_ACTS {
            return;
        }
        self.acts += 1;
        if self.counts.transfers > 3 && self.net.lock().plant_now(Plant::LostLease) {
            let lease = self.memories.iter().find(|m| m.life == life).map(|m| m.handle.raw().lease());
            std::mem::forget(lease);
        }
        // Most turns are for the engine alone.
        let engine = process.engine();
        match self.rng.u32(0..100) {
            0..30 => {
                for _ in 0..self.rng.usize(1..=3) {
                    self.submit(life, engine);
                }
            }
            30..36 => self.open(life, engine),
            36..39 => self.notify(life, engine),
            39..42 => self.cancel(life),
            42..43 => self.abandon(life),
            43..44 => self.revoke(life, engine),
            44..45 => self.retire(life, engine),
            _ => {}
        }
    }

    /// Begins to open a random region of anybody, its own process included.
    fn open(&mut self, life: usize, engine: &Engine) {
        let found: Vec<usize> =
            (0..self.memories.len()).filter(|&m| self.memories[m].exposed.is_some()).collect();
        // Old tokens too, of regions and lives that are gone; but mostly of those that are there.
        let there: Vec<usize> = found.iter().copied().filter(|&m| self.memories[m].alive).collect();
        let from = if there.is_empty() || self.rng.u32(0..10) == 0 { found } else { there };
        if from.is_empty() {
            return;
        }
        let memory = from[self.rng.usize(..from.len())];
        let Some((name, token)) = self.memories[memory].exposed.clone() else { return };
        let by_name = self.rng.bool().then(|| self.address_of(&token)).flatten();
        let text = by_name.map_or(token, |address| format!("{address}/{name}"));
        self.opening.push(Opening { life, memory, pending: engine.open(&text) });
    }

    fn address_of(&self, token: &str) -> Option<String> {
        let token: orbit_te::SegmentToken = token.parse().ok()?;
        token.addresses.first().map(ToString::to_string)
    }

    fn free_slot(&mut self, memory: usize) -> Option<usize> {
        let slots = &self.memories[memory].slots;
        let free: Vec<usize> = (0..slots.len()).filter(|&s| slots[s] == Slot::Free).collect();
        (!free.is_empty()).then(|| free[self.rng.usize(..free.len())])
    }

    fn submit(&mut self, life: usize, engine: &Engine) {
        // Mostly what is good; but what is gone or stale is tried too.
        let any = self.rng.u32(0..8) == 0;
        let fits = |o: &Opened| {
            let memory = &self.memories[o.memory];
            o.life == life && (any || (memory.alive && !memory.retired && memory.epoch == o.epoch))
        };
        let mine: Vec<usize> = (0..self.opened.len()).filter(|&o| fits(&self.opened[o])).collect();
        let locals: Vec<usize> = (0..self.memories.len())
            .filter(|&m| {
                self.memories[m].life == life
                    && self.memories[m].exposed.is_none()
                    && !self.memories[m].retired
            })
            .collect();
        let busy = self.moving.iter().filter(|m| m.life == life).count();
        if mine.is_empty() || locals.is_empty() || busy >= MOST_MOVING {
            return;
        }
        let mut batch = Batch::new();
        let mut requests = Vec::new();
        for _ in 0..self.rng.usize(1..=MOST_REQUESTS) {
            let opened = mine[self.rng.usize(..mine.len())];
            let local = locals[self.rng.usize(..locals.len())];
            if let Some(request) = self.request(opened, local, &mut batch) {
                requests.push(request);
            }
        }
        if requests.is_empty() {
            return;
        }
        let deadline = Duration::from_millis(self.rng.u64(30..1_500));
        batch.deadline(deadline);
        let opened = &self.opened[mine[0]];
        let owner = self.memories[opened.memory].life;
        let mut note = None;
        if self.rng.u32(0..5) == 0 {
            let number = self.net.lock().notes.sent(life, owner);
            batch.notify(&opened.segment, "bound", &number.to_le_bytes());
            note = Some(number);
        }
        let result = engine.try_submit(batch);
        let mut net = self.net.lock();
        let now_ns = net.now_ns;
        net.trace.note("submit", &[now_ns, life as u64, requests.len() as u64, u64::from(result.is_ok())]);
        drop(net);
        match result {
            Ok(transfer) => {
                self.counts.transfers += 1;
                self.moving.push(Moving {
                    number: self.counts.transfers,
                    life,
                    transfer: Some(transfer),
                    requests,
                    deadline_ns: now_ns + deadline.as_nanos() as u64,
                    stalled_ns: self.stalled(life),
                    note,
                });
            }
            // Nothing has begun.
            Err(_) => requests.iter().for_each(|r| {
                self.set_slot(r.local, Slot::Free);
                self.set_slot(r.remote, Slot::Free);
            }),
        }
    }

    fn stalled(&self, life: usize) -> u64 {
        self.stalled_ns.get(&life).copied().unwrap_or(0)
    }

    fn set_slot(&mut self, place: Place, to: Slot) {
        self.memories[place.memory].slots[place.slot] = to;
    }

    /// One request into a batch, with a slot at each side.
    fn request(&mut self, opened: usize, local: usize, batch: &mut Batch) -> Option<Request> {
        let remote = self.opened[opened].memory;
        let (from, to) = (self.free_slot(local)?, self.free_slot(remote)?);
        let (ours, theirs) = (self.memories[local].slot_bytes, self.memories[remote].slot_bytes);
        let length = self.rng.usize(1..=ours.min(theirs));
        let mut place = |memory, slot, slot_bytes: usize| {
            let offset = slot * slot_bytes + self.rng.usize(0..=slot_bytes - length);
            Place { memory, slot, offset }
        };
        let (local, remote) = (place(local, from, ours), place(remote, to, theirs));
        let write = self.rng.bool();
        let bytes = self.fresh(length);
        self.poke(local.memory, local.offset, &bytes);
        let there = self.memories[remote.memory].shadow.expected[remote.offset..][..length].to_vec();
        let slice = self.memories[local.memory].handle.slice(local.offset as u64, length as u64).ok()?;
        let Opened { segment, epoch: known, .. } = &self.opened[opened];
        let (data, old) = if write { (bytes, there) } else { (there, bytes) };
        match write {
            true => batch.write(segment, remote.offset as u64, &slice),
            false => batch.read(segment, remote.offset as u64, &slice),
        };
        let epoch = self.memories[remote.memory].epoch;
        let stale = *known < epoch;
        self.set_slot(local, Slot::Busy);
        self.set_slot(remote, Slot::Busy);
        Some(Request { write, local, remote, data, old, epoch, stale })
    }

    fn notify(&mut self, life: usize, engine: &Engine) {
        let mine: Vec<usize> = (0..self.opened.len()).filter(|&o| self.opened[o].life == life).collect();
        if mine.is_empty() {
            return;
        }
        let opened = &self.opened[mine[self.rng.usize(..mine.len())]];
        for _ in 0..self.rng.usize(1..=4) {
            let number = self.net.lock().notes.sent(life, self.memories[opened.memory].life);
            let pending = engine.notify(&opened.segment, "alone", &number.to_le_bytes());
            self.notifying.push(Notifying { life, number, pending });
        }
    }

    fn one_moving(&mut self, life: usize) -> Option<usize> {
        let has = |m: &Moving| m.life == life && m.transfer.is_some();
        let mine: Vec<usize> = (0..self.moving.len()).filter(|&m| has(&self.moving[m])).collect();
        (!mine.is_empty()).then(|| mine[self.rng.usize(..mine.len())])
    }

    fn cancel(&mut self, life: usize) {
        if let Some(transfer) = self.one_moving(life).and_then(|at| self.moving[at].transfer.as_ref()) {
            transfer.cancel();
        }
    }

    /// Drops a handle: nobody learns how the transfer ends, so its slots are not used again.
    fn abandon(&mut self, life: usize) {
        if let Some(at) = self.one_moving(life) {
            let moving = self.moving.remove(at);
            self.lose(&moving.requests, false);
        }
    }

    /// The end of these requests will not be known; `gone`: with their process.
    fn lose(&mut self, requests: &[Request], gone: bool) {
        for Request { write, local, remote, data, epoch, .. } in requests {
            let memory = &mut self.memories[remote.memory];
            if memory.epoch == *epoch && (*write || !gone) {
                if *write {
                    memory.shadow.may_land(remote.offset, data.clone());
                }
                // A read that is still under way would find what the next one writes there.
                self.set_slot(*remote, Slot::Lost);
            } else {
                self.set_slot(*remote, Slot::Free);
            }
            if !gone {
                if !write {
                    self.memories[local.memory].shadow.may_land(local.offset, data.clone());
                }
                self.set_slot(*local, Slot::Lost);
            }
        }
    }

    fn one_exposed(&mut self, life: usize) -> Option<usize> {
        let fits =
            |m: &Memory| m.life == life && m.exposed.is_some() && !m.retiring && !m.retired && !m.revoking;
        let mine: Vec<usize> = (0..self.memories.len()).filter(|&m| fits(&self.memories[m])).collect();
        (!mine.is_empty()).then(|| mine[self.rng.usize(..mine.len())])
    }

    fn revoke(&mut self, life: usize, engine: &Engine) {
        if let Some(memory) = self.one_exposed(life) {
            self.memories[memory].revoking = true;
            self.go_on_revoking(memory, engine);
        }
    }

    fn go_on_revoking(&mut self, memory: usize, engine: &Engine) {
        if engine.revoke(&self.memories[memory].handle, Duration::ZERO).is_err() {
            return;
        }
        self.counts.withdrawn += 1;
        self.memories[memory].revoking = false;
        self.renew(memory);
        let Some((name, _)) = self.memories[memory].exposed.take() else { return };
        engine.withdraw(&name);
        let token = engine.expose(&name, &self.memories[memory].handle).ok().and_then(|t| t.to_token().ok());
        self.memories[memory].exposed = token.map(|token| (name, token));
    }

    /// Nothing that was admitted before can land any more: the owner writes all of it.
    fn renew(&mut self, memory: usize) {
        let bytes = self.fresh(self.memories[memory].shadow.expected.len());
        self.memories[memory].epoch += 1;
        self.memories[memory].shadow.renew(bytes.clone());
        self.poke(memory, 0, &bytes);
        let lost = |slot: &&mut Slot| **slot == Slot::Lost;
        self.memories[memory].slots.iter_mut().filter(lost).for_each(|slot| *slot = Slot::Free);
    }

    fn retire(&mut self, life: usize, engine: &Engine) {
        if let Some(memory) = self.one_exposed(life) {
            self.memories[memory].retiring = true;
            self.go_on_retiring(memory, engine);
            self.register(life, engine, Access::SHARED);
        }
    }

    fn go_on_retiring(&mut self, memory: usize, engine: &Engine) {
        if engine.retire(&self.memories[memory].handle, Duration::ZERO).is_err() {
            return;
        }
        self.counts.withdrawn += 1;
        self.memories[memory].retiring = false;
        self.memories[memory].retired = true;
        self.net.lock().map.given_back(self.memories[memory].address);
        self.renew(memory);
    }
}
