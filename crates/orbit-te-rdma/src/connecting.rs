//! Links on their way up and down: what the handshake asks for, carried out. Rule: QPs of an attempt that is over go into the error state at
//! once, and are destroyed when what they had under way is over, or late.

use crate::attributes;
use crate::cut::CutLimits;
use crate::domain::NAME;
use crate::error::VerbsError;
use crate::handle::QpCaps;
use crate::handshake::{self, Action, Input, Say, Terms};
use crate::lane::{Lane, Stage};
use crate::link::Attempt;
use crate::rail_queue::RailQueue;
use crate::sys::RANGES;
use crate::transport::{RdmaTransport, link_of};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use orbit_te_transport::{Event, LinkId, OpError, OpErrorCode, TransportError};
use orbit_te_wire::rdma::{Body, CloseCode, Message, Queue, Stamp};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So long the WRs of a QP that failed may take to be flushed; then the QP is destroyed, which settles them.
const FLUSH: Duration = Duration::from_millis(200);
/// How often a QP that could not be destroyed is tried again.
const RETRY: Duration = Duration::from_millis(50);
/// How often links are looked at whose QPs may have gone silent.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Bytes of a write that travel inside of its WR, where the device can: it then reads no memory for them. Each WR of a QP takes so much more memory.
const INLINE: u32 = 220;

/// Why an attempt can't go on: for the peer, and in words.
type Refusal = (CloseCode, String);

