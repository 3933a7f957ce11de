//! How a region of memory is named to a peer. Rule: a descriptor is an offer, not a proof; the owner checks every
//! access against its own registry.

use crate::codec;
use crate::error::WireError;
use crate::ids::{Generation, RegionId};
use crate::limits::{
    MAX_TRANSPORT_ADDRESS_BYTES, MAX_TRANSPORT_KEY_BYTES, MAX_TRANSPORT_KEYS, MAX_TRANSPORT_NAME_BYTES,
};
use serde::{Deserialize, Serialize};

bitflags::bitflags! {
    /// Who may do what with a region.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct Access: u32 {
        /// This process may read and write it by transfers.
        const LOCAL = 1;
        /// Peers may read it.
        const REMOTE_READ = 1 << 1;
        /// Peers may write it.
        const REMOTE_WRITE = 1 << 2;
    }
}

impl Access {
    /// Local, and readable and writable by peers.
    pub const SHARED: Access = Access::LOCAL.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);
    /// Local, and readable by peers.
    pub const SHARED_READ: Access = Access::LOCAL.union(Access::REMOTE_READ);

    /// Whether a peer may touch the region at all.
    pub fn is_remote(self) -> bool {
        self.intersects(Access::REMOTE_READ | Access::REMOTE_WRITE)
    }
}

/// Where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryKind {
    /// Ordinary memory of the host.
    Host,
    /// Memory of the host that a GPU driver has pinned.
    PinnedHost,
    /// Memory of a GPU, by the driver's ordinal in the owning process.
    Device {
        /// The ordinal.
        ordinal: u32,
    },
    /// A file or block device.
    File,
}

/// What one transport needs to reach a region: opaque to everybody else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportKey {
    /// The transport's name; at most [`MAX_TRANSPORT_NAME_BYTES`].
    pub transport: String,
    /// Its bytes; at most [`MAX_TRANSPORT_KEY_BYTES`].
    #[serde(with = "codec::bytes")]
    pub bytes: Vec<u8>,
}

/// Where one transport of a process is reached: opaque to everybody else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportAddress {
    /// The transport's name; at most [`MAX_TRANSPORT_NAME_BYTES`].
    pub transport: String,
    /// Its bytes; at most [`MAX_TRANSPORT_ADDRESS_BYTES`].
    #[serde(with = "codec::bytes")]
    pub bytes: Vec<u8>,
}

/// A region as its owner describes it to others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionDescriptor {
    /// The region's number at its owner.
    pub region: RegionId,
    /// The generation this descriptor was made for.
    pub generation: Generation,
    /// Where the described bytes begin in the region.
    pub base_offset: u64,
    /// How many bytes are described.
    pub length: u64,
    /// Where they are.
    pub kind: MemoryKind,
    /// What peers may do.
    pub access: Access,
    /// One key for each transport that can reach it; at most [`MAX_TRANSPORT_KEYS`].
    #[serde(deserialize_with = "codec::list::<MAX_TRANSPORT_KEYS, _, _>")]
    pub keys: Vec<TransportKey>,
}

impl TransportAddress {
    /// Refuses what is over a limit.
    pub(crate) fn validate(&self) -> Result<(), WireError> {
        let (name, bytes) = (self.transport.len(), self.bytes.len());
        let over = |what, got, limit| Err(WireError::TooLong { what, got: got as u64, limit: limit as u64 });
        if name > MAX_TRANSPORT_NAME_BYTES {
            return over("transport name", name, MAX_TRANSPORT_NAME_BYTES);
        }
        if bytes > MAX_TRANSPORT_ADDRESS_BYTES {
            return over("transport address", bytes, MAX_TRANSPORT_ADDRESS_BYTES);
        }
        Ok(())
    }
}

impl RegionDescriptor {
    /// The key of one transport.
    pub fn key(&self, transport: &str) -> Option<&[u8]> {
        self.keys.iter().find(|k| k.transport == transport).map(|k| k.bytes.as_slice())
    }

    /// Refuses a descriptor whose fields contradict each other or are over their limits.
    pub fn validate(&self) -> Result<(), WireError> {
        if self.length == 0 {
            return Err(WireError::Invalid { what: "a region descriptor has length zero" });
        }
        if self.base_offset.checked_add(self.length).is_none() {
            return Err(WireError::Invalid { what: "a region descriptor's range overflows" });
        }
        if self.keys.len() > MAX_TRANSPORT_KEYS {
            let got = self.keys.len() as u64;
            return Err(WireError::TooMany { what: "transport keys", got, limit: MAX_TRANSPORT_KEYS as u64 });
        }
        for key in &self.keys {
            let lengths = [
                ("transport name", key.transport.len(), MAX_TRANSPORT_NAME_BYTES),
                ("transport key", key.bytes.len(), MAX_TRANSPORT_KEY_BYTES),
            ];
            for (what, got, limit) in lengths {
                if got > limit {
                    return Err(WireError::TooLong { what, got: got as u64, limit: limit as u64 });
                }
            }
        }
        Ok(())
    }
}
