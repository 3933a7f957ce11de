//! The keys of this side's regions, as a transport looks them up for each WR. Rule: what is kept is forgotten as soon as any keys end.

use crate::memory::{LocalKeys, Registrations};
use orbit_te_wire::RegionId;
use std::sync::Arc;

/// Regions whose keys are kept.
const KEPT: usize = 64;

pub(crate) struct Local {
    registrations: Arc<Registrations>,
    epoch: u64,
    kept: Vec<(RegionId, u8, LocalKeys)>,
    /// Where the last lookup found its own: mostly the next one's.
    recent: usize,
    /// Which is forgotten next.
    next: usize,
}

impl Local {
    pub(crate) fn new(registrations: Arc<Registrations>) -> Local {
        let (kept, epoch) = (Vec::with_capacity(KEPT), registrations.epoch());
        Local { registrations, epoch, kept, recent: 0, next: 0 }
    }

    /// The keys of a region on a rail; none where it is not registered.
    pub(crate) fn keys(&mut self, region: RegionId, rail: u8) -> Option<&LocalKeys> {
        let epoch = self.registrations.epoch();
        if epoch != self.epoch {
            self.epoch = epoch;
            self.kept.clear();
        }
        let is = |known: &(RegionId, u8, LocalKeys)| (known.0, known.1) == (region, rail);
        if !self.kept.get(self.recent).is_some_and(is) {
            self.recent = match self.kept.iter().position(is) {
                Some(at) => at,
                None => self.look_up(region, rail)?,
            };
        }
        self.kept.get(self.recent).map(|known| &known.2)
    }

    /// Allocates: once for each region, and again after keys have ended.
    fn look_up(&mut self, region: RegionId, rail: u8) -> Option<usize> {
        let keys = self.registrations.get(region)?.local(rail)?;
        if self.kept.len() < KEPT {
            self.kept.push((region, rail, keys));
            return Some(self.kept.len() - 1);
        }
        let at = self.next;
        self.next = (at + 1) % KEPT;
        self.kept[at] = (region, rail, keys);
        Some(at)
    }
}
