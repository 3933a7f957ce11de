//! An initiator and a target over verbs in memory, driven by hand: links, memory and ops in a few words. Rule: every wait has an end.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // Each test uses its part of it; helpers of tests are tests.
#![allow(unsafe_code)]

use orbit_te_memory::{
    Access, Domain, HostBuffer, LocalKey, LocalSpan, MemoryError, Region, Registration, Registry, RemoteKey,
};
use orbit_te_rdma::fake::{Clock, DeviceSpec, FakeFabric};
use orbit_te_rdma::handle::Retention;
use orbit_te_rdma::{Adapters, RdmaConfig, RdmaDomain, RdmaTarget, RdmaTransport};
use orbit_te_transport::testing::Letters;
use orbit_te_transport::{
    Completion, Counterpart, Event, LinkId, Notice, Op, OpKind, Priority, Progress, RemoteSpan, Say, Token,
    Transport, Verify,
};
use orbit_te_wire::{Incarnation, PeerId, SessionId, TransportKey};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const LIMIT: Duration = Duration::from_secs(20);

/// Regions, and the domain that registers them.
pub struct Memory {
    pub registry: Arc<Registry>,
    pub domains: Vec<Arc<dyn Domain>>,
    pub domain: RdmaDomain,
}

impl Memory {
    pub fn new(fabric: &FakeFabric, host: u32, config: &RdmaConfig) -> Result<Memory, String> {
        let adapters = Adapters::open(&fabric.verbs(host), config).map_err(|error| error.to_string())?;
        let domain = RdmaDomain::new(adapters);
        Ok(Memory { registry: Registry::new(), domains: vec![Arc::new(domain.clone())], domain })
    }

    pub fn region(&self, length: usize, fill: u8, access: Access) -> Result<(Region, LocalKey), String> {
        let mut buffer = HostBuffer::new(length).unwrap();
        buffer.as_mut_slice().fill(fill);
        let entry = Registration::new(buffer.into_backing(), access);
        let done = self.registry.register_all(&[entry], &self.domains).map_err(|error| error.to_string())?;
        let (region, keys) = done.into_iter().next().unwrap();
        Ok((region, keys))
    }

    pub fn key(&self, region: &Region, key: u64) -> Result<RemoteKey, MemoryError> {
        let bytes = self.domain.remote_key(region, key);
        let keys = vec![TransportKey { transport: self.domain.name().to_string(), bytes }];
        self.domain.import(&region.describe(keys))
    }

    pub fn contents(region: &Region, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        region.read_at(at, &mut bytes).unwrap();
        bytes
    }
}

/// What targets have said and the initiator has not heard yet.
type Said = Arc<Mutex<Vec<(SessionId, Vec<u8>)>>>;

struct Saying(SessionId, Said);

impl Say for Saying {
    fn say(&self, bytes: Vec<u8>) -> bool {
        self.1.lock().unwrap().push((self.0, bytes));
        true
    }
}

/// One initiator with one target.
pub struct Sides {
    pub fabric: FakeFabric,
    pub here: Memory,
    pub there: Memory,
    pub transport: RdmaTransport,
    pub target: Arc<RdmaTarget>,
    pub done: Vec<Completion>,
    pub ups: usize,
    /// What links that fell said.
    pub fallen: Vec<String>,
    said: Said,
    links: Vec<(LinkId, SessionId)>,
    tokens: u64,
    /// What the target has taken, where it takes any.
    pub letters: Arc<Letters>,
    /// Bytes of notices, which are kept.
    notes: Vec<Box<[u8]>>,
}

/// Two hosts with a device each.
pub fn two_hosts(fabric: &FakeFabric) {
    for host in 0..2u8 {
        fabric.add_device(DeviceSpec::roce("mlx5_0", [10, 0, 0, host + 1]).on_host(host.into()));
    }
}

pub fn quick() -> RdmaConfig {
    RdmaConfig {
        unreachable_after: Duration::from_millis(300),
        ack_budget: Duration::from_millis(20),
        fence_timeout: Duration::from_millis(200),
        revoke_timeout: Duration::from_millis(60),
        ..RdmaConfig::default()
    }
}

impl Sides {
    pub fn new(fabric: &FakeFabric, config: &RdmaConfig) -> Result<Sides, String> {
        Sides::make(fabric, config, false)
    }

    /// Whose target takes notices.
    pub fn with_letters(fabric: &FakeFabric, config: &RdmaConfig) -> Result<Sides, String> {
        Sides::make(fabric, config, true)
    }

    fn make(fabric: &FakeFabric, config: &RdmaConfig, takes_letters: bool) -> Result<Sides, String> {
        fabric.set_clock(Clock::Real);
        let (here, there) = (Memory::new(fabric, 0, config)?, Memory::new(fabric, 1, config)?);
        let letters = Arc::<Letters>::default();
        let (domain, registry, life) = (&there.domain, &there.registry, Incarnation(2));
        let target = match takes_letters {
            true => RdmaTarget::with_mailbox(domain, registry, life, letters.clone()),
            false => RdmaTarget::new(domain, registry, life),
        };
        let target = target.map_err(|e| e.to_string())?;
        let transport = RdmaTransport::new(&here.domain, Incarnation(1)).map_err(|e| e.to_string())?;
        Ok(Sides {
            fabric: fabric.clone(),
            here,
            there,
            transport,
            target,
            done: Vec::new(),
            ups: 0,
            fallen: Vec::new(),
            said: Said::default(),
            links: Vec::new(),
            tokens: 0,
            letters,
            notes: Vec::new(),
        })
    }

