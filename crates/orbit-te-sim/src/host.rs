//! One life of a simulated process: its runtime, its engine, its serving transport, and the turns by which they move. Rule: a turn
//! does what the threads of a real engine would do until all of them sleep; virtual time stands still meanwhile.

use crate::check::touch::Side;
use crate::check::{queues, touch};
use crate::net::Shared;
use crate::net::control::SimWorld;
use crate::net::stream::{SimNet, SimStream};
use crate::plant::Plant;
use crate::watch::Watched;
use orbit_te::simulation::{Materials, Process};
use orbit_te::{Config, MemoryError, Notifications, Region};
use orbit_te_memory::{Domain, KindSet, LocalKey, Registry, RemoteKey};
use orbit_te_rdma::{RdmaDomain, RdmaTarget, RdmaTransport};
use orbit_te_shm::{Door, ShmDomain, ShmTransport, Way};
use orbit_te_tcp::{Identity, Incoming, TcpDomain, TcpTransport};
use orbit_te_transport::{Arm, Counterpart, Progress, Transport};
use orbit_te_wire::hello::PRELUDE_BYTES;
use orbit_te_wire::{Hello, Incarnation, Limits, PeerId, RegionDescriptor, negotiate};
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

/// How often a process looks at timers of its control plane, which the simulation can't see.
const TICK_NS: u64 = 10_000_000;
/// The shortest time until a process that says it is ready is stepped again.
const SOON_NS: u64 = 10_000;
/// Rounds of one turn; what is left is done in the next.
const ROUNDS: usize = 32;
/// Every task of the control plane has run by then; those that have more to do run in the next turn.
const YIELDS: usize = 3;

/// How far the shutdown of a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    No,
    /// It begins with the next turn.
    Asked,
    /// Peers may answer until then.
    Begun {
        close_at_ns: u64,
    },
    Closed,
    /// Nothing is under way any more.
    Over,
}

/// A process in one of its lives.
pub(crate) struct Host {
    pub(crate) life: usize,
    pub(crate) ending: Ending,
    pub(crate) config: Config,
    pub(crate) wake_ns: u64,
    pub(crate) notifications: Notifications,
    clock_ns: u64,
    net: Shared,
    server: TcpTransport<SimNet>,
    door: Option<Arc<Door>>,
    counterparts: Vec<Arc<dyn Counterpart>>,
    hellos: Vec<(SimStream, Vec<u8>)>,
    progress: Progress,
    rdma_ops: u32,
    process: Process,
    /// Dropped last: what the engine drops may still want to be in it.
    runtime: Runtime,
}

impl Host {
    /// A new life at an address, with so many ops at most on its RDMA devices if it has any.
    pub(crate) fn start(
        net: &Shared,
        life: usize,
        address: SocketAddr,
        config: &Config,
        rdma: Option<(RdmaDomain, u32)>,
    ) -> Host {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O");
        let registry = Registry::new();
        let (identity, now_ns) = {
            let mut net = net.lock();
            net.listen(address, life);
            let peer = PeerId(net.rng.u128(..));
            (Identity { peer, incarnation: Incarnation(life as u64 + 1) }, net.now_ns)
        };
        let transport = |side| {
            let network = SimNet { net: net.clone(), life, side };
            TcpTransport::over(network, config.tcp, identity, &registry)
        };
        let mut server = transport(Side::Answering);
        let mut transports: Vec<Box<dyn Transport>> = Vec::new();
        let mut domains: Vec<Arc<dyn Domain>> = Vec::new();
        // On one host all sockets and mappings are the system's own: they do nothing by themselves, and keep no time.
        for way in config.shm.iter().flat_map(|_| [Way::Mapping, Way::Kernel]) {
            let shm = config.shm.clone().unwrap_or_default();
            domains.push(Arc::new(ShmDomain::new(way, shm.share_parts)));
            let transport = ShmTransport::new(shm, way).expect("an event queue");
            transports.push(Box::new(Watched::new(transport, net, life)));
        }
        if let Some((rdma, _)) = &rdma {
            let transport = RdmaTransport::new(rdma, identity.incarnation).expect("an event queue");
            transports.push(Box::new(Watched::new(transport, net, life)));
            domains.push(Arc::new(rdma.clone()));
        }
        transports.push(Box::new(Watched::new(transport(Side::Asking), net, life)));
        domains.push(Arc::new(Refusing { net: net.clone() }));
        let door = config.shm.clone().map(|shm| Door::open(shm, &registry).expect("a door"));
        let mut counterparts: Vec<Arc<dyn Counterpart>> =
            door.iter().map(|door| door.clone() as Arc<dyn Counterpart>).collect();
        if let Some((rdma, _)) = &rdma {
            counterparts
                .push(RdmaTarget::new(rdma, &registry, identity.incarnation).expect("an event queue"));
        }
        let entered = runtime.enter();
        let process = Process::new(Materials {
            config: config.clone(),
            identity,
            registry: registry.clone(),
            domains,
            addresses: vec![address],
            transports,
            counterparts: counterparts.clone(),
            world: Arc::new(SimWorld { net: net.clone(), life }),
        })
        .expect("descriptors for a process");
        server.deliver_to(process.mailbox());
        let notifications = process.engine().notifications().expect("a new engine has its receiver");
        drop(entered);
        Host {
            life,
            ending: Ending::No,
            config: config.clone(),
            wake_ns: now_ns,
            notifications,
            clock_ns: now_ns,
            net: net.clone(),
            server,
            door,
            counterparts,
            rdma_ops: rdma.map_or(0, |(_, ops)| ops),
            hellos: Vec::new(),
            progress: Progress::with_capacity(16),
            process,
            runtime,
        }
    }

