//! Where the notifications of peers come in. Rule: each is taken once and in the order of its session's numbers, or refused and its
//! sender told; nobody waits here.

use crate::notification::Notification;
use orbit_te_transport::{Mailbox, Undelivered};
use orbit_te_wire::{PeerId, SessionId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// The queue of an engine's notifications, and what it knows of their senders.
pub(crate) struct Inbox {
    /// None once the engine is shut down, so that the receiver ends.
    queue: Mutex<Option<mpsc::Sender<Notification>>>,
    /// Locked once a notification: its order against others of its session needs it.
    senders: Mutex<BTreeMap<SessionId, Sender>>,
}

struct Sender {
    peer: PeerId,
    /// The number that came last, and what became of it.
    last: (u64, Result<(), Undelivered>),
}

impl Inbox {
    /// An inbox for so many notifications, and its receiver.
    pub(crate) fn new(most: usize) -> (Inbox, mpsc::Receiver<Notification>) {
        let (queue, receiver) = mpsc::channel(most.max(1));
        (Inbox { queue: Mutex::new(Some(queue)), senders: Mutex::default() }, receiver)
    }

    /// A session of this peer begins.
    pub(crate) fn begin(&self, session: SessionId, peer: PeerId) {
        self.senders.lock().insert(session, Sender { peer, last: (0, Ok(())) });
    }

    /// It has ended.
    pub(crate) fn end(&self, session: SessionId) {
        self.senders.lock().remove(&session);
    }

    /// Takes no more; the receiver ends when it has read what is there.
    pub(crate) fn close(&self) {
        *self.queue.lock() = None;
    }

    fn queue(&self, notification: Notification) -> Result<(), Undelivered> {
        let queue = self.queue.lock();
        let queue = queue.as_ref().ok_or(Undelivered::ShuttingDown)?;
        queue.try_send(notification).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Undelivered::QueueFull,
            mpsc::error::TrySendError::Closed(_) => Undelivered::NobodyListens,
        })
    }
}

impl Mailbox for Inbox {
    fn deliver(
        &self,
        session: SessionId,
        number: u64,
        name: &str,
        payload: &[u8],
    ) -> Result<(), Undelivered> {
        let mut senders = self.senders.lock();
        // Its lanes are about to be closed.
        let Some(sender) = senders.get_mut(&session) else { return Err(Undelivered::NobodyListens) };
        if number > sender.last.0 {
            let (peer, name, payload) = (sender.peer, name.to_string(), payload.to_vec());
            sender.last = (number, self.queue(Notification { peer, name, payload }));
        }
        // One that is older than the last was given up by its sender, who reads no answer.
        sender.last.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_taken_once_and_in_order() {
        let (inbox, mut receiver) = Inbox::new(2);
        let session = SessionId(7);
        let say = |number: u64| inbox.deliver(session, number, "n", &number.to_le_bytes());
        assert_eq!(say(1), Err(Undelivered::NobodyListens), "before the session");
        inbox.begin(session, PeerId(1));
        let rows = [
            (1, Ok(())),
            (1, Ok(())),
            (3, Ok(())),
            (2, Ok(())),
            (4, Err(Undelivered::QueueFull)),
            (4, Err(Undelivered::QueueFull)),
        ];
        for (number, want) in rows {
            assert_eq!(say(number), want, "{number}");
        }
        let mut next = || receiver.try_recv().ok().map(|n| n.payload[0]);
        assert_eq!((next(), next(), next()), (Some(1), Some(3), None));
        assert_eq!(say(4), Err(Undelivered::QueueFull), "the answer was given before there was room");
        assert_eq!(say(5), Ok(()));
        drop(receiver);
        assert_eq!(say(6), Err(Undelivered::NobodyListens));
        inbox.close();
        assert_eq!(say(7), Err(Undelivered::ShuttingDown));
    }
}
