//! Registering and withdrawing memory at an engine. Rule: a batch is registered whole or not at all; memory is withdrawn at once,
//! and let go when nobody can touch it any more.

use crate::engine::Engine;
use crate::error::Error;
use crate::region::Region;
use crate::serving::Held;
use orbit_te_memory::{Access, Backing, Domain, MemoryError, Registration};
use std::sync::Arc;
use std::time::Duration;

impl Engine {
    /// Registers memory with all transports, or with none.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn register(&self, backing: impl Into<Arc<Backing>>, access: Access) -> Result<Region, Error> {
        let only = self.register_all([Registration::new(backing, access)]).map_err(|error| match error {
            Error::Registration(error) => Error::Memory(error.source),
            other => other,
        })?;
        only.into_iter().next().ok_or(Error::Closed)
    }

    /// Registers several pieces of memory with all transports, or nothing of it with any; no peer reaches one of them before all are
    /// registered. The regions come in the order of the entries. Entries may name one backing several times, whole or in ranges:
    /// they share its memory, and its bytes count once against [`crate::Config::registration_limit`]. Ranges may overlap, each with its
    /// own rights, unless a transport can't tell them apart (TCP can). Blocks as long as the transports do.
    ///
    /// # Errors
    /// [`Error::Registration`] with the first entry that can't be registered, and why.
    pub fn register_all(
        &self,
        entries: impl IntoIterator<Item = Registration>,
    ) -> Result<Vec<Region>, Error> {
        let shared = self.shared();
        let entries: Vec<Registration> = entries.into_iter().collect();
        let done = shared.registry.register_all(&entries, &shared.domains)?;
        let region = |(raw, key)| Region { raw, key };
        Ok(done.into_iter().map(region).collect())
    }

    /// Withdraws a region: its segments are withdrawn, requests for it are refused from now on, and the call returns when none is
    /// under way any more. Blocks, at most a second longer than `limit`: at the limit the lanes are closed whose peers hold the region
    /// by stalling (a payload half sent, an answer not taken), and nothing of theirs lands afterwards. Our own transfers are not
    /// given up; cancel them first.
    ///
    /// # Errors
    /// [`Error::Memory`] when requests are still under way then, our own for example. The memory is kept until they have ended, and
    /// stands in [`Engine::retained`] meanwhile; retiring again waits again.
    pub fn retire(&self, region: &Region, limit: Duration) -> Result<(), Error> {
        let shared = self.shared();
        shared.exposed.write().retain(|_, exposed| exposed.region.id() != region.id());
        let evict = || shared.evict(Held::Region(region.id()));
        if let Err(error) = shared.registry.retire_or(&region.raw, limit, evict) {
            if let MemoryError::StillLeased { .. } = error {
                shared.retention.withdrawn(&region.raw);
            }
            return Err(error.into());
        }
        Ok(all(&shared.domains, |domain| domain.deregister(&region.raw, region.key))?)
    }

    /// Makes all that peers know of a region stale, and its grants with them, and returns when requests that were under way have
    /// ended. Peers open its segment again to go on. Blocks, and closes lanes at the limit, as [`Engine::retire`] does.
    ///
    /// # Errors
    /// [`Error::Memory`] when requests are still under way even then (descriptors are stale all the same; where a device checks keys of
    /// its own, only another revocation makes the old ones dead), when the region is retired, or when a transport can't make its old keys
    /// dead and known by new ones: peers reach the region by the others from then on.
    pub fn revoke(&self, region: &Region, limit: Duration) -> Result<(), Error> {
        let shared = self.shared();
        let evict = || shared.evict(Held::Region(region.id()));
        let renew = || all(&shared.domains, |domain| domain.renew(&region.raw, region.key));
        shared.registry.revoke_or(&region.raw, limit, evict, renew)?;
        Ok(())
    }
}

/// Asks each of the domains, whatever the others say; the first error.
fn all(
    domains: &[Arc<dyn Domain>],
    ask: impl Fn(&dyn Domain) -> Result<(), MemoryError>,
) -> Result<(), MemoryError> {
    domains.iter().map(|domain| ask(&**domain)).fold(Ok(()), Result::and)
}