    /// Lets the process do what is due, and the application act.
    pub(crate) fn turn(&mut self, now_ns: u64, act: impl FnOnce(&Process, &mut Notifications)) {
        let Host {
            net,
            server,
            counterparts,
            rdma_ops,
            hellos,
            progress,
            process,
            runtime,
            notifications,
            life,
            config,
            ending,
            ..
        } = self;
        let passed = Duration::from_nanos(now_ns - self.clock_ns);
        self.clock_ns = now_ns;
        let wake = runtime.block_on(async {
            if !passed.is_zero() {
                tokio::time::advance(passed).await;
            }
            let now = tokio::time::Instant::now().into_std();
            let mut turn = Turn {
                net,
                server,
                counterparts,
                hellos,
                progress,
                process,
                life: *life,
                now,
                limits: config.tcp.limits,
            };
            let mut wake = turn.rounds().await;
            act(turn.process, notifications);
            turn.end(ending, now_ns);
            wake = wake.min(turn.rounds().await);
            wake
        });
        self.wake_ns = now_ns + wake.map_or(TICK_NS, |after| after.clamp(SOON_NS, TICK_NS));
        let mut net = net.lock();
        let net = &mut *net;
        let more = if net.plant == Some(Plant::OverfullQueue) { config.queued_transfers } else { 0 };
        let under_way = process.under_way() + if process.under_way() > 0 { more } else { 0 };
        queues::check(*life, "transfers", under_way, config.queued_transfers, &mut net.report);
        let ops = net.live.get(life).map_or(0, |live| live.len());
        let others = config.shm.as_ref().map_or(0, |shm| 2 * shm.max_ops) + *rdma_ops;
        queues::check(*life, "ops", ops, (config.tcp.max_ops + others) as usize, &mut net.report);
    }

    /// Its connections to processes of its host are cut.
    pub(crate) fn cut(&mut self) {
        self.door.as_ref().inspect(|door| door.disconnect_all());
    }

    /// The process is gone, without a shutdown.
    pub(crate) fn vanish(self) {
        self.process.vanish();
    }

    /// Runs something as the process.
    pub(crate) fn enter<T>(&self, f: impl FnOnce(&Process) -> T) -> T {
        let _entered = self.runtime.enter();
        f(&self.process)
    }
}

struct Turn<'a> {
    net: &'a Shared,
    server: &'a mut TcpTransport<SimNet>,
    counterparts: &'a [Arc<dyn Counterpart>],
    hellos: &'a mut Vec<(SimStream, Vec<u8>)>,
    progress: &'a mut Progress,
    process: &'a Process,
    life: usize,
    now: Instant,
    limits: Limits,
}

/// Nanoseconds until something is due; by this order, none is the latest.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wake(Option<u64>);

impl Wake {
    fn min(self, other: Wake) -> Wake {
        Wake(self.0.into_iter().chain(other.0).min())
    }

    fn map_or(self, none: u64, f: impl FnOnce(u64) -> u64) -> u64 {
        self.0.map_or(none, f)
    }
}

