//! A batch: requests that are submitted together and end together. Rule: it is checked whole, and admitted whole or not at all.

use crate::admission::Permit;
use crate::error::Error;
use crate::prepared::{Kept, Posting, Prepared};
use crate::receipt::Requests;
use crate::region::Slice;
use crate::route::RouteId;
use crate::segment::Segment;
use crate::shared::Shared;
use crate::transfer::{Announcement, Part, Timing, TransferState};
use crate::worker::Worker;
use orbit_te_memory::{Lease, Region};
use orbit_te_transport::{Op, OpKind, Priority, Token, Verify};
use orbit_te_wire::limits::{MAX_NAME_BYTES, MAX_NOTIFICATION_BYTES};
use orbit_te_wire::{Access, Features, RefusalCode, RegionId};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct Request {
    kind: OpKind,
    segment: Segment,
    offset: u64,
    local: Slice,
}

/// Requests that are submitted together. Submit it by [`crate::Engine::submit`].
#[derive(Default)]
pub struct Batch {
    requests: Vec<Request>,
    lists: Vec<Posting>,
    deadline: Option<Duration>,
    priority: Priority,
    verified: bool,
    demand: Option<RouteId>,
    /// Whether bytes at a receiving side may have changed by what was tried before it is submitted.
    pub(crate) touched: bool,
    notification: Option<(Segment, String, Vec<u8>)>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// An empty batch with room for so many requests.
    pub fn with_capacity(requests: usize) -> Batch {
        Batch { requests: Vec::with_capacity(requests), ..Batch::default() }
    }

    /// Adds a write of our slice to the segment's bytes from `offset` on.
    pub fn write(&mut self, to: &Segment, offset: u64, from: &Slice) -> &mut Batch {
        self.requests.push(Request { kind: OpKind::Write, segment: to.clone(), offset, local: from.clone() });
        self
    }

    /// Adds a read of the segment's bytes from `offset` on into our slice. Slices that overlap are filled in any order.
    pub fn read(&mut self, from: &Segment, offset: u64, into: &Slice) -> &mut Batch {
        self.requests.push(Request {
            kind: OpKind::Read,
            segment: from.clone(),
            offset,
            local: into.clone(),
        });
        self
    }

    /// Adds all pieces of a prepared list.
    pub fn list(&mut self, list: &Prepared) -> &mut Batch {
        self.lists.push(list.whole());
        self
    }

    /// Adds some pieces of a prepared list, by their numbers, in any order. A piece that is named twice is an overlap.
    ///
    /// # Errors
    /// [`Error::BadList`], with the place in `numbers` of a number that the list does not have, or of an overlap; the batch is as it
    /// was then.
    pub fn subset(&mut self, list: &Prepared, numbers: &[u32]) -> Result<&mut Batch, Error> {
        self.lists.push(list.subset(numbers)?);
        Ok(self)
    }

    /// Sets how long the transfer may take from submitting on, instead of the engine's default; more than a year counts as one.
    pub fn deadline(&mut self, after: Duration) -> &mut Batch {
        self.deadline = Some(after);
        self
    }

    /// Sets how urgent it is beside other transfers of this engine. What is more urgent overtakes what has begun, chunk by chunk;
    /// what is less urgent gets a turn now and then all the same. The requests of a batch keep their order.
    pub fn priority(&mut self, priority: Priority) -> &mut Batch {
        self.priority = priority;
        self
    }

    /// Sets whether the bytes are verified end to end: whoever sends them sends their CRC32C behind them, and whoever receives them
    /// compares it with that of the bytes in place. Bytes that came damaged fail their request with
    /// [`orbit_te_transport::OpErrorCode::Checksum`], which names the range and both sums; they may stay where they went. Off unless set.
    ///
    /// Memory that somebody changes while its transfer runs counts as damaged.
    pub fn verify(&mut self, yes: bool) -> &mut Batch {
        self.verified = yes;
        self
    }

    /// Demands a route for all its requests: it is taken, or they fail with [`orbit_te_transport::OpErrorCode::NoRoute`] and the reason.
    /// Otherwise each request takes the one that is best for it.
    pub fn route(&mut self, route: RouteId) -> &mut Batch {
        self.demand = Some(route);
        self
    }

    /// Binds a notification to the batch: it is sent to the segment's owner once all bytes are in place, and the transfer ends
    /// when it stands in the owner's queue, or with [`TransferError::Notification`](crate::TransferError::Notification). A batch has one notification; the last one
    /// set counts.
    pub fn notify(&mut self, owner_of: &Segment, name: &str, payload: &[u8]) -> &mut Batch {
        self.notification = Some((owner_of.clone(), name.to_string(), payload.to_vec()));
        self
    }

    /// How many requests there are, those of lists with them.
    pub fn len(&self) -> usize {
        self.requests.len() + self.lists.iter().map(|list| list.ops.len()).sum::<usize>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.lists.is_empty()
    }

