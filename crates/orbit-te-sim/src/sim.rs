//! A run: its settings from the seed, its processes, and the loop that moves virtual time. Rule: time moves to the next thing that is
//! due, and everything due then happens in one order.

use crate::app::{App, Counts};
use crate::check::{Checker, Report, Violation, ends, left};
use crate::faults::{Faults, RdmaFaults};
use crate::host::{Ending, Host};
use crate::net::{Net, Shared};
use crate::plant::Plant;
use crate::rdma::Fabric;
use fastrand::Rng;
use orbit_te::{Config, ShmConfig, SocketFolder, TcpConfig};
use orbit_te_wire::Limits;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// For so long the application begins new things.
const ACTIVE_NS: u64 = 2_000_000_000;
/// After the last transfer has ended: time for both sides to notice every loss.
const SETTLE_NS: u64 = 4_000_000_000;
/// A run that is not over by then hangs.
const MOST_NS: u64 = 60_000_000_000;
/// Turns at one instant; more means that somebody turns in circles.
const MOST_TURNS: u32 = 20_000;

/// What a run is, besides its seed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The faults; none: a swarm from the seed.
    pub faults: Option<Faults>,
    /// A fault of the engine to plant.
    pub plant: Option<Plant>,
    /// Whether the processes have RDMA devices; none: the seed decides. All else of a run without is as it was before there were any.
    pub rdma: Option<bool>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// Of everything that happened and when: equal for equal runs.
    pub hash: u64,
    /// Virtual time, in nanoseconds.
    pub virtual_ns: u64,
    /// What was done.
    pub counts: Counts,
    /// The faults that it had.
    pub faults: Faults,
    /// What was found; empty when all promises held.
    pub violations: Vec<Violation>,
}

/// Simulates one seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let swarm = Faults::swarm(&mut rng);
    // Drawn apart, so that a run without RDMA is what it was.
    let mut own = Rng::with_seed(seed ^ u64::from_le_bytes(*b"rdma-sim"));
    let with_rdma = own.bool();
    let rdma_faults = RdmaFaults::swarm(&mut own);
    let with_rdma = options.rdma.unwrap_or(with_rdma);
    let faults =
        options.faults.unwrap_or(if with_rdma { Faults { rdma: rdma_faults, ..swarm } } else { swarm });
    let mut config = config(&mut rng);
    if with_rdma && own.u32(0..4) > 0 {
        // The routes of one host come first.
        config.shm = None;
    }
    let net = Net::new(rng.fork(), faults, options.plant, config.tcp.keepalive.as_nanos() as u64);
    let app = App::new(net.clone(), rng.fork(), ends::bound_ns(&config.tcp));
    let mut sim = Sim { net, app, config, faults, rng, places: Vec::new(), lives: 0, fabric: None };
    for place in 0..sim.rng.u8(2..=4) {
        let address = SocketAddr::from(([10, 0, 0, 1 + place], 7_000));
        sim.places.push(Place { address, host: None, stalled_until: 0, start_at: Some(0) });
    }
    if with_rdma {
        let fabric = Fabric::new(&sim.net, own.fork(), faults.rdma, sim.places.len());
        sim.app.bound_ns += fabric.bound_ns();
        sim.fabric = Some(fabric);
    }
    sim.run();
    let mut net = sim.net.lock();
    sim.app.counts.damaged = net.damage.count;
    let mut outcome = Outcome {
        seed,
        hash: net.trace.hash(),
        virtual_ns: net.now_ns,
        counts: sim.app.counts,
        faults,
        violations: Vec::new(),
    };
    let mut report = std::mem::take(&mut net.report);
    drop(net);
    let net = sim.end(&mut report, &mut outcome.counts);
    // A run that stops at a violation may leave anything.
    if report.found.is_empty() {
        left::check(&net, &mut report);
    }
    outcome.violations = report.found;
    outcome
}

/// Small limits and short times: queues fill and timers fire.
fn config(rng: &mut Rng) -> Config {
    let ms = Duration::from_millis;
    let lanes = rng.u32(1..=3);
    let chunk_bytes = rng.u64(256..4_096);
    let tcp = TcpConfig {
        lanes,
        chunk_bytes,
        lane_window_bytes: chunk_bytes * rng.u64(1..=4),
        lane_fill_bytes: chunk_bytes * rng.u64(0..=2),
        max_ops: rng.u32(4..=64),
        max_links: 64,
        limits: Limits {
            lane_requests: rng.u32(2..=16),
            session_lanes: lanes + rng.u32(0..=3),
            ..Limits::default()
        },
        connect_timeout: ms(300),
        unreachable_after: ms(400),
        reconnect_pause: (ms(5), ms(100)),
        cancel_grace: ms(rng.u64(1..=60)),
        fence_timeout: ms(200),
        keepalive: ms(1_000),
        ..TcpConfig::default()
    };
    Config {
        queued_transfers: rng.usize(4..=32),
        queued_notifications: rng.usize(2..=32),
        control_timeout: ms(400),
        heartbeat: ms(250),
        spin_us: 0,
        tcp,
        shm: rng.bool().then(|| ShmConfig {
            folder: SocketFolder::None,
            chunk_bytes: rng.u64(100..6_000),
            max_ops: rng.u32(2..=64),
            regions: rng.u32(1..=8),
            answer_timeout: ms(200),
            unreachable_after: ms(300),
            reconnect_pause: (ms(5), ms(100)),
            ..ShmConfig::default()
        }),
        ..Config::default()
    }
}

