//! Ops on their way: from the link to a QP, and from a CQE to their end. Rule: an op ends when none of its WRs is under way, and a write that
//! failed there not before its peer has said that nothing more of it can land, or has been asked in vain.

#![allow(unsafe_code)]

use crate::completion::Wc;
use crate::connecting::LOOK;
use crate::cut::cut;
use crate::entry::{Entry, Open, shown};
use crate::error::VerbsError;
use crate::lane::WrName;
use crate::link::Link;
use crate::ops::{Cut, OpSlot, OpState};
use crate::send_queue::Posted;
use crate::status::Kind;
use crate::transport::{RdmaTransport, link_of};
use orbit_te_memory::Access;
use orbit_te_transport::{LinkId, Op, OpError, OpErrorCode, OpKind};
use orbit_te_wire::check_pieces;
use orbit_te_wire::rdma::{Body, CloseCode, Message, Stamp};
use std::time::Instant;

/// A WR in the chain that is being made: whose it is, how far its op was before, and whether it is its last.
#[derive(Debug, Clone, Copy)]
struct Made {
    slot: OpSlot,
    before: Cut,
    bytes: u32,
    last: bool,
}

/// What is to happen to an op that can't be posted as it stands.
enum Instead {
    /// It looks for the keys of its region again.
    Place(OpSlot),
    /// It fails.
    Fail(OpSlot, OpErrorCode),
}

impl RdmaTransport {
    /// An op goes as far as it can without a WR: to its link, to the keys of its region, to those that are ready.
    pub(crate) fn place(&mut self, slot: OpSlot, now: Instant) {
        let unreachable_after = self.config.unreachable_after;
        let Some(state) = self.ops.get_mut(slot) else { return };
        let (id, key, priority) = (state.op.link, shown(&state.op.remote.key), state.op.priority);
        let Some(link) = link_of(&mut self.links, id) else {
            return self.ops.fail(slot, OpErrorCode::NoLink);
        };
        if !link.up {
            link.waiting.push(slot);
            let at = link.down_since.max(now) + unreachable_after;
            return self.wake_by(at);
        }
        state.begun = true;
        match link.entries.find(&key) {
            Some(Entry::Asked { waiting, .. }) => waiting.push(slot),
            Some(Entry::Open(open)) if open.expires.is_some_and(|at| at <= now) => {
                // The owner says whether they may be used for longer, or that it is over.
                link.entries.remove(&key);
                self.ask(id, key, slot, now);
            }
            Some(Entry::Open(open)) => match if state.checked { Ok(()) } else { check(state, open) } {
                Err(error) => self.give_up(slot, error, now),
                Ok(()) => {
                    state.checked = true;
                    link.ready.push(priority, slot);
                    self.activate(id);
                }
            },
            None => self.ask(id, key, slot, now),
        }
    }

    /// A link has something to post, and perhaps room for it.
    pub(crate) fn activate(&mut self, id: LinkId) {
        if let Some(link) = link_of(&mut self.links, id) {
            if !link.active && link.up && !link.ready.is_empty() {
                link.active = true;
                self.active.push_back(id);
            }
        }
    }

    /// Posts what is ready; whether anything was.
    pub(crate) fn pump(&mut self, now: Instant) -> bool {
        let mut any = false;
        for _ in 0..self.active.len() {
            let Some(id) = self.active.pop_front() else { break };
            if let Some(link) = link_of(&mut self.links, id) {
                link.active = false;
                any |= self.pump_link(id, now);
            }
        }
        any
    }

    /// One chain for each lane of a link that has room; whether anything was posted or has ended.
    fn pump_link(&mut self, id: LinkId, now: Instant) -> bool {
        let mut any = false;
        let width = link_of(&mut self.links, id)
            .and_then(|link| link.attempt.as_ref())
            .map_or(0, |attempt| attempt.lanes.len());
        let mut full = 0;
        for _ in 0..width {
            match self.chain_for(id, now) {
                Chained::Nothing => break,
                Chained::NoRoom => full += 1,
                Chained::Posted => any = true,
                Chained::Failed(errno) => {
                    let why = VerbsError::new(crate::Verb::PostSend, "a chain", crate::Errno(errno));
                    self.fail_attempt(id, CloseCode::DeviceRefused, &why.to_string(), now);
                    return true;
                }
            }
        }
        if any {
            // A CQE may never come.
            self.wake_by(now + LOOK);
        }
        // Where all lanes are full, a CQE makes room.
        if full < width {
            self.activate(id);
        }
        any
    }

