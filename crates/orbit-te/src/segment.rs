//! A peer's segment as this engine sees it, and requests to it. Rule: a request that does not fit is refused before anything
//! starts.

use crate::batch::Batch;
use crate::command::Command;
use crate::error::{Error, TransferError};
use crate::peer::Peer;
use crate::pending::Pending;
use crate::receipt::Receipt;
use crate::region::Slice;
use crate::route::{Description, Plan, RouteId};
use crate::router::Reach;
use crate::shared::Shared;
use crate::transfer::Transfer;
use crate::warming::Warming;
use orbit_te_memory::{LocalKey, LocalSpan, RemoteKey};
use orbit_te_transport::{Op, OpKind, Priority, RemoteSpan, Token, Undone, Verify};
use orbit_te_wire::{Access, PeerId, RegionDescriptor};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// A peer's exposed memory. Cheap to clone. Stays usable while the session with its peer lives and its owner has neither retired nor
/// revoked the memory; afterwards, or when the owner has exposed other memory under the name, open it again.
#[derive(Clone)]
pub struct Segment {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) name: String,
    pub(crate) descriptor: RegionDescriptor,
    pub(crate) key: RemoteKey,
    /// Kept for the worker, which forgets it when nobody else has it.
    pub(crate) _reach: Arc<Reach>,
}

