//! Where notices of peers come in: the QPs for them, one a peer, and their completions. Rule: each peer has the same few receives, or none where as
//! many peers as may have them have; a notice is handed in once its bytes are out of the device's reach, and answered when the mailbox has spoken.

use crate::adapter::Adapter;
use crate::completion::Wc;
use crate::error::{Errno, VerbsError};
use crate::handle::{InitStep, RtrStep, RtsStep, Ticket};
use crate::rail_queue::RailQueue;
use crate::sys::{CQES, Letterbox, Parcel};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use orbit_te_transport::{Mailbox, Undelivered};
use orbit_te_wire::rdma::Queue;
use orbit_te_wire::rdma::notice::{self, NOTICES};
use orbit_te_wire::{SessionId, Status, WireError, notification};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// CQEs that are taken from one rail at a time: other peers get their turn.
const TURN: usize = 64;

/// Which receive a CQE is of, or that it is of a SEND.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The receive of a place.
    Receive(usize),
    /// A SEND.
    Send,
}

/// The name of a WR in its CQE: of which line, and which part.
pub(crate) fn wr_id(line: u32, part: Part) -> u64 {
    let part = match part {
        Part::Receive(place) => place as u64,
        Part::Send => 0xff,
    };
    u64::from(line) << 16 | part
}

/// The line and the part of a WR.
pub(crate) fn parts(wr_id: u64) -> (u32, Part) {
    let part = match (wr_id & 0xffff) as usize {
        0xff => Part::Send,
        place => Part::Receive(place),
    };
    ((wr_id >> 16) as u32, part)
}

/// A notice that has come and was not handed in yet.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) session: SessionId,
    pub(crate) line: u32,
    place: usize,
    /// The name by which its sender knows it.
    name: u32,
    parcel: Parcel,
}

/// What became of a notice, for its sender.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handed {
    place: usize,
    name: u32,
    status: Status,
}

impl Arrived {
    /// Hands it in.
    ///
    /// # Errors
    /// What is wrong with its bytes.
    pub(crate) fn hand_in(&self, mailbox: &dyn Mailbox) -> Result<Handed, WireError> {
        let (number, bytes) = notice::decode(self.parcel.bytes())?;
        let (name, payload) = notification::decode(bytes)?;
        let status = match mailbox.deliver(self.session, number, name, payload) {
            Ok(()) => Status::Ok,
            Err(Undelivered::QueueFull) => Status::QueueFull,
            Err(Undelivered::NobodyListens) => Status::NobodyListens,
            Err(Undelivered::ShuttingDown) => Status::ShuttingDown,
        };
        Ok(Handed { place: self.place, name: self.name, status })
    }
}

/// What holds the lines of all peers.
pub(crate) struct Postbox {
    mailbox: Arc<dyn Mailbox>,
    /// Where the queues are watched.
    epoll: Arc<Epoll>,
    state: Mutex<State>,
}

struct State {
    /// By the rail's number; made when a peer first has a line on it.
    rails: Vec<Option<RailQueue>>,
    /// CQEs of lines that are gone, by rail: they may still be in its queue, and count until that was found empty.
    leftover: Vec<u32>,
    /// How many more peers may have lines.
    free: u32,
    last_line: u32,
    /// Whose lines there are.
    lines: HashMap<u32, SessionId>,
    /// What was taken and is not dealt with.
    taken: Vec<Wc>,
}

impl Postbox {
    /// One for so many peers on so many rails.
    pub(crate) fn new(mailbox: Arc<dyn Mailbox>, epoll: Arc<Epoll>, rails: usize, peers: u32) -> Postbox {
        let state = State {
            rails: (0..rails).map(|_| None).collect(),
            leftover: vec![0; rails],
            free: peers,
            last_line: 0,
            lines: HashMap::new(),
            taken: Vec::new(),
        };
        Postbox { mailbox, epoll, state: Mutex::new(state) }
    }

    pub(crate) fn mailbox(&self) -> &dyn Mailbox {
        &*self.mailbox
    }

    /// A line for a peer on this rail; none where there is no room, or the device has none.
    pub(crate) fn open(self: &Arc<Self>, adapter: &Adapter, session: SessionId) -> Option<Line> {
        let mut state = self.state.lock();
        let State { rails, free, last_line, lines, .. } = &mut *state;
        if *free == 0 {
            return None;
        }
        let place = rails.get_mut(usize::from(adapter.number))?;
        if place.is_none() {
            *place = self
                .queue(adapter)
                .map_err(|error| tracing::debug!(%error, "rdma: no queue for notices"))
                .ok();
        }
        let queue = place.as_mut()?;
        if !queue.promise(CQES) {
            return None;
        }
        let letterbox = match Letterbox::taking(&adapter.pd, &queue.cq) {
            Ok(letterbox) => letterbox,
            Err(error) => {
                tracing::debug!(%error, "rdma: a peer has no QP for notices");
                queue.release(CQES);
                return None;
            }
        };
        *free -= 1;
        *last_line = last_line.wrapping_add(1);
        lines.insert(*last_line, session);
        let cookie = queue.cq.cookie();
        Some(Line { number: *last_line, rail: adapter.number, cookie, letterbox, postbox: self.clone() })
    }

