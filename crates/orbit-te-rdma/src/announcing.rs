//! Notices on their way to peers. Rule: a notice is over when its answer has come, when it was given up, or with the connection that had it; no more
//! are under way than the peer has receives for, and none after it is over keeps memory of whoever sent it.

use crate::attributes;
use crate::completion::Wc;
use crate::error::{Errno, VerbsError};
use crate::handshake::Meeting;
use crate::ops::OpSlot;
use crate::postbox::{Part, parts, wr_id};
use crate::status::Kind;
use crate::sys::{CQES, Letterbox, SENDS};
use crate::transport::{RdmaTransport, link_of};
use orbit_te_transport::{LinkId, Notice, OpError, OpErrorCode};
use orbit_te_wire::rdma::notice::{self, MAX_NOTICE_BYTES, MAX_NOTICE_NAME, NOTICES};
use orbit_te_wire::rdma::{CloseCode, Features, MAX_WIDTH, Queue};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// The bytes that devices are asked to take inside of a WR, the first that they can.
const INLINE: [u32; 3] = [MAX_NOTICE_BYTES as u32, 128, 64];
/// WRs of notices are told from those of lanes by a lane that there never is.
const MARK: u64 = (u16::MAX as u64) << 48;

/// Whether a CQE is of a notice.
#[inline]
pub(crate) fn is_of_notice(wr_id: u64) -> bool {
    wr_id & MARK == MARK
}

struct Waiting {
    slot: OpSlot,
    bytes: [u8; MAX_NOTICE_BYTES],
    length: usize,
}

/// The QP of one connection by which its notices go.
struct Line {
    number: u32,
    rail: u8,
    /// Of the queue of its completions.
    cookie: u64,
    letterbox: Letterbox,
    /// Whether the peer takes notices by it; known with its answer.
    agreed: bool,
    /// The connection is up.
    up: bool,
    /// Notices that have no answer yet, by their names.
    sent: Vec<(u32, OpSlot)>,
    /// SENDs that have no CQE yet.
    sending: u32,
}

/// The notices of one link.
struct Outbox {
    /// The peer has said that it takes some.
    able: bool,
    line: Option<Line>,
    waiting: VecDeque<Waiting>,
    last_name: u32,
}

/// The notices of all links.
#[derive(Default)]
pub(crate) struct Announcing {
    outboxes: HashMap<LinkId, Outbox>,
    lines: HashMap<u32, LinkId>,
    last_line: u32,
    /// CQEs of lines that are gone, with the rail and the cookie of their queue: they count until the queue was found empty.
    leftover: Vec<(usize, u64, u32)>,
    /// Notices without an answer.
    under_way: usize,
}

impl Announcing {
    /// A link begins, to a peer that takes notices or not.
    pub(crate) fn begin(&mut self, id: LinkId, able: bool) {
        let outbox = Outbox { able, line: None, waiting: VecDeque::new(), last_name: 0 };
        self.outboxes.insert(id, outbox);
    }

    pub(crate) fn any_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Whether notices of a link wait for it.
    pub(crate) fn waits(&self, id: LinkId) -> bool {
        self.outboxes.get(&id).is_some_and(|outbox| !outbox.waiting.is_empty())
    }

    /// A queue was found empty: how many CQEs of lines that are gone can't come any more.
    pub(crate) fn settled(&mut self, rail: usize, cookie: u64) -> u32 {
        let mut over = 0;
        self.leftover.retain(|(of, queue, count)| {
            let is = *of == rail && *queue == cookie;
            over += if is { *count } else { 0 };
            // Of a queue that is gone, nothing is owed.
            *of != rail
        });
        over
    }

    fn line(&mut self, id: LinkId) -> Option<&mut Line> {
        self.outboxes.get_mut(&id)?.line.as_mut()
    }
}

impl RdmaTransport {
    /// Takes a notice whose bytes are these, as [`orbit_te_transport::Transport::notify`].
    pub(crate) fn take_notice(
        &mut self,
        notice: &Notice,
        (bytes, length): ([u8; MAX_NOTICE_BYTES], usize),
        now: Instant,
    ) -> bool {
        let id = notice.link;
        let unreachable_after = self.config.unreachable_after;
        let (Some(link), Some(outbox)) = (link_of(&mut self.links, id), self.announcing.outboxes.get(&id))
        else {
            let Some(slot) = self.ops.insert(&notice.as_op()) else { return false };
            self.ops.fail(slot, OpErrorCode::NoLink);
            return true;
        };
        let fits = outbox.line.as_ref().is_none_or(|line| length <= line.letterbox.inline());
        let agreed = !link.up || outbox.line.as_ref().is_some_and(|line| line.agreed);
        if !outbox.able || !fits || !agreed {
            return false;
        }
        let (up, down_since) = (link.up, link.down_since);
        let Some(slot) = self.ops.insert(&notice.as_op()) else { return false };
        if let Some(outbox) = self.announcing.outboxes.get_mut(&id) {
            outbox.waiting.push_back(Waiting { slot, bytes, length });
        }
        match up {
            true => self.announce(id, now),
            false => self.wake_by(down_since.max(now) + unreachable_after),
        }
        true
    }

