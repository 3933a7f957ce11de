//! What the lanes of a link tell of their peer. Rule: looks, and changes nothing; one question to the kernel a lane, so it is asked
//! only when a failure is explained.

use crate::lane::Role;
use crate::link::{LaneSlot, Silence};
use crate::net::{Net, Stream};
use crate::transport::TcpTransport;
use orbit_te_transport::Signs;
use std::time::{Duration, Instant};

/// By so much a lane's acknowledgement must be later than the last one of another, so that it is news.
const LATER: Duration = Duration::from_millis(100);

impl<N: Net> TcpTransport<N> {
    /// The signs of life on a link's lanes.
    pub(crate) fn link_signs(&mut self, slot: u32, now: Instant) -> Signs {
        let connect_timeout = self.config.connect_timeout;
        let Some(link) = self.link_mut(slot) else { return Signs::default() };
        let down_for = link.down_since.map(|since| now.saturating_duration_since(since));
        let lanes: Vec<LaneSlot> = link.open().collect();
        let mut signs = Signs::default();
        // A lane that is made beside others says nothing of what these move.
        if let Some(Silence { since, connects }) = link.silence.filter(|_| down_for.is_some()) {
            let silent_for = Some(now.saturating_duration_since(since));
            signs = match connects {
                true => Signs { quiet_for: silent_for, ..Signs::default() },
                false => Signs { unacknowledged_for: silent_for, ..Signs::default() },
            };
        }
        let lost_before = signs.unacknowledged_for.unwrap_or_default();
        let mut acknowledged: Option<Duration> = None;
        for lane in lanes {
            let Some(lane) = self.lanes.get_mut(lane) else { continue };
            let Some(of) = lane.conn.stream().signs() else { continue };
            let told = match &lane.role {
                Role::Opening { by, .. } if down_for.is_some() => {
                    let age = connect_timeout.saturating_sub(by.saturating_duration_since(now));
                    let quiet_for = down_for.filter(|_| of.unacknowledged_for != Some(Duration::MAX));
                    let unacknowledged_for = of.unacknowledged_for.map(|lost| lost.min(age).max(lost_before));
                    Signs { unacknowledged_for, quiet_for, took_ago: None }
                }
                Role::Asking(asking) if !asking.pending.is_empty() => {
                    let waits = of.waits || lane.conn.queued() > 0;
                    Signs {
                        unacknowledged_for: of.unacknowledged_for,
                        quiet_for: Some(of.received),
                        took_ago: of.took.filter(|_| waits),
                    }
                }
                _ => continue,
            };
            signs.add(told);
            acknowledged = acknowledged.into_iter().chain(of.acknowledged).min();
        }
        // A lane on which nothing was sent since then says nothing.
        if let (Some(lost), Some(later)) = (signs.unacknowledged_for, acknowledged) {
            if later + LATER < lost {
                signs.unacknowledged_for = None;
            }
        }
        signs
    }
}
