//! What the benches measure: an engine's transport over verbs in memory, and the same chains posted raw. Rule: both post as many WRs in as many
//! calls, ask for as many CQEs and poll as often, so that what one costs over the other is the transport's own. No byte is moved.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // Each bench uses its part of it; helpers of benches are tests.

#[path = "../../tests/sides/mod.rs"]
mod sides;
#[path = "../../tests/support/mod.rs"]
mod support;

use orbit_te_memory::Access;
use orbit_te_rdma::fake::{Clock, FakeFabric};
use orbit_te_rdma::handle::{Qp, QpCaps};
use orbit_te_rdma::sys::ffi::*;
use orbit_te_rdma::{RdmaConfig, Wc};
use orbit_te_transport::{Op, OpKind, Pieces, Priority, Progress, RemoteSpan, Token, Transport, Verify};
use orbit_te_wire::Piece;
use sides::{Sides, quick, two_hosts};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;
use support::{CAPS, RTS, Side, connect, fabric_of_two};

/// Ops in one submission.
pub const BATCH: usize = 64;
/// Pieces of a list.
pub const PIECES: usize = 100_000;
/// Bytes of an op.
const OP_BYTES: u64 = 4096;
/// Bytes of a piece, and from one to the next: none can be joined with its neighbour.
const PIECE_BYTES: u64 = 256;
const STRIDE: u64 = 2 * PIECE_BYTES;
/// WRs that the transport posts by one call, and its QPs.
const CHAIN: usize = 32;
const LANES: usize = 2;

/// A link that stands, with regions at both sides.
pub struct Engine {
    sides: Sides,
    batch: Vec<Op>,
    /// As many ops as a list of so many pieces makes.
    list: Vec<Op>,
    progress: Progress,
    now: Instant,
    // What the op of the list is a view of.
    _here: Vec<u64>,
    _there: Vec<Piece>,
}

impl Engine {
    pub fn new() -> Engine {
        let fabric = FakeFabric::new(1);
        two_hosts(&fabric);
        let mut sides = Sides::new(&fabric, &RdmaConfig { width: LANES as u8, ..quick() }).unwrap();
        let length = PIECES * STRIDE as usize;
        let (near, key) = sides.here.region(length, 0, Access::LOCAL).unwrap();
        let (far, _) = sides.there.region(length, 0, Access::SHARED).unwrap();
        let link = sides.connect();
        sides.until("the link is up", |sides| sides.ups == 1);
        let remote = RemoteSpan { offset: 0, key: sides.there.key(&far, far.key()).unwrap() };
        // Its owner gives the keys by the first op.
        let first = sides.op(OpKind::Write, link, &(near.clone(), key), 0, remote, 8);
        sides.end(first).result.unwrap();
        fabric.move_bytes(false);
        fabric.set_clock(Clock::ByHand);
        let op = |number: u64| Op {
            kind: OpKind::Write,
            link,
            local: near.slice(number * OP_BYTES, OP_BYTES).unwrap().span(key),
            remote: RemoteSpan { offset: number * OP_BYTES, ..remote },
            pieces: None,
            token: Token(1_000_000 + number),
            priority: Priority::Normal,
            verify: Verify::Off,
        };
        let batch = (0..BATCH as u64).map(op).collect();
        let base = near.whole().span(key);
        // An order in which no piece here lies beside the next one; at the peer they ascend, as those of a write do.
        let order = |number: u64| number * 7919 % PIECES as u64;
        let here: Vec<u64> = (0..PIECES as u64).map(|n| base.address + order(n) * STRIDE).collect();
        let there: Vec<Piece> = (0..PIECES as u64).map(|n| Piece::new(n * STRIDE, PIECE_BYTES)).collect();
        let most = orbit_te_wire::limits::MAX_PIECES as usize;
        let part = |(number, (here, there)): (usize, (&[u64], &[Piece]))| {
            let mut part = op(number as u64);
            part.local = base;
            (part.local.address, part.local.length) = (here[0], there.len() as u64 * PIECE_BYTES);
            part.remote.offset = there[0].offset();
            part.pieces = Pieces::new(here, there);
            part
        };
        let list = here.chunks(most).zip(there.chunks(most)).enumerate().map(part).collect();
        Engine {
            sides,
            batch,
            list,
            progress: Progress::default(),
            now: Instant::now(),
            _here: here,
            _there: there,
        }
    }

