//! The application on all processes: what it does is drawn from the seed, and what it sees goes to the checkers. Rule: it uses the
//! engine's public interface, and memory that an ended transfer had is written anew at once.

mod grants;
mod lists;
mod post;
mod see;

use crate::check::bytes::Shadow;
use crate::host;
use crate::model::{Area, Listed, Memory, Moving, Notifying, Opened, Opening, Revoking, Slot, pattern};
use crate::net::Shared;
use crate::plant::Plant;
use crate::rdma::Met;
use crate::sys;
use fastrand::Rng;
use orbit_te::simulation::Process;
use orbit_te::{Access, Backing, Engine, ExposeOptions, HostBuffer, Notifications, PeerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Turns of a run in which the application does something.
const MOST_ACTS: u64 = 5_000;

/// How much was done; for whoever asks whether a run was worth it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transfers that began.
    pub transfers: u64,
    /// Of them, those that succeeded.
    pub succeeded: u64,
    /// Of those, the ones whose bytes went by a route of one host.
    pub same_host: u64,
    /// Of those, the ones whose bytes went by RDMA.
    pub rdma: u64,
    /// Of them, those that failed, in whatever way.
    pub failed: u64,
    /// Requests that were tried again, on the same route or another.
    pub retried: u64,
    /// Lists that were posted, whole or in part.
    pub lists: u64,
    /// Payload bytes that were changed on their way.
    pub damaged: u64,
    /// Notifications that were delivered.
    pub notifications: u64,
    /// Segments opened.
    pub opened: u64,
    /// Regions revoked or retired while peers used them.
    pub withdrawn: u64,
    /// Grants revoked alone while peers had them.
    pub revoked: u64,
    /// Crashes, shutdowns, stalls, and cuts of what meets on one host.
    pub disturbances: u64,
    /// Faults of RDMA devices that were met.
    pub rdma_faults: Met,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Counts) {
        let Counts {
            transfers,
            succeeded,
            same_host,
            rdma,
            failed,
            retried,
            lists,
            damaged,
            notifications,
            opened,
            withdrawn,
            revoked,
            disturbances,
            rdma_faults,
        } = other;
        self.transfers += transfers;
        self.succeeded += succeeded;
        self.failed += failed;
        self.same_host += same_host;
        self.rdma += rdma;
        self.rdma_faults.iter_mut().zip(rdma_faults).for_each(|(sum, more)| *sum += more);
        self.retried += retried;
        self.lists += lists;
        self.damaged += damaged;
        self.notifications += notifications;
        self.opened += opened;
        self.withdrawn += withdrawn;
        self.revoked += revoked;
        self.disturbances += disturbances;
    }
}

