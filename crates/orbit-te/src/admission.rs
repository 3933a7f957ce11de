//! How many transfers and requests an engine may have under way, and who waits for room. Rule: a batch gets its place whole or not
//! at all; who waits gets it in order of arrival, and nobody overtakes who waits.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// The bounds of an engine, and what is under way.
pub(crate) struct Admission {
    most_transfers: usize,
    most_requests: usize,
    /// Locked twice a transfer, never for each request: order among those who wait needs it.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    transfers: usize,
    requests: usize,
    waiting: VecDeque<Arc<Ticket>>,
}

struct Ticket {
    requests: usize,
    granted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// The place of one transfer; given back when it is dropped.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    requests: usize,
}

/// A place in the queue. Dropping it leaves the queue.
pub(crate) struct Waiting {
    admission: Arc<Admission>,
    ticket: Arc<Ticket>,
    taken: bool,
}

impl Admission {
    pub(crate) fn new(most_transfers: usize, most_requests: usize) -> Arc<Admission> {
        let (most_transfers, most_requests) = (most_transfers.max(1), most_requests.max(1));
        Arc::new(Admission { most_transfers, most_requests, state: Mutex::default() })
    }

    /// Transfers that are under way.
    #[cfg(feature = "simulation")]
    pub(crate) fn transfers(&self) -> usize {
        self.state.lock().transfers
    }

    /// A place at once, or none. Who waits goes first.
    pub(crate) fn enter(self: &Arc<Self>, requests: usize) -> Option<Permit> {
        let mut state = self.state.lock();
        if !state.waiting.is_empty() || !self.has_room(&state, requests) {
            return None;
        }
        Admission::take(&mut state, requests);
        Some(Permit { admission: self.clone(), requests })
    }

    /// A place in the queue.
    pub(crate) fn wait(self: &Arc<Self>, requests: usize) -> Waiting {
        let granted = AtomicBool::new(false);
        let ticket = Arc::new(Ticket { requests, granted, waker: Mutex::new(None) });
        self.state.lock().waiting.push_back(ticket.clone());
        // There may be room since the caller looked.
        self.grant();
        Waiting { admission: self.clone(), ticket, taken: false }
    }

    fn has_room(&self, state: &State, requests: usize) -> bool {
        state.transfers < self.most_transfers && state.requests + requests <= self.most_requests
    }

    fn take(state: &mut State, requests: usize) {
        state.transfers += 1;
        state.requests += requests;
    }

    fn give_back(&self, requests: usize) {
        let mut state = self.state.lock();
        state.transfers -= 1;
        state.requests -= requests;
        let nobody_waits = state.waiting.is_empty();
        drop(state);
        if !nobody_waits {
            self.grant();
        }
    }

    /// Gives places to the first in the queue, as far as there is room.
    fn grant(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(front) = state.waiting.front() else { return };
            if !self.has_room(&state, front.requests) {
                return;
            }
            let Some(ticket) = state.waiting.pop_front() else { return };
            Admission::take(&mut state, ticket.requests);
            // Under the lock: who leaves the queue sees whether it has the place.
            ticket.granted.store(true, Ordering::Release);
            drop(state);
            let waker = ticket.waker.lock().take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.give_back(self.requests);
    }
}

impl Waiting {
    /// Whether the place is there.
    pub(crate) fn is_granted(&self) -> bool {
        self.ticket.granted.load(Ordering::Acquire)
    }

    /// Who is told when the place is there; false when it is there already.
    pub(crate) fn on_granted(&self, waker: &Waker) -> bool {
        *self.ticket.waker.lock() = Some(waker.clone());
        !self.is_granted()
    }

    /// The place, if it is there.
    pub(crate) fn take(&mut self) -> Option<Permit> {
        if self.taken || !self.is_granted() {
            return None;
        }
        self.taken = true;
        Some(Permit { admission: self.admission.clone(), requests: self.ticket.requests })
    }
}

impl Future for Waiting {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        if self.on_granted(context.waker()) {
            return Poll::Pending;
        }
        self.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut state = self.admission.state.lock();
        state.waiting.retain(|ticket| !Arc::ptr_eq(ticket, &self.ticket));
        let granted = self.is_granted();
        drop(state);
        if granted {
            self.admission.give_back(self.ticket.requests);
        } else {
            // It may have been all that kept the next one out.
            self.admission.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_in_order_and_given_back() {
        let admission = Admission::new(2, 100);
        let first = admission.enter(60).expect("room");
        assert!(admission.enter(41).is_none(), "not a part of a batch");
        let mut large = admission.wait(100);
        let mut small = admission.wait(1);
        assert!(admission.enter(1).is_none(), "who waits goes first");
        assert!(!large.is_granted() && !small.is_granted());
        drop(first);
        assert!(large.is_granted() && !small.is_granted());
        drop(large.take());
        assert!(large.take().is_none(), "one place each");
        assert!(small.is_granted());
        let held = small.take().expect("granted");
        drop(held);
        let all = admission.enter(100).expect("all is given back");
        let leaves = admission.wait(100);
        let next = admission.wait(1);
        drop(all);
        assert!(leaves.is_granted() && !next.is_granted());
        drop(leaves);
        assert!(next.is_granted(), "a place that nobody takes is given on");
        drop(next);
        let state = admission.state.lock();
        assert_eq!((state.transfers, state.requests, state.waiting.len()), (0, 0, 0));
    }
}
