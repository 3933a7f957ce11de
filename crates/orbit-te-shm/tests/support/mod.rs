//! What the tests of this crate share: a watchdog, an owner with a door, a client of one link, counts of what a process holds. Rule: every
//! wait has an end.

#![allow(dead_code, unreachable_pub)] // each test binary uses a part of it
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers
#![allow(unsafe_code)]

pub mod child;
pub mod raw;

use orbit_te_memory::{Access, Backing, Domain, HostBuffer, LocalKey, Region, Registry, RemoteKey};
use orbit_te_shm::{Door, SameHostAddress, ShmConfig, ShmDomain, ShmTransport, SocketFolder, Way};
use orbit_te_transport::{
    Completion, Event, LinkId, Op, OpKind, Priority, Progress, RemoteSpan, Token, Transport, Verify,
};
use orbit_te_wire::{PeerId, SessionId, TransportKey};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const SOON: Duration = Duration::from_secs(20);
pub const WAYS: [Way; 2] = [Way::Mapping, Way::Kernel];

/// Ends the process with a report when a test takes longer than it may. Dropping it calls it off.
pub struct Watchdog(Arc<AtomicBool>, Option<JoinHandle<()>>);

pub fn watchdog(test: &'static str, limit: Duration) -> Watchdog {
    let done = Arc::new(AtomicBool::new(false));
    let called_off = done.clone();
    let thread = std::thread::spawn(move || {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if called_off.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        eprintln!("watchdog: `{test}` hangs: not done after {limit:?}");
        std::process::exit(101);
    });
    Watchdog(done, Some(thread))
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        // Not to be counted among the threads of the next test.
        self.1.take().unwrap().join().unwrap();
    }
}

/// Looks until something holds, at most for this long.
#[track_caller]
pub fn eventually(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < until, "not after {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Says aloud that something can't be had here, and counts it where the test command looks.
pub fn skipped(what: &str) {
    use std::io::Write;
    println!("skipped: {what}");
    let Some(file) = std::env::var_os("ORBIT_TE_SKIP_FILE") else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
    file.unwrap().write_all(format!("skipped: {what}\n").as_bytes()).unwrap();
}

/// What this process holds that a lost peer must not leave behind: descriptors, and mappings of ours. Threads there are none of.
pub fn holdings() -> (usize, usize) {
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("orbit-te")).count();
    (count("/proc/self/fd"), ours)
}

/// Small random numbers, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

pub fn config() -> ShmConfig {
    ShmConfig {
        folder: SocketFolder::None,
        unreachable_after: Duration::from_millis(300),
        reconnect_pause: (Duration::from_millis(5), Duration::from_millis(20)),
        ..ShmConfig::default()
    }
}

/// A process's memory and its door, which a thread of its own looks after.
pub struct Owner {
    pub registry: Arc<Registry>,
    pub domain: ShmDomain,
    pub door: Arc<Door>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    sessions: std::cell::Cell<u128>,
}

