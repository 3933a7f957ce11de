//! The first frame of every connection, and its answer. Rule: nothing else is sent before the answer has come.
//!
//! A hello is a fixed prelude of 16 bytes and a serialized body. The prelude alone is enough to tell a stranger from
//! a peer of another version, in any version of this protocol: its layout never changes.

use crate::codec;
use crate::error::WireError;
use crate::ids::{Incarnation, PeerId, SessionId};
use crate::limits::{Limits, MAX_HELLO_BYTES};
use serde::{Deserialize, Serialize};

/// The first seven bytes of every OrbitTE connection, in both directions. The eighth says hello or answer.
pub const MAGIC: [u8; 7] = *b"ORBITTE";
/// The bytes of the fixed prelude.
pub const PRELUDE_BYTES: usize = 16;
/// The lowest protocol version this implementation speaks.
pub const VERSION_MIN: u16 = 1;
/// The highest protocol version this implementation speaks.
pub const VERSION_MAX: u16 = 1;

const KIND_HELLO: u8 = b'?';
const KIND_REPLY: u8 = b'!';

bitflags::bitflags! {
    /// What a side can do beyond the first version. The agreed features are those that both announce.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct Features: u64 {
        /// Notifications on the control link.
        const NOTIFICATIONS = 1;
        /// A lane can be closed at the target on request, with an answer once nothing of it can land any more.
        const LANE_FENCE = 1 << 1;
        /// It tells at which addresses its transports are reached: [`crate::Control::Addresses`] is answered.
        const ADDRESSES = 1 << 2;
    }
}

impl Features {
    /// All that this implementation can do.
    pub const OURS: Features = Features::NOTIFICATIONS.union(Features::LANE_FENCE).union(Features::ADDRESSES);
}

/// What the connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The control link of a session, one between two peers. The answer carries the session's id.
    Control,
    /// A data lane.
    Lane {
        /// The session it belongs to, from the answer to the control link's hello.
        session: SessionId,
        /// The lane's number, unique in its session: a lane that is made again gets a new one.
        lane: u32,
    },
}

/// Room for an authentication method, filled by later versions. Method 0 is "none" and carries no data.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AuthSlot {
    /// The method's number.
    pub method: u16,
    /// What the method needs; at most [`MAX_AUTH_BYTES`].
    #[serde(with = "codec::bytes")]
    pub data: Vec<u8>,
}

/// The most bytes in [`AuthSlot::data`].
pub const MAX_AUTH_BYTES: usize = 1024;

/// What the side that connects says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// What the connection is for.
    pub role: Role,
    /// Who connects.
    pub peer: PeerId,
    /// Which life of that peer.
    pub incarnation: Incarnation,
    /// What it can do.
    pub features: Features,
    /// What it is ready to take.
    pub limits: Limits,
    /// How it authenticates.
    pub auth: AuthSlot,
}

/// What the side that was connected to answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelloReply {
    /// The connection stands.
    Accepted {
        /// The protocol version both will speak.
        version: u16,
        /// Who accepted.
        peer: PeerId,
        /// Which life of that peer.
        incarnation: Incarnation,
        /// The session: a new one for a control link, the same as asked for a lane.
        session: SessionId,
        /// What both can do.
        features: Features,
        /// What both can live with.
        limits: Limits,
        /// The accepting side's part of the authentication.
        auth: AuthSlot,
    },
    /// The connection is refused and will be closed.
    Refused {
        /// Why, in words for the person at the other side.
        reason: String,
    },
}

/// The prelude as read from the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prelude {
    /// The lowest version the sender speaks.
    pub version_min: u16,
    /// The highest version the sender speaks.
    pub version_max: u16,
    /// The bytes of the body that follow.
    pub body_bytes: u32,
}

impl Hello {
    /// The hello's bytes, prelude and body.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        check_auth(&self.auth)?;
        framed(KIND_HELLO, &codec::encode("hello", self, MAX_HELLO_BYTES)?)
    }

    /// The hello in `body`, which is exactly what followed its prelude.
    pub fn decode_body(body: &[u8]) -> Result<Hello, WireError> {
        let hello: Hello = codec::decode("hello", body, MAX_HELLO_BYTES)?;
        check_auth(&hello.auth)?;
        Ok(hello)
    }

    /// The prelude of a hello: its versions and the length of its body. A foreign version is not an error here, so
    /// that the receiver can answer it in words.
    pub fn decode_prelude(bytes: &[u8; PRELUDE_BYTES]) -> Result<Prelude, WireError> {
        prelude(KIND_HELLO, bytes)
    }
}

impl HelloReply {
    /// The answer's bytes, prelude and body. A refusal's reason is cut to fit.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let cut;
        let reply = match self {
            HelloReply::Refused { reason } if reason.len() > 1024 => {
                let mut end = 1024;
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                cut = HelloReply::Refused { reason: reason[..end].to_string() };
                &cut
            }
            other => other,
        };
        reply.validate()?;
        framed(KIND_REPLY, &codec::encode("hello answer", reply, MAX_HELLO_BYTES)?)
    }

    /// The answer in `body`, which is exactly what followed its prelude.
    pub fn decode_body(body: &[u8]) -> Result<HelloReply, WireError> {
        let reply: HelloReply = codec::decode("hello answer", body, MAX_HELLO_BYTES)?;
        reply.validate()?;
        Ok(reply)
    }

    /// The prelude of an answer.
    pub fn decode_prelude(bytes: &[u8; PRELUDE_BYTES]) -> Result<Prelude, WireError> {
        prelude(KIND_REPLY, bytes)
    }

    fn validate(&self) -> Result<(), WireError> {
        let HelloReply::Accepted { auth, limits, .. } = self else {
            return Ok(());
        };
        check_auth(auth)?;
        match limits.unworkable() {
            Some(what) => Err(WireError::Invalid { what }),
            None => Ok(()),
        }
    }
}

fn check_auth(auth: &AuthSlot) -> Result<(), WireError> {
    if auth.data.len() > MAX_AUTH_BYTES {
        let got = auth.data.len() as u64;
        return Err(WireError::TooLong { what: "authentication data", got, limit: MAX_AUTH_BYTES as u64 });
    }
    Ok(())
}

fn framed(kind: u8, body: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut out = Vec::with_capacity(PRELUDE_BYTES + body.len());
    out.extend_from_slice(&MAGIC);
    out.push(kind);
    out.extend_from_slice(&VERSION_MIN.to_le_bytes());
    out.extend_from_slice(&VERSION_MAX.to_le_bytes());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(body);
    Ok(out)
}

fn prelude(kind: u8, bytes: &[u8; PRELUDE_BYTES]) -> Result<Prelude, WireError> {
    if bytes[..7] != MAGIC || bytes[7] != kind {
        return Err(WireError::BadMagic { found: printable(&bytes[..8]) });
    }
    let version_min = u16::from_le_bytes([bytes[8], bytes[9]]);
    let version_max = u16::from_le_bytes([bytes[10], bytes[11]]);
    let body_bytes = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    if version_min > version_max {
        return Err(WireError::Invalid { what: "the hello's lowest version is over its highest" });
    }
    if body_bytes as usize > MAX_HELLO_BYTES {
        let got = u64::from(body_bytes);
        return Err(WireError::TooLong { what: "hello", got, limit: MAX_HELLO_BYTES as u64 });
    }
    Ok(Prelude { version_min, version_max, body_bytes })
}

fn printable(bytes: &[u8]) -> String {
    let escaped: String = bytes.iter().flat_map(|b| std::ascii::escape_default(*b)).map(char::from).collect();
    format!("`{escaped}`")
}
