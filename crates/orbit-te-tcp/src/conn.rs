//! One lane's stream of frames: what waits to be sent, and where what comes belongs. Rule: payloads go between the kernel
//! and the region's own memory, with no copy of ours in between; only a refused payload goes through scratch memory.

#![allow(unsafe_code)]

use crate::body::{Body, Cursor, Table, new_table};
use crate::net::{IoRange, Stream};
use orbit_te_memory::Lease;
use orbit_te_transport::Pieces;
use orbit_te_wire::limits::MAX_PIECES;
use orbit_te_wire::{FRAME_BYTES, Frame, PIECE_BYTES, WireError};
use std::collections::VecDeque;
use std::io;

/// Ranges in one system call: enough to carry many small frames, well under the kernel's limit of 1,024.
const MAX_RANGES: usize = 64;
/// The same where pieces of a list are among them: 256 of 4 KiB are as many bytes as one call moves.
const MAX_LIST_RANGES: usize = 258;
/// Answers to list reads that a lane keeps for a peer that does not take them, each with its table.
pub(crate) const MAX_LIST_ANSWERS: usize = 4;
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
    /// The table that [`Conn::expect_table`] asked for is complete, and [`Conn::take_table`] gives it.
    Table,
    /// The payload is complete, in place or discarded.
    Payload,
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

struct Outgoing {
    header: [u8; FRAME_BYTES],
    id: u64,
    /// The table between header and payload: its address and its bytes.
    table: (u64, u64),
    body: Body,
    length: u64,
    /// Keeps the payload's region until the kernel has taken the bytes; the initiating side's ops have their own.
    lease: Option<Lease>,
}

impl Outgoing {
    fn bytes(&self) -> u64 {
        FRAME_BYTES as u64 + self.table.1 + self.length
    }

