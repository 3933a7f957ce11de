//! What a transport needs to reach memory. Rule: registering and importing happen here, on any thread and possibly
//! slowly, so that moving bytes later needs neither parsing nor checking.

use crate::error::MemoryError;
use crate::region::Region;
use orbit_te_wire::{MemoryKind, RegionDescriptor, RegionId};

/// The kinds of memory a domain takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KindSet {
    /// [`MemoryKind::Host`].
    pub host: bool,
    /// [`MemoryKind::PinnedHost`].
    pub pinned_host: bool,
    /// [`MemoryKind::Device`].
    pub device: bool,
    /// [`MemoryKind::File`].
    pub file: bool,
}

impl KindSet {
    /// Memory that the CPU reaches.
    pub const HOST: KindSet = KindSet { host: true, pinned_host: true, device: false, file: false };

    /// Whether a kind is among them.
    pub fn contains(&self, kind: MemoryKind) -> bool {
        match kind {
            MemoryKind::Host => self.host,
            MemoryKind::PinnedHost => self.pinned_host,
            MemoryKind::Device { .. } => self.device,
            MemoryKind::File => self.file,
        }
    }
}

/// The key by which transports know a local region. Made by [`Domain::register`], and of host memory the same at each of them
/// ([`LocalKey::of_host`]), so that an op may take any of them as it is. The default one is of no region: that of bytes which are in none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LocalKey(pub u64);

impl LocalKey {
    /// The bit of memory that may vanish.
    const VANISHES: u64 = 1;

    /// The key of a region of host memory: which region it is, and whether it may vanish. A transport that has registered the memory
    /// somewhere keeps what it got in a table of its own, by this key.
    pub fn of_host(region: &Region) -> LocalKey {
        LocalKey((region.id().0 << 1) | u64::from(region.backing().may_vanish()))
    }

    /// Whether the memory may vanish while it is touched ([`crate::Backing::may_vanish`]): only the kernel may touch it. Of a key by
    /// [`LocalKey::of_host`].
    pub fn may_vanish(self) -> bool {
        self.0 & LocalKey::VANISHES != 0
    }

    /// The region; number zero, which no region has, for bytes that are in none. Of a key by [`LocalKey::of_host`].
    pub fn region(self) -> RegionId {
        RegionId(self.0 >> 1)
    }
}

/// The key by which a transport reaches a peer's region. Means something only to the domain that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RemoteKey(pub [u64; 4]);

impl RemoteKey {
    /// The key of a peer's region at transports that need nothing but what its owner is shown: its number, generation and key; and where
    /// the description ends, so that an op that reaches past it is refused whole. One and the same at each of them.
    pub fn of_host(descriptor: &RegionDescriptor, key: u64) -> RemoteKey {
        let end = descriptor.base_offset.saturating_add(descriptor.length);
        RemoteKey([descriptor.region.0, descriptor.generation.0, key, end])
    }
}

/// The local addresses of an op. Small and `Copy`: whoever submits it keeps a lease on the region meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSpan {
    /// The address of the first byte.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
    /// The transport's key for the region.
    pub key: LocalKey,
}

/// One half of a transport: makes memory reachable. Callable from any thread; may block.
pub trait Domain: Send + Sync {
    /// The transport's name, as in [`orbit_te_wire::TransportKey::transport`].
    fn name(&self) -> &'static str;

    /// The kinds of memory it takes.
    fn kinds(&self) -> KindSet;

    /// Makes a region reachable. All or nothing: an error leaves nothing behind.
    ///
    /// The key for ops is the same at each domain that registers the region, [`LocalKey::of_host`] for memory of the host: whoever
    /// has several transports makes an op once and hands it to whichever is best, or to the next one when that fails.
    /// [`crate::Registry::register_all`] refuses a region on which domains do not agree.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] with the reason.
    fn register(&self, region: &Region) -> Result<LocalKey, MemoryError>;

    /// What a peer's domain needs in order to import a region that is registered here: the bytes of its descriptor's
    /// [`orbit_te_wire::TransportKey`]. `key` is what the peer's requests must present: the region's own, or that of a grant.
    fn remote_key(&self, region: &Region, key: u64) -> Vec<u8>;

    /// Whether memory that two regions share has one registration, so that each of them would have the rights of both. Such
    /// regions are refused when their rights differ ([`MemoryError::Overlap`]).
    fn shares_registrations(&self) -> bool {
        false
    }

    /// The region has another generation: makes what peers were told of it before useless, where this transport lets them present it to
    /// somebody else than the registry (a device that checks keys of its own, say). `key` is that of [`Domain::register`], and stays; what
    /// [`Domain::remote_key`] says may change.
    ///
    /// Called by [`crate::Registry::revoke_or`], once for a revocation: when no lease and no hold is left, and before the region takes new
    /// ones, so nothing is under way over it at either side, as far as peers keep their word. May block. Not called when leases or holds
    /// were left at the revocation's limit: then the old keys live on until a later revocation or [`Domain::deregister`]; nor for
    /// [`crate::Registry::renew`]. A peer that asks for a description between the new generation and this call may be told of the old key
    /// beside the new generation; ops by it are to fail as stale ones do, so that the peer asks again.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] with the reason. The region is then not reachable by this transport, neither by old keys nor by new ones,
    /// until it is deregistered; whoever revokes is told, and other transports go on.
    fn renew(&self, _region: &Region, _key: LocalKey) -> Result<(), MemoryError> {
        Ok(())
    }

    /// Undoes [`Domain::register`], once the region has no leases. No [`Domain::renew`] of it runs then, and none comes after.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] with the reason; the registration then stays.
    fn deregister(&self, region: &Region, key: LocalKey) -> Result<(), MemoryError>;

    /// Parses and checks what a peer said about its region, once, and gives the key for ops.
    ///
    /// # Errors
    /// [`MemoryError::BadRemoteKey`] with the reason.
    fn import(&self, descriptor: &RegionDescriptor) -> Result<RemoteKey, MemoryError>;

    /// Undoes [`Domain::import`].
    fn forget(&self, key: RemoteKey);
}
