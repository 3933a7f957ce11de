//! Transfers: the state that a worker counts down, and the handle by which a caller waits. Rule: a transfer ends exactly once;
//! its leases are dropped before anybody is told; dropping the handle drops interest and nothing else.

use crate::admission::Permit;
use crate::clock;
use crate::command::Command;
use crate::error::{Error, TransferError};
use crate::guard;
use crate::prepared::Kept;
use crate::receipt::{Receipt, Requests, Tally};
use crate::route::RouteId;
use crate::router::Attempt;
use crate::worker::Worker;
use nix::sys::eventfd::{EfdFlags, EventFd};
use orbit_te_memory::Lease;
use orbit_te_transport::{LinkId, Op, Priority, TransportError};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

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

    /// One batch has one priority.
    pub(crate) fn priority(&self) -> Priority {
        self.ops.first().map_or(Priority::Normal, |op| op.priority)
    }
}

/// The notification that follows once the data is in place.
pub(crate) struct Announcement {
    pub(crate) worker: Arc<Worker>,
    pub(crate) link: LinkId,
    /// As they travel.
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct TransferState {
    pub(crate) parts: Vec<Part>,
    pub(crate) records: Requests,
    /// The route that its batch demands.
    pub(crate) demand: Option<RouteId>,
    announcement: Option<Announcement>,
    pub(crate) after: Duration,
    pub(crate) deadline: Instant,
    submitted: Instant,
    /// Nanoseconds from submitting until a transport took the first request; `NOT_BEGUN` before.
    begun_ns: AtomicU64,
    parts_left: AtomicUsize,
    done: AtomicBool,
    inner: Mutex<Inner>,
    /// Told when there is a result.
    ended: Condvar,
    /// Made when somebody asks for it; readable once the transfer has ended.
    event: OnceLock<EventFd>,
}

const NOT_BEGUN: u64 = u64::MAX;

struct Inner {
    leases: Vec<Lease>,
    /// What the ops of lists point at.
    kept: Vec<Kept>,
    permit: Option<Permit>,
    cancelled: bool,
    tally: Tally,
    attempts: Vec<Attempt>,
    error: Option<TransferError>,
    receipt: Option<Receipt>,
    waker: Option<Waker>,
    /// Threads that wait while others drive. Apart from the waker, which belongs to a future.
    parked: Vec<Thread>,
}

impl TransferState {
    pub(crate) fn new(
        parts: Vec<Part>,
        records: Requests,
        (leases, kept): (Vec<Lease>, Vec<Kept>),
        timing: Timing,
        permit: Permit,
        announcement: Option<Announcement>,
        demand: Option<RouteId>,
    ) -> Arc<TransferState> {
        let Timing { submitted, after } = timing;
        let inner = Inner {
            leases,
            kept,
            permit: Some(permit),
            cancelled: false,
            tally: Tally::default(),
            attempts: Vec::new(),
            error: None,
            receipt: None,
            waker: None,
            parked: Vec::new(),
        };
        Arc::new(TransferState {
            parts_left: AtomicUsize::new(parts.len()),
            parts,
            records,
            demand,
            announcement,
            submitted,
            after,
            deadline: timing.deadline(),
            begun_ns: AtomicU64::new(NOT_BEGUN),
            done: AtomicBool::new(false),
            inner: Mutex::new(inner),
            ended: Condvar::new(),
            event: OnceLock::new(),
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

    pub(crate) fn announcement(&self) -> Option<&Announcement> {
        self.announcement.as_ref()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.inner.lock().cancelled
    }

    /// A transport has taken the first request of a part.
    pub(crate) fn begins(&self, now: Instant) {
        let ns = now.saturating_duration_since(self.submitted).as_nanos() as u64;
        self.begun_ns.fetch_min(ns, Ordering::AcqRel);
    }

    /// Bytes at a receiving side may have changed before it began.
    pub(crate) fn touched(&self) {
        self.inner.lock().tally.touched = true;
    }

    /// Requests were tried, failed, and are tried again or have ended by now.
    pub(crate) fn tried(&self, attempts: Vec<Attempt>) {
        self.inner.lock().attempts.extend(attempts);
    }

    /// A worker has finished its part, and what it made of it.
    pub(crate) fn part_done(self: &Arc<Self>, part: usize, tally: &Tally, error: Option<TransferError>) {
        self.parts[part].over.store(true, Ordering::Release);
        let mut inner = self.inner.lock();
        inner.tally.add(tally);
        if let Some(error) = error {
            inner.error.get_or_insert(error);
        }
        if self.parts_left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (leases, kept) = (std::mem::take(&mut inner.leases), std::mem::take(&mut inner.kept));
        let error = inner.error.take();
        drop(inner);
        // Nobody touches the memory any more: the leases go first, and with them perhaps the memory and its owner.
        // That runs an owner's code; if it panics, the transfer ends all the same.
        guard::contain("letting memory go", || drop((leases, kept)));
        match &self.announcement {
            Some(announcement) if error.is_none() => {
                announcement.worker.submit_always(Command::Announce(self.clone()));
            }
            _ => self.end(error),
        }
    }

    /// The notification is over. Where bytes were moved before, they are in place in any case.
    pub(crate) fn announced(&self, error: Option<TransferError>) {
        let bound = !self.parts.is_empty();
        self.end(error.map(|error| match error {
            TransferError::Request { .. } | TransferError::Deadline { .. } if bound => {
                TransferError::Notification(Arc::from(reason(&error)))
            }
            error => error,
        }));
    }

    /// The transfer ends, unless it has ended already.
    pub(crate) fn end(&self, error: Option<TransferError>) {
        let mut inner = self.inner.lock();
        if inner.receipt.is_some() {
            return;
        }
        let (tally, requests) = (inner.tally, self.records.len());
        let attempts = std::mem::take(&mut inner.attempts);
        let (landed, fenced) = (tally.landed(requests), tally.fenced);
        let begun = match self.begun_ns.load(Ordering::Acquire) {
            NOT_BEGUN => None,
            ns => Some(self.submitted + Duration::from_nanos(ns)),
        };
        let ended = clock::now();
        inner.receipt = Some(Receipt {
            bytes: tally.bytes,
            requests,
            route: tally.routes.main(),
            routes: tally.routes,
            retries: attempts.len() as u32,
            attempts,
            submitted: self.submitted,
            begun,
            ended,
            elapsed: ended - self.submitted,
            landed,
            fenced,
            error: error.map(|error| error.at_the_end(tally.bytes, landed, fenced)),
            records: self.records.clone(),
        });
        let (permit, waker, parked) =
            (inner.permit.take(), inner.waker.take(), std::mem::take(&mut inner.parked));
        self.done.store(true, Ordering::Release);
        if let Some(event) = self.event.get() {
            // Fails only when the counter is full, and it is written once.
            let _ = event.write(1);
        }
        drop(inner);
        // Before anybody is told: who waited for room finds it.
        drop(permit);
        self.ended.notify_all();
        parked.iter().for_each(Thread::unpark);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Which future is told when it ends; false when it has ended already.
    pub(crate) fn on_done(&self, waker: &Waker) -> bool {
        let mut inner = self.inner.lock();
        if inner.receipt.is_some() {
            return false;
        }
        if !inner.waker.as_ref().is_some_and(|w| w.will_wake(waker)) {
            inner.waker = Some(waker.clone());
        }
        true
    }

    /// The calling thread is unparked when it ends; false when it has ended already.
    pub(crate) fn unpark_when_done(&self) -> bool {
        let mut inner = self.inner.lock();
        if inner.receipt.is_some() {
            return false;
        }
        let me = thread::current();
        if !inner.parked.iter().any(|parked| parked.id() == me.id()) {
            inner.parked.push(me);
        }
        true
    }

    /// The workers that have something to do with it.
    fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.parts.iter().map(|part| &part.worker).chain(self.announcement.iter().map(|a| &a.worker))
    }

    fn event(&self) -> io::Result<BorrowedFd<'_>> {
        // Under the lock, so that the end sees the event or this call the end.
        let inner = self.inner.lock();
        if self.event.get().is_none() {
            let event = EventFd::from_value_and_flags(
                u32::from(inner.receipt.is_some()),
                EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
            )?;
            let _ = self.event.set(event);
        }
        drop(inner);
        self.event.get().map(AsFd::as_fd).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn receipt(&self) -> Option<Receipt> {
        self.inner.lock().receipt.clone()
    }

    /// Takes its leases away from it, to be kept.
    pub(crate) fn take_leases(&self) -> Vec<Lease> {
        let mut inner = self.inner.lock();
        // What the ops of lists point at is kept with the memory.
        std::mem::take(&mut inner.kept).into_iter().for_each(std::mem::forget);
        std::mem::take(&mut inner.leases)
    }

    fn result(&self) -> Option<Result<Receipt, TransferError>> {
        self.receipt().map(into_result)
    }
}

/// Why a notification was not delivered.
fn reason(error: &TransferError) -> String {
    match error {
        TransferError::Request { error, cause: None, .. } => error.to_string(),
        TransferError::Request { error, cause: Some(cause), .. } => format!("{error}, because {cause}"),
        TransferError::Deadline { .. } => format!("{error}; whether it was taken is not known"),
        error => error.to_string(),
    }
}

fn into_result(receipt: Receipt) -> Result<Receipt, TransferError> {
    match receipt.error {
        Some(error) => Err(error),
        None => Ok(receipt),
    }
}

/// When a transfer was submitted, and how long it may take from then on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) submitted: Instant,
    pub(crate) after: Duration,
}

impl Timing {
    /// At most a year from now, so that every transfer ends.
    pub(crate) fn deadline(&self) -> Instant {
        self.submitted + self.after.min(A_YEAR)
    }
}

const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

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
        let mut now = clock::now();
        // One wait of a year is as good as any.
        let until = now + limit.min(A_YEAR);
        for (at, part) in self.state.parts.iter().enumerate() {
            now =
                part.worker.drive(&|| self.state.is_over(at), &|| self.state.unpark_when_done(), now, until);
        }
        if let Some(Announcement { worker, .. }) = &self.state.announcement {
            worker.drive(&|| self.state.is_done(), &|| self.state.unpark_when_done(), now, until);
        }
        // What is left is another thread's to tell.
        let mut inner = self.state.inner.lock();
        while inner.receipt.is_none() {
            if self.state.ended.wait_until(&mut inner, until).timed_out() {
                break;
            }
        }
        inner.receipt.clone().map(into_result)
    }

