//! One lane's stream of frames: what waits to be sent, and where what comes belongs. Rule: payloads go between the kernel
//! and the region's own memory, with no copy of ours in between; only a refused payload goes through scratch memory.

#![allow(unsafe_code)]

use crate::net::{IoRange, Stream};
use orbit_te_memory::Lease;
use orbit_te_wire::{FRAME_BYTES, Frame, WireError};
use std::collections::VecDeque;
use std::io;

/// Ranges in one system call: enough to carry many small frames, well under the kernel's limit of 1,024.
const MAX_RANGES: usize = 64;
/// Bytes in one system call, so that one lane does not hold the worker for long.
const MAX_CALL_BYTES: usize = 1024 * 1024;

/// Bytes of a large payload that gather before the receiver is woken: about one packet of the loopback interface, and a fraction
/// of what a socket's buffer holds, so that the sender never waits for it.
const LOW_WATER_BYTES: u64 = 64 * 1024;

/// Why a lane ended.
#[derive(Debug)]
pub(crate) enum ConnError {
    /// The peer closed it. `clean`: between two frames.
    Closed {
        clean: bool,
    },
    Io(io::Error),
    Wire(WireError),
    /// The peer sent a frame that has no place here.
    Unexpected(&'static str),
}

impl From<ConnError> for orbit_te_transport::TransportError {
    fn from(error: ConnError) -> Self {
        let io = |source| orbit_te_transport::TransportError::Io { what: "a data lane".into(), source };
        match error {
            ConnError::Closed { clean: true } => {
                io(io::Error::new(io::ErrorKind::ConnectionAborted, "the peer closed it"))
            }
            ConnError::Closed { clean: false } => {
                io(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed it inside a frame"))
            }
            ConnError::Io(source) => io(source),
            ConnError::Wire(error) => error.into(),
            ConnError::Unexpected(what) => WireError::Invalid { what }.into(),
        }
    }
}

/// What [`Conn::receive`] found.
#[derive(Debug)]
pub(crate) enum Received {
    /// A header. If a payload follows, the caller says where it goes before it receives again.
    Frame(Frame),
    /// The payload is complete, in place or discarded.
    Payload,
    /// The kernel could not put the payload where it belongs. The rest of it is discarded; [`Received::Payload`] follows.
    Fault,
    /// Nothing more now.
    Nothing,
}

enum Inbox {
    Header,
    Payload { address: u64, remaining: u64 },
    Discard { remaining: u64 },
}

/// Whether the last call moved less than it might have. Mostly that means that the kernel has no more (no room, no bytes), and
/// an event follows; but a page of the region that can't be touched looks the same, and only another call tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Short {
    No,
    Yes,
    /// And [`Conn::moved_short`] has said so.
    Noted,
}

struct Outgoing {
    header: [u8; FRAME_BYTES],
    id: u64,
    address: u64,
    length: u64,
    /// Keeps the payload's region until the kernel has taken the bytes; the initiating side's ops have their own.
    lease: Option<Lease>,
}

impl Outgoing {
    fn bytes(&self) -> u64 {
        FRAME_BYTES as u64 + self.length
    }
}

/// A connected, non-blocking stream and its frames.
pub(crate) struct Conn<S> {
    stream: S,
    /// Edge-triggered readiness: set by an event, cleared when the kernel has no more.
    readable: bool,
    writable: bool,
    /// The peer has closed its side: a short read no longer means that nothing is left.
    read_closed: bool,
    short: Short,
    header: [u8; FRAME_BYTES],
    header_got: usize,
    inbox: Inbox,
    outbox: VecDeque<Outgoing>,
    /// Bytes that must have come before the kernel calls the socket readable.
    low_water: u64,
    /// Bytes of the outbox's first entry that the kernel has taken.
    front_sent: u64,
}

impl<S: Stream> Conn<S> {
    pub(crate) fn new(stream: S, frames: usize) -> Conn<S> {
        Conn {
            stream,
            readable: false,
            writable: false,
            read_closed: false,
            short: Short::No,
            header: [0; FRAME_BYTES],
            header_got: 0,
            inbox: Inbox::Header,
            outbox: VecDeque::with_capacity(frames),
            low_water: 1,
            front_sent: 0,
        }
    }

    pub(crate) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Takes an event's readiness.
    pub(crate) fn ready(&mut self, readable: bool, writable: bool, read_closed: bool) {
        self.readable |= readable || read_closed;
        self.writable |= writable;
        self.read_closed |= read_closed;
    }

