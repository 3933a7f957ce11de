//! Transfers: the state that a worker counts down, and the handle by which a caller waits. Rule: a transfer ends exactly once;
//! its leases are dropped before anybody is told; dropping the handle drops interest and nothing else.

use crate::error::TransferError;
use crate::guard;
use crate::worker::Worker;
use orbit_te_memory::Lease;
use orbit_te_transport::Op;
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The record of a transfer that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Bytes moved, all requests together.
    pub bytes: u64,
    /// How many requests there were.
    pub requests: usize,
    /// The transport that moved them.
    pub route: &'static str,
    /// From submitting to the last byte in place.
    pub elapsed: Duration,
}

/// The requests that one worker carries out.
pub(crate) struct Part {
    pub(crate) worker: Arc<Worker>,
    /// The token of each is its number in the batch.
    pub(crate) ops: Vec<Op>,
    /// Whether the worker has finished with it.
    over: AtomicBool,
}

impl Part {
    pub(crate) fn new(worker: Arc<Worker>, ops: Vec<Op>) -> Part {
        Part { worker, ops, over: AtomicBool::new(false) }
    }
}

/// Done once the data is in place, before the transfer ends. Called by a worker, so it may only hand work over.
pub(crate) type Afterwards = Box<dyn FnOnce(Arc<TransferState>) + Send>;

pub(crate) struct TransferState {
    pub(crate) parts: Vec<Part>,
    pub(crate) requests: usize,
    pub(crate) submitted: Instant,
    pub(crate) after: Duration,
    pub(crate) deadline: Instant,
    parts_left: AtomicUsize,
    done: AtomicBool,
    inner: Mutex<Inner>,
    /// Told when there is a result.
    ended: Condvar,
}

struct Inner {
    leases: Vec<Lease>,
    afterwards: Option<Afterwards>,
    bytes: u64,
    error: Option<TransferError>,
    result: Option<Result<Receipt, TransferError>>,
    waker: Option<Waker>,
}

