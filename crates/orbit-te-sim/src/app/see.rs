//! What the application sees: how its calls and transfers ended, what was delivered, and what memory holds. Rule: everything that is seen
//! goes to the checkers, and nothing is begun here.

use super::App;
use crate::check::bytes::{exact, mixture};
use crate::check::{Checker, ends, leases};
use crate::model::{Memory, Moving, Opened, Opening, Request, Slot};
use crate::plant::Plant;
use crate::sys;
use orbit_te::route::RouteId;
use orbit_te::simulation::Process;
use orbit_te::{Landed, Notifications, Receipt, RequestState, TransferError};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// From one renewal of a memory whose slots were lost to the next.
const RENEW_NS: u64 = 1_750_000_000;

impl App {
    /// Takes what has come.
    pub(super) fn collect(&mut self, life: usize, process: &Process, notes: &mut Notifications) {
        let engine = process.engine();
        for memory in 0..self.memories.len() {
            let Memory { life: of, retiring, revoking, .. } = self.memories[memory];
            if of == life && retiring {
                self.go_on_retiring(memory, engine);
            } else if of == life && revoking {
                self.go_on_revoking(memory, engine);
            }
        }
        self.go_on_with_grants(life, engine);
        self.collect_opened(life);
        while let Some(note) = notes.try_recv() {
            self.delivered(life, &note.payload);
        }
        let waiting = std::mem::take(&mut self.notifying);
        for mut notifying in waiting {
            match poll(&mut notifying.pending) {
                Some(Ok(())) if notifying.life == life => self.net.lock().notes.answered(notifying.number),
                None => self.notifying.push(notifying),
                Some(_) => {}
            }
        }
        let moving = std::mem::take(&mut self.moving);
        for moving in moving {
            let result = moving
                .transfer
                .as_ref()
                .filter(|_| moving.life == life)
                .and_then(orbit_te::Transfer::try_result);
            match result {
                Some(result) => self.ended(&moving, &result),
                None => {
                    if moving.life == life {
                        let stalled = self.stalled(life) - moving.stalled_ns;
                        let report = &mut self.net.lock().report;
                        ends::check(moving.number, moving.deadline_ns, self.bound_ns, stalled, report);
                    }
                    self.moving.push(moving);
                }
            }
        }
        for memory in 0..self.memories.len() {
            if self.memories[memory].life == life && self.is_let_go(memory) {
                self.renew(memory);
            }
        }
    }

    /// Whether memory that no peer has, and of which transfers had some whose handles were dropped, is the application's own again.
    /// Not too often: a run in which slots are never scarce takes several times as long.
    fn is_let_go(&self, memory: usize) -> bool {
        let of = &self.memories[memory];
        let lost = of.slots.contains(&Slot::Lost) && !of.slots.contains(&Slot::Busy);
        lost && of.exposed.is_none()
            && !of.retired
            && !of.revoking
            && of.handle.leases() == 0
            && self.net.lock().now_ns >= of.renewed_ns + RENEW_NS
    }

    fn collect_opened(&mut self, life: usize) {
        let waiting = std::mem::take(&mut self.opening);
        for mut opening in waiting {
            if opening.life != life {
                self.opening.push(opening);
                continue;
            }
            match poll(&mut opening.pending) {
                None => self.opening.push(opening),
                Some(Err(_)) => self.not_opened(&opening),
                Some(Ok(segment)) => {
                    let epoch = self.memories[opening.memory].epoch;
                    // By its name another region may have been found, after a restart.
                    let named = self.memories[opening.memory].exposed.as_ref().map(|(name, _)| name.as_str());
                    if named == Some(segment.name())
                        && segment.len() == self.memories[opening.memory].handle.len()
                    {
                        self.counts.opened += 1;
                        let Opening { memory, by_token, token_ends_ns, .. } = opening;
                        let number = self.granted(&opening);
                        self.opened.push(Opened {
                            number,
                            life,
                            segment,
                            memory,
                            epoch,
                            by_token,
                            token_ends_ns,
                            revoked: false,
                        });
                    }
                }
            }
        }
    }

