//! The messages of a control link. Rule: each travels as a length of four bytes and that many serialized bytes; a
//! request carries a number that its answer repeats.

use crate::codec;
use crate::descriptor::{RegionDescriptor, TransportAddress};
use crate::error::WireError;
use crate::limits::{
    MAX_CONTROL_BYTES, MAX_NAME_BYTES, MAX_NOTIFICATION_BYTES, MAX_REASON_BYTES, MAX_TRANSPORT_KEYS,
    MAX_TRANSPORT_NAME_BYTES,
};
use serde::{Deserialize, Serialize};

/// The bytes of the length before each control message.
pub const LENGTH_BYTES: usize = 4;

/// Why a request on the control link was refused. The numbers of the variants are part of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalCode {
    /// No segment of that name is exposed here.
    UnknownSegment,
    /// The receiver's queue of notifications is full; try again later.
    QueueFull,
    /// The receiver is shutting down.
    ShuttingDown,
    /// The receiver does not do this.
    Unsupported,
    /// The request breaks a limit.
    OverLimit,
}

/// One message between two peers on their control link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Are you there? Answered by [`Control::Pong`] with the same number.
    Ping {
        /// The number to repeat.
        request: u64,
    },
    /// Yes.
    Pong {
        /// The ping's number.
        request: u64,
    },
    /// What is the segment of this name?
    OpenSegment {
        /// The number to repeat.
        request: u64,
        /// The segment's name.
        name: String,
    },
    /// This is it.
    Segment {
        /// The request's number.
        request: u64,
        /// The memory behind it.
        descriptor: RegionDescriptor,
    },
    /// No.
    Refused {
        /// The request's number.
        request: u64,
        /// Why, for a program.
        code: RefusalCode,
        /// Why, for a person.
        reason: String,
    },
    /// Bytes from one transport to its counterpart at the peer.
    Transport {
        /// The transport's name.
        transport: String,
        /// Its bytes.
        #[serde(with = "codec::bytes")]
        bytes: Vec<u8>,
    },
    /// The sender closes the session on purpose.
    Goodbye {
        /// Why, in words.
        reason: String,
    },
    /// At which addresses are your transports reached in this session, beside the lanes that are made to the listening port? Asked of a
    /// side with [`crate::Features::ADDRESSES`].
    Addresses {
        /// The number to repeat.
        request: u64,
    },
    /// At these; at most [`MAX_TRANSPORT_KEYS`]. They are for this session alone.
    AddressesAre {
        /// The request's number.
        request: u64,
        /// One for each transport that has one.
        #[serde(deserialize_with = "codec::list::<MAX_TRANSPORT_KEYS, _, _>")]
        addresses: Vec<TransportAddress>,
    },
}

impl Control {
    /// The message's bytes with their length before them. `limit` is the agreed limit of a control message.
    pub fn encode(&self, limit: usize) -> Result<Vec<u8>, WireError> {
        self.validate()?;
        let body = codec::encode("control message", self, limit.min(MAX_CONTROL_BYTES))?;
        let mut out = Vec::with_capacity(LENGTH_BYTES + body.len());
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&body);
        Ok(out)
    }

    /// The length of the message that follows, refused when it is zero or over `limit`.
    pub fn decode_length(bytes: [u8; LENGTH_BYTES], limit: usize) -> Result<usize, WireError> {
        let length = u32::from_le_bytes(bytes);
        let limit = limit.min(MAX_CONTROL_BYTES);
        if length == 0 {
            return Err(WireError::Invalid { what: "a control message has length zero" });
        }
        if length as usize > limit {
            let got = u64::from(length);
            return Err(WireError::TooLong { what: "control message", got, limit: limit as u64 });
        }
        Ok(length as usize)
    }

    /// The message in `body`, which is exactly what followed its length.
    pub fn decode_body(body: &[u8]) -> Result<Control, WireError> {
        let message: Control = codec::decode("control message", body, MAX_CONTROL_BYTES)?;
        message.validate()?;
        Ok(message)
    }

    fn validate(&self) -> Result<(), WireError> {
        let bound = |what, got: usize, limit: usize| {
            if got > limit {
                return Err(WireError::TooLong { what, got: got as u64, limit: limit as u64 });
            }
            Ok(())
        };
        match self {
            Control::OpenSegment { name, .. } => bound("segment name", name.len(), MAX_NAME_BYTES),
            Control::Segment { descriptor, .. } => descriptor.validate(),
            Control::Refused { reason, .. } | Control::Goodbye { reason } => {
                bound("reason", reason.len(), MAX_REASON_BYTES)
            }
            Control::Transport { transport, bytes } => {
                bound("transport name", transport.len(), MAX_TRANSPORT_NAME_BYTES)?;
                bound("transport message", bytes.len(), MAX_NOTIFICATION_BYTES)
            }
            Control::AddressesAre { addresses, .. } => {
                bound("list of addresses", addresses.len(), MAX_TRANSPORT_KEYS)?;
                addresses.iter().try_for_each(TransportAddress::validate)
            }
            Control::Ping { .. } | Control::Pong { .. } | Control::Addresses { .. } => Ok(()),
        }
    }
}