    /// Whether it needs many ranges.
    fn is_list(&self) -> bool {
        !matches!(self.body, Body::One(_))
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
            outbox: VecDeque::with_capacity(frames),
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
    pub(crate) fn push(&mut self, frame: &Frame, address: u64, length: u64, lease: Option<Lease>) {
        self.push_body(frame, (0, 0), Body::One(address), length, lease);
    }

    /// Queues a list request: the pieces' table follows the header, and then so many bytes of the pieces.
    pub(crate) fn push_list(&mut self, frame: &Frame, pieces: Pieces, length: u64) {
        let body = Body::Ours(pieces);
        let table = body.table().unwrap_or_default();
        self.push_body(frame, table, body, length, None);
    }

    /// Queues the answer to a list read: `length` bytes of the first `count` pieces of this table, in the region at `base`.
    pub(crate) fn push_pieces(&mut self, frame: &Frame, body: Body, length: u64, lease: Lease) {
        self.list_answers += 1;
        self.push_body(frame, (0, 0), body, length, Some(lease));
    }

    fn push_body(&mut self, frame: &Frame, table: (u64, u64), body: Body, length: u64, lease: Option<Lease>) {
        let (header, id) = (frame.encode(), frame.id);
        self.outbox.push_back(Outgoing { header, id, table, body, length, lease });
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

    /// Whether a frame is not wholly with the kernel yet.
    pub(crate) fn is_queued(&self, id: u64) -> bool {
        self.outbox.iter().any(|o| o.id == id)
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
        self.expect_body(Body::One(address), length);
    }

    /// As [`Conn::expect_payload`], for a payload in pieces.
    pub(crate) fn expect_body(&mut self, body: Body, length: u64) {
        debug_assert!(
            matches!(self.inbox, Inbox::Header) && length > 0,
            "one payload at a time, and not an empty one"
        );
        self.inbox = Inbox::Payload { body, at: Cursor::default(), length, remaining: length };
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

    /// The payload of the frame just received, or the rest of the one under way, goes nowhere.
    pub(crate) fn discard_payload(&mut self, length: u64) {
        let (remaining, body) = match std::mem::replace(&mut self.inbox, Inbox::Header) {
            Inbox::Payload { remaining, body, .. } => (remaining, Some(body)),
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
        while self.writable && !self.outbox.is_empty() {
            // Preparing many ranges costs more than sending a small frame does.
            if self.outbox[0].is_list() {
                self.flush_once(&mut [IoRange::EMPTY; MAX_LIST_RANGES])?;
            } else {
                self.flush_once(&mut [IoRange::EMPTY; MAX_RANGES])?;
            }
        }
        Ok(())
    }

    fn flush_once(&mut self, ranges: &mut [IoRange]) -> Result<(), ConnError> {
        let (used, offered) = self.gather(ranges);
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

    fn gather(&self, ranges: &mut [IoRange]) -> (usize, usize) {
        let mut used = 0;
        let mut offered = 0;
        let mut skip = self.front_sent;
        let mut at = self.front_at;
        for out in &self.outbox {
            // Room for a header, a table and a first piece.
            if used + 3 > ranges.len() || offered >= MAX_CALL_BYTES {
                break;
            }
            let head = FRAME_BYTES as u64;
            if skip < head {
                ranges[used] = IoRange::bytes(&out.header[skip as usize..]);
                offered += ranges[used].len();
                used += 1;
            }
            let (table, table_bytes) = out.table;
            let table_skip = skip.saturating_sub(head).min(table_bytes);
            if table_skip < table_bytes {
                ranges[used] = IoRange::new(table + table_skip, (table_bytes - table_skip) as usize);
                offered += ranges[used].len();
                used += 1;
            }
            let left = out.length - skip.saturating_sub(head + table_bytes);
            if left > 0 {
                let most = left.min(MAX_CALL_BYTES as u64) as usize;
                let (count, bytes) = at.ranges(&out.body, out.length, &mut ranges[used..], most);
                used += count;
                offered += bytes;
                if (bytes as u64) < left {
                    break;
                }
            }
            (skip, at) = (0, Cursor::default());
        }
        (used, offered)
    }

    fn advance(&mut self, sent: u64) {
        let mut sent = sent;
        while let Some(front) = self.outbox.front() {
            let (whole, before) = (front.bytes(), self.front_sent);
            let now = (before + sent).min(whole);
            if now < whole {
                let ahead = FRAME_BYTES as u64 + front.table.1;
                let payload = now.saturating_sub(ahead) - before.saturating_sub(ahead);
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
                self.receive_once(&mut [IoRange::EMPTY; 2], scratch)
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
                return Ok(if table { Received::Table } else { Received::Payload });
            }
        }
    }

    /// One call: how many bytes came, and how many were asked for.
    fn receive_once(&mut self, ranges: &mut [IoRange], scratch: &mut [u8]) -> io::Result<(usize, usize)> {
        let (count, asked) = self.targets(ranges, scratch);
        // SAFETY: the header, the table and the scratch memory are ours; a payload's addresses are covered by the lease of the
        // request being served, or by the promise of `Transport::submit` for the op being answered.
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

    /// Bytes of payload that are wanted before the next header.
    fn wanted(&self) -> u64 {
        match self.inbox {
            Inbox::Header => 0,
            Inbox::Table { got, wanted } => (wanted - got) as u64,
            Inbox::Payload { remaining, .. } | Inbox::Discard { remaining } => remaining,
        }
    }

    /// Where the next bytes go: how many ranges, and bytes in them. Behind the end of a payload comes the next header, in the same
    /// call; behind a table comes what only it can tell.
    fn targets(&mut self, ranges: &mut [IoRange], scratch: &mut [u8]) -> (usize, usize) {
        let header = IoRange::bytes_mut(&mut self.header[self.header_got..]);
        // An entry is its bytes, in any state: the table is received as plain memory of ours.
        let table = self.table.as_mut().map_or(0, |t| t.as_mut_ptr() as u64);
        let (mut used, mut bytes, all) = match &self.inbox {
            Inbox::Header => {
                ranges[0] = header;
                return (1, header.len());
            }
            Inbox::Table { got, wanted } => {
                ranges[0] = IoRange::new(table + *got as u64, wanted - got);
                return (1, wanted - got);
            }
            Inbox::Payload { body, at, length, remaining } => {
                let most = (*remaining).min(MAX_CALL_BYTES as u64) as usize;
                let room = ranges.len() - 1;
                let (used, bytes) = at.ranges(body, *length, &mut ranges[..room], most);
                (used, bytes, bytes as u64 == *remaining)
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
        if got >= wanted {
            self.header_got += (got - wanted) as usize;
            if let Inbox::Payload { body, .. } = std::mem::replace(&mut self.inbox, Inbox::Header) {
                self.end_body(body);
            }
            return true;
        }
        match &mut self.inbox {
            Inbox::Payload { body, at, length, remaining } => {
                at.advance(body, *length, got);
                *remaining -= got;
            }
            Inbox::Discard { remaining } => *remaining -= got,
            Inbox::Table { got: so_far, .. } => *so_far += got as usize,
            Inbox::Header => {}
        }
        false
    }
}
