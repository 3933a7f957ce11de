//! Plants: a decorator around a real transport that breaks one promise, so that a test can show that the suite finds it.
//! Rule: one plant, one breach; everything else is passed through as it is.
//!
//! It does not judge. Plants at the target's side (rights, withdrawn regions) are played from here, with the target's
//! registry, for transports whose remote key begins with the region's number.

#![allow(unsafe_code)]

mod plant;

pub use plant::Plant;

use crate::capability::Capabilities;
use crate::error::{OpError, OpErrorCode, TransportError};
use crate::mailbox::Notice;
use crate::op::{LinkId, Op, OpKind, Pieces, Token};
use crate::progress::{Arm, Completion, Progress, Undone};
use crate::signs::{LinkLanes, Signs};
use crate::transport::Transport;
use orbit_te_memory::{LocalSpan, Region, RegionId, Registry};
use orbit_te_wire::{PeerId, Piece};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

/// The addresses and the pieces of an op.
type List = (Vec<u64>, Vec<Piece>);

/// A transport with one plant in it.
pub struct Faulty<T> {
    inner: T,
    plant: Plant,
    target: Arc<Registry>,
    /// What the transport below is doing, as the caller gave it.
    ops: HashMap<Token, Op>,
    /// Copies of the lists of ops, so that plants find them after the completion.
    lists: Vec<List>,
    /// Regions of the target that ops named; kept for plants that reach them when they should not.
    regions: HashMap<RegionId, Region>,
    /// Completions to be given out by the next polls.
    extra: VecDeque<Completion>,
    /// Tokens whose completion from below is swallowed.
    hidden: HashSet<Token>,
    /// What is done in so many polls.
    later: Vec<(u32, Op)>,
    /// How many completions passed.
    count: u64,
    /// The link whose failure is passed on to another.
    infected: Option<LinkId>,
    last_sleep: Option<Arm>,
}

impl<T: Transport> Faulty<T> {
    /// Plants a breach in a transport.
    ///
    /// # Safety
    /// The result does not keep the promises of [`Transport`]. Whoever uses it keeps all memory that its ops name, at both
    /// sides, and their lists, until it is dropped; the suite's harness does, in a row that fails.
    pub unsafe fn new(inner: T, plant: Plant, target: Arc<Registry>) -> Faulty<T> {
        Faulty {
            inner,
            plant,
            target,
            ops: HashMap::new(),
            lists: Vec::new(),
            regions: HashMap::new(),
            extra: VecDeque::new(),
            hidden: HashSet::new(),
            later: Vec::new(),
            count: 0,
            infected: None,
            last_sleep: None,
        }
    }

    fn success(op: &Op) -> Completion {
        Completion { token: op.token, result: Ok(()), bytes: op.local.length, touched: true }
    }

    /// The op with a copy of its list instead of the caller's.
    fn keep_list(&mut self, op: &Op) -> Op {
        let Some(pieces) = op.pieces else { return *op };
        // SAFETY: the op is being submitted, so its slices live.
        let (local, remote) = unsafe { (pieces.local().to_vec(), pieces.remote().to_vec()) };
        self.with_list(op, local, remote)
    }

    /// The op with this list, which is kept.
    fn with_list(&mut self, op: &Op, local: Vec<u64>, remote: Vec<Piece>) -> Op {
        // The view is of what the vectors own, which stays where it is when they are moved.
        let pieces = Pieces::new(&local, &remote);
        self.lists.push((local, remote));
        Op { pieces, ..*op }
    }

    /// Address, offset in the region and length of each run of an op whose list is one of ours.
    fn runs(op: &Op) -> Vec<(u64, u64, u64)> {
        let Some(pieces) = op.pieces else {
            return vec![(op.local.address, op.remote.offset, op.local.length)];
        };
        // SAFETY: ops that plants keep have lists of ours, which live as long as the transport.
        let (local, remote) = unsafe { (pieces.local(), pieces.remote()) };
        local.iter().zip(remote).map(|(address, piece)| (*address, piece.offset(), piece.length())).collect()
    }

