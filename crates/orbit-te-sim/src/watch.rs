//! The transport of a process's own transfers, watched: what it accepts and completes is noted, and plants break its promises.
//! Rule: what is wrong is reported, and kept from the core, which would not survive it.

#![allow(unsafe_code)]

use crate::net::Shared;
use crate::net::stream::SimNet;
use crate::plant::Plant;
use orbit_te_tcp::TcpTransport;
use orbit_te_transport::{
    Arm, Capabilities, Completion, LinkId, LinkLanes, Notice, Op, OpError, OpErrorCode, OpKind, Progress,
    Signs, Token, Transport, TransportError,
};
use orbit_te_wire::PeerId;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Instant;

pub(crate) struct Watched {
    pub(crate) inner: TcpTransport<SimNet>,
    pub(crate) net: Shared,
    pub(crate) life: usize,
    /// Completions that a plant gives out too early, and those that it then keeps.
    pub(crate) early: Vec<Completion>,
    pub(crate) kept: BTreeSet<u64>,
}

impl Watched {
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
        completions.append(&mut self.early);
    }
}

// SAFETY: without a plant it hands everything on, and gives out exactly the completions of the transport below. A plant breaks that
// on purpose: the memory that ops name stays mapped until the run ends, so that what is broken is seen and harms nothing.
unsafe impl Transport for Watched {
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
            ops.iter().for_each(|op| live.accepted(op, &mut net.report));
        }
        // SAFETY: the caller's promise, handed on.
        let taken = unsafe { self.inner.submit(ops, now) };
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
        net.live.entry(self.life).or_default().accepted(&op, &mut net.report);
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
