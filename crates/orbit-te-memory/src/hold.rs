//! Holds: regions that a peer reaches by itself. Rule: who gives a peer such a way keeps a hold until the peer has it no more; a
//! withdrawal recalls the holds first and then waits for them, as it does for leases.
//!
//! A lease belongs to one request that this process carries out. Where a peer has mapped the memory, or reads it through the kernel, this
//! process sees no requests: the transport that let the peer in keeps a [`Hold`], is told by [`Recall`] that the region or the grant
//! ends, makes the peer stop, and drops the hold when it has.

use crate::grant::{Grant, GrantId};
use crate::lease::Lease;
use crate::region::Region;
use orbit_te_wire::{Generation, RegionId};
use std::fmt;
use std::sync::Arc;

/// What ends, and with it every hold on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recalled {
    /// A region was retired, revoked or renewed: nobody may touch it by what he was given before.
    Region(RegionId),
    /// A grant was revoked.
    Grant(GrantId),
}

impl Recalled {
    /// Whether this ends such a hold.
    pub fn ends(self, hold: &Hold) -> bool {
        match self {
            Recalled::Region(region) => hold.region.id() == region,
            Recalled::Grant(grant) => hold.grant().is_some_and(|g| g.id() == grant),
        }
    }
}

/// Is told what ends.
pub trait Recall: Send + Sync {
    /// Makes peers stop, and drops the holds on what ends as soon as they have. Called by the thread that withdraws, after new holds and
    /// leases are refused and before it waits; must not wait itself.
    fn recall(&self, what: Recalled);
}

/// A peer's way to touch a region by itself, until it is dropped. While it is held the region is not retired, and the backing is not
/// dropped.
pub struct Hold {
    region: Region,
    grant: Option<Arc<Grant>>,
    generation: Generation,
}

impl Hold {
    /// Makes a hold of the lease by which a peer's request of this generation was admitted; none when what it stands on has ended meanwhile. Call it, and keep
    /// the hold, under the lock that [`Recall::recall`] takes: then a recall either finds it or has closed the gate before.
    pub fn new(lease: Lease, generation: Generation) -> Option<Hold> {
        let (region, grant) = (lease.region().clone(), lease.shared_grant().cloned());
        region.gate().hold();
        if let Some(grant) = &grant {
            grant.gate().hold();
        }
        let hold = Hold { region, grant, generation };
        drop(lease);
        (!hold.is_over()).then_some(hold)
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The grant under which the peer was let in; none where the region's own key was presented.
    pub fn grant(&self) -> Option<&Grant> {
        self.grant.as_deref()
    }

    /// Whether the region or the grant takes no more leases, or the region is of another generation by now. The end of a grant by its time is not seen here.
    pub fn is_over(&self) -> bool {
        self.region.gate().is_closed()
            || self.region.generation() != self.generation
            || self.grant.as_ref().is_some_and(|grant| grant.gate().is_closed())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(grant) = &self.grant {
            grant.gate().let_go();
        }
        self.region.gate().let_go();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("region", &self.region.id()).finish_non_exhaustive()
    }
}
