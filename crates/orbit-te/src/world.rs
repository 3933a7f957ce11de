//! What the control plane has of the world outside: connections, and random numbers. Rule: whatever a simulation must replace of
//! it is here; nothing here is on a data path.

#![allow(unreachable_pub)] // A simulation reaches these through the feature of that name.

use mio::net::TcpStream as Taken;
use orbit_te_tcp::net::{StreamSigns, signs};
use orbit_te_wire::SessionId;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Both directions of a control link.
pub struct ControlLink {
    /// What the peer sends.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// What is sent to it. Dropping both, and what tells the signs, closes the connection.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// What the connection knows of its other end.
    pub signs: Box<dyn Fn() -> Option<StreamSigns> + Send + Sync>,
}

impl fmt::Debug for ControlLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlLink").finish_non_exhaustive()
    }
}

/// A control link that is being made.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<ControlLink>> + Send>>;

/// The world outside of an engine's control plane.
pub trait World: Send + Sync {
    /// Connects to a listening port.
    fn dial(&self, to: SocketAddr) -> Dialing;

    /// A number for a new session, which nobody guesses.
    ///
    /// # Errors
    /// When there are no random bytes.
    fn session_id(&self) -> io::Result<SessionId>;
}

/// A connection that a listener took, before it is a control link.
pub trait Accepted: Send + 'static {
    /// Makes it one. Called on the control plane's thread.
    ///
    /// # Errors
    /// When the connection can't be taken over.
    fn into_control(self) -> io::Result<ControlLink>;
}

/// The world of the operating system.
pub(crate) struct Os;

impl World for Os {
    fn dial(&self, to: SocketAddr) -> Dialing {
        Box::pin(async move { link(TcpStream::connect(to).await?) })
    }

    fn session_id(&self) -> io::Result<SessionId> {
        let mut id = [0u8; 16];
        getrandom::fill(&mut id)?;
        Ok(SessionId(u128::from_le_bytes(id)))
    }
}

impl Accepted for Taken {
    fn into_control(self) -> io::Result<ControlLink> {
        let stream: std::net::TcpStream = self.into();
        link(TcpStream::from_std(stream)?)
    }
}

fn link(stream: TcpStream) -> io::Result<ControlLink> {
    stream.set_nodelay(true)?;
    // The halves leave no way to ask, so a second descriptor of the same socket does.
    let socket = stream.as_fd().try_clone_to_owned()?;
    let (reader, writer) = stream.into_split();
    let signs = Box::new(move || signs(&socket));
    Ok(ControlLink { reader: Box::new(reader), writer: Box::new(writer), signs })
}
