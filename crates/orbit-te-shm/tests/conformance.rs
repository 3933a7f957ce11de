//! Both ways between processes of one host pass the transport contract's suite: as they come, and in small steps with few places.

#![allow(clippy::unwrap_used)]

use orbit_te_memory::{Domain, Registry};
use orbit_te_shm::{Door, ShmConfig, ShmDomain, ShmTransport, SocketFolder, Way};
use orbit_te_transport::testing::{Pair, Side};
use orbit_te_transport::{LinkId, Transport};
use orbit_te_wire::same_host::Place;
use orbit_te_wire::{PeerId, SessionId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A process that lets others in.
struct Target {
    side: Side,
    door: Arc<Door>,
}

fn side(way: Way) -> Side {
    Side { registry: Registry::new(), domain: Arc::new(ShmDomain::new(way, true)) as Arc<dyn Domain> }
}

struct ShmPair {
    initiator: ShmTransport,
    here: Side,
    targets: [Target; 2],
    links: HashMap<LinkId, SessionId>,
    sessions: u128,
}

impl ShmPair {
    fn new(way: Way, config: ShmConfig) -> ShmPair {
        let target = || {
            let side = side(way);
            let door = Door::open(config.clone(), &side.registry).unwrap();
            Target { side, door }
        };
        ShmPair {
            initiator: ShmTransport::new(config.clone(), way).unwrap(),
            here: side(way),
            targets: [target(), target()],
            links: HashMap::new(),
            sessions: 0,
        }
    }

    fn link(&mut self, to: usize) -> LinkId {
        self.sessions += 1;
        let (session, peer) = (SessionId(self.sessions), PeerId(to as u128 + 1));
        let address = self.targets[to].door.admit(session, PeerId(99)).unwrap();
        let link = self.initiator.connect(peer, &address.encode().unwrap(), Instant::now()).unwrap();
        self.links.insert(link, session);
        link
    }
}

impl Pair for ShmPair {
    fn initiator(&mut self) -> &mut dyn Transport {
        &mut self.initiator
    }

    fn here(&self) -> Side {
        self.here.clone()
    }

    fn target(&self) -> Side {
        self.targets[0].side.clone()
    }

    fn connect(&mut self) -> LinkId {
        self.link(0)
    }

    fn pump(&mut self) {
        for target in &self.targets {
            target.door.poll(Instant::now());
        }
    }

    fn break_link(&mut self, link: LinkId) {
        let session = self.links[&link];
        self.targets.iter().for_each(|target| target.door.disconnect(session));
    }

    fn second_target(&self) -> Option<Side> {
        Some(self.targets[1].side.clone())
    }

    fn connect_second(&mut self) -> LinkId {
        self.link(1)
    }

    fn connect_unreachable(&mut self) -> Option<LinkId> {
        let mut address = self.targets[0].door.admit(SessionId(1 << 100), PeerId(99)).unwrap();
        address.places = vec![Place::Abstract(b"orbit-te-nobody".to_vec())];
        Some(self.initiator.connect(PeerId(77), &address.encode().unwrap(), Instant::now()).unwrap())
    }
}

fn patient() -> ShmConfig {
    ShmConfig {
        folder: SocketFolder::None,
        share_parts: true,
        unreachable_after: Duration::from_millis(600),
        ..ShmConfig::default()
    }
}

fn cramped() -> ShmConfig {
    ShmConfig { chunk_bytes: 5_001, max_ops: 2, regions: 1, ..patient() }
}

mod mapping {
    use super::*;

    fn pair() -> ShmPair {
        ShmPair::new(Way::Mapping, ShmConfig { copy_threads: 2, ..patient() })
    }

    orbit_te_transport::conformance_tests!(pair);
}

mod mapping_in_small_steps {
    use super::*;

    fn pair() -> ShmPair {
        ShmPair::new(Way::Mapping, cramped())
    }

    orbit_te_transport::conformance_tests!(pair);
}

mod kernel {
    use super::*;

    fn pair() -> ShmPair {
        ShmPair::new(Way::Kernel, patient())
    }

    orbit_te_transport::conformance_tests!(pair);
}

mod kernel_in_small_steps {
    use super::*;

    fn pair() -> ShmPair {
        ShmPair::new(Way::Kernel, cramped())
    }

    orbit_te_transport::conformance_tests!(pair);
}