    /// Checks all requests and makes the transfer's state. Nothing has started.
    pub(crate) fn prepare(
        self,
        shared: &Arc<Shared>,
        submitted: Instant,
        permit: Permit,
    ) -> Result<Arc<TransferState>, Error> {
        let timing = Timing { submitted, after: self.allowed(shared) };
        let mut parts: Vec<Part> = Vec::with_capacity(1);
        let mut leases: Vec<Lease> = Vec::with_capacity(1);
        let mut leased: Option<RegionId> = None;
        for (index, request) in self.requests.iter().enumerate() {
            let bad = |why: String| Error::BadRequest { index, why };
            let peer = &request.segment.inner.peer;
            if let Some(cause) = peer.gone() {
                return Err(Error::PeerGone { peer: peer.id, cause: cause.to_string() });
            }
            if !Arc::ptr_eq(&request.segment.inner.shared, shared) {
                return Err(bad("the segment was opened by another engine".to_string()));
            }
            let region = request.local.raw.region();
            if !region.access().contains(Access::LOCAL) {
                return Err(bad("the slice's region has no right of local access".to_string()));
            }
            // Neighbouring requests mostly share a region: one lease covers them all.
            if leased != Some(region.id()) {
                leases.push(region.lease()?);
                leased = Some(region.id());
            }
            let length = request.local.len();
            let remote = request.segment.span(request.kind, request.offset, length).map_err(bad)?;
            let local = request.local.raw.span(request.local.key);
            let op = Op {
                kind: request.kind,
                link: peer.link,
                local,
                remote,
                pieces: None,
                token: Token(index as u64),
                priority: self.priority,
                verify: mode(self.verified, region),
            };
            match parts.iter_mut().find(|p| Arc::ptr_eq(&p.worker, &peer.worker)) {
                Some(part) => part.ops.push(op),
                None => {
                    let mut ops = Vec::with_capacity(self.requests.len());
                    ops.push(op);
                    parts.push(Part::new(peer.worker.clone(), ops));
                }
            }
        }
        let mut lengths: Vec<u64> = self.requests.iter().map(|request| request.local.len()).collect();
        let mut kept: Vec<Kept> = Vec::with_capacity(self.lists.len());
        let (priority, verified) = (self.priority, self.verified);
        for Posting { list, mut ops, kept: keeper } in self.lists {
            let index = lengths.len();
            let peer = &list.segment().inner.peer;
            if let Some(cause) = peer.gone() {
                return Err(Error::PeerGone { peer: peer.id, cause: cause.to_string() });
            }
            if !Arc::ptr_eq(&list.segment().inner.shared, shared) {
                return Err(Error::BadRequest {
                    index,
                    why: "the segment was opened by another engine".to_string(),
                });
            }
            let lease = list.lease()?;
            let verify = mode(verified, lease.region());
            leases.push(lease);
            kept.push(keeper);
            for (at, op) in ops.iter_mut().enumerate() {
                *op = Op { token: Token((index + at) as u64), priority, verify, ..*op };
                lengths.push(op.local.length);
            }
            match parts.iter_mut().find(|p| Arc::ptr_eq(&p.worker, &peer.worker)) {
                Some(part) => part.ops.append(&mut ops),
                None => parts.push(Part::new(peer.worker.clone(), ops)),
            }
        }
        let records = Requests::new(lengths.into_iter());
        let announcement =
            self.notification.map(|(segment, name, payload)| announce(shared, &segment, &name, &payload));
        let state = TransferState::new(
            parts,
            records,
            (leases, kept),
            timing,
            permit,
            announcement.transpose()?,
            self.demand,
        );
        if self.touched {
            state.touched();
        }
        Ok(state)
    }

    /// How long it may take from submitting on.
    pub(crate) fn allowed(&self, shared: &Shared) -> Duration {
        self.deadline.unwrap_or(shared.config.deadline)
    }

    /// The worker of its first request.
    pub(crate) fn first_worker(&self) -> Option<&Arc<Worker>> {
        let request = self.requests.first().map(|request| &request.segment);
        let segment = request.or_else(|| self.lists.first().map(|posting| posting.list.segment()));
        segment.map(|segment| &segment.inner.peer.worker)
    }
}

/// How the ops at this region of ours are verified.
fn mode(verified: bool, region: &Region) -> Verify {
    if verified { Verify::on(region.backing().may_vanish()) } else { Verify::Off }
}

/// A notification that the peer can take, as it travels.
pub(crate) fn announce(
    shared: &Arc<Shared>,
    to: &Segment,
    name: &str,
    payload: &[u8],
) -> Result<Announcement, Error> {
    check_notification(to, name, payload)?;
    let peer = &to.inner.peer;
    if let Some(cause) = peer.gone() {
        return Err(Error::PeerGone { peer: peer.id, cause: cause.to_string() });
    }
    if !Arc::ptr_eq(&to.inner.shared, shared) {
        return Err(Error::BadRequest {
            index: 0,
            why: "the segment was opened by another engine".to_string(),
        });
    }
    let bytes = orbit_te_wire::notification::encode(name, payload)?;
    Ok(Announcement { worker: peer.worker.clone(), link: peer.link, bytes })
}

/// Refuses a notification that the peer would not take.
fn check_notification(to: &Segment, name: &str, payload: &[u8]) -> Result<(), Error> {
    let session = &to.inner.peer.session;
    if !to.inner.peer.worker.capabilities().notifications {
        let why = "the transport to its peer carries no notifications".to_string();
        return Err(Error::BadRequest { index: 0, why });
    }
    if !session.terms().features.contains(Features::NOTIFICATIONS) {
        let (address, code) = (session.address.to_string(), Some(RefusalCode::Unsupported));
        return Err(Error::Refused { address, code, reason: "it does not take notifications".to_string() });
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::BadName { name: name.to_string(), why: "it has more than 255 bytes" });
    }
    let most = MAX_NOTIFICATION_BYTES.min(session.terms().limits.notification_bytes as usize);
    if payload.len() > most {
        let why =
            format!("the peer takes notifications of at most {most} bytes, this one has {}", payload.len());
        return Err(Error::BadRequest { index: 0, why });
    }
    Ok(())
}