impl Owner {
    pub fn new(way: Way, config: ShmConfig) -> Owner {
        let registry = Registry::new();
        let domain = ShmDomain::new(way, config.share_parts);
        let door = Door::open(config, &registry).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (own, stopped) = (door.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                if !own.poll(Instant::now()) {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        Owner { registry, domain, door, stop, thread: Some(thread), sessions: std::cell::Cell::new(0) }
    }

    pub fn region(&self, length: usize, fill: u8, access: Access) -> Region {
        let mut buffer = HostBuffer::new(length).unwrap();
        buffer.as_mut_slice().fill(fill);
        self.registry.register(buffer.into_backing(), access).unwrap()
    }

    /// The address for a new session, and its number.
    pub fn admit(&self) -> SameHostAddress {
        self.sessions.set(self.sessions.get() + 1);
        self.door.admit(SessionId(self.sessions.get()), PeerId(99)).unwrap()
    }

    pub fn key(&self, region: &Region) -> RemoteKey {
        self.key_of(region, region.key())
    }

    /// The key for a region under the key of a grant.
    pub fn key_of(&self, region: &Region, key: u64) -> RemoteKey {
        let bytes = self.domain.remote_key(region, key);
        let keys = vec![TransportKey { transport: self.domain.name().to_string(), bytes }];
        self.domain.import(&region.describe(keys)).unwrap()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// One initiator with one link, and memory of its own.
pub struct Client {
    pub transport: ShmTransport,
    pub link: LinkId,
    pub local: Region,
    registry: Arc<Registry>,
    pub done: Vec<Completion>,
    /// What links that fell said.
    pub fallen: Vec<String>,
    pub ups: usize,
    tokens: u64,
}

impl Client {
    pub fn new(way: Way, config: ShmConfig, address: &SameHostAddress, length: usize, fill: u8) -> Client {
        let registry = Registry::new();
        let backing = Backing::from_vec(vec![fill; length]).unwrap();
        let local = registry.register(backing, Access::LOCAL).unwrap();
        let mut transport = ShmTransport::new(config, way).unwrap();
        let link = transport.connect(PeerId(1), &address.encode().unwrap(), Instant::now()).unwrap();
        let (done, fallen) = (Vec::new(), Vec::new());
        Client { transport, link, local, registry, done, fallen, ups: 0, tokens: 0 }
    }

    pub fn connect(&mut self, address: &SameHostAddress) -> LinkId {
        self.transport.connect(PeerId(1), &address.encode().unwrap(), Instant::now()).unwrap()
    }

    pub fn op(&mut self, kind: OpKind, key: RemoteKey, at: u64, length: u64) -> Token {
        let link = self.link;
        self.op_on(link, kind, key, at, length)
    }

    /// Submits an op from or to the same place of our memory.
    pub fn op_on(&mut self, link: LinkId, kind: OpKind, key: RemoteKey, at: u64, length: u64) -> Token {
        self.tokens += 1;
        let op = Op {
            kind,
            link,
            local: self.local.slice(at, length).unwrap().span(LocalKey::of_host(&self.local)),
            remote: RemoteSpan { offset: at, key },
            pieces: None,
            token: Token(self.tokens),
            priority: Priority::Normal,
            verify: Verify::Off,
        };
        // SAFETY: the local region lives as long as the client, whose transport goes first; nothing else touches it meanwhile.
        let taken = unsafe { self.transport.submit(&[op], Instant::now()) };
        assert_eq!(taken, 1, "the table is full");
        Token(self.tokens)
    }

    /// One step; whether anything happened.
    pub fn poll(&mut self) -> bool {
        let mut progress = Progress::default();
        let any = self.transport.poll(Instant::now(), 64, &mut progress);
        self.done.append(&mut progress.completions);
        for event in progress.events {
            match event {
                Event::LinkUp { .. } => self.ups += 1,
                Event::LinkDown { error, .. } => self.fallen.push(error.to_string()),
                Event::Control { .. } => panic!("this transport says nothing over the control link"),
            }
        }
        any
    }

    /// Steps until something holds, at most for this long.
    #[track_caller]
    pub fn until(&mut self, what: &str, limit: Duration, mut holds: impl FnMut(&Client) -> bool) {
        let end = Instant::now() + limit;
        while !holds(self) {
            assert!(Instant::now() < end, "not after {limit:?}: {what}; fallen: {:?}", self.fallen);
            if !self.poll() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Carries an op out and gives its end.
    #[track_caller]
    pub fn carry(&mut self, kind: OpKind, key: RemoteKey, at: u64, length: u64) -> Completion {
        let token = self.op(kind, key, at, length);
        self.until("the op ends", SOON, |client| client.done.iter().any(|done| done.token == token));
        let at = self.done.iter().position(|done| done.token == token).unwrap();
        self.done.swap_remove(at)
    }

    pub fn contents(&self) -> Vec<u8> {
        contents(&self.local)
    }
}

pub fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Byte `at` of the pattern number `seed`.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let byte = |at: u64| {
        (at ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd).to_le_bytes()[7]
    };
    (0..length as u64).map(byte).collect()
}

/// A client of its own writes a pattern there and reads it back: not one byte is wrong.
#[track_caller]
pub fn round_trip(way: Way, address: &SameHostAddress, key: RemoteKey, length: usize, seed: u64) {
    let bytes = pattern(seed, length);
    let mut client = Client::new(way, config(), address, length, 0);
    client.local.write_at(0, &bytes).unwrap();
    let ended = client.carry(OpKind::Write, key, 0, length as u64);
    assert_eq!((ended.result, ended.bytes), (Ok(()), length as u64));
    client.local.write_at(0, &vec![0xee; length]).unwrap();
    let ended = client.carry(OpKind::Read, key, 0, length as u64);
    assert_eq!((ended.result, ended.bytes), (Ok(()), length as u64));
    assert!(client.contents() == bytes, "wrong bytes");
}