/// Where a process runs, in one life after the other.
struct Place {
    address: SocketAddr,
    host: Option<Host>,
    stalled_until: u64,
    start_at: Option<u64>,
}

struct Sim {
    net: Shared,
    app: App,
    config: Config,
    faults: Faults,
    rng: Rng,
    places: Vec<Place>,
    lives: usize,
    fabric: Option<Fabric>,
}

impl Sim {
    fn run(&mut self) {
        let mut next_fault = self.fault_after(0);
        let mut quiet_since = None;
        let (mut last, mut turns) = (0, 0);
        loop {
            let now_ns = self.next_due(next_fault);
            self.net.lock().set_now(now_ns);
            self.net.lock().run_events();
            self.fabric.iter_mut().for_each(|fabric| fabric.run(now_ns));
            if next_fault.is_some_and(|at| at <= now_ns) {
                self.disturb(now_ns);
                next_fault = self.fault_after(now_ns);
            }
            self.restart(now_ns);
            self.turns(now_ns);
            self.bury(now_ns);
            self.fabric.iter_mut().for_each(|fabric| fabric.after(now_ns));
            turns = if now_ns == last { turns + 1 } else { 0 };
            last = now_ns;
            let mut net = self.net.lock();
            if turns > MOST_TURNS || now_ns > MOST_NS {
                net.report.violated(Checker::Ends, "the run does not come to its end");
            }
            if !net.report.found.is_empty() {
                return;
            }
            drop(net);
            if now_ns >= ACTIVE_NS && !self.app.quiet {
                self.app.quiet = true;
                next_fault = None;
            }
            if self.app.quiet && self.app.is_done() {
                if quiet_since.is_none() {
                    self.fabric.iter_mut().for_each(Fabric::calm);
                }
                let since = *quiet_since.get_or_insert(now_ns);
                if now_ns >= since + SETTLE_NS {
                    return self.check_end();
                }
            }
        }
    }

    fn fault_after(&mut self, now_ns: u64) -> Option<u64> {
        let Faults { stalls, cuts, crashes, shutdowns, .. } = self.faults;
        let rate = stalls + cuts + crashes + shutdowns;
        (rate > 0.0).then(|| now_ns + (-(1.0 - self.rng.f64()).ln() / rate * 1e9) as u64)
    }

    /// The next time at which something is due.
    fn next_due(&mut self, next_fault: Option<u64>) -> u64 {
        let mut net = self.net.lock();
        let now_ns = net.now_ns;
        let woken = std::mem::take(&mut net.woken);
        let of_rdma = self.fabric.as_ref().and_then(Fabric::next_due);
        let first = net.next_event().into_iter().chain(next_fault).chain(of_rdma).min();
        let mut next = first.unwrap_or(u64::MAX);
        drop(net);
        for place in &mut self.places {
            next = next.min(place.start_at.unwrap_or(u64::MAX));
            if let Some(host) = &mut place.host {
                if woken.contains(&host.life) {
                    host.wake_ns = now_ns;
                }
                next = next.min(host.wake_ns.max(place.stalled_until));
            }
        }
        next.max(now_ns)
    }

    fn turns(&mut self, now_ns: u64) {
        let woken = std::mem::take(&mut self.net.lock().woken);
        for Place { host, stalled_until, .. } in &mut self.places {
            let Some(host) = host.as_mut().filter(|_| *stalled_until <= now_ns) else { continue };
            if host.wake_ns <= now_ns || woken.contains(&host.life) {
                let (life, app) = (host.life, &mut self.app);
                host.turn(now_ns, |process, notes| app.act(life, process, notes));
            }
        }
        // Those who stand still hear of it when they go on.
        let stalled = |life: &usize| {
            self.places
                .iter()
                .any(|p| p.stalled_until > now_ns && p.host.as_ref().is_some_and(|h| h.life == *life))
        };
        let late: Vec<usize> = woken.into_iter().filter(stalled).collect();
        for place in &mut self.places {
            if let Some(host) = place.host.as_mut().filter(|h| late.contains(&h.life)) {
                host.wake_ns = now_ns;
            }
        }
    }