impl TransferState {
    pub(crate) fn new(
        parts: Vec<Part>,
        leases: Vec<Lease>,
        after: Duration,
        afterwards: Option<Afterwards>,
    ) -> Arc<TransferState> {
        let submitted = Instant::now();
        let far = Duration::from_secs(365 * 24 * 3600);
        let inner = Inner { leases, afterwards, bytes: 0, error: None, result: None, waker: None };
        Arc::new(TransferState {
            requests: parts.iter().map(|p| p.ops.len()).sum(),
            parts_left: AtomicUsize::new(parts.len()),
            parts,
            submitted,
            after,
            deadline: submitted.checked_add(after).unwrap_or(submitted + far),
            done: AtomicBool::new(false),
            inner: Mutex::new(inner),
            ended: Condvar::new(),
        })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Whether a worker has finished with its part. The transfer ends with the last one, or later where a notification is bound
    /// to it.
    pub(crate) fn is_over(&self, part: usize) -> bool {
        self.parts[part].over.load(Ordering::Acquire)
    }

    /// A worker has finished its part: with so many bytes in place, and the first error if there was one.
    pub(crate) fn part_done(self: &Arc<Self>, part: usize, bytes: u64, error: Option<TransferError>) {
        self.parts[part].over.store(true, Ordering::Release);
        let mut inner = self.inner.lock();
        inner.bytes += bytes;
        if let Some(error) = error {
            inner.error.get_or_insert(error);
        }
        if self.parts_left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let leases = std::mem::take(&mut inner.leases);
        let (afterwards, error) = (inner.afterwards.take(), inner.error.take());
        drop(inner);
        // Nobody touches the memory any more: the leases go first, and with them perhaps the memory and its owner.
        // That runs an owner's code; if it panics, the transfer ends all the same.
        guard::contain("letting memory go", || drop(leases));
        match (afterwards, error) {
            (Some(afterwards), None) => afterwards(self.clone()),
            (_, error) => self.end(error),
        }
    }

    /// The transfer ends.
    pub(crate) fn end(&self, error: Option<TransferError>) {
        let mut inner = self.inner.lock();
        let receipt = Receipt {
            bytes: inner.bytes,
            requests: self.requests,
            route: "tcp",
            elapsed: self.submitted.elapsed(),
        };
        inner.result = Some(error.map_or(Ok(receipt), Err));
        self.done.store(true, Ordering::Release);
        let waker = inner.waker.take();
        drop(inner);
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Who is told when it ends; false when it has ended already.
    pub(crate) fn on_done(&self, waker: &Waker) -> bool {
        let mut inner = self.inner.lock();
        if inner.result.is_some() {
            return false;
        }
        if !inner.waker.as_ref().is_some_and(|w| w.will_wake(waker)) {
            inner.waker = Some(waker.clone());
        }
        true
    }

    /// Takes its leases away from it, to be kept.
    pub(crate) fn take_leases(&self) -> Vec<Lease> {
        std::mem::take(&mut self.inner.lock().leases)
    }

    fn result(&self) -> Option<Result<Receipt, TransferError>> {
        self.inner.lock().result.clone()
    }
}

/// A transfer under way. A plain [`Future`] for any executor; it can also be asked ([`Transfer::try_result`]) or waited for
/// ([`Transfer::wait`], [`Transfer::wait_for`]). Every transfer ends, at the latest a little after its deadline.
///
/// Dropping the handle changes nothing for the transfer or its memory. A blocking wait lends the calling thread to the engine,
/// so that an answer needs no hop between threads.
#[must_use = "dropping the handle of a transfer drops its result; nothing waits for it"]
pub struct Transfer {
    pub(crate) state: Arc<TransferState>,
}

impl Transfer {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.attend_unless_done()
    }

    /// How it ended, if it has.
    pub fn try_result(&self) -> Option<Result<Receipt, TransferError>> {
        if self.attend_unless_done() { self.state.result() } else { None }
    }

    /// Blocks the calling thread until it has ended.
    ///
    /// # Errors
    /// [`TransferError`]: why it failed.
    pub fn wait(&self) -> Result<Receipt, TransferError> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// Blocks the calling thread until it has ended, at most for `limit`; none at the limit, and the transfer goes on.
    pub fn wait_for(&self, limit: Duration) -> Option<Result<Receipt, TransferError>> {
        let now = Instant::now();
        // One wait of a year is as good as any.
        let until = now + limit.min(Duration::from_secs(365 * 24 * 3600));
        for (at, part) in self.state.parts.iter().enumerate() {
            part.worker.drive(&self.state, at, until);
        }
        // What is left is not a worker's to do: the notification's way to the peer and back.
        let mut inner = self.state.inner.lock();
        while inner.result.is_none() {
            if self.state.ended.wait_until(&mut inner, until).timed_out() {
                break;
            }
        }
        inner.result.clone()
    }

    /// Gives it up. It still ends by itself, soon, and only when this side's memory can't be touched any more: as a success when it
    /// was just about to, as [`TransferError::Cancelled`] otherwise, which says whether the peer's memory can still be touched. A
    /// transfer whose bytes are in place, and that waits for its notification only, is not given up by this.
    pub fn cancel(&self) {
        for part in &self.state.parts {
            part.worker.cancel(&self.state);
        }
    }
}

impl Transfer {
    /// Whether it has ended; if not, the workers' own threads go on with it, since this caller does not.
    fn attend_unless_done(&self) -> bool {
        let done = self.state.is_done();
        if !done {
            self.state.parts.iter().for_each(|part| part.worker.attend());
        }
        done
    }
}

impl Future for Transfer {
    type Output = Result<Receipt, TransferError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.state.is_done() && self.state.on_done(context.waker()) {
            self.attend_unless_done();
            return Poll::Pending;
        }
        self.state.result().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.attend_unless_done();
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("requests", &self.state.requests)
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}
