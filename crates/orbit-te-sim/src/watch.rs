//! The transport of a process's own transfers, watched: what it accepts and completes is noted, and plants break its promises.
//! Rule: what is wrong is reported, and kept from the core, which would not survive it.

#![allow(unsafe_code)]

use crate::net::Shared;
use crate::plant::Plant;
use orbit_te_transport::{
    Arm, Capabilities, Completion, LinkId, LinkLanes, Mismatch, Notice, Op, OpError, OpErrorCode, OpKind,
    Pieces, Progress, Signs, Token, Transport, TransportError,
};
use orbit_te_wire::{PeerId, Piece};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Instant;

pub(crate) struct Watched<T> {
    pub(crate) inner: T,
    net: Shared,
    life: usize,
    /// Completions that a plant gives out too early, and those that it then keeps.
    early: Vec<Completion>,
    kept: BTreeSet<u64>,
    /// The list that a plant has changed.
    list: Option<(Vec<u64>, Vec<Piece>)>,
}

impl<T> Watched<T> {
    pub(crate) fn new(inner: T, net: &Shared, life: usize) -> Watched<T> {
        let (early, kept) = (Vec::new(), BTreeSet::new());
        Watched { inner, net: net.clone(), life, early, kept, list: None }
    }

    /// What a plant does to what the inner transport has completed.
    fn break_promises(&mut self, completions: &mut Vec<Completion>, from: usize) {
        let mut net = self.net.lock();
        let kept = &mut self.kept;
        let mut at = 0;
        completions.retain(|c| {
            at += 1;
            at <= from || !kept.remove(&c.token.0)
        });
        if completions.len() > from {
            if net.plant_now(Plant::DoubleCompletion) {
                completions.push(completions[from]);
            } else if net.plant_now(Plant::LeakedTransfer) {
                completions.remove(from);
            }
        }
        let lies = net.plant == Some(Plant::FencedAnyhow);
        for error in completions[from..].iter_mut().filter(|_| lies).filter_map(|c| c.result.as_mut().err()) {
            error.code = match error.code {
                OpErrorCode::CancelledUnfenced => OpErrorCode::Cancelled,
                OpErrorCode::LinkBrokenUnfenced => OpErrorCode::LinkBroken,
                other => other,
            };
        }
        let damaged = |c: &&mut Completion| c.result.is_err_and(|e| e.code == OpErrorCode::Checksum);
        if let Some(completion) = completions[from..].iter_mut().find(damaged) {
            let length = net.live.get(&self.life).and_then(|live| live.length(completion.token.0));
            if net.plant_now(Plant::DamagePasses) {
                (completion.result, completion.bytes) = (Ok(()), length.unwrap_or_default());
            } else if net.plant_now(Plant::OtherRange) {
                let error = OpError::new(OpErrorCode::Checksum);
                let mismatch = completion.result.err().and_then(|error| error.mismatch);
                let other = mismatch.map(|m| Mismatch { offset: m.offset + m.length, ..m });
                completion.result = Err(OpError { mismatch: other, ..error });
            }
        }
        completions.append(&mut self.early);
    }

    /// Where the pieces of an op that is being submitted are at this side.
    fn pieces(op: &Op) -> Vec<(u64, u64)> {
        let Some(pieces) = op.pieces else { return Vec::new() };
        // SAFETY: the op is being submitted, so its slices live.
        let (local, remote) = unsafe { (pieces.local(), pieces.remote()) };
        local.iter().zip(remote).map(|(address, piece)| (*address, piece.length())).collect()
    }

