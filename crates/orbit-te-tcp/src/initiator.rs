//! The side that asks: making lanes, giving them parts of ops, taking answers, and what happens when a lane breaks. Rule: a
//! write that may still be under way on a broken lane is told to be over only once the target has fenced that lane, or can't be
//! asked.

use crate::address::TRANSPORT;
use crate::body::Body;
use crate::conn::{Conn, Received};
use crate::error::ConnError;
use crate::lane::{Asked, Asking, Lane, Pending, Role};
use crate::link::{FenceWait, LaneSlot, Place};
use crate::net::{Net, Stream};
use crate::opening::{Expect, OpeningReader};
use crate::ops::OpSlot;
use crate::transport::{TcpTransport, VERY_LATE, lands_here};
use orbit_te_transport::{Event, OpError, OpErrorCode, OpKind, TransportError, Verify};
use orbit_te_wire::negotiate;
use orbit_te_wire::{
    AuthSlot, Features, Frame, FrameOp, Generation, Hello, HelloReply, RegionId, Role as HelloRole, Status,
};
use std::io::Write;
use std::time::Instant;

/// Frames handled on one lane before others get their turn.
const SERVE_FRAMES: usize = 256;

impl<N: Net> TcpTransport<N> {
    /// Does what is due on a link: makes lanes, gives up fences and ops that waited too long.
    pub(crate) fn link_timers(&mut self, slot: u32, now: Instant) {
        let Some(link) = self.link_mut(slot) else { return };
        let due: Vec<usize> = (0..link.places.len())
            .filter(|&p| matches!(link.places[p], Place::Down { retry_at } if retry_at <= now))
            .collect();
        for place in due {
            if let Err(error) = self.open_lane(slot, place, now) {
                self.place_down(slot, place, error, now);
            }
        }
        let unreachable_after = self.config.unreachable_after;
        let Some(link) = self.link_mut(slot) else { return };
        let (lost, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut link.fences).into_iter().partition(|f| f.by <= now);
        link.fences = kept;
        let mut next: Vec<Instant> = link.fences.iter().map(|f| f.by).collect();
        next.extend(link.places.iter().filter_map(|p| match p {
            Place::Down { retry_at } => Some(*retry_at),
            _ => None,
        }));
        let mut unreachable = Vec::new();
        if let Some(down) = link.down_since.filter(|_| !link.queue.is_empty()) {
            if down + unreachable_after <= now {
                // A first attempt that is slow is not yet a failure: it has its own time limit.
                if link.failed {
                    unreachable.extend(link.queue.iter());
                }
            } else {
                next.push(down + unreachable_after);
            }
        }
        for op in unreachable {
            self.fail_op(op, OpError::new(OpErrorCode::Unreachable));
        }
        for wait in lost {
            self.fence_lost(wait);
        }
        for at in next {
            self.wake_by(at);
        }
    }

    fn open_lane(&mut self, link_slot: u32, place: usize, now: Instant) -> Result<(), TransportError> {
        let io = |what: String| move |source| TransportError::Io { what, source };
        let Some(link) = self.link_mut(link_slot) else { return Ok(()) };
        let address = link.next_address();
        let mut stream =
            self.net.connect(address, &self.config).map_err(io(format!("connecting to {address}")))?;
        let number = self.net.lane_number().map_err(|e| TransportError::Unavailable {
            transport: TRANSPORT,
            reason: format!("no random bytes: {e}"),
        })?;
        let lane = self.lanes.reserve();
        if let Err(source) = self.net.register(&mut stream, lane) {
            self.lanes.release(lane);
            return Err(TransportError::Io { what: "registering a lane".into(), source });
        }
        let by = now + self.config.connect_timeout;
        let conn = Conn::new(stream, self.config.limits.lane_requests as usize);
        let reader = OpeningReader::new(Expect::Reply);
        let role = Role::Opening { link: link_slot, place, number, said_hello: false, reader, by };
        self.lanes.put(lane, Lane { conn, role, listed: false });
        if let Some(link) = self.link_mut(link_slot) {
            link.places[place] = Place::Opening { lane };
        }
        self.wake_by(by.min(now + VERY_LATE));
        Ok(())
    }

