//! One connection: two ends, and the bytes on their way between them. Rule: bytes keep their order, and occupy room from when they are
//! sent until they are taken.

use crate::check::touch::Side;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::task::Waker;

/// One end.
#[derive(Default)]
pub(crate) struct End {
    /// Whose it is; none before it was accepted.
    pub(crate) life: Option<usize>,
    pub(crate) open: bool,
    pub(crate) error: Option<ErrorKind>,
    pub(crate) registered: Option<(Side, usize)>,
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
}

/// One direction.
pub(super) struct Pipe {
    room: usize,
    under_way: VecDeque<(u64, Vec<u8>)>,
    arrived: VecDeque<u8>,
    /// Bytes sent and not taken.
    held: usize,
    free_at_ns: u64,
    last_at_ns: u64,
    /// The sender waits for room.
    pub(super) starved: bool,
    pub(super) shut: bool,
    pub(super) fin: bool,
}

impl Pipe {
    pub(super) fn free(&self) -> usize {
        self.room - self.held
    }

    pub(super) fn arrived(&self) -> usize {
        self.arrived.len()
    }

    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        self.held -= count;
        self.arrived.drain(..count).collect()
    }

    pub(super) fn clear(&mut self) {
        self.held -= self.arrived.len();
        self.arrived.clear();
    }
}

pub(super) struct Conn {
    pub(super) to: SocketAddr,
    pub(super) delay_ns: u64,
    ns_per_kib: u64,
    /// Nothing gets through any more.
    pub(super) hole: bool,
    pub(super) ends: [End; 2],
    /// By the end that receives.
    pipes: [Pipe; 2],
}

impl Conn {
    pub(super) fn new(life: usize, to: SocketAddr, delay_ns: u64, ns_per_kib: u64, room: usize) -> Conn {
        let pipe = || Pipe {
            room,
            under_way: VecDeque::new(),
            arrived: VecDeque::new(),
            held: 0,
            free_at_ns: 0,
            last_at_ns: 0,
            starved: false,
            shut: false,
            fin: false,
        };
        let ours = End { life: Some(life), open: true, ..End::default() };
        let theirs = End { open: true, ..End::default() };
        Conn { to, delay_ns, ns_per_kib, hole: false, ends: [ours, theirs], pipes: [pipe(), pipe()] }
    }

    pub(super) fn up(&mut self, life: usize) {
        self.ends[1].life = Some(life);
    }

    pub(super) fn is_up(&self) -> bool {
        self.ends[1].life.is_some()
    }

    pub(super) fn pipe_to(&mut self, end: usize) -> &mut Pipe {
        &mut self.pipes[end]
    }

    pub(super) fn pipe_from(&mut self, end: usize) -> &mut Pipe {
        &mut self.pipes[1 - end]
    }

    /// When the bytes arrive; none if they get lost.
    pub(super) fn send(&mut self, from: usize, bytes: Vec<u8>, now_ns: u64, jitter_ns: u64) -> Option<u64> {
        let (delay, ns_per_kib, hole) = (self.delay_ns, self.ns_per_kib, self.hole);
        let pipe = self.pipe_from(from);
        pipe.held += bytes.len();
        if hole {
            return None;
        }
        pipe.free_at_ns = pipe.free_at_ns.max(now_ns) + bytes.len() as u64 * ns_per_kib / 1024;
        let at = (pipe.free_at_ns + delay + jitter_ns).max(pipe.last_at_ns);
        pipe.last_at_ns = at;
        pipe.under_way.push_back((at, bytes));
        Some(at)
    }

    /// Puts down what has arrived; how many bytes.
    pub(super) fn arrive(&mut self, end: usize, now_ns: u64) -> usize {
        let lost = !self.ends[end].open || self.ends[end].error.is_some();
        let pipe = self.pipe_to(end);
        let mut count = 0;
        while pipe.under_way.front().is_some_and(|(at, _)| *at <= now_ns) {
            if let Some((_, bytes)) = pipe.under_way.pop_front() {
                count += bytes.len();
                if lost {
                    pipe.held -= bytes.len();
                } else {
                    pipe.arrived.extend(bytes);
                }
            }
        }
        count
    }

    /// Nothing more is sent from an end; when the other is told.
    pub(super) fn shut(&mut self, from: usize, now_ns: u64) -> Option<u64> {
        let (delay, hole) = (self.delay_ns, self.hole);
        let pipe = self.pipe_from(from);
        if std::mem::replace(&mut pipe.shut, true) || hole {
            return None;
        }
        Some((pipe.free_at_ns.max(now_ns) + delay).max(pipe.last_at_ns))
    }
}