    /// One chain on the lane whose turn it is.
    fn chain_for(&mut self, id: LinkId, now: Instant) -> Chained {
        let mut instead = Vec::new();
        let done = self.make_chain(id, now, &mut instead);
        for instead in instead {
            match instead {
                Instead::Place(slot) => self.place(slot, now),
                Instead::Fail(slot, code) => self.give_up(slot, OpError::new(code), now),
            }
        }
        done
    }

    fn make_chain(&mut self, id: LinkId, now: Instant, instead: &mut Vec<Instead>) -> Chained {
        let Self { links, lanes, ops, chain, ranges, local, .. } = self;
        let Some(link) = link_of(links, id) else { return Chained::Nothing };
        let Link { attempt, ready, entries, next_lane, .. } = link;
        let Some(attempt) = attempt else { return Chained::Nothing };
        if ready.is_empty() {
            return Chained::Nothing;
        }
        *next_lane = (*next_lane + 1) % attempt.lanes.len().max(1);
        let Some(index) = attempt.lanes.get(*next_lane).copied() else { return Chained::Nothing };
        let Some((lane, turn)) = lanes.with_turn(index) else { return Chained::NoRoom };
        let room = lane.room() as usize;
        if room == 0 {
            return Chained::NoRoom;
        }
        let mut links_made: [Option<Made>; crate::sys::CHAIN] = [None; crate::sys::CHAIN];
        chain.clear();
        while chain.len() < room && !chain.is_full() {
            let Some(slot) = ready.peek().copied() else { break };
            let Some(state) = ops.get_mut(slot).filter(|state| state.failure.is_none()) else {
                ready.pop();
                continue;
            };
            let open = match entries.find(&shown(&state.op.remote.key)) {
                Some(Entry::Open(open)) if open.expires.is_none_or(|at| at > now) => open,
                _ => {
                    ready.pop();
                    instead.push(Instead::Place(slot));
                    continue;
                }
            };
            let Some(keys) = local.keys(state.op.local.key.region(), attempt.rail) else {
                ready.pop();
                instead.push(Instead::Fail(slot, OpErrorCode::Unsupported));
                continue;
            };
            let before = state.cut;
            let Some(work) = cut(state, keys, open, attempt.limits, ranges) else {
                ready.pop();
                instead.push(Instead::Fail(slot, OpErrorCode::LocalMemoryFault));
                continue;
            };
            let name = WrName { lane: index, turn, number: lane.queue.number(chain.len() as u32) };
            let last = state.left() == 0;
            links_made[chain.len()] = Some(Made { slot, before, bytes: work.bytes, last });
            chain.push(state.op.kind, name.to_u64(), &work, &ranges[..]);
            state.posted += 1;
            state.touched = true;
            state.attempt = attempt.number;
            ready.take_turn(last);
        }
        let Some(qp) = lane.qp.as_ref().filter(|_| chain.len() > 0) else { return Chained::Nothing };
        if lane.queue.is_empty() {
            lane.progress = now;
        }
        // SAFETY: whoever submitted the ops keeps their memory valid until their completions, which come after the last of their WRs is over.
        // The ranges were cut inside of it, with the keys of the region that they are of.
        let (posted, errno) = unsafe { chain.post(qp) };
        for made in links_made[..posted].iter().flatten() {
            lane.queue.push(Posted { op: made.slot, bytes: made.bytes });
        }
        if errno == 0 {
            return Chained::Posted;
        }
        // Those that were not posted were not begun.
        for made in links_made[posted..].iter().flatten().rev() {
            if let Some(state) = ops.get_mut(made.slot) {
                state.posted -= 1;
                state.cut = made.before;
                if made.last {
                    ready.push_first(state.op.priority, made.slot);
                }
            }
        }
        if posted > 0 {
            // The last that was posted is not signalled: what goes to this lane next tells of its end.
            let lanes = attempt.lanes.len();
            *next_lane = (*next_lane + lanes - 1) % lanes;
        }
        let may_pass = matches!(errno, libc::ENOMEM | libc::EAGAIN);
        // A device that has no room has WRs under way, whose CQEs make some.
        if may_pass && (posted > 0 || !lane.queue.is_empty()) {
            Chained::Posted
        } else {
            Chained::Failed(errno)
        }
    }