    fn restart(&mut self, now_ns: u64) {
        for (number, place) in self.places.iter_mut().enumerate() {
            if place.host.is_none() && place.start_at.is_some_and(|at| at <= now_ns) {
                place.start_at = None;
                let fabric = self.fabric.as_mut();
                let rdma =
                    fabric.and_then(|fabric| Some((fabric.open(number, self.lives)?, fabric.max_ops())));
                let host = Host::start(&self.net, self.lives, place.address, &self.config, rdma);
                host.enter(|process| self.app.begin(self.lives, process));
                self.lives += 1;
                place.host = Some(host);
            }
        }
    }

    /// Something happens to a process.
    fn disturb(&mut self, now_ns: u64) {
        let at = self.rng.usize(..self.places.len());
        let Faults { stalls, cuts, crashes, shutdowns, stall_ms, .. } = self.faults;
        let drawn = self.rng.f64() * (stalls + crashes + shutdowns + cuts);
        let (crash, shutdown) =
            (drawn < crashes, drawn >= crashes + stalls && drawn < crashes + stalls + shutdowns);
        let cut = drawn >= crashes + stalls + shutdowns;
        let (stall_ms, pause_ms) = (self.rng.u64(1..=stall_ms.max(1)), self.rng.u64(1..800));
        let silent = self.rng.bool();
        let place = &mut self.places[at];
        let Some(host) = place.host.as_mut() else { return };
        let life = host.life;
        self.app.counts.disturbances += 1;
        let kind = u64::from(crash) + 2 * u64::from(shutdown);
        self.net.lock().trace.note("disturbed", &[now_ns, life as u64, kind, stall_ms]);
        if cut {
            host.cut();
        } else if crash {
            self.net.lock().crash(life, silent);
            self.app.crashed(life);
            let host = place.host.take();
            kill(&self.net, self.fabric.as_mut(), at, host);
            place.start_at = Some(now_ns + pause_ms * 1_000_000);
            place.stalled_until = 0;
        } else if shutdown {
            if host.ending == Ending::No {
                host.ending = Ending::Asked;
                self.app.leaves(life);
            }
        } else {
            let until = now_ns + stall_ms * 1_000_000;
            let more = until.saturating_sub(place.stalled_until.max(now_ns));
            *self.app.stalled_ns.entry(life).or_default() += more;
            place.stalled_until = place.stalled_until.max(until);
        }
    }

    /// Takes away processes whose engine was shut down.
    fn bury(&mut self, now_ns: u64) {
        for (number, place) in self.places.iter_mut().enumerate() {
            let Some(mut host) = place.host.take_if(|host| host.ending == Ending::Over) else { continue };
            let (life, app) = (host.life, &mut self.app);
            host.turn(now_ns, |process, notes| app.check_left(life, process, notes));
            drop(host);
            let mut found = Report::default();
            self.fabric.iter_mut().for_each(|fabric| fabric.settle(number, &mut found));
            self.net.lock().report.found.append(&mut found.found);
            app.check_given_back(life);
            // What it had not even looked at.
            self.net.lock().crash(life, false);
            app.crashed(life);
            place.start_at = Some(now_ns + app.pause_ns());
        }
    }

    /// Takes everything away; what is left then of the network is kept by something that should be gone.
    fn end(mut self, report: &mut Report, counts: &mut Counts) -> Weak<Mutex<Net>> {
        for (number, place) in self.places.iter_mut().enumerate() {
            let host = place.host.take();
            kill(&self.net, self.fabric.as_mut(), number, host);
        }
        // It has the handles of regions.
        drop(self.app);
        if let Some(mut fabric) = self.fabric.take() {
            fabric.check_end(report);
            counts.rdma_faults = fabric.met();
        }
        report.found.append(&mut self.net.lock().report.found);
        Arc::downgrade(&self.net)
    }

    fn check_end(&mut self) {
        for place in &mut self.places {
            let Some(host) = &mut place.host else { continue };
            let life = host.life;
            let app = &mut self.app;
            // The application's last act of this life is to look at everything.
            let now_ns = self.net.lock().now_ns;
            host.turn(now_ns, |process, notes| app.check_end(life, process, notes));
        }
    }
}

/// Takes a process away in the middle of everything.
fn kill(net: &Shared, fabric: Option<&mut Fabric>, place: usize, host: Option<Host>) {
    let Some(host) = host else { return };
    let Some(fabric) = fabric else { return host.vanish() };
    let mut found = Report::default();
    fabric.killed(place, || host.vanish(), &mut found);
    net.lock().report.found.append(&mut found.found);
}
