//! How many bytes may be registered. Rule: a backing is counted once however many regions share it, and counted until the last of
//! them is let go, not until it is retired.

use crate::backing::Backing;
use crate::error::MemoryError;
use crate::sync::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

/// Decides whether more bytes may be registered. Called on the thread that registers, or that lets the last handle of a region go;
/// must not block for long and must not call the registry.
pub trait RegistrationLimit: fmt::Debug + Send + Sync {
    /// Counts so many bytes in, all of them or none.
    ///
    /// # Errors
    /// [`OverLimit`]: nothing was counted.
    fn take(&self, bytes: u64) -> Result<(), OverLimit>;

    /// Counts so many bytes out, which were counted in before.
    fn give_back(&self, bytes: u64);
}

/// Why no more bytes may be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverLimit {
    /// How many bytes may be registered.
    pub limit_bytes: u64,
    /// How many are.
    pub in_use_bytes: u64,
}

/// No limit but that of the system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unlimited;

impl RegistrationLimit for Unlimited {
    fn take(&self, _bytes: u64) -> Result<(), OverLimit> {
        Ok(())
    }

    fn give_back(&self, _bytes: u64) {}
}

/// At most so many bytes. May be shared by several registries.
#[derive(Debug)]
pub struct ByteLimit {
    limit_bytes: u64,
    in_use_bytes: AtomicU64,
}

impl ByteLimit {
    /// A limit of so many bytes.
    pub fn new(limit_bytes: u64) -> Arc<ByteLimit> {
        Arc::new(ByteLimit { limit_bytes, in_use_bytes: AtomicU64::new(0) })
    }

    /// How many bytes are registered.
    pub fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes.load(Ordering::Acquire)
    }
}

impl RegistrationLimit for ByteLimit {
    fn take(&self, bytes: u64) -> Result<(), OverLimit> {
        let more = |in_use: u64| in_use.checked_add(bytes).filter(|all| *all <= self.limit_bytes);
        self.in_use_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .map(drop)
            .map_err(|in_use_bytes| OverLimit { limit_bytes: self.limit_bytes, in_use_bytes })
    }

    fn give_back(&self, bytes: u64) {
        self.in_use_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// A backing's bytes, counted while this lives. Shared by the regions over the backing.
#[derive(Debug)]
pub(crate) struct Charge {
    limit: Arc<dyn RegistrationLimit>,
    bytes: u64,
    /// Keeps the backing's address, the charge's name, from being used again.
    _backing: Weak<Backing>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.limit.give_back(self.bytes);
    }
}

/// The charges of a registry.
#[derive(Debug)]
pub(crate) struct Charges {
    limit: Arc<dyn RegistrationLimit>,
    /// By the backing's address.
    held: HashMap<usize, Weak<Charge>>,
    /// Entries at which those that are over are taken out.
    prune_at: usize,
}

impl Charges {
    pub(crate) fn new(limit: Arc<dyn RegistrationLimit>) -> Charges {
        Charges { limit, held: HashMap::new(), prune_at: 64 }
    }

    /// The charge of this backing, a new one if it has none.
    pub(crate) fn of(&mut self, backing: &Arc<Backing>) -> Result<Arc<Charge>, MemoryError> {
        let name = Arc::as_ptr(backing) as usize;
        if let Some(charge) = self.held.get(&name).and_then(Weak::upgrade) {
            return Ok(charge);
        }
        let bytes = backing.len() as u64;
        self.limit.take(bytes).map_err(|OverLimit { limit_bytes, in_use_bytes }| MemoryError::OverLimit {
            asked_bytes: bytes,
            limit_bytes,
            in_use_bytes,
        })?;
        let charge = Arc::new(Charge { limit: self.limit.clone(), bytes, _backing: Arc::downgrade(backing) });
        if self.held.len() >= self.prune_at {
            self.held.retain(|_, charge| charge.strong_count() > 0);
            self.prune_at = 64.max(2 * self.held.len());
        }
        self.held.insert(name, Arc::downgrade(&charge));
        Ok(charge)
    }
}
