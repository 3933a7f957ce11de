//! A hand: one thread of a driver, with memory of its own. Rule: one action at a time, each bounded; memory of a read that
//! was given up is ours at once, and is watched until it is used again; a slot that late bytes may still reach is left alone.

use super::Plant;
use super::pattern::{Random, fill, first_wrong, mix};
use super::protocol::{
    Note, Offer, READ_BYTES, SLOT_BYTES, SLOTS, VERDICT_BYTES, Verdict, slot, slot_at, verdict_at,
};
use super::tally::Tally;
use super::worker::Backings;
use orbit_te::route::RouteId;
use orbit_te::{
    Access, Backing, Batch, Engine, Error, Landed, Receipt, Region, Segment, Transfer, TransferError,
};
use parking_lot::Mutex;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Parts of a hand's memory that are read into in turn.
const WINDOWS: u64 = 4;
const WINDOW_BYTES: u64 = 1 << 20;
/// Behind the windows: what is written, and a verdict.
const WRITE_AT: u64 = WINDOWS * WINDOW_BYTES;
const VERDICT_AT: u64 = WRITE_AT + SLOT_BYTES;
const LOCAL_BYTES: u64 = VERDICT_AT + VERDICT_BYTES;
/// After its deadline a transfer may need this long to end: for its fence, for a process that was stopped itself, and for a
/// machine that does something else. Longer is a hang.
const BOUND: Duration = Duration::from_secs(15);
/// The most requests of one batch.
const REQUESTS: u64 = 48;

/// What the hands of a driver share.
pub(super) struct Hands {
    pub(super) engine: Engine,
    pub(super) driver: u64,
    pub(super) life: u64,
    /// By target.
    pub(super) offers: Mutex<Vec<Option<Offer>>>,
    pub(super) tally: Arc<Mutex<Tally>>,
    pub(super) plant: Option<Plant>,
}

/// A target as a hand knows it.
struct Known {
    offer: Offer,
    segment: Segment,
    /// Slots that may not be written any more.
    spoilt: [bool; SLOTS as usize],
    /// The last note that was acknowledged.
    acknowledged: u64,
}

/// One thread's work.
pub(super) struct Hand {
    shared: Arc<Hands>,
    number: u64,
    random: Random,
    backing: Arc<Backing>,
    local: Region,
    /// The seed of what a given-up window was filled with.
    guards: [Option<u64>; WINDOWS as usize],
    window: u64,
    known: Vec<Option<Known>>,
    notes: u64,
    actions: u64,
    /// The route that the next transfer demands.
    demand: Option<RouteId>,
    /// Planted: it does not wait for the next transfer, and so takes it for one that hangs.
    impatient: bool,
}

/// What becomes of a transfer after it was submitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Wait,
    /// Cancelled after this many microseconds.
    Cancel(u64),
    /// Its handle is dropped.
    Drop,
    /// Its memory is retired, and registered again.
    Retire,
}

impl Hand {
    pub(super) fn new(
        shared: Arc<Hands>,
        number: u64,
        seed: u64,
        backings: &mut Backings,
    ) -> anyhow::Result<Hand> {
        let backing = backings.make(LOCAL_BYTES, number % 2 == 1)?;
        let local = shared.engine.register(backing.clone(), Access::LOCAL)?;
        let random = Random::new(mix(seed ^ mix(shared.driver << 40 | shared.life << 8 | number)));
        Ok(Hand {
            shared,
            number,
            random,
            backing,
            local,
            guards: [None; WINDOWS as usize],
            window: 0,
            known: Vec::new(),
            notes: 0,
            actions: 0,
            demand: None,
            impatient: false,
        })
    }

