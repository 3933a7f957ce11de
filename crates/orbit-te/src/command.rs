//! What other threads ask of a worker. Rule: a command owns all that it needs, so that nobody waits for it to be carried out.

use crate::error::Error;
use crate::letters::Letter;
use crate::peer::LinkStatus;
use crate::route::{Description, Plan, Reason, RouteId};
use crate::router::Reach;
use crate::transfer::TransferState;
use crate::warming::Warm;
use orbit_te_memory::RemoteKey;
use orbit_te_transport::{LinkId, Op};
use orbit_te_wire::PeerId;
use std::sync::Arc;
use tokio::sync::oneshot;

/// What other threads ask of a worker.
pub(crate) enum Command {
    /// Carry out a part of a transfer.
    Submit { transfer: Arc<TransferState>, part: usize },
    /// Send the notification of a transfer whose bytes are in place.
    Announce(Arc<TransferState>),
    /// Give a transfer up.
    Cancel(Arc<TransferState>),
    /// Make a link.
    Connect {
        peer: PeerId,
        address: Vec<u8>,
        status: Arc<LinkStatus>,
        reply: oneshot::Sender<Result<LinkId, Error>>,
    },
    /// Reach the peer of a link over another route as well.
    Join {
        link: LinkId,
        peer: PeerId,
        route: RouteId,
        address: Vec<u8>,
        reply: oneshot::Sender<Result<(), Reason>>,
    },
    /// Give a transport that reaches the peer of a link what its counterpart has said.
    Deliver { link: LinkId, route: RouteId, letter: Letter },
    /// Keep what is known of a peer's region.
    Learn { link: LinkId, key: RemoteKey, reach: Arc<Reach> },
    /// Tell what would be done with such an op.
    Explain { op: Box<Op>, demand: Option<RouteId>, reply: oneshot::Sender<Result<Plan, Error>> },
    /// Tell all that decides about the route of such an op; the draft has what the worker does not know.
    Describe { op: Box<Op>, draft: Box<Description>, reply: oneshot::Sender<Result<Description, Error>> },
    /// Tell when a link's lanes are up.
    Warm(Box<Warm>),
    /// Close a link; its transfers fail.
    Disconnect(LinkId),
}
