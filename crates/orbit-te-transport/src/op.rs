//! Ops: what a transport is asked to do. Rule: an op is small and `Copy`; it names a link, never a lane or a rail.

use crate::priority::Priority;
use orbit_te_memory::{LocalSpan, RemoteKey};

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
    /// The name it comes back under.
    pub token: Token,
    /// How urgent it is beside other ops that wait for the same link. A hint: no order of completion follows from it.
    pub priority: Priority,
}
