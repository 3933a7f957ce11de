//! The keys of a peer's regions that a link was given. Rule: a region is looked up by all that its owner was shown for it, so that what was
//! renewed is another one; keys that end are let go when no WR names them any more.

use crate::ops::OpSlot;
use orbit_te_memory::{Access, RemoteKey};
use orbit_te_transport::OpKind;
use orbit_te_wire::rdma::RailKeys;
use std::time::Instant;

/// What an owner is shown: region, generation, key.
pub(crate) type Shown = [u64; 3];

/// The words of a key that its owner is shown; the fourth is the end of what was described.
#[inline]
pub(crate) fn shown(key: &RemoteKey) -> Shown {
    [key.0[0], key.0[1], key.0[2]]
}

/// A region that can be read and written.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) keys: RailKeys,
    pub(crate) length: u64,
    pub(crate) access: Access,
    pub(crate) expires: Option<Instant>,
}

impl Open {
    /// Whether ops of a kind have the right.
    pub(crate) fn may(&self, kind: OpKind) -> bool {
        self.access.contains(match kind {
            OpKind::Read => Access::REMOTE_READ,
            OpKind::Write => Access::REMOTE_WRITE,
        })
    }

    /// The key for an offset, and how many bytes from there on it reaches.
    pub(crate) fn at(&self, offset: u64) -> Option<(u32, u64)> {
        self.keys.at(offset, self.length)
    }
}

/// Where a region stands.
#[derive(Debug)]
pub(crate) enum Entry {
    /// Its owner was asked; these ops wait.
    Asked { request: u32, since: Instant, waiting: Vec<OpSlot> },
    /// Its keys are known.
    Open(Open),
}

struct Known {
    shown: Shown,
    entry: Entry,
    /// The count of lookups when it was last looked up.
    used: u64,
}

/// The entries of one link.
#[derive(Default)]
pub(crate) struct Entries {
    known: Vec<Known>,
    /// Where the last lookup found its own: mostly the next one's.
    recent: usize,
    lookups: u64,
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    #[inline]
    pub(crate) fn find(&mut self, wanted: &Shown) -> Option<&mut Entry> {
        self.lookups += 1;
        if self.known.get(self.recent).is_none_or(|known| known.shown != *wanted) {
            self.recent = self.known.iter().position(|known| known.shown == *wanted)?;
        }
        let known = &mut self.known[self.recent];
        known.used = self.lookups;
        Some(&mut known.entry)
    }

    /// Where a region's keys are known and may be used now: its place for [`Entries::open_at`], as long as nothing is inserted or removed.
    #[inline]
    pub(crate) fn open(&mut self, wanted: &Shown, now: Instant) -> Option<usize> {
        match self.find(wanted)? {
            Entry::Open(open) if open.expires.is_none_or(|at| at > now) => Some(self.recent),
            _ => None,
        }
    }

    /// What [`Entries::open`] found.
    #[inline]
    pub(crate) fn open_at(&self, place: usize) -> Option<&Open> {
        match &self.known.get(place)?.entry {
            Entry::Open(open) => Some(open),
            Entry::Asked { .. } => None,
        }
    }

    pub(crate) fn insert(&mut self, shown: Shown, entry: Entry) {
        self.known.push(Known { shown, entry, used: self.lookups });
    }

    pub(crate) fn remove(&mut self, shown: &Shown) -> Option<Entry> {
        let at = self.known.iter().position(|known| known.shown == *shown)?;
        Some(self.known.swap_remove(at).entry)
    }

    /// Takes out the open ones that satisfy a condition.
    pub(crate) fn remove_open(&mut self, which: impl Fn(&Shown) -> bool) {
        self.known.retain(|known| matches!(known.entry, Entry::Asked { .. }) || !which(&known.shown));
    }

    /// What was asked under this number.
    pub(crate) fn asked(&self, number: u32) -> Option<Shown> {
        let is = |known: &&Known| matches!(known.entry, Entry::Asked { request, .. } if request == number);
        self.known.iter().find(is).map(|known| known.shown)
    }

    /// Since when the owner has left a question unanswered.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        let since = |known: &Known| match known.entry {
            Entry::Asked { since, .. } => Some(since),
            Entry::Open(_) => None,
        };
        self.known.iter().filter_map(since).min()
    }

    /// Takes out all, and gives the ops that waited for an answer.
    pub(crate) fn take_all(&mut self) -> Vec<OpSlot> {
        let known = std::mem::take(&mut self.known);
        let waiting = known.into_iter().filter_map(|known| match known.entry {
            Entry::Asked { waiting, .. } => Some(waiting),
            Entry::Open(_) => None,
        });
        waiting.flatten().collect()
    }

    /// The open region that was not used for longest.
    pub(crate) fn oldest(&self) -> Option<Shown> {
        let open = self.known.iter().filter(|known| matches!(known.entry, Entry::Open(_)));
        open.min_by_key(|known| known.used).map(|known| known.shown)
    }
}
