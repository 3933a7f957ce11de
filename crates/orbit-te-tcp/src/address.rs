//! What a peer announces so that lanes can be made to it. Rule: opaque to everybody above this crate.

use orbit_te_transport::TransportError;
use orbit_te_wire::limits::MAX_ADDRESSES;
use orbit_te_wire::{SessionId, codec};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

pub(crate) const TRANSPORT: &str = "tcp";
const MAX_BYTES: usize = 1024;

/// Where a peer listens, and the session that lanes to it must name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpAddress {
    /// Addresses of the listening port; tried in turn.
    #[serde(deserialize_with = "codec::list::<MAX_ADDRESSES, _, _>")]
    pub addresses: Vec<SocketAddr>,
    /// The session, from the answer to the control link's hello. Without a control link: any number that the accepting
    /// side admits.
    pub session: SessionId,
}

impl TcpAddress {
    /// The bytes for [`orbit_te_transport::Transport::connect`].
    ///
    /// # Errors
    /// [`TransportError::Wire`] when there are too many addresses to fit.
    pub fn encode(&self) -> Result<Vec<u8>, TransportError> {
        Ok(codec::encode("TCP address", self, MAX_BYTES)?)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<TcpAddress, TransportError> {
        let bad = |reason: String| TransportError::BadAddress { transport: TRANSPORT, reason };
        let address: TcpAddress =
            codec::decode("TCP address", bytes, MAX_BYTES).map_err(|e| bad(e.to_string()))?;
        if address.addresses.is_empty() || address.addresses.len() > MAX_ADDRESSES {
            return Err(bad(format!(
                "it lists {} addresses; 1 to {MAX_ADDRESSES} can be used",
                address.addresses.len()
            )));
        }
        Ok(address)
    }
}
