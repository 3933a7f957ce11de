//! The bounds on what a peer may send, and how two sides agree on them. Rule: every decoder's bound is here.
//!
//! The constants are this implementation's; [`Limits`] are what a side announces, and the agreed limit is the
//! smaller of both, and never over the constants.

use serde::{Deserialize, Serialize};

/// The most bytes in the serialized part of a hello or of its answer.
pub const MAX_HELLO_BYTES: usize = 4 * 1024;
/// The most bytes in one control message, its length field not counted.
pub const MAX_CONTROL_BYTES: usize = 1024 * 1024;
/// The most bytes in a printable segment token.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;
/// The most bytes in a segment's or a notification's name.
pub const MAX_NAME_BYTES: usize = 255;
/// The most bytes in a transport's name.
pub const MAX_TRANSPORT_NAME_BYTES: usize = 64;
/// The most bytes in the reason of a refusal or a goodbye on the control link.
pub const MAX_REASON_BYTES: usize = 4096;
/// The most bytes in one notification's payload.
pub const MAX_NOTIFICATION_BYTES: usize = 64 * 1024;
/// The most bytes in the key that one transport adds to a region descriptor.
pub const MAX_TRANSPORT_KEY_BYTES: usize = 1024;
/// The most bytes in the address of one transport.
pub const MAX_TRANSPORT_ADDRESS_BYTES: usize = 4096;
/// The most transports that may add a key to a region descriptor.
pub const MAX_TRANSPORT_KEYS: usize = 16;
/// The most addresses in a token or a transport's announcement.
pub const MAX_ADDRESSES: usize = 16;
/// The most payload bytes behind one data frame.
pub const MAX_PAYLOAD_BYTES: u64 = 1 << 30;
/// The most pieces in one list request.
pub const MAX_PIECES: u32 = 1024;
/// The most requests that may be in flight on one data lane.
pub const MAX_LANE_REQUESTS: u32 = 4096;
/// The most data lanes of one session.
pub const MAX_SESSION_LANES: u32 = 256;

const _: () = assert!(MAX_NOTIFICATION_BYTES + MAX_NAME_BYTES + 256 <= MAX_CONTROL_BYTES);
const _: () = assert!(
    MAX_TRANSPORT_KEYS * (MAX_TRANSPORT_KEY_BYTES + MAX_TRANSPORT_NAME_BYTES + 16) + 4096
        <= MAX_CONTROL_BYTES
);
const _: () = assert!(
    MAX_TRANSPORT_KEYS * (MAX_TRANSPORT_ADDRESS_BYTES + MAX_TRANSPORT_NAME_BYTES + 16) + 4096
        <= MAX_CONTROL_BYTES
);
const _: () = assert!(MAX_REASON_BYTES + 256 <= MAX_CONTROL_BYTES);

/// What one side is ready to take from the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The most bytes in one control message.
    pub control_bytes: u32,
    /// The most payload bytes behind one data frame.
    pub payload_bytes: u64,
    /// The most requests that may be in flight on one data lane.
    pub lane_requests: u32,
    /// The most data lanes of one session.
    pub session_lanes: u32,
    /// The most bytes in one notification's payload.
    pub notification_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { lane_requests: 128, session_lanes: 64, ..Limits::MOST }
    }
}

impl Limits {
    /// The most that this implementation can keep to, whatever is configured or announced.
    pub const MOST: Limits = Limits {
        control_bytes: MAX_CONTROL_BYTES as u32,
        payload_bytes: MAX_PAYLOAD_BYTES,
        lane_requests: MAX_LANE_REQUESTS,
        session_lanes: MAX_SESSION_LANES,
        notification_bytes: MAX_NOTIFICATION_BYTES as u32,
    };

    /// What both sides can live with: the smaller of each limit, and never over [`Limits::MOST`].
    pub fn agree(&self, other: &Limits) -> Limits {
        self.smaller(other).smaller(&Limits::MOST)
    }

    fn smaller(&self, other: &Limits) -> Limits {
        Limits {
            control_bytes: self.control_bytes.min(other.control_bytes),
            payload_bytes: self.payload_bytes.min(other.payload_bytes),
            lane_requests: self.lane_requests.min(other.lane_requests),
            session_lanes: self.session_lanes.min(other.session_lanes),
            notification_bytes: self.notification_bytes.min(other.notification_bytes),
        }
    }

    /// The first limit that is too small to work with, or none.
    pub fn unworkable(&self) -> Option<&'static str> {
        if self.control_bytes < 1024 {
            return Some("the control-message limit is under 1024 bytes");
        }
        if self.payload_bytes == 0 {
            return Some("the payload limit is zero");
        }
        if self.lane_requests == 0 {
            return Some("the limit of requests on a lane is zero");
        }
        if self.session_lanes == 0 {
            return Some("the limit of lanes in a session is zero");
        }
        None
    }
}
