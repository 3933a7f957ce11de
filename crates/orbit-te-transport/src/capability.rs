//! What a transport can do. Rule: a fact about this transport here and now, found by asking the system, never assumed.

use crate::op::OpKind;
use orbit_te_memory::KindSet;

/// What a transport can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The transport's name, in routes, receipts and region keys.
    pub name: &'static str,
    /// Whether it can read from a peer.
    pub read: bool,
    /// Whether it can write to a peer.
    pub write: bool,
    /// The kinds of memory it reaches at this side.
    pub kinds: KindSet,
    /// Whether it takes memory of this side that may vanish while it is touched ([`orbit_te_memory::Backing::may_vanish`]).
    pub vanishing: bool,
    /// The largest op it takes, in bytes. It splits an op over its lanes or rails itself.
    pub max_op_bytes: u64,
    /// The most pieces in one op; zero for a transport that takes contiguous ops only.
    pub max_pieces: u32,
    /// The most bytes in one op of many pieces.
    pub max_list_bytes: u64,
    /// How many ops it holds at once; when they are all in use, [`crate::Transport::submit`] accepts none.
    pub max_ops: u32,
    /// Whether the target's CPU takes part in every op.
    pub needs_target_cpu: bool,
    /// Whether bytes are moved by the calls to the transport, on the thread that makes them: so its ops take that thread's time, one after
    /// the other, and many are over when the call returns. Otherwise somebody else moves them meanwhile: a device, the kernel, the target.
    pub moves_by_calls: bool,
    /// Whether the target's registry is asked before memory is touched, so that numbers, generations, keys, rights and ranges are told
    /// apart as it tells them.
    pub admits: bool,
    /// Whether a cancelled or failed write can be fenced at the target: once it is completed as fenced, no byte of it
    /// can land any more.
    pub fences: bool,
    /// Whether it verifies the bytes of an op end to end when the op asks for it; otherwise it refuses such an op as unsupported.
    pub checksums: bool,
    /// Whether it carries notifications ([`crate::Transport::notify`]); otherwise it takes none.
    pub notifications: bool,
}

impl Capabilities {
    /// Whether it does this kind of op.
    pub fn supports(&self, kind: OpKind) -> bool {
        match kind {
            OpKind::Read => self.read,
            OpKind::Write => self.write,
        }
    }
}