    /// Sends what may be sent now.
    fn announce(&mut self, id: LinkId, now: Instant) {
        let failed = loop {
            let Some(outbox) = self.announcing.outboxes.get_mut(&id) else { return };
            let Some(line) = outbox.line.as_mut().filter(|line| line.agreed && line.up) else { return };
            if line.sent.len() >= NOTICES || line.sending >= SENDS {
                return;
            }
            let Some(next) = outbox.waiting.pop_front() else { return };
            // One that was given up is over.
            let Some(state) = self.ops.get_mut(next.slot) else { continue };
            if next.length > line.letterbox.inline() {
                // It has to go another way.
                self.ops.fail(next.slot, OpErrorCode::LinkBroken);
                continue;
            }
            outbox.last_name = outbox.last_name.wrapping_add(1) & MAX_NOTICE_NAME;
            let name = outbox.last_name;
            let token = MARK | wr_id(line.number, Part::Send);
            match line.letterbox.send(&next.bytes[..next.length], name, token) {
                Ok(()) => {
                    state.begun = true;
                    state.touched = true;
                    line.sent.push((name, next.slot));
                    line.sending += 1;
                    self.announcing.under_way += 1;
                }
                // A CQE makes room.
                Err(Errno::ENOMEM | Errno::EAGAIN) if line.sending > 0 => {
                    outbox.waiting.push_front(next);
                    return;
                }
                Err(errno) => {
                    outbox.waiting.push_front(next);
                    break errno;
                }
            }
        };
        let why = VerbsError::new(crate::Verb::PostSend, "a notice", failed);
        self.fail_attempt(id, CloseCode::DeviceRefused, &why.to_string(), now);
    }

    /// Takes a CQE of a notice.
    pub(crate) fn noticed(&mut self, wc: &Wc, now: Instant) {
        let (number, part) = parts(wc.token() & !MARK);
        let Some(id) = self.announcing.lines.get(&number).copied() else { return };
        let Some(line) = self.announcing.line(id).filter(|line| line.number == number) else { return };
        if let Err(failed) = wc.completion().result {
            let code = match failed.status.kind() {
                Kind::RetryExceeded => CloseCode::TimedOut,
                _ => CloseCode::QueueFailed,
            };
            return self.fail_attempt(id, code, &failed.status.to_string(), now);
        }
        match part {
            Part::Send => line.sending = line.sending.saturating_sub(1),
            Part::Receive(place) => {
                let answer = line.letterbox.take(place, wc).map(|(_, word)| notice::decode_answer(word));
                let Some(Ok((name, status))) = answer else {
                    return self.fail_attempt(id, CloseCode::Protocol, "an answer that is none", now);
                };
                let Some(at) = line.sent.iter().position(|sent| sent.0 == name) else {
                    return self.fail_attempt(id, CloseCode::Protocol, "an answer to no notice", now);
                };
                let (_, slot) = line.sent.swap_remove(at);
                let again = line.letterbox.post(place, MARK | wr_id(number, Part::Receive(place)));
                self.announcing.under_way -= 1;
                if let Some(state) = self.ops.get_mut(slot) {
                    let error = OpError::from_status(status);
                    state.moved = if error.is_none() { state.op.local.length } else { 0 };
                    state.touched = error.is_none();
                    self.ops.end(slot, error.map_or(Ok(()), Err));
                }
                if let Err(errno) = again {
                    let why = VerbsError::new(crate::Verb::PostRecv, "an answer", errno);
                    return self.fail_attempt(id, CloseCode::DeviceRefused, &why.to_string(), now);
                }
            }
        }
        self.announce(id, now);
    }