    /// Goes on with a lane that is being made.
    pub(crate) fn serve_opening(
        &mut self,
        slot: LaneSlot,
        lane: &mut Lane<N::Stream>,
    ) -> Result<(), TransportError> {
        let Role::Opening { link, place, number, said_hello, reader, .. } = &mut lane.role else {
            return Ok(());
        };
        let (link, place, number) = (*link, *place, *number);
        let io = |what: &'static str| move |source| TransportError::Io { what: what.to_string(), source };
        let (session, peer) = match self.link_mut(link) {
            Some(link) => (link.address.session, link.peer),
            None => return Err(TransportError::NoLink { transport: TRANSPORT }),
        };
        let hello = Hello {
            role: HelloRole::Lane { session, lane: number },
            peer: self.identity.peer,
            incarnation: self.identity.incarnation,
            features: Features::OURS,
            limits: self.config.limits,
            auth: AuthSlot::default(),
        };
        let stream = lane.conn.stream();
        if !*said_hello {
            if !stream.connected().map_err(io("making a data lane"))? {
                return Ok(());
            }
            // A hello of some hundred bytes always fits into the buffer of a new socket.
            stream.write_all(&hello.encode()?).map_err(io("saying hello on a data lane"))?;
            *said_hello = true;
        }
        let Some((prelude, body)) = reader.read(stream)? else { return Ok(()) };
        let accepted = negotiate::answer(&prelude, HelloReply::decode_body(body)?, &hello)?
            .map_err(TransportError::RefusedByPeer)?;
        if accepted.peer != peer {
            let found = accepted.peer;
            let reason = format!("peer {found} answers where {peer} was expected; it was restarted");
            return Err(TransportError::BadAddress { transport: TRANSPORT, reason });
        }
        let limits = accepted.terms.limits;
        let fences = accepted.terms.features.contains(Features::LANE_FENCE);
        let pending = std::collections::VecDeque::with_capacity(limits.lane_requests as usize);
        lane.role = Role::Asking(Asking { link, place, number, limits, fences, pending, in_flight: 0 });
        // What came with the answer's event is not known to be all.
        lane.conn.ready(true, true, false);
        let config = self.config;
        if let Some(link_state) = self.link_mut(link) {
            let id = link_state.id;
            if link_state.lane_up(place, slot, &config) {
                self.news.push(Event::LinkUp { link: id });
            }
        }
        tracing::debug!(%peer, lane = number, "lane up");
        self.pump_later(link);
        Ok(())
    }

    /// Takes answers.
    pub(crate) fn serve_asking(&mut self, lane: &mut Lane<N::Stream>) -> Result<(), TransportError> {
        lane.conn.flush()?;
        let Role::Asking(asking) = &mut lane.role else { return Ok(()) };
        for _ in 0..SERVE_FRAMES {
            // Nothing is to come: asking the kernel would cost a call after every answer.
            if asking.pending.is_empty() && !lane.conn.is_closing() {
                break;
            }
            match lane.conn.receive(&mut self.scratch)? {
                Received::Nothing => break,
                Received::Frame(frame) => {
                    let front = asking.pending.front().copied();
                    let Some(front) = front.filter(|p| p.id == frame.id) else {
                        return Err(ConnError::Unexpected("an answer to no request, or out of order").into());
                    };
                    // The rest of it would be sent from memory that its op no longer keeps.
                    if lane.conn.is_queued(front.id) {
                        return Err(ConnError::Unexpected("an answer before its request was sent").into());
                    }
                    self.take_answer(&frame, &front, asking, &mut lane.conn)?;
                }
                Received::Payload(verdict) => {
                    if let Some(Pending { what: Asked::Part { op, length, address, .. }, .. }) = asking.pop()
                    {
                        self.payload_done(op, (address, length), verdict, asking);
                    }
                }
                Received::Table => {
                    return Err(ConnError::Unexpected("a table where an answer was expected").into());
                }
                // Our own memory was taken away under the op: it alone fails.
                Received::Fault => {
                    if let Some(Pending { what, .. }) = asking.pending.front_mut() {
                        if let Asked::Part { op, kind, length, .. } = *what {
                            *what = Asked::Abandoned { kind, length };
                            self.touched(op);
                            self.part_done(op, 0, Some(OpError::new(OpErrorCode::LocalMemoryFault)));
                        }
                    }
                }
            }
        }
        self.pump_later(asking.link);
        Ok(())
    }

