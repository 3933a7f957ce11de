//! The memory half of the reference. Rule: a key is the region's own number, generation and key, checked by the target
//! with every request.
//!
//! It counts what is registered and imported, and refuses to give back what it never gave.

use crate::testing::reference::NAME;
use orbit_te_memory::{Domain, KindSet, LocalKey, MemoryError, Region, RemoteKey};
use orbit_te_wire::RegionDescriptor;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The domain of either side.
#[derive(Debug, Default)]
pub struct ReferenceDomain {
    registered: Mutex<HashSet<LocalKey>>,
}

impl Domain for ReferenceDomain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn kinds(&self) -> KindSet {
        KindSet::HOST
    }

    fn register(&self, region: &Region) -> Result<LocalKey, MemoryError> {
        if !self.kinds().contains(region.kind()) {
            let reason = format!("{:?} memory is not the host's", region.kind());
            return Err(MemoryError::Refused { domain: NAME, reason });
        }
        let key = LocalKey::of_host(region);
        self.registered.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        Ok(key)
    }

    fn remote_key(&self, _region: &Region, key: u64) -> Vec<u8> {
        key.to_le_bytes().to_vec()
    }

    fn deregister(&self, region: &Region, key: LocalKey) -> Result<(), MemoryError> {
        let known = self.registered.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        if known && key.region() == region.id() {
            return Ok(());
        }
        let reason = format!("region {} is not registered under {key:?}", region.id());
        Err(MemoryError::Refused { domain: NAME, reason })
    }

    fn import(&self, descriptor: &RegionDescriptor) -> Result<RemoteKey, MemoryError> {
        let bad = |reason: &str| MemoryError::BadRemoteKey { domain: NAME, reason: reason.to_string() };
        let bytes = descriptor.key(NAME).ok_or_else(|| bad("there is none"))?;
        let key = bytes.try_into().map_err(|_| bad("it should have eight bytes"))?;
        Ok(RemoteKey([descriptor.region.0, descriptor.generation.0, u64::from_le_bytes(key), 0]))
    }

    fn forget(&self, _key: RemoteKey) {}
}
