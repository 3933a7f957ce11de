//! How a row makes things happen. Rule: every wait has a wall-clock limit and ends with a report, never with a hang; what
//! was not accepted is offered again.
//!
//! It does not check how fast anything is. A transport that spins without progress is found by the rows about sleeping.

#![allow(unsafe_code)]

use crate::op::{LinkId, Op, Token};
use crate::progress::{Arm, Completion, Event, Progress};
use crate::testing::harness::Harness;
use crate::testing::ledger::Stage;
use orbit_te_memory::{MemoryError, Region, Registry};
use std::time::{Duration, Instant};

/// The budget of an ordinary poll.
const BUDGET: usize = 64;

impl Harness<'_> {
    /// Submits ops: offers them now, and what was not taken again with every step.
    pub fn submit(&mut self, ops: &[Op]) {
        self.enter(ops);
        self.waiting.extend(ops);
        self.offer();
    }

    /// Has an op carried out by one call, and says whether it was. If not, it may be submitted.
    pub fn at_once(&mut self, op: &Op) -> bool {
        self.enter(std::slice::from_ref(op));
        // SAFETY: as in `offer`.
        let done = unsafe { self.pair.initiator().at_once(op, Instant::now()) }.is_ok();
        if done {
            self.ledger.accept(op.token);
            let completion =
                Completion { token: op.token, result: Ok(()), bytes: op.local.length, touched: true };
            let mut progress = Progress::with_capacity(1);
            progress.completions.push(completion);
            self.take(&mut progress, 1);
        } else {
            self.ledger.take_back(op.token);
        }
        done
    }

    /// Enters ops that a row is about to offer.
    fn enter(&mut self, ops: &[Op]) {
        for op in ops {
            let entry = self.ledger.get(op.token);
            let ours = &self.memories[entry.parts[0].local.mem.0].region;
            let begin = ours.as_ptr().as_ptr() as u64;
            let inside = |address: u64, length: u64| {
                let end = address.checked_add(length);
                address >= begin && end.is_some_and(|end| end <= begin + ours.len())
            };
            let within = if op.pieces.is_none() {
                inside(op.local.address, op.local.length)
            } else {
                assert!(op.pieces == entry.slices.view(), "a row submits a list that is not the ledger's");
                let lengths = entry.slices.table.iter().map(|piece| piece.length());
                entry.slices.addresses.iter().zip(lengths).all(|(address, length)| inside(*address, length))
            };
            assert!(within, "a row submits an op whose local span is outside of its region");
            self.ledger.queue(op.token);
        }
    }

    /// Offers what waits, once. Says how many were accepted.
    pub fn offer(&mut self) -> usize {
        if self.waiting.is_empty() {
            return 0;
        }
        let ops = self.waiting.make_contiguous();
        // SAFETY: `submit`, which alone fills `waiting`, found each span and each piece to lie in the region on which the
        // ledger's entry holds a lease until the completion, or for ever when the row fails; host buffers are readable and
        // writable. The ledger keeps a list's slices as well, and gives them out for changes only when the op is not in
        // flight. No token is there twice or in flight: the ledger queues an op once.
        let taken = unsafe { self.pair.initiator().submit(ops, Instant::now()) };
        let offered = self.waiting.len();
        if taken > offered {
            self.fail(&format!("`submit` says that it took {taken} of {offered} ops"));
        }
        for op in self.waiting.drain(..taken) {
            self.ledger.accept(op.token);
        }
        taken
    }

    /// Offers, lets the targets work, and polls once. Gives what completed.
    pub fn step(&mut self) -> Vec<Completion> {
        self.offer();
        self.pair.pump();
        self.poll(BUDGET)
    }

    /// Lets the targets work, and nothing else.
    pub fn pump(&mut self) {
        self.pair.pump();
    }

    /// Polls the initiator once, and nothing else. Gives what completed.
    pub fn poll(&mut self, budget: usize) -> Vec<Completion> {
        let mut progress = std::mem::take(&mut self.progress);
        progress.clear();
        let happened = self.pair.initiator().poll(Instant::now(), budget, &mut progress);
        if !happened && !progress.is_empty() {
            self.fail("`poll` gave something out and says that nothing happened");
        }
        let completions = self.take(&mut progress, budget);
        self.progress = progress;
        completions
    }

    /// Enters what a poll gave out.
    pub fn take(&mut self, progress: &mut Progress, budget: usize) -> Vec<Completion> {
        let completions = progress.completions.clone();
        if completions.len() > budget {
            let count = completions.len();
            self.fail(&format!("`poll` gave {count} completions on a budget of {budget}"));
        }
        for completion in &completions {
            if let Err(why) = self.ledger.complete(*completion) {
                self.fail(&why);
            }
            self.settle(completion);
        }
        for event in progress.events.drain(..) {
            if self.events.len() < 40 {
                let what = match &event {
                    Event::Control { link, bytes } => format!("Control of {link:?}: {} bytes", bytes.len()),
                    other => format!("{other:?}"),
                };
                self.events.push(format!("{:>6} ms {what}", self.began.elapsed().as_millis()));
            }
            match event {
                Event::LinkUp { link } => {
                    let news = self.news.entry(link).or_default();
                    (news.ups, news.is_up) = (news.ups + 1, true);
                }
                Event::LinkDown { link, .. } => {
                    let news = self.news.entry(link).or_default();
                    (news.downs, news.is_up) = (news.downs + 1, false);
                }
                Event::Control { link, bytes } => self.pair.carry(link, bytes),
            }
        }
        completions
    }

    /// Repeats `done`, which itself steps or polls, until it says that it is done; fails at the limit.
    #[track_caller]
    pub fn repeat_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + self.limit;
        let (mut idle, mut open) = (0u32, 0);
        while !done(self) {
            if Instant::now() > deadline {
                self.fail(&format!("{what}: not within {} ms", self.limit.as_millis()));
            }
            let before = std::mem::replace(&mut open, self.ledger.in_flight() + self.waiting.len());
            idle = if before == open { idle + 1 } else { 0 };
            pause(idle);
        }
    }

    /// Steps until `done` says so; fails at the limit.
    #[track_caller]
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        self.repeat_until(what, |h| {
            done(h) || {
                h.step();
                done(h)
            }
        });
    }

    /// Steps until every op is completed; fails at the limit, or as soon as the transport has forgotten one.
    #[track_caller]
    pub fn run(&mut self) {
        self.run_until("all ops complete", |h| {
            if h.ledger.in_flight() > 0 && h.is_drained() {
                h.fail("the transport says that it is drained, and ops that it accepted have not completed");
            }
            h.waiting.is_empty() && h.ledger.in_flight() == 0
        });
    }

    /// Submits ops and steps until every op is completed.
    #[track_caller]
    pub fn run_all(&mut self, ops: &[Op]) {
        self.submit(ops);
        self.run();
    }

    /// Steps for the pair's quiet time, in which nothing is to complete twice and no memory to change.
    pub fn watch(&mut self) {
        let end = Instant::now() + self.quiet;
        let mut rounds = 0;
        while Instant::now() < end || rounds < 40 {
            self.step();
            rounds += 1;
            pause(rounds);
        }
        self.verify();
    }

    /// Waits until a link is up.
    #[track_caller]
    pub fn wait_up(&mut self, link: LinkId) {
        self.run_until("the link comes up", |h| h.news(link).is_up);
    }

    /// A fresh link to the target that is up.
    #[track_caller]
    pub fn connect_up(&mut self) -> LinkId {
        let link = self.connect();
        self.wait_up(link);
        link
    }

    /// As `Transport::poll`, with nothing entered; give what is found to [`Harness::take`].
    pub fn poll_raw(&mut self, budget: usize, progress: &mut Progress) -> bool {
        self.pair.initiator().poll(Instant::now(), budget, progress)
    }

    /// How the transport wants to wait.
    pub fn arm(&mut self) -> Arm {
        self.pair.initiator().arm(Instant::now())
    }

    /// Submits an empty slice.
    pub fn submit_nothing(&mut self) {
        // SAFETY: there is no op, so no span.
        let taken = unsafe { self.pair.initiator().submit(&[], Instant::now()) };
        if taken != 0 {
            self.fail(&format!("`submit` took {taken} of no ops"));
        }
    }

    /// Whether the transport says that nothing is in flight and nothing waits to be polled.
    pub fn is_drained(&mut self) -> bool {
        self.pair.initiator().is_drained()
    }

    /// Closes a link.
    pub fn disconnect(&mut self, link: LinkId) {
        self.pair.initiator().disconnect(link, Instant::now());
    }

    /// Makes a link fail.
    pub fn break_link(&mut self, link: LinkId) {
        self.pair.break_link(link);
    }

    /// Closes the transport.
    pub fn close(&mut self) {
        self.pair.initiator().close(Instant::now());
    }

    /// How many ops are accepted and not completed.
    pub fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    /// Whether the transport took this op.
    pub fn was_accepted(&self, op: &Op) -> bool {
        matches!(self.ledger.get(op.token).stage, Stage::Accepted | Stage::Done(_))
    }

    /// Whether this op is completed.
    pub fn is_done(&self, op: &Op) -> bool {
        matches!(self.ledger.get(op.token).stage, Stage::Done(_))
    }

    /// Offers no more what was not accepted.
    pub fn drop_not_accepted(&mut self) {
        for op in self.waiting.drain(..) {
            self.ledger.withdraw(op.token);
        }
    }

    /// Gives up an op.
    pub fn cancel(&mut self, token: Token) {
        self.pair.initiator().cancel(token..=token, Instant::now());
    }

    /// Ends the row: everything completes, nothing is left behind, memory is as the model says, and every region can be
    /// withdrawn at once.
    #[track_caller]
    pub fn finish(mut self) {
        self.run();
        self.watch();
        if !self.is_drained() {
            self.fail("every op completed, and the transport says that it is not drained");
        }
        self.release_all();
        let after = (self.here.registry.len(), self.there.registry.len());
        assert_eq!(after, self.regions_before, "regions left in the registries");
    }

    /// Withdraws all memory, of which no op may be in flight. What [`crate::testing::Mem`] named is gone.
    #[track_caller]
    pub fn release_all(&mut self) {
        self.run_until("all leases are given back", |h| h.memories.iter().all(|m| m.region.leases() == 0));
        self.verify();
        while let Some(memory) = self.memories.pop() {
            if let Some(key) = memory.remote {
                self.here.domain.forget(key);
            }
            if let Err(why) = self.retire(&memory.side.registry, &memory.region) {
                self.fail(&format!("{} can't be retired: {why}", memory.name));
            }
            if let Err(why) = memory.side.domain.deregister(&memory.region, memory.local) {
                self.fail(&format!("{} can't be deregistered: {why}", memory.name));
            }
        }
    }
}

impl Harness<'_> {
    /// Retires a region that no op in flight touches. Whoever was given a way to it of his own may have to say first that he has it no
    /// more, so both sides work meanwhile.
    ///
    /// # Errors
    /// What the registry says after [`Harness::limit`].
    pub fn retire(&mut self, registry: &Registry, region: &Region) -> Result<(), MemoryError> {
        if registry.retire(region, Duration::ZERO).is_ok() {
            return Ok(());
        }
        let limit = self.limit;
        std::thread::scope(|scope| {
            let retiring = scope.spawn(|| registry.retire(region, limit));
            while !retiring.is_finished() {
                self.step();
                pause(20);
            }
            match retiring.join() {
                Ok(answer) => answer,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

/// Gives others the processor when nothing happens.
fn pause(idle: u32) {
    if idle > 200 {
        std::thread::sleep(Duration::from_micros(100));
    } else if idle > 8 {
        std::thread::yield_now();
    }
}
