//! Sending notifications: one at a time to each peer, so that they keep their order, and again under the same number where a link broke
//! before the answer came. Rule: what is sent again is taken once by its receiver; what was given up is followed by higher numbers
//! only.

#![allow(unsafe_code)]

use crate::ending::{Ended, GivenUp};
use crate::error::TransferError;
use crate::peer::LinkStatus;
use crate::receipt::Landed;
use crate::router::Router;
use crate::transfer::TransferState;
use orbit_te_memory::{LocalKey, LocalSpan};
use orbit_te_transport::{Completion, LinkId, Notice, OpError, OpErrorCode, Token};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Tokens of notifications have this bit, and those of requests do not.
const MARK: u64 = 1 << 63;

/// What there is to say of a transfer's bytes when it comes to its notification.
const IN_PLACE: (Landed, bool) = (Landed::Whole, true);

/// Whether a completion is that of a notification.
pub(crate) fn is_notification(token: Token) -> bool {
    token.0 & MARK != 0
}

/// With the transport, or to be handed to it.
struct Current {
    transfer: Arc<TransferState>,
    number: u64,
    /// None: not with the transport.
    token: Option<Token>,
    given_up: GivenUp,
}

#[derive(Default)]
struct Queue {
    current: Option<Current>,
    waiting: VecDeque<Arc<TransferState>>,
    /// The number of the last one.
    number: u64,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.current.is_none() && self.waiting.is_empty()
    }
}

/// The notifications of a worker's transfers, by link.
#[derive(Default)]
pub(crate) struct Announcer {
    queues: BTreeMap<LinkId, Queue>,
    /// Whether something may be handed over.
    ready: bool,
    tokens: u64,
    next_deadline: Option<Instant>,
    /// How those end that come now, if none is sent any more.
    closed: Option<TransferError>,
}

