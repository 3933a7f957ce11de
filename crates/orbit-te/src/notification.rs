//! Notifications: bytes with a name from a peer. Rule: kept in order of arrival in a queue with a bound; a full queue refuses, and
//! the sender is told.

use crate::clock;
use crate::error::{Error, TransferError};
use crate::pending::block_on;
use crate::receipt::Receipt;
use crate::segment::Segment;
use futures_core::Stream;
use orbit_te_transport::{OpError, OpErrorCode};
use orbit_te_wire::{PeerId, RefusalCode};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;

/// Bytes with a name, from a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// Who sent it.
    pub peer: PeerId,
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// The notifications that peers sent to this engine, in order per peer, each once. There is one receiver an engine. A [`Stream`] for any
/// async runtime, which ends as [`Notifications::recv`] does.
#[derive(Debug)]
pub struct Notifications {
    pub(crate) queue: mpsc::Receiver<Notification>,
}

impl Notifications {
    /// The next one; none when all were taken and the last handle of the engine and of its segments is gone, so that none can come.
    /// Works in any async runtime. Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<Notification> {
        self.queue.recv().await
    }

    /// The next one if it is there already.
    pub fn try_recv(&mut self) -> Option<Notification> {
        self.queue.try_recv().ok()
    }

    /// Blocks the calling thread until one is there, at most for `limit`; none at the limit, and as [`Notifications::recv`].
    pub fn recv_for(&mut self, limit: Duration) -> Option<Notification> {
        block_on(self.queue.recv(), clock::now().checked_add(limit)).flatten()
    }
}

impl Stream for Notifications {
    type Item = Notification;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Notification>> {
        self.queue.poll_recv(context)
    }
}

/// The answer to a notification that was sent by itself.
pub(crate) fn taken(end: Result<Receipt, TransferError>, to: &Segment) -> Result<(), Error> {
    let peer = &to.inner.peer;
    let address = || peer.address.to_string();
    let refused = |code, error: OpError| Error::Refused {
        address: address(),
        code: Some(code),
        reason: error.to_string(),
    };
    Err(match end {
        Ok(_) => return Ok(()),
        Err(TransferError::Request { error, cause, .. }) => match error.code {
            OpErrorCode::QueueFull => refused(RefusalCode::QueueFull, error),
            OpErrorCode::NobodyListens => refused(RefusalCode::Unsupported, error),
            OpErrorCode::PeerShuttingDown => refused(RefusalCode::ShuttingDown, error),
            _ => match peer.gone() {
                Some(cause) => Error::PeerGone { peer: peer.id, cause: cause.to_string() },
                None => {
                    let cause = cause.map_or_else(|| error.to_string(), |cause| cause.to_string());
                    Error::Unreachable { address: address(), cause }
                }
            },
        },
        Err(TransferError::Deadline { after, .. }) => {
            Error::TimedOut { what: "a notification", limit: after }
        }
        Err(_) => Error::Closed,
    })
}