impl Segment {
    /// Its name at the peer.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.inner.descriptor.length
    }

    /// What its owner permits. The owner checks it again on every request.
    pub fn access(&self) -> Access {
        self.inner.descriptor.access
    }

    /// Who owns it.
    pub fn peer(&self) -> PeerId {
        self.inner.peer.id
    }

    /// Where its owner was reached.
    pub fn address(&self) -> SocketAddr {
        self.inner.peer.address
    }

    /// Has all lanes to its owner opened ahead, so that a first transfer finds them. They are begun when the segment is opened, and kept
    /// until the session with its owner ends; this says how far that is, and waits for it, at most for `limit`. It ends when all are
    /// up; at the limit also with fewer ([`crate::Lanes::all_up`]), the rest of which go on being tried.
    ///
    /// # Errors
    /// By the answer: [`Error::Unreachable`] with the cause when no lane could be had by the limit, or for as long as transfers would
    /// wait for one ([`crate::TcpConfig::unreachable_after`]); [`Error::PeerGone`], [`Error::Closed`].
    pub fn warm(&self, limit: Duration) -> Warming {
        let (shared, peer) = (&self.inner.shared, &self.inner.peer);
        if shared.closed.load(Ordering::Acquire) {
            return Warming::failed(Error::Closed);
        }
        if let Some(cause) = peer.gone() {
            return Warming::failed(Error::PeerGone { peer: peer.id, cause: cause.to_string() });
        }
        let (warm, warming) = Warming::begin(peer, limit);
        peer.worker.submit_always(Command::Warm(warm));
        peer.worker.attend();
        warming
    }

    /// What would be done with a contiguous request of so many bytes now: the route that it would take, how long that is expected to take, and
    /// for each other route why not. `demand` as [`Batch::route`]. Nothing is sent.
    ///
    /// # Errors
    /// By the answer: [`Error::PeerGone`], [`Error::Closed`], [`Error::Transport`] when the link is gone.
    pub fn explain(&self, kind: OpKind, bytes: u64, demand: Option<RouteId>) -> Pending<Plan> {
        let op = Box::new(self.op(kind, bytes));
        self.question("explaining a route", |reply| Command::Explain { op, demand, reply })
    }

    /// All that decides now about the routes of requests: what would be done with any of them can be asked of it later, and elsewhere.
    /// Nothing is sent.
    ///
    /// # Errors
    /// As [`Segment::explain`].
    pub fn describe(&self) -> Pending<Description> {
        let Inner { shared, peer, .. } = &*self.inner;
        let draft = Box::new(Description {
            at: crate::clock::now(),
            segment: self.name().to_string(),
            bytes: self.len(),
            may_read: self.access().contains(Access::REMOTE_READ),
            may_write: self.access().contains(Access::REMOTE_WRITE),
            memory: self.inner.descriptor.kind,
            peer: peer.id,
            same_host: peer.same_host,
            policy: (*shared.config.policy).clone(),
            routes: Vec::new(),
            chosen: Vec::new(),
        });
        let op = Box::new(self.op(OpKind::Read, 1));
        self.question("describing routes", |reply| Command::Describe { op, draft, reply })
    }

    /// An op like those of contiguous requests, which is not carried out.
    fn op(&self, kind: OpKind, bytes: u64) -> Op {
        Op {
            kind,
            link: self.inner.peer.link,
            local: LocalSpan { address: 0, length: bytes, key: LocalKey::default() },
            remote: RemoteSpan { offset: 0, key: self.inner.key },
            pieces: None,
            token: Token(0),
            priority: Priority::Normal,
            verify: Verify::Off,
        }
    }

    /// Asks the worker that has the link to the owner.
    fn question<T>(
        &self,
        what: &'static str,
        command: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Command,
    ) -> Pending<T> {
        let (shared, peer) = (&self.inner.shared, &self.inner.peer);
        if shared.closed.load(Ordering::Acquire) {
            return Pending::ready(what, Err(Error::Closed));
        }
        if let Some(cause) = peer.gone() {
            return Pending::ready(what, Err(Error::PeerGone { peer: peer.id, cause: cause.to_string() }));
        }
        let (reply, answer) = Pending::new(what);
        peer.worker.submit_always(command(reply));
        peer.worker.attend();
        answer
    }

    /// Whether its owner was met on this host when it was opened, so that bytes need no network.
    pub fn same_host(&self) -> bool {
        self.inner.peer.same_host
    }

    /// Begins to copy a slice of our memory to the segment's bytes from `offset` on.
    ///
    /// # Errors
    /// As [`crate::Engine::submit`], which may wait for room: [`Error::BadRequest`], [`Error::PeerGone`], [`Error::TimedOut`],
    /// [`Error::Memory`] for a region that is retired or being revoked,
    /// [`Error::Closed`]; nothing has started then.
    pub fn write(&self, offset: u64, from: &Slice) -> Result<Transfer, Error> {
        let mut batch = Batch::with_capacity(1);
        batch.write(self, offset, from);
        self.inner.shared.submit(batch)
    }

    /// Begins to copy the segment's bytes from `offset` on to a slice of our memory.
    ///
    /// # Errors
    /// As [`Segment::write`].
    pub fn read(&self, offset: u64, into: &Slice) -> Result<Transfer, Error> {
        let mut batch = Batch::with_capacity(1);
        batch.read(self, offset, into);
        self.inner.shared.submit(batch)
    }

    /// [`Segment::write`] and [`Transfer::wait`] in one: blocks the calling thread until the bytes are in place or the default
    /// deadline has passed. Up to a MiB, by a route on which the copy is made by the calling thread, it is the fastest way to move bytes:
    /// it costs a few hundred nanoseconds beside the copy.
    ///
    /// # Errors
    /// As [`Segment::write`], but that bytes may have been moved; the inner result is the transfer's.
    pub fn write_and_wait(&self, offset: u64, from: &Slice) -> Result<Result<Receipt, TransferError>, Error> {
        self.carry_and_wait(OpKind::Write, offset, from)
    }

    /// [`Segment::read`] and [`Transfer::wait`] in one, as [`Segment::write_and_wait`].
    ///
    /// # Errors
    /// As [`Segment::write_and_wait`]; the inner result is the transfer's.
    pub fn read_and_wait(&self, offset: u64, into: &Slice) -> Result<Result<Receipt, TransferError>, Error> {
        self.carry_and_wait(OpKind::Read, offset, into)
    }

    fn carry_and_wait(
        &self,
        kind: OpKind,
        offset: u64,
        local: &Slice,
    ) -> Result<Result<Receipt, TransferError>, Error> {
        match self.at_once(kind, offset, local) {
            Ok(receipt) => Ok(Ok(receipt)),
            Err(Undone { touched }) => {
                let mut batch = Batch::with_capacity(1);
                match kind {
                    OpKind::Write => batch.write(self, offset, local),
                    OpKind::Read => batch.read(self, offset, local),
                };
                batch.touched = touched;
                Ok(self.inner.shared.submit(batch)?.wait())
            }
        }
    }

    /// The remote end of a request, or what is wrong with it.
    pub(crate) fn span(&self, kind: OpKind, offset: u64, length: u64) -> Result<RemoteSpan, String> {
        let size = self.len();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(format!(
                "bytes {offset}..{offset}+{length} are outside of segment `{}` of {size} bytes",
                self.name()
            ));
        }
        let needed = match kind {
            OpKind::Read => Access::REMOTE_READ,
            OpKind::Write => Access::REMOTE_WRITE,
        };
        if !self.access().contains(needed) {
            let verb = if kind == OpKind::Read { "read" } else { "written" };
            return Err(format!("segment `{}` may not be {verb} by peers", self.name()));
        }
        Ok(RemoteSpan { offset: self.inner.descriptor.base_offset + offset, key: self.inner.key })
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("name", &self.name())
            .field("len", &self.len())
            .field("peer", &self.peer())
            .finish_non_exhaustive()
    }
}
