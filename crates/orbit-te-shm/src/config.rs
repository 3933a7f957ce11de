//! The knobs of the same-host transport. Rule: each says how to size it and what it costs.

use std::path::PathBuf;
use std::time::Duration;

/// Where sockets in the file system are made, beside the one in the abstract namespace. They are met by processes of other network
/// namespaces that share the folder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SocketFolder {
    /// `$XDG_RUNTIME_DIR/orbit-te`, or `orbit-te-USER` in the system's folder for temporary files; made, for its user alone, when it is not
    /// there.
    #[default]
    Usual,
    /// This one, which is there: a volume that several containers share, say.
    At(PathBuf),
    /// None: only processes of the same network namespace are met.
    None,
}

/// Settings of a [`crate::Door`] and of [`crate::ShmTransport`]s. They need not be the same at both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShmConfig {
    /// Where to be met.
    pub folder: SocketFolder,
    /// Users beside this process's own whose processes are let in, by number. Default none.
    pub users: Vec<u32>,
    /// Whether a peer may map memory although it then sees more than its right gives it: the rest of the buffer of which a region is a part,
    /// and the bytes of a region that it may only write. Default no; such regions are reached in another way.
    pub share_parts: bool,
    /// Copies are made in steps of this size: between two of them the region can be withdrawn, the op be cancelled, and more urgent ones
    /// go first. Default 1 MiB.
    pub chunk_bytes: u64,
    /// Threads that help a transport with copies of 4 MiB and more, where that is found to be faster; each sleeps otherwise. A copy past
    /// the caches by one thread reaches some 15 GB/s, far less than the memory of a large host gives. Each worker has its own. Default: one for every four
    /// CPUs, at most 3.
    pub copy_threads: usize,
    /// Ops held at once. Each costs about 200 bytes. Default 4,096.
    pub max_ops: u32,
    /// Links held at once. Default 1,024.
    pub max_links: u32,
    /// Regions that a connection may be let in to at a time; one more, and the one that was not used for longest is left. Each costs 64
    /// bytes at both sides, and page tables. Default 512.
    pub regions: u32,
    /// A connection must be answered within this time. Default 2 s.
    pub answer_timeout: Duration,
    /// Ops that wait for a link that has been down for so long fail as unreachable. Default 3 s.
    pub unreachable_after: Duration,
    /// The pause before a link is made again: doubles from the first to the second value. Default 20 ms to 5 s.
    pub reconnect_pause: (Duration, Duration),
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig {
            folder: SocketFolder::Usual,
            users: Vec::new(),
            share_parts: false,
            chunk_bytes: 1024 * 1024,
            copy_threads: std::thread::available_parallelism().map_or(0, |cpus| (cpus.get() / 4).min(3)),
            max_ops: 4096,
            max_links: 1024,
            regions: 512,
            answer_timeout: Duration::from_secs(2),
            unreachable_after: Duration::from_secs(3),
            reconnect_pause: (Duration::from_millis(20), Duration::from_secs(5)),
        }
    }
}

impl ShmConfig {
    /// The settings with values that can be worked with: times that can be added to any clock, and counts within the protocol's.
    pub(crate) fn bounded(mut self) -> ShmConfig {
        let year = Duration::from_secs(365 * 24 * 3600);
        self.answer_timeout = self.answer_timeout.min(year);
        self.unreachable_after = self.unreachable_after.min(year);
        self.reconnect_pause = (self.reconnect_pause.0.min(year), self.reconnect_pause.1.min(year));
        self.chunk_bytes = self.chunk_bytes.max(1);
        self.max_ops = self.max_ops.max(1);
        self.regions = self.regions.clamp(1, orbit_te_wire::same_host::MAX_GATES);
        self
    }
}