    /// The lists of what can't be freed, of both sides.
    pub fn retentions(&self) -> Vec<Arc<Retention>> {
        [&self.here, &self.there].iter().flat_map(|side| side.domain.adapters().retentions()).collect()
    }

    pub fn connect(&mut self) -> LinkId {
        let session = SessionId(self.links.len() as u128 + 1);
        let said = self.said.clone();
        let say = Arc::new(Saying(session, said));
        let address = self.target.admit(session, PeerId(1), say).unwrap().remove(0).1;
        let link = self.transport.connect(PeerId(2), &address, Instant::now()).unwrap();
        self.links.push((link, session));
        link
    }

    pub fn session(&self, link: LinkId) -> SessionId {
        self.links.iter().find(|known| known.0 == link).unwrap().1
    }

    pub fn op(
        &mut self,
        kind: OpKind,
        link: LinkId,
        (region, key): &(Region, LocalKey),
        at: u64,
        remote: RemoteSpan,
        length: u64,
    ) -> Token {
        self.tokens += 1;
        let op = Op {
            kind,
            link,
            local: region.slice(at, length).unwrap().span(*key),
            remote,
            pieces: None,
            token: Token(self.tokens),
            priority: Priority::Normal,
            verify: Verify::Off,
        };
        // SAFETY: the regions of a test live until its transport is gone.
        let taken = unsafe { self.transport.submit(&[op], Instant::now()) };
        assert_eq!(taken, 1, "the table is full");
        Token(self.tokens)
    }

    /// Offers a notice of a number with these bytes, whatever they are; its token if it was accepted.
    pub fn notice(&mut self, link: LinkId, number: u64, bytes: &[u8]) -> Option<Token> {
        self.tokens += 1;
        let token = Token(self.tokens);
        let bytes: Box<[u8]> = bytes.into();
        let span = LocalSpan {
            address: bytes.as_ptr() as u64,
            length: bytes.len() as u64,
            key: LocalKey::default(),
        };
        self.notes.push(bytes);
        // SAFETY: the bytes are kept as long as the transport.
        let taken =
            unsafe { self.transport.notify(&Notice { link, token, number, bytes: span }, Instant::now()) };
        taken.then_some(token)
    }

    /// The initiator alone; whether anything happened.
    pub fn poll(&mut self) -> bool {
        let now = Instant::now();
        let mut progress = Progress::default();
        let any = self.transport.poll(now, 64, &mut progress);
        self.done.append(&mut progress.completions);
        for event in progress.events {
            match event {
                Event::LinkUp { .. } => self.ups += 1,
                Event::LinkDown { error, .. } => self.fallen.push(error.to_string()),
                Event::Control { link, bytes } => {
                    if let Some((_, session)) = self.links.iter().find(|known| known.0 == link) {
                        self.target.deliver(*session, &bytes, Instant::now()).unwrap();
                    }
                }
            }
        }
        if !any {
            // Whoever drives a transport asks before it sleeps; events of devices are taken then.
            self.transport.arm(now);
        }
        any
    }

    /// The target alone, and what it says.
    pub fn serve(&mut self) -> bool {
        let now = Instant::now();
        let any = self.target.poll(now);
        let said = std::mem::take(&mut *self.said.lock().unwrap());
        for (session, bytes) in said {
            if let Some((link, _)) = self.links.iter().find(|known| known.1 == session) {
                // A link that is gone is not told anything.
                let _ = self.transport.deliver(*link, &bytes, now);
            }
        }
        any
    }

    pub fn step(&mut self) -> bool {
        let served = self.serve();
        self.poll() || served
    }

    /// Steps until something holds, at most for [`LIMIT`].
    #[track_caller]
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Sides) -> bool) {
        let end = Instant::now() + LIMIT;
        while !holds(self) {
            assert!(Instant::now() < end, "not after {LIMIT:?}: {what}; fallen: {:?}", self.fallen);
            if !self.step() {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// The end of an op.
    #[track_caller]
    pub fn end(&mut self, token: Token) -> Completion {
        self.until("the op ends", |sides| sides.done.iter().any(|done| done.token == token));
        let at = self.done.iter().position(|done| done.token == token).unwrap();
        self.done.swap_remove(at)
    }

    /// Withdraws a region of the target, which works meanwhile.
    #[track_caller]
    pub fn retire(&mut self, region: &Region, limit: Duration) -> Result<(), MemoryError> {
        let registry = self.there.registry.clone();
        std::thread::scope(|scope| {
            let retiring = scope.spawn(|| registry.retire(region, limit));
            while !retiring.is_finished() {
                if !self.step() {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            retiring.join().unwrap()
        })
    }
}
