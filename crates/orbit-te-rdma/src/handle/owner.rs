//! The one owner of an object of verbs. Rule: it frees its object exactly once, or hands it to the list of what is retained.

#![allow(unsafe_code)]

use super::retention::{NotFreed, Raw, Retention};
use crate::sys::Verbs;
use std::ptr::NonNull;
use std::sync::Arc;

/// A pointer to an object of verbs.
#[derive(Debug)]
pub(super) struct Ptr<T>(pub(super) NonNull<T>);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

// SAFETY: verbs may be called from any thread, with any of its objects; what is read of them directly never changes.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

impl<T> Ptr<T> {
    #[inline]
    pub(super) fn get(self) -> *mut T {
        self.0.as_ptr()
    }
}

/// An object, with what must outlive it.
pub(super) struct Owner<K: Send + Sync + 'static> {
    raw: Raw,
    verbs: Arc<dyn Verbs>,
    retention: Arc<Retention>,
    /// `None` once the object is gone or somebody else's.
    keep: Option<K>,
}

impl<K: Send + Sync + 'static> Owner<K> {
    /// Takes the object over.
    ///
    /// # Safety
    /// It came from this table just now, and nobody else frees it.
    pub(super) unsafe fn new(
        raw: Raw,
        verbs: Arc<dyn Verbs>,
        retention: Arc<Retention>,
        keep: K,
    ) -> Owner<K> {
        Owner { raw, verbs, retention, keep: Some(keep) }
    }

    #[inline]
    pub(super) fn verbs(&self) -> &dyn Verbs {
        &*self.verbs
    }

    pub(super) fn table(&self) -> &Arc<dyn Verbs> {
        &self.verbs
    }

    pub(super) fn retention(&self) -> &Arc<Retention> {
        &self.retention
    }

    /// What outlives it. There until it is freed, which takes the owner.
    pub(super) fn keep_mut(&mut self) -> Option<&mut K> {
        self.keep.as_mut()
    }

    pub(super) fn keep(&self) -> Option<&K> {
        self.keep.as_ref()
    }

    /// Frees the object, and says whether that worked.
    pub(super) fn free(mut self) -> Result<(), NotFreed> {
        self.free_now()
    }

    fn free_now(&mut self) -> Result<(), NotFreed> {
        let Some(keep) = self.keep.take() else { return Ok(()) };
        // SAFETY: by `new` the object is ours to free, and `keep` shows that this has not happened; whoever uses it borrows from us.
        match unsafe { self.raw.free(&*self.verbs) } {
            Ok(()) => Ok(()),
            Err(errno) => Err(self.retention.retain(self.raw, errno, self.verbs.clone(), Box::new(keep))),
        }
    }
}

impl<K: Send + Sync + 'static> Drop for Owner<K> {
    fn drop(&mut self) {
        // What could not be freed is on the list now, which says so.
        self.free_now().ok();
    }
}
