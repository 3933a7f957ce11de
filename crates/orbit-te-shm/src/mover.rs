//! One step of an op: what is copied between two looks at everything else. Rule: nothing is touched but behind the region's gate, and
//! nothing outside of the ranges that were checked.

#![allow(unsafe_code)]

use crate::copier::{Copier, LEAST_BYTES};
use crate::entry::Open;
use crate::ops::OpState;
use crate::sys::{self, Direction, Gate, MOST_RANGES, Piece, Process, Window};
use orbit_te_memory::Access;
use orbit_te_transport::{Op, OpError, OpErrorCode, OpKind};
use orbit_te_wire::check_pieces;

/// So many short pieces are copied in one go.
const MOST_PIECES: usize = 256;

/// What a step made of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It goes on.
    On,
    /// All bytes are in place.
    Done,
    /// The gate is closed: nothing was touched.
    Closed,
    /// It can't go on.
    Failed(OpError),
}

/// Whether an op fits its region and the rights to it.
pub(crate) fn check(state: &OpState, open: &Open) -> Result<(), OpError> {
    let op = &state.op;
    let needed = match op.kind {
        OpKind::Read => Access::REMOTE_READ,
        OpKind::Write => Access::REMOTE_WRITE,
    };
    if !open.access.contains(needed) {
        return Err(OpError::new(OpErrorCode::AccessDenied));
    }
    let size = open.length.min(op.remote.key.0[3]);
    match &op.pieces {
        None => match op.remote.offset.checked_add(op.local.length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(OpError::new(OpErrorCode::OutOfRange)),
        },
        Some(pieces) => {
            // SAFETY: whoever submitted the op keeps the slices alive and unchanged until its completion.
            let table = unsafe { pieces.remote() };
            check_pieces(table, size, op.local.length, op.kind == OpKind::Write).map_err(|bad| {
                let error = OpError::from_status(bad.status).unwrap_or(OpError::new(OpErrorCode::BadLength));
                OpError { piece: Some(bad.index).filter(|at| (*at as usize) < table.len()), ..error }
            })
        }
    }
}

/// Copies up to `most` bytes of an op that [`check`] found good. The second value: the gate was closed meanwhile.
pub(crate) fn step(
    state: &mut OpState,
    open: &mut Open,
    gate: Gate<'_>,
    process: Option<&Process>,
    copier: &mut Copier,
    most: u64,
) -> (Step, bool) {
    if !gate.enter() {
        return (Step::Closed, true);
    }
    let result = match process {
        None if !state.op.local.key.may_vanish() => directly(state, open, copier, most),
        // The kernel answers where touching memory that has vanished would end the process.
        None => by_kernel(state, open, &Process::own(), most, OpErrorCode::LocalMemoryFault),
        Some(process) => {
            let fault = match state.op.local.key.may_vanish() {
                true => OpErrorCode::LocalMemoryFault,
                false => OpErrorCode::RemoteMemoryFault,
            };
            by_kernel(state, open, process, most, fault)
        }
    };
    let closed = gate.leave();
    let step = match result {
        Err(error) => Step::Failed(error),
        Ok(()) if state.moved == state.op.local.length => Step::Done,
        Ok(()) => Step::On,
    };
    (step, closed)
}

/// The rest of the piece that comes next: its address here, its offset in the region, and its length.
fn next(state: &OpState) -> (u64, u64, u64) {
    let op = &state.op;
    match &op.pieces {
        None => {
            let moved = state.moved;
            (op.local.address + moved, op.remote.offset + moved, op.local.length - moved)
        }
        Some(pieces) => {
            // SAFETY: as in `check`.
            let (here, there) = unsafe { (pieces.local(), pieces.remote()) };
            let (at, within) = (state.piece as usize, state.within);
            (here[at] + within, there[at].offset() + within, there[at].length() - within)
        }
    }
}

fn advance(state: &mut OpState, length: u64, left_of_piece: u64) {
    state.moved += length;
    if length == left_of_piece {
        (state.piece, state.within) = (state.piece + 1, 0);
    } else {
        state.within += length;
    }
}

