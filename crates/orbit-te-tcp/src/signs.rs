//! What the lanes of a link tell of their peer. Rule: looks, and changes nothing; one question to the kernel a lane, so it is asked
//! only when a failure is explained.

use crate::lane::Role;
use crate::link::LaneSlot;
use crate::net::{Net, Stream};
use crate::transport::TcpTransport;
use orbit_te_transport::Signs;
use std::time::{Duration, Instant};

impl<N: Net> TcpTransport<N> {
    /// The signs of life on a link's lanes.
    pub(crate) fn link_signs(&mut self, slot: u32, now: Instant) -> Signs {
        let connect_timeout = self.config.connect_timeout;
        let Some(link) = self.link_mut(slot) else { return Signs::default() };
        let down_for = link.down_since.map(|since| now.saturating_duration_since(since));
        let lanes: Vec<LaneSlot> = link.open().collect();
        let mut signs = Signs::default();
        for lane in lanes {
            let Some(lane) = self.lanes.get_mut(lane) else { continue };
            let Some(of) = lane.conn.stream().signs() else { continue };
            let told = match &lane.role {
                Role::Opening { by, .. } => {
                    let age = connect_timeout.saturating_sub(by.saturating_duration_since(now));
                    // A lane that is made beside others says nothing of what these move.
                    let quiet_for = down_for.filter(|_| of.unacknowledged_for != Some(Duration::MAX));
                    Signs { unacknowledged_for: of.unacknowledged_for.map(|for_| for_.min(age)), quiet_for }
                }
                Role::Asking(asking) if !asking.pending.is_empty() => {
                    // What the peer's host buffers is no sign of its process. That it makes room is.
                    let makes_room = of.waits || lane.conn.queued() > 0;
                    let sent = of.sent.filter(|_| makes_room);
                    let quiet_for = sent.map_or(of.received, |sent| sent.min(of.received));
                    Signs { unacknowledged_for: of.unacknowledged_for, quiet_for: Some(quiet_for) }
                }
                _ => continue,
            };
            signs.add(told);
        }
        signs
    }
}