    /// One action.
    pub(super) fn step(&mut self) {
        let count = self.shared.offers.lock().len() as u64;
        let target = if count == 0 { 0 } else { self.random.below(count) as usize };
        if !self.open(target) {
            std::thread::sleep(Duration::from_millis(10));
            return;
        }
        self.actions += 1;
        if self.actions == 20 {
            self.plant();
        }
        let fate = match self.random.below(100) {
            0..70 => Fate::Wait,
            70..82 => Fate::Cancel(self.random.below(800)),
            82..92 => Fate::Drop,
            _ => Fate::Retire,
        };
        self.demand = match self.random.below(12) {
            0 => Some(RouteId::SHM),
            1 => Some(RouteId::PROCESS_VM),
            2 => Some(RouteId::TCP),
            _ => None,
        };
        match self.random.below(100) {
            0..50 => self.read(target, fate),
            50..90 => self.write(target, fate),
            _ => self.notify(target),
        }
        self.demand = None;
    }

    /// A read and a write at every target, repeated until they succeed; the targets that could not be reached.
    pub(super) fn reach_all(&mut self, limit: Duration) -> Vec<String> {
        let until = Instant::now() + limit;
        let count = self.shared.offers.lock().len();
        let mut unreached: Vec<usize> = (0..count).collect();
        while !unreached.is_empty() && Instant::now() < until {
            unreached.retain(|target| {
                let before = self.shared.tally.lock().succeeded;
                if self.open(*target) {
                    self.read(*target, Fate::Wait);
                }
                if self.open(*target) {
                    self.write(*target, Fate::Wait);
                }
                // A read, a write, and the verdict on it.
                self.shared.tally.lock().succeeded < before + 3
            });
        }
        let name = |target| format!("driver {} can't reach target {target} again", self.shared.driver);
        unreached.into_iter().map(name).collect()
    }

    /// Gives the memory back; leases that are left.
    pub(super) fn end(mut self) -> u64 {
        for window in 0..WINDOWS {
            self.check_guard(window);
        }
        self.known.clear();
        self.retire();
        self.local.leases()
    }

    /// Whether a target can be asked: its newest offer is open.
    fn open(&mut self, target: usize) -> bool {
        let Some(Some(offer)) = self.shared.offers.lock().get(target).cloned() else { return false };
        if self.known.len() <= target {
            self.known.resize_with(target + 1, || None);
        }
        if self.known[target].as_ref().is_some_and(|known| known.offer.exposure == offer.exposure) {
            return true;
        }
        let place = if self.random.below(2) == 0 { &offer.token } else { &offer.address };
        let began = Instant::now();
        let opened = self.shared.engine.open(place).wait(Duration::from_secs(60));
        if began.elapsed() > BOUND {
            self.shared.tally.lock().hang(format!("opening target {target} took {:?}", began.elapsed()));
        }
        match opened {
            Ok(segment) => {
                let spoilt = [false; SLOTS as usize];
                self.known[target] = Some(Known { offer, segment, spoilt, acknowledged: 0 });
                true
            }
            Err(error) => {
                self.refused(&error);
                false
            }
        }
    }

    /// Reads random pieces into a window, and compares them.
    fn read(&mut self, target: usize, fate: Fate) {
        let Some(Known { offer, segment, .. }) = self.known[target].as_ref() else { return };
        let (seed, segment) = (offer.seed, segment.clone());
        self.window = (self.window + 1) % WINDOWS;
        let window = self.window;
        self.check_guard(window);
        let most = if self.random.below(4) == 0 { WINDOW_BYTES } else { 32 << 10 };
        let (mut batch, mut pieces) = (Batch::new(), Vec::new());
        let mut at = 0;
        let count = if self.random.below(2) == 0 { 1 } else { self.random.between(2, REQUESTS) };
        for _ in 0..count {
            let length = self.random.between(1, (most / count).max(2));
            let from = self.random.below(READ_BYTES - length);
            let Ok(slice) = self.local.slice(window * WINDOW_BYTES + at, length) else { return };
            batch.read(&segment, from, &slice);
            pieces.push((at, from, length));
            at += length;
        }
        let Some(receipt) = self.carry_out(target, batch, at, count, fate) else {
            return self.guard(window);
        };
        if receipt.error.is_some() {
            return self.guard(window);
        }
        let mut found = vec![0; at as usize];
        if self.local.read_at(window * WINDOW_BYTES, &mut found).is_err() {
            return;
        }
        for (at, from, length) in pieces {
            let piece = &found[at as usize..(at + length) as usize];
            if let Some(wrong) = first_wrong(piece, seed, from) {
                let what = format!("byte {wrong} of {length} read from {from} of target {target}");
                self.shared.tally.lock().wrong_bytes(what);
            }
        }
        self.shared.tally.lock().checked_bytes += at;
    }

