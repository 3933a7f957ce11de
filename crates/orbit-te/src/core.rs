//! What a worker does in one step: takes new transfers, hands their requests to the transport, settles completions, and watches
//! deadlines. Rule: steps are pure progress; when to step, spin and sleep is `worker.rs`'s.

#![allow(unsafe_code)]

mod active;

use self::active::Active;
use crate::announcer::{self, Announcer};
use crate::command::Command;
use crate::condition::PeerCondition;
use crate::ending::{Ended, GivenUp};
use crate::error::{Error, TransferError};
use crate::peer::LinkStatus;
use crate::receipt::{Landed, Tally};
use crate::retention::Retention;
use crate::route::RouteId;
use crate::router::{Done, Found, Router};
use crate::sync::ArrayQueue;
use crate::transfer::TransferState;
use crate::warming::Warm;
use orbit_te_memory::Lease;
use orbit_te_transport::{
    Arm, Event, LinkId, Op, OpError, OpErrorCode, Priority, PriorityQueue, Signs, Token, TransportError,
    Undone,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Ops handed over in one call.
const SUBMIT_OPS: usize = 64;
/// Closed links whose end can still be explained.
const CLOSED_LINKS: usize = 64;
/// Completions taken in one poll.
const POLL_BUDGET: usize = 256;

#[derive(Default)]
struct Share {
    held: usize,
    parked: PriorityQueue<usize>,
}

pub(crate) struct Core {
    /// Dropped first: it points into the transfers.
    router: Router,
    /// Requests whose bytes came damaged.
    damaged: Arc<AtomicU64>,
    active: Vec<Option<Active>>,
    free: Vec<usize>,
    /// Transfers with requests that the transport has not taken yet.
    waiting: PriorityQueue<usize>,
    /// By the link's slot: what the transport holds for it, and who waits until that is less.
    shares: Vec<Share>,
    /// The most that the transport is given for one link, so that a peer that takes nothing leaves room for others.
    share: usize,
    links: HashMap<LinkId, Arc<LinkStatus>>,
    /// Links that were closed; the last few still explain why to whoever asks late.
    closed_links: VecDeque<LinkId>,
    found: Found,
    /// Ops on their way to the transport; kept for its memory.
    ops: Vec<Op>,
    /// What is over and not yet told: telling may run an owner's code, so the core must be free for it.
    ended: Vec<Ended>,
    announcer: Announcer,
    next_deadline: Option<Instant>,
    /// Those who wait for lanes.
    warming: Vec<Warm>,
    /// When whoever had the core last has said that it wants to be looked at, in the worker's time; none while something has changed since.
    announced_ns: Option<u64>,
    /// How transfers end that come now, if none is taken any more.
    closed: Option<TransferError>,
}

impl Core {
    pub(crate) fn new(router: Router, damaged: Arc<AtomicU64>) -> Core {
        let most = router.capabilities().max_ops as usize;
        Core {
            shares: Vec::new(),
            // A quarter is more than the lanes of a link have in flight; a small table is not divided.
            share: (most / 4).max(most.min(512)).max(1),
            closed_links: VecDeque::new(),
            router,
            damaged,
            active: Vec::new(),
            free: Vec::new(),
            waiting: PriorityQueue::default(),
            links: HashMap::new(),
            found: Found::with_capacity(POLL_BUDGET),
            ops: Vec::with_capacity(SUBMIT_OPS),
            ended: Vec::with_capacity(POLL_BUDGET),
            announcer: Announcer::default(),
            next_deadline: None,
            warming: Vec::new(),
            announced_ns: None,
            closed: None,
        }
    }

    /// Whether there is nothing to wait for.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.active.len() && self.announcer.is_idle() && self.router.is_drained()
    }

    /// Takes commands and hands requests to the transport, which begins with them; whether there were any.
    pub(crate) fn feed(&mut self, ring: &ArrayQueue<Command>, now: Instant) -> bool {
        self.announced_ns = None;
        let mut any = false;
        while let Some(command) = ring.pop() {
            any = true;
            match command {
                Command::Submit { transfer, part } => self.begin(transfer, part),
                Command::Announce(transfer) => self.announcer.push(transfer, &mut self.ended),
                Command::Cancel(transfer) => self.cancel(&transfer, now),
                Command::Connect { peer, address, status, reply } => {
                    let result = self.router.connect(peer, &address, now).map_err(Error::from);
                    if let Ok(link) = &result {
                        self.links.insert(*link, status);
                    }
                    // Whoever asked may have given up meanwhile; then nobody has the link.
                    if let Err(Ok(link)) = reply.send(result) {
                        self.router.disconnect(link, now);
                        self.links.remove(&link);
                    }
                }
                Command::Join { link, peer, route, address, reply } => {
                    self.router.join(link, peer, route, &address, reply, now);
                }
                Command::Deliver { link, route, letter } => {
                    self.router.deliver(link, route, &letter.bytes, now);
                }
                Command::Learn { link, key, reach } => self.router.learn(link, &key, reach),
                Command::Explain { op, demand, reply } => {
                    // Whoever asked may have given up meanwhile.
                    let plan = self.router.explain(&op, demand, now);
                    let gone = TransportError::NoLink { transport: "router" };
                    let _ = reply.send(plan.ok_or_else(|| gone.into()));
                }
                Command::Describe { op, draft, reply } => {
                    let made = self.router.describe(&op, *draft, now);
                    let gone = TransportError::NoLink { transport: "router" };
                    let _ = reply.send(made.ok_or_else(|| gone.into()));
                }
                // Dropping it tells that the engine is closed.
                Command::Warm(warm) if self.closed.is_none() => self.warming.push(*warm),
                Command::Warm(_) => {}
                Command::Disconnect(link) => {
                    self.router.disconnect(link, now);
                    self.announcer.forget(link);
                    self.closed_links.push_back(link);
                    if self.closed_links.len() > CLOSED_LINKS {
                        self.closed_links.pop_front().and_then(|old| self.links.remove(&old));
                    }
                }
            }
        }
        self.hand_over(now) | self.announcer.hand_over(&mut self.router, now) | any
    }

    /// Everybody is told when the core wants to be looked at.
    pub(crate) fn announce(&mut self, wake_ns: u64) {
        self.announced_ns = Some(wake_ns);
    }

    /// When it wants to be looked at, if nothing is under way and it is as it was when that was told.
    pub(crate) fn rests_until(&self) -> Option<u64> {
        self.announced_ns.filter(|_| self.closed.is_none() && self.warming.is_empty() && self.is_idle())
    }

    /// Carries out one op on the calling thread, if its route allows it; by which one, and when it ended. The core rests. The lease is that of
    /// the op's own region.
    pub(crate) fn at_once(
        &mut self,
        (op, _lease): (&Op, &Lease),
        now: Instant,
    ) -> Result<(RouteId, Instant), Undone> {
        // SAFETY: the span was made from a slice of a live region, whose lease the caller holds until the call has returned, and with
        // it everything that is done for the op.
        unsafe { self.router.at_once(op, now) }
    }

    /// As [`Core::feed`], and takes the ends of what was done at once.
    pub(crate) fn feed_and_settle(&mut self, ring: &ArrayQueue<Command>, now: Instant) -> bool {
        let any = self.feed(ring, now);
        if self.router.has_done() {
            self.step(ring, now);
        }
        any
    }

    /// One step; whether anything happened.
    pub(crate) fn step(&mut self, ring: &ArrayQueue<Command>, now: Instant) -> bool {
        self.announced_ns = None;
        let mut any = !ring.is_empty() && self.feed(ring, now);
        self.found.clear();
        any |= self.router.poll(now, POLL_BUDGET, &mut self.found);
        if !self.found.is_empty() {
            let mut found = std::mem::take(&mut self.found);
            for done in found.done.drain(..) {
                if announcer::is_notification(done.completion.token) {
                    self.announcer.completed(&done.completion, &self.links, &mut self.ended);
                } else {
                    self.completed(done);
                }
            }
            for event in found.events.drain(..) {
                self.happened(event);
            }
            for mut letter in found.letters.drain(..) {
                let bytes = std::mem::take(&mut letter.bytes);
                if !self.links.get(&letter.link).is_some_and(|peer| peer.say(letter.route, bytes)) {
                    self.router.unsaid(&letter, now);
                }
            }
            self.found = found;
            self.hand_over(now);
            self.announcer.hand_over(&mut self.router, now);
        }
        if self.next_deadline.is_some_and(|at| at <= now) {
            self.give_up_late(now);
            any = true;
        }
        if self.announcer.next_deadline().is_some_and(|at| at <= now) {
            self.announcer.give_up_late(&mut self.router, now, &mut self.ended);
            any = true;
        }
        if !self.warming.is_empty() {
            self.look_after_lanes(now);
        }
        any
    }

    /// How long may be slept.
    pub(crate) fn arm(&mut self, now: Instant) -> Arm {
        let arm = self.router.arm(now);
        self.until(arm)
    }

    /// No later than what the core itself waits for.
    fn until(&self, arm: Arm) -> Arm {
        match arm {
            Arm::Ready => Arm::Ready,
            Arm::Sleep { fd, until } => {
                let warming = self.warming.iter().map(|warm| warm.until);
                let deadlines = self.next_deadline.into_iter().chain(self.announcer.next_deadline());
                Arm::Sleep { fd, until: until.into_iter().chain(deadlines).chain(warming).min() }
            }
        }
    }

    /// When to step again at the latest, for a caller who sleeps until then; none: not before something comes.
    pub(crate) fn next_look(&mut self, now: Instant) -> Option<Instant> {
        let arm = self.arm(now);
        wake(arm, now)
    }

    /// The same for a caller who does not sleep.
    pub(crate) fn next_step(&mut self, now: Instant) -> Option<Instant> {
        let arm = self.router.due(now);
        wake(self.until(arm), now)
    }

    /// Takes no more transfers, and gives up all that are under way.
    pub(crate) fn give_all_up(&mut self, ring: &ArrayQueue<Command>, now: Instant) {
        self.closed.get_or_insert(TransferError::Closed { landed: Landed::Nothing, fenced: true });
        self.feed(ring, now);
        self.warming.clear();
        self.give_up(now, GivenUp::Closed, |_| true);
        self.announcer.give_all_up(&mut self.router, now, &mut self.ended);
    }

    /// Ends everything: what is still under way fails, and peers are not asked to fence it.
    pub(crate) fn close(&mut self, ring: &ArrayQueue<Command>, now: Instant) {
        self.feed(ring, now);
        self.router.close(now);
    }

    /// The transport has panicked: nobody knows what it still does. It is never touched again, what its transfers hold is kept for
    /// ever, and they end.
    pub(crate) fn fail(&mut self, why: &str, retention: &Retention) {
        let error = TransferError::WorkerFailed(Arc::from(why));
        tracing::error!(why, transfers = self.active.iter().flatten().count(), "a worker has failed");
        self.router.fail();
        let cause: Arc<str> = Arc::from(why);
        for Active { transfer, part, submitted, mut tally, .. } in self.active.drain(..).flatten() {
            retention.for_ever(transfer.take_leases(), why);
            for (position, op) in transfer.parts[part].ops.iter().enumerate() {
                let request = op.token.0 as usize;
                let never = OpError::new(OpErrorCode::Cancelled);
                let lost = OpError::new(OpErrorCode::Closed);
                if position >= submitted {
                    transfer.records.failed(request, 0, false, never, None);
                } else if transfer.records.failed(request, 0, true, lost, Some(cause.clone())) {
                    (tally.touched, tally.fenced) = (true, false);
                }
            }
            self.ended.push(Ended::Part { transfer, part, tally, error: Some(error.clone()) });
        }
        self.announcer.fail(&error, &mut self.ended);
        self.free.clear();
        self.waiting.clear();
        self.shares.clear();
        self.next_deadline = None;
        self.warming.clear();
        self.closed = Some(error);
    }

    fn begin(&mut self, transfer: Arc<TransferState>, part: usize) {
        if let Some(error) = self.closed.clone() {
            transfer.parts[part].ops.iter().for_each(|op| transfer.records.never(op.token.0 as usize));
            self.ended.push(Ended::Part { transfer, part, tally: Tally::default(), error: Some(error) });
            return;
        }
        let priority = transfer.parts[part].priority();
        let active = Active::new(transfer, part);
        let look = active.next_look();
        let slot = match self.free.pop() {
            Some(slot) => {
                self.active[slot] = Some(active);
                slot
            }
            None => {
                self.active.push(Some(active));
                self.active.len() - 1
            }
        };
        self.waiting.push(priority, slot);
        self.next_deadline = Some(self.next_deadline.map_or(look, |at| at.min(look)));
    }

    /// Hands requests to the transport until it takes no more; whether it took any.
    fn hand_over(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(&slot) = self.waiting.peek() {
            let Some(active) = self.active.get_mut(slot).and_then(Option::as_mut) else {
                self.waiting.pop();
                continue;
            };
            let all = &active.transfer.parts[active.part].ops;
            let left = (all.len() - active.submitted).min(SUBMIT_OPS);
            if left == 0 {
                self.waiting.pop();
                continue;
            }
            let ops = &mut self.ops;
            ops.clear();
            for (k, op) in all[active.submitted..][..left].iter().enumerate() {
                let link = op.link.slot as usize;
                if link >= self.shares.len() {
                    self.shares.resize_with(link + 1, Share::default);
                }
                if self.shares[link].held >= self.share {
                    break;
                }
                self.shares[link].held += 1;
                ops.push(Op { token: token(slot, active.submitted + k), ..*op });
            }
            let count = ops.len();
            if count == 0 {
                // Its peer has all that it may hold: others get their turn until something of it completes.
                self.waiting.pop();
                let next = &all[active.submitted];
                self.shares[next.link.slot as usize].parked.push(next.priority, slot);
                continue;
            }
            // SAFETY: the spans were made from slices of live regions, and the transfer holds a lease on each region until all
            // its parts are over, which is after the last completion of its ops. Tokens are a slot and a number, and a slot is
            // freed only when every op submitted under it has completed. What the ops of lists point at is kept
            // by the transfer for as long as its leases are.
            let taken = unsafe { self.router.submit(ops, active.transfer.demand, now) };
            if active.submitted == 0 && taken > 0 {
                active.transfer.begins(now);
            }
            for op in &all[active.submitted..][..taken] {
                active.transfer.records.begun(op.token.0 as usize);
            }
            active.submitted += taken;
            any |= taken > 0;
            for op in &ops[taken..] {
                self.shares[op.link.slot as usize].held -= 1;
            }
            if taken < count {
                break;
            }
            // So many requests a turn: a more urgent transfer does not wait until a long one is through.
            let last = active.submitted == all.len();
            self.waiting.take_turn(last);
        }
        any
    }

    fn completed(&mut self, done: Done) {
        let Done { completion, route, refusal, why, mut attempts } = done;
        let Token(token) = completion.token;
        let (slot, position) = ((token >> 32) as usize, (token & 0xffff_ffff) as usize);
        let Some(active) = self.active.get_mut(slot).and_then(Option::as_mut) else {
            debug_assert!(false, "a completion for no transfer");
            return;
        };
        let op = &active.transfer.parts[active.part].ops[position];
        let (request, link) = (op.token.0 as usize, op.link.slot as usize);
        let bytes = completion.bytes;
        let first = match completion.result {
            Ok(()) => active.transfer.records.done(request),
            Err(error) => {
                if error.code == OpErrorCode::Checksum {
                    self.damaged.fetch_add(1, Ordering::Relaxed);
                }
                let cause = match refusal {
                    Some(refusal) => {
                        let why = why.map_or(String::new(), |why| format!(": {why}"));
                        Some(Arc::from(format!("{refusal}{why}")))
                    }
                    None => why.or_else(|| self.links.get(&op.link).and_then(|status| status.cause())),
                };
                if active.error.is_none() {
                    active.error = Some(TransferError::Request { request, error, cause: cause.clone() });
                }
                let unfenced =
                    matches!(error.code, OpErrorCode::CancelledUnfenced | OpErrorCode::LinkBrokenUnfenced);
                active.tally.fenced &= !unfenced;
                active.transfer.records.failed(request, bytes, completion.touched, error, cause)
            }
        };
        if !first {
            debug_assert!(false, "a second completion for a request");
            return;
        }
        active.over += 1;
        active.tally.bytes += bytes;
        active.tally.whole += usize::from(bytes == op.local.length);
        active.tally.touched |= completion.touched;
        if let Some(route) = route {
            active.tally.routes.add(route, bytes);
        }
        if !attempts.is_empty() {
            attempts.iter_mut().for_each(|attempt| attempt.request = request);
            active.transfer.tried(attempts);
        }
        self.end_if_over(slot);
        self.resume(link);
    }

    /// Something of a link has completed: the first transfer that waits for its share goes on.
    fn resume(&mut self, link: usize) {
        let Some(share) = self.shares.get_mut(link) else { return };
        share.held = share.held.saturating_sub(1);
        while let Some(slot) = share.parked.take_turn(true) {
            // Others were given up meanwhile.
            let goes_on = |a: &Active| a.submitted < a.ops().len();
            if self.active.get(slot).and_then(Option::as_ref).is_some_and(goes_on) {
                let priority = self.active[slot].as_ref().map_or(Priority::Normal, Active::priority);
                self.waiting.push_first(priority, slot);
                return;
            }
        }
    }

    fn end_if_over(&mut self, slot: usize) {
        let Some(active) = self.active.get_mut(slot).and_then(Option::as_mut) else { return };
        let total = active.ops().len();
        if active.over < total {
            return;
        }
        let Some(active) = self.active[slot].take() else { return };
        self.free.push(slot);
        let cause = match &active.error {
            None => None,
            Some(TransferError::Request { cause: Some(cause), .. }) => Some(cause.clone()),
            _ => {
                active.ops().first().and_then(|op| self.links.get(&op.link)).and_then(|status| status.cause())
            }
        };
        // Of this part; of all parts it is said at the end.
        let landed = active.tally.landed(total);
        let given_up =
            active.given_up.error(&active.transfer, (landed, active.tally.fenced), active.peer, cause);
        let error = active.error.map(|error| given_up.unwrap_or(error));
        let Active { transfer, part, tally, .. } = active;
        self.ended.push(Ended::Part { transfer, part, tally, error });
    }

    /// Whether there are parts to be told that they are over.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// The parts that are over, for `told`'s memory.
    pub(crate) fn swap_ended(&mut self, told: &mut Vec<Ended>) {
        std::mem::swap(&mut self.ended, told);
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::LinkUp { link } => {
                if let Some(status) = self.links.get(&link) {
                    status.up();
                }
            }
            Event::LinkDown { link, error } => {
                if let Some(status) = self.links.get(&link) {
                    status.down(&error);
                }
            }
            // What transports say does not come by events.
            Event::Control { .. } => {}
        }
    }

    fn cancel(&mut self, transfer: &Arc<TransferState>, now: Instant) {
        self.give_up(now, GivenUp::Cancelled, |a| Arc::ptr_eq(&a.transfer, transfer));
        self.announcer.cancel(&mut self.router, transfer, now, &mut self.ended);
    }

    fn give_up_late(&mut self, now: Instant) {
        self.next_deadline = None;
        self.look_at_peers(now);
        self.give_up(now, GivenUp::Deadline, |a| a.transfer.deadline <= now);
        let next = self.active.iter().flatten().filter(|a| a.given_up == GivenUp::No);
        self.next_deadline = next.map(Active::next_look).min();
    }

    /// Has the peers of transfers that are half-way to their deadlines asked for a sign, and looks at those of late ones before giving
    /// these up closes lanes: once a link, however many there are.
    fn look_at_peers(&mut self, now: Instant) {
        let mut known: HashMap<LinkId, Signs> = HashMap::new();
        let due = |a: &&mut Active| a.given_up == GivenUp::No && a.next_look() <= now;
        for active in self.active.iter_mut().flatten().filter(due) {
            let Some(link) = active.awaited_link() else { continue };
            let pulse = self.links.get(&link).map(|status| &status.pulse);
            if !std::mem::replace(&mut active.asked, true) {
                pulse.inspect(|pulse| pulse.ask());
            }
            if active.transfer.deadline <= now {
                let signs = *known.entry(link).or_insert_with(|| self.router.signs(link, now));
                let control = pulse.map(|pulse| pulse.heard_ago(now));
                active.peer = PeerCondition::judge(signs, control, active.transfer.after);
            }
        }
    }

    /// Tells those who wait for lanes how far it is.
    fn look_after_lanes(&mut self, now: Instant) {
        let mut at = 0;
        while let Some(warm) = self.warming.get_mut(at) {
            let (link, limit) = (warm.link, warm.limit);
            let end = warm.look(self.router.lanes(link, now), now);
            if end.is_none() && !warm.is_given_up() {
                at += 1;
                continue;
            }
            let warm = self.warming.swap_remove(at);
            let Some(end) = end else { continue };
            let cause = || match self.links.get(&link).and_then(|status| status.cause()) {
                Some(cause) => Some(cause.to_string()),
                None => Some(PeerCondition::judge(self.router.signs(link, now), None, limit)?.to_string()),
            };
            warm.end(end, cause);
        }
    }

    fn give_up(&mut self, now: Instant, why: GivenUp, which: impl Fn(&Active) -> bool) {
        for slot in 0..self.active.len() {
            let Some(active) = self.active[slot].as_mut() else { continue };
            if active.given_up != GivenUp::No || !which(active) {
                continue;
            }
            active.given_up = why;
            let submitted = active.submitted;
            let left = active.ops().len() - submitted;
            if left > 0 {
                // What the transport has not taken never begins.
                for op in &active.transfer.parts[active.part].ops[submitted..] {
                    active.transfer.records.never(op.token.0 as usize);
                }
                active.submitted += left;
                active.over += left;
                let error = orbit_te_transport::OpError::new(OpErrorCode::Cancelled);
                active.error.get_or_insert(TransferError::Request { request: 0, error, cause: None });
            }
            if submitted > 0 {
                self.router.cancel(token(slot, 0)..=token(slot, submitted - 1), now);
            }
            self.end_if_over(slot);
        }
    }
}

fn wake(arm: Arm, now: Instant) -> Option<Instant> {
    match arm {
        Arm::Ready => Some(now),
        Arm::Sleep { until, .. } => until,
    }
}

fn token(slot: usize, position: usize) -> Token {
    Token(((slot as u64) << 32) | position as u64)
}
