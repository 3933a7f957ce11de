//! Memory for TCP. Rule: any host memory will do, as it is; what a peer needs is the region's number, generation and key.

use crate::address::TRANSPORT;
use orbit_te_memory::{Domain, KindSet, LocalKey, MemoryError, Region, RemoteKey};
use orbit_te_wire::RegionDescriptor;

/// The TCP transport's [`Domain`]. Has no state: the target's registry is asked on every request.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpDomain;

impl Domain for TcpDomain {
    fn name(&self) -> &'static str {
        TRANSPORT
    }

    fn kinds(&self) -> KindSet {
        KindSet::HOST
    }

    fn register(&self, region: &Region) -> Result<LocalKey, MemoryError> {
        if !self.kinds().contains(region.kind()) {
            let reason = format!("{:?} memory is not reachable by the CPU", region.kind());
            return Err(MemoryError::Refused { domain: TRANSPORT, reason });
        }
        Ok(LocalKey::of_host(region))
    }

    fn remote_key(&self, _region: &Region, key: u64) -> Vec<u8> {
        key.to_le_bytes().to_vec()
    }

    fn deregister(&self, _region: &Region, _key: LocalKey) -> Result<(), MemoryError> {
        Ok(())
    }

    fn import(&self, descriptor: &RegionDescriptor) -> Result<RemoteKey, MemoryError> {
        let bad = |reason: &str| MemoryError::BadRemoteKey { domain: TRANSPORT, reason: reason.to_string() };
        let bytes = descriptor.key(TRANSPORT).ok_or_else(|| bad("the descriptor has no key for TCP"))?;
        let key: [u8; 8] = bytes.try_into().map_err(|_| bad("the key for TCP is not 8 bytes long"))?;
        Ok(RemoteKey::of_host(descriptor, u64::from_le_bytes(key)))
    }

    fn forget(&self, _key: RemoteKey) {}
}