    fn queue(&self, adapter: &Adapter) -> Result<RailQueue, VerbsError> {
        let queue = RailQueue::new(adapter, 0)?;
        let watched = self.epoll.add(queue.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0));
        watched.map_err(|errno| {
            VerbsError::new(crate::Verb::CreateCompChannel, "watching it", Errno(errno as i32))
        })?;
        Ok(queue)
    }

    /// Takes CQEs, of each rail a few, with whose they are; and the rails whose queue failed, which have none any more.
    pub(crate) fn take(&self) -> (Vec<(SessionId, Wc)>, Vec<u8>) {
        let mut state = self.state.lock();
        let State { rails, leftover, lines, taken, .. } = &mut *state;
        let mut failed = Vec::new();
        for (rail, place) in rails.iter_mut().enumerate() {
            let Some(queue) = place else { continue };
            let mut wcs = [Wc::default(); TURN];
            match queue.poll(&mut wcs) {
                Ok(0) => queue.release(std::mem::take(&mut leftover[rail])),
                Ok(count) => taken.extend_from_slice(&wcs[..count]),
                Err(error) => {
                    tracing::warn!(%error, rail, "rdma: a queue for notices failed");
                    failed.push(rail as u8);
                    leftover[rail] = 0;
                    *place = None;
                }
            }
        }
        let of_whom = |wc: Wc| lines.get(&parts(wc.token()).0).map(|session| (*session, wc));
        (taken.drain(..).filter_map(of_whom).collect(), failed)
    }

    /// Asks for an event at the next CQE; whether there is something to take already.
    pub(crate) fn arm(&self) -> bool {
        let mut state = self.state.lock();
        let State { rails, taken, .. } = &mut *state;
        for queue in rails.iter().flatten() {
            let mut wcs = [Wc::default(); TURN];
            match queue.arm().and_then(|()| queue.poll(&mut wcs)) {
                Ok(count) => taken.extend_from_slice(&wcs[..count]),
                // The next take finds it as well.
                Err(_) => return true,
            }
        }
        !taken.is_empty()
    }

    /// The queue of this cookie, if there is one, is of no use any more. Those of lost devices likewise, by their rails.
    pub(crate) fn forget(&self, which: impl Fn(u8, u64) -> bool) {
        let mut state = self.state.lock();
        let State { rails, leftover, .. } = &mut *state;
        for (rail, place) in rails.iter_mut().enumerate() {
            if place.take_if(|queue| which(rail as u8, queue.cq.cookie())).is_some() {
                leftover[rail] = 0;
            }
        }
    }
}

/// The way of one peer's notices.
pub(crate) struct Line {
    pub(crate) number: u32,
    pub(crate) rail: u8,
    /// Of the queue of its completions.
    pub(crate) cookie: u64,
    pub(crate) letterbox: Letterbox,
    postbox: Arc<Postbox>,
}

impl Line {
    /// Wires its QP, with all receives posted before the first notice can come; the QP as the peer is told.
    pub(crate) fn wire(
        &mut self,
        (init, rtr): (InitStep, RtrStep),
        rts: impl FnOnce(Queue) -> RtsStep,
    ) -> Result<Queue, VerbsError> {
        let gone = || VerbsError::new(crate::Verb::ModifyQp, "a QP for notices", Errno::EINVAL);
        self.letterbox.qp().ok_or_else(gone)?.to_init(&init)?;
        let posted = (0..NOTICES)
            .try_for_each(|place| self.letterbox.post(place, wr_id(self.number, Part::Receive(place))));
        posted.map_err(|errno| VerbsError::new(crate::Verb::PostRecv, "receives for notices", errno))?;
        let qp = self.letterbox.qp().ok_or_else(gone)?;
        let own = Queue { number: qp.number(), psn: crate::connecting::psn() };
        qp.to_rtr(&rtr)?;
        qp.to_rts(&rts(own))?;
        Ok(own)
    }

    /// Whether a CQE is of this line.
    pub(crate) fn is_of(&self, wc: &Wc) -> bool {
        parts(wc.token()).0 == self.number
    }

    /// What a CQE of it brings; none where that is only that something was sent.
    ///
    /// # Errors
    /// Why the line is of no use any more.
    pub(crate) fn arrived(&mut self, session: SessionId, wc: &Wc) -> Result<Option<Arrived>, String> {
        if let Err(failed) = wc.completion().result {
            return Err(failed.status.to_string());
        }
        let (line, Part::Receive(place)) = parts(wc.token()) else { return Ok(None) };
        let (parcel, name) = self.letterbox.take(place, wc).ok_or("it brings what is no notice")?;
        Ok(Some(Arrived { session, line, place, name, parcel }))
    }

    /// Tells the sender what became of a notice; before that the receive is posted again.
    pub(crate) fn answer(&mut self, handed: &Handed) -> Result<(), Errno> {
        let Handed { place, name, status } = *handed;
        self.letterbox.post(place, wr_id(self.number, Part::Receive(place)))?;
        self.letterbox.send(&[], notice::answer(name, status), wr_id(self.number, Part::Send))
    }

    /// Ends it. None: its QP is gone; otherwise where to look for it, which takes up its room until then and longer.
    pub(crate) fn end(&mut self) -> Option<Ticket> {
        let there = self.letterbox.qp().is_some();
        let stuck = self.letterbox.end();
        if !there {
            return None;
        }
        let mut state = self.postbox.state.lock();
        state.lines.remove(&self.number);
        if stuck.is_none() {
            state.free += 1;
            let rail = usize::from(self.rail);
            // One that was made after it owes it nothing.
            let same = state.rails[rail].as_ref().is_some_and(|queue| queue.cq.cookie() == self.cookie);
            if same {
                state.leftover[rail] += CQES;
            }
        }
        stuck
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_as_it_went() {
        for line in [0, 1, u32::MAX] {
            for part in [Part::Send, Part::Receive(0), Part::Receive(NOTICES - 1)] {
                assert_eq!(parts(wr_id(line, part)), (line, part));
            }
        }
    }
}