    fn take_answer(
        &mut self,
        frame: &Frame,
        front: &Pending,
        asking: &mut Asking,
        conn: &mut Conn<N::Stream>,
    ) -> Result<(), ConnError> {
        let mut error = OpError::from_status(frame.status);
        let asked = match front.what {
            Asked::Part { op, .. } => {
                self.ops.get_mut(op).map(|state| (state.op.pieces, state.op.verify, state.notice.is_some()))
            }
            _ => None,
        };
        let (pieces, verify, notice) = asked.unwrap_or_default();
        if notice != (frame.op == FrameOp::NotifyDone) {
            return Err(ConnError::Unexpected("an answer of another kind than its request"));
        }
        if let (Some(error), Some(pieces)) = (&mut error, pieces) {
            error.piece = u32::try_from(frame.offset).ok().filter(|at| (*at as usize) < pieces.len());
        }
        match (frame.op, front.what) {
            (FrameOp::NotifyDone, Asked::Part { op, length, .. }) => {
                asking.pop();
                self.part_done(op, if error.is_none() { length } else { 0 }, error);
            }
            (FrameOp::WriteDone, Asked::Part { op, kind: OpKind::Write, address, length }) => {
                asking.pop();
                if let Some(sums) = frame.sums() {
                    error = Some(self.damaged(op, (address, length), sums, asking));
                }
                // The only refusals that come after the first byte.
                if matches!(frame.status, Status::MemoryFault | Status::Checksum) {
                    self.touched(op);
                }
                self.part_done(op, if error.is_none() { length } else { 0 }, error);
            }
            (FrameOp::ReadDone, Asked::Part { op, kind: OpKind::Read, address, length }) => {
                if error.is_some() {
                    asking.pop();
                    self.part_done(op, 0, error);
                } else if frame.length != length {
                    return Err(ConnError::Unexpected("a read was answered with another length"));
                } else if frame.trailer != verify.is_on() {
                    return Err(ConnError::Unexpected("a trailer is missing, or was not asked for"));
                } else {
                    conn.expect_body(pieces.map_or(Body::One(address), Body::Ours), length, verify);
                }
            }
            (FrameOp::WriteDone, Asked::Abandoned { kind: OpKind::Write, .. }) => {
                asking.pop();
            }
            (FrameOp::ReadDone, Asked::Abandoned { kind: OpKind::Read, length }) => {
                if error.is_some() {
                    asking.pop();
                } else if frame.length != length {
                    return Err(ConnError::Unexpected("a read was answered with another length"));
                } else {
                    conn.discard_payload(length + frame.trailer_bytes());
                }
            }
            (FrameOp::FenceDone, Asked::Fence { number }) => {
                asking.pop();
                self.fence_done(asking.link, number);
            }
            _ => return Err(ConnError::Unexpected("an answer of another kind than its request")),
        }
        Ok(())
    }

    /// A part of an op that does not end well may have changed bytes at the side that was to receive it.
    pub(crate) fn touched(&mut self, op: OpSlot) {
        if let Some(state) = self.ops.get_mut(op) {
            state.touched = true;
        }
    }

    pub(crate) fn part_done(&mut self, op: OpSlot, landed: u64, error: Option<OpError>) {
        let Some(state) = self.ops.get_mut(op) else { return };
        state.parts -= 1;
        state.landed += landed;
        match error {
            Some(error) => self.fail_op(op, error),
            None => self.settle(op),
        }
    }

    /// A lane could not be made, or was lost while it was made.
    pub(crate) fn place_down(&mut self, link_slot: u32, place: usize, error: TransportError, now: Instant) {
        let config = self.config;
        let Some(link) = self.link_mut(link_slot) else { return };
        let (id, peer) = (link.id, link.peer);
        let still_down = link.down_since.is_some();
        let last_lane = link.lane_down(place, now, &config);
        let retry = match link.places[place] {
            Place::Down { retry_at } => retry_at,
            _ => now,
        };
        tracing::debug!(%peer, %error, "no lane");
        if last_lane || still_down {
            self.news.push(Event::LinkDown { link: id, error });
        }
        self.wake_by(retry);
        self.wake_by(now + config.unreachable_after);
    }