    /// Submits a batch, and polls until all of it has completed.
    pub fn batch(&mut self) {
        // SAFETY: the regions live as long as the transport, and nobody else uses them.
        let taken = unsafe { self.sides.transport.submit(&self.batch, self.now) };
        assert_eq!(taken, BATCH);
        self.finish(BATCH);
    }

    /// The same with the list.
    pub fn list(&mut self) {
        // SAFETY: as above; the pieces live as long.
        let taken = unsafe { self.sides.transport.submit(&self.list, self.now) };
        assert_eq!(taken, self.list.len());
        self.finish(taken);
    }

    fn finish(&mut self, count: usize) {
        while self.progress.completions.len() < count {
            self.sides.transport.poll(self.now, BATCH, &mut self.progress);
        }
        // One of them, so that looking is not a part of what is measured.
        assert!(self.progress.completions.last().is_some_and(|done| done.result.is_ok()));
        self.progress.completions.clear();
    }
}

/// QPs that are connected and have one CQ, and a chain for each that is posted again and again.
pub struct Raw {
    qps: Vec<Qp>,
    chains: Vec<Box<[(ibv_send_wr, ibv_sge); CHAIN]>>,
    places: [Wc; BATCH],
    // Gone after the QPs.
    _peers: Vec<Qp>,
    one: Side,
    _two: Side,
}

impl Raw {
    pub fn new() -> Raw {
        let (fabric, a, b) = fabric_of_two(1);
        fabric.move_bytes(false);
        let caps = QpCaps { max_send_wr: 128, ..CAPS };
        let side = |host, device| {
            let memory = Arc::new(support::Memory::new(BATCH * OP_BYTES as usize));
            Side::with(&fabric, host, device, memory, caps, 1024).unwrap()
        };
        let (one, two) = (side(0, a), side(1, b));
        let (mut qps, mut peers, mut chains) = (Vec::new(), Vec::new(), Vec::new());
        for lane in 0..LANES {
            let qp = |side: &Side| side.pd.create_qp(caps, &side.cq, &side.cq, None).unwrap();
            let (near, far) = (qp(&one), qp(&two));
            connect(&one.context, &near, &two.context, &far, RTS).unwrap();
            connect(&two.context, &far, &one.context, &near, RTS).unwrap();
            qps.push(near);
            peers.push(far);
            let mut chain = Box::new([(ibv_send_wr::default(), ibv_sge::default()); CHAIN]);
            for (at, (wr, sge)) in chain.iter_mut().enumerate() {
                let place = (lane * CHAIN + at) as u64 * OP_BYTES;
                let (addr, lkey) = (one.memory.address() + place, one.mr().lkey());
                *sge = ibv_sge { addr, length: OP_BYTES as u32, lkey };
                wr.wr_id = at as u64;
                wr.num_sge = 1;
                wr.send_flags = if at == CHAIN - 1 { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
                let (remote_addr, rkey) = (two.memory.address() + place, two.mr().rkey());
                wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
            }
            let base = chain.as_mut_ptr();
            for at in 0..CHAIN {
                // SAFETY: all are inside of the chain, which stays where it is.
                unsafe {
                    (*base.add(at)).0.sg_list = &raw mut (*base.add(at)).1;
                    (*base.add(at)).0.next =
                        if at + 1 < CHAIN { &raw mut (*base.add(at + 1)).0 } else { null_mut() };
                }
            }
            chains.push(chain);
        }
        Raw { qps, chains, places: [Wc::default(); BATCH], _peers: peers, one, _two: two }
    }

    /// As many WRs as a batch has ops.
    pub fn batch(&mut self) {
        for (qp, chain) in self.qps.iter().zip(&mut self.chains) {
            let mut bad = null_mut();
            // SAFETY: the chain is ours, and the memory registered as long as the sides live.
            assert_eq!(unsafe { qp.post_send(&raw mut (*chain.as_mut_ptr()).0, &mut bad) }, 0);
        }
        assert_eq!(self.one.cq.poll(&mut self.places).unwrap(), LANES);
    }

    /// As many as the list has pieces, but for a last batch that is not whole.
    pub fn list(&mut self) {
        (0..PIECES / BATCH).for_each(|_| self.batch());
    }
}