    fn delivered(&mut self, life: usize, payload: &[u8]) {
        let number = payload.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mut net = self.net.lock();
        let net_now = net.now_ns;
        net.trace.note("delivered", &[net_now, life as u64, number]);
        self.counts.notifications += 1;
        if net.plant_now(Plant::DroppedNotification) {
            return;
        }
        let twice = net.plant_now(Plant::DoubleNotification);
        for _ in 0..1 + usize::from(twice) {
            let net = &mut *net;
            net.notes.delivered(number, life, &mut net.report);
        }
        drop(net);
        // A notification that is bound to a transfer comes after its bytes.
        let bound = self.moving.iter().find(|m| m.note == Some(number));
        for request in bound.iter().flat_map(|m| &m.requests).filter(|r| r.write) {
            let memory = &self.memories[request.remote.memory];
            if memory.alive && Some(memory.epoch) == request.epoch {
                let actual = self.peek(&request.remote);
                let report = &mut self.net.lock().report;
                exact("a write when its notification came", &actual, &request.data, report);
            }
        }
    }

    fn ended(&mut self, moving: &Moving, result: &Result<Receipt, TransferError>) {
        if let (Ok(_), Some(number)) = (result, moving.note) {
            self.net.lock().notes.answered(number);
        }
        match result {
            Ok(receipt) => {
                self.counts.succeeded += 1;
                let by = |routes: &[RouteId]| {
                    u64::from(receipt.route.is_some_and(|route| routes.contains(&route)))
                };
                self.counts.same_host += by(&[RouteId::SHM, RouteId::PROCESS_VM]);
                self.counts.rdma += by(&[RouteId::RDMA]);
                self.counts.retried += u64::from(receipt.retries);
            }
            Err(_) => self.counts.failed += 1,
        }
        {
            let again = moving.transfer.as_ref().and_then(orbit_te::Transfer::try_result);
            let mut net = self.net.lock();
            let now_ns = net.now_ns;
            net.trace.note("ended", &[now_ns, moving.number, u64::from(result.is_ok())]);
            if again.map(|r| r.err()) != Some(result.as_ref().err().cloned()) {
                net.report.violated(Checker::ExactlyOnce, format!("transfer {} ended twice", moving.number));
            }
        }
        let whole = matches!(result, Ok(_) | Err(TransferError::Notification(_)));
        let receipt = moving.transfer.as_ref().and_then(orbit_te::Transfer::receipt);
        let late = receipt.as_ref().is_none_or(|receipt| !receipt.fenced);
        for request in &moving.requests {
            let what =
                format!("transfer {} ({})", moving.number, if request.write { "write" } else { "read" });
            let records = receipt.as_ref().map(|receipt| &receipt.records);
            let states = records.iter().flat_map(|all| request.records.clone().map(|at| all.get(at)));
            let landed = if whole { Landed::Whole } else { together(states.map(|s| landed(s.as_ref()))) };
            let damaged = self.was_damaged(request);
            self.check_remote(request, landed, late, damaged, &what);
            let actual = self.peek(&request.local);
            let report = &mut self.net.lock().report;
            match (request.write, landed) {
                (true, _) | (false, Landed::Whole) => exact(&what, &actual, &request.data, report),
                (false, Landed::Nothing) => exact(&what, &actual, &request.old, report),
                (false, Landed::Partly) if damaged => {}
                (false, Landed::Partly) => mixture(&what, &actual, &request.old, &request.data, report),
            }
        }
        for request in &moving.requests {
            // At once, so that a touch that comes too late takes or leaves bytes that nobody expects.
            let bytes = self.fresh(request.data.len());
            self.poke(&request.local, &bytes);
            self.set_slots(&request.local, Slot::Free);
        }
    }

    /// Whether a byte of it was changed on its way.
    fn was_damaged(&mut self, request: &Request) -> bool {
        let Memory { life, address, .. } = self.memories[request.local.memory];
        let runs = request.local.runs.iter().map(|(at, length)| (address + *at as u64, *length as u64));
        self.net.lock().damage.take(life, runs)
    }

