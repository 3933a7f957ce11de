//! What a transport does about what has happened to the rails. Rule: a connection that something happened to is made anew, and its ops end as the
//! QPs do; one that nothing happened to goes on.

use crate::link::Attempt;
use crate::notices::Notice;
use crate::transport::{RdmaTransport, link_of};
use orbit_te_transport::LinkId;
use orbit_te_wire::rdma::CloseCode;
use std::time::Instant;

impl RdmaTransport {
    /// Reads what has happened, and does what follows from it.
    pub(crate) fn react(&mut self, now: Instant) {
        let adapters = self.adapters.clone();
        for notice in adapters.notices().read(&mut self.reader) {
            match notice {
                Notice::RailDown { rail } => {
                    self.fail_rail(rail, CloseCode::RailDown, "its port went down", now)
                }
                Notice::RailAgain { .. } => self.hurry_all(now),
                Notice::Addresses { rail } => {
                    let Some(adapter) = adapters.get(rail) else { continue };
                    let changed = |attempt: &Attempt| {
                        attempt.rail == rail && !adapter.is_still(&attempt.used, adapters.config())
                    };
                    self.fail_those(changed, CloseCode::AddressChanged, "its rail's addresses changed", now);
                    self.hurry_all(now);
                }
                Notice::Queue { device, number } => {
                    let has = |attempt: &Attempt| {
                        adapters.get(attempt.rail).is_some_and(|adapter| adapter.device_number() == device)
                            && attempt.queues.iter().any(|queue| queue.number == number)
                    };
                    self.fail_those(has, CloseCode::QueueFailed, "its device says that a QP failed", now);
                }
                Notice::Completions { cookie } => {
                    let is =
                        |rail: &usize| self.queues[*rail].as_ref().is_some_and(|q| q.cq.cookie() == cookie);
                    if let Some(rail) = (0..self.queues.len()).find(is) {
                        self.queue_failed(rail as u8, "its device says so", now);
                    }
                }
                Notice::DeviceLost { .. } => self.leave_lost(now),
                Notice::Missed => {
                    self.leave_lost(now);
                    self.fail_those(|_| true, CloseCode::QueueFailed, "too much has happened", now);
                    self.hurry_all(now);
                }
            }
        }
    }

    /// Lets go of all that there is on lost devices.
    fn leave_lost(&mut self, now: Instant) {
        let adapters = self.adapters.clone();
        for adapter in adapters.all().iter().filter(|adapter| adapter.is_lost()) {
            self.queue_failed(adapter.number, "its device is lost", now);
        }
        adapters.unwatch_lost(&self.epoll);
    }

    pub(crate) fn fail_rail(&mut self, rail: u8, code: CloseCode, why: &str, now: Instant) {
        self.fail_those(|attempt| attempt.rail == rail, code, why, now);
    }

    fn fail_those(&mut self, which: impl Fn(&Attempt) -> bool, code: CloseCode, why: &str, now: Instant) {
        for id in self.link_ids() {
            if self.find(id).and_then(|link| link.attempt.as_ref()).is_some_and(&which) {
                self.fail_attempt(id, code, why, now);
            }
        }
    }

    fn hurry_all(&mut self, now: Instant) {
        self.link_ids().into_iter().for_each(|id| self.hurry(id, now));
    }

    /// What kept a link from coming up may be over: it is tried at once.
    pub(crate) fn hurry(&mut self, id: LinkId, now: Instant) {
        if link_of(&mut self.links, id).is_some_and(|link| link.machine.hurry(now)) {
            self.wake_by(now);
        }
    }
}
