//! Sums of payloads while they are sent and as they arrive. Rule: a sum covers what the kernel has just copied or is about to, so the
//! bytes are in the cache; nothing is read before its time, and nothing twice.

#![allow(unsafe_code)]

use crate::body::{Body, Cursor};
use crate::lane::{Answering, Asking};
use crate::net::Net;
use crate::ops::OpSlot;
use crate::sys;
use crate::transport::TcpTransport;
use orbit_te_transport::{Mismatch, OpError, OpErrorCode, Verify};
use orbit_te_wire::{Frame, TRAILER_BYTES};
use std::io;

/// Bytes of a verified payload that are received in one system call: they stay in the second cache between the kernel's copy and the sum.
pub(crate) const CHECKED_CALL_BYTES: usize = 512 * 1024;

/// The sum of a payload's first bytes.
#[derive(Debug)]
pub(crate) struct Sum {
    crc: u32,
    at: Cursor,
    done: u64,
    vanishing: bool,
}

impl Sum {
    /// The sum of nothing yet; none where it is not asked for.
    pub(crate) fn new(verify: Verify) -> Option<Sum> {
        let vanishing = verify == Verify::OnVanishing;
        verify.is_on().then_some(Sum { crc: 0, at: Cursor::default(), done: 0, vanishing })
    }

    /// Goes on until the first so many bytes are in it.
    pub(crate) fn cover(&mut self, body: &Body, length: u64, first: u64) -> io::Result<()> {
        let mut sum = sys::Summing::from(self.crc);
        while self.done < first {
            // Pieces that end before the payload: both sides refuse such a list, and no loop may rest on that.
            let Some(range) = self.at.take(body, length, first - self.done) else { break };
            // SAFETY: a lane has this body, so its memory is covered by the lease of the request, or by the promise of
            // `Transport::submit` for an op in flight; memory that may vanish is said to be such.
            unsafe { sum.add(range.address(), range.len(), self.vanishing) }?;
            self.done += range.len() as u64;
        }
        self.crc = sum.crc();
        Ok(())
    }

    /// The trailer of what it covers.
    pub(crate) fn trailer(&self) -> [u8; TRAILER_BYTES] {
        self.crc.to_le_bytes()
    }
}

/// What became of a payload that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its sum is right, or it was not asked for.
    Good,
    /// It came with another sum than it was sent with.
    Damaged { expected: u32, found: u32 },
    /// It could not be read back from where it went.
    Unreadable,
}

/// The check of a payload that is being received.
#[derive(Debug)]
pub(crate) struct Check {
    sum: Sum,
    trailer: [u8; TRAILER_BYTES],
    got: usize,
    unreadable: bool,
}

impl Check {
    /// None where it is not asked for.
    pub(crate) fn new(verify: Verify) -> Option<Check> {
        let sum = Sum::new(verify)?;
        Some(Check { sum, trailer: [0; TRAILER_BYTES], got: 0, unreadable: false })
    }

    /// The bytes of the trailer that have not come.
    pub(crate) fn left(&mut self) -> &mut [u8] {
        &mut self.trailer[self.got..]
    }

    /// How many they are.
    pub(crate) fn left_bytes(&self) -> u64 {
        (TRAILER_BYTES - self.got) as u64
    }

    /// The first so many bytes are in place, and so many more of the trailer have come.
    pub(crate) fn landed(&mut self, body: &Body, length: u64, first: u64, trailer: u64) {
        self.got += trailer.min(self.left_bytes()) as usize;
        self.unreadable = self.unreadable || self.sum.cover(body, length, first).is_err();
    }

    /// What became of the payload, once all of it and of its trailer has come.
    pub(crate) fn verdict(&self) -> Verdict {
        let (expected, found) = (u32::from_le_bytes(self.trailer), self.sum.crc);
        match (self.unreadable, expected == found) {
            (true, _) => Verdict::Unreadable,
            (false, true) => Verdict::Good,
            (false, false) => Verdict::Damaged { expected, found },
        }
    }
}

impl<N: Net> TcpTransport<N> {
    /// A part of a read is complete.
    pub(crate) fn payload_done(&mut self, op: OpSlot, part: (u64, u64), verdict: Verdict, asking: &Asking) {
        let error = match verdict {
            Verdict::Good => return self.part_done(op, part.1, None),
            Verdict::Damaged { expected, found } => self.damaged(op, part, (expected, found), asking),
            Verdict::Unreadable => OpError::new(OpErrorCode::LocalMemoryFault),
        };
        self.touched(op);
        self.part_done(op, 0, Some(error));
    }

    /// The error of an op of which this part, at this address of ours, came damaged; says so in the log.
    pub(crate) fn damaged(
        &mut self,
        op: OpSlot,
        (address, length): (u64, u64),
        (expected, found): (u32, u32),
        asking: &Asking,
    ) -> OpError {
        // A list goes whole, so its range begins at its first byte.
        let begins = self.ops.get_mut(op).map(|state| match state.op.pieces {
            Some(_) => 0,
            None => address - state.op.local.address,
        });
        let offset = begins.unwrap_or_default();
        if let Some(link) = self.link_mut(asking.link) {
            let (peer, lane) = (link.peer, asking.number);
            tracing::warn!(%peer, lane, offset, length, expected, found, "a payload came damaged");
        }
        OpError::damaged(Mismatch { offset, length, expected, found })
    }
}

/// Says in the log that a peer's write came damaged.
pub(crate) fn tell_damaged_write(frame: &Frame, answering: &Answering, expected: u32, found: u32) {
    let Frame { region, offset, length, .. } = *frame;
    let pieces = frame.pieces();
    let (session, lane) = (answering.session, answering.number);
    tracing::warn!(%session, lane, region = region.0, offset, pieces, length, expected, found, "a peer's write came damaged");
}
