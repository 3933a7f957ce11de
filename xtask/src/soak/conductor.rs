//! The run: starts all, breaks and heals one thing after another, and in the end asks what is left. Rule: whatever it
//! broke it heals, and a process that ends without having been told is a problem of its own.

use super::Plant;
use super::child::{Child, Heard, State};
use super::fault::{self, Fault, Planned};
use super::ledger::{Ledger, Survivor};
use super::pattern::Random;
use super::protocol::{Offer, Order, Report};
use super::stage::Stage;
use super::tally::Tally;
use super::vitals::Vitals;
use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(20);
/// A process that runs and says nothing for so long hangs.
const SILENT: Duration = Duration::from_secs(60);
const START: Duration = Duration::from_secs(60);
/// For every step of the end.
const CALM: Duration = Duration::from_secs(45);
/// For sessions with peers that are gone to be given back.
const PARTING: Duration = Duration::from_secs(5);
/// Work before resident memory is taken for what it will be: this, or a part of the run.
const WARM_UP: Duration = Duration::from_secs(20);

/// What heals a fault.
#[derive(Debug, Clone, Copy)]
enum Cure {
    Restart(usize),
    GoOn(usize),
    Unstill(usize),
    Admit(usize),
    Hasten(usize),
    InterfaceUp,
    Unimpair,
}

struct Run {
    stage: Stage,
    heard: Receiver<Heard>,
    offers: Vec<Option<Offer>>,
    cures: Vec<(Instant, Cure)>,
    faults: BTreeMap<Fault, u64>,
    kills: u64,
    broken: Vec<String>,
    /// By place: what it said last of these kinds.
    recovered: BTreeMap<usize, Vec<String>>,
    drained: BTreeMap<usize, (u64, u64)>,
}

pub(super) fn run(length: Duration, seed: u64, plant: Option<Plant>) -> anyhow::Result<Ledger> {
    let (to, heard) = channel();
    let stage = Stage::set(seed, plant, &to)?;
    let offers = vec![None; stage.targets];
    let mut run = Run {
        stage,
        heard,
        offers,
        cures: Vec::new(),
        faults: BTreeMap::new(),
        kills: 0,
        broken: Vec::new(),
        recovered: BTreeMap::new(),
        drained: BTreeMap::new(),
    };
    for skip in &run.stage.skipped {
        crate::step::say_skipped(skip)?;
    }
    // Both survivors have started and have heard of nobody yet.
    run.until(START, "every process has started", |run| run.stage.children.iter().all(|c| c.is_ready))?;
    let began = run.stage.survivors().map(|place| run.vitals(place));
    run.until(START, "every target has made its offer", |run| run.offers.iter().all(Option::is_some))?;
    let start = Instant::now();
    (0..run.stage.children.len()).for_each(|place| run.brief(place));

    let warm = run.chaos(length, seed)?;
    run.calm()?;
    run.drain()?;
    let survivors = run.stage.survivors();
    let ended = run.leave(&began)?;
    let mut tally = Tally::default();
    for child in &run.stage.children {
        tally.add(&child.before);
        tally.add(&child.now);
    }
    let survivors = (0..2).map(|k| {
        let place = survivors[k];
        let name = run.stage.children[place].name.clone();
        let left = run.drained.get(&place).copied();
        if left.is_none() {
            run.broken.push(format!("{name} has not said what is left"));
        }
        let (leases, backings) = left.unwrap_or_default();
        let (began, ended) = (began[k], ended[k]);
        Survivor { name, began, warm_resident_kib: warm[k].resident_kib, ended, leases, backings }
    });
    let survivors = survivors.collect();
    Ok(Ledger {
        seed,
        seconds: start.elapsed().as_secs_f64(),
        survivors,
        faults: run.faults,
        kills: run.kills,
        skipped: run.stage.skipped,
        tally,
        broken: run.broken,
    })
}

