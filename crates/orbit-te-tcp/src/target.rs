//! The side that answers: takes a peer's lane, checks every request, and moves bytes between the socket and the region's own
//! memory. Rule: a request is checked before a byte of it moves, and a write is answered after its last byte is in place.

use crate::checksum::{Verdict, tell_damaged_write};
use crate::conn::{Conn, Received};
use crate::error::ConnError;
use crate::lane::{Answering, Landing, Lane, Role};
use crate::listener::{Incoming, refuse};
use crate::net::Net;
use crate::sys;
use crate::transport::TcpTransport;
use orbit_te_memory::registry::admit;
use orbit_te_memory::{Access, AdmitError, Lease, Request};
use orbit_te_transport::{TransportError, Verify};
use orbit_te_wire::{AuthSlot, Frame, FrameOp, HelloReply, Role as HelloRole, SessionId, Status};
use std::io::Write;
use std::time::Instant;

/// Frames handled on one lane before others get their turn.
const SERVE_FRAMES: usize = 256;
/// Answers are sent together, but not held back for longer than so many frames or bytes.
const FLUSH_FRAMES: usize = 32;
const FLUSH_BYTES: u64 = 256 * 1024;

impl<N: Net> TcpTransport<N> {
    /// Takes a peer's lane that a [`crate::Listener`] has let in, answers its hello and serves it from now on. All lanes of a
    /// session go to the same transport. The caller has checked that the session may have lanes here.
    ///
    /// # Errors
    /// [`TransportError::Io`] when the socket can't be set up. A lane that breaks a rule (no lane at all, a number that was
    /// used, too many lanes) is refused with words for the peer, and [`TransportError::BadAddress`] says the same here.
    pub fn adopt(&mut self, incoming: Incoming<N::Stream>) -> Result<(), TransportError> {
        let Incoming { mut stream, from, hello, terms } = incoming;
        let mut no = |reason: &str| {
            refuse(&mut stream, reason);
            Err(TransportError::BadAddress {
                transport: crate::address::TRANSPORT,
                reason: reason.to_string(),
            })
        };
        let HelloRole::Lane { session, lane: number } = hello.role else {
            return no("this is a control link, not a data lane");
        };
        let known = self.sessions.entry(session).or_default();
        if known.fenced.contains(&number) || known.lanes.contains_key(&number) {
            return no("the lane's number was used before; take another");
        }
        if known.lanes.len() >= terms.limits.session_lanes as usize {
            return no("the session has as many lanes as were agreed");
        }
        let io = |what: &'static str| move |source| TransportError::Io { what: what.to_string(), source };
        self.net.adopt(&stream, from, &self.config).map_err(io("setting up a peer's lane"))?;
        let reply = HelloReply::Accepted {
            version: terms.version,
            peer: self.identity.peer,
            incarnation: self.identity.incarnation,
            session,
            features: terms.features,
            limits: terms.limits,
            auth: AuthSlot::default(),
        };
        // An answer of some hundred bytes always fits into the buffer of a new socket.
        stream.write_all(&reply.encode()?).map_err(io("answering a lane's hello"))?;
        let slot = self.lanes.reserve();
        if let Err(source) = self.net.register(&mut stream, slot) {
            self.lanes.release(slot);
            return Err(TransportError::Io { what: "registering a peer's lane".into(), source });
        }
        tracing::debug!(peer = %hello.peer, %session, lane = number, %from, "a peer's lane");
        let conn = Conn::new(stream, terms.limits.lane_requests as usize + 1);
        let holder = self.grants.of(session);
        let role = Role::Answering(Answering {
            session,
            number,
            limits: terms.limits,
            holder,
            landing: None,
            notification: Vec::new(),
            listing: None,
        });
        self.lanes.put(slot, Lane { conn, role, listed: false });
        self.sessions.entry(session).or_default().lanes.insert(number, slot);
        Ok(())
    }

    /// Closes all lanes of a session, as when its control link is gone. Nothing of them lands afterwards.
    pub fn drop_session(&mut self, session: SessionId, now: Instant) {
        let Some(known) = self.sessions.remove(&session) else { return };
        for slot in known.lanes.into_values() {
            self.close_answering(slot, now);
        }
    }

