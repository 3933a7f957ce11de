//! TCP passes the transport contract's suite: as it comes, and with settings under which everything happens in the middle of
//! something else.

#![allow(clippy::unwrap_used)]

use orbit_te_memory::{Domain, Registry};
use orbit_te_tcp::{Identity, Listener, TcpAddress, TcpConfig, TcpDomain, TcpTransport};
use orbit_te_transport::testing::{Letters, Pair, Side};
use orbit_te_transport::{LinkId, Progress, Transport};
use orbit_te_wire::{PeerId, SessionId};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A process that answers: a listener, a transport and its memory.
struct Target {
    identity: Identity,
    side: Side,
    listener: Listener,
    transport: TcpTransport,
    letters: Arc<Letters>,
}

impl Target {
    fn new(config: TcpConfig) -> Target {
        let identity = Identity::random().unwrap();
        let side = side();
        let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &config).unwrap();
        let mut transport = TcpTransport::new(config, identity, &side.registry).unwrap();
        let letters = Arc::<Letters>::default();
        transport.deliver_to(letters.clone());
        Target { identity, side, listener, transport, letters }
    }

    fn serve(&mut self) {
        let mut incoming = Vec::new();
        self.listener.accept(Duration::ZERO, &mut incoming).unwrap();
        for lane in incoming {
            // A lane that was refused is tried again by the other side.
            let _ = self.transport.adopt(lane);
        }
        self.transport.poll(Instant::now(), 16, &mut Progress::default());
    }
}

fn side() -> Side {
    Side { registry: Registry::new(), domain: Arc::new(TcpDomain) as Arc<dyn Domain> }
}

struct TcpPair {
    initiator: TcpTransport,
    here: Side,
    targets: [Target; 2],
    links: HashMap<LinkId, SessionId>,
}

impl TcpPair {
    fn new(config: TcpConfig) -> TcpPair {
        let here = side();
        let initiator = TcpTransport::new(config, Identity::random().unwrap(), &here.registry).unwrap();
        TcpPair {
            initiator,
            here,
            targets: [Target::new(config), Target::new(config)],
            links: HashMap::new(),
        }
    }

    fn link(&mut self, to: usize) -> LinkId {
        let target = &self.targets[to];
        let session = SessionId(self.links.len() as u128 + 1);
        let addresses = vec![target.listener.address().unwrap()];
        let address = TcpAddress { addresses, session }.encode().unwrap();
        let link = self.initiator.connect(target.identity.peer, &address, Instant::now()).unwrap();
        self.links.insert(link, session);
        link
    }
}

impl Pair for TcpPair {
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
        self.targets.iter_mut().for_each(Target::serve);
    }

    fn break_link(&mut self, link: LinkId) {
        let session = self.links[&link];
        for target in &mut self.targets {
            target.transport.drop_session(session, Instant::now());
        }
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
        // A port that was free a moment ago, and at which nobody listens.
        let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let address = TcpAddress { addresses: vec![port], session: SessionId(1) }.encode().unwrap();
        Some(self.initiator.connect(PeerId(1), &address, Instant::now()).unwrap())
    }
}

fn patient() -> TcpConfig {
    TcpConfig {
        unreachable_after: Duration::from_millis(600),
        fence_timeout: Duration::from_secs(1),
        ..TcpConfig::default()
    }
}

fn as_it_comes() -> TcpPair {
    TcpPair::new(patient())
}

orbit_te_transport::conformance_tests!(as_it_comes);

/// One lane, two ops, and pieces that are larger than the socket's buffers, so that most sends and receives are cut somewhere.
/// Buffers much smaller than one packet of the loopback interface (64 KiB) would test the kernel alone: it drops what does not
/// fit, or sends it by its timer of 200 ms.
mod cramped {
    use super::*;

    fn pair() -> TcpPair {
        let limits = orbit_te_wire::Limits { lane_requests: 3, payload_bytes: 65_000, ..Default::default() };
        TcpPair::new(TcpConfig {
            lanes: 1,
            chunk_bytes: 60_001,
            lane_window_bytes: 150_000,
            lane_fill_bytes: 1,
            socket_buffer_bytes: Some(64 * 1024),
            max_ops: 2,
            limits,
            ..patient()
        })
    }

    orbit_te_transport::conformance_tests!(pair);
}

/// Many lanes, and small pieces that go over all of them.
mod spread {
    use super::*;

    fn pair() -> TcpPair {
        TcpPair::new(TcpConfig {
            lanes: 8,
            chunk_bytes: 30_000,
            lane_fill_bytes: 1,
            max_ops: 64,
            ..patient()
        })
    }

    orbit_te_transport::conformance_tests!(pair);
}
