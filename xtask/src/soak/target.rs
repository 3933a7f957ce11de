//! A target: offers memory that drivers read and write, looks at every byte they wrote, and from time to time takes the
//! memory back and offers it anew. Rule: what is refilled was retired before, so that a byte which lands late is found.

use super::Plant;
use super::pattern::{fill, first_wrong, mix};
use super::protocol::{Note, Offer, Order, READ_BYTES, Report, TARGET_BYTES, Verdict, slot_at, verdict_at};
use super::tally::Tally;
use super::worker::{Backings, CALM, WorkerArgs, config, orders, report_tally, say};
use orbit_te::{Access, Backing, Engine, Error, MemoryError, Notification, Notifications, Region};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PIECE_BYTES: usize = 256 << 10;
/// Numbers of notes that are remembered of one hand.
const REMEMBERED: usize = 64;

/// Memory as it is offered now.
struct Exposure {
    number: u64,
    seed: u64,
    name: String,
    region: Region,
}

/// What was heard from one hand of one driver.
#[derive(Default)]
struct Heard {
    life: u64,
    exposure: u64,
    numbers: BTreeSet<u64>,
    /// The highest number that is not remembered any more.
    forgotten: u64,
}

struct Target {
    number: usize,
    engine: Engine,
    backing: Arc<Backing>,
    seed: u64,
    /// Held while bytes are compared, so that memory under comparison is not refilled.
    exposure: Mutex<Exposure>,
    tally: Arc<Mutex<Tally>>,
    plant: Option<Plant>,
}

pub(super) fn run(args: &WorkerArgs) -> anyhow::Result<()> {
    let mut config = config(args.number);
    config.listen = args.listen.or(config.listen);
    config.advertise = args.advertise.into_iter().collect();
    config.trust_network = args.netns_of.is_some();
    let engine = Engine::builder().config(config).start()?;
    let notifications = engine.notifications();
    let mut backings = Backings::default();
    // Of those who are met on this host some have the one kind of memory and some the other, and change it with each life.
    let external = (args.number as u64 / 2 + args.life) % 2 == 1;
    let backing = backings.make(TARGET_BYTES, external)?;
    let seed = mix(args.seed ^ mix(args.number as u64) ^ mix(args.life << 20));
    let first = args.life << 32;
    let exposure = Mutex::new(offer(&engine, &backing, first, seed)?);
    let tally = Arc::new(Mutex::new(Tally::default()));
    let target = Target { number: args.number, engine, backing, seed, exposure, tally, plant: args.plant };
    target.announce(&target.exposure.lock())?;
    report_tally(&target.tally);

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| target.listen(notifications, &stop));
        say(&Report::Ready)?;
        let ended = target.obey();
        stop.store(true, Ordering::Release);
        ended
    })?;
    let Target { engine, backing, exposure, tally, .. } = target;
    let leases = exposure.lock().region.leases();
    drop((exposure, backing));
    say(&Report::Drained { leases, backings: backings.left(), tally: tally.lock().clone() })?;
    engine.shutdown();
    Ok(())
}

/// Fills memory and exposes it.
fn offer(engine: &Engine, backing: &Arc<Backing>, number: u64, seed: u64) -> anyhow::Result<Exposure> {
    let seed = mix(seed ^ number);
    let region = engine.register(backing.clone(), Access::SHARED)?;
    let mut piece = vec![0; PIECE_BYTES];
    for at in (0..READ_BYTES).step_by(PIECE_BYTES) {
        fill(&mut piece, seed, at);
        region.write_at(at, &piece)?;
    }
    let name = format!("pool-{number:x}");
    engine.expose(&name, &region)?;
    Ok(Exposure { number, seed, name, region })
}

impl Target {
    fn announce(&self, exposure: &Exposure) -> anyhow::Result<()> {
        // Exposing again gives the token of what the region is by now.
        self.engine.withdraw(&exposure.name);
        let token = self.engine.expose(&exposure.name, &exposure.region)?;
        let at = self.engine.address().map_or_else(String::new, |at| at.to_string());
        let address = format!("{at}/{}", exposure.name);
        let (target, token) = (self.number, token.to_token()?);
        say(&Report::Offer(Offer { target, exposure: exposure.number, seed: exposure.seed, token, address }))
    }

