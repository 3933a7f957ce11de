//! Ops on their way: from the link to a QP, and from a CQE to their end. Rule: an op ends when none of its WRs is under way, and a write that
//! failed there not before its peer has said that nothing more of it can land, or has been asked in vain.

#![allow(unsafe_code)]

use crate::completion::Wc;
use crate::connecting::LOOK;
use crate::cut::{CutLimits, Range, Whole, Work, cut, cut_whole};
use crate::entry::{Entries, Entry, Open, Shown, shown};
use crate::error::VerbsError;
use crate::handle::Qp;
use crate::lane::{Lane, Stage, WrName};
use crate::link::Link;
use crate::local::Local;
use crate::ops::{Cut, OpSlot, OpState, OpTable};
use crate::send_queue::{Posted, SendQueue};
use crate::status::Kind;
use crate::sys::{CHAIN, Chain, RANGES};
use crate::transport::{RdmaTransport, link_of};
use orbit_te_memory::LocalKey;
use orbit_te_transport::{LinkId, Op, OpError, OpErrorCode, OpKind, PriorityQueue};
use orbit_te_wire::check_pieces;
use orbit_te_wire::rdma::{Body, CloseCode, Message, Stamp};
use std::time::Instant;

/// A region here and one at the peer, whose keys were looked up for the WRs of a chain.
pub(crate) struct Pair {
    here: LocalKey,
    there: Shown,
    /// Where the peer's stands among the link's entries.
    pub(crate) place: usize,
    pub(crate) whole: Option<Whole>,
}

impl Pair {
    /// Looks both up; or what is to happen to an op between them.
    pub(crate) fn find(
        entries: &mut Entries,
        local: &mut Local,
        op: &Op,
        rail: u8,
        now: Instant,
    ) -> Result<Pair, Option<OpErrorCode>> {
        let (here, there) = (op.local.key, shown(&op.remote.key));
        let place = entries.open(&there, now).ok_or(None)?;
        let open = entries.open_at(place).ok_or(None)?;
        let keys = local.keys(here.region(), rail).ok_or(Some(OpErrorCode::Unsupported))?;
        let whole = match (keys.single(), &open.keys.rkeys[..]) {
            (Some((here, here_bytes, lkey)), [rkey]) => {
                let (there, there_bytes, rkey) = (open.keys.base, open.length, *rkey);
                Some(Whole { here, here_bytes, lkey, there, there_bytes, rkey })
            }
            _ => None,
        };
        Ok(Pair { here, there, place, whole })
    }

    #[inline]
    pub(crate) fn is_of(&self, op: &Op) -> bool {
        // One branch for all of them.
        let [region, generation, key, _] = op.remote.key.0;
        let there = (region ^ self.there[0]) | (generation ^ self.there[1]) | (key ^ self.there[2]);
        there | (op.local.key.0 ^ self.here.0) == 0
    }

    /// Cuts the next WR off an op between the two.
    #[inline]
    fn cut(
        &self,
        state: &mut OpState,
        (entries, local, rail): (&Entries, &mut Local, u8),
        limits: CutLimits,
        ranges: &mut [Range; RANGES],
    ) -> Option<Work> {
        if let Some(whole) = &self.whole {
            return cut_whole(state, whole, limits, ranges);
        }
        let (open, keys) = (entries.open_at(self.place)?, local.keys(self.here.region(), rail)?);
        let there = (open.keys.base, |offset| open.at(offset));
        cut(state, |address| keys.at(address), there, limits, ranges)
    }
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
                    self.post_failed(id, errno, now);
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

    /// The device refused a chain.
    pub(crate) fn post_failed(&mut self, id: LinkId, errno: i32, now: Instant) {
        let why = VerbsError::new(crate::Verb::PostSend, "a chain", crate::Errno(errno));
        self.fail_attempt(id, CloseCode::DeviceRefused, &why.to_string(), now);
    }

