//! Registering memory, several pieces at once. Rule: all of a batch is published, or nothing of it is left anywhere.

use crate::backing::Backing;
use crate::domain::{Domain, LocalKey};
use crate::error::MemoryError;
use crate::region::Region;
use crate::registry::Registry;
use orbit_te_wire::Access;
use std::sync::Arc;
use thiserror::Error;

/// A range of a backing that is to become a region. Several may name one backing, and share it.
#[derive(Debug, Clone)]
pub struct Registration {
    /// The memory.
    pub backing: Arc<Backing>,
    /// Where the region begins in it, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// Who may do what with it.
    pub access: Access,
}

impl Registration {
    /// All of a backing.
    pub fn new(backing: impl Into<Arc<Backing>>, access: Access) -> Registration {
        let backing = backing.into();
        let length = backing.len() as u64;
        Registration { backing, offset: 0, length, access }
    }

    /// A range of a backing.
    pub fn range(backing: impl Into<Arc<Backing>>, offset: u64, length: u64, access: Access) -> Registration {
        Registration { backing: backing.into(), offset, length, access }
    }
}

/// Why a batch was not registered. Nothing of it is.
#[derive(Debug, Error)]
#[error("entry {index} of the registration: {source}")]
pub struct RegistrationError {
    /// The entry, counted from zero.
    pub index: usize,
    /// What was wrong with it.
    pub source: MemoryError,
}

/// A region with the key by which all domains know it.
pub type Registered = (Region, LocalKey);

impl Registry {
    /// Makes regions, registers each with every domain, and publishes them together: until then no peer reaches any of them.
    /// Blocks as long as the domains do.
    ///
    /// # Errors
    /// [`RegistrationError`] with the first entry that can't be registered: [`MemoryError::ZeroLength`],
    /// [`MemoryError::OutOfRange`], [`MemoryError::OverLimit`], [`MemoryError::Overlap`], [`MemoryError::NoRandom`], a domain's
    /// refusal, or [`MemoryError::Refused`] for a domain that knows the region by another key than the one before it. What the domains
    /// had registered is deregistered, the last first.
    pub fn register_all(
        &self,
        entries: &[Registration],
        domains: &[Arc<dyn Domain>],
    ) -> Result<Vec<Registered>, RegistrationError> {
        let mut batch = Batch { done: Vec::with_capacity(entries.len()), domains };
        let sharing = domains.iter().find(|d| d.shares_registrations()).map(|d| d.name());
        for (index, entry) in entries.iter().enumerate() {
            let failed = |source| RegistrationError { index, source };
            let region = self.prepare(entry, sharing).map_err(failed)?;
            batch.done.push((region.clone(), Vec::with_capacity(domains.len())));
            for domain in domains {
                let key = domain.register(&region).map_err(failed)?;
                let Some((_, keys)) = batch.done.last_mut() else { continue };
                keys.push(key);
                if keys[0] != key {
                    let reason =
                        "it knows the region by another key than the transports before it".to_string();
                    return Err(failed(MemoryError::Refused { domain: domain.name(), reason }));
                }
            }
        }
        let done = std::mem::take(&mut batch.done);
        self.publish(done.iter().map(|(region, _)| region));
        let one = |(region, keys): (Region, Vec<LocalKey>)| {
            let key = keys.first().copied().unwrap_or_else(|| LocalKey::of_host(&region));
            (region, key)
        };
        Ok(done.into_iter().map(one).collect())
    }
}

/// What is registered so far; rolled back when it is dropped before it was published, also by a domain that panics.
struct Batch<'a> {
    /// With the key that each domain gave.
    done: Vec<(Region, Vec<LocalKey>)>,
    domains: &'a [Arc<dyn Domain>],
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        while let Some((region, keys)) = self.done.pop() {
            // A domain may have kept a handle; it gets no lease by it.
            region.gate().retire();
            for (domain, key) in self.domains.iter().zip(&keys).rev() {
                // The domain keeps what it does not give back, and with it its handle of the region.
                let _ = domain.deregister(&region, *key);
            }
        }
    }
}
