//! The knobs of the TCP transport. Rule: each says how to size it and what it costs; the defaults reach line rate.

use crate::address::TRANSPORT;
use orbit_te_transport::TransportError;
use orbit_te_wire::{Incarnation, Limits, PeerId};
use std::time::Duration;

/// Settings of one [`crate::TcpTransport`]. None of them has to be the same at both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpConfig {
    /// Connections kept to each peer. More help where one connection is held below the line rate (a cloud's limit for
    /// one flow, a long path); each costs two sockets and their kernel buffers. Default 4.
    pub lanes: u32,
    /// Ops larger than this are split into pieces of this size over the lanes. Smaller pieces even out lanes of different
    /// speed, larger ones cost less. Default 1 MiB.
    pub chunk_bytes: u64,
    /// The most bytes queued on one lane before the next op waits for another lane or for an answer. Default 4 MiB.
    pub lane_window_bytes: u64,
    /// An op goes to the first lane with less than this queued; only then to the least loaded one. Keeping small ops
    /// together lets one system call carry many. Default 1 MiB.
    pub lane_fill_bytes: u64,
    /// Size of a lane's kernel buffers. Default `None`: the kernel sizes them by what the connection carries. A fixed size
    /// bounds the kernel's memory, and costs speed where it is less than the path holds.
    pub socket_buffer_bytes: Option<usize>,
    /// Ops held at once. Each costs about 150 bytes. Default 4,096.
    pub max_ops: u32,
    /// Links held at once. Default 1,024.
    pub max_links: u32,
    /// What is announced to peers about this side's limits.
    pub limits: Limits,
    /// A connection must stand and its hello be answered within this time. Default 5 s.
    pub connect_timeout: Duration,
    /// Ops that wait for a link that has had no lane for so long fail as unreachable. Default 3 s.
    pub unreachable_after: Duration,
    /// The pause before a lane is made again: doubles from the first to the second value. Default 20 ms to 2 s.
    pub reconnect_pause: (Duration, Duration),
    /// How long a cancelled write may wait for its answer before its lane is closed and fenced, which
    /// costs the other ops on that lane. Default 500 ms.
    pub cancel_grace: Duration,
    /// How long a peer has to answer a fence. Default 2 s.
    pub fence_timeout: Duration,
    /// A silent connection is probed by the kernel after this time, and given up after three probes unanswered over the
    /// same time again; sent bytes unacknowledged for twice this time break it too. Default 10 s.
    pub keepalive: Duration,
}

impl TcpConfig {
    /// The settings with times that can be added to any clock: a year is as good as for ever.
    pub(crate) fn bounded(self) -> TcpConfig {
        let year = Duration::from_secs(365 * 24 * 3600);
        TcpConfig {
            connect_timeout: self.connect_timeout.min(year),
            unreachable_after: self.unreachable_after.min(year),
            reconnect_pause: (self.reconnect_pause.0.min(year), self.reconnect_pause.1.min(year)),
            cancel_grace: self.cancel_grace.min(year),
            fence_timeout: self.fence_timeout.min(year),
            // The kernel counts its probes in 16 bits of seconds.
            keepalive: self.keepalive.min(Duration::from_secs(8 * 3600)),
            // More than the protocol knows would only size queues that nobody can fill.
            limits: self.limits.agree(&Limits::MOST),
            ..self
        }
    }
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            lanes: 4,
            chunk_bytes: 1024 * 1024,
            lane_window_bytes: 4 * 1024 * 1024,
            lane_fill_bytes: 1024 * 1024,
            socket_buffer_bytes: None,
            max_ops: 4096,
            max_links: 1024,
            limits: Limits::default(),
            connect_timeout: Duration::from_secs(5),
            unreachable_after: Duration::from_secs(3),
            reconnect_pause: (Duration::from_millis(20), Duration::from_secs(2)),
            cancel_grace: Duration::from_millis(500),
            fence_timeout: Duration::from_secs(2),
            keepalive: Duration::from_secs(10),
        }
    }
}

/// Who this side is. The same for all transports of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its id.
    pub peer: PeerId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

impl Identity {
    /// A new peer, with random numbers from the operating system.
    ///
    /// # Errors
    /// [`TransportError::Unavailable`] when the system gives none.
    pub fn random() -> Result<Identity, TransportError> {
        let unavailable = |e: getrandom::Error| TransportError::Unavailable {
            transport: TRANSPORT,
            reason: format!("no random bytes: {e}"),
        };
        let mut id = [0u8; 16];
        getrandom::fill(&mut id).map_err(unavailable)?;
        let incarnation = getrandom::u64().map_err(unavailable)?;
        Ok(Identity { peer: PeerId(u128::from_le_bytes(id)), incarnation: Incarnation(incarnation) })
    }
}