    /// Carries out orders until the last; the memory is retired then.
    fn obey(&self) -> anyhow::Result<()> {
        for order in orders() {
            match order? {
                Order::Recycle => {
                    let mut exposure = self.exposure.lock();
                    self.retire(&exposure.region);
                    *exposure = offer(&self.engine, &self.backing, exposure.number + 1, self.seed)?;
                    self.announce(&exposure)?;
                }
                Order::Revoke => {
                    let mut exposure = self.exposure.lock();
                    match self.engine.revoke(&exposure.region, Duration::from_secs(3)) {
                        Ok(()) => self.tally.lock().revokes += 1,
                        Err(Error::Memory(MemoryError::StillLeased { .. })) => {
                            self.tally.lock().still_leased += 1;
                            self.retire(&exposure.region);
                            *exposure = offer(&self.engine, &self.backing, exposure.number, self.seed)?;
                        }
                        Err(error) => return Err(error.into()),
                    }
                    exposure.number += 1;
                    self.announce(&exposure)?;
                }
                Order::Drain | Order::Quit => break,
                Order::Peer(_) | Order::Work | Order::Recover | Order::Wire { .. } => {}
            }
        }
        self.retire(&self.exposure.lock().region);
        Ok(())
    }

    /// Takes memory back, for which peers that are stopped or cut off may make it wait.
    fn retire(&self, region: &Region) {
        let until = Instant::now() + CALM;
        while let Err(error) = self.engine.retire(region, Duration::from_secs(3)) {
            let mut tally = self.tally.lock();
            tally.still_leased += 1;
            if Instant::now() > until {
                tally.hang(format!("target {}: memory is not given back: {error}", self.number));
                break;
            }
        }
        self.tally.lock().retires += 1;
    }

    fn listen(&self, notifications: Option<Notifications>, stop: &AtomicBool) {
        let Some(mut notifications) = notifications else { return };
        let mut heard = HashMap::new();
        while !stop.load(Ordering::Acquire) {
            if let Some(notification) = notifications.recv_for(Duration::from_millis(50)) {
                self.hear(&notification, &mut heard);
            }
        }
    }

    fn hear(&self, notification: &Notification, heard: &mut HashMap<(u64, u64), Heard>) {
        let note: Note = match serde_json::from_slice(&notification.payload) {
            Ok(note) => note,
            Err(error) => {
                let what = format!("target {}: a notification that is none of ours: {error}", self.number);
                return self.tally.lock().wrong_notification(what);
            }
        };
        let exposure = self.exposure.lock();
        let heard = heard.entry((note.driver, note.hand)).or_default();
        // A connection that was given up may still bring notes, after those of its successor.
        if (note.life, note.exposure) < (heard.life, heard.exposure) {
            return;
        }
        if (note.life, note.exposure) != (heard.life, heard.exposure) {
            *heard = Heard { life: note.life, exposure: note.exposure, ..Heard::default() };
        }
        let wrong = |why: &str| {
            let who = format!("target {} from driver {} hand {}", self.number, note.driver, note.hand);
            self.tally.lock().wrong_notification(format!("{who}: note {} {why}", note.number));
        };
        if !heard.numbers.insert(note.number) {
            wrong("came twice");
        }
        if note.acknowledged > heard.forgotten && !heard.numbers.contains(&note.acknowledged) {
            wrong(&format!("is here, and {} that was acknowledged before is not", note.acknowledged));
        }
        while heard.numbers.len() > REMEMBERED {
            heard.forgotten = heard.numbers.pop_first().unwrap_or(heard.forgotten);
        }
        self.tally.lock().notifications += 1;
        if let (Some(write), true) = (note.write, note.exposure == exposure.number) {
            self.look_at(&exposure, &note, write);
        }
    }

    /// Compares what was written, and says so where the writer reads it.
    fn look_at(&self, exposure: &Exposure, note: &Note, (slot, seed, length): (u64, u64, u64)) {
        let mut found = vec![0; length as usize];
        if self.plant == Some(Plant::WrongByte) && note.number % 3 == 0 {
            let _ = exposure.region.write_at(slot_at(slot) + length / 2, &[0xa5]);
            let _ = exposure.region.write_at(slot_at(slot) + length / 3, &[0x5a]);
        }
        if exposure.region.read_at(slot_at(slot), &mut found).is_err() {
            return;
        }
        let wrong = first_wrong(&found, seed, 0).map(|at| at as u64);
        let mut tally = self.tally.lock();
        tally.checked_bytes += length;
        if let Some(at) = wrong {
            tally.wrong_bytes(format!(
                "target {}: byte {at} of {length} that driver {} hand {} wrote to slot {slot}",
                self.number, note.driver, note.hand
            ));
        }
        drop(tally);
        let verdict = Verdict { exposure: exposure.number, number: note.number, wrong };
        let _ = exposure.region.write_at(verdict_at(slot), &verdict.encode());
    }
}