    /// The op with two pieces of its list in each other's place, if that is planted and two are as long as each other.
    fn misplace(&mut self, op: &Op) -> Op {
        let Some(pieces) = op.pieces else { return *op };
        // SAFETY: the op is being submitted, so its slices live.
        let (mut local, remote) = unsafe { (pieces.local().to_vec(), pieces.remote().to_vec()) };
        let Some(at) = remote.windows(2).position(|two| two[0].length() == two[1].length()) else {
            return *op;
        };
        if !self.net.lock().plant_now(Plant::MisplacedPiece) {
            return *op;
        }
        local.swap(at, at + 1);
        let (local, remote) = self.list.insert((local, remote));
        Op { pieces: Pieces::new(local, remote), ..*op }
    }
}

// SAFETY: without a plant it hands everything on, and gives out exactly the completions of the transport below. A plant breaks that
// on purpose: the memory that ops name stays mapped until the run ends, so that what is broken is seen and harms nothing.
unsafe impl<T: Transport> Transport for Watched<T> {
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
        {
            let mut net = self.net.lock();
            let net = &mut *net;
            let live = net.live.entry(self.life).or_default();
            ops.iter().for_each(|op| live.accepted(op, Self::pieces(op), &mut net.report));
        }
        let planted = self.net.lock().plant == Some(Plant::MisplacedPiece);
        let misplaced: Vec<Op> = ops.iter().filter(|_| planted).map(|op| self.misplace(op)).collect();
        // SAFETY: the caller's promise, handed on; a list of a plant is kept for good and names the same memory.
        let taken = unsafe { self.inner.submit(if planted { &misplaced } else { ops }, now) };
        let mut net = self.net.lock();
        let net = &mut *net;
        let live = net.live.entry(self.life).or_default();
        ops[taken..].iter().for_each(|op| live.returned(op));
        let now_ns = net.now_ns;
        for op in &ops[..taken] {
            net.trace.note("op", &[now_ns, self.life as u64, op.token.0, op.local.length]);
            if op.kind == OpKind::Write && op.local.length > 2_000 && net.plant_now(Plant::EarlyCompletion) {
                self.kept.insert(op.token.0);
                let error = OpError::new(OpErrorCode::CancelledUnfenced);
                self.early.push(Completion { token: op.token, result: Err(error), bytes: 0, touched: true });
            }
        }
        taken
    }

    unsafe fn notify(&mut self, notice: &Notice, now: Instant) -> bool {
        let op = notice.as_op();
        let mut held = self.net.lock();
        let net = &mut *held;
        net.live.entry(self.life).or_default().accepted(&op, Vec::new(), &mut net.report);
        drop(held);
        // SAFETY: the caller's promise, handed on.
        let taken = unsafe { self.inner.notify(notice, now) };
        if !taken {
            self.net.lock().live.entry(self.life).or_default().returned(&op);
        }
        taken
    }

    fn cancel(&mut self, tokens: RangeInclusive<Token>, now: Instant) {
        self.inner.cancel(tokens, now);
    }

    fn poll(&mut self, now: Instant, budget: usize, out: &mut Progress) -> bool {
        let from = out.completions.len();
        let any = self.inner.poll(now, budget, out) | !self.early.is_empty();
        self.break_promises(&mut out.completions, from);
        let mut net = self.net.lock();
        let net = &mut *net;
        let live = net.live.entry(self.life).or_default();
        let (now_ns, life) = (net.now_ns, self.life as u64);
        let mut at = 0;
        out.completions.retain(|c| {
            at += 1;
            if at <= from {
                return true;
            }
            let code = c.result.err().map_or(0, |e| 1 + e.code as u64);
            net.trace.note("completed", &[now_ns, life, c.token.0, code, c.bytes]);
            net.damage.completed(self.life, c, &mut net.report);
            live.completed(c.token.0, &mut net.report).is_some()
        });
        any
    }

    fn arm(&mut self, now: Instant) -> Arm {
        if self.early.is_empty() { self.inner.arm(now) } else { Arm::Ready }
    }

    fn lanes(&self, link: LinkId, now: Instant) -> Option<LinkLanes> {
        self.inner.lanes(link, now)
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
        self.inner.is_drained() && self.early.is_empty()
    }
}
