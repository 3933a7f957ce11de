//! Making an engine: the builder, and what is checked before anything starts. Rule: a setting that can't work is an error that
//! names it, never adjusted in silence.

use crate::config::Config;
use crate::cpus::CpuList;
use crate::engine::Engine;
use crate::error::Error;
use crate::features::FeatureConfig;
use crate::route::Policy;
use orbit_te_memory::RegistrationLimit;
use orbit_te_shm::ShmConfig;
use orbit_te_tcp::TcpConfig;
use orbit_te_wire::limits::MAX_ADDRESSES;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Makes an [`Engine`].
#[derive(Debug, Clone, Default)]
pub struct EngineBuilder {
    config: Config,
}

impl EngineBuilder {
    /// Where to listen. Anywhere but on the loopback interface needs [`EngineBuilder::trust_network`].
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.config.listen = Some(address);
        self
    }

    /// Does not listen: this engine reaches others and can't be reached.
    pub fn no_listen(mut self) -> Self {
        self.config.listen = None;
        self
    }

    /// The word that every machine of the network may be trusted with the exposed memory.
    pub fn trust_network(mut self, yes: bool) -> Self {
        self.config.trust_network = yes;
        self
    }

    /// The addresses that tokens name, instead of the one listened at; at most 16.
    pub fn advertise(mut self, addresses: Vec<SocketAddr>) -> Self {
        self.config.advertise = addresses;
        self
    }

    /// How long a transfer may take when it is not told otherwise.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.config.deadline = after;
        self
    }

    /// Threads for this engine's own transfers.
    pub fn workers(mut self, count: usize) -> Self {
        self.config.workers = count;
        self
    }

    /// The CPUs that workers' threads keep to: a list for each worker, or one for all; none: anywhere.
    pub fn worker_cpus(mut self, lists: Vec<CpuList>) -> Self {
        self.config.worker_cpus = lists;
        self
    }

    /// Decides how many bytes may be registered.
    pub fn registration_limit(mut self, limit: Arc<dyn RegistrationLimit>) -> Self {
        self.config.registration_limit = limit;
        self
    }

    /// Settings of the TCP transport.
    pub fn tcp(mut self, config: TcpConfig) -> Self {
        self.config.tcp = config;
        self
    }

    /// Settings of the ways to other processes of this host; none: they are reached over TCP like everybody else.
    pub fn shm(mut self, config: Option<ShmConfig>) -> Self {
        self.config.shm = config;
        self
    }

    /// Which routes requests may take, and how they are chosen.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.config.policy = Arc::new(policy);
        self
    }

    /// Changes settings of the transports that are features of the build.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code))] // No feature of this build has settings.
    pub(crate) fn features(mut self, change: impl FnOnce(&mut FeatureConfig)) -> Self {
        change(&mut self.config.features);
        self
    }

    /// All settings at once.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Starts the engine. Takes a few milliseconds; nothing is sent to anybody.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Untrusted`], and [`Error::Transport`] when an address is in use or the system refuses
    /// something.
    pub fn start(self) -> Result<Engine, Error> {
        Engine::start(self.config)
    }
}

pub(crate) fn check(config: &Config) -> Result<(), Error> {
    if config.workers == 0 || config.serving_workers == 0 {
        return Err(Error::Config("an engine needs at least one worker and one serving worker".to_string()));
    }
    let (lists, workers) = (config.worker_cpus.len(), config.workers);
    if lists > 1 && lists != workers {
        return Err(Error::Config(format!(
            "there are {lists} lists of CPUs for {workers} worker(s): give one for each, one for all, or none"
        )));
    }
    if config.heartbeat.is_zero() {
        return Err(Error::Config("a heartbeat of zero would take every peer for gone".to_string()));
    }
    if config.advertise.len() > MAX_ADDRESSES {
        return Err(Error::Config(format!("at most {MAX_ADDRESSES} addresses can be advertised")));
    }
    if let Some(what) = config.tcp.limits.unworkable() {
        return Err(Error::Config(what.to_string()));
    }
    match config.listen {
        Some(at) if !at.ip().is_loopback() && !config.trust_network => Err(Error::Untrusted(at)),
        _ => Ok(()),
    }
}

/// The addresses at which a listener is reached: its own, or the host's where it listens at all of them.
pub(crate) fn reachable_at(listening: SocketAddr) -> Result<Vec<SocketAddr>, Error> {
    if !listening.ip().is_unspecified() {
        return Ok(vec![listening]);
    }
    let all = nix::ifaddrs::getifaddrs().map_err(|e| {
        Error::Config(format!("this host's addresses can't be listed: {e}; set those to advertise"))
    })?;
    let mut found: Vec<SocketAddr> = Vec::new();
    for address in all.filter_map(|a| a.address) {
        let ip: Option<std::net::IpAddr> = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => Some(v4.ip().into()),
            // A link-local address means nothing without the interface it belongs to.
            (_, Some(v6)) if listening.is_ipv6() && !v6.ip().is_unicast_link_local() => Some(v6.ip().into()),
            _ => None,
        };
        if let Some(ip) = ip {
            found.push(SocketAddr::new(ip, listening.port()));
        }
    }
    // Loopback last: it serves only peers on this host.
    found.sort_by_key(|a| a.ip().is_loopback());
    found.truncate(MAX_ADDRESSES);
    Ok(found)
}
