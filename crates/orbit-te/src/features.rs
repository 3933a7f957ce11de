//! Which transports an engine has: what makes memory reachable for them, what its workers move bytes by, and what its peers reach. Rule: all
//! of them in the order in which routes are preferred, the one that reaches everybody last; a transport that a feature of the build adds
//! has its lines here and nowhere else.

#[cfg(feature = "rdma")]
use crate::builder::EngineBuilder;
use crate::config::Config;
#[cfg(feature = "rdma")]
use crate::cpus::CpuList;
use crate::error::Error;
use crate::place::WorkerPlace;
use crate::route::{Reason, RouteId};
use orbit_te_memory::{Domain, Registry};
#[cfg(feature = "rdma")]
use orbit_te_rdma::sys::{SystemVerbs, Verbs};
#[cfg(feature = "rdma")]
use orbit_te_rdma::{Adapters, Placement, RdmaConfig, RdmaDomain, RdmaTarget, RdmaTransport};
use orbit_te_shm::{Door, Obstacle, ShmConfig, ShmDomain, ShmTransport, Way};
use orbit_te_tcp::{Identity, TcpConfig, TcpDomain, TcpTransport};
#[cfg(feature = "rdma")]
use orbit_te_transport::TransportError;
use orbit_te_transport::{Counterpart, Mailbox, Transport};
use orbit_te_wire::RegionDescriptor;
use std::sync::Arc;

/// What the crate shows of the transports that are features of the build.
#[allow(unreachable_pub)] // What is in it is shown by the crate.
pub mod exports {
    pub use super::FeatureConfig;
    #[cfg(feature = "rdma")]
    pub use super::{RdmaUse, rdma_here};
    #[cfg(feature = "rdma")]
    pub use orbit_te_rdma::{Completions, RdmaConfig, Unavailable as RdmaUnavailable};
}

/// The ways to other processes of this host, in the order of preference.
const WAYS: [Way; 2] = [Way::Mapping, Way::Kernel];

/// Settings of the transports that are features of the build. They are changed by the builder.
#[derive(Debug, Clone, Default)]
pub struct FeatureConfig {
    /// How RDMA is used.
    #[cfg(feature = "rdma")]
    pub(crate) rdma: RdmaUse,
}

/// How RDMA is used.
#[cfg(feature = "rdma")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RdmaUse {
    /// Not at all.
    Off,
    /// Where it can be: without a library, a device or the right to it the engine goes without, and says so in its log. Memory that a device
    /// does not take (the limit of locked memory is too low) is reached by other routes.
    WherePossible(RdmaConfig),
    /// Or the engine does not start, and memory that a device does not take is refused.
    Required(RdmaConfig),
}

#[cfg(feature = "rdma")]
impl Default for RdmaUse {
    fn default() -> RdmaUse {
        RdmaUse::WherePossible(RdmaConfig::default())
    }
}

#[cfg(feature = "rdma")]
impl RdmaUse {
    /// Whether an engine of these settings starts, as far as they tell: opens the devices, and lets go of them.
    ///
    /// # Errors
    /// [`Error::Config`], as the engine would say it.
    pub fn check(&self) -> Result<(), Error> {
        self.open().map(drop)
    }

    /// Opens the devices; none where they are not used.
    fn open(&self) -> Result<Option<RdmaDomain>, Error> {
        let (config, required) = match self {
            RdmaUse::Off => return Ok(None),
            RdmaUse::WherePossible(config) => (config, false),
            RdmaUse::Required(config) => (config, true),
        };
        let missing = |why: &dyn std::fmt::Display| format!("rdma: unavailable, because {why}");
        let verbs: Arc<dyn Verbs> = match SystemVerbs::load() {
            Ok(verbs) => Arc::new(verbs),
            Err(why) if required => return Err(Error::Config(missing(&why))),
            // Most hosts have none.
            Err(why) => {
                tracing::debug!("{}", missing(&why));
                return Ok(None);
            }
        };
        match Adapters::open(&verbs, config) {
            Ok(adapters) if required => Ok(Some(RdmaDomain::new(adapters))),
            Ok(adapters) => Ok(Some(RdmaDomain::where_possible(adapters))),
            Err(why) if required => Err(Error::Config(missing(&why))),
            Err(why) => {
                tracing::warn!("{}", missing(&why));
                Ok(None)
            }
        }
    }
}