    /// Whether queued frames can be sent now.
    pub(crate) fn can_send(&self) -> bool {
        self.writable && !self.outbox.is_empty()
    }

    /// Whether something may have come that was not taken yet.
    pub(crate) fn can_receive(&self) -> bool {
        self.readable || self.header_got == FRAME_BYTES
    }

    /// Whether the peer has closed its side.
    pub(crate) fn is_closing(&self) -> bool {
        self.read_closed
    }

    /// How many frames wait to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.outbox.len()
    }

    /// Queues a frame with the payload at this address, if `length` is not zero.
    pub(crate) fn push(&mut self, frame: &Frame, address: u64, length: u64, lease: Option<Lease>) {
        self.outbox.push_back(Outgoing { header: frame.encode(), id: frame.id, address, length, lease });
    }

    /// The leases of what waits to be sent.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.outbox.iter().filter_map(|out| out.lease.as_ref())
    }

    /// Takes a frame back that has not begun to be sent.
    pub(crate) fn withdraw(&mut self, id: u64) -> bool {
        let started = usize::from(self.front_sent > 0);
        let found = self.outbox.iter().skip(started).position(|o| o.id == id);
        found.is_some_and(|at| self.outbox.remove(started + at).is_some())
    }

    /// Whether a frame has begun to be sent, or is already with the peer.
    pub(crate) fn has_begun(&self, id: u64) -> bool {
        match self.outbox.iter().position(|o| o.id == id) {
            Some(0) => self.front_sent > 0,
            Some(_) => false,
            None => true,
        }
    }

    /// Says where the payload of the frame just received goes.
    pub(crate) fn expect_payload(&mut self, address: u64, length: u64) {
        debug_assert!(
            matches!(self.inbox, Inbox::Header) && length > 0,
            "one payload at a time, and not an empty one"
        );
        self.inbox = Inbox::Payload { address, remaining: length };
    }

    /// The payload of the frame just received, or the rest of the one under way, goes nowhere.
    pub(crate) fn discard_payload(&mut self, length: u64) {
        let remaining = match self.inbox {
            Inbox::Payload { remaining, .. } | Inbox::Discard { remaining } => remaining,
            Inbox::Header => length,
        };
        self.inbox = Inbox::Discard { remaining };
    }

    /// Whether a payload is under way into a region.
    pub(crate) fn is_landing(&self) -> bool {
        matches!(self.inbox, Inbox::Payload { .. })
    }

    /// Hands what is queued to the kernel, as far as it takes it.
    pub(crate) fn flush(&mut self) -> Result<(), ConnError> {
        while self.writable && !self.outbox.is_empty() {
            let mut ranges = [IoRange::EMPTY; MAX_RANGES];
            let (used, offered) = self.gather(&mut ranges);
            // SAFETY: headers are in the outbox, which does not change before the call returns; payloads are covered by
            // the entry's lease, or by the promise of `Transport::submit` for ops in flight.
            match unsafe { self.stream.send(&mut ranges[..used]) } {
                Ok(sent) => {
                    self.writable = sent == offered;
                    self.note_short(!self.writable);
                    self.advance(sent as u64);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(ConnError::Io(e)),
            }
        }
        Ok(())
    }

    fn note_short(&mut self, short: bool) {
        if short && self.short == Short::No {
            self.short = Short::Yes;
        }
    }

    /// Whether a call since the last [`Conn::try_again`] moved less than it might have; says so once.
    pub(crate) fn moved_short(&mut self) -> bool {
        let news = self.short == Short::Yes;
        if news {
            self.short = Short::Noted;
        }
        news
    }

    /// Asks the kernel again after a short call, before anybody sleeps on it.
    pub(crate) fn try_again(&mut self) {
        self.short = Short::No;
        self.readable |= self.is_landing();
        self.writable |= !self.outbox.is_empty();
    }

    fn gather(&self, ranges: &mut [IoRange; MAX_RANGES]) -> (usize, usize) {
        let mut used = 0;
        let mut offered = 0;
        let mut skip = self.front_sent;
        for out in &self.outbox {
            if used + 2 > MAX_RANGES || offered >= MAX_CALL_BYTES {
                break;
            }
            let head_skip = skip.min(FRAME_BYTES as u64);
            if head_skip < FRAME_BYTES as u64 {
                ranges[used] = IoRange::bytes(&out.header[head_skip as usize..]);
                offered += ranges[used].len();
                used += 1;
            }
            let body_skip = skip - head_skip;
            if out.length > body_skip {
                let length = (out.length - body_skip).min(MAX_CALL_BYTES as u64) as usize;
                ranges[used] = IoRange::new(out.address + body_skip, length);
                offered += length;
                used += 1;
                if (length as u64) < out.length - body_skip {
                    break;
                }
            }
            skip = 0;
        }
        (used, offered)
    }

    fn advance(&mut self, sent: u64) {
        self.front_sent += sent;
        while let Some(front) = self.outbox.front() {
            if self.front_sent < front.bytes() {
                break;
            }
            self.front_sent -= front.bytes();
            self.outbox.pop_front();
        }
    }

    /// The next thing from the peer.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Result<Received, ConnError> {
        loop {
            if self.header_got == FRAME_BYTES && matches!(self.inbox, Inbox::Header) {
                self.header_got = 0;
                return Frame::decode(&self.header).map(Received::Frame).map_err(ConnError::Wire);
            }
            if !self.readable {
                return Ok(Received::Nothing);
            }
            let wanted = self.wanted();
            let (mut ranges, count) = self.targets(scratch);
            let asked: usize = ranges[..count].iter().map(IoRange::len).sum();
            // SAFETY: the header and the scratch memory are ours; a payload's address is covered by the lease of the
            // request being served, or by the promise of `Transport::submit` for the op being answered.
            let got = match unsafe { self.stream.receive(&mut ranges[..count]) } {
                Ok(0) => {
                    let clean = self.header_got == 0 && matches!(self.inbox, Inbox::Header);
                    return Err(ConnError::Closed { clean });
                }
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(Received::Nothing);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) && self.is_landing() => {
                    self.discard_payload(0);
                    return Ok(Received::Fault);
                }
                Err(e) => return Err(ConnError::Io(e)),
            };
            // A short count means that the kernel has no more: the next byte brings a new event.
            self.readable = got == asked || self.read_closed;
            self.note_short((got as u64) < wanted && self.is_landing());
            let complete = self.consume(got as u64, wanted);
            self.set_low_water();
            if complete {
                return Ok(Received::Payload);
            }
        }
    }

    /// Lets the bytes of a large payload gather before this side is woken for them: fewer, larger calls for the same bytes. Never
    /// more than what is certain to come.
    fn set_low_water(&mut self) {
        let wanted = if self.wanted() >= 2 * LOW_WATER_BYTES { LOW_WATER_BYTES } else { 1 };
        if wanted != self.low_water && self.stream.set_low_water(wanted as u32).is_ok() {
            self.low_water = wanted;
        }
    }

    /// Bytes of payload that are wanted before the next header.
    fn wanted(&self) -> u64 {
        match self.inbox {
            Inbox::Header => 0,
            Inbox::Payload { remaining, .. } | Inbox::Discard { remaining } => remaining,
        }
    }

    /// Where the next bytes go. Behind the end of a payload comes the next header, in the same call.
    fn targets(&mut self, scratch: &mut [u8]) -> ([IoRange; 2], usize) {
        let header = IoRange::bytes_mut(&mut self.header[self.header_got..]);
        let (first, all) = match self.inbox {
            Inbox::Header => return ([header, IoRange::EMPTY], 1),
            Inbox::Payload { address, remaining } => {
                let length = remaining.min(MAX_CALL_BYTES as u64);
                (IoRange::new(address, length as usize), length == remaining)
            }
            Inbox::Discard { remaining } => {
                let length = remaining.min(scratch.len() as u64) as usize;
                (IoRange::bytes_mut(&mut scratch[..length]), length as u64 == remaining)
            }
        };
        if all { ([first, header], 2) } else { ([first, IoRange::EMPTY], 1) }
    }

    /// Takes note of bytes received; whether they completed a payload.
    fn consume(&mut self, got: u64, wanted: u64) -> bool {
        if wanted == 0 {
            self.header_got += got as usize;
            return false;
        }
        if got >= wanted {
            self.header_got += (got - wanted) as usize;
            self.inbox = Inbox::Header;
            return true;
        }
        match &mut self.inbox {
            Inbox::Payload { address, remaining } => {
                *address += got;
                *remaining -= got;
            }
            Inbox::Discard { remaining } => *remaining -= got,
            Inbox::Header => {}
        }
        false
    }
}
