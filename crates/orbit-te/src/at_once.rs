//! One request that its caller's thread carries out from beginning to end. Rule: only where nothing else is under way and its bytes are moved by
//! the call itself; otherwise nothing is left under way, and it goes the way of all others.
//!
//! For what is small and on the same host, the copy is the lesser part of a transfer with a handle, which others may wait for and cancel.
//! Here there is nothing to wait for when the call returns, so none is made.

use crate::admission::Permit;
use crate::clock;
use crate::receipt::Receipt;
use crate::region::Slice;
use crate::segment::Segment;
use orbit_te_memory::Lease;
use orbit_te_transport::{Op, OpKind, Priority, Token, Undone, Verify};
use orbit_te_wire::Access;

/// Longer requests would keep the worker for too long: so much is what it copies itself between two looks at everything else.
const MOST_BYTES: u64 = 1024 * 1024;

impl Segment {
    /// Carries out one request.
    ///
    /// # Errors
    /// It is to go the way of others, which also says what is wrong with it: nothing is under way for it.
    pub(crate) fn at_once(&self, kind: OpKind, offset: u64, local: &Slice) -> Result<Receipt, Undone> {
        let submitted = clock::now();
        let nothing = Undone { touched: false };
        let (op, permit, lease) = self.prepare_at_once(kind, offset, local).ok_or(nothing)?;
        let done = self.inner.peer.worker.at_once(&op, lease, submitted);
        drop(permit);
        let (route, ended) = done?;
        Ok(Receipt::of_one(route, op.local.length, (submitted, ended)))
    }

    fn prepare_at_once(&self, kind: OpKind, offset: u64, local: &Slice) -> Option<(Op, Permit, Lease)> {
        let (bytes, region) = (local.len(), local.raw.region());
        let (shared, peer) = (&self.inner.shared, &self.inner.peer);
        let is_for_others =
            bytes > MOST_BYTES || !peer.same_host || shared.is_closed() || peer.gone().is_some();
        if is_for_others || !region.access().contains(Access::LOCAL) {
            return None;
        }
        let op = Op {
            kind,
            link: peer.link,
            local: local.raw.span(local.key),
            remote: self.span(kind, offset, bytes).ok()?,
            pieces: None,
            token: Token(0),
            priority: Priority::default(),
            verify: Verify::Off,
        };
        Some((op, shared.admission.enter(1)?, region.lease().ok()?))
    }
}
