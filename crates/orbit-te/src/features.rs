//! Which transports an engine has: what makes memory reachable for them, what its workers move bytes by, and what its peers reach. Rule: all
//! of them in the order in which routes are preferred, the one that reaches everybody last; a transport that a feature of the build adds
//! has its lines here and nowhere else.

use crate::config::Config;
use crate::error::Error;
use crate::route::{Reason, RouteId};
use orbit_te_memory::{Domain, Registry};
use orbit_te_shm::{Door, Obstacle, ShmConfig, ShmDomain, ShmTransport, Way};
use orbit_te_tcp::{Identity, TcpConfig, TcpDomain, TcpTransport};
use orbit_te_transport::{Counterpart, Transport};
use orbit_te_wire::RegionDescriptor;
use std::sync::Arc;

/// The ways to other processes of this host, in the order of preference.
const WAYS: [Way; 2] = [Way::Mapping, Way::Kernel];

/// The transports of one engine. Made once, when it starts; what they share, such as a device, is here.
pub(crate) struct Features {
    shm: Option<ShmConfig>,
    tcp: TcpConfig,
    #[cfg(test)]
    extras: Vec<Arc<dyn Extra>>,
}

/// A transport that a test adds, before the one that reaches everybody.
#[cfg(test)]
pub(crate) trait Extra: std::fmt::Debug + Send + Sync {
    fn domain(&self) -> Arc<dyn Domain>;
    fn transport(&self) -> Box<dyn Transport>;
    fn counterpart(&self, registry: &Registry) -> Option<Arc<dyn Counterpart>>;
}

impl Features {
    /// Those that an engine of these settings has.
    pub(crate) fn of(config: &Config) -> Features {
        Features {
            shm: config.shm.clone(),
            tcp: config.tcp,
            #[cfg(test)]
            extras: config.extras.clone(),
        }
    }

    /// What makes memory reachable.
    pub(crate) fn domains(&self) -> Vec<Arc<dyn Domain>> {
        let mut domains: Vec<Arc<dyn Domain>> = Vec::new();
        if let Some(shm) = &self.shm {
            domains.extend(WAYS.map(|way| Arc::new(ShmDomain::new(way, shm.share_parts)) as Arc<dyn Domain>));
        }
        #[cfg(test)]
        domains.extend(self.extras.iter().map(|extra| extra.domain()));
        domains.push(Arc::new(TcpDomain));
        domains
    }

    /// What one worker moves bytes by.
    pub(crate) fn transports(
        &self,
        identity: Identity,
        registry: &Registry,
    ) -> Result<Vec<Box<dyn Transport>>, Error> {
        let mut transports: Vec<Box<dyn Transport>> = Vec::new();
        if let Some(shm) = &self.shm {
            for way in WAYS {
                transports.push(Box::new(ShmTransport::new(shm.clone(), way)?));
            }
        }
        #[cfg(test)]
        transports.extend(self.extras.iter().map(|extra| extra.transport()));
        transports.push(Box::new(TcpTransport::new(self.tcp, identity, registry)?));
        Ok(transports)
    }

    /// What peers reach beside the lanes, which come by the listener.
    pub(crate) fn counterparts(&self, registry: &Registry) -> Result<Vec<Arc<dyn Counterpart>>, Error> {
        let mut counterparts: Vec<Arc<dyn Counterpart>> = Vec::new();
        if let Some(shm) = &self.shm {
            counterparts.push(Door::open(shm.clone(), registry)?);
        }
        #[cfg(test)]
        counterparts.extend(self.extras.iter().filter_map(|extra| extra.counterpart(registry)));
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
    use crate::route::RouteId;
    use orbit_te_memory::Registry;
    use orbit_te_shm::ShmConfig;
    use orbit_te_tcp::Identity;

    #[test]
    fn all_name_the_same_routes_in_the_same_order() {
        for shm in [None, Some(ShmConfig::default())] {
            let features = Features::of(&Config { shm, ..Config::default() });
            let registry = Registry::new();
            let domains: Vec<_> = features.domains().iter().map(|domain| domain.name()).collect();
            let transports = features.transports(Identity::random().unwrap(), &registry).unwrap();
            let names: Vec<_> = transports.iter().map(|transport| transport.capabilities().name).collect();
            assert_eq!(domains, names);
            assert_eq!(names.last(), Some(&"tcp"));
            assert!(names.iter().all(|name| RouteId::named(name).is_some()), "{names:?}");
            let counterparts = features.counterparts(&registry).unwrap();
            let met: Vec<_> = counterparts.iter().flat_map(|one| one.names().to_vec()).collect();
            assert!(names.starts_with(&met), "{met:?} of {names:?}");
        }
    }
}
