//! What the application begins: batches of requests and lists, and what it gives up again. Rule: bytes of a range are known before it
//! is asked for, and only one request at a time has a slot.

use super::App;
use crate::model::{Area, Moving, Opened, Request, Slot};
use crate::plant::Plant;
use orbit_te::{Batch, Engine, Priority};
use std::time::Duration;

/// The most requests of a batch.
const MOST_REQUESTS: usize = 8;
/// Transfers of one life that may be in flight: more than a small queue takes, so that it is full sometimes.
const MOST_MOVING: usize = 24;

impl App {
    /// Segments that a life has opened: mostly good ones; but what is gone or stale is tried too.
    pub(super) fn usable(&mut self, life: usize) -> Vec<usize> {
        let any = self.rng.u32(0..8) == 0;
        let now_ns = self.net.lock().now_ns;
        let fits = |o: &Opened| {
            let memory = &self.memories[o.memory];
            let good = memory.alive && !memory.retired && memory.epoch == o.epoch;
            o.life == life && (any || (good && !self.is_over(o, now_ns)))
        };
        (0..self.opened.len()).filter(|&o| fits(&self.opened[o])).collect()
    }

    pub(super) fn submit(&mut self, life: usize, engine: &Engine) {
        let mine = self.usable(life);
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
        let (alone, lists) = (self.rng.u32(0..3) == 0, self.rng.u32(0..3) == 0);
        if !lists || !alone {
            for _ in 0..self.rng.usize(1..=MOST_REQUESTS) {
                let opened = mine[self.rng.usize(..mine.len())];
                let local = locals[self.rng.usize(..locals.len())];
                if let Some(request) = self.request(opened, local, &mut batch) {
                    requests.push(request);
                }
            }
        }
        // The records of lists come after those of requests.
        if lists {
            for _ in 0..self.rng.usize(1..=2) {
                let opened = mine[self.rng.usize(..mine.len())];
                let local = locals[self.rng.usize(..locals.len())];
                if let Some(request) = self.post_list(engine, opened, local, &mut batch) {
                    requests.push(request);
                }
            }
        }
        if requests.is_empty() {
            return;
        }
        let deadline = Duration::from_millis(self.rng.u64(30..1_500));
        batch.deadline(deadline);
        batch.priority([Priority::High, Priority::Normal, Priority::Low][self.rng.usize(..3)]);
        let planted = self.net.lock().plant;
        // The engine itself finds a wrong byte in what is verified.
        let verified = self.rng.u32(0..3) == 0 && planted != Some(Plant::WrongByte);
        batch.verify(verified);
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
                    verified,
                });
            }
            // Nothing has begun.
            Err(_) => requests.iter().for_each(|r| {
                self.set_slots(&r.local, Slot::Free);
                self.set_slots(&r.remote, Slot::Free);
            }),
        }
    }

    pub(super) fn stalled(&self, life: usize) -> u64 {
        self.stalled_ns.get(&life).copied().unwrap_or(0)
    }

    fn free_slot(&mut self, memory: usize) -> Option<usize> {
        let slots = &self.memories[memory].slots;
        let free: Vec<usize> = (0..slots.len()).filter(|&s| slots[s] == Slot::Free).collect();
        (!free.is_empty()).then(|| free[self.rng.usize(..free.len())])
    }

    /// One request into a batch, with a slot at each side.
    fn request(&mut self, opened: usize, local: usize, batch: &mut Batch) -> Option<Request> {
        let remote = self.opened[opened].memory;
        let (from, to) = (self.free_slot(local)?, self.free_slot(remote)?);
        let (ours, theirs) = (self.memories[local].slot_bytes, self.memories[remote].slot_bytes);
        let length = self.rng.usize(1..=ours.min(theirs));
        let mut place = |memory, slot, slot_bytes: usize| {
            let offset = slot * slot_bytes + self.rng.usize(0..=slot_bytes - length);
            Area { memory, slots: vec![slot], runs: vec![(offset, length)] }
        };
        let (local, remote) = (place(local, from, ours), place(remote, to, theirs));
        let write = self.rng.bool();
        let (here, there) = (local.runs[0].0, remote.runs[0].0);
        let slice = self.memories[local.memory].handle.slice(here as u64, length as u64).ok()?;
        let Opened { segment, number, .. } = &self.opened[opened];
        let (opening, records) = (*number, batch.len()..batch.len() + 1);
        match write {
            true => batch.write(segment, there as u64, &slice),
            false => batch.read(segment, there as u64, &slice),
        };
        Some(self.asked(write, local, remote, opening, records))
    }

    /// The ranges of a request are its own from now on, and it is known what is there.
    pub(super) fn asked(
        &mut self,
        write: bool,
        local: Area,
        remote: Area,
        opening: usize,
        records: std::ops::Range<usize>,
    ) -> Request {
        let bytes = self.fresh(local.length());
        self.poke(&local, &bytes);
        // A list may send a byte more than once; the last of what was written there counts.
        let (ours, theirs) = (self.expected(&local), self.expected(&remote));
        let (data, old) = if write { (ours, theirs) } else { (theirs, ours) };
        let epoch = self.memories[remote.memory].epoch;
        self.set_slots(&local, Slot::Busy);
        self.set_slots(&remote, Slot::Busy);
        let now_ns = self.net.lock().now_ns;
        let opened = self.opened.iter().find(|o| o.number == opening);
        let stale = opened.is_some_and(|opened| self.is_over(opened, now_ns));
        Request { write, local, remote, data, old, opening, epoch: Some(epoch), stale, records }
    }

    fn one_moving(&mut self, life: usize) -> Option<usize> {
        let has = |m: &Moving| m.life == life && m.transfer.is_some();
        let mine: Vec<usize> = (0..self.moving.len()).filter(|&m| has(&self.moving[m])).collect();
        (!mine.is_empty()).then(|| mine[self.rng.usize(..mine.len())])
    }

    pub(super) fn cancel(&mut self, life: usize) {
        if let Some(transfer) = self.one_moving(life).and_then(|at| self.moving[at].transfer.as_ref()) {
            transfer.cancel();
        }
    }

    /// Drops a handle: nobody learns how the transfer ends, so its slots are not used again.
    pub(super) fn abandon(&mut self, life: usize) {
        if let Some(at) = self.one_moving(life) {
            let moving = self.moving.remove(at);
            self.lose(&moving, false);
        }
    }

    /// The end of a transfer will not be known; `gone`: with its process.
    pub(super) fn lose(&mut self, moving: &Moving, gone: bool) {
        let damaged = moving.verified && self.net.lock().faults.damage > 0.0;
        for Request { write, local, remote, data, epoch, .. } in &moving.requests {
            if Some(self.memories[remote.memory].epoch) == *epoch && (*write || !gone) {
                if *write {
                    self.may_land(remote, data, damaged);
                }
                // A read that is still under way would find what the next one writes there.
                self.set_slots(remote, Slot::Lost);
            } else {
                self.set_slots(remote, Slot::Free);
            }
            if !gone {
                if !write {
                    self.may_land(local, data, damaged);
                }
                self.set_slots(local, Slot::Lost);
            }
        }
    }

    /// From now on these bytes may land at any time, or others where they may come damaged.
    pub(super) fn may_land(&mut self, area: &Area, bytes: &[u8], damaged: bool) {
        let shadow = &mut self.memories[area.memory].shadow;
        for (offset, bytes) in area.split(bytes) {
            match damaged {
                true => shadow.may_be_damaged(offset, bytes.len()),
                false => shadow.may_land(offset, bytes.to_vec()),
            }
        }
    }
}