    /// One chain on the lane whose turn it is.
    fn chain_for(&mut self, id: LinkId, now: Instant) -> Chained {
        // Allocates for an op that can't be posted as it stands only.
        let mut instead = Vec::new();
        let done = self.make_chain(id, now, &mut instead);
        for (slot, code) in instead {
            match code {
                // It looks for the keys of its region again.
                None => self.place(slot, now),
                Some(code) => self.give_up(slot, OpError::new(code), now),
            }
        }
        done
    }

    fn make_chain(
        &mut self,
        id: LinkId,
        now: Instant,
        instead: &mut Vec<(OpSlot, Option<OpErrorCode>)>,
    ) -> Chained {
        let Self { links, lanes, ops, chain, ranges, befores, local, .. } = self;
        let Some(link) = link_of(links, id) else { return Chained::Nothing };
        let Link { attempt, ready, entries, next_lane, .. } = link;
        let Some(attempt) = attempt else { return Chained::Nothing };
        if ready.is_empty() {
            return Chained::Nothing;
        }
        let Some(index) = attempt.next_lane(next_lane) else { return Chained::Nothing };
        let Some((lane, turn)) = lanes.with_turn(index) else { return Chained::NoRoom };
        let room = lane.room(CHAIN);
        let Lane { qp: Some(qp), queue, progress, .. } = lane else { return Chained::NoRoom };
        if room == 0 {
            return Chained::NoRoom;
        }
        if queue.is_empty() {
            *progress = now;
        }
        let limits = attempt.limits;
        let mut pair: Option<Pair> = None;
        chain.clear();
        while chain.len() < room {
            let run = ready.run();
            let Some(slots) = run.or_else(|| ready.peek().map(std::slice::from_ref)) else { break };
            if slots.is_empty() {
                break;
            }
            let alone = run.is_some();
            // Entries that leave, and whether one of them had a turn.
            let (mut gone, mut had_turn) = (0, false);
            'slots: for slot in slots.iter().copied() {
                let Some(state) = ops.get_mut(slot).filter(|state| state.failure.is_none()) else {
                    gone += 1;
                    continue;
                };
                if pair.as_ref().is_none_or(|pair| !pair.is_of(&state.op)) {
                    match Pair::find(entries, local, &state.op, attempt.rail, now) {
                        Ok(found) => pair = Some(found),
                        Err(code) => {
                            gone += 1;
                            instead.push((slot, code));
                            continue;
                        }
                    }
                }
                let Some(known) = &pair else { continue };
                // Its WRs, one for each turn.
                loop {
                    if chain.len() == room {
                        break 'slots;
                    }
                    let before = state.cut;
                    let Some(work) = known.cut(state, (entries, local, attempt.rail), limits, ranges) else {
                        gone += 1;
                        instead.push((slot, Some(OpErrorCode::LocalMemoryFault)));
                        continue 'slots;
                    };
                    let name = WrName { lane: index, turn, number: queue.number() };
                    let inline = work.bytes <= limits.inline_of(state.op.kind);
                    befores[chain.len()] = before;
                    chain.push(state.op.kind, inline, name.to_u64(), &work, ranges);
                    queue.push(Posted { op: slot, bytes: work.bytes });
                    state.posted += 1;
                    state.touched = true;
                    state.attempt = attempt.number;
                    had_turn = true;
                    let last = state.left() == 0;
                    gone += usize::from(last);
                    if last {
                        break;
                    }
                    if !alone {
                        break 'slots;
                    }
                }
            }
            match alone {
                true => ready.take_run(gone),
                false if had_turn => drop(ready.take_turn(gone > 0)),
                false => drop(ready.pop()),
            }
        }
        if chain.len() == 0 {
            return Chained::Nothing;
        }
        let whole = queue.len();
        let done = post(chain, qp, queue, (ops, ready), befores);
        if queue.len() < whole && !queue.is_empty() {
            // The last that was posted is not signalled: what goes to this lane next tells of its end.
            *next_lane = next_lane.checked_sub(1).unwrap_or(attempt.lanes.len() - 1);
        }
        done
    }

    /// The WRs before one that was flushed have failed too, as far as is known.
    #[cold]
    fn flushed_before(&mut self, name: WrName, now: Instant) {
        while let Some(queue) = self.lanes.of(name).map(|lane| &mut lane.queue) {
            if queue.oldest() == Some(name.number) {
                return;
            }
            let Some((_, posted)) = queue.pop() else { return };
            self.settle(posted, Err(OpError::new(OpErrorCode::LinkBroken)), now);
        }
    }

    /// Takes a CQE: the WRs that are over by it.
    pub(crate) fn over(&mut self, wc: &Wc, now: Instant) {
        let name = WrName::from_u64(wc.token());
        let failed = if wc.is_success() { None } else { wc.completion().result.err() };
        let Some(lane) = self.lanes.of(name).filter(|lane| lane.queue.holds(name.number)) else {
            // Of a QP that is gone: its WRs were over by that.
            return;
        };
        lane.progress = now;
        let (link, attempt, ends) = (lane.link, lane.attempt, !matches!(lane.stage, Stage::Live));
        // A WR that failed is the last of them, and is looked at for itself.
        let upto = if failed.is_some() { name.number } else { name.number.wrapping_add(1) };
        if failed.is_some_and(|failed| failed.status.kind() == Kind::Flushed) {
            // One that was flushed proves nothing of those before it: the CQE of the first that failed may have been lost.
            self.flushed_before(name, now);
        }
        let mut odd = std::mem::take(&mut self.odd);
        let Some(lane) = self.lanes.of(name) else { return };
        for some in lane.queue.take_before(upto) {
            self.ops.moved(some, &mut odd);
        }
        odd.drain(..).for_each(|slot| self.end_if_over(slot, now));
        self.odd = odd;
        if let Some(failed) = failed {
            let this = self.lanes.of(name).and_then(|lane| lane.queue.pop());
            let code = failed.status.op_error().unwrap_or(OpErrorCode::LinkBroken);
            if let Some((_, posted)) = this.filter(|(number, _)| *number == name.number) {
                self.settle(posted, Err(OpError::new(code)), now);
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
        if ends {
            self.tidy(name.lane, now);
        }
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
                        let fence_due = now + self.config.fence_timeout;
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

/// Posts a chain whose WRs stand at the end of the QP's queue, in the same order. Those that were not posted are taken back: how far their ops had
/// been cut before is in `befores`.
pub(crate) fn post(
    chain: &mut Chain,
    qp: &Qp,
    queue: &mut SendQueue,
    (ops, ready): (&mut OpTable, &mut PriorityQueue<OpSlot>),
    befores: &[Cut; CHAIN],
) -> Chained {
    // SAFETY: whoever submitted the ops keeps their memory valid until their completions, which come after the last of their WRs is over.
    // The ranges were cut inside of it, with the keys of the region that they are of.
    let (posted, errno) = unsafe { chain.post(qp) };
    if errno == 0 {
        return Chained::Posted;
    }
    // They were not begun; the newest first.
    for before in befores[..chain.len()].iter().skip(posted).rev() {
        let Some(taken) = queue.take_back() else { break };
        let Some(state) = ops.get_mut(taken.op) else { continue };
        // It had left those that are ready with its last WR.
        if state.left() == 0 {
            ready.push_first(state.op.priority, taken.op);
        }
        state.posted -= 1;
        state.cut = *before;
    }
    let may_pass = matches!(errno, libc::ENOMEM | libc::EAGAIN);
    // A device that has no room has WRs under way, whose CQEs make some.
    if may_pass && !queue.is_empty() { Chained::Posted } else { Chained::Failed(errno) }
}

/// What became of a chain.
pub(crate) enum Chained {
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
    if !open.may(op.kind) {
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