impl RdmaTransport {
    /// Gives the handshake an input, and does what it asks for.
    pub(crate) fn drive(&mut self, id: LinkId, input: Input, now: Instant) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut actions = std::mem::take(&mut self.actions);
            let Some(link) = link_of(&mut self.links, id) else { return };
            if let Err(fault) = link.machine.take(input, now, &mut actions) {
                tracing::warn!(%fault, "rdma: the handshake with a peer failed");
            }
            let due = link.machine.due();
            for action in actions.drain(..) {
                // Each answers at once; what it answers is taken after the actions that came with it.
                inputs.extend(self.act(id, action, now));
            }
            self.actions = actions;
            if let Some(due) = due {
                self.wake_by(due);
            }
        }
    }

    fn act(&mut self, id: LinkId, action: Action, now: Instant) -> Option<Input> {
        match action {
            Action::Make { attempt } => Some(match self.make(id, attempt, now) {
                Ok(()) => {
                    self.open_line(id);
                    Input::Made { attempt }
                }
                Err((code, why)) => {
                    self.attempt_failed(id, why);
                    Input::Failed { attempt, code }
                }
            }),
            Action::Wire { attempt, .. } => {
                // The peer destroys the QPs of an attempt before it makes those of the next.
                self.fenced(id, attempt);
                Some(match self.wire(id, attempt) {
                    Ok(()) => Input::Wired { attempt },
                    Err((code, why)) => {
                        self.attempt_failed(id, why);
                        Input::Failed { attempt, code }
                    }
                })
            }
            // Whoever is connected to does not connect by the same session.
            Action::Answer { attempt, .. } => Some(Input::Failed { attempt, code: CloseCode::Unwanted }),
            Action::Send { say, from, to } => {
                self.send(id, say, (from, to));
                None
            }
            Action::Destroy { attempt, code, by_peer, was_up } => {
                self.destroy(id, attempt, now);
                let who = if by_peer { "the peer" } else { "this side" };
                let first = self.find(id).and_then(|link| link.why.take());
                if was_up || by_peer {
                    let first = first.map_or(String::new(), |why| format!(" ({why})"));
                    self.attempt_failed(id, format!("{who} ended it: {code}{first}"));
                }
                None
            }
            Action::Up { .. } => {
                let link = self.find(id)?;
                link.up = true;
                let waiting = std::mem::take(&mut link.waiting);
                self.news.push(Event::LinkUp { link: id });
                waiting.into_iter().for_each(|slot| self.place(slot, now));
                self.line_is_up(id, now);
                None
            }
        }
    }

    /// Tells that a link is not there, and why.
    fn attempt_failed(&mut self, id: LinkId, why: String) {
        tracing::debug!(why, "rdma: an attempt to connect, or a connection, is over");
        let error = TransportError::Io { what: NAME.to_string(), source: io::Error::other(why) };
        self.news.push(Event::LinkDown { link: id, error });
    }

    /// Ends the attempt of now because something in it failed.
    pub(crate) fn fail_attempt(&mut self, id: LinkId, code: CloseCode, why: &str, now: Instant) {
        let Some(link) = self.find(id) else { return };
        let Some(number) = link.attempt.as_ref().map(|a| a.number) else { return };
        link.why = Some(why.to_string());
        tracing::debug!(why, %code, "rdma: a connection failed");
        self.drive(id, Input::Failed { attempt: number, code }, now);
    }

    /// Makes the QPs of an attempt, on the rail whose turn it is.
    fn make(&mut self, id: LinkId, number: u64, now: Instant) -> Result<(), Refusal> {
        let refuse = |error: VerbsError| (CloseCode::DeviceRefused, error.to_string());
        let have = self.adapters.now();
        let side = &have.side;
        let Some(link) = link_of(&mut self.links, id) else { return Ok(()) };
        let turn = usize::from(link.next_rail);
        link.next_rail = link.next_rail.wrapping_add(1);
        let order = self.placement.order(&side.rails);
        let Some(rail) = (!order.is_empty()).then(|| order[turn % order.len()]) else {
            return Err((CloseCode::RailDown, "no rail of this side is up".to_string()));
        };
        let adapters = self.adapters.clone();
        let gone = || (CloseCode::RailDown, "no such rail".to_string());
        let adapter = adapters.get(rail).ok_or_else(gone)?;
        let used = have.used(rail).ok_or_else(gone)?;
        let depth = side.limits.send_depth;
        let width = self.config.width;
        // Completion queue and QPs are memory that this side's CPU works on.
        let _visit = self.placement.visit();
        let queue = match &mut self.queues[usize::from(rail)] {
            Some(queue) => queue,
            place => {
                let queue = RailQueue::new(adapter, 0).map_err(refuse)?;
                let event = EpollEvent::new(EpollFlags::EPOLLIN, 1);
                let watched = self.epoll.add(queue.as_fd(), event);
                watched
                    .map_err(|errno| (CloseCode::DeviceRefused, format!("watching a channel: {errno}")))?;
                place.insert(queue)
            }
        };
        let ranges = (adapter.limits.max_sge.min(adapter.limits.max_sge_rd) as usize).clamp(1, RANGES);
        let limits = CutLimits { bytes: self.config.chunk_bytes, ranges, inline: INLINE };
        let mut attempt = Attempt {
            number,
            rail,
            remote_rail: 0,
            side: have.side,
            used,
            lanes: Vec::with_capacity(usize::from(width)),
            queues: Vec::with_capacity(usize::from(width)),
            limits,
        };
        let mut made = Ok(());
        for _ in 0..width {
            if !queue.promise(depth) {
                made = Err((CloseCode::NoRoom, "the completion queue has no room for more QPs".to_string()));
                break;
            }
            let caps = QpCaps {
                max_send_wr: depth,
                max_recv_wr: 1,
                max_send_sge: ranges as u32,
                max_recv_sge: 1,
                max_inline_data: INLINE,
            };
            let create = |caps| adapter.pd.create_qp(caps, &queue.cq, &queue.cq, None);
            // No verb says how much a device can have inline; one that can't have so much refuses the QP.
            let qp = create(caps)
                .or_else(|_| create(QpCaps { max_inline_data: 0, ..caps }))
                .and_then(|qp| qp.to_init(&attempt.used.init(false)).map(|()| qp));
            let qp = match qp {
                Ok(qp) => qp,
                Err(error) => {
                    queue.release(depth);
                    made = Err(refuse(error));
                    break;
                }
            };
            let numbered = Queue { number: qp.number(), psn: psn() };
            attempt.limits.inline = attempt.limits.inline.min(qp.caps().max_inline_data);
            match self.lanes.insert(Lane::new(id, (number, rail), qp, depth, now)) {
                Some(lane) => {
                    attempt.lanes.push(lane);
                    attempt.queues.push(numbered);
                }
                None => {
                    queue.release(depth);
                    made = Err((CloseCode::NoRoom, "there are too many QPs".to_string()));
                    break;
                }
            }
        }
        if let Some(link) = link_of(&mut self.links, id) {
            link.attempt = Some(attempt);
        }
        made
    }

    /// Wires our QPs to those in the answer.
    fn wire(&mut self, id: LinkId, number: u64) -> Result<(), Refusal> {
        let refuse = |code: CloseCode, why: &str| (code, why.to_string());
        let (preferences, quality) = (self.preferences(), self.config.quality());
        let Some(link) = link_of(&mut self.links, id) else { return Ok(()) };
        let Some(attempt) = link.attempt.as_mut().filter(|attempt| attempt.number == number) else {
            return Err(refuse(CloseCode::Gone, "the attempt is over"));
        };
        let Some(answer) = link.answer.take() else {
            return Err(refuse(CloseCode::Protocol, "an answer without content"));
        };
        let terms =
            Terms { side: &attempt.side, preferences: &preferences, quality: &quality, failed_attempts: 0 };
        let meetings = handshake::judge_answer(&terms, &[attempt.array()], &answer)
            .map_err(|unfit| (unfit.code, unfit.words))?;
        let [meeting] = meetings.as_slice() else {
            return Err(refuse(CloseCode::Protocol, "a rail is answered more than once"));
        };
        let retry = attributes::retry_for(self.config.ack_budget);
        for ((lane, ours), theirs) in attempt.lanes.iter().zip(&attempt.queues).zip(&meeting.theirs.queues) {
            let Some(qp) = self.lanes.get_mut(*lane).and_then(|lane| lane.qp.as_ref()) else { continue };
            let rtr = attributes::rtr(&meeting.agreed, *theirs, meeting.path, &retry);
            let rts = attributes::rts(&meeting.agreed, *ours, &retry);
            let steps = qp.to_rtr(&rtr).and_then(|()| qp.to_rts(&rts));
            steps.map_err(|error| (CloseCode::DeviceRefused, error.to_string()))?;
        }
        let wired = self.wire_line(id, meeting);
        wired.map_err(|error| (CloseCode::DeviceRefused, error.to_string()))?;
        let attempt = link_of(&mut self.links, id).and_then(|link| link.attempt.as_mut());
        let Some(attempt) = attempt else { return Ok(()) };
        attempt.remote_rail = meeting.theirs.rail;
        attempt.used.gid = Some(meeting.gids.local.index);
        tracing::debug!(
            rail = meeting.ours,
            peer_rail = meeting.theirs.rail,
            gids = %meeting.gids,
            near = attempt.used.is_at(preferences.numa),
            mtu = %meeting.agreed.mtu,
            width = attempt.lanes.len(),
            "rdma: a path to a peer"
        );
        Ok(())
    }

    fn send(&mut self, id: LinkId, say: Say, (from, to): (Stamp, Stamp)) {
        let (preferences, quality) = (self.preferences(), self.config.quality());
        let Some(link) = link_of(&mut self.links, id) else { return };
        let body = match (say, &link.attempt) {
            (Say::Offer, Some(attempt)) => {
                let side = &attempt.side;
                let terms = Terms { side, preferences: &preferences, quality: &quality, failed_attempts: 0 };
                Body::Offer(handshake::offer(&terms, vec![attempt.array()]))
            }
            (Say::Ready, _) => Body::Ready,
            (Say::Close(code), _) => Body::Close { code, words: code.to_string() },
            (Say::Offer | Say::Answer, _) => return,
        };
        self.tell(id, Message::new(0, from, to, body));
    }

    /// Says something to the counterpart.
    pub(crate) fn tell(&mut self, id: LinkId, message: Message) {
        match message.encode() {
            Ok(bytes) => self.news.push(Event::Control { link: id, bytes }),
            Err(error) => tracing::error!(%error, "rdma: a message can't be said"),
        }
    }

    /// The attempt is over: its QPs are to end, and with them what was under way.
    fn destroy(&mut self, id: LinkId, number: u64, now: Instant) {
        let Some(link) = link_of(&mut self.links, id) else { return };
        if link.up {
            link.down_since = now;
        }
        link.up = false;
        let Some(attempt) = link.attempt.take_if(|attempt| attempt.number == number) else { return };
        link.ready.clear();
        link.entries.take_all();
        link.ending.clear();
        let due = now + FLUSH;
        for lane in &attempt.lanes {
            let Some(lane) = self.lanes.get_mut(*lane) else { continue };
            lane.stage = Stage::Ending { due };
            if let Some(Err(error)) = lane.qp.as_ref().map(crate::handle::Qp::to_err) {
                tracing::debug!(%error, "rdma: a QP is destroyed as it is");
            }
        }
        self.wake_by(due);
        self.end_ops(id, OpErrorCode::LinkBroken, |state| state.begun, now);
        self.close_line(id);
        for lane in attempt.lanes {
            self.tidy(lane, now);
        }
        self.ask_fence(id);
    }

    /// Lets a lane go that is not needed any more and has nothing under way.
    pub(crate) fn tidy(&mut self, index: u16, now: Instant) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        match &lane.stage {
            Stage::Live => {}
            Stage::Ending { due } if lane.queue.is_empty() || *due <= now => self.end_lane(index, now),
            Stage::Ending { .. } => {}
            Stage::Stuck { retention, ticket } => {
                retention.sweep();
                if !retention.holds(*ticket) {
                    self.lane_is_gone(index, now);
                }
            }
        }
    }

    fn end_lane(&mut self, index: u16, now: Instant) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let retention = match self.adapters.get(lane.rail) {
            Some(adapter) => adapter.pd.context().retention().clone(),
            None => Arc::default(),
        };
        match lane.destroy(&retention) {
            Ok(_) => self.lane_is_gone(index, now),
            Err(_) => self.wake_by(now + RETRY),
        }
    }

    /// The QP of a lane is gone, and with it all WRs that it had.
    fn lane_is_gone(&mut self, index: u16, now: Instant) {
        let broken = OpError::new(OpErrorCode::LinkBroken);
        while let Some((_, posted)) = self.lanes.get_mut(index).and_then(|lane| lane.queue.pop()) {
            self.settle(posted, Err(broken), now);
        }
        if let Some(lane) = self.lanes.remove(index) {
            if let Some(queue) = self.queues.get_mut(usize::from(lane.rail)).and_then(Option::as_mut) {
                queue.release(lane.depth);
            }
        }
    }

    /// The completion queue of a rail is of no use any more, and all connections over it.
    pub(crate) fn queue_failed(&mut self, rail: u8, why: &str, now: Instant) {
        tracing::warn!(why, rail, "rdma: a completion queue failed");
        self.fail_rail(rail, CloseCode::DeviceRefused, "its completion queue failed", now);
        // Its lanes end with their QPs; a new one is made for the next attempt.
        for index in self.lanes.numbers() {
            if self.lanes.get_mut(index).is_some_and(|lane| lane.rail == rail) {
                self.end_lane(index, now);
            }
        }
        self.queues[usize::from(rail)] = None;
    }

    /// Does what is due; whether anything was.
    pub(crate) fn look_after(&mut self, now: Instant) -> bool {
        if self.next_timer.is_none_or(|at| at > now) {
            return false;
        }
        self.next_timer = None;
        // One that is always busy is never armed.
        self.adapters.take_events();
        for index in self.lanes.numbers() {
            self.tidy(index, now);
            match self.lanes.get_mut(index).map(|lane| &lane.stage) {
                Some(Stage::Ending { due }) => {
                    let due = *due;
                    self.wake_by(due);
                }
                Some(Stage::Stuck { .. }) => self.wake_by(now + RETRY),
                Some(Stage::Live) | None => {}
            }
        }
        for id in self.link_ids() {
            self.look_after_link(id, now);
        }
        true
    }

    fn look_after_link(&mut self, id: LinkId, now: Instant) {
        let (unreachable_after, silent_after) =
            (self.config.unreachable_after, self.config.ack_budget * 2 + FLUSH);
        let Some(link) = self.find(id) else { return };
        if link.machine.due().is_some_and(|due| due <= now) {
            self.drive(id, Input::Time, now);
        }
        let Some(link) = link_of(&mut self.links, id) else { return };
        if let Some(due) = link.machine.due() {
            self.wake_by(due);
        }
        let Some(link) = link_of(&mut self.links, id) else { return };
        match link.fence_due {
            Some(due) if due <= now => {
                link.fence_due = None;
                let unfenced = std::mem::take(&mut link.unfenced);
                unfenced.into_iter().for_each(|slot| self.end_unfenced(slot));
            }
            Some(due) => self.wake_by(due),
            None => {}
        }
        let Some(link) = link_of(&mut self.links, id) else { return };
        if !link.up && (!link.waiting.is_empty() || self.announcing.waits(id)) {
            let at = link.down_since + unreachable_after;
            if at <= now {
                let waiting = std::mem::take(&mut link.waiting);
                waiting.into_iter().for_each(|slot| self.ops.fail(slot, OpErrorCode::Unreachable));
                self.end_waiting(id, OpErrorCode::Unreachable);
            } else {
                self.wake_by(at);
            }
            return;
        }
        // A completion may never come: a device that lost it does not say so.
        let Some(attempt) = link.attempt.as_ref().filter(|_| link.up) else { return };
        let mut busy = false;
        let mut silent = false;
        for index in attempt.lanes.clone() {
            let Some(lane) = self.lanes.get_mut(index).filter(|lane| !lane.queue.is_empty()) else {
                continue;
            };
            busy = true;
            silent |= now.saturating_duration_since(lane.progress) > silent_after;
        }
        if silent {
            self.fail_attempt(id, CloseCode::QueueFailed, "a completion did not come", now);
        } else if busy {
            self.wake_by(now + LOOK);
        }
    }
}

/// A first packet number that nobody guesses, and that no former QP is likely to have used.
pub(crate) fn psn() -> u32 {
    let mut bytes = [0; 4];
    // Without random numbers the time must do: it is against confusion, not against an enemy.
    if getrandom::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.map_or(0, |since| since.subsec_nanos()).to_le_bytes();
    }
    u32::from_le_bytes(bytes) & orbit_te_wire::rdma::MAX_24_BITS
}
