//! The reference's target and the cable to it. Rule: everything that touches an op's memory happens under the cable's lock.
//!
//! It checks nothing beyond what a target owes: admission, and a lease for as long as a request lives. Both sums of a verified
//! payload are made here, before and after the way on which [`Cable::damage_next`] strikes.

#![allow(unsafe_code)]

use crate::error::{Mismatch, OpError, OpErrorCode};
use crate::op::{LinkId, Op, OpKind};
use crate::progress::Completion;
use orbit_te_memory::{Access, Generation, Lease, RegionId, Registry, Request as Admission};
use orbit_te_wire::check_pieces;
use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What runs between an initiator and its targets.
pub(super) struct Cable {
    /// How many targets there are; an address over it is reached by nobody.
    pub(super) targets: usize,
    pub(super) state: Mutex<CableState>,
    /// Written to when there is something to poll for.
    wake: UnixStream,
}

#[derive(Default)]
pub(super) struct CableState {
    pub(super) requests: VecDeque<Request>,
    pub(super) replies: VecDeque<Completion>,
    /// Links that were cut and whose initiator does not know yet.
    pub(super) cut: Vec<LinkId>,
    /// The next step of a verified payload gets a wrong byte.
    damage: bool,
}

/// An op on its way.
pub(super) struct Request {
    pub(super) op: Op,
    target: usize,
    /// How often its target is to be served before it begins.
    wait: u32,
    moved: u64,
    /// The piece that is next, and how much of it has moved.
    piece: usize,
    within: u64,
    /// Of the bytes that moved: as they were sent, and as they came.
    sums: (u32, u32),
    lease: Option<Lease>,
}

impl Request {
    pub(super) fn new(op: Op, target: usize, wait: u32) -> Request {
        Request { op, target, wait, moved: 0, piece: 0, within: 0, sums: (0, 0), lease: None }
    }

    /// Where the next bytes are: their address at the initiator, their offset in the region, and how many there are in a row.
    fn next_run(&self) -> (u64, u64, u64) {
        let Op { local, remote, pieces, .. } = self.op;
        let Some(pieces) = pieces else {
            return (local.address + self.moved, remote.offset + self.moved, local.length - self.moved);
        };
        // SAFETY: the op is in flight, so whoever submitted it keeps its slices.
        let (ours, theirs) = unsafe { (pieces.local()[self.piece], pieces.remote()[self.piece]) };
        (ours + self.within, theirs.offset() + self.within, theirs.length() - self.within)
    }

    /// So many bytes of the next run have moved.
    fn has_moved(&mut self, bytes: u64, run: u64) {
        self.moved += bytes;
        self.within += bytes;
        if bytes == run {
            (self.piece, self.within) = (self.piece + 1, 0);
        }
    }
}

/// The state, whatever happened to a thread that held it.
pub(super) fn lock(state: &Mutex<CableState>) -> MutexGuard<'_, CableState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cable {
    pub(super) fn new(targets: usize, wake: UnixStream) -> Cable {
        Cable { targets, state: Mutex::default(), wake }
    }

    /// Cuts a link: what is on its way is lost.
    pub(super) fn cut(&self, link: LinkId) {
        let mut state = lock(&self.state);
        state.requests.retain(|request| request.op.link != link);
        state.cut.push(link);
        drop(state);
        self.wake_up();
    }

    /// The next step of a verified payload gets a wrong byte.
    pub(super) fn damage_next(&self) {
        lock(&self.state).damage = true;
    }

    /// Lets a target do one step of each request.
    pub(super) fn serve(&self, target: usize, registry: &Registry, step_bytes: u64) {
        let mut state = lock(&self.state);
        let CableState { requests, replies, damage, .. } = &mut *state;
        let before = replies.len();
        requests.retain_mut(|request| {
            if request.target != target {
                return true;
            }
            match advance(request, registry, step_bytes, damage) {
                None => true,
                Some(result) => {
                    let bytes = if result.is_ok() { request.moved } else { 0 };
                    let touched = request.moved > 0;
                    replies.push_back(Completion { token: request.op.token, result, bytes, touched });
                    false
                }
            }
        });
        let news = replies.len() > before;
        drop(state);
        if news {
            self.wake_up();
        }
    }

    fn wake_up(&self) {
        // A full pipe is readable already.
        let _ = (&self.wake).write(&[1]);
    }
}

