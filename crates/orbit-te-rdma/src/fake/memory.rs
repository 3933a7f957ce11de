//! Keys, and what they open. Rule: memory is touched only through here: by a key of a live MR or a bound MW, in its PD, in its range, for
//! what its access allows.

use super::state::{Key, KeyKind, State};
use crate::access::MrAccess;

impl State {
    /// Where the bytes are that a WR names by a local key.
    #[inline]
    pub(super) fn local(&self, lkey: u32, pd: u32, address: u64, length: u64, need: MrAccess) -> Option<u64> {
        let key = self.key(lkey, pd)?;
        match key.kind {
            KeyKind::Mr { .. } => key.open(address, length, need),
            KeyKind::Mw { .. } => None,
        }
    }

    /// Where the bytes are that a peer names by a remote key, for the QP it sends to.
    #[inline]
    pub(super) fn remote(
        &self,
        rkey: u32,
        (pd, qp): (u32, u32),
        address: u64,
        length: u64,
        need: MrAccess,
    ) -> Option<u64> {
        let key = self.key(rkey, pd)?;
        match &key.kind {
            KeyKind::Mr { .. } => {}
            KeyKind::Mw { type_2, bound, .. } => {
                let bound = bound.as_ref()?;
                let mr = &self.keys[bound.mr as usize];
                assert!(mr.alive, "a window is bound to an MR that is gone");
                if *type_2 && bound.qp != qp {
                    return None;
                }
            }
        }
        key.open(address, length, need)
    }

    #[inline]
    fn key(&self, value: u32, pd: u32) -> Option<&Key> {
        let key = self.keys.get((value >> 8) as usize)?;
        (key.value == value && key.alive && key.pd == pd).then_some(key)
    }

    /// Whether a key is that of something live in this PD.
    pub(super) fn is_open(&self, value: u32, pd: u32) -> bool {
        self.key(value, pd).is_some()
    }
}

impl Key {
    #[inline]
    fn open(&self, address: u64, length: u64, need: MrAccess) -> Option<u64> {
        let offset = address.checked_sub(self.iova)?;
        let inside = offset.checked_add(length)? <= self.length;
        (inside && self.access.contains(need)).then(|| self.address + offset)
    }
}
