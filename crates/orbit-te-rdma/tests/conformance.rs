//! RDMA over verbs in memory passes the transport contract's suite: as it comes, with short queues and small cuts, with WRs carried out in
//! any order, and with completions that come late; with completions learnt of in each of the three ways.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)]

use orbit_te_memory::{Domain, Registry};
use orbit_te_rdma::fake::{Clock, DeviceSpec, FakeFabric, Mode};
use orbit_te_rdma::{Adapters, Completions, RdmaConfig, RdmaDomain, RdmaTarget, RdmaTransport};
use orbit_te_transport::testing::{Letters, Pair, Side};
use orbit_te_transport::{Counterpart, LinkId, Say, Transport};
use orbit_te_wire::rdma::Address;
use orbit_te_wire::{Incarnation, PeerId, SessionId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What targets have said and the initiator has not heard yet.
type Said = Arc<Mutex<Vec<(SessionId, Vec<u8>)>>>;

struct Saying(SessionId, Said);

impl Say for Saying {
    fn say(&self, bytes: Vec<u8>) -> bool {
        self.1.lock().unwrap().push((self.0, bytes));
        true
    }
}

struct Target {
    side: Side,
    target: Arc<RdmaTarget>,
    letters: Arc<Letters>,
}

struct RdmaPair {
    initiator: RdmaTransport,
    here: Side,
    targets: [Target; 2],
    links: HashMap<LinkId, (SessionId, usize)>,
    sessions: u128,
    said: Said,
    fabric: FakeFabric,
}

fn side(fabric: &FakeFabric, host: u32, config: &RdmaConfig) -> (RdmaDomain, Side) {
    let adapters = Adapters::open(&fabric.verbs(host), config).unwrap();
    let domain = RdmaDomain::new(adapters);
    let side = Side { registry: Registry::new(), domain: Arc::new(domain.clone()) as Arc<dyn Domain> };
    (domain, side)
}

impl RdmaPair {
    fn new(fabric: FakeFabric, config: RdmaConfig) -> RdmaPair {
        for host in 0..3u8 {
            fabric.add_device(DeviceSpec::roce("mlx5_0", [10, 0, 0, host + 1]).on_host(host.into()));
        }
        fabric.set_clock(Clock::Real);
        let target = |host: u32| {
            let (domain, side) = side(&fabric, host, &config);
            let letters = Arc::<Letters>::default();
            let life = Incarnation(host.into());
            let target = RdmaTarget::with_mailbox(&domain, &side.registry, life, letters.clone()).unwrap();
            Target { side, target, letters }
        };
        let targets = [target(1), target(2)];
        let (domain, here) = side(&fabric, 0, &config);
        let initiator = RdmaTransport::new(&domain, Incarnation(100)).unwrap();
        RdmaPair {
            initiator,
            here,
            targets,
            links: HashMap::new(),
            sessions: 0,
            said: Said::default(),
            fabric,
        }
    }

    fn link(&mut self, to: usize) -> LinkId {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let said = self.said.clone();
        let say = Arc::new(Saying(session, said));
        let address = self.targets[to].target.admit(session, PeerId(99), say).unwrap().remove(0).1;
        let link = self.initiator.connect(PeerId(to as u128 + 1), &address, Instant::now()).unwrap();
        self.links.insert(link, (session, to));
        link
    }
}

impl Pair for RdmaPair {
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
        let now = Instant::now();
        for target in &self.targets {
            target.target.poll(now);
        }
        let said = std::mem::take(&mut *self.said.lock().unwrap());
        for (session, bytes) in said {
            let link = self.links.iter().find(|(_, known)| known.0 == session).map(|(link, _)| *link);
            // A link that is gone is not told anything.
            let _ = link.map(|link| self.initiator.deliver(link, &bytes, now));
        }
    }

    fn break_link(&mut self, link: LinkId) {
        let (session, to) = self.links[&link];
        self.targets[to].target.disconnect(session, Instant::now());
    }

    fn letters(&self) -> Option<Arc<Letters>> {
        Some(self.targets[0].letters.clone())
    }

    fn second_target(&self) -> Option<Side> {
        Some(self.targets[1].side.clone())
    }

    fn connect_second(&mut self) -> LinkId {
        self.link(1)
    }

    fn connect_unreachable(&mut self) -> Option<LinkId> {
        let address = Address {
            version: orbit_te_wire::rdma::VERSION,
            incarnation: Incarnation(7),
            features: orbit_te_wire::rdma::Features::empty(),
            rails: 1,
        };
        Some(self.initiator.connect(PeerId(77), &address.encode().unwrap(), Instant::now()).unwrap())
    }

    fn carry(&mut self, link: LinkId, bytes: Vec<u8>) {
        if let Some((session, to)) = self.links.get(&link) {
            self.targets[*to].target.deliver(*session, &bytes, Instant::now()).unwrap();
        }
    }
}

impl Drop for RdmaPair {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.fabric.violations(), Vec::<String>::new());
        }
    }
}

fn patient() -> RdmaConfig {
    RdmaConfig {
        unreachable_after: Duration::from_millis(600),
        ack_budget: Duration::from_millis(50),
        fence_timeout: Duration::from_millis(300),
        revoke_timeout: Duration::from_millis(100),
        ..RdmaConfig::default()
    }
}

/// As it comes: completions are looked for, and then waited for ([`Completions::Adaptive`]).
mod as_it_comes {
    use super::*;

    fn pair() -> RdmaPair {
        RdmaPair::new(FakeFabric::new(1), patient())
    }

    orbit_te_transport::conformance_tests!(pair);
}

/// With completions told by events.
mod cramped {
    use super::*;

    fn pair() -> RdmaPair {
        let config = RdmaConfig {
            chunk_bytes: 5_001,
            max_ops: 2,
            regions: 1,
            width: 3,
            send_depth: 2,
            completions: Completions::Events,
            ..patient()
        };
        RdmaPair::new(FakeFabric::new(2), config)
    }

    orbit_te_transport::conformance_tests!(pair);
}

/// With completions looked for without a pause.
mod in_any_order {
    use super::*;

    fn pair() -> RdmaPair {
        let fabric = FakeFabric::new(3);
        fabric.scramble(true);
        fabric.set_mode(Mode::AtPoll);
        RdmaPair::new(
            fabric,
            RdmaConfig { chunk_bytes: 20_000, width: 4, completions: Completions::Polling, ..patient() },
        )
    }

    orbit_te_transport::conformance_tests!(pair);
}
