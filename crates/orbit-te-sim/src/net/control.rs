//! The network as the control plane sees it. Rule: a control message is sent whole or not at all, so that it can be sent twice.

use super::stream::Guard;
use super::{EndId, Shared};
use orbit_te::simulation::{ControlLink, Dialing, World};
use orbit_te_wire::SessionId;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What one life's control plane has of the world.
pub(crate) struct SimWorld {
    pub(crate) net: Shared,
    pub(crate) life: usize,
}

impl World for SimWorld {
    fn dial(&self, to: SocketAddr) -> Dialing {
        let (net, life) = (self.net.clone(), self.life);
        Box::pin(async move {
            let at = net.lock().connect(life, to);
            let guard = Guard { net: net.clone(), at };
            poll_fn(|context| {
                let mut net = net.lock();
                match net.is_up(at) {
                    Ok(false) => {
                        net.end_mut(at).writer = Some(context.waker().clone());
                        Poll::Pending
                    }
                    other => Poll::Ready(other),
                }
            })
            .await?;
            Ok(link(guard))
        })
    }

    fn session_id(&self) -> io::Result<SessionId> {
        Ok(SessionId(self.net.lock().rng.u128(..)))
    }
}

/// Both directions of an end.
pub(super) fn link(guard: Guard) -> ControlLink {
    let guard = Arc::new(guard);
    let (reader, writer) = (Box::new(Half(guard.clone())), Box::new(Half(guard)));
    ControlLink { reader, writer, signs: Box::new(|| None) }
}

struct Half(Arc<Guard>);

impl Half {
    fn parts(&self) -> (&Shared, EndId) {
        (&self.0.net, self.0.at)
    }
}

impl AsyncRead for Half {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (net, at) = self.parts();
        let mut net = net.lock();
        match net.receive(at, into.remaining()) {
            Ok(bytes) => {
                into.put_slice(&bytes);
                Poll::Ready(Ok(()))
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                net.end_mut(at).reader = Some(context.waker().clone());
                Poll::Pending
            }
            Err(e) => Poll::Ready(Err(e)),
        }
    }
}

impl AsyncWrite for Half {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let (net, at) = self.parts();
        let mut net = net.lock();
        let twice = is_message(from) && net.faults.duplicate > 0.0 && {
            let probability = net.faults.duplicate;
            net.chance(probability)
        };
        let copies = 1 + usize::from(twice);
        match net.room(at, copies * from.len(), true) {
            Ok(_) => {
                for _ in 0..copies {
                    net.send(at, from.to_vec());
                }
                Poll::Ready(Ok(from.len()))
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                net.end_mut(at).writer = Some(context.waker().clone());
                Poll::Pending
            }
            Err(e) => Poll::Ready(Err(e)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (net, at) = self.parts();
        net.lock().shut(at);
        Poll::Ready(Ok(()))
    }
}

/// Whether these bytes are one control message; a hello has another beginning.
fn is_message(bytes: &[u8]) -> bool {
    let length = bytes.first_chunk::<4>().map(|head| u32::from_le_bytes(*head) as usize);
    length == bytes.len().checked_sub(4)
}
