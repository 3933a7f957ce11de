//! What a registration, a window or a QP lets be done. Rule: the bits are those of verbs, so nothing is translated.

bitflags::bitflags! {
    /// Access flags of an MR, an MW or a QP.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct MrAccess: u32 {
        /// The device may write: for receives and as the target of READs. Remote writing needs it too.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 2;
        /// Peers may READ.
        const REMOTE_READ = 4;
        /// Peers may use atomics; never given.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        const MW_BIND = 16;
        /// Writes to it may become visible in any order until the completion. Optional: systems that don't know it ignore it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl MrAccess {
    /// The bits that systems which don't know them ignore; only `ibv_reg_mr_iova2` takes them.
    pub const OPTIONAL: MrAccess = MrAccess::RELAXED_ORDERING;

    /// Whether verbs refuses them: remote writing without local writing.
    pub fn is_contradiction(self) -> bool {
        self.intersects(MrAccess::REMOTE_WRITE | MrAccess::REMOTE_ATOMIC)
            && !self.contains(MrAccess::LOCAL_WRITE)
    }
}
