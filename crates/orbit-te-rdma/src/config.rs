//! The knobs of the RDMA transport. Rule: each says how to size it and what it costs.

use crate::attributes::Quality;
use crate::rails::Preferences;
use std::time::Duration;

/// How a worker learns of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Completions {
    /// By looking again and again; between looks it sleeps only when its engine does. Lowest latency; a core is busy while ops are under way.
    Polling,
    /// By an event of the device, as soon as nothing is found: a call to the system each time, and the core is free meanwhile.
    Events,
    /// By looking for [`RdmaConfig::spin`], then by an event.
    #[default]
    Adaptive,
}

/// Settings of [`crate::Adapters`], of a [`crate::RdmaTarget`] and of [`crate::RdmaTransport`]s. They need not be the same at both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaConfig {
    /// The devices to use, by name (`mlx5_0`) or by name and port (`mlx5_0:1`), best first; none named: all that there are. One that is
    /// not there is an error.
    pub devices: Vec<String>,
    /// The index in the GID table that every rail uses; none: the best of each. A rail without it is not used; that no port which is up has
    /// it is an error.
    pub gid_index: Option<u16>,
    /// QPs of one connection. More of them keep fast devices busy, and each costs memory at both devices. Default 2.
    pub width: u8,
    /// WRs that one QP holds. Each costs 64 bytes and more at the device. Default 128.
    pub send_depth: u32,
    /// WRs are cut at this length, so that more urgent ones go first and a cancel is heard. Default 1 MiB.
    pub chunk_bytes: u32,
    /// READs under way on one QP at most; the device may set less. Default 16.
    pub reads: u8,
    /// How long a QP tries to be heard before the connection is given up. Default 1 s.
    pub ack_budget: Duration,
    /// Traffic class of RoCE packets. Default 0.
    pub traffic_class: u8,
    /// Service level, up to 15. Default 0.
    pub service_level: u8,
    /// The P_Key to talk in; none: the first of the port's table.
    pub p_key: Option<u16>,
    /// How a worker learns of completions.
    pub completions: Completions,
    /// How long [`Completions::Adaptive`] looks before it waits for an event. Default 50 microseconds.
    pub spin: Duration,
    /// Ops held at once. Each costs about 250 bytes. Default 4,096.
    pub max_ops: u32,
    /// Links held at once. Default 1,024.
    pub max_links: u32,
    /// Regions of one peer whose keys are kept; one more, and the one that was not used for longest is forgotten. Default 512.
    pub regions: u32,
    /// Whether notifications that are short enough go by the devices too, and are taken so: by one more QP for each connection. Default yes.
    pub notifications: bool,
    /// Peers that may send notifications so at a time; others are not refused, they take another way. Each costs 4 KiB of pinned memory.
    /// Default 1,024.
    pub notice_peers: u32,
    /// Ops that wait for a link that has been down for so long fail as unreachable. Default 3 s.
    pub unreachable_after: Duration,
    /// So long after a connection broke, writes that were under way wait for the peer to say that nothing of them can land any more.
    /// Default 1 s.
    pub fence_timeout: Duration,
    /// So long a peer may take to let go of keys that end; then they are taken from it. Default 500 ms.
    pub revoke_timeout: Duration,
}

impl Default for RdmaConfig {
    fn default() -> RdmaConfig {
        RdmaConfig {
            devices: Vec::new(),
            gid_index: None,
            width: 2,
            send_depth: 128,
            chunk_bytes: 1024 * 1024,
            reads: 16,
            ack_budget: Duration::from_secs(1),
            traffic_class: 0,
            service_level: 0,
            p_key: None,
            completions: Completions::default(),
            spin: Duration::from_micros(50),
            max_ops: 4096,
            max_links: 1024,
            regions: 512,
            notifications: true,
            notice_peers: 1024,
            unreachable_after: Duration::from_secs(3),
            fence_timeout: Duration::from_secs(1),
            revoke_timeout: Duration::from_millis(500),
        }
    }
}

impl RdmaConfig {
    /// How rails are paired by them.
    pub(crate) fn preferences(&self) -> Preferences {
        Preferences { gid_index: self.gid_index, ..Preferences::default() }
    }

    /// What paths are to be like by them.
    pub(crate) fn quality(&self) -> Quality {
        let (service_level, traffic_class) = (self.service_level, self.traffic_class);
        Quality { service_level, traffic_class, ..Quality::default() }
    }

    /// The settings with values that can be worked with: times that can be added to any clock, and counts that are not zero.
    pub(crate) fn bounded(mut self) -> RdmaConfig {
        let year = Duration::from_secs(365 * 24 * 3600);
        for time in [
            &mut self.ack_budget,
            &mut self.spin,
            &mut self.unreachable_after,
            &mut self.fence_timeout,
            &mut self.revoke_timeout,
        ] {
            *time = (*time).min(year);
        }
        self.service_level = self.service_level.min(15);
        self.width = self.width.clamp(1, orbit_te_wire::rdma::MAX_WIDTH as u8);
        self.send_depth = self.send_depth.clamp(2, 1 << 15);
        self.chunk_bytes = self.chunk_bytes.clamp(1, 1 << 30);
        self.reads = self.reads.max(1);
        self.max_ops = self.max_ops.max(1);
        self.regions = self.regions.max(1);
        self
    }
}