/// One step of a request; how it ended, or none while it goes on.
fn advance(
    request: &mut Request,
    registry: &Registry,
    step_bytes: u64,
    damage: &mut bool,
) -> Option<Result<(), OpError>> {
    if request.wait > 0 {
        request.wait -= 1;
        return None;
    }
    let op = request.op;
    if request.lease.is_none() {
        match admit(&op, registry) {
            Ok(lease) => request.lease = Some(lease),
            Err(error) => return Some(Err(error)),
        }
    }
    let lease = request.lease.as_ref()?;
    let base = lease.region().as_ptr().as_ptr();
    let end = request.moved + step_bytes.min(op.local.length - request.moved);
    while request.moved < end {
        let (address, offset, run) = request.next_run();
        let bytes = run.min(end - request.moved);
        let ours = address as usize as *mut u8;
        // SAFETY: admission checked every run against the region; the lease keeps the region's backing.
        let theirs = unsafe { base.add(offset as usize) };
        let (from, to) = if op.kind == OpKind::Read { (theirs, ours) } else { (ours, theirs) };
        // SAFETY: the local range is valid while the op is in flight, by the duty of whoever submitted it, and the op is in
        // `requests`, so its completion was not given out; the remote range as above.
        unsafe {
            if op.verify.is_on() {
                carry_summed(from, to, bytes as usize, &mut request.sums, damage);
            } else {
                // `copy` allows overlap, and no Rust reference to region bytes exists.
                std::ptr::copy(from, to, bytes as usize);
            }
        }
        request.has_moved(bytes, run);
    }
    (request.moved == op.local.length).then(|| {
        let (expected, found) = request.sums;
        let whole = Mismatch { offset: 0, length: op.local.length, expected, found };
        if expected == found { Ok(()) } else { Err(OpError::damaged(whole)) }
    })
}

/// Checks all of an op, whose memory is leased from then on.
fn admit(op: &Op, registry: &Registry) -> Result<Lease, OpError> {
    let refused = |status| OpError::from_status(status).unwrap_or(OpError::new(OpErrorCode::Protocol));
    // SAFETY: the op is in flight, so whoever submitted it keeps its slices.
    let table = op.pieces.map(|pieces| unsafe { pieces.remote() });
    let [region, generation, key, _] = op.remote.key.0;
    // The region, its key, generation and rights: of a list by one byte, since wrong ranges are the table's to tell.
    let (offset, length) = if table.is_some() { (0, 1) } else { (op.remote.offset, op.local.length) };
    let write = op.kind == OpKind::Write;
    let asked = Admission {
        region: RegionId(region),
        generation: Generation(generation),
        key,
        offset,
        length,
        access: if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ },
    };
    let lease = registry.admit(&asked).map_err(|why| refused(why.status()))?;
    if let Some(table) = table {
        check_pieces(table, lease.region().len(), op.local.length, write)
            .map_err(|bad| OpError { piece: Some(bad.index), ..refused(bad.status) })?;
    }
    Ok(lease)
}

/// Moves bytes and adds them to both sums, as they are sent and as they came.
///
/// # Safety
/// As for [`std::ptr::copy`].
unsafe fn carry_summed(
    from: *const u8,
    to: *mut u8,
    length: usize,
    (sent, came): &mut (u32, u32),
    damage: &mut bool,
) {
    let mut bytes = vec![0; length];
    // SAFETY: the caller vouches for the range, and the buffer is as long.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), length) };
    *sent = crc32c::crc32c_append(*sent, &bytes);
    if std::mem::take(damage) {
        bytes[length / 2] ^= 0x10;
    }
    *came = crc32c::crc32c_append(*came, &bytes);
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length) };
}
