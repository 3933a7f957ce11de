//! The application that takes the target's notifications: a thread that blocks until one comes, as a user's would. Rule: every
//! notification is looked at, so that one that is lost, changed or out of order is found.

use super::plan::pattern_word;
use anyhow::bail;
use orbit_te::Notifications;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Makes the payload of notification `number` of a pair: the number, then the pattern of which it is the seed.
pub(super) fn note(number: u64, payload: &mut [u8]) {
    for (index, bytes) in (0u64..).zip(payload.chunks_exact_mut(8)) {
        let word = if index == 0 { number } else { pattern_word(index, number) };
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

#[derive(Default)]
struct Seen {
    count: AtomicU64,
    wrong: AtomicBool,
}

/// What was taken so far.
pub(super) struct Inbox {
    seen: Arc<Seen>,
    asked: u64,
}

impl Inbox {
    /// Starts the thread; it ends with the engine.
    pub(super) fn start(mut notifications: Notifications) -> anyhow::Result<Inbox> {
        let seen = Arc::new(Seen::default());
        let inbox = Inbox { seen: seen.clone(), asked: 0 };
        std::thread::Builder::new().name("inbox".into()).spawn(move || {
            let mut wanted = Vec::new();
            let mut number = 0;
            while let Some(taken) = notifications.recv_for(Duration::MAX) {
                wanted.resize(taken.payload.len(), 0);
                note(number, &mut wanted);
                if taken.payload != wanted {
                    seen.wrong.store(true, Ordering::Release);
                }
                number += 1;
                seen.count.store(number, Ordering::Release);
            }
        })?;
        Ok(inbox)
    }

    /// How many were taken since this was asked last.
    pub(super) fn taken(&mut self) -> anyhow::Result<usize> {
        let count = self.seen.count.load(Ordering::Acquire);
        if self.seen.wrong.load(Ordering::Acquire) {
            bail!("a notification was lost, changed or out of order");
        }
        let since = count - self.asked;
        self.asked = count;
        Ok(since as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::note;

    #[test]
    fn payloads_differ_by_their_numbers() {
        let (mut a, mut b) = ([0; 64], [0; 64]);
        note(7, &mut a);
        note(8, &mut b);
        assert_eq!((a[0], b[0]), (7, 8));
        assert!(a.chunks(8).zip(b.chunks(8)).all(|(x, y)| x != y));
    }
}