    /// Copies the bytes of a write into the target's region, whether it is allowed or not; `extra` bytes more than asked, behind
    /// its first run; and of a list no more than its first `most` pieces.
    fn force(&self, op: &Op, extra: u64, most: usize) {
        let Some(region) = self.regions.get(&RegionId(op.remote.key.0[0])) else { return };
        for (at, (address, offset, length)) in Self::runs(op).into_iter().take(most).enumerate() {
            if offset.checked_add(length).is_none_or(|end| end > region.len()) {
                return;
            }
            // SAFETY: the range was just checked against the region, whose clone keeps its backing; the local span is kept by the
            // duty of `new`, also after the completion was given out. The bytes behind the region are guard bytes of the same
            // backing, of which there are more than `extra`, which is at most one.
            unsafe {
                let to = region.as_ptr().as_ptr().add(offset as usize);
                std::ptr::copy(address as usize as *const u8, to, length as usize);
                if extra > 0 && at == 0 {
                    to.add(length as usize).write(0xff);
                }
            }
        }
    }

    /// What goes to the transport below instead of a list.
    fn alter_list(&mut self, op: &Op) -> Op {
        let Some(pieces) = op.pieces else { return *op };
        // SAFETY: the op is being submitted, so its slices live.
        let (mut local, remote) = unsafe { (pieces.local().to_vec(), pieces.remote().to_vec()) };
        match self.plant {
            Plant::SwapsPieces => {
                let lengths = remote.windows(2).position(|two| two[0].length() == two[1].length());
                let Some(at) = lengths else { return *op };
                local.swap(at, at + 1);
                self.with_list(op, local, remote)
            }
            Plant::BelievesLength => {
                let total = remote.iter().map(Piece::length).fold(0, u64::saturating_add);
                Op { local: LocalSpan { length: total, ..op.local }, ..*op }
            }
            _ => *op,
        }
    }

    /// The error as a plant tells it.
    fn alter_error(&self, mut error: OpError) -> OpError {
        match (self.plant, &mut error.mismatch) {
            (Plant::ForgetsThePiece, _) => error.piece = None,
            (Plant::SumsAreAlike, Some(mismatch)) => mismatch.found = mismatch.expected,
            (Plant::BlamesOtherBytes, Some(mismatch)) => mismatch.length = 0,
            _ => {}
        }
        error
    }

    /// What becomes of a completion from below: itself, another, or nothing.
    fn alter(&mut self, completion: Completion) -> Option<Completion> {
        self.count += 1;
        let op = self.ops.remove(&completion.token);
        if self.hidden.remove(&completion.token) {
            return None;
        }
        let Some(op) = op else { return Some(completion) };
        let code = completion.result.err().map(|error| error.code);
        let is_write = op.kind == OpKind::Write;
        match (self.plant, code) {
            (Plant::CompletesTwice, None) if self.count % 10 == 0 => self.extra.push_back(completion),
            (Plant::LosesCompletion, None) if self.count % 10 == 0 => return None,
            (Plant::TouchesAfterRead, None) if !is_write => self.later.push((2, op)),
            (Plant::SendsAgain, None) if is_write => self.later.push((4, op)),
            (Plant::OverrunsTarget, None) if is_write => self.force(&op, 1, usize::MAX),
            (Plant::MissesLastByte, None) => return Some(Self::success(&op)),
            (Plant::CountsTooFew, None) => {
                return Some(Completion { bytes: completion.bytes - 1, ..completion });
            }
            (Plant::IgnoresRights, Some(OpErrorCode::AccessDenied)) if is_write => {
                self.force(&op, 0, usize::MAX);
                return Some(Self::success(&op));
            }
            (Plant::WritesThenRefuses, Some(OpErrorCode::AccessDenied)) if is_write => {
                self.force(&op, 0, usize::MAX)
            }
            (Plant::LandsAfterRetire, Some(OpErrorCode::UnknownRegion)) if is_write => {
                self.force(&op, 0, usize::MAX)
            }
            (Plant::SucceedsAfterRetire, Some(OpErrorCode::UnknownRegion)) if is_write => {
                self.later.push((400, op));
                return None;
            }
            (Plant::OverrunsPiece, None) if is_write && op.pieces.is_some() => {
                self.force(&op, 1, usize::MAX);
            }
            (Plant::AllowsOverlap, Some(OpErrorCode::Overlap)) => {
                self.force(&op, 0, usize::MAX);
                return Some(Self::success(&op));
            }
            (Plant::ChecksAsItGoes, Some(_)) if is_write => {
                let good = completion.result.err().and_then(|error| error.piece);
                self.force(&op, 0, good.unwrap_or_default() as usize);
            }
            (Plant::BelievesLength, None) if op.pieces.is_some() => return Some(Self::success(&op)),
            (Plant::KeepsTheList, None) if op.pieces.is_some() && is_write => self.later.push((2, op)),
            (Plant::DamagePasses, Some(OpErrorCode::Checksum)) => return Some(Self::success(&op)),
            (Plant::DamageBreaksLink, Some(OpErrorCode::Checksum)) => self.infected = Some(op.link),
            (Plant::LandsAfterBreak, Some(OpErrorCode::LinkBroken)) if is_write => self.later.push((3, op)),
            (Plant::LosesOpsOfBrokenLink, Some(OpErrorCode::LinkBroken)) => return None,
            (Plant::LosesOpsAtClose, Some(OpErrorCode::Closed)) => return None,
            (Plant::SaysUntouched, Some(OpErrorCode::LinkBroken)) => {
                return Some(Completion { bytes: 0, touched: false, ..completion });
            }
            (Plant::FailsOtherLink, Some(OpErrorCode::LinkBroken)) => self.infected = Some(op.link),
            (Plant::RefusalBreaksLink, Some(OpErrorCode::OutOfRange)) => self.infected = Some(op.link),
            _ => {}
        }
        let infects = match self.plant {
            Plant::FailsOtherLink => self.infected.is_some_and(|link| link != op.link),
            Plant::RefusalBreaksLink | Plant::DamageBreaksLink => self.infected == Some(op.link),
            _ => false,
        };
        if infects && code.is_none() {
            self.infected = None;
            let result = Err(OpError::new(OpErrorCode::LinkBroken));
            return Some(Completion { token: op.token, result, bytes: 0, touched: false });
        }
        let result = completion.result.map_err(|error| self.alter_error(error));
        Some(Completion { result, ..completion })
    }

