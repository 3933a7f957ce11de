//! A worker process: what all roles share. Rule: it ends when its conductor does, and says on stdout what it has to say.

use super::protocol::{Order, Report};
use super::tally::Tally;
use super::{Plant, driver, netns, target};
use anyhow::Context;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use orbit_te::{Backing, Config, HostBuffer, HostOptions};
use parking_lot::Mutex;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long retirements and goodbyes may take when nothing is broken any more.
pub(super) const CALM: Duration = Duration::from_secs(20);

/// Arguments of a worker.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    role: Role,
    /// Its number among its like.
    #[arg(long, default_value_t = 0)]
    pub(super) number: usize,
    /// How many before it had that number.
    #[arg(long, default_value_t = 0)]
    pub(super) life: u64,
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Where a target listens.
    #[arg(long)]
    pub(super) listen: Option<SocketAddr>,
    /// Where a target is to be reached instead.
    #[arg(long)]
    pub(super) advertise: Option<SocketAddr>,
    /// The process whose network namespace it joins.
    #[arg(long)]
    pub(super) netns_of: Option<u32>,
    #[arg(long)]
    pub(super) plant: Option<Plant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// Offers memory.
    Target,
    /// Reads and writes it.
    Driver,
    /// Keeps a network namespace.
    Netns,
}

/// Runs a role until it is told to end, or its conductor is gone.
pub(crate) fn run(args: &WorkerArgs) -> anyhow::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("a signal at the conductor's end")?;
    if let Some(pid) = args.netns_of {
        netns::join(pid)?;
    }
    match args.role {
        Role::Target => target::run(args),
        Role::Driver => driver::run(args),
        Role::Netns => netns::hold(),
    }
}

/// Prints a report.
pub(super) fn say(report: &Report) -> anyhow::Result<()> {
    let line = serde_json::to_string(report)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// The conductor's orders, until it is gone.
pub(super) fn orders() -> impl Iterator<Item = anyhow::Result<Order>> {
    std::io::stdin().lock().lines().map(|line| Ok(serde_json::from_str(&line?)?))
}

/// Says four times a second what was counted, while anybody else holds the counts.
pub(super) fn report_tally(tally: &Arc<Mutex<Tally>>) {
    let tally = Arc::downgrade(tally);
    std::thread::spawn(move || {
        while let Some(tally) = Weak::upgrade(&tally) {
            let report = Report::Tally(tally.lock().clone());
            drop(tally);
            if say(&report).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(250));
        }
    });
}

/// Settings by which a broken peer is found in a second or two.
pub(super) fn config() -> Config {
    let mut config = Config {
        deadline: Duration::from_secs(3),
        control_timeout: Duration::from_secs(2),
        heartbeat: Duration::from_millis(500),
        // The faults are the network's: what goes past it would not meet them.
        shm: None,
        ..Config::default()
    };
    config.tcp.connect_timeout = Duration::from_secs(1);
    config.tcp.unreachable_after = Duration::from_secs(1);
    config.tcp.keepalive = Duration::from_secs(3);
    config
}

/// Backings that were made, to see that they are dropped.
#[derive(Default)]
pub(super) struct Backings(Vec<Weak<Backing>>);

impl Backings {
    pub(super) fn make(&mut self, bytes: u64) -> anyhow::Result<Arc<Backing>> {
        // Resident from the beginning, so that growth is growth.
        let options = HostOptions { prefault_threads: 1, ..HostOptions::default() };
        let buffer = HostBuffer::with_options(usize::try_from(bytes)?, options)?;
        let backing = Arc::new(buffer.into_backing());
        self.0.push(Arc::downgrade(&backing));
        Ok(backing)
    }

    /// How many are still there when they should have been dropped.
    pub(super) fn left(&self) -> u64 {
        let left = || self.0.iter().filter(|backing| backing.strong_count() > 0).count() as u64;
        let until = Instant::now() + Duration::from_secs(2);
        while left() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        left()
    }
}
