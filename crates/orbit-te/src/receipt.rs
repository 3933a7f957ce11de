//! What is known of a transfer's requests, and the record of its end. Rule: each request ends in its record exactly once; a failure
//! of one hides no other; a success costs its record one store.

use crate::error::TransferError;
use crate::route::{MAX_ROUTES, RouteId, RouteSet};
use crate::router::Attempt;
use orbit_te_transport::{OpError, OpErrorCode};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// How much of what was asked for is in place at the side that was to receive it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Landed {
    /// Not a byte.
    Nothing,
    /// Some bytes, or it is not known how many.
    Partly,
    /// Every byte.
    Whole,
}

/// Where one request stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestState {
    /// It has not begun.
    Waiting,
    /// A transport has it.
    UnderWay,
    /// All its bytes are in place.
    Done {
        /// How many.
        bytes: u64,
    },
    /// It failed.
    Failed {
        /// Bytes that are known to be in place.
        bytes: u64,
        /// What went wrong.
        error: OpError,
        /// What is known of the cause.
        cause: Option<Arc<str>>,
        /// What became of its bytes.
        landed: Landed,
    },
    /// It was given up: by a cancel, at the deadline, or because the engine was shut down.
    Cancelled {
        /// What became of its bytes.
        landed: Landed,
        /// Whether the peer can't touch memory for it any more; this side never can.
        fenced: bool,
    },
}

impl RequestState {
    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        !matches!(self, RequestState::Waiting | RequestState::UnderWay)
    }
}

const WAITING: u8 = 0;
const UNDER_WAY: u8 = 1;
const DONE: u8 = 2;
/// Given up before it began.
const NEVER: u8 = 3;
/// The rest is in the table of failures.
const FAILED: u8 = 4;

struct Record {
    length: u64,
    state: AtomicU8,
}

struct Failure {
    bytes: u64,
    touched: bool,
    error: OpError,
    cause: Option<Arc<str>>,
}

/// The records of a transfer's requests, in the batch's order. A view: cheap to clone, and up to date while the transfer goes on. It
/// keeps no memory registered.
#[derive(Clone)]
pub struct Requests {
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    Several(Arc<Records>),
    /// One request that was done before anybody could ask for its state: so many bytes.
    Done(u64),
}

struct Records {
    all: Box<[Record]>,
    /// Only failures stand here: it is neither locked nor grown by what succeeds.
    failures: Mutex<HashMap<u32, Failure>>,
}

impl Requests {
    pub(crate) fn new(lengths: impl Iterator<Item = u64>) -> Requests {
        let all = lengths.map(|length| Record { length, state: AtomicU8::new(WAITING) }).collect();
        Requests { inner: Inner::Several(Arc::new(Records { all, failures: Mutex::default() })) }
    }

    /// One request of which all bytes are in place.
    fn done_already(bytes: u64) -> Requests {
        Requests { inner: Inner::Done(bytes) }
    }

    fn all(&self) -> &[Record] {
        match &self.inner {
            Inner::Several(records) => &records.all,
            Inner::Done(_) => &[],
        }
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        match &self.inner {
            Inner::Several(records) => records.all.len(),
            Inner::Done(_) => 1,
        }
    }

    /// Whether there are none; there always is one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state of one request now; none past the last one.
    pub fn get(&self, request: usize) -> Option<RequestState> {
        let records = match &self.inner {
            Inner::Several(records) => records,
            Inner::Done(bytes) => return (request == 0).then_some(RequestState::Done { bytes: *bytes }),
        };
        let record = records.all.get(request)?;
        Some(match record.state.load(Ordering::Acquire) {
            WAITING => RequestState::Waiting,
            UNDER_WAY => RequestState::UnderWay,
            DONE => RequestState::Done { bytes: record.length },
            NEVER => RequestState::Cancelled { landed: Landed::Nothing, fenced: true },
            _ => records.failures.lock().get(&(request as u32))?.state(record.length),
        })
    }

