//! What stands in the place of a transport that has failed. Rule: it does nothing and holds nothing.

#![allow(unsafe_code)]

use orbit_te_memory::KindSet;
use orbit_te_transport::{
    Arm, Capabilities, LinkId, LinkLanes, Notice, Op, Progress, Signs, Token, Transport, TransportError,
};
use orbit_te_wire::PeerId;
use std::ops::RangeInclusive;
use std::time::Instant;

/// A transport that takes nothing.
pub(crate) struct DeadTransport;

const NAME: &str = "none";

// SAFETY: it takes no op, so it has none to complete and touches no memory.
unsafe impl Transport for DeadTransport {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            read: false,
            write: false,
            kinds: KindSet::default(),
            vanishing: true,
            max_op_bytes: 0,
            max_pieces: 0,
            max_list_bytes: 0,
            max_ops: 0,
            needs_target_cpu: false,
            moves_by_calls: false,
            admits: false,
            fences: false,
            checksums: false,
            notifications: false,
        }
    }

    fn connect(&mut self, _: PeerId, _: &[u8], _: Instant) -> Result<LinkId, TransportError> {
        let reason = "its worker has failed; start a new engine".to_string();
        Err(TransportError::Unavailable { transport: NAME, reason })
    }

    fn deliver(&mut self, _: LinkId, _: &[u8], _: Instant) -> Result<(), TransportError> {
        Err(TransportError::NoLink { transport: NAME })
    }

    unsafe fn submit(&mut self, _: &[Op], _: Instant) -> usize {
        0
    }

    unsafe fn notify(&mut self, _: &Notice, _: Instant) -> bool {
        false
    }

    fn cancel(&mut self, _: RangeInclusive<Token>, _: Instant) {}

    fn poll(&mut self, _: Instant, _: usize, _: &mut Progress) -> bool {
        false
    }

    fn arm(&mut self, _: Instant) -> Arm {
        Arm::Sleep { fd: None, until: None }
    }

    fn lanes(&self, _: LinkId, _: Instant) -> Option<LinkLanes> {
        None
    }

    fn signs(&mut self, _: LinkId, _: Instant) -> Signs {
        Signs::default()
    }

    fn disconnect(&mut self, _: LinkId, _: Instant) {}

    fn close(&mut self, _: Instant) {}

    fn is_drained(&self) -> bool {
        true
    }
}
