//! Waiting for a peer's lanes ahead of the first transfer, with progress. Rule: it has a limit and ends by itself; dropping the handle
//! drops interest in the answer, and the lanes stay.

use crate::clock;
use crate::error::Error;
use crate::peer::Peer;
use crate::pending::{Pending, block_on};
use orbit_te_transport::{LinkId, LinkLanes};
use orbit_te_wire::PeerId;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

const WHAT: &str = "warming a peer's lanes";
/// What a blocking wait grants the engine to end at the limit by itself.
const GRACE: Duration = Duration::from_secs(1);
/// A longer limit is as good as none.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// How many of a peer's lanes are up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lanes {
    /// Those that can move bytes now.
    pub up: u32,
    /// Those that are kept wherever they can be had ([`crate::TcpConfig::lanes`]); zero while that is not known yet.
    pub wanted: u32,
}

impl Lanes {
    /// Whether all are up.
    pub fn all_up(&self) -> bool {
        self.wanted > 0 && self.up >= self.wanted
    }
}

/// Lanes that are being opened, from [`crate::Segment::warm`]. A plain [`Future`] for any executor; it can also be waited for by a
/// thread, asked, and watched. Dropping it changes nothing for the lanes.
#[derive(Debug)]
#[must_use = "nothing waits for the lanes unless it is awaited"]
pub struct Warming {
    answer: Pending<Lanes>,
    progress: watch::Receiver<Lanes>,
    limit: Duration,
}

impl Warming {
    /// Asks a peer's worker to tell when its lanes are up, at the latest after `limit`.
    pub(crate) fn begin(peer: &Peer, limit: Duration) -> (Box<Warm>, Warming) {
        let (progress, watched) = watch::channel(Lanes::default());
        let (reply, answer) = Pending::new(WHAT);
        let limit = limit.min(A_YEAR);
        let warm = Warm {
            link: peer.link,
            until: clock::now() + limit,
            limit,
            peer: peer.id,
            address: peer.address,
            progress,
            reply,
        };
        (Box::new(warm), Warming { answer, progress: watched, limit })
    }

    /// One that has failed already.
    pub(crate) fn failed(error: Error) -> Warming {
        let (_, progress) = watch::channel(Lanes::default());
        Warming { answer: Pending::ready(WHAT, Err(error)), progress, limit: Duration::ZERO }
    }

    /// How many lanes are up by now.
    pub fn lanes(&self) -> Lanes {
        *self.progress.borrow()
    }

    /// The next change of [`Warming::lanes`]; none once it has ended. Works in any async runtime. Dropping the future loses nothing.
    pub async fn changed(&mut self) -> Option<Lanes> {
        self.progress.changed().await.ok()?;
        Some(*self.progress.borrow_and_update())
    }

    /// Blocks the calling thread until [`Warming::lanes`] changes, at most for `limit`; none at the limit, and once it has ended.
    pub fn changed_for(&mut self, limit: Duration) -> Option<Lanes> {
        block_on(self.changed(), clock::now().checked_add(limit)).flatten()
    }

    /// Blocks the calling thread until it has ended, which it does by its limit. Not all lanes need be up then: see
    /// [`Lanes::all_up`].
    ///
    /// # Errors
    /// As [`crate::Segment::warm`].
    pub fn wait(self) -> Result<Lanes, Error> {
        self.answer.wait(self.limit + GRACE)
    }
}

impl Future for Warming {
    type Output = Result<Lanes, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(context)
    }
}

/// A worker's side of it.
pub(crate) struct Warm {
    pub(crate) link: LinkId,
    pub(crate) until: Instant,
    pub(crate) limit: Duration,
    peer: PeerId,
    address: SocketAddr,
    progress: watch::Sender<Lanes>,
    reply: oneshot::Sender<Result<Lanes, Error>>,
}

/// How it ends.
pub(crate) enum End {
    /// With all lanes, or with those that could be had by the limit.
    Up(Lanes),
    /// No lane could be had.
    NoLane,
    /// The link was closed.
    Gone,
}

impl Warm {
    /// Whether nobody waits for it any more.
    pub(crate) fn is_given_up(&self) -> bool {
        self.reply.is_closed()
    }

    /// Notes the progress; how it ends, if it does now.
    pub(crate) fn look(&mut self, lanes: Option<LinkLanes>, now: Instant) -> Option<End> {
        let Some(LinkLanes { up, wanted, unreachable }) = lanes else { return Some(End::Gone) };
        let lanes = Lanes { up, wanted };
        self.progress.send_if_modified(|known| std::mem::replace(known, lanes) != lanes);
        match now >= self.until {
            _ if lanes.all_up() => Some(End::Up(lanes)),
            true if up > 0 => Some(End::Up(lanes)),
            late => (late || unreachable).then_some(End::NoLane),
        }
    }

    /// Tells whoever waits. The cause is asked for where there is something to explain.
    pub(crate) fn end(self, end: End, cause: impl FnOnce() -> Option<String>) {
        let Warm { limit, peer, address, progress, reply, .. } = self;
        let answer = match end {
            End::Up(lanes) => Ok(lanes),
            End::NoLane => {
                let cause = cause().unwrap_or_else(|| format!("no data lane stood within {limit:?}"));
                Err(Error::Unreachable { address: address.to_string(), cause })
            }
            End::Gone => {
                let cause = cause().unwrap_or_else(|| "its link was closed".to_string());
                Err(Error::PeerGone { peer, cause })
            }
        };
        // Nobody listens any more when the handle was dropped. The answer first: whoever watches and is told of the end finds it.
        let _ = reply.send(answer);
        drop(progress);
    }
}
