//! The asking side, driven by the test's own thread.

use orbit_te_memory::{
    Access, Backing, Domain, HostBuffer, Lease, LocalKey, LocalSpan, Region, Registry, RemoteKey,
};
use orbit_te_tcp::{Identity, TcpAddress, TcpConfig, TcpDomain, TcpTransport};
use orbit_te_transport::{
    Arm, Completion, Event, LinkId, Op, OpKind, Pieces, Priority, Progress, RemoteSpan, Token, Transport,
    Verify,
};
use orbit_te_wire::{PeerId, Piece, SessionId, TransportKey};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Initiator {
    pub transport: TcpTransport,
    pub registry: Arc<Registry>,
    /// Leases of the ops in flight, by token.
    flying: HashMap<u64, Lease>,
    /// What list ops are made of.
    lists: Vec<(Vec<u64>, Vec<Piece>)>,
    pub done: HashMap<u64, Completion>,
    pub events: Vec<Event>,
    next: u64,
    /// Whether ops are verified.
    pub verify: Verify,
}

impl Initiator {
    pub fn new(config: TcpConfig) -> Initiator {
        let registry = Registry::new();
        let transport = TcpTransport::new(config, Identity::random().unwrap(), &registry).unwrap();
        let (flying, done) = (HashMap::new(), HashMap::new());
        let verify = Verify::Off;
        Initiator {
            transport,
            registry,
            flying,
            lists: Vec::new(),
            done,
            events: Vec::new(),
            next: 0,
            verify,
        }
    }

    pub fn connect(&mut self, peer: PeerId, at: SocketAddr, session: SessionId) -> LinkId {
        let address = TcpAddress { addresses: vec![at], session }.encode().unwrap();
        self.transport.connect(peer, &address, Instant::now()).unwrap()
    }

    pub fn region(&self, bytes: &[u8]) -> Region {
        let mut buffer = HostBuffer::new(bytes.len()).unwrap();
        buffer.as_mut_slice().copy_from_slice(bytes);
        self.registry.register(Backing::from(buffer), Access::LOCAL).unwrap()
    }

    /// Begins an op over all of `local`; its token.
    pub fn begin(&mut self, kind: OpKind, link: LinkId, local: &Region, remote: &Region, offset: u64) -> u64 {
        let remote = RemoteSpan { offset, key: key(remote) };
        self.submit(kind, link, local, local.whole().span(LocalKey::of_host(local)), remote, None)
    }

    /// Begins a list of these places and lengths at the peer, whose bytes stand one behind the other at the front of `local`.
    pub fn begin_list(
        &mut self,
        kind: OpKind,
        link: LinkId,
        local: &Region,
        remote: &Region,
        pieces: &[(u64, u64)],
    ) -> u64 {
        let mut span = local.whole().span(LocalKey::of_host(local));
        let mut end = span.address;
        let (mut addresses, mut table) = (Vec::new(), Vec::new());
        for (offset, length) in pieces {
            addresses.push(end);
            table.push(Piece::new(*offset, *length));
            end += length;
        }
        assert!(end - span.address <= span.length, "more bytes than the region has");
        span.length = end - span.address;
        let remote = RemoteSpan { offset: pieces[0].0, key: key(remote) };
        let view = Pieces::new(&addresses, &table);
        // Kept where they are until this object goes, so longer than the op.
        self.lists.push((addresses, table));
        self.submit(kind, link, local, span, remote, view)
    }

    fn submit(
        &mut self,
        kind: OpKind,
        link: LinkId,
        region: &Region,
        local: LocalSpan,
        remote: RemoteSpan,
        pieces: Option<Pieces>,
    ) -> u64 {
        self.next += 1;
        let token = self.next;
        let verify = self.verify;
        let op =
            Op { kind, link, local, remote, pieces, token: Token(token), priority: Priority::Normal, verify };
        self.flying.insert(token, region.lease().unwrap());
        // SAFETY: the span lies in a region whose lease is kept until the completion, and so do the pieces, whose slices are kept
        // in `lists`; tokens are counted up.
        let taken = unsafe { self.transport.submit(&[op], Instant::now()) };
        assert_eq!(taken, 1, "the transport is full");
        token
    }

    /// One poll, and a short sleep when there was nothing.
    pub fn poll(&mut self) {
        let mut progress = Progress::with_capacity(64);
        if !self.transport.poll(Instant::now(), 64, &mut progress) {
            if let Arm::Sleep { fd: Some(fd), .. } = self.transport.arm(Instant::now()) {
                super::target::sleep_on(fd, 5);
            }
        }
        for completion in progress.completions {
            let token = completion.token.0;
            assert!(self.flying.remove(&token).is_some(), "op {token} completed twice, or never began");
            self.done.insert(token, completion);
        }
        self.events.append(&mut progress.events);
    }

    /// Polls until something holds, at most for this long.
    pub fn poll_until(&mut self, what: &str, limit: Duration, mut holds: impl FnMut(&Initiator) -> bool) {
        let until = Instant::now() + limit;
        while !holds(self) {
            assert!(Instant::now() < until, "not after {limit:?}: {what}; {:?}", self.events);
            self.poll();
        }
    }

    /// Polls until an op is over.
    pub fn wait(&mut self, token: u64, limit: Duration) -> Completion {
        self.poll_until("an op is over", limit, |i| i.done.contains_key(&token));
        self.done[&token]
    }
}

/// The key by which this side reaches a peer's region.
fn key(remote: &Region) -> RemoteKey {
    let bytes = TcpDomain.remote_key(remote, remote.key());
    let keys = vec![TransportKey { transport: TcpDomain.name().to_string(), bytes }];
    TcpDomain.import(&remote.describe(keys)).unwrap()
}