impl Announcer {
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.values().all(Queue::is_empty)
    }

    /// When the next one is to be given up.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline
    }

    /// A transfer's bytes are in place: its notification waits for its turn.
    pub(crate) fn push(&mut self, transfer: Arc<TransferState>, over: &mut Vec<Ended>) {
        let given_up = self.closed.clone().or_else(|| {
            let why = if transfer.is_cancelled() { GivenUp::Cancelled } else { GivenUp::No };
            why.error(&transfer, IN_PLACE, None, None)
        });
        let Some(link) = transfer.announcement().filter(|_| given_up.is_none()).map(|a| a.link) else {
            return over.push(Ended::Announcement { transfer, error: given_up });
        };
        let deadline = transfer.deadline;
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |at| at.min(deadline)));
        self.queues.entry(link).or_default().waiting.push_back(transfer);
        self.ready = true;
    }

    /// Hands over what may be sent now; whether there was anything.
    pub(crate) fn hand_over(&mut self, transport: &mut Router, now: Instant) -> bool {
        let mut any = false;
        if !std::mem::take(&mut self.ready) {
            return any;
        }
        for (link, queue) in &mut self.queues {
            if queue.current.is_none() {
                let Some(transfer) = queue.waiting.pop_front() else { continue };
                queue.number += 1;
                let number = queue.number;
                queue.current = Some(Current { transfer, number, token: None, given_up: GivenUp::No });
            }
            let Some(current) = queue.current.as_mut().filter(|c| c.token.is_none()) else { continue };
            let Some(announcement) = current.transfer.announcement() else { continue };
            let token = Token(MARK | self.tokens);
            let (address, length) = (announcement.bytes.as_ptr() as u64, announcement.bytes.len() as u64);
            let bytes = LocalSpan { address, length, key: LocalKey::default() };
            let notice = Notice { link: *link, token, number: current.number, bytes };
            // SAFETY: the bytes are in the transfer's state, which is kept here until the completion, and nobody changes them; tokens
            // are counted up, and requests have none with the mark.
            if unsafe { transport.notify(&notice, now) } {
                self.tokens += 1;
                current.token = Some(token);
                any = true;
            } else {
                self.ready = true;
            }
        }
        any
    }

    /// A notification has completed. `links` tell why a link is down.
    pub(crate) fn completed(
        &mut self,
        completion: &Completion,
        links: &HashMap<LinkId, Arc<LinkStatus>>,
        over: &mut Vec<Ended>,
    ) {
        let found = self.queues.iter_mut().find_map(|(link, queue)| {
            let current = queue.current.as_ref()?;
            (current.token == Some(completion.token)).then_some((*link, queue))
        });
        let Some((link, queue)) = found else {
            debug_assert!(false, "a completion for no notification");
            return;
        };
        let Some(mut current) = queue.current.take() else { return };
        self.ready = true;
        let cause = || links.get(&link).and_then(|status| status.cause());
        let error = match (completion.result, current.given_up) {
            (Ok(()), _) => None,
            (Err(error), GivenUp::No) if is_broken(error.code) => {
                // Whether it was taken is not known: it goes again, under its number.
                current.token = None;
                queue.current = Some(current);
                return;
            }
            (Err(error), GivenUp::No) => Some(TransferError::Request { request: 0, error, cause: cause() }),
            (Err(_), given_up) => given_up.error(&current.transfer, IN_PLACE, None, cause()),
        };
        over.push(Ended::Announcement { transfer: current.transfer, error });
        if matches!(completion.result, Err(OpError { code: OpErrorCode::NoLink, .. })) {
            self.forget(link);
        }
    }

    pub(crate) fn cancel(
        &mut self,
        transport: &mut Router,
        transfer: &Arc<TransferState>,
        now: Instant,
        over: &mut Vec<Ended>,
    ) {
        self.give_up(transport, now, GivenUp::Cancelled, &|t| Arc::ptr_eq(t, transfer), over);
    }

    pub(crate) fn give_up_late(&mut self, transport: &mut Router, now: Instant, over: &mut Vec<Ended>) {
        self.give_up(transport, now, GivenUp::Deadline, &|t| t.deadline <= now, over);
        let current = |q: &Queue| {
            q.current.iter().filter(|c| c.given_up == GivenUp::No).map(|c| c.transfer.deadline).min()
        };
        let waiting = |q: &Queue| q.waiting.iter().map(|t| t.deadline).min();
        self.next_deadline =
            self.queues.values().flat_map(|q| current(q).into_iter().chain(waiting(q))).min();
    }

    /// Takes no more, and gives all up.
    pub(crate) fn give_all_up(&mut self, transport: &mut Router, now: Instant, over: &mut Vec<Ended>) {
        self.closed.get_or_insert(TransferError::Closed { landed: Landed::Whole, fenced: true });
        self.give_up(transport, now, GivenUp::Closed, &|_| true, over);
    }

    /// The link is gone for good, and its number is not used again.
    pub(crate) fn forget(&mut self, link: LinkId) {
        if self.queues.get(&link).is_some_and(Queue::is_empty) {
            self.queues.remove(&link);
        }
    }

    /// The transport has failed. What it has may still be read by it, and is kept for ever.
    pub(crate) fn fail(&mut self, error: &TransferError, over: &mut Vec<Ended>) {
        for queue in std::mem::take(&mut self.queues).into_values() {
            if let Some(Current { transfer, token, .. }) = queue.current {
                if token.is_some() {
                    std::mem::forget(transfer.clone());
                }
                over.push(Ended::Announcement { transfer, error: Some(error.clone()) });
            }
            let unsent = queue.waiting.into_iter();
            over.extend(unsent.map(|transfer| Ended::Announcement { transfer, error: Some(error.clone()) }));
        }
        self.next_deadline = None;
        self.closed = Some(error.clone());
    }

    fn give_up(
        &mut self,
        transport: &mut Router,
        now: Instant,
        why: GivenUp,
        which: &dyn Fn(&Arc<TransferState>) -> bool,
        over: &mut Vec<Ended>,
    ) {
        for queue in self.queues.values_mut() {
            queue.waiting.retain(|transfer| {
                let stays = !which(transfer);
                if !stays {
                    over.push(Ended::Announcement {
                        transfer: transfer.clone(),
                        error: why.error(transfer, IN_PLACE, None, None),
                    });
                }
                stays
            });
            let Some(current) = queue.current.as_mut() else { continue };
            if current.given_up != GivenUp::No || !which(&current.transfer) {
                continue;
            }
            current.given_up = why;
            match current.token {
                Some(token) => transport.cancel(token..=token, now),
                None => {
                    let error = why.error(&current.transfer, IN_PLACE, None, None);
                    over.push(Ended::Announcement { transfer: current.transfer.clone(), error });
                    queue.current = None;
                }
            }
        }
    }
}

/// Whether the link may be there again soon.
fn is_broken(code: OpErrorCode) -> bool {
    matches!(code, OpErrorCode::LinkBroken | OpErrorCode::LinkBrokenUnfenced)
}
