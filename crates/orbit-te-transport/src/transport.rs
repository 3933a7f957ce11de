//! The half of a transport that moves bytes. Rule: the promises below are what all memory safety above rests on.

#![allow(unsafe_code)]

use crate::capability::Capabilities;
use crate::error::TransportError;
use crate::mailbox::Notice;
use crate::op::{LinkId, Op, Token};
use crate::progress::{Arm, Progress, Undone};
use crate::signs::{LinkLanes, Signs};
use orbit_te_wire::PeerId;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Moves bytes between this process and its peers. Belongs to one worker at a time, never blocks, owns no thread.
///
/// # Promises
/// 1. *Accepted means completed exactly once*: on success, error, cancel, loss of the link, and close.
/// 2. *Completed means visible*: after a successful read the bytes are in the local span; after a successful write they
///    are in the peer's memory, and a read that the peer or anybody else starts then finds them.
/// 3. *Completed means let go*: the local span named by an op is not touched after its completion was given out.
/// 4. *A link fails alone*: its ops complete with errors and no other link's; and after a completion with
///    [`OpErrorCode::Cancelled`](crate::OpErrorCode::Cancelled) not one more byte of that op lands at the peer.
/// 5. *Nothing is allocated per op* after warm-up.
///
/// An op that the target refuses has moved nothing; of an op of many pieces, one bad piece refuses all, and the error says
/// which. The one exception is a region that is withdrawn or revoked while an op of several parts is under way: it fails with [`OpErrorCode::UnknownRegion`](crate::OpErrorCode::UnknownRegion) or
/// [`OpErrorCode::StaleGeneration`](crate::OpErrorCode::StaleGeneration), and its completion counts the bytes in place.
///
/// # Safety
/// An implementor guarantees promises 1 to 4: callers free and reuse memory on the strength of them.
pub unsafe trait Transport: Send {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Begins to make a link to a peer. `address` is what the peer's transport of the same name announced. Returns at
    /// once; ops may be submitted to the link from now on and wait until it is up.
    ///
    /// # Errors
    /// [`TransportError::BadAddress`], [`TransportError::TooManyLinks`].
    fn connect(&mut self, peer: PeerId, address: &[u8], now: Instant) -> Result<LinkId, TransportError>;

    /// Takes bytes that the counterpart at the peer sent by [`Say`](crate::Say), in their order. What is to be answered is told by the next
    /// poll.
    ///
    /// # Errors
    /// [`TransportError::NoLink`]; otherwise why the bytes are not taken ([`TransportError::Wire`], [`TransportError::RefusedByPeer`]): the
    /// link is then closed, and its ops complete with errors.
    fn deliver(&mut self, link: LinkId, bytes: &[u8], now: Instant) -> Result<(), TransportError>;

    /// Takes ops from the front of `ops` and says how many it took. Zero means that it is full, which is no error: poll,
    /// and come again. An op holds its place until its completion was given out by [`Transport::poll`]. An op that can't
    /// be done (no such link, a length that is zero, over the limit, or not that of its pieces together) is taken and completed with an error; after
    /// [`Transport::close`] it is either not taken or completed with an error. While a link is not up, ops on it wait.
    ///
    /// # Safety
    /// Each op's local span is valid for reading (write ops) or writing (read ops), and the lease under which it was made
    /// is kept until the op's completion was given out by [`Transport::poll`]; the same holds for each of its pieces, and for
    /// the slices behind [`Op::pieces`](crate::Op::pieces). No two ops in flight have the same token; one that has completed
    /// may be used again.
    unsafe fn submit(&mut self, ops: &[Op], now: Instant) -> usize;

    /// Carries an op from beginning to end by this call, where that is the transport's way, needs no answer of the peer, and nothing that was
    /// submitted is still to be moved before it. There is no completion for it: on success its bytes are in place, as promise 2 says.
    ///
    /// # Errors
    /// [`Undone`], which is no fault of anybody's: nothing is under way for the op, and the caller may submit it.
    ///
    /// # Safety
    /// As [`Transport::submit`], for as long as the call lasts.
    unsafe fn at_once(&mut self, _op: &Op, _now: Instant) -> Result<(), Undone> {
        Err(Undone { touched: false })
    }

    /// Takes a notification; false, which is no error, when it is full, or carries none by
    /// [`Capabilities::notifications`](crate::Capabilities::notifications). It completes as an op does, and counts as one: with
    /// success once the peer's [`Mailbox`](crate::Mailbox) has taken it, with the mailbox's answer, or with an error of its link; after
    /// [`OpErrorCode::LinkBroken`](crate::OpErrorCode::LinkBroken), or a cancel, it is not known whether it was taken. While the
    /// link is not up, it waits. Two of one link may overtake each other.
    ///
    /// # Safety
    /// Its bytes stay valid and unchanged until the completion was given out by [`Transport::poll`]; its token is that of
    /// no op in flight.
    unsafe fn notify(&mut self, notice: &Notice, now: Instant) -> bool;

    /// Gives up the ops with these tokens: each completes soon, with success if it was just about to, otherwise with
    /// [`OpErrorCode::Cancelled`](crate::OpErrorCode::Cancelled) or
    /// [`OpErrorCode::CancelledUnfenced`](crate::OpErrorCode::CancelledUnfenced). Tokens that are not in flight are ignored.
    /// "Soon" does not depend on the peer: one that is silent gives `CancelledUnfenced`, or a link error, in bounded time.
    /// A transport that fences by cutting its connection may fail other ops of the same link with a link error, never those
    /// of another link.
    fn cancel(&mut self, tokens: RangeInclusive<Token>, now: Instant);

    /// Makes progress, adds at most `budget` completions to what is in `out`, and says whether anything happened at all;
    /// true whenever it added something.
    fn poll(&mut self, now: Instant, budget: usize, out: &mut Progress) -> bool;

    /// Takes the time that calls have spent, since this was asked last, on what later ops find done, such as pages that were made present:
    /// it says nothing of how long these will take.
    fn take_prepared(&mut self) -> Duration {
        Duration::ZERO
    }

    /// How to wait for more. Call it after a poll that found nothing, and directly before sleeping.
    fn arm(&mut self, now: Instant) -> Arm;

    /// How many lanes a link has now; none for a link that is not known. Cheap: whoever waits for a link asks after each poll.
    fn lanes(&self, link: LinkId, now: Instant) -> Option<LinkLanes>;

    /// What signs of life the peer gives on a link; none of either kind for a link that is not known. May ask the system about each
    /// lane, so it is for explaining a failure.
    fn signs(&mut self, link: LinkId, now: Instant) -> Signs;

    /// Closes a link: its ops complete with errors, and its number is never used again. Ops on that number complete with
    /// [`OpErrorCode::NoLink`](crate::OpErrorCode::NoLink) from then on. A link that is not known is ignored.
    fn disconnect(&mut self, link: LinkId, now: Instant);

    /// Closes everything. Ops complete with errors by polling; [`Transport::is_drained`] says when that is over.
    fn close(&mut self, now: Instant);

    /// Whether no op is in flight and no completion waits to be polled.
    fn is_drained(&self) -> bool;
}
