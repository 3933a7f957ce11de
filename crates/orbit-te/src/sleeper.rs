//! Where threads sleep until a transport has something or somebody kicks them. Rule: any number of threads may sleep at once, and
//! a kick that comes before the sleep is not lost.

use crate::clock;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

/// Sleeps on a transport's descriptor and on its own.
pub(crate) struct Sleeper {
    epoll: Epoll,
    kick: EventFd,
    bell: EventFd,
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Sleeper> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let kick = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        // Edge-triggered: every kick ends one sleep, and nobody has to read the counter.
        epoll.add(kick.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?;
        // Level-triggered: it wakes every sleeper until the one who naps has heard it.
        let bell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(bell.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 2))?;
        Ok(Sleeper { epoll, kick, bell })
    }

    /// Wakes sleepers while a transport's descriptor is readable. The transport keeps it open while it lives, and lives as long as
    /// anybody sleeps here.
    #[allow(unsafe_code)]
    pub(crate) fn watch(&self, fd: RawFd) -> io::Result<()> {
        // SAFETY: the descriptor is open now, since its transport has just given it, and it is borrowed for this call alone: a
        // closed descriptor leaves the event queue by itself.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        Ok(())
    }

    /// Ends a sleep, the present one or the next.
    pub(crate) fn kick(&self) {
        // Fails only when the counter is full, and then the sleeper is awake.
        let _ = self.kick.write(1);
    }

    /// Ends the nap of the caller who naps.
    pub(crate) fn ring(&self) {
        // As above.
        let _ = self.bell.write(1);
    }

    /// Silences the bell. Until then it ends every sleep at once.
    pub(crate) fn hush(&self) {
        // Nothing to read is the rule.
        let _ = self.bell.read();
    }

    /// Sleeps until something is there, somebody kicks, or the time has come; also for no reason.
    pub(crate) fn sleep(&self, until: Option<Instant>) {
        let timeout = match until {
            None => EpollTimeout::NONE,
            Some(until) => {
                let left = until.saturating_duration_since(clock::now());
                if left.is_zero() {
                    return;
                }
                // Rounded up, so that the time has come when the sleep ends.
                let ms = (left + Duration::from_micros(999)).as_millis().min(60_000) as u16;
                EpollTimeout::from(ms)
            }
        };
        let mut events = [EpollEvent::empty(); 4];
        // An interrupted or failed wait only makes the caller look again.
        let _ = self.epoll.wait(&mut events, timeout);
    }
}