    /// Takes a CQE: the WRs that are over by it.
    pub(crate) fn over(&mut self, wc: &Wc, now: Instant) {
        let name = WrName::from_u64(wc.token());
        let Some(lane) = self.lanes.of(name).filter(|lane| lane.queue.holds(name.number)) else {
            // Of a QP that is gone: its WRs were over by that.
            return;
        };
        lane.progress = now;
        let (link, attempt) = (lane.link, lane.attempt);
        let failed = wc.completion().result.err();
        // One that was flushed proves nothing of those before it: the CQE of the first that failed may have been lost.
        let all_failed = failed.is_some_and(|failed| failed.status.kind() == Kind::Flushed);
        while let Some((number, posted)) = self.lanes.of(name).and_then(|lane| lane.queue.pop()) {
            let is_this = number == name.number;
            match failed.filter(|_| is_this || all_failed) {
                None => self.settle(posted, Ok(()), now),
                Some(failed) => {
                    let code = failed.status.op_error().unwrap_or(OpErrorCode::LinkBroken);
                    self.settle(posted, Err(OpError::new(code)), now);
                }
            }
            if is_this {
                break;
            }
        }
        match failed {
            None => self.activate(link),
            // What is flushed is a consequence; its cause has come before, or is known by the link.
            Some(failed) => {
                let is_of_now = self
                    .find(link)
                    .and_then(|link| link.attempt.as_ref())
                    .is_some_and(|a| a.number == attempt);
                if is_of_now {
                    // A path that carries nothing is told from all else: the next attempt takes other GIDs.
                    let code = match failed.status.kind() {
                        Kind::RetryExceeded => CloseCode::TimedOut,
                        _ => CloseCode::QueueFailed,
                    };
                    self.fail_attempt(link, code, &failed.status.to_string(), now);
                }
            }
        }
        self.tidy(name.lane, now);
        if self.find(link).is_some_and(|link| !link.ending.is_empty()) {
            self.let_go(link);
        }
    }

    /// A WR is over.
    pub(crate) fn settle(&mut self, posted: Posted, result: Result<(), OpError>, now: Instant) {
        let Some(state) = self.ops.get_mut(posted.op) else { return };
        state.posted -= 1;
        match result {
            Ok(()) => state.moved += u64::from(posted.bytes),
            Err(error) => {
                state.unfenced |= state.op.kind == OpKind::Write;
                state.failure.get_or_insert(error);
            }
        }
        self.end_if_over(posted.op, now);
    }

    /// An op is not wanted any more, or can't go on: it ends as soon as none of its WRs is under way.
    pub(crate) fn give_up(&mut self, slot: OpSlot, error: OpError, now: Instant) {
        if let Some(state) = self.ops.get_mut(slot) {
            state.failure.get_or_insert(error);
            self.end_if_over(slot, now);
        }
    }

    fn end_if_over(&mut self, slot: OpSlot, now: Instant) {
        let fence_due = now + self.config.fence_timeout;
        let Some(state) = self.ops.get_mut(slot).filter(|state| state.posted == 0) else { return };
        match state.failure {
            None if state.left() > 0 => {}
            None => self.ops.end(slot, Ok(())),
            // It had moved all when it was cancelled.
            Some(_) if state.moved == state.op.local.length => self.ops.end(slot, Ok(())),
            Some(error) if !state.unfenced => self.ops.end(slot, Err(error)),
            Some(error) => {
                let (id, attempt) = (state.op.link, state.attempt);
                match link_of(&mut self.links, id) {
                    Some(link) if attempt < link.fenced_before => self.ops.end(slot, Err(error)),
                    Some(link) => {
                        link.unfenced.push(slot);
                        link.fence_due.get_or_insert(fence_due);
                        self.wake_by(fence_due);
                        self.ask_fence(id);
                    }
                    None => self.end_unfenced(slot),
                }
            }
        }
    }

