//! What a role is told: `--name value`, each of them known.

use orbit_te::{Completions, Config, Engine, RdmaConfig, RdmaUse, Segment};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub struct Settings {
    /// The device to use.
    pub device: String,
    /// The index in its GID table; none: the best.
    pub gid: Option<u16>,
    pub completions: Completions,
    /// Where the owner listens, or is reached.
    pub at: String,
    /// Bytes of the owner's `pool`, and of the largest transfer.
    pub bytes: usize,
    /// The end of it all, if something hangs.
    pub limit_secs: u64,
    /// Whether no other route may be taken.
    pub demand: bool,
    /// Faults: what failed transfers may name as their cause, as a part of the words; none: no transfer may fail.
    pub causes: Vec<String>,
    /// Faults: whether there has to be a failed transfer.
    pub must_fail: bool,
    /// Faults: whether transfers have to go over another route meanwhile.
    pub must_move_over: bool,
    /// Faults: whether the owner ends in the middle, and another one has its place.
    pub restarts: bool,
    /// Faults: a device that is to be away in the end.
    pub gone: Option<String>,
    /// Faults: the owner's process, whose file descriptors are counted as well.
    pub owner: Option<u32>,
    /// Faults: written when traffic runs; the script breaks something then.
    pub steady: PathBuf,
    /// Faults: written by the script when all is mended.
    pub mended: PathBuf,
}

impl Settings {
    pub fn from(mut words: impl Iterator<Item = String>) -> Settings {
        let mut settings = Settings { bytes: 16 << 20, limit_secs: 60, ..Settings::default() };
        while let Some(name) = words.next() {
            let mut value = || words.next().unwrap_or_else(|| panic!("{name} has no value"));
            match name.as_str() {
                "--device" => settings.device = value(),
                "--gid" => settings.gid = Some(value().parse().unwrap()),
                "--completions" => {
                    settings.completions = match value().as_str() {
                        "polling" => Completions::Polling,
                        "events" => Completions::Events,
                        "adaptive" => Completions::Adaptive,
                        other => panic!("unknown: {other}"),
                    }
                }
                "--at" => settings.at = value(),
                "--bytes" => settings.bytes = value().parse().unwrap(),
                "--limit" => settings.limit_secs = value().parse().unwrap(),
                "--demand" => settings.demand = true,
                "--cause" => settings.causes.push(value()),
                "--must-fail" => settings.must_fail = true,
                "--must-move-over" => settings.must_move_over = true,
                "--restarts" => settings.restarts = true,
                "--gone" => settings.gone = Some(value()),
                "--owner" => settings.owner = Some(value().parse().unwrap()),
                "--steady" => settings.steady = value().into(),
                "--mended" => settings.mended = value().into(),
                other => panic!("unknown: {other}"),
            }
        }
        settings
    }

    /// An engine that has RDMA, or none at all. Processes of one machine are to meet as if they were on two.
    pub fn engine(&self, listen: Option<&str>) -> Engine {
        let rdma = RdmaConfig {
            devices: vec![self.device.clone()],
            gid_index: self.gid,
            completions: self.completions,
            ..RdmaConfig::default()
        };
        let listen = listen.map(|at| at.parse().unwrap());
        let config = Config { listen, trust_network: true, shm: None, ..Config::default() };
        Engine::builder().config(config).rdma(RdmaUse::Required(rdma)).start().unwrap()
    }

    /// Opens a segment of the owner's, which may not listen yet.
    pub fn open(&self, engine: &Engine, name: &str) -> Segment {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match engine.open(&format!("{}/{name}", self.at)).wait(Duration::from_secs(10)) {
                Ok(segment) => return segment,
                Err(error) if Instant::now() < until => {
                    println!("not yet: {error}");
                    std::thread::sleep(Duration::from_millis(200));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}