    /// Makes the QP for the notices of an attempt whose other QPs are made, if its peer takes notices. Without one, there are none by this
    /// connection.
    pub(crate) fn open_line(&mut self, id: LinkId) {
        let Self { links, queues, adapters, announcing, .. } = self;
        let Announcing { outboxes, lines, last_line, .. } = announcing;
        let Some(outbox) = outboxes.get_mut(&id).filter(|outbox| outbox.able) else { return };
        let Some(attempt) = link_of(links, id).and_then(|link| link.attempt.as_mut()) else { return };
        let (Some(adapter), Some(queue)) =
            (adapters.get(attempt.rail), queues[usize::from(attempt.rail)].as_mut())
        else {
            return;
        };
        if attempt.queues.len() >= MAX_WIDTH || !queue.promise(CQES) {
            return;
        }
        let number = last_line.wrapping_add(1);
        let made = INLINE.iter().find_map(|bytes| Letterbox::sending(&adapter.pd, &queue.cq, *bytes).ok());
        let ready = made.and_then(|mut letterbox| {
            let qp = letterbox.qp()?;
            let queue = Queue { number: qp.number(), psn: crate::connecting::psn() };
            qp.to_init(&attempt.used.init(false)).ok()?;
            let mut places = 0..NOTICES;
            let token = |place| MARK | wr_id(number, Part::Receive(place));
            places.try_for_each(|place| letterbox.post(place, token(place))).ok()?;
            Some((letterbox, queue))
        });
        let Some((letterbox, ours)) = ready else {
            tracing::debug!("rdma: a connection has no QP for notices");
            return queue.release(CQES);
        };
        *last_line = number;
        lines.insert(number, id);
        attempt.queues.push(ours);
        attempt.side.features |= Features::NOTIFICATIONS;
        outbox.line = Some(Line {
            number,
            rail: attempt.rail,
            cookie: queue.cq.cookie(),
            letterbox,
            agreed: false,
            up: false,
            sent: Vec::with_capacity(NOTICES),
            sending: 0,
        });
    }

    /// Wires the QP for notices, which is the last of the attempt's, to the last of the peer's.
    pub(crate) fn wire_line(&mut self, id: LinkId, meeting: &Meeting) -> Result<(), VerbsError> {
        let retry = attributes::retry_for(self.config.ack_budget);
        let ours = link_of(&mut self.links, id)
            .and_then(|link| link.attempt.as_ref())
            .and_then(|attempt| attempt.queues.last())
            .copied();
        let Some(line) = self.announcing.line(id) else { return Ok(()) };
        let (Some(ours), Some(theirs), Some(qp)) = (ours, meeting.theirs.queues.last(), line.letterbox.qp())
        else {
            return Ok(());
        };
        qp.to_rtr(&attributes::rtr(&meeting.agreed, *theirs, meeting.path, &retry))?;
        qp.to_rts(&attributes::rts(&meeting.agreed, ours, &retry))?;
        line.agreed = meeting.agreed.features.contains(Features::NOTIFICATIONS);
        Ok(())
    }

    /// The connection of a link is up: what waits for it goes, or has to go another way.
    pub(crate) fn line_is_up(&mut self, id: LinkId, now: Instant) {
        let Some(outbox) = self.announcing.outboxes.get_mut(&id) else { return };
        match &mut outbox.line {
            Some(line) if line.agreed => {
                line.up = true;
                self.announce(id, now);
            }
            _ => self.end_waiting(id, OpErrorCode::LinkBroken),
        }
    }

    /// Ends the notices that wait for a link.
    pub(crate) fn end_waiting(&mut self, id: LinkId, code: OpErrorCode) {
        let Some(outbox) = self.announcing.outboxes.get_mut(&id) else { return };
        for Waiting { slot, .. } in outbox.waiting.drain(..) {
            self.ops.fail(slot, code);
        }
    }

    /// The attempt is over: its QP is destroyed. Notices that were sent by it end as ops do that were begun.
    pub(crate) fn close_line(&mut self, id: LinkId) {
        let announcing = &mut self.announcing;
        let Some(mut line) = announcing.outboxes.get_mut(&id).and_then(|outbox| outbox.line.take()) else {
            return;
        };
        announcing.lines.remove(&line.number);
        announcing.under_way -= line.sent.len();
        match line.letterbox.end() {
            None => announcing.leftover.push((usize::from(line.rail), line.cookie, CQES)),
            // It is on its device's list, names no memory, and counts in its queue for ever.
            Some(ticket) => tracing::warn!(?ticket, "rdma: a QP for notices can't be destroyed"),
        }
        line.sent.clear();
    }

    /// A link is gone.
    pub(crate) fn forget_notices(&mut self, id: LinkId) {
        self.close_line(id);
        self.end_waiting(id, OpErrorCode::NoLink);
        self.announcing.outboxes.remove(&id);
    }
}