    /// Its record, once it has ended, well or not.
    pub fn receipt(&self) -> Option<Receipt> {
        if self.attend_unless_done() { self.state.receipt() } else { None }
    }

    /// Where each of its requests stands, while it goes on and afterwards.
    pub fn requests(&self) -> Requests {
        self.attend_unless_done();
        self.state.records.clone()
    }

    /// A descriptor that is readable once the transfer has ended, and stays so: for `poll`, `epoll` and the like. Made at the first
    /// call, and closed with the transfer; don't read from it or write to it.
    ///
    /// # Errors
    /// [`Error::Transport`] when the system gives no descriptor.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.attend_unless_done();
        let io = |source| TransportError::Io { what: "a transfer's event".to_string(), source };
        Ok(self.state.event().map_err(io)?)
    }

    /// Lets it go on without the handle: as dropping it, but said.
    pub fn detach(self) {}

    /// Gives it up. It still ends by itself, soon, and only when this side's memory can't be touched any more: as a success when it
    /// was just about to, as [`TransferError::Cancelled`] otherwise, which says what became of the bytes and whether the peer's memory
    /// can still be touched; [`Transfer::requests`] says it of each request. Where a notification was on its way, all bytes are in
    /// place, and whether it was taken is not known.
    pub fn cancel(&self) {
        self.state.inner.lock().cancelled = true;
        self.state.workers().for_each(|worker| worker.cancel(&self.state));
    }
}

impl Transfer {
    /// Whether it has ended; if not, the workers' own threads go on with it, since this caller does not.
    fn attend_unless_done(&self) -> bool {
        let done = self.state.is_done();
        if !done {
            self.state.workers().for_each(|worker| worker.attend());
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
            .field("requests", &self.state.records.len())
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}
