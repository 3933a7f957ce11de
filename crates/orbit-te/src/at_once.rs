//! One request that its caller's thread carries out from beginning to end. Rule: only where nothing waits before it and its bytes are moved by
//! the call itself; otherwise nothing is left under way, and it goes the way of all others.
//!
//! For what is small and on the same host, the copy is the lesser part of a transfer with a handle, which others may wait for and cancel.
//! Here there is nothing to wait for when the call returns, so none is made.

use crate::clock;
use crate::guard;
use crate::receipt::Receipt;
use crate::region::Slice;
use crate::segment::Segment;
use orbit_te_transport::{Op, OpKind, Priority, Token, Verify};
use orbit_te_wire::Access;

/// Longer requests would keep the worker for too long: so much is what it copies itself between two looks at everything else.
const MOST_BYTES: u64 = 1024 * 1024;

impl Segment {
    /// Carries out one request; none when it is to go the way of others, which also says what is wrong with it. It may have been carried
    /// out in part then, with nothing under way: doing it again is as if it had not been tried.
    pub(crate) fn at_once(&self, kind: OpKind, offset: u64, local: &Slice) -> Option<Receipt> {
        let (bytes, region) = (local.len(), local.raw.region());
        let (shared, peer) = (&self.inner.shared, &self.inner.peer);
        let is_for_others = bytes > MOST_BYTES || shared.is_closed() || peer.gone().is_some();
        if is_for_others || !region.access().contains(Access::LOCAL) {
            return None;
        }
        let submitted = clock::now();
        let remote = self.span(kind, offset, bytes).ok()?;
        let permit = shared.admission.enter(1)?;
        let lease = region.lease().ok()?;
        let op = Op {
            kind,
            link: peer.link,
            local: local.raw.span(local.keys.local.first().copied().unwrap_or_default()),
            remote,
            pieces: None,
            token: Token(0),
            priority: Priority::default(),
            verify: Verify::Off,
        };
        let done = peer.worker.at_once((&op, &lease), submitted);
        // Perhaps the memory goes with it, and its owner.
        guard::contain("letting memory go", || drop(lease));
        drop(permit);
        let (route, ended) = done?;
        Some(Receipt::of_one(route, bytes, (submitted, ended)))
    }
}
