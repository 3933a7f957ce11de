//! Memory for RDMA. Rule: a region's keys are given to nobody with its description: a peer asks for them over the control link, shows what
//! it was shown, and is remembered for as long as it has them.

use crate::adapter::Adapters;
use crate::error::VerbsError;
use crate::handle::NotFreed;
use crate::memory::Registrations;
use orbit_te_memory::{Domain, KindSet, LocalKey, MemoryError, Region, RemoteKey};
use orbit_te_wire::RegionDescriptor;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The name, in routes and keys.
pub(crate) const NAME: &str = "rdma";

/// The [`Domain`] of RDMA.
#[derive(Debug, Clone)]
pub struct RdmaDomain {
    registrations: Arc<Registrations>,
    /// Where memory that no device takes is left to other routes: whether that was told.
    lenient: Option<Arc<AtomicBool>>,
}

impl RdmaDomain {
    /// One that registers on these rails. Memory that a device does not take is refused.
    pub fn new(adapters: Arc<Adapters>) -> RdmaDomain {
        RdmaDomain { registrations: Arc::new(Registrations::new(adapters)), lenient: None }
    }

    /// One that leaves memory to other routes which a device does not take, as where the limit of locked memory is too low. The first time
    /// stands in the log as a warning, with the remedy.
    pub fn where_possible(adapters: Arc<Adapters>) -> RdmaDomain {
        RdmaDomain { lenient: Some(Arc::default()), ..RdmaDomain::new(adapters) }
    }

    /// The rails that it registers on.
    pub fn adapters(&self) -> &Arc<Adapters> {
        self.registrations.adapters()
    }

    pub(crate) fn registrations(&self) -> &Arc<Registrations> {
        &self.registrations
    }

    fn add(&self, region: &Region) -> Result<(), MemoryError> {
        let error: VerbsError = match (self.registrations.add(region), &self.lenient) {
            (Ok(()), _) => return Ok(()),
            (Err(error), None) => return Err(refused(error)),
            (Err(error), Some(told)) if !told.swap(true, Ordering::Relaxed) => {
                tracing::warn!("rdma: memory is not registered, and is reached by other routes: {error}");
                return Ok(());
            }
            (Err(error), Some(_)) => error,
        };
        tracing::debug!("rdma: memory is not registered, and is reached by other routes: {error}");
        Ok(())
    }
}

fn refused(why: impl Display) -> MemoryError {
    MemoryError::Refused { domain: NAME, reason: why.to_string() }
}

fn retained(not_freed: NotFreed) -> MemoryError {
    refused(not_freed)
}

impl Domain for RdmaDomain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn kinds(&self) -> KindSet {
        KindSet::HOST
    }

    fn register(&self, region: &Region) -> Result<LocalKey, MemoryError> {
        if !self.kinds().contains(region.kind()) {
            return Err(refused(format!("{:?} memory is not reachable by the CPU", region.kind())));
        }
        // A file's pages can't be pinned for good; the region is reached by other routes.
        if !region.backing().may_vanish() {
            self.add(region)?;
        }
        Ok(LocalKey::of_host(region))
    }

    fn remote_key(&self, region: &Region, key: u64) -> Vec<u8> {
        match self.registrations.get(region.id()) {
            Some(_) => key.to_le_bytes().to_vec(),
            None => Vec::new(),
        }
    }

    fn renew(&self, region: &Region, _key: LocalKey) -> Result<(), MemoryError> {
        let registered = self.registrations.get(region.id()).is_some();
        // Also what could not be deregistered before: until it is, its keys are not dead.
        self.registrations.remove(region.id()).map_err(retained)?;
        if registered { self.add(region) } else { Ok(()) }
    }

    fn deregister(&self, region: &Region, _key: LocalKey) -> Result<(), MemoryError> {
        self.registrations.remove(region.id()).map_err(retained)
    }

    fn import(&self, descriptor: &RegionDescriptor) -> Result<RemoteKey, MemoryError> {
        let bad = |reason: &str| MemoryError::BadRemoteKey { domain: NAME, reason: reason.to_string() };
        let bytes = descriptor.key(NAME).ok_or_else(|| bad("the descriptor has no key for rdma"))?;
        let key = bytes.try_into().map_err(|_| bad("the key is not 8 bytes long"))?;
        Ok(RemoteKey::of_host(descriptor, u64::from_le_bytes(key)))
    }

    fn forget(&self, _key: RemoteKey) {}
}