    /// Writes a slot whole, in pieces; the target compares it and gives its verdict.
    fn write(&mut self, target: usize, fate: Fate) {
        let Some(known) = self.known[target].as_mut() else { return };
        let Some(free) = known.spoilt.iter().position(|spoilt| !spoilt) else { return };
        let slot = slot(self.shared.driver, self.shared.life, self.number, free as u64);
        let most = if self.random.below(3) == 0 { SLOT_BYTES } else { 16 << 10 };
        let length = self.random.between(1, most);
        let seed = self.random.next();
        let mut bytes = vec![0; length as usize];
        fill(&mut bytes, seed, 0);
        if self.local.write_at(WRITE_AT, &bytes).is_err() {
            return;
        }
        let pieces = if self.random.below(2) == 0 { 1 } else { self.random.between(1, REQUESTS).min(length) };
        let mut batch = Batch::new();
        let mut cuts: Vec<u64> = (1..pieces).map(|_| self.random.below(length)).collect();
        cuts.extend([0, length]);
        cuts.sort_unstable();
        cuts.dedup();
        for piece in cuts.windows(2) {
            let Ok(slice) = self.local.slice(WRITE_AT + piece[0], piece[1] - piece[0]) else { return };
            batch.write(&known.segment, slot_at(slot) + piece[0], &slice);
        }
        let requests = cuts.len() as u64 - 1;
        self.notes += 1;
        let number = self.notes;
        let note = Note {
            driver: self.shared.driver,
            life: self.shared.life,
            hand: self.number,
            exposure: known.offer.exposure,
            number,
            acknowledged: known.acknowledged,
            write: Some((slot, seed, length)),
        };
        let payload = serde_json::to_vec(&note).unwrap_or_default();
        batch.notify(&known.segment, "written", &payload);
        let spoil = match self.carry_out(target, batch, length, requests, fate) {
            Some(receipt) if receipt.error.is_none() => {
                if let Some(known) = self.known[target].as_mut() {
                    known.acknowledged = number;
                }
                !self.await_verdict(target, slot, number)
            }
            // With all bytes in place, the note may be under way, and its reader must find what it tells of.
            Some(receipt) => !receipt.fenced || receipt.landed == Landed::Whole,
            None => true,
        };
        if let (true, Some(known)) = (spoil, self.known[target].as_mut()) {
            known.spoilt[free] = true;
        }
    }

