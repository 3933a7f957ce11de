//! Prepared lists: many pieces, checked and cut into ops once, and posted as often as wanted. Rule: what ops point at lives in the
//! list and is never changed while one of its transfers is under way; posting a list again touches no single piece.

use crate::error::Error;
use crate::list::{self, Layout, ListError, ListFault, Side};
use crate::region::Slice;
use crate::segment::Segment;
use orbit_te_memory::{Lease, LocalSpan};
use orbit_te_transport::{Capabilities, Op, OpKind, Pieces, Priority, RemoteSpan, Token, Verify};
use orbit_te_wire::{Access, Piece};
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A piece from this length on travels by itself: a table saves nothing there.
const LARGE_BYTES: u64 = 256 * 1024;
/// Memory of past posts of subsets that is kept for the next ones.
const SPARE: usize = 4;

/// What keeps alive what a transfer's ops point at.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// Pieces as ops point at them.
#[derive(Debug, Default)]
struct Table {
    /// Where each is in our memory.
    local: Vec<u64>,
    /// Where each is at the peer, and how long it is.
    remote: Vec<Piece>,
}

impl Table {
    fn with_capacity(pieces: usize) -> Table {
        Table { local: Vec::with_capacity(pieces), remote: Vec::with_capacity(pieces) }
    }

    fn len(&self) -> usize {
        self.local.len()
    }

    fn clear(&mut self) {
        self.local.clear();
        self.remote.clear();
    }

    fn push(&mut self, local: u64, remote: Piece) {
        self.local.push(local);
        self.remote.push(remote);
    }

    /// Adds a piece, or makes the last one longer where both sides go on.
    fn join(&mut self, local: u64, remote: Piece) {
        if let (Some(before), Some(last)) = (self.local.last(), self.remote.last_mut()) {
            if before + last.length() == local && last.offset() + last.length() == remote.offset() {
                *last = Piece::new(last.offset(), last.length() + remote.length());
                return;
            }
        }
        self.push(local, remote);
    }

    /// Offset and length where a piece is written.
    fn written(&self, kind: OpKind, at: usize) -> (u64, u64) {
        let piece = self.remote[at];
        let offset = if kind == OpKind::Write { piece.offset() } else { self.local[at] };
        (offset, piece.length())
    }

    /// The same pieces in the order of their places where they are written, with neighbours joined, in `into`.
    fn arrange(&self, kind: OpKind, into: &mut Table) -> Result<(), ListError> {
        let side = if kind == OpKind::Write { Side::Remote } else { Side::Local };
        let place = |at| self.written(kind, at);
        list::in_order(self.len(), side, place, |at| into.join(self.local[at], self.remote[at]))?;
        Ok(())
    }

    /// The ops that move the pieces, for a transport that can do this much. `model` says everything but where.
    fn cut(&self, model: &Op, can: &Capabilities, ops: &mut Vec<Op>) {
        let mut first = 0;
        while first < self.len() {
            let mut bytes = self.remote[first].length();
            let mut end = first + 1;
            if bytes < LARGE_BYTES {
                while end < self.len() && ((end - first) as u64) < u64::from(can.max_pieces) {
                    let next = self.remote[end].length();
                    if next >= LARGE_BYTES || bytes + next > can.max_list_bytes {
                        break;
                    }
                    bytes += next;
                    end += 1;
                }
            }
            let pieces = match end - first {
                1 => None,
                _ => Pieces::new(&self.local[first..end], &self.remote[first..end]),
            };
            let local = LocalSpan { address: self.local[first], length: bytes, ..model.local };
            let remote = RemoteSpan { offset: self.remote[first].offset(), ..model.remote };
            ops.push(Op { local, remote, pieces, ..*model });
            first = end;
        }
    }
}

struct Inner {
    kind: OpKind,
    segment: Segment,
    local: Slice,
    /// The pieces as they were given.
    given: Table,
    /// The pieces as they travel, where that is not `given`: the ops point into it.
    _arranged: Option<Table>,
    ops: Vec<Op>,
    /// Memory of past posts of subsets.
    spare: Mutex<Vec<Subset>>,
}

/// What the post of a subset needs.
#[derive(Default)]
struct Subset {
    chosen: Table,
    arranged: Table,
}

/// A subset under way; gives its memory back in the end.
struct Posted {
    list: Arc<Inner>,
    subset: Option<Subset>,
}

impl Drop for Posted {
    fn drop(&mut self) {
        let mut spare = self.list.spare.lock();
        if spare.len() < SPARE {
            spare.extend(self.subset.take());
        }
    }
}