impl Run {
    /// Breaks and heals until the time is over; what the survivors held when they had worked for a while.
    fn chaos(&mut self, length: Duration, seed: u64) -> anyhow::Result<[Vitals; 2]> {
        let bar = ProgressBar::new(length.as_secs());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {elapsed_precise} of {len} s  {msg}") {
            bar.set_style(style);
        }
        let mut random = Random::new(seed);
        let begin = Instant::now();
        let warm_up = WARM_UP.min(length / 3);
        let mut warm = None;
        let mut next = fault::next(&mut random);
        let mut due = begin + next.after;
        while begin.elapsed() < length {
            self.attend();
            if warm.is_none() && begin.elapsed() >= warm_up {
                warm = Some(self.stage.survivors().map(|place| self.vitals(place)));
            }
            if Instant::now() >= due {
                if self.inflict(&next)? {
                    *self.faults.entry(next.fault).or_default() += 1;
                }
                next = fault::next(&mut random);
                due = Instant::now() + next.after;
                let transfers: u64 =
                    self.stage.children.iter().map(|c| c.before.transfers + c.now.transfers).sum();
                bar.set_position(begin.elapsed().as_secs());
                bar.set_message(format!("{} kills, {transfers} transfers", self.kills));
            }
        }
        bar.finish_and_clear();
        Ok(warm.unwrap_or_else(|| self.stage.survivors().map(|place| self.vitals(place))))
    }

    /// Hears what was said, for a tick, and heals what is due.
    fn attend(&mut self) {
        let until = Instant::now() + TICK;
        while let Ok(heard) = self
            .heard
            .recv_timeout(until.saturating_duration_since(Instant::now()).max(Duration::from_micros(1)))
        {
            self.hear(heard);
        }
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.cures).into_iter().partition(|(at, _)| *at <= now);
        self.cures = later;
        let due: Vec<(Instant, Cure)> = due;
        for (_, cure) in due {
            self.heal(cure);
        }
        for child in &mut self.stage.children {
            if child.state == State::Running && child.last_heard.elapsed() > SILENT {
                self.broken.push(format!("{} has said nothing for {SILENT:?}", child.name));
                child.last_heard = Instant::now();
            }
        }
    }

    fn hear(&mut self, Heard { place, life, report }: Heard) {
        let child = &mut self.stage.children[place];
        let counts = matches!(report, Some(Report::Tally(_) | Report::Drained { .. }));
        // What a life has counted counts until the next one begins; else nothing is heard of the dead.
        if child.life != life || (child.state == State::Down && !counts) {
            return;
        }
        child.last_heard = Instant::now();
        match report {
            Some(Report::Ready) => {
                child.is_ready = true;
                if life > 0 {
                    self.brief(place);
                }
            }
            Some(Report::Offer(offer)) => {
                let order = Order::Peer(offer.clone());
                let at = offer.target;
                self.offers[at] = Some(offer);
                let targets = self.stage.targets;
                self.stage.children[targets..].iter_mut().for_each(|driver| driver.tell(&order));
            }
            Some(Report::Tally(tally)) => child.now = tally,
            Some(Report::Recovered { unreached }) => {
                self.recovered.insert(place, unreached);
            }
            Some(Report::Drained { leases, backings, tally }) => {
                child.now = tally;
                self.drained.insert(place, (leases, backings));
            }
            None => {
                let how = child.post_mortem();
                self.broken.push(format!("{} (life {life}) ended by itself: {how}", child.name));
                let _ = child.kill();
                self.cures.push((Instant::now(), Cure::Restart(place)));
            }
        }
    }

    /// Tells a driver that has started what there is, and to begin.
    fn brief(&mut self, place: usize) {
        if !self.stage.is_target(place) {
            for offer in self.offers.iter().flatten() {
                self.stage.children[place].tell(&Order::Peer(offer.clone()));
            }
            self.stage.children[place].tell(&Order::Work);
        }
    }

    /// Breaks something, if there is something of the kind to break; whether there was.
    fn inflict(&mut self, planned: &Planned) -> anyhow::Result<bool> {
        let Planned { fault, lasts, pick, .. } = *planned;
        let (targets, all) = (self.stage.targets, self.stage.children.len());
        let places = match fault {
            Fault::KillTarget => 1..targets,
            Fault::KillDriver => targets + 1..all,
            Fault::StopTarget | Fault::Recycle | Fault::Revoke => 0..targets,
            Fault::StopDriver => targets..all,
            Fault::CutLinks | Fault::HalfOpen | Fault::TurnAway | Fault::DelayLinks => {
                0..self.stage.proxies.len()
            }
            Fault::InterfaceDown => 0..usize::from(self.stage.link.is_some()),
            Fault::Netem => 0..usize::from(self.stage.has_netem()),
        };
        if places.is_empty() {
            return Ok(false);
        }
        let at = places.start + (pick % places.len() as u64) as usize;
        let child = &mut self.stage.children[at];
        let is_process = matches!(
            fault,
            Fault::KillTarget
                | Fault::KillDriver
                | Fault::StopTarget
                | Fault::StopDriver
                | Fault::Recycle
                | Fault::Revoke
        );
        if is_process && !child.is_up() {
            return Ok(false);
        }
        let cure = match fault {
            Fault::KillTarget | Fault::KillDriver => {
                child.kill()?;
                self.kills += 1;
                if fault == Fault::KillTarget {
                    self.offers[at] = None;
                }
                Cure::Restart(at)
            }
            Fault::StopTarget | Fault::StopDriver => {
                child.stop()?;
                Cure::GoOn(at)
            }
            Fault::Recycle | Fault::Revoke => {
                child.tell(if fault == Fault::Recycle { &Order::Recycle } else { &Order::Revoke });
                return Ok(true);
            }
            Fault::CutLinks => {
                self.stage.proxies[at].cut();
                return Ok(true);
            }
            Fault::HalfOpen => {
                self.stage.proxies[at].be_still(true);
                Cure::Unstill(at)
            }
            Fault::TurnAway => {
                self.stage.proxies[at].turn_away(true);
                self.stage.proxies[at].cut();
                Cure::Admit(at)
            }
            Fault::DelayLinks => {
                self.stage.proxies[at].delay(Duration::from_millis(1 + pick % 40));
                Cure::Hasten(at)
            }
            Fault::InterfaceDown => {
                self.stage.link.iter().try_for_each(|link| link.set_up(false))?;
                Cure::InterfaceUp
            }
            Fault::Netem => {
                self.stage.link.iter().try_for_each(|link| link.impair(true))?;
                Cure::Unimpair
            }
        };
        self.cures.push((Instant::now() + lasts, cure));
        Ok(true)
    }

    fn heal(&mut self, cure: Cure) {
        let stage = &mut self.stage;
        let healed = match cure {
            Cure::Restart(at) => stage.children[at].restart(),
            Cure::GoOn(at) => stage.children[at].go_on(),
            Cure::Unstill(at) => {
                stage.proxies[at].be_still(false);
                Ok(())
            }
            Cure::Admit(at) => {
                stage.proxies[at].turn_away(false);
                Ok(())
            }
            Cure::Hasten(at) => {
                stage.proxies[at].delay(Duration::ZERO);
                Ok(())
            }
            Cure::InterfaceUp => stage.link.iter().try_for_each(|link| link.set_up(true)),
            Cure::Unimpair => stage.link.iter().try_for_each(|link| link.impair(false)),
        };
        if let Err(error) = healed {
            self.broken.push(format!("{cure:?} failed: {error:#}"));
        }
    }

    /// Heals everything, gives every target fresh memory, and lets every driver reach every target.
    fn calm(&mut self) -> anyhow::Result<()> {
        for (_, cure) in std::mem::take(&mut self.cures) {
            self.heal(cure);
        }
        self.until(START, "every process is up again", |run| {
            run.stage.children.iter().all(Child::is_up) && run.offers.iter().all(Option::is_some)
        })?;
        let old: Vec<u64> = self.offers.iter().flatten().map(|offer| offer.exposure).collect();
        let targets = self.stage.targets;
        self.stage.children[..targets].iter_mut().for_each(|target| target.tell(&Order::Recycle));
        self.until(CALM, "every target has made a new offer", |run| {
            let new = run.offers.iter().flatten().map(|offer| offer.exposure);
            new.zip(&old).all(|(new, old)| new > *old)
        })?;
        let drivers = self.stage.children.len() - targets;
        self.stage.children[targets..].iter_mut().for_each(|driver| driver.tell(&Order::Recover));
        self.until(2 * CALM, "every driver has recovered", |run| run.recovered.len() == drivers)?;
        let unreached = std::mem::take(&mut self.recovered).into_values().flatten();
        self.broken.extend(unreached);
        Ok(())
    }

    /// Ends all work, and all processes but the survivors.
    fn drain(&mut self) -> anyhow::Result<()> {
        let (targets, all) = (self.stage.targets, self.stage.children.len());
        self.stage.children[targets..].iter_mut().for_each(|driver| driver.tell(&Order::Drain));
        self.until(2 * CALM, "every driver has ended its work", |run| {
            (targets..all).all(|place| run.drained.contains_key(&place))
        })?;
        for place in targets + 1..all {
            self.quit(place)?;
        }
        for place in 1..targets {
            self.quit(place)?;
        }
        Ok(())
    }

    /// Parts the survivors, waits until they hold what they held in the beginning, and ends them.
    fn leave(&mut self, began: &[Vitals; 2]) -> anyhow::Result<[Vitals; 2]> {
        for proxy in &self.stage.proxies {
            proxy.turn_away(true);
            proxy.cut();
        }
        let survivors = self.stage.survivors();
        let until = Instant::now() + PARTING;
        let ended = loop {
            self.attend();
            let now = survivors.map(|place| self.vitals(place));
            let all_back = now.iter().zip(began).all(|(now, before)| now.is_back_at(before));
            if all_back || Instant::now() > until {
                break now;
            }
        };
        for place in survivors {
            self.quit(place)?;
        }
        Ok(ended)
    }

    /// Ends a process as it should end; one that does not is a hang.
    fn quit(&mut self, place: usize) -> anyhow::Result<()> {
        self.attend();
        let child = &mut self.stage.children[place];
        child.tell(&Order::Quit);
        match child.ended_within(CALM)? {
            Some(status) if status.success() => {}
            Some(status) => self.broken.push(format!("{} ended with {status}", child.name)),
            None => self.broken.push(format!("{} does not end", child.name)),
        }
        // What it said last.
        self.attend();
        Ok(())
    }

    fn vitals(&self, place: usize) -> Vitals {
        Vitals::of(self.stage.children[place].pid()).unwrap_or_default()
    }

    /// Attends until something holds.
    fn until(&mut self, limit: Duration, what: &str, holds: impl Fn(&Run) -> bool) -> anyhow::Result<()> {
        let until = Instant::now() + limit;
        while !holds(self) {
            if Instant::now() > until {
                bail!("not after {limit:?}: {what}; until then: {:?}", self.broken);
            }
            self.attend();
        }
        Ok(())
    }
}