/// Whether this process finds RDMA verbs here, as an engine does when it starts: the library, a device, and the right to it. No device is
/// opened.
///
/// # Errors
/// What is missing, and what to do about it.
#[cfg(feature = "rdma")]
pub fn rdma_here() -> Result<(), orbit_te_rdma::Unavailable> {
    SystemVerbs::load().map(|_| ())
}

#[cfg(feature = "rdma")]
impl EngineBuilder {
    /// How RDMA is used. Default [`RdmaUse::WherePossible`], with the default settings.
    pub fn rdma(self, how: RdmaUse) -> EngineBuilder {
        self.features(|features| features.rdma = how)
    }
}

/// The transports of one engine. Made once, when it starts; what they share, such as a device, is here.
pub(crate) struct Features {
    shm: Option<ShmConfig>,
    tcp: TcpConfig,
    #[cfg(feature = "rdma")]
    rdma: Option<RdmaDomain>,
    #[cfg(test)]
    extras: Vec<Arc<dyn Extra>>,
}

/// A transport that a test adds, before the one that reaches everybody.
#[cfg(test)]
pub(crate) trait Extra: std::fmt::Debug + Send + Sync {
    fn domain(&self) -> Arc<dyn Domain>;
    fn transport(&self) -> Box<dyn Transport>;
    fn counterpart(&self, registry: &Registry, mailbox: &Arc<dyn Mailbox>) -> Option<Arc<dyn Counterpart>>;
}

impl Features {
    /// Those that an engine of these settings has.
    ///
    /// # Errors
    /// [`Error::Config`] for one that is required and can't be had.
    pub(crate) fn of(config: &Config) -> Result<Features, Error> {
        Ok(Features {
            shm: config.shm.clone(),
            tcp: config.tcp,
            #[cfg(feature = "rdma")]
            rdma: config.features.rdma.open()?,
            #[cfg(test)]
            extras: config.extras.clone(),
        })
    }

    /// What makes memory reachable.
    pub(crate) fn domains(&self) -> Vec<Arc<dyn Domain>> {
        let mut domains: Vec<Arc<dyn Domain>> = Vec::new();
        if let Some(shm) = &self.shm {
            domains.extend(WAYS.map(|way| Arc::new(ShmDomain::new(way, shm.share_parts)) as Arc<dyn Domain>));
        }
        #[cfg(feature = "rdma")]
        domains.extend(self.rdma.iter().map(|rdma| Arc::new(rdma.clone()) as Arc<dyn Domain>));
        #[cfg(test)]
        domains.extend(self.extras.iter().map(|extra| extra.domain()));
        domains.push(Arc::new(TcpDomain));
        domains
    }

    /// The names of devices' ports at a NUMA node.
    pub(crate) fn near(&self, node: Option<u16>) -> Vec<String> {
        #[cfg(feature = "rdma")]
        if let (Some(rdma), true) = (&self.rdma, node.is_some()) {
            let all = rdma.adapters().nodes().into_iter();
            return all.filter(|(_, at)| *at == node).map(|(name, _)| name).collect();
        }
        let _ = node;
        Vec::new()
    }

    /// What one worker moves bytes by.
    pub(crate) fn transports(
        &self,
        identity: Identity,
        registry: &Registry,
        place: &WorkerPlace,
    ) -> Result<Vec<Box<dyn Transport>>, Error> {
        let mut transports: Vec<Box<dyn Transport>> = Vec::new();
        if let Some(shm) = &self.shm {
            for way in WAYS {
                transports.push(Box::new(ShmTransport::new(shm.clone(), way)?));
            }
        }
        #[cfg(feature = "rdma")]
        if let Some(rdma) = &self.rdma {
            let failed = |source| TransportError::Io { what: "an event queue".to_string(), source };
            let cpus: Vec<usize> = place.cpus.iter().flat_map(CpuList::cpus).collect();
            let transport = RdmaTransport::new(rdma, identity.incarnation).map_err(failed)?;
            transports.push(Box::new(transport.placed(Placement::new(&cpus, place.node))));
        }
        #[cfg(not(feature = "rdma"))]
        let _ = place;
        #[cfg(test)]
        transports.extend(self.extras.iter().map(|extra| extra.transport()));
        transports.push(Box::new(TcpTransport::new(self.tcp, identity, registry)?));
        Ok(transports)
    }

