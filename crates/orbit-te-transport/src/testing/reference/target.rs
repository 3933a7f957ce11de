//! The reference's target and the cable to it. Rule: everything that touches an op's memory happens under the cable's lock.
//!
//! It checks nothing beyond what a target owes: admission, and a lease for as long as a request lives.

#![allow(unsafe_code)]

use crate::error::{OpError, OpErrorCode};
use crate::op::{LinkId, Op, OpKind};
use crate::progress::Completion;
use orbit_te_memory::{Access, Generation, Lease, RegionId, Registry, Request as Admission};
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
}

/// An op on its way.
pub(super) struct Request {
    pub(super) op: Op,
    target: usize,
    /// How often its target is to be served before it begins.
    wait: u32,
    moved: u64,
    lease: Option<Lease>,
}

impl Request {
    pub(super) fn new(op: Op, target: usize, wait: u32) -> Request {
        Request { op, target, wait, moved: 0, lease: None }
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

    /// Lets a target do one piece of each request.
    pub(super) fn serve(&self, target: usize, registry: &Registry, piece_bytes: u64) {
        let mut state = lock(&self.state);
        let CableState { requests, replies, .. } = &mut *state;
        let before = replies.len();
        requests.retain_mut(|request| {
            if request.target != target {
                return true;
            }
            match advance(request, registry, piece_bytes) {
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

/// One piece of a request; how it ended, or none while it goes on.
fn advance(request: &mut Request, registry: &Registry, piece_bytes: u64) -> Option<Result<(), OpError>> {
    if request.wait > 0 {
        request.wait -= 1;
        return None;
    }
    let op = request.op;
    if request.lease.is_none() {
        let [region, generation, key, _] = op.remote.key.0;
        let asked = Admission {
            region: RegionId(region),
            generation: Generation(generation),
            key,
            offset: op.remote.offset,
            length: op.local.length,
            access: if op.kind == OpKind::Read { Access::REMOTE_READ } else { Access::REMOTE_WRITE },
        };
        match registry.admit(&asked) {
            Ok(lease) => request.lease = Some(lease),
            Err(why) => {
                let refused = OpError::from_status(why.status());
                return Some(Err(refused.unwrap_or(OpError::new(OpErrorCode::Protocol))));
            }
        }
    }
    let lease = request.lease.as_ref()?;
    let piece = piece_bytes.min(op.local.length - request.moved);
    let ours = (op.local.address + request.moved) as usize as *mut u8;
    // SAFETY: admission checked `offset + length` against the region, and `moved + piece` is at most `length`; the lease
    // keeps the region's backing.
    let theirs = unsafe { lease.region().as_ptr().as_ptr().add((op.remote.offset + request.moved) as usize) };
    let (from, to) = if op.kind == OpKind::Read { (theirs, ours) } else { (ours, theirs) };
    // SAFETY: the local range is valid while the op is in flight, by the duty of whoever submitted it, and the op is in
    // `requests`, so its completion was not given out; the remote range as above. `copy` allows overlap, and no Rust
    // reference to region bytes exists.
    unsafe { std::ptr::copy(from, to, piece as usize) };
    request.moved += piece;
    (request.moved == op.local.length).then_some(Ok(()))
}
