//! An engine's settings. Rule: each says how to size it and what it costs; the defaults need no tuning.

use crate::cpus::CpuList;
use crate::features::FeatureConfig;
use crate::route::Policy;
use orbit_te_memory::{RegistrationLimit, Unlimited};
use orbit_te_shm::ShmConfig;
use orbit_te_tcp::TcpConfig;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Settings of an engine; made by [`crate::Engine::builder`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen; `None`: peers can't reach this engine, it only reaches others. Default 127.0.0.1, a free port.
    pub listen: Option<SocketAddr>,
    /// The addresses that tokens name, instead of the one listened at; at most 16. Default none: the one listened at or, when that
    /// is all interfaces, the host's own.
    pub advertise: Vec<SocketAddr>,
    /// The word that every machine of the network may be trusted with the exposed memory; needed to listen anywhere but on the
    /// loopback interface.
    pub trust_network: bool,
    /// Threads that carry out this engine's own transfers; each peer belongs to one of them. One reaches the line rate of most
    /// links. Default 1.
    pub workers: usize,
    /// The CPUs that workers' threads keep to: a list for each worker, or one for all. A worker's event queues and the queues of its RDMA
    /// connections are made on its CPUs, so that their memory is at that NUMA node, and RDMA rails of that node are tried first. Callers who
    /// wait for a transfer drive it on CPUs of their own. Costs nothing but the kernel's freedom; take CPUs at the network card's node, and no
    /// CPU twice. Default none: workers run anywhere.
    pub worker_cpus: Vec<CpuList>,
    /// Threads that answer peers' requests; each session belongs to one of them. None are started when nothing listens. Default 1.
    pub serving_workers: usize,
    /// How long a worker, a serving thread or a caller who waits looks for more before it sleeps. Sleeping and waking cost 5 to
    /// 50 µs each; a CPU is used meanwhile, and given to others that want it. Zero never spins. Default 50 µs, and zero on a
    /// machine with one CPU.
    pub spin_us: u64,
    /// How long a transfer may take when it is not told otherwise. Default 30 s.
    pub deadline: Duration,
    /// Sessions that peers may have with this engine; more are refused. Each costs some kilobytes, and the sockets and queues of
    /// its control link and lanes. Default 4,096.
    pub peers: usize,
    /// Segments that a peer may have open in one session; opening more is refused. Each costs some hundred bytes. Default 1,024.
    pub session_grants: usize,
    /// Decides how many bytes may be registered: [`orbit_te_memory::ByteLimit`], or one of your own. A backing counts once however
    /// many regions share it, until the last handle of the last of them is gone. Default [`orbit_te_memory::Unlimited`].
    pub registration_limit: Arc<dyn RegistrationLimit>,
    /// Transfers that may be under way; at the limit, submitting waits for room, or fails with [`crate::Error::Full`] where it may
    /// not wait. Each costs about 600 bytes. Default 4,096.
    pub queued_transfers: usize,
    /// Requests that all transfers under way may have together; the limit works as the one of transfers, and a batch of more is
    /// refused. Each costs about 110 bytes. Default 1,048,576.
    pub queued_requests: usize,
    /// Notifications from peers that are kept for [`crate::Engine::notifications`]; further ones are refused. Default 1,024.
    pub queued_notifications: usize,
    /// How long each step of opening a segment (a name, an address, a question) and other questions to a peer may take.
    /// Default 5 s.
    pub control_timeout: Duration,
    /// A silent peer is asked for a sign of life after this time, and given up after three such questions: after four to five times
    /// this time. Not zero. Default 5 s.
    pub heartbeat: Duration,
    /// Settings of the TCP transport.
    pub tcp: TcpConfig,
    /// Settings of the ways to other processes of this host, which are taken where they can be: memory that the peer's engine owns is mapped,
    /// other memory copied by the kernel. `None`: TCP to everybody. One more thread, and two sockets for each peer on this host.
    /// Default [`ShmConfig::default`].
    pub shm: Option<ShmConfig>,
    /// Which routes requests may take, and how they are chosen (`docs/routes.md`). Default [`Policy::default`]: whichever is fastest.
    pub policy: Arc<Policy>,
    /// Settings of the transports that are features of the build.
    pub features: FeatureConfig,
    /// Transports that a test of this crate adds.
    #[cfg(test)]
    pub(crate) extras: Vec<Arc<dyn crate::features::Extra>>,
}

impl Default for Config {
    fn default() -> Config {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        Config {
            listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            advertise: Vec::new(),
            trust_network: false,
            workers: 1,
            worker_cpus: Vec::new(),
            serving_workers: 1,
            spin_us: if cpus > 1 { 50 } else { 0 },
            deadline: Duration::from_secs(30),
            peers: 4096,
            session_grants: 1024,
            registration_limit: Arc::new(Unlimited),
            queued_transfers: 4096,
            queued_requests: 1 << 20,
            queued_notifications: 1024,
            control_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(5),
            tcp: TcpConfig::default(),
            shm: Some(ShmConfig::default()),
            policy: Arc::default(),
            features: FeatureConfig::default(),
            #[cfg(test)]
            extras: Vec::new(),
        }
    }
}