    /// Whether the target has looked at a write. It need not, if it was killed or has taken its memory back.
    fn await_verdict(&mut self, target: usize, slot: u64, number: u64) -> bool {
        let until = Instant::now() + BOUND;
        let mut read = false;
        while Instant::now() < until {
            let Some(Some(known)) = self.known.get(target) else { return false };
            let (exposure, segment) = (known.offer.exposure, known.segment.clone());
            let newest = self.shared.offers.lock().get(target).cloned().flatten();
            if newest.is_none_or(|offer| offer.exposure != exposure) {
                return false;
            }
            let Ok(slice) = self.local.slice(VERDICT_AT, VERDICT_BYTES) else { return false };
            let mut batch = Batch::new();
            batch.read(&segment, verdict_at(slot), &slice);
            match self.carry_out(target, batch, VERDICT_BYTES, 1, Fate::Wait) {
                Some(receipt) if receipt.error.is_none() => {}
                _ => return false,
            }
            read = true;
            let mut found = [0; VERDICT_BYTES as usize];
            if self.local.read_at(VERDICT_AT, &mut found).is_err() {
                return false;
            }
            match Verdict::decode(&found) {
                // A wrong byte was counted where it was found.
                Some(verdict) if (verdict.exposure, verdict.number) == (exposure, number) => return true,
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        if read {
            let what = format!("target {target} never looked at note {number}, which it had acknowledged");
            self.shared.tally.lock().wrong_notification(what);
        }
        false
    }

    /// A notification without a write.
    fn notify(&mut self, target: usize) {
        let Some(known) = self.known[target].as_ref() else { return };
        self.notes += 1;
        let (number, segment) = (self.notes, known.segment.clone());
        let note = Note {
            driver: self.shared.driver,
            life: self.shared.life,
            hand: self.number,
            exposure: known.offer.exposure,
            number,
            acknowledged: known.acknowledged,
            write: None,
        };
        let payload = serde_json::to_vec(&note).unwrap_or_default();
        let began = Instant::now();
        let sent = self.shared.engine.notify(&segment, "alone", &payload).wait(Duration::from_secs(60));
        if began.elapsed() > BOUND {
            self.shared.tally.lock().hang(format!("a notification took {:?}", began.elapsed()));
        }
        match sent {
            Ok(()) => {
                if let Some(known) = self.known[target].as_mut() {
                    known.acknowledged = number;
                }
            }
            Err(error) => self.lost(target, &error),
        }
    }

    /// Submits and sees it through; none when it was refused, or nothing is known of its end.
    fn carry_out(
        &mut self,
        target: usize,
        mut batch: Batch,
        bytes: u64,
        requests: u64,
        fate: Fate,
    ) -> Option<Receipt> {
        let deadline = Duration::from_millis(self.random.between(100, 2500));
        batch.deadline(deadline);
        // The verdict on a write is read by any.
        self.demand.take().map(|route| batch.route(route));
        let transfer = match self.shared.engine.submit(batch) {
            Ok(transfer) => transfer,
            Err(error) => {
                self.lost(target, &error);
                return None;
            }
        };
        match fate {
            Fate::Wait => {}
            Fate::Cancel(after) => {
                std::thread::sleep(Duration::from_micros(after));
                transfer.cancel();
                self.shared.tally.lock().cancels += 1;
            }
            Fate::Drop => {
                drop(transfer);
                self.shared.tally.lock().drops += 1;
                self.await_leases(deadline);
                return None;
            }
            Fate::Retire => self.retire_local(),
        }
        self.ended(&transfer, deadline, bytes, requests)
    }

    fn ended(
        &mut self,
        transfer: &Transfer,
        deadline: Duration,
        bytes: u64,
        requests: u64,
    ) -> Option<Receipt> {
        let limit = if self.impatient { Duration::ZERO } else { deadline + BOUND };
        let ended = transfer.wait_for(limit).and_then(|_| transfer.receipt());
        let mut tally = self.shared.tally.lock();
        let Some(receipt) = ended else {
            tally.hang(format!("a transfer has not ended {BOUND:?} after its deadline of {deadline:?}"));
            drop(tally);
            self.impatient = false;
            // The memory is the transfer's for ever.
            self.await_leases(Duration::from_secs(60));
            return None;
        };
        tally.transfers += 1;
        tally.requests += requests;
        tally.tried_again += receipt.attempts.len() as u64;
        for (route, bytes) in receipt.routes.iter().filter(|(_, bytes)| *bytes > 0) {
            *tally.by_route.entry(route.name().to_string()).or_default() += bytes;
        }
        match &receipt.error {
            None => {
                tally.succeeded += 1;
                tally.bytes += receipt.bytes;
                if (receipt.bytes, receipt.requests as u64) != (bytes, requests) {
                    tally.wrong_bytes(format!("a receipt of {receipt:?} for {bytes} bytes"));
                }
            }
            Some(error) => *tally.failed.entry(kind(error)).or_default() += 1,
        }
        Some(receipt)
    }

    /// Waits until nothing touches our memory; a dropped transfer has ended then.
    fn await_leases(&mut self, deadline: Duration) {
        let until = Instant::now() + deadline + BOUND;
        while self.local.leases() > 0 {
            if Instant::now() > until {
                self.shared.tally.lock().hang("a dropped transfer still holds its memory".to_string());
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.shared.tally.lock().transfers += 1;
    }

    /// Retires our memory under whatever is under way, and registers it again.
    fn retire_local(&mut self) {
        self.retire();
        match self.shared.engine.register(self.backing.clone(), Access::LOCAL) {
            Ok(local) => self.local = local,
            Err(error) => self.refused(&error),
        }
    }

    fn retire(&self) {
        let began = Instant::now();
        while let Err(error) = self.shared.engine.retire(&self.local, Duration::from_secs(5)) {
            let mut tally = self.shared.tally.lock();
            tally.still_leased += 1;
            if began.elapsed() > BOUND {
                tally.hang(format!("our memory can't be retired: {error}"));
                break;
            }
        }
        self.shared.tally.lock().retires += 1;
    }

    /// A window is ours again: whatever lands there from now on is foreign.
    fn guard(&mut self, window: u64) {
        let seed = self.random.next();
        let mut bytes = vec![0; WINDOW_BYTES as usize];
        fill(&mut bytes, seed, 0);
        if self.local.write_at(window * WINDOW_BYTES, &bytes).is_ok() {
            self.guards[window as usize] = Some(seed);
        }
    }

    fn check_guard(&mut self, window: u64) {
        let Some(seed) = self.guards[window as usize].take() else { return };
        let mut found = vec![0; WINDOW_BYTES as usize];
        if self.local.read_at(window * WINDOW_BYTES, &mut found).is_err() {
            return;
        }
        let mut tally = self.shared.tally.lock();
        tally.guarded_bytes += WINDOW_BYTES;
        if let Some(at) = first_wrong(&found, seed, 0) {
            tally.wrong_bytes(format!("byte {at} of memory that a transfer had given back"));
        }
    }

    /// A call on a target failed: what is stale is opened again.
    fn lost(&mut self, target: usize, error: &Error) {
        self.refused(error);
        if matches!(error, Error::PeerGone { .. }) {
            self.forget(target);
        }
    }

    /// The session is over. What was spoilt stays so if the same memory is opened again.
    fn forget(&mut self, target: usize) {
        let Some(known) = self.known[target].take() else { return };
        if self.open(target) {
            if let Some(again) = self.known[target].as_mut() {
                if again.offer.exposure == known.offer.exposure {
                    (again.spoilt, again.acknowledged) = (known.spoilt, known.acknowledged);
                }
            }
        }
    }

    fn refused(&self, error: &Error) {
        let text = format!("{error:?}");
        let kind = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("unknown");
        self.shared.tally.lock().refused(kind);
    }

    /// Carries out what a test has planted.
    fn plant(&mut self) {
        match self.shared.plant {
            Some(Plant::Leak) => {
                // Neither is ever dropped.
                std::mem::forget(File::open("/dev/null"));
                std::mem::forget(self.backing.clone());
            }
            Some(Plant::Hang) => self.impatient = true,
            _ => {}
        }
    }
}

fn kind(error: &TransferError) -> String {
    match error {
        TransferError::Request { error, .. } => format!("{:?}", error.code),
        TransferError::Deadline { fenced: true, .. } => "Deadline".to_string(),
        TransferError::Deadline { fenced: false, .. } => "DeadlineUnfenced".to_string(),
        TransferError::Cancelled { fenced: true, .. } => "Cancelled".to_string(),
        TransferError::Cancelled { fenced: false, .. } => "CancelledUnfenced".to_string(),
        TransferError::Notification(_) => "Notification".to_string(),
        other => format!("{other:?}").split(' ').next().unwrap_or("unknown").to_string(),
    }
}
