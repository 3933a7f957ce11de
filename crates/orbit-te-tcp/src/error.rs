//! Why a lane ended. Rule: it tells the network's failure from the peer's breach of the protocol.

use orbit_te_wire::WireError;
use std::io;

/// Why a lane ended.
#[derive(Debug)]
pub(crate) enum ConnError {
    /// The peer closed it. `clean`: between two frames.
    Closed {
        clean: bool,
    },
    Io(io::Error),
    Wire(WireError),
    /// The peer sent a frame that has no place here.
    Unexpected(&'static str),
}

impl From<ConnError> for orbit_te_transport::TransportError {
    fn from(error: ConnError) -> Self {
        let io = |source| orbit_te_transport::TransportError::Io { what: "a data lane".into(), source };
        match error {
            ConnError::Closed { clean: true } => {
                io(io::Error::new(io::ErrorKind::ConnectionAborted, "the peer closed it"))
            }
            ConnError::Closed { clean: false } => {
                io(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed it inside a frame"))
            }
            ConnError::Io(source) => io(source),
            ConnError::Wire(error) => error.into(),
            ConnError::Unexpected(what) => WireError::Invalid { what }.into(),
        }
    }
}
