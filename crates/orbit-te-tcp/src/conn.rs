//! One lane's stream of frames: what waits to be sent, and where what comes belongs. Rule: payloads go between the kernel
//! and the region's own memory, with no copy of ours in between; only a refused payload goes through scratch memory.

#![allow(unsafe_code)]

use crate::body::{Body, Cursor, Table, new_table};
use crate::checksum::{CHECKED_CALL_BYTES, Check, Sum, Verdict};
use crate::error::ConnError;
use crate::net::{IoRange, Stream};
use crate::outbox::{MAX_CALL_BYTES, Outgoing};
use orbit_te_memory::Lease;
use orbit_te_transport::{Pieces, Verify};
use orbit_te_wire::limits::MAX_PIECES;
use orbit_te_wire::{FRAME_BYTES, Frame, PIECE_BYTES, TRAILER_BYTES};
use std::collections::VecDeque;
use std::io;

/// Ranges in one system call: enough to carry many small frames, well under the kernel's limit of 1,024.
const MAX_RANGES: usize = 64;
/// The same where pieces of a list are among them: 256 of 4 KiB are as many bytes as one call moves, and around them are the last
/// pieces and the trailer of the payload before, a header and a table.
const MAX_LIST_RANGES: usize = 264;
/// Answers to list reads that a lane keeps for a peer that does not take them, each with its table.
pub(crate) const MAX_LIST_ANSWERS: usize = 4;
/// Bytes of a large payload that gather before the receiver is woken: about one packet of the loopback interface, and a fraction
/// of what a socket's buffer holds, so that the sender never waits for it.
const LOW_WATER_BYTES: u64 = 64 * 1024;

/// What [`Conn::receive`] found.
#[derive(Debug)]
pub(crate) enum Received {
    /// A header. If a payload follows, the caller says where it goes before it receives again.
    Frame(Frame),
    /// The table that [`Conn::expect_table`] asked for is complete, and [`Conn::take_table`] gives it.
    Table,
    /// The payload is complete, in place and looked at, or discarded.
    Payload(Verdict),
    /// The kernel could not put the payload where it belongs. The rest of it is discarded; [`Received::Payload`] follows.
    Fault,
    /// Nothing more now.
    Nothing,
}

enum Inbox {
    Header,
    /// The first bytes of a table have come.
    Table {
        got: usize,
        wanted: usize,
    },
    Payload {
        body: Body,
        at: Cursor,
        length: u64,
        remaining: u64,
        /// Where a trailer follows; it belongs to what is under way.
        check: Option<Check>,
    },
    Discard {
        remaining: u64,
    },
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
    /// Of the payload that is complete.
    verdict: Verdict,
    outbox: VecDeque<Outgoing>,
    /// Earlier requests wait for their answers: fewer calls are better than an early first byte.
    busy: bool,
    /// Tables that no list request uses now; they are used again.
    tables: Vec<Table>,
    /// The table that is being received, or was.
    table: Option<Table>,
    /// Answers to list reads in the outbox.
    list_answers: usize,
    /// Bytes that must have come before the kernel calls the socket readable.
    low_water: u64,
    /// Bytes of the outbox's first entry that the kernel has taken.
    front_sent: u64,
    /// Where in its payload they end.
    front_at: Cursor,
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
            verdict: Verdict::Good,
            outbox: VecDeque::with_capacity(frames),
            busy: false,
            tables: Vec::new(),
            table: None,
            list_answers: 0,
            low_water: 1,
            front_sent: 0,
            front_at: Cursor::default(),
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

    /// Says whether earlier requests wait for their answers.
    pub(crate) fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
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

    /// How many answers to list reads wait to be sent.
    pub(crate) fn list_answers(&self) -> usize {
        self.list_answers
    }

    /// Queues a frame with the payload at this address, if `length` is not zero.
    pub(crate) fn push(
        &mut self,
        frame: &Frame,
        address: u64,
        length: u64,
        verify: Verify,
        lease: Option<Lease>,
    ) {
        self.push_body(frame, (0, 0), Body::One(address), length, verify, lease);
    }