    /// Does what is due, behind the caller's back.
    fn do_late(&mut self, now: Instant) {
        let mut due = Vec::new();
        self.later.retain_mut(|(polls, op)| {
            *polls = polls.saturating_sub(1);
            if *polls == 0 {
                due.push(*op);
            }
            *polls > 0
        });
        for op in due {
            if self.plant == Plant::TouchesAfterRead {
                // SAFETY: by the duty of `new` the memory is kept, though the op is completed.
                unsafe { (op.local.address as usize as *mut u8).write(0xff) };
                continue;
            }
            if self.plant == Plant::LandsAfterBreak {
                self.force(&op, 0, usize::MAX);
                continue;
            }
            if self.plant == Plant::SucceedsAfterRetire {
                self.force(&op, 0, usize::MAX);
                self.extra.push_back(Self::success(&op));
                continue;
            }
            // SAFETY: by the duty of `new` the memory is kept; the op's completion was given out before, so the caller may
            // have an op of the same token in flight only after many more polls than this takes.
            if unsafe { self.inner.submit(&[op], now) } == 1 {
                self.hidden.insert(op.token);
            } else {
                self.later.push((1, op));
            }
        }
    }
}

// SAFETY: it breaks the promises on purpose; `new` hands the duty on to whoever makes one.
unsafe impl<T: Transport> Transport for Faulty<T> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn connect(&mut self, peer: PeerId, address: &[u8], now: Instant) -> Result<LinkId, TransportError> {
        self.inner.connect(peer, address, now)
    }

    fn deliver(&mut self, link: LinkId, bytes: &[u8], now: Instant) -> Result<(), TransportError> {
        self.inner.deliver(link, bytes, now)
    }

    unsafe fn submit(&mut self, ops: &[Op], now: Instant) -> usize {
        let mut taken = 0;
        for op in ops {
            let region = RegionId(op.remote.key.0[0]);
            if let Some(known) = self.target.get(region) {
                self.regions.insert(region, known);
            }
            if self.plant == Plant::RefusesToVerify && op.verify.is_on() {
                let result = Err(OpError::new(OpErrorCode::Unsupported));
                self.extra.push_back(Completion { token: op.token, result, bytes: 0, touched: false });
                taken += 1;
                continue;
            }
            let kept = self.keep_list(op);
            let mut below = self.alter_list(op);
            if self.plant == Plant::MissesLastByte && op.local.length > 1 {
                below.local.length -= 1;
            }
            if self.plant == Plant::CompletesEarly && op.local.length > 50_000 {
                self.extra.push_back(Self::success(op));
                self.later.push((3, kept));
                taken += 1;
                continue;
            }
            // SAFETY: the caller's duty, for the same span or a part of it.
            if unsafe { self.inner.submit(&[below], now) } == 0 {
                break;
            }
            self.ops.insert(op.token, if self.plant == Plant::KeepsTheList { *op } else { kept });
            taken += 1;
        }
        if self.plant == Plant::DropsWhenFull { ops.len() } else { taken }
    }

    unsafe fn at_once(&mut self, op: &Op, now: Instant) -> Result<(), Undone> {
        if self.plant == Plant::ClaimsAtOnce {
            return Ok(());
        }
        // SAFETY: the caller's promise, handed on.
        unsafe { self.inner.at_once(op, now) }
    }

    unsafe fn notify(&mut self, notice: &Notice, now: Instant) -> bool {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.inner.notify(notice, now) }
    }

    fn cancel(&mut self, tokens: RangeInclusive<Token>, now: Instant) {
        // The suite gives up one op at a time.
        let token = *tokens.start();
        match self.plant {
            Plant::IgnoresCancel => {}
            Plant::LandsAfterCancel => {
                if self.ops.contains_key(&token) && self.hidden.insert(token) {
                    let result = Err(OpError::new(OpErrorCode::Cancelled));
                    self.extra.push_back(Completion { token, result, bytes: 0, touched: false });
                }
            }
            Plant::CancelsStrangers if !self.ops.contains_key(&token) => {
                let result = Err(OpError::new(OpErrorCode::Cancelled));
                self.extra.push_back(Completion { token, result, bytes: 0, touched: false });
            }
            _ => self.inner.cancel(tokens, now),
        }
    }

    fn poll(&mut self, now: Instant, budget: usize, out: &mut Progress) -> bool {
        if self.plant == Plant::ClearsTheBuffer {
            out.clear();
        }
        let asked = if self.plant == Plant::ExceedsBudget { budget + 1 } else { budget };
        let begin = out.completions.len();
        let late = self.extra.len().min(asked);
        let mut happened = late > 0;
        out.completions.extend(self.extra.drain(..late));
        let middle = out.completions.len();
        happened |= self.inner.poll(now, asked - late, out);
        let found: Vec<_> = out.completions.drain(middle..).collect();
        let kept = found.into_iter().filter_map(|completion| self.alter(completion));
        let kept: Vec<_> = kept.collect();
        out.completions.extend(kept);
        self.do_late(now);
        happened || out.completions.len() > begin
    }

    fn arm(&mut self, now: Instant) -> Arm {
        let arm = self.inner.arm(now);
        match (self.plant, arm) {
            (Plant::NeverSleeps, _) => Arm::Ready,
            (Plant::SleepsThroughReplies, Arm::Ready) => self.last_sleep.unwrap_or(arm),
            (_, Arm::Sleep { .. }) => {
                self.last_sleep = Some(arm);
                arm
            }
            _ => arm,
        }
    }

    fn lanes(&self, link: LinkId, now: Instant) -> Option<LinkLanes> {
        let counted = self.inner.lanes(link, now);
        let of_the_gone = LinkLanes { up: 1, wanted: 1, unreachable: false };
        if self.plant == Plant::CountsLanesOfTheGone { counted.or(Some(of_the_gone)) } else { counted }
    }

    fn signs(&mut self, link: LinkId, now: Instant) -> Signs {
        self.inner.signs(link, now)
    }

    fn disconnect(&mut self, link: LinkId, now: Instant) {
        self.inner.disconnect(link, now);
    }

    fn close(&mut self, now: Instant) {
        self.inner.close(now);
    }

    fn is_drained(&self) -> bool {
        match self.plant {
            Plant::SaysDrained => true,
            Plant::NeverDrained => false,
            Plant::SucceedsAfterRetire => {
                self.ops.is_empty() && self.later.is_empty() && self.extra.is_empty()
            }
            _ => self.inner.is_drained() && self.extra.is_empty(),
        }
    }
}