    /// What peers reach beside the lanes, which come by the listener.
    pub(crate) fn counterparts(
        &self,
        identity: Identity,
        registry: &Registry,
        mailbox: &Arc<dyn Mailbox>,
    ) -> Result<Vec<Arc<dyn Counterpart>>, Error> {
        let mut counterparts: Vec<Arc<dyn Counterpart>> = Vec::new();
        if let Some(shm) = &self.shm {
            counterparts.push(Door::open(shm.clone(), registry)?);
        }
        #[cfg(feature = "rdma")]
        if let Some(rdma) = &self.rdma {
            let (life, mailbox) = (identity.incarnation, mailbox.clone());
            counterparts.push(RdmaTarget::with_mailbox(rdma, registry, life, mailbox)?);
        }
        #[cfg(not(feature = "rdma"))]
        let _ = (identity, mailbox);
        #[cfg(test)]
        counterparts.extend(self.extras.iter().filter_map(|extra| extra.counterpart(registry, mailbox)));
        Ok(counterparts)
    }
}

/// Why a peer's region, which a route's domain has imported, can't be reached by it all the same, as far as its descriptor tells.
pub(crate) fn obstacle(route: RouteId, descriptor: &RegionDescriptor) -> Option<Reason> {
    let way = match route {
        RouteId::SHM => Way::Mapping,
        RouteId::PROCESS_VM => Way::Kernel,
        _ => return None,
    };
    ShmDomain::new(way, false).obstacle(descriptor).map(|obstacle| match obstacle {
        Obstacle::NotOffered => Reason::NotOffered,
        Obstacle::NotShareable => Reason::NotShared,
        Obstacle::PartOfBuffer => Reason::PartOfBuffer,
        Obstacle::WriteOnly => Reason::WriteOnly,
    })
}

/// Whether a peer that is met by a route is on this host.
pub(crate) fn is_of_one_host(route: RouteId) -> bool {
    [RouteId::SHM, RouteId::PROCESS_VM].contains(&route)
}

#[cfg(test)]
mod tests {
    use super::Features;
    use crate::config::Config;
    use crate::mailbox::Inbox;
    use crate::place::WorkerPlace;
    use crate::route::RouteId;
    use orbit_te_memory::Registry;
    use orbit_te_shm::ShmConfig;
    use orbit_te_tcp::Identity;

    #[test]
    fn all_name_the_same_routes_in_the_same_order() {
        for shm in [None, Some(ShmConfig::default())] {
            let features = Features::of(&Config { shm, ..Config::default() }).unwrap();
            let registry = Registry::new();
            let mailbox: std::sync::Arc<dyn orbit_te_transport::Mailbox> =
                std::sync::Arc::new(Inbox::new(1).0);
            let domains: Vec<_> = features.domains().iter().map(|domain| domain.name()).collect();
            let transports =
                features.transports(Identity::random().unwrap(), &registry, &WorkerPlace::default()).unwrap();
            let names: Vec<_> = transports.iter().map(|transport| transport.capabilities().name).collect();
            assert_eq!(domains, names);
            assert_eq!(names.last(), Some(&"tcp"));
            assert!(names.iter().all(|name| RouteId::named(name).is_some()), "{names:?}");
            let counterparts =
                features.counterparts(Identity::random().unwrap(), &registry, &mailbox).unwrap();
            let met: Vec<_> = counterparts.iter().flat_map(|one| one.names().to_vec()).collect();
            assert!(names.starts_with(&met), "{met:?} of {names:?}");
        }
    }

    #[test]
    #[cfg(feature = "rdma")]
    fn a_device_that_is_not_there_ends_what_requires_it_and_nothing_else() {
        use super::{FeatureConfig, RdmaConfig, RdmaUse};
        use crate::error::Error;
        let of = |rdma: RdmaUse| {
            let features = FeatureConfig { rdma };
            Features::of(&Config { features, ..Config::default() })
        };
        let nobody = RdmaConfig { devices: vec!["no-such-device".to_string()], ..RdmaConfig::default() };
        let required = RdmaUse::Required(nobody.clone());
        for refused in [of(required.clone()).err(), required.check().err()] {
            match refused {
                Some(Error::Config(why)) => assert!(why.starts_with("rdma: unavailable, because "), "{why}"),
                other => panic!("{other:?}"),
            }
        }
        for how in [RdmaUse::WherePossible(nobody), RdmaUse::Off] {
            let names: Vec<_> = of(how).unwrap().domains().iter().map(|domain| domain.name()).collect();
            assert!(!names.contains(&"rdma") && names.contains(&"tcp"), "{names:?}");
        }
    }
}