    /// Queues a list request: the pieces' table follows the header, and then so many bytes of the pieces.
    pub(crate) fn push_list(&mut self, frame: &Frame, pieces: Pieces, length: u64, verify: Verify) {
        let body = Body::Ours(pieces);
        let table = body.table().unwrap_or_default();
        self.push_body(frame, table, body, length, verify, None);
    }

    /// Queues the answer to a list read: `length` bytes of the first `count` pieces of this table, in the region at `base`.
    pub(crate) fn push_pieces(
        &mut self,
        frame: &Frame,
        body: Body,
        length: u64,
        verify: Verify,
        lease: Lease,
    ) {
        self.list_answers += 1;
        self.push_body(frame, (0, 0), body, length, verify, Some(lease));
    }

    fn push_body(
        &mut self,
        frame: &Frame,
        table: (u64, u64),
        body: Body,
        length: u64,
        verify: Verify,
        lease: Option<Lease>,
    ) {
        let sum = Sum::new(verify).filter(|_| length > 0);
        let trailer = [0; TRAILER_BYTES];
        let (header, id) = (frame.encode(), frame.id);
        self.outbox.push_back(Outgoing { header, id, table, body, length, sum, trailer, lease });
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

    /// Whether a request that was not taken back is not wholly with the kernel yet. Requests are queued in the order of their ids.
    pub(crate) fn is_queued(&self, id: u64) -> bool {
        self.outbox.front().is_some_and(|o| o.id <= id)
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
    pub(crate) fn expect_payload(&mut self, address: u64, length: u64, verify: Verify) {
        self.expect_body(Body::One(address), length, verify);
    }

    /// As [`Conn::expect_payload`], for a payload in pieces.
    pub(crate) fn expect_body(&mut self, body: Body, length: u64, verify: Verify) {
        debug_assert!(
            matches!(self.inbox, Inbox::Header) && length > 0,
            "one payload at a time, and not an empty one"
        );
        self.inbox = Inbox::Payload {
            body,
            at: Cursor::default(),
            length,
            remaining: length,
            check: Check::new(verify),
        };
    }

    /// The frame just received is followed by a table of so many pieces; false when it can't be one.
    pub(crate) fn expect_table(&mut self, pieces: u64) -> bool {
        if pieces == 0 || pieces > u64::from(MAX_PIECES) {
            return false;
        }
        // A lane's first lists allocate; later ones find these tables again.
        let table = self.table.take().or_else(|| self.tables.pop());
        self.table = Some(table.unwrap_or_else(new_table));
        self.inbox = Inbox::Table { got: 0, wanted: pieces as usize * PIECE_BYTES };
        true
    }

    /// The table just received. It is given back in a [`Body`], or by [`Conn::return_table`].
    pub(crate) fn take_table(&mut self) -> Table {
        self.table.take().unwrap_or_else(new_table)
    }

    /// Gives a table back.
    pub(crate) fn return_table(&mut self, table: Table) {
        if self.tables.len() < MAX_LIST_ANSWERS {
            self.tables.push(table);
        }
    }

    /// The body of the payload that is over gives its table back.
    fn end_body(&mut self, body: Body) {
        if let Body::Theirs { table, .. } = body {
            self.return_table(table);
        }
    }

    /// The payload and trailer of the frame just received, so many bytes, or the rest of what is under way, go nowhere.
    pub(crate) fn discard_payload(&mut self, length: u64) {
        let (remaining, body) = match std::mem::replace(&mut self.inbox, Inbox::Header) {
            Inbox::Payload { remaining, body, check, .. } => {
                (remaining + check.map_or(0, |check| check.left_bytes()), Some(body))
            }
            Inbox::Discard { remaining } => (remaining, None),
            Inbox::Header | Inbox::Table { .. } => (length, None),
        };
        if let Some(body) = body {
            self.end_body(body);
        }
        self.inbox = Inbox::Discard { remaining };
    }

    /// Whether a payload is under way into a region.
    pub(crate) fn is_landing(&self) -> bool {
        matches!(self.inbox, Inbox::Payload { .. })
    }

    /// Hands what is queued to the kernel, as far as it takes it.
    pub(crate) fn flush(&mut self) -> Result<(), ConnError> {
        while self.can_send() {
            self.flush_call()?;
        }
        Ok(())
    }

    /// As [`Conn::flush`], in one call, while [`Conn::can_send`]; how many bytes the kernel took.
    pub(crate) fn flush_call(&mut self) -> Result<u64, ConnError> {
        // Preparing many ranges costs more than sending a small frame does.
        if self.outbox.front().is_some_and(Outgoing::is_list) {
            self.send_ranges(&mut [IoRange::EMPTY; MAX_LIST_RANGES])
        } else {
            self.send_ranges(&mut [IoRange::EMPTY; MAX_RANGES])
        }
    }

    fn send_ranges(&mut self, ranges: &mut [IoRange]) -> Result<u64, ConnError> {
        let (used, offered) = self.gather(ranges).map_err(ConnError::Io)?;
        // SAFETY: headers are in the outbox, which does not change before the call returns; payloads are covered by
        // the entry's lease, or by the promise of `Transport::submit` for ops in flight.
        match unsafe { self.stream.send(&mut ranges[..used]) } {
            Ok(sent) => {
                self.writable = sent == offered;
                self.note_short(!self.writable);
                self.advance(sent as u64);
                let begun = self.front_sent;
                self.outbox
                    .front_mut()
                    .map_or(Ok(()), |front| front.sum_sent(begun))
                    .map_err(ConnError::Io)?;
                Ok(sent as u64)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.writable = false;
                Ok(0)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(e) => Err(ConnError::Io(e)),
        }
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

    fn gather(&mut self, ranges: &mut [IoRange]) -> io::Result<(usize, usize)> {
        let mut used = 0;
        let mut offered = 0;
        let mut skip = self.front_sent;
        let mut at = self.front_at;
        let alone = !self.busy && self.outbox.len() == 1 && skip == 0;
        for out in &mut self.outbox {
            // Room for a header, a table, a first piece and a trailer.
            let limit = if alone { out.first_call_bytes() } else { MAX_CALL_BYTES };
            if used + 4 > ranges.len() || offered >= limit {
                break;
            }
            let (count, bytes, whole) = out.offer(skip, at, &mut ranges[used..], limit - offered)?;
            used += count;
            offered += bytes;
            if !whole {
                break;
            }
            (skip, at) = (0, Cursor::default());
        }
        Ok((used, offered))
    }

    fn advance(&mut self, sent: u64) {
        let mut sent = sent;
        while let Some(front) = self.outbox.front() {
            let (whole, before) = (front.bytes(), self.front_sent);
            let now = (before + sent).min(whole);
            if now < whole {
                let behind = |bytes: u64| bytes.saturating_sub(front.ahead()).min(front.length);
                let payload = behind(now) - behind(before);
                self.front_at.advance(&front.body, front.length, payload);
                self.front_sent = now;
                return;
            }
            sent -= whole - before;
            (self.front_sent, self.front_at) = (0, Cursor::default());
            if let Some(Outgoing { body: Body::Theirs { table, .. }, .. }) = self.outbox.pop_front() {
                self.list_answers -= 1;
                self.return_table(table);
            }
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
            let listed = matches!(&self.inbox, Inbox::Payload { body, .. } if !matches!(body, Body::One(_)));
            let got = if listed {
                self.receive_once(&mut [IoRange::EMPTY; MAX_LIST_RANGES], scratch)
            } else {
                self.receive_once(&mut [IoRange::EMPTY; 3], scratch)
            };
            let (got, asked) = match got {
                Ok((0, _)) => {
                    let clean = self.header_got == 0 && matches!(self.inbox, Inbox::Header);
                    return Err(ConnError::Closed { clean });
                }
                Ok(moved) => moved,
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
            let table = matches!(self.inbox, Inbox::Table { .. });
            let complete = self.consume(got as u64, wanted);
            self.set_low_water();
            if complete {
                return Ok(if table {
                    Received::Table
                } else {
                    Received::Payload(std::mem::replace(&mut self.verdict, Verdict::Good))
                });
            }
        }
    }

    /// One call: how many bytes came, and how many were asked for.
    fn receive_once(&mut self, ranges: &mut [IoRange], scratch: &mut [u8]) -> io::Result<(usize, usize)> {
        let (count, asked) = self.targets(ranges, scratch);
        // SAFETY: the header, the table and the scratch memory are ours; a payload's addresses are covered by the lease of the
        // request being served, or by the promise of `Transport::submit` for the op being answered, or are those of the lane's own
        // buffer of notifications.
        let got = unsafe { self.stream.receive(&mut ranges[..count]) }?;
        Ok((got, asked))
    }

    /// Lets the bytes of a large payload gather before this side is woken for them: fewer, larger calls for the same bytes. Never
    /// more than what is certain to come.
    fn set_low_water(&mut self) {
        let wanted = if self.wanted() >= 2 * LOW_WATER_BYTES { LOW_WATER_BYTES } else { 1 };
        if wanted != self.low_water && self.stream.set_low_water(wanted as u32).is_ok() {
            self.low_water = wanted;
        }
    }

    /// Bytes of payload and trailer that are wanted before the next header.
    fn wanted(&self) -> u64 {
        match &self.inbox {
            Inbox::Header => 0,
            Inbox::Table { got, wanted } => (wanted - got) as u64,
            Inbox::Payload { remaining, check, .. } => {
                remaining + check.as_ref().map_or(0, Check::left_bytes)
            }
            Inbox::Discard { remaining } => *remaining,
        }
    }

    /// Where the next bytes go: how many ranges, and bytes in them. Behind the end of a payload comes the next header, in the same
    /// call; behind a table comes what only it can tell.
    fn targets(&mut self, ranges: &mut [IoRange], scratch: &mut [u8]) -> (usize, usize) {
        let header = IoRange::bytes_mut(&mut self.header[self.header_got..]);
        // An entry is its bytes, in any state: the table is received as plain memory of ours.
        let table = self.table.as_mut().map_or(0, |t| t.as_mut_ptr() as u64);
        let (mut used, mut bytes, all) = match &mut self.inbox {
            Inbox::Header => {
                ranges[0] = header;
                return (1, header.len());
            }
            Inbox::Table { got, wanted } => {
                ranges[0] = IoRange::new(table + *got as u64, *wanted - *got);
                return (1, *wanted - *got);
            }
            Inbox::Payload { body, at, length, remaining, check } => {
                let call = if check.is_some() { CHECKED_CALL_BYTES } else { MAX_CALL_BYTES };
                let most = (*remaining).min(call as u64) as usize;
                let room = ranges.len() - 2;
                let (mut used, mut bytes) = at.ranges(body, *length, &mut ranges[..room], most);
                let all = bytes as u64 == *remaining;
                if let Some(check) = check.as_mut().filter(|_| all) {
                    ranges[used] = IoRange::bytes_mut(check.left());
                    bytes += ranges[used].len();
                    used += 1;
                }
                (used, bytes, all)
            }
            Inbox::Discard { remaining } => {
                let length = (*remaining).min(scratch.len() as u64) as usize;
                ranges[0] = IoRange::bytes_mut(&mut scratch[..length]);
                (1, length, length as u64 == *remaining)
            }
        };
        if all {
            ranges[used] = header;
            used += 1;
            bytes += header.len();
        }
        (used, bytes)
    }

    /// Takes note of bytes received; whether they completed a payload or a table.
    fn consume(&mut self, got: u64, wanted: u64) -> bool {
        if wanted == 0 {
            self.header_got += got as usize;
            return false;
        }
        if let Inbox::Payload { body, length, remaining, check: Some(check), .. } = &mut self.inbox {
            let payload = got.min(*remaining);
            check.landed(body, *length, *length - *remaining + payload, got - payload);
            self.verdict = if got >= wanted { check.verdict() } else { Verdict::Good };
        }
        if got >= wanted {
            self.header_got += (got - wanted) as usize;
            if let Inbox::Payload { body, .. } = std::mem::replace(&mut self.inbox, Inbox::Header) {
                self.end_body(body);
            }
            return true;
        }
        match &mut self.inbox {
            Inbox::Payload { body, at, length, remaining, .. } => {
                let payload = got.min(*remaining);
                at.advance(body, *length, payload);
                *remaining -= payload;
            }
            Inbox::Discard { remaining } => *remaining -= got,
            Inbox::Table { got: so_far, .. } => *so_far += got as usize,
            Inbox::Header => {}
        }
        false
    }
}