fn directly(state: &mut OpState, open: &mut Open, copier: &mut Copier, most: u64) -> Result<(), OpError> {
    // Neither is ever so: what is entered by mapping has a window, and `check` has found the range inside of it.
    let broken = OpError::new(OpErrorCode::Protocol);
    let window = open.window.as_mut().ok_or(broken)?;
    let kind = state.op.kind;
    let mut left = most.min(state.op.local.length - state.moved);
    if state.op.pieces.is_none() {
        let (address, offset, _) = next(state);
        let Piece { to, from, length } = piece(kind, address, window, (offset, left)).ok_or(broken)?;
        // SAFETY: as below.
        unsafe { copier.copy(to, from, length) };
        state.moved += left;
        return Ok(());
    }
    const NONE: Piece = Piece { to: std::ptr::null_mut(), from: std::ptr::null(), length: 0 };
    let mut pieces = [NONE; MOST_PIECES];
    while left > 0 {
        let mut count = 0;
        while left > 0 && count < MOST_PIECES {
            let (address, offset, of_piece) = next(state);
            let length = of_piece.min(left);
            let is_long = length >= LEAST_BYTES as u64;
            if is_long && count > 0 {
                break;
            }
            pieces[count] = piece(kind, address, window, (offset, length)).ok_or(broken)?;
            count += 1;
            advance(state, length, of_piece);
            left -= length;
            if is_long {
                break;
            }
        }
        // SAFETY: the local ranges are valid by the promise of whoever submitted the op, who keeps them until the completion; the others lie
        // inside of the window, whose file can't be cut short, and which the rights that were checked let be written. The gate was passed,
        // so the owner does not use them for anything else. Both are of different mappings: the owner's range is not among those that the
        // submitter may name as his own, unless both are one process's, where overlapping is the caller's mixture to have.
        unsafe {
            match &pieces[..count] {
                [one] => copier.copy(one.to, one.from, one.length),
                several => copier.copy_pieces(several),
            }
        }
    }
    Ok(())
}

/// Has the processor look up where a short op begins, which is copied a little later.
pub(crate) fn look_up(op: &Op, open: &Open) {
    let is_short = op.pieces.is_none() && op.local.length < LEAST_BYTES as u64;
    let there = open.window.as_ref().and_then(|window| window.range(op.remote.offset, op.local.length));
    if let Some(there) = there.filter(|_| is_short) {
        let (here, length) = (op.local.address as *mut u8, op.local.length as usize);
        let (to, from) = if op.kind == OpKind::Write { (there, here) } else { (here, there) };
        sys::look_up(&Piece { to, from, length });
    }
}

/// A part of an op, with its pages made present; none outside of the window.
fn piece(kind: OpKind, address: u64, window: &mut Window, (offset, length): (u64, u64)) -> Option<Piece> {
    let (here, there) = (address as *mut u8, window.range(offset, length)?);
    window.expect(offset, length);
    let (to, from) = match kind {
        OpKind::Write => (there, here),
        OpKind::Read => (here, there),
    };
    Some(Piece { to, from: from.cast_const(), length: length as usize })
}

fn by_kernel(
    state: &mut OpState,
    open: &Open,
    process: &Process,
    most: u64,
    fault: OpErrorCode,
) -> Result<(), OpError> {
    match state.op.pieces {
        None => by_calls::<1>(state, open, process, most, fault),
        Some(_) => by_calls::<MOST_RANGES>(state, open, process, most, fault),
    }
}

/// Copies by calls of up to so many ranges.
fn by_calls<const RANGES: usize>(
    state: &mut OpState,
    open: &Open,
    process: &Process,
    most: u64,
    fault: OpErrorCode,
) -> Result<(), OpError> {
    const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let direction = match state.op.kind {
        OpKind::Read => Direction::Read,
        OpKind::Write => Direction::Write,
    };
    let mut left = most.min(state.op.local.length - state.moved);
    while left > 0 {
        let (mut here, mut there) = ([EMPTY; RANGES], [EMPTY; RANGES]);
        let before = (state.moved, state.piece, state.within);
        let (mut count, mut bytes) = (0, 0);
        while count < RANGES && bytes < left {
            let (address, offset, of_piece) = next(state);
            let length = of_piece.min(left - bytes);
            let remote = match &open.window {
                Some(window) => window.range(offset, length).map_or(0, |at| at as u64),
                None => open.begin + offset,
            };
            let range =
                |base: u64| libc::iovec { iov_base: base as *mut libc::c_void, iov_len: length as usize };
            (here[count], there[count]) = (range(address), range(remote));
            advance(state, length, of_piece);
            (count, bytes) = (count + 1, bytes + length);
        }
        // SAFETY: the ranges here are valid by the promise of whoever submitted the op; where the other side is this process, they lie inside
        // of the window, as above.
        let copied = unsafe { process.copy(direction, &here[..count], &there[..count]) };
        let (copied, error) = match copied {
            Ok(copied) if copied == bytes => {
                left -= bytes;
                continue;
            }
            Ok(0) => (0, Some(std::io::Error::from_raw_os_error(libc::EFAULT))),
            Ok(copied) => (copied, None),
            Err(error) => (0, Some(error)),
        };
        // Back to where it began, and as far as it came: the next call begins with what can't be touched.
        (state.moved, state.piece, state.within) = before;
        let mut rest = copied;
        while rest > 0 {
            let (_, _, of_piece) = next(state);
            let length = of_piece.min(rest);
            advance(state, length, of_piece);
            rest -= length;
        }
        left -= copied;
        if let Some(error) = error {
            let code = match error.raw_os_error() {
                Some(libc::EFAULT) => fault,
                Some(libc::ENOMEM | libc::EINTR) => OpErrorCode::LocalMemoryFault,
                _ => OpErrorCode::LinkBroken,
            };
            return Err(OpError::io(code, &error));
        }
    }
    Ok(())
}
