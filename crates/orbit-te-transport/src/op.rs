//! Ops: what a transport is asked to do. Rule: an op is small and `Copy`; it names a link, never a lane or a rail.

#![allow(unsafe_code)]

use crate::priority::Priority;
use orbit_te_memory::{LocalSpan, RemoteKey};
use orbit_te_wire::Piece;
use std::ptr::NonNull;

/// A link to a peer, as its transport numbers it. A slot and a count of its uses: a number of a link that is gone is
/// never taken for a newer link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    /// Which slot.
    pub slot: u32,
    /// Which use of the slot.
    pub generation: u32,
}

/// The caller's name for an op; comes back in its completion. The transport gives it no meaning. Two ops in flight may
/// not have the same token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// From the peer's memory into ours.
    Read,
    /// From our memory into the peer's.
    Write,
}

/// Where in the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSpan {
    /// In bytes from the region's base.
    pub offset: u64,
    /// The transport's key for the region, from [`orbit_te_memory::Domain::import`].
    pub key: RemoteKey,
}

/// A view of the pieces of an op. All of them are in one local region and in one of the peer's. Small and `Copy`: whoever
/// submits the op keeps the two slices alive and unchanged until its completion, as it does the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pieces {
    local: NonNull<u64>,
    remote: NonNull<Piece>,
    count: u32,
}

// SAFETY: a view of integers that nobody changes while it is used; whoever reads through it promises that it is still there.
unsafe impl Send for Pieces {}
// SAFETY: as above; sharing it only reads.
unsafe impl Sync for Pieces {}

impl Pieces {
    /// A view of so many pieces: the address of each at this side, and its place at the peer with its length. None for no pieces,
    /// for slices of different lengths, and for more than `u32::MAX`.
    ///
    /// For a write the peer's offsets are in ascending order and do not overlap; a transport refuses the op otherwise.
    pub fn new(local: &[u64], remote: &[Piece]) -> Option<Pieces> {
        let count = u32::try_from(local.len()).ok().filter(|n| *n > 0)?;
        if remote.len() != local.len() {
            return None;
        }
        Some(Pieces { local: NonNull::from(local).cast(), remote: NonNull::from(remote).cast(), count })
    }

    /// How many pieces there are; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// The addresses at this side.
    ///
    /// # Safety
    /// The slices that the view was made of are alive and unchanged for `'a`.
    pub unsafe fn local<'a>(&self) -> &'a [u64] {
        // SAFETY: made from a slice of this length, which the caller vouches for.
        unsafe { std::slice::from_raw_parts(self.local.as_ptr(), self.len()) }
    }

    /// The places at the peer, and the lengths.
    ///
    /// # Safety
    /// As [`Pieces::local`].
    pub unsafe fn remote<'a>(&self) -> &'a [Piece] {
        // SAFETY: made from a slice of this length, which the caller vouches for.
        unsafe { std::slice::from_raw_parts(self.remote.as_ptr(), self.len()) }
    }
}

/// Whether the bytes of an op are verified end to end by a CRC32C, where [`crate::Capabilities::checksums`] says that they can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// They are not.
    #[default]
    Off,
    /// They are.
    On,
    /// They are, and our memory may vanish under the op ([`orbit_te_memory::Backing::may_vanish`]): its sum is made through the kernel,
    /// which answers where touching the memory would end the process. Slower.
    OnVanishing,
}

impl Verify {
    /// On, for memory that may vanish or not.
    pub fn on(may_vanish: bool) -> Verify {
        if may_vanish { Verify::OnVanishing } else { Verify::On }
    }

    /// Whether they are verified.
    pub fn is_on(self) -> bool {
        self != Verify::Off
    }
}

/// One thing to do: move `local.length` bytes between a local span and a remote one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Which way.
    pub kind: OpKind,
    /// To whom.
    pub link: LinkId,
    /// Our side. Whoever submits the op keeps a lease on the region until the completion.
    pub local: LocalSpan,
    /// The peer's side.
    pub remote: RemoteSpan,
    /// Where the bytes are, if they are not contiguous: then `local.length` is the length of all pieces together, and
    /// `local.address` and `remote.offset` are those of the first.
    pub pieces: Option<Pieces>,
    /// The name it comes back under.
    pub token: Token,
    /// How urgent it is beside other ops that wait for the same link. A hint: no order of completion follows from it.
    pub priority: Priority,
    /// Whether its bytes are verified end to end.
    pub verify: Verify,
}