impl Turn<'_> {
    /// Goes on with a shutdown, as far as that is possible now.
    fn end(&mut self, ending: &mut Ending, now_ns: u64) {
        *ending = match *ending {
            Ending::Asked => {
                self.net.lock().stop_listening(self.life);
                let planted = self.net.lock().plant == Some(Plant::ShutDownTooSoon);
                if planted {
                    return *ending = Ending::Over;
                }
                let limit = self.process.begin_end();
                self.server.close(self.now);
                Ending::Begun { close_at_ns: now_ns + limit.as_nanos() as u64 }
            }
            Ending::Begun { close_at_ns } if self.process.is_idle() || now_ns >= close_at_ns => {
                self.process.close();
                self.counterparts.iter().for_each(|one| one.close());
                Ending::Closed
            }
            Ending::Closed if self.process.is_idle() => Ending::Over,
            other => other,
        };
    }

    /// Moves everything until nothing moves.
    async fn rounds(&mut self) -> Wake {
        let mut wake = Wake(None);
        for _ in 0..ROUNDS {
            for _ in 0..YIELDS {
                yield_now().await;
            }
            let mut any = self.take_connections();
            any |= self.process.serve(self.server, self.now);
            self.progress.clear();
            any |= self.server.poll(self.now, 16, self.progress);
            for counterpart in self.counterparts {
                any |= counterpart.poll(self.now);
            }
            let (stepped, worker) = self.process.step();
            let server = match self.server.arm(self.now) {
                Arm::Ready => Some(self.now),
                Arm::Sleep { until, .. } => until,
            };
            let next = worker.into_iter().chain(server).min();
            wake = Wake(next.map(|at| at.saturating_duration_since(self.now).as_nanos() as u64));
            if !any && !stepped {
                break;
            }
        }
        wake
    }

    /// What the listening thread does: takes connections, and hands on those whose hello is complete.
    fn take_connections(&mut self) -> bool {
        let mut any = false;
        while let Some(at) = { self.net.lock() }.accept(self.life) {
            self.hellos.push((SimStream::new(self.net.clone(), at, self.life, Side::Answering), Vec::new()));
            any = true;
        }
        let waiting = std::mem::take(self.hellos);
        for (mut stream, mut got) in waiting {
            match read_hello(&mut stream, &mut got, &self.limits) {
                Ok(None) => self.hellos.push((stream, got)),
                Ok(Some((hello, terms))) => {
                    let from = SocketAddr::from(([10, 0, 0, 0], 1));
                    let connection = Incoming { stream, from, hello, terms };
                    let (server, process) = (&mut *self.server, self.process);
                    process.let_in(connection, |connection| {
                        // A lane that is refused was told so.
                        let _ = server.adopt(connection);
                    });
                    any = true;
                }
                Err(()) => any = true,
            }
        }
        any
    }
}

/// Reads as far as bytes are there; the hello when it is complete.
fn read_hello(
    stream: &mut SimStream,
    got: &mut Vec<u8>,
    ours: &Limits,
) -> Result<Option<(Hello, negotiate::Terms)>, ()> {
    loop {
        let prelude = match got.first_chunk::<PRELUDE_BYTES>() {
            Some(head) => Some(Hello::decode_prelude(head).map_err(|_| ())?),
            None => None,
        };
        let wanted = PRELUDE_BYTES + prelude.map_or(0, |p| p.body_bytes as usize);
        if let Some(prelude) = prelude.filter(|_| got.len() == wanted) {
            let hello = Hello::decode_body(&got[PRELUDE_BYTES..]).map_err(|_| ())?;
            let terms = negotiate::terms(&prelude, &hello, ours).map_err(|_| ())?;
            return Ok(Some((hello, terms)));
        }
        let mut bytes = vec![0; wanted - got.len()];
        match stream.read(&mut bytes) {
            Ok(0) => return Err(()),
            Ok(count) => got.extend_from_slice(&bytes[..count]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(_) => return Err(()),
        }
    }
}

/// TCP's domain, which sometimes refuses.
struct Refusing {
    net: Shared,
}

impl Domain for Refusing {
    fn name(&self) -> &'static str {
        TcpDomain.name()
    }

    fn kinds(&self) -> KindSet {
        TcpDomain.kinds()
    }

    fn register(&self, region: &orbit_te_memory::Region) -> Result<LocalKey, MemoryError> {
        let mut net = self.net.lock();
        let probability = net.faults.refuse_registration;
        if net.chance(probability) {
            return Err(MemoryError::Refused { domain: TcpDomain.name(), reason: "a fault".to_string() });
        }
        TcpDomain.register(region)
    }

    fn remote_key(&self, region: &orbit_te_memory::Region, key: u64) -> Vec<u8> {
        TcpDomain.remote_key(region, key)
    }

    fn deregister(&self, region: &orbit_te_memory::Region, key: LocalKey) -> Result<(), MemoryError> {
        TcpDomain.deregister(region, key)
    }

    fn import(&self, descriptor: &RegionDescriptor) -> Result<RemoteKey, MemoryError> {
        TcpDomain.import(descriptor)
    }

    fn forget(&self, key: RemoteKey) {
        TcpDomain.forget(key);
    }
}

/// Puts a region on the map of memory that is watched.
pub(crate) fn watch(map: &mut touch::Map, life: usize, region: &Region) -> u64 {
    let address = region.raw().as_ptr().as_ptr() as u64;
    map.add(address, life, region.clone());
    address
}