    /// The states of all requests now, in order.
    pub fn iter(&self) -> impl Iterator<Item = RequestState> + '_ {
        (0..self.len()).filter_map(|request| self.get(request))
    }

    /// Whether one request is over.
    pub(crate) fn is_over(&self, request: usize) -> bool {
        self.all()[request].state.load(Ordering::Acquire) > UNDER_WAY
    }

    /// A transport has taken it.
    pub(crate) fn begun(&self, request: usize) {
        // A refused one may have ended already.
        let state = &self.all()[request].state;
        let _ = state.compare_exchange(WAITING, UNDER_WAY, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// It is given up before it began.
    pub(crate) fn never(&self, request: usize) {
        self.all()[request].state.store(NEVER, Ordering::Release);
    }

    /// All its bytes are in place; false when it was over already.
    pub(crate) fn done(&self, request: usize) -> bool {
        let state = &self.all()[request].state;
        if state.load(Ordering::Acquire) > UNDER_WAY {
            return false;
        }
        state.store(DONE, Ordering::Release);
        true
    }

    /// It failed; false when it was over already.
    pub(crate) fn failed(
        &self,
        request: usize,
        bytes: u64,
        touched: bool,
        error: OpError,
        cause: Option<Arc<str>>,
    ) -> bool {
        let state = &self.all()[request].state;
        if state.load(Ordering::Acquire) > UNDER_WAY {
            return false;
        }
        if let Inner::Several(records) = &self.inner {
            records.failures.lock().insert(request as u32, Failure { bytes, touched, error, cause });
        }
        state.store(FAILED, Ordering::Release);
        true
    }
}

impl Failure {
    fn state(&self, length: u64) -> RequestState {
        let landed = match (self.bytes == length, self.touched) {
            (true, _) => Landed::Whole,
            (false, true) => Landed::Partly,
            (false, false) => Landed::Nothing,
        };
        match self.error.code {
            OpErrorCode::Cancelled => RequestState::Cancelled { landed, fenced: true },
            OpErrorCode::CancelledUnfenced => RequestState::Cancelled { landed, fenced: false },
            _ => RequestState::Failed {
                bytes: self.bytes,
                error: self.error,
                cause: self.cause.clone(),
                landed,
            },
        }
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The record of a transfer that has ended, well or not.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// Bytes known to be in place, all requests together.
    pub bytes: u64,
    /// How many requests there were.
    pub requests: usize,
    /// The route that moved most of them; that of the last try where none were moved, and none where no route was taken.
    pub route: Option<RouteId>,
    /// How many of them each route moved.
    pub routes: RouteBytes,
    /// How often requests were tried again after a failure that was a route's.
    pub retries: u32,
    /// The tries that failed and were followed by another one, in the order in which they failed.
    pub attempts: Vec<Attempt>,
    /// When it was submitted.
    pub submitted: Instant,
    /// When a transport took the first of its requests; none when none did.
    pub begun: Option<Instant>,
    /// When it ended.
    pub ended: Instant,
    /// From submitting to the end.
    pub elapsed: Duration,
    /// What became of the bytes of all requests together.
    pub landed: Landed,
    /// Whether the peers can't touch memory for it any more; this side never can.
    pub fenced: bool,
    /// Why it failed; none when it succeeded.
    pub error: Option<TransferError>,
    /// One record for each request.
    pub records: Requests,
}

impl Receipt {
    /// Of one request that a route has carried whole.
    pub(crate) fn of_one(route: RouteId, bytes: u64, (submitted, ended): (Instant, Instant)) -> Receipt {
        let mut routes = RouteBytes::default();
        routes.add(route, bytes);
        Receipt {
            bytes,
            requests: 1,
            route: Some(route),
            routes,
            retries: 0,
            attempts: Vec::new(),
            submitted,
            begun: Some(submitted),
            ended,
            elapsed: ended - submitted,
            landed: Landed::Whole,
            fenced: true,
            error: None,
            records: Requests::done_already(bytes),
        }
    }
}

/// Bytes by route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouteBytes {
    bytes: [u64; MAX_ROUTES],
    taken: RouteSet,
}

impl RouteBytes {
    pub(crate) fn add(&mut self, route: RouteId, bytes: u64) {
        self.bytes[route.index()] += bytes;
        self.taken.insert(route);
    }

    fn join(&mut self, other: &RouteBytes) {
        other.iter().for_each(|(route, bytes)| self.add(route, bytes));
    }

    /// The routes that requests ended on, with the bytes that each moved.
    pub fn iter(&self) -> impl Iterator<Item = (RouteId, u64)> + '_ {
        self.taken.iter().map(|route| (route, self.bytes[route.index()]))
    }

    /// The route that moved most.
    pub fn main(&self) -> Option<RouteId> {
        // Of equals the first.
        self.iter().reduce(|most, next| if next.1 > most.1 { next } else { most }).map(|(route, _)| route)
    }
}

/// What one worker, or all of them, made of a transfer's requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) bytes: u64,
    /// Requests with every byte in place.
    pub(crate) whole: usize,
    pub(crate) touched: bool,
    pub(crate) fenced: bool,
    pub(crate) routes: RouteBytes,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally { bytes: 0, whole: 0, touched: false, fenced: true, routes: RouteBytes::default() }
    }
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.bytes += other.bytes;
        self.whole += other.whole;
        self.touched |= other.touched;
        self.fenced &= other.fenced;
        self.routes.join(&other.routes);
    }

    pub(crate) fn landed(&self, requests: usize) -> Landed {
        match (self.whole == requests, self.touched) {
            (true, _) => Landed::Whole,
            (false, true) => Landed::Partly,
            (false, false) => Landed::Nothing,
        }
    }
}