/// Many pieces between a slice of ours and a peer's segment: checked, joined, ordered and cut into requests once, by
/// [`crate::Engine::prepare`], and posted as often as wanted by [`crate::Batch::list`] or [`crate::Batch::subset`]. Cheap to
/// clone. Each piece costs 24 bytes, or 48 where pieces had to be ordered or joined.
///
/// It keeps the region's memory alive, but no lease: a region that is retired fails the next post.
#[derive(Clone)]
pub struct Prepared {
    inner: Arc<Inner>,
}

/// A list as a part of a batch.
pub(crate) struct Posting {
    pub(crate) list: Prepared,
    pub(crate) ops: Vec<Op>,
    pub(crate) kept: Kept,
}

impl Prepared {
    pub(crate) fn new(
        kind: OpKind,
        local: &Slice,
        segment: &Segment,
        here: Layout<'_>,
        there: Layout<'_>,
    ) -> Result<Prepared, Error> {
        let bad = |why: String| Error::BadRequest { index: 0, why };
        if !local.raw.region().access().contains(Access::LOCAL) {
            return Err(bad("the slice's region has no right of local access".to_string()));
        }
        let span = local.raw.span(local.key);
        let remote = segment.span(kind, 0, segment.len()).map_err(bad)?;
        let mut given =
            Table::with_capacity(here.runs().max(there.runs()).min(list::MAX_LIST_PIECES) as usize);
        list::walk(here, local.len(), there, segment.len(), |piece| {
            given.push(span.address + piece.local, Piece::new(remote.offset + piece.remote, piece.length));
        })?;
        let mut arranged = Table::with_capacity(given.len());
        given.arrange(kind, &mut arranged)?;
        let arranged = Some(arranged).filter(|a| a.len() != given.len() || a.remote != given.remote);
        let model = Op {
            kind,
            link: segment.inner.peer.link,
            local: span,
            remote,
            pieces: None,
            token: Token(0),
            priority: Priority::Normal,
            verify: Verify::Off,
        };
        let mut ops = Vec::new();
        let can = bounds(segment);
        // The vectors' memory stays where it is when they are moved.
        arranged.as_ref().unwrap_or(&given).cut(&model, &can, &mut ops);
        let (segment, local) = (segment.clone(), local.clone());
        let spare = Mutex::default();
        Ok(Prepared {
            inner: Arc::new(Inner { kind, segment, local, given, _arranged: arranged, ops, spare }),
        })
    }

    /// How many pieces it has, as they were given.
    pub fn pieces(&self) -> usize {
        self.inner.given.len()
    }

    /// How many requests carry all of it.
    pub fn requests(&self) -> usize {
        self.inner.ops.len()
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.inner.ops.iter().map(|op| op.local.length).sum()
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.inner.segment
    }

    /// The right to touch its memory.
    pub(crate) fn lease(&self) -> Result<Lease, Error> {
        Ok(self.inner.local.raw.region().lease()?)
    }

    /// All of it, to be posted.
    pub(crate) fn whole(&self) -> Posting {
        Posting { list: self.clone(), ops: self.inner.ops.clone(), kept: self.inner.clone() }
    }

    /// The pieces of these numbers, to be posted. Allocates only where more of them are under way at once than ever before.
    pub(crate) fn subset(&self, numbers: &[u32]) -> Result<Posting, Error> {
        let inner = &self.inner;
        let side = if inner.kind == OpKind::Write { Side::Remote } else { Side::Local };
        let error = |piece: u64, what| Err(Error::BadList(ListError { side, piece, what }));
        if numbers.is_empty() {
            return error(0, ListFault::Empty);
        }
        let subset = inner.spare.lock().pop().unwrap_or_default();
        let mut posted = Posted { list: inner.clone(), subset: Some(subset) };
        let mut ops = Vec::new();
        if let Some(Subset { chosen, arranged }) = &mut posted.subset {
            chosen.clear();
            arranged.clear();
            for (at, number) in numbers.iter().enumerate() {
                let number = *number as usize;
                if number >= inner.given.len() {
                    return error(at as u64, ListFault::NoSuchPiece);
                }
                chosen.push(inner.given.local[number], inner.given.remote[number]);
            }
            chosen.arrange(inner.kind, arranged)?;
            let can = bounds(&inner.segment);
            if let Some(model) = inner.ops.first() {
                arranged.cut(model, &can, &mut ops);
            }
        }
        Ok(Posting { list: self.clone(), ops, kept: Arc::new(posted) })
    }
}

/// What one list may have at most: by the transport here, and by what was agreed with the segment's owner.
fn bounds(segment: &Segment) -> Capabilities {
    let peer = &segment.inner.peer;
    let can = *peer.worker.capabilities();
    let agreed = peer.session.terms().limits.payload_bytes;
    Capabilities { max_list_bytes: can.max_list_bytes.min(agreed), ..can }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared")
            .field("kind", &self.inner.kind)
            .field("pieces", &self.pieces())
            .field("requests", &self.requests())
            .finish_non_exhaustive()
    }
}