    /// Ends a write of which bytes may still land.
    pub(crate) fn end_unfenced(&mut self, slot: OpSlot) {
        let Some(error) = self.ops.get_mut(slot).and_then(|state| state.failure) else { return };
        let code = match error.code {
            OpErrorCode::Cancelled => OpErrorCode::CancelledUnfenced,
            OpErrorCode::LinkBroken => OpErrorCode::LinkBrokenUnfenced,
            other => other,
        };
        self.ops.end(slot, Err(OpError { code, ..error }));
    }

    /// The peer has said that nothing can land any more of what was sent in attempts before this one.
    pub(crate) fn fenced(&mut self, id: LinkId, before: u64) {
        let Some(link) = link_of(&mut self.links, id) else { return };
        link.fenced_before = link.fenced_before.max(before);
        for slot in std::mem::take(&mut link.unfenced) {
            match self.ops.get_mut(slot).map(|state| (state.attempt, state.failure)) {
                Some((attempt, _)) if attempt >= before => link.unfenced.push(slot),
                Some((_, Some(error))) => self.ops.end(slot, Err(error)),
                _ => {}
            }
        }
        if link.unfenced.is_empty() {
            link.fence_due = None;
        }
    }

    /// Asks the peer whether something of attempts that are over can still land, where that is not known.
    pub(crate) fn ask_fence(&mut self, id: LinkId) {
        let Some(link) = link_of(&mut self.links, id) else { return };
        let attempts =
            link.unfenced.iter().filter_map(|slot| self.ops.get_mut(*slot).map(|state| state.attempt));
        let Some(last) = attempts.max() else { return };
        // While it is not over it is not asked about, and once is enough.
        let goes_on = link.attempt.as_ref().is_some_and(|attempt| attempt.number <= last);
        if goes_on || link.fence_asked.is_some_and(|(_, asked)| asked >= last) {
            return;
        }
        link.last_request = link.last_request.wrapping_add(1);
        let request = link.last_request;
        link.fence_asked = Some((request, last));
        let (from, to) = (Stamp { incarnation: self.life, attempt: last }, Stamp::none(link.peer));
        self.tell(id, Message::new(0, from, to, Body::FenceWanted { request }));
    }

    /// Ends the ops of a link that satisfy a condition, as soon as none of their WRs is under way.
    pub(crate) fn end_ops(
        &mut self,
        id: LinkId,
        code: OpErrorCode,
        which: impl Fn(&OpState) -> bool,
        now: Instant,
    ) {
        for slot in self.ops.find(|state| state.op.link == id && state.failure.is_none() && which(state)) {
            self.give_up(slot, OpError::new(code), now);
        }
    }
}

/// What became of a chain.
enum Chained {
    /// There was nothing to post.
    Nothing,
    /// The lane is full.
    NoRoom,
    /// It was posted, or a part of it.
    Posted,
    /// The device refused it.
    Failed(i32),
}

/// Whether an op fits its region and the rights to it.
fn check(state: &OpState, open: &Open) -> Result<(), OpError> {
    let op: &Op = &state.op;
    let needed = match op.kind {
        OpKind::Read => Access::REMOTE_READ,
        OpKind::Write => Access::REMOTE_WRITE,
    };
    if !open.access.contains(needed) {
        return Err(OpError::new(OpErrorCode::AccessDenied));
    }
    let size = open.length.min(op.remote.key.0[3]);
    match &op.pieces {
        None => match op.remote.offset.checked_add(op.local.length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(OpError::new(OpErrorCode::OutOfRange)),
        },
        Some(pieces) => {
            // SAFETY: whoever submitted the op keeps the slices alive and unchanged until its completion.
            let table = unsafe { pieces.remote() };
            check_pieces(table, size, op.local.length, op.kind == OpKind::Write).map_err(|bad| {
                let error = OpError::from_status(bad.status).unwrap_or(OpError::new(OpErrorCode::BadLength));
                OpError { piece: Some(bad.index).filter(|at| (*at as usize) < table.len()), ..error }
            })
        }
    }
}
