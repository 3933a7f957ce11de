//! What has happened to the rails, for all who use them. Rule: whoever reads takes every notice, in order, by a place of its own in the list; the
//! list has an end, and who falls behind it is told to take nothing for granted.

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Notices that are remembered. Each is an event of a device, of which there are a few in an hour.
const REMEMBERED: usize = 256;

/// What has happened. Rails and devices are named by this side's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A rail carries nothing any more.
    RailDown { rail: u8 },
    /// A rail carries packets again.
    RailAgain { rail: u8 },
    /// The addresses or partitions of a rail may have changed.
    Addresses { rail: u8 },
    /// A QP is in error.
    Queue { device: u8, number: u32 },
    /// A CQ is of no use any more, by its cookie.
    Completions { cookie: u64 },
    /// A device is lost.
    DeviceLost { device: u8 },
    /// More has happened than is remembered.
    Missed,
}

#[derive(Debug, Default)]
struct List {
    kept: VecDeque<Notice>,
    /// The number of the notice that comes next.
    next: u64,
    readers: Vec<Weak<EventFd>>,
}

/// The list.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    list: Mutex<List>,
    /// As in the list, for a look without the lock.
    next: AtomicU64,
}

/// A place in the list.
#[derive(Debug)]
pub(crate) struct Reader {
    next: u64,
    bell: Arc<EventFd>,
}

impl AsFd for Reader {
    /// What is readable while there is something to read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Notices {
    /// A reader of what happens from now on.
    pub(crate) fn reader(&self) -> io::Result<Reader> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let mut list = self.list.lock();
        list.readers.retain(|reader| reader.strong_count() > 0);
        list.readers.push(Arc::downgrade(&bell));
        Ok(Reader { next: list.next, bell })
    }

    /// Adds a notice, and wakes all readers.
    pub(crate) fn add(&self, notice: Notice) {
        let mut list = self.list.lock();
        if list.kept.len() == REMEMBERED {
            list.kept.pop_front();
        }
        list.kept.push_back(notice);
        list.next += 1;
        self.next.store(list.next, Ordering::Release);
        for bell in list.readers.iter().filter_map(Weak::upgrade) {
            // Fails only when the counter is full, and then it is rung.
            let _ = bell.write(1);
        }
    }

    /// Whether there is something to read.
    pub(crate) fn any_for(&self, reader: &Reader) -> bool {
        self.next.load(Ordering::Acquire) != reader.next
    }

    /// All that the reader has not read yet.
    pub(crate) fn read(&self, reader: &mut Reader) -> Vec<Notice> {
        // Before the list: what is added from here on rings again.
        let _ = reader.bell.read();
        let list = self.list.lock();
        let unread = list.next - std::mem::replace(&mut reader.next, list.next);
        match (list.kept.len() as u64).checked_sub(unread) {
            Some(read) => list.kept.iter().skip(read as usize).copied().collect(),
            None => vec![Notice::Missed],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reader_reads_all_in_order_and_who_falls_behind_is_told() {
        let notices = Notices::default();
        notices.add(Notice::Missed);
        let (mut one, mut other) = (notices.reader().unwrap(), notices.reader().unwrap());
        assert!(!notices.any_for(&one) && notices.read(&mut one).is_empty());
        let rails: Vec<Notice> = (0..5).map(|rail| Notice::RailDown { rail }).collect();
        rails.iter().for_each(|notice| notices.add(*notice));
        assert!(notices.any_for(&one));
        assert_eq!(notices.read(&mut one), rails);
        notices.add(Notice::RailAgain { rail: 1 });
        assert_eq!(notices.read(&mut one), [Notice::RailAgain { rail: 1 }]);
        assert_eq!(notices.read(&mut other).len(), 6);
        (0..REMEMBERED).for_each(|_| notices.add(Notice::RailDown { rail: 0 }));
        assert_eq!(notices.read(&mut one).len(), REMEMBERED);
        notices.add(Notice::RailDown { rail: 0 });
        assert_eq!(notices.read(&mut other), [Notice::Missed]);
        assert!(!notices.any_for(&other) && one.bell.read().is_ok() && one.bell.read().is_err());
    }
}