    /// Closes the lanes of peers whose requests hold such a lease; how many. Nothing of theirs lands afterwards. For peers that
    /// stall: the kernel is given no more time to send or receive the rest.
    pub fn evict(&mut self, which: &dyn Fn(&Lease) -> bool, now: Instant) -> usize {
        let stalled: Vec<_> =
            self.lanes.iter().filter(|(_, lane)| lane.holds(which)).map(|(slot, _)| slot).collect();
        for slot in &stalled {
            self.close_answering(*slot, now);
        }
        stalled.len()
    }

    /// How many lanes of peers are served.
    pub fn answering_lanes(&self) -> usize {
        self.sessions.values().map(|s| s.lanes.len()).sum()
    }

    fn close_answering(&mut self, slot: usize, now: Instant) {
        if let Some(lane) = self.lanes.take(slot) {
            let source = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
            self.lane_broke(
                slot,
                lane,
                TransportError::Io { what: "the lane was closed here".into(), source },
                now,
            );
        }
    }

    /// Takes requests.
    pub(crate) fn serve_answering(
        &mut self,
        lane: &mut Lane<N::Stream>,
        now: Instant,
    ) -> Result<(), TransportError> {
        let Role::Answering(answering) = &mut lane.role else { return Ok(()) };
        let conn = &mut lane.conn;
        conn.flush()?;
        // The first answer of a round goes at once, for the sake of a peer with one request; later ones go together.
        let (mut frames, mut bytes) = (FLUSH_FRAMES, 0);
        for _ in 0..SERVE_FRAMES {
            if answering.is_deaf(conn) {
                conn.flush()?;
                if answering.is_deaf(conn) {
                    break;
                }
            }
            match conn.receive(&mut self.scratch)? {
                Received::Nothing => break,
                Received::Frame(frame) => bytes += self.take_request(frame, answering, conn, now)?,
                Received::Table => {
                    if let Some(frame) = answering.listing.take() {
                        bytes += self.take_list(frame, answering, conn, now);
                    }
                }
                Received::Payload(verdict) => {
                    if let Some(landing) = answering.landing.take() {
                        let answer = match verdict {
                            _ if landing.frame.op == FrameOp::Notify => {
                                self.notified(&landing.frame, answering)?
                            }
                            Verdict::Good => landing.frame.answer(FrameOp::WriteDone, landing.status),
                            Verdict::Unreadable => {
                                landing.frame.answer(FrameOp::WriteDone, Status::MemoryFault)
                            }
                            Verdict::Damaged { expected, found } => {
                                tell_damaged_write(&landing.frame, answering, expected, found);
                                landing.frame.damaged(expected, found)
                            }
                        };
                        let answer = landing.piece.map_or(answer, |piece| answer.about_piece(piece));
                        conn.push(&answer, 0, 0, Verify::Off, None);
                    }
                }
                Received::Fault => {
                    if let Some(landing) = &mut answering.landing {
                        landing.status = Status::MemoryFault;
                        landing.lease = None;
                    }
                }
            }
            frames += 1;
            if frames >= FLUSH_FRAMES || bytes >= FLUSH_BYTES {
                conn.flush()?;
                (frames, bytes) = (0, 0);
            }
        }
        conn.flush()?;
        Ok(())
    }

