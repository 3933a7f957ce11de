//! Answers that come later. Rule: a plain future that any executor can poll, or a blocking wait with a limit; never needs a
//! runtime.

use crate::clock;
use crate::error::{Error, TransferError};
use crate::notification;
use crate::receipt::Receipt;
use crate::segment::Segment;
use crate::transfer::Transfer;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// An answer that comes later. Dropping it drops interest in the answer, nothing else.
#[derive(Debug)]
#[must_use = "nothing waits for the answer unless it is awaited"]
pub struct Pending<T> {
    what: &'static str,
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    Waiting(oneshot::Receiver<Result<T, Error>>),
    Ready(Option<Result<T, Error>>),
    Announced(Announced<T>),
}

/// A notification under way, and its receiver.
#[derive(Debug)]
struct Announced<T> {
    transfer: Transfer,
    to: Segment,
    read: fn(Result<Receipt, TransferError>, &Segment) -> Result<T, Error>,
}

impl<T> Pending<T> {
    pub(crate) fn new(what: &'static str) -> (oneshot::Sender<Result<T, Error>>, Pending<T>) {
        let (sender, receiver) = oneshot::channel();
        (sender, Pending { what, state: State::Waiting(receiver) })
    }

    pub(crate) fn ready(what: &'static str, result: Result<T, Error>) -> Pending<T> {
        Pending { what, state: State::Ready(Some(result)) }
    }

    /// Blocks the calling thread until the answer has come, at most for `limit`.
    ///
    /// # Errors
    /// [`Error::TimedOut`] at the limit, otherwise what went wrong with the call.
    pub fn wait(self, limit: Duration) -> Result<T, Error> {
        let what = self.what;
        if let State::Announced(Announced { transfer, to, read }) = &self.state {
            // The waiting thread drives it.
            return transfer
                .wait_for(limit)
                .map_or(Err(Error::TimedOut { what, limit }), |end| read(end, to));
        }
        block_on(self, clock::now().checked_add(limit)).unwrap_or(Err(Error::TimedOut { what, limit }))
    }
}

impl Pending<()> {
    /// The answer to a notification.
    pub(crate) fn announced(what: &'static str, transfer: Transfer, to: Segment) -> Pending<()> {
        Pending { what, state: State::Announced(Announced { transfer, to, read: notification::taken }) }
    }
}

impl<T> Unpin for Pending<T> {}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, Error>> {
        match &mut self.state {
            State::Waiting(receiver) => {
                // A sender that is dropped without an answer belonged to an engine that ended.
                Pin::new(receiver).poll(context).map(|answer| answer.unwrap_or(Err(Error::Closed)))
            }
            State::Announced(Announced { transfer, to, read }) => {
                let read = *read;
                Pin::new(transfer).poll(context).map(|end| read(end, to))
            }
            State::Ready(result) => Poll::Ready(result.take().unwrap_or(Err(Error::Closed))),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker that ends a `thread::park` of the calling thread.
pub(crate) fn thread_waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// Runs a future on the calling thread until it is done or the time has come.
pub(crate) fn block_on<F: Future>(future: F, until: Option<Instant>) -> Option<F::Output> {
    let mut future = pin!(future);
    let waker = thread_waker();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        match until {
            None => thread::park(),
            Some(until) => {
                let left = until.checked_duration_since(clock::now())?;
                thread::park_timeout(left);
            }
        }
    }
}