    /// A lane with requests broke: each of them fails, writes that may be under way only after a fence.
    pub(crate) fn asking_broke(
        &mut self,
        asking: Asking,
        conn: Conn<N::Stream>,
        error: TransportError,
        now: Instant,
    ) {
        let code = match &error {
            TransportError::Wire(_) => OpErrorCode::Protocol,
            _ => OpErrorCode::LinkBroken,
        };
        let op_error = match &error {
            TransportError::Io { source, .. } => OpError::io(code, source),
            _ => OpError::new(code),
        };
        let mut wait = FenceWait {
            number: asking.number,
            ops: Vec::new(),
            by: now + self.config.fence_timeout,
            asked: false,
        };
        let mut unasked = Vec::new();
        for (at, Pending { id, what }) in asking.pending.iter().enumerate() {
            match what {
                Asked::Part { op, .. } if lands_here(what) && at == 0 && conn.is_landing() => {
                    self.touched(*op);
                    self.part_done(*op, 0, Some(op_error));
                }
                Asked::Part { op, .. } if lands_here(what) || !conn.has_begun(*id) => {
                    self.part_done(*op, 0, Some(op_error));
                }
                Asked::Part { op, .. } => {
                    if let Some(state) = self.ops.get_mut(*op) {
                        state.fences += 1;
                        state.touched = true;
                        wait.ops.push(*op);
                    }
                    self.part_done(*op, 0, Some(op_error));
                }
                Asked::Fence { number } => unasked.push(*number),
                Asked::Abandoned { .. } => {}
            }
        }
        // The socket closes here: from now on nothing of this lane reaches our memory or leaves it.
        drop(conn);
        if let Some(link) = self.link_mut(asking.link) {
            for fence in link.fences.iter_mut().filter(|f| unasked.contains(&f.number)) {
                fence.asked = false;
            }
            if !wait.ops.is_empty() {
                link.fences.push(wait);
            }
        }
        self.wake_by(now + self.config.fence_timeout);
        self.place_down(asking.link, asking.place, error, now);
        self.pump_later(asking.link);
    }

    /// Asks for fences on the first lane that is up.
    pub(crate) fn ask_fences(&mut self, link_slot: u32) {
        loop {
            let id = self.next_request;
            let Some(link) = self.link_mut(link_slot) else { return };
            let Some(at) = link.fences.iter().position(|f| !f.asked) else { return };
            let number = link.fences[at].number;
            let Some(slot) = link.up().next() else { return };
            link.fences[at].asked = true;
            let Some(lane) = self.lanes.get_mut(slot) else { return };
            let Role::Asking(asking) = &mut lane.role else { return };
            if !asking.fences {
                if let Some(link) = self.link_mut(link_slot) {
                    let wait = link.fences.swap_remove(at);
                    self.fence_lost(wait);
                }
                continue;
            }
            let frame = Frame {
                op: FrameOp::Fence,
                status: Status::Ok,
                id,
                region: RegionId(u64::from(number)),
                generation: Generation(0),
                key: 0,
                offset: 0,
                length: 0,
                payload_crc: 0,
                trailer: false,
            };
            lane.conn.push(&frame, 0, 0, Verify::Off, None);
            asking.push(id, Asked::Fence { number });
            self.next_request += 1;
        }
    }

    fn fence_done(&mut self, link_slot: u32, number: u32) {
        let Some(link) = self.link_mut(link_slot) else { return };
        let Some(at) = link.fences.iter().position(|f| f.number == number) else { return };
        for op in link.fences.swap_remove(at).ops {
            self.fence_over(op);
        }
    }

    /// The target could not be asked: the ops say so.
    pub(crate) fn fence_lost(&mut self, wait: FenceWait) {
        for op in wait.ops {
            if let Some(state) = self.ops.get_mut(op) {
                if let Some(error) = &mut state.error {
                    error.code = match error.code {
                        OpErrorCode::Cancelled => OpErrorCode::CancelledUnfenced,
                        _ => OpErrorCode::LinkBrokenUnfenced,
                    };
                }
            }
            self.fence_over(op);
        }
    }

    fn fence_over(&mut self, op: OpSlot) {
        if let Some(state) = self.ops.get_mut(op) {
            state.fences -= 1;
        }
        self.settle(op);
    }
}