pub(crate) struct App {
    pub(crate) counts: Counts,
    pub(crate) quiet: bool,
    /// For how long each life has stood still.
    pub(crate) stalled_ns: BTreeMap<usize, u64>,
    pub(crate) bound_ns: u64,
    rng: Rng,
    net: Shared,
    memories: Vec<Memory>,
    opened: Vec<Opened>,
    opening: Vec<Opening>,
    /// The openings so far.
    openings: usize,
    /// By life and memory: until when a grant of its own may last, as far as the application can know.
    last_ns: BTreeMap<(usize, usize), u64>,
    revoking: Vec<Revoking>,
    /// Who each life is.
    peers: BTreeMap<usize, PeerId>,
    /// Lives that are being shut down.
    leaving: BTreeSet<usize>,
    lists: Vec<Listed>,
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
            openings: 0,
            last_ns: BTreeMap::new(),
            revoking: Vec::new(),
            peers: BTreeMap::new(),
            leaving: BTreeSet::new(),
            lists: Vec::new(),
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
        self.peers.insert(life, process.engine().peer_id());
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
        // Memory that can be mapped by others, or not.
        let owned = self.rng.bool().then(|| HostBuffer::new(bytes.len())).and_then(Result::ok);
        let backing = match owned {
            Some(mut buffer) => {
                buffer.as_mut_slice().copy_from_slice(&bytes);
                Ok(buffer.into_backing())
            }
            None => Backing::from_vec(bytes.clone()),
        };
        let Ok(backing) = backing else { return };
        let backing = Arc::new(backing);
        let Ok(handle) = engine.register(backing.clone(), access) else { return };
        let lasts = (self.rng.u32(0..4) == 0).then(|| Duration::from_millis(self.rng.u64(100..2_000)));
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
            renewed_ns: 0,
            exposed: None,
            lasts,
            token_ends_ns: u64::MAX,
            retiring: false,
            retired: false,
            revoking: false,
            alive: true,
        });
        if access != Access::LOCAL {
            let memory = self.memories.len() - 1;
            self.expose(memory, &format!("m{memory}"), engine);
        }
    }

    fn expose(&mut self, memory: usize, name: &str, engine: &Engine) {
        let now_ns = self.net.lock().now_ns;
        let of = &mut self.memories[memory];
        let options = ExposeOptions { time_to_live: of.lasts, ..ExposeOptions::default() };
        let token = engine.expose_with(name, &of.handle, options).ok().and_then(|t| t.to_token().ok());
        of.token_ends_ns = of.lasts.map_or(u64::MAX, |lasts| now_ns + lasts.as_nanos() as u64);
        of.exposed = token.map(|token| (name.to_string(), token));
    }

    fn peek(&self, area: &Area) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(area.length());
        let address = self.memories[area.memory].address;
        area.runs.iter().for_each(|(at, length)| sys::peek(address + *at as u64, *length, &mut bytes));
        bytes
    }

    /// The owner writes; nobody else may have the range.
    fn poke(&mut self, area: &Area, bytes: &[u8]) {
        let memory = &mut self.memories[area.memory];
        for (offset, bytes) in area.split(bytes) {
            sys::poke(memory.address + offset as u64, bytes);
            memory.shadow.set(offset, bytes);
        }
    }

    /// What must be there.
    fn expected(&self, area: &Area) -> Vec<u8> {
        let expected = &self.memories[area.memory].shadow.expected;
        area.runs.iter().flat_map(|(at, length)| &expected[*at..at + length]).copied().collect()
    }

    fn set_slots(&mut self, area: &Area, to: Slot) {
        area.slots.iter().for_each(|slot| self.memories[area.memory].slots[*slot] = to);
    }

    /// A life begins nothing more.
    pub(crate) fn leaves(&mut self, life: usize) {
        self.leaving.insert(life);
    }

    /// How long a place stays empty after a shutdown.
    pub(crate) fn pause_ns(&mut self) -> u64 {
        self.rng.u64(1..800) * 1_000_000
    }

    /// What the application does in a turn of a process.
    pub(crate) fn act(&mut self, life: usize, process: &Process, notes: &mut Notifications) {
        self.collect(life, process, notes);
        // Where the network is fast and each answer is a turn, there would be no end of them.
        if self.quiet || self.leaving.contains(&life) || self.acts >= MOST_ACTS {
            return;
        }
        self.acts += 1;
        if self.counts.transfers > 3 && self.net.lock().plant_now(Plant::LostLease) {
            let lease = self.memories.iter().find(|m| m.life == life).map(|m| m.handle.raw().lease());
            std::mem::forget(lease);
        }
        // Most turns are for the engine alone.
        let engine = process.engine();
        if self.net.lock().plant_now(Plant::LostEngine) {
            std::mem::forget(engine.clone());
        }
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
            45..46 => self.revoke_grants(life, engine),
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
        let (by_token, token_ends_ns) = (text.starts_with("otseg"), self.memories[memory].token_ends_ns);
        self.opening.push(Opening { life, memory, by_token, token_ends_ns, pending: engine.open(&text) });
    }

    fn address_of(&self, token: &str) -> Option<String> {
        let token: orbit_te::SegmentToken = token.parse().ok()?;
        token.addresses.first().map(ToString::to_string)
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
}
