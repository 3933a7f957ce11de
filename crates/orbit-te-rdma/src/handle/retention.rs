//! What could not be freed. Rule: an entry keeps its parents and its memory until the device has let go of it.

#![allow(unsafe_code)]

use crate::error::Errno;
use crate::sys::Verbs;
use ibverbs_sys::*;
use parking_lot::Mutex;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A context: an open device.
    Context,
    /// A protection domain.
    Pd,
    /// A memory region.
    Mr,
    /// A memory window.
    Mw,
    /// A completion channel.
    Channel,
    /// A completion queue.
    Cq,
    /// A shared receive queue.
    Srq,
    /// A queue pair.
    Qp,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectKind::Context => "context",
            ObjectKind::Pd => "PD",
            ObjectKind::Mr => "MR",
            ObjectKind::Mw => "MW",
            ObjectKind::Channel => "completion channel",
            ObjectKind::Cq => "CQ",
            ObjectKind::Srq => "SRQ",
            ObjectKind::Qp => "QP",
        })
    }
}

/// An object of verbs that somebody here owns.
#[derive(Debug, Clone, Copy)]
pub(super) enum Raw {
    Context(NonNull<ibv_context>),
    Pd(NonNull<ibv_pd>),
    Mr(NonNull<ibv_mr>),
    Mw(NonNull<ibv_mw>),
    Channel(NonNull<ibv_comp_channel>),
    Cq(NonNull<ibv_cq>),
    Srq(NonNull<ibv_srq>),
    Qp(NonNull<ibv_qp>),
}

// SAFETY: verbs may be called from any thread, with any of its objects.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    pub(super) fn kind(self) -> ObjectKind {
        match self {
            Raw::Context(_) => ObjectKind::Context,
            Raw::Pd(_) => ObjectKind::Pd,
            Raw::Mr(_) => ObjectKind::Mr,
            Raw::Mw(_) => ObjectKind::Mw,
            Raw::Channel(_) => ObjectKind::Channel,
            Raw::Cq(_) => ObjectKind::Cq,
            Raw::Srq(_) => ObjectKind::Srq,
            Raw::Qp(_) => ObjectKind::Qp,
        }
    }

    /// Frees it.
    ///
    /// # Safety
    /// It came from this table, and was not freed; nobody else uses it now or, if this succeeds, ever.
    pub(super) unsafe fn free(self, verbs: &dyn Verbs) -> Result<(), Errno> {
        // SAFETY: the caller's promise is that of each of these calls.
        unsafe {
            match self {
                Raw::Context(context) => verbs.close_device(context.as_ptr()),
                Raw::Pd(pd) => verbs.dealloc_pd(pd.as_ptr()),
                Raw::Mr(mr) => verbs.dereg_mr(mr.as_ptr()),
                Raw::Mw(mw) => verbs.dealloc_mw(mw.as_ptr()),
                Raw::Channel(channel) => verbs.destroy_comp_channel(channel.as_ptr()),
                Raw::Cq(cq) => verbs.destroy_cq(cq.as_ptr()),
                Raw::Srq(srq) => verbs.destroy_srq(srq.as_ptr()),
                Raw::Qp(qp) => verbs.destroy_qp(qp.as_ptr()),
            }
        }
    }
}

/// The number of a retained object in its [`Retention`]; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// An object that could not be freed.
#[derive(Debug, Clone, Copy)]
pub struct Retained {
    /// Its number in the list.
    pub ticket: Ticket,
    /// What it is.
    pub kind: ObjectKind,
    /// Why, by the last try.
    pub errno: Errno,
    /// Since when.
    pub since: Instant,
    /// How often it was tried.
    pub tries: u32,
}

/// What an explicit destroy says when the object had to be retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the {kind} could not be freed and is retained: {errno}")]
pub struct NotFreed {
    /// Its number in the list of the context.
    pub ticket: Ticket,
    /// What it is.
    pub kind: ObjectKind,
    /// Why.
    pub errno: Errno,
}

/// What a sweep did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    /// Freed now.
    pub freed: Vec<Ticket>,
    /// Still retained.
    pub left: usize,
}

struct Entry {
    seen: Retained,
    raw: Raw,
    verbs: Arc<dyn Verbs>,
    /// Parents and memory: let go after the object.
    keep: Box<dyn Send + Sync>,
}

/// The list of one context. Whoever wants to sweep after the last handle is gone keeps it: [`super::Context::retention`].
#[derive(Default)]
pub struct Retention {
    entries: Mutex<Vec<Entry>>,
    next: AtomicU64,
}

impl Retention {
    /// Takes an object that could not be freed, with all that it needs.
    pub(super) fn retain(
        &self,
        raw: Raw,
        errno: Errno,
        verbs: Arc<dyn Verbs>,
        keep: Box<dyn Send + Sync>,
    ) -> NotFreed {
        let ticket = Ticket(self.next.fetch_add(1, Ordering::Relaxed));
        let kind = raw.kind();
        tracing::warn!(%kind, %errno, "could not be freed; retained");
        let seen = Retained { ticket, kind, errno, since: Instant::now(), tries: 1 };
        self.entries.lock().push(Entry { seen, raw, verbs, keep });
        NotFreed { ticket, kind, errno }
    }

    /// How many have ever been on it. For monitoring: it never falls.
    pub fn ever(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// All that is retained, the oldest first.
    pub fn list(&self) -> Vec<Retained> {
        self.entries.lock().iter().map(|entry| entry.seen).collect()
    }

    /// Whether an object is still retained.
    pub fn holds(&self, ticket: Ticket) -> bool {
        self.entries.lock().iter().any(|entry| entry.seen.ticket == ticket)
    }

    /// Tries to free each of them again, and again what that set free, until nothing more can be freed.
    pub fn sweep(&self) -> Swept {
        let mut freed = Vec::new();
        loop {
            let mut let_go = Vec::new();
            let mut entries = self.entries.lock();
            for mut entry in std::mem::take(&mut *entries) {
                // SAFETY: the object came from this table; it was not freed, or it would not be here; its owner is gone, and the lock keeps
                // other sweeps out.
                match unsafe { entry.raw.free(&*entry.verbs) } {
                    Ok(()) => let_go.push(entry),
                    Err(errno) => {
                        entry.seen.errno = errno;
                        entry.seen.tries += 1;
                        entries.push(entry);
                    }
                }
            }
            let left = entries.len();
            drop(entries);
            if let_go.is_empty() {
                return Swept { freed, left };
            }
            freed.extend(let_go.iter().map(|entry| entry.seen.ticket));
            // Without the lock: letting go of parents may retain them in turn.
            let_go.into_iter().for_each(|entry| drop(entry.keep));
        }
    }
}

impl Drop for Retention {
    fn drop(&mut self) {
        for Entry { seen, .. } in self.entries.get_mut() {
            tracing::error!(kind = %seen.kind, errno = %seen.errno, "never freed: nobody is left who could try again");
        }
    }
}

impl fmt::Debug for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}