    /// Begins a request; the bytes that it moves.
    fn take_request(
        &mut self,
        frame: Frame,
        answering: &mut Answering,
        conn: &mut Conn<N::Stream>,
        now: Instant,
    ) -> Result<u64, ConnError> {
        let over_limit = frame.length > answering.limits.payload_bytes;
        match frame.op {
            FrameOp::Write if over_limit => {
                return Err(ConnError::Unexpected("a write is longer than the agreed limit"));
            }
            FrameOp::Write => {
                let (status, lease) = match self.admit(&frame, Access::REMOTE_WRITE, answering, now) {
                    Ok(lease) => (Status::Ok, Some(lease)),
                    Err(error) => (error.status(), None),
                };
                if frame.length == 0 {
                    conn.push(&frame.answer(FrameOp::WriteDone, status), 0, 0, Verify::Off, None);
                    return Ok(0);
                }
                match &lease {
                    Some(lease) => {
                        conn.expect_payload(address(lease, &frame), frame.length, verify(&frame, lease));
                    }
                    None => conn.discard_payload(frame.length + frame.trailer_bytes()),
                }
                answering.landing = Some(Landing { frame, status, lease, piece: None });
            }
            FrameOp::WriteList if over_limit => {
                return Err(ConnError::Unexpected("a list write is longer than the agreed limit"));
            }
            FrameOp::WriteList | FrameOp::ReadList => {
                if !conn.expect_table(frame.pieces()) {
                    return Err(ConnError::Unexpected("a list of no pieces, or of more than 1,024"));
                }
                answering.listing = Some(frame);
                return Ok(0);
            }
            FrameOp::Read => {
                let admitted = if over_limit {
                    Err(AdmitError::BadLength)
                } else {
                    self.admit(&frame, Access::REMOTE_READ, answering, now)
                };
                match admitted {
                    // The answer says that the bytes follow: for memory that may be gone, that is looked at first.
                    Ok(lease) if lease.region().backing().may_vanish() && !is_there(&lease, &frame) => {
                        conn.push(
                            &frame.answer(FrameOp::ReadDone, Status::MemoryFault),
                            0,
                            0,
                            Verify::Off,
                            None,
                        );
                    }
                    Ok(lease) => {
                        let from = address(&lease, &frame);
                        conn.push(
                            &frame.answer(FrameOp::ReadDone, Status::Ok),
                            from,
                            frame.length,
                            verify(&frame, &lease),
                            Some(lease),
                        );
                    }
                    Err(error) => {
                        conn.push(&frame.answer(FrameOp::ReadDone, error.status()), 0, 0, Verify::Off, None)
                    }
                }
            }
            FrameOp::Fence => {
                let number = u32::try_from(frame.region.0)
                    .map_err(|_| ConnError::Unexpected("no such lane number"))?;
                if number == answering.number {
                    return Err(ConnError::Unexpected("a lane asked to fence itself"));
                }
                self.fence(answering.session, number, now)?;
                conn.push(&frame.answer(FrameOp::FenceDone, Status::Ok), 0, 0, Verify::Off, None);
                return Ok(0);
            }
            FrameOp::Notify => self.take_notification(frame, answering, conn)?,
            FrameOp::WriteDone | FrameOp::ReadDone | FrameOp::FenceDone | FrameOp::NotifyDone => {
                return Err(ConnError::Unexpected("an answer where a request was expected"));
            }
        }
        Ok(frame.length)
    }

    pub(crate) fn admit(
        &self,
        frame: &Frame,
        access: Access,
        answering: &Answering,
        now: Instant,
    ) -> Result<Lease, AdmitError> {
        let request = Request {
            region: frame.region,
            generation: frame.generation,
            key: frame.key,
            offset: frame.offset,
            length: frame.length,
            access,
        };
        admit(&self.regions.load(), &answering.holder, &request, now)
    }

    /// Closes a lane of the session, and never takes its number again.
    fn fence(&mut self, session: SessionId, number: u32, now: Instant) -> Result<(), ConnError> {
        let Some(known) = self.sessions.get_mut(&session) else { return Ok(()) };
        if known.fenced.len() >= MAX_FENCED {
            return Err(ConnError::Unexpected("too many lanes of one session were fenced"));
        }
        known.fenced.insert(number);
        if let Some(slot) = known.lanes.remove(&number) {
            self.close_answering(slot, now);
        }
        Ok(())
    }
}

/// The numbers of fenced lanes that are remembered for a session; a peer that fences more is cut off.
const MAX_FENCED: usize = 65_536;

fn address(lease: &Lease, frame: &Frame) -> u64 {
    lease.region().as_ptr().as_ptr() as u64 + frame.offset
}

/// Whether the ends of what is to be read can be touched. Cutting a file short takes its last pages first.
fn is_there(lease: &Lease, frame: &Frame) -> bool {
    let first = address(lease, frame);
    sys::is_readable(first) && sys::is_readable(first + frame.length - 1)
}

/// Whether the payload of a request has a trailer, and how its sum is made.
pub(crate) fn verify(frame: &Frame, lease: &Lease) -> Verify {
    if frame.trailer { Verify::on(lease.region().backing().may_vanish()) } else { Verify::Off }
}