    fn check_remote(&mut self, request: &Request, landed: Landed, late: bool, damaged: bool, what: &str) {
        let area = &request.remote;
        if landed == Landed::Whole && request.stale {
            let why = format!("{what} succeeded by a right that was over before");
            self.net.lock().report.violated(Checker::Bytes, why);
        }
        let of = &self.memories[area.memory];
        if !request.write || !of.alive || Some(of.epoch) != request.epoch {
            return self.set_slots(area, Slot::Free);
        }
        let actual = self.peek(area);
        {
            let report = &mut self.net.lock().report;
            match landed {
                Landed::Whole => exact(what, &actual, &request.data, report),
                Landed::Nothing if !late => exact(what, &actual, &request.old, report),
                _ if damaged => {}
                _ => mixture(what, &actual, &request.old, &request.data, report),
            }
        }
        if landed != Landed::Whole && late {
            self.may_land(area, &request.data, damaged);
            return self.set_slots(area, Slot::Lost);
        }
        let shadow = &mut self.memories[area.memory].shadow;
        area.split(&actual).for_each(|(offset, bytes)| shadow.set(offset, bytes));
        self.set_slots(area, Slot::Free);
    }

    /// A life is over, with all that it had.
    pub(crate) fn crashed(&mut self, life: usize) {
        self.memories.iter_mut().filter(|m| m.life == life).for_each(|m| m.alive = false);
        self.opened.retain(|o| o.life != life);
        self.opening.retain(|o| o.life != life);
        self.lists.retain(|l| l.life != life);
        self.notifying.retain(|n| n.life != life);
        let (gone, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.moving).into_iter().partition(|m| m.life == life);
        self.moving = left;
        gone.iter().for_each(|moving| self.lose(moving, true));
    }

    /// A life whose engine was shut down: all of its transfers have ended.
    pub(crate) fn check_left(&mut self, life: usize, process: &Process, notes: &mut Notifications) {
        self.collect(life, process, notes);
        let left = self.moving.iter().filter(|m| m.life == life && m.transfer.is_some()).count();
        let report = &mut self.net.lock().report;
        ends::at_end(life, left.max(process.under_way()), report);
    }

    /// Nobody can touch its memory any more.
    pub(crate) fn check_given_back(&mut self, life: usize) {
        let mut net = self.net.lock();
        let net = &mut *net;
        for memory in self.memories.iter().filter(|m| m.life == life) {
            leases::check(life, &memory.handle, &mut net.report);
            net.map.given_back(memory.address);
        }
    }

    /// Whether everything that was begun has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.moving.is_empty() && self.opening.is_empty() && self.notifying.is_empty()
    }

    /// At the end, for a life that lives.
    pub(crate) fn check_end(&mut self, life: usize, process: &Process, notes: &mut Notifications) {
        while let Some(note) = notes.try_recv() {
            self.delivered(life, &note.payload);
        }
        let mut net = self.net.lock();
        let net = &mut *net;
        ends::at_end(life, process.under_way(), &mut net.report);
        net.notes.check(life, &mut net.report);
        for (number, memory) in self.memories.iter().enumerate().filter(|(_, m)| m.life == life) {
            leases::check(life, &memory.handle, &mut net.report);
            let mut actual = Vec::new();
            sys::peek(memory.address, memory.shadow.expected.len(), &mut actual);
            memory.shadow.check(&format!("memory {number} at the end"), &actual, &mut net.report);
        }
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// What the engine says of one request's bytes.
fn landed(state: Option<&RequestState>) -> Landed {
    match state {
        Some(RequestState::Done { .. }) => Landed::Whole,
        Some(RequestState::Failed { landed, .. } | RequestState::Cancelled { landed, .. }) => *landed,
        _ => Landed::Partly,
    }
}

/// What became of the bytes of several requests together.
fn together(mut each: impl Iterator<Item = Landed>) -> Landed {
    let first = each.next().unwrap_or(Landed::Partly);
    if each.all(|landed| landed == first) { first } else { Landed::Partly }
}
