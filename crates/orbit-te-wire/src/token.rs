//! A segment as one printable word, so that an application can hand it over by its own channel. Rule: a token is
//! `otseg1:` and unpadded base64url of the serialized value followed by its CRC32C, so that a mistyped one is told
//! from a wrong one.

use crate::codec;
use crate::descriptor::RegionDescriptor;
use crate::error::WireError;
use crate::ids::{Incarnation, PeerId};
use crate::limits::{MAX_ADDRESSES, MAX_NAME_BYTES, MAX_TOKEN_BYTES};
use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

const PREFIX: &str = "otseg1:";

/// Everything a peer needs to reach a segment: whom to ask, where, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentToken {
    /// Who owns the segment.
    pub peer: PeerId,
    /// Which life of that peer the token was made in.
    pub incarnation: Incarnation,
    /// Where its listening port can be reached; tried in order. An IPv6 scope is the owner's own and does not travel.
    #[serde(deserialize_with = "codec::list::<MAX_ADDRESSES, _, _>")]
    pub addresses: Vec<SocketAddr>,
    /// The segment's name there.
    pub name: String,
    /// The memory behind it.
    pub descriptor: RegionDescriptor,
}

impl SegmentToken {
    /// Refuses a token whose fields are over their limits.
    pub fn validate(&self) -> Result<(), WireError> {
        if self.addresses.is_empty() {
            return Err(WireError::BadToken { why: "it names no address".to_string() });
        }
        if self.addresses.len() > MAX_ADDRESSES {
            return Err(WireError::BadToken { why: format!("it names more than {MAX_ADDRESSES} addresses") });
        }
        if self.name.len() > MAX_NAME_BYTES {
            return Err(WireError::BadToken {
                why: format!("its name has more than {MAX_NAME_BYTES} bytes"),
            });
        }
        self.descriptor.validate()
    }

    /// The printable form.
    pub fn to_token(&self) -> Result<String, WireError> {
        self.validate()?;
        let mut bytes = codec::encode("segment token", self, MAX_TOKEN_BYTES)?;
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        Ok(format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&bytes)))
    }
}

impl FromStr for SegmentToken {
    type Err = WireError;

    fn from_str(text: &str) -> Result<SegmentToken, WireError> {
        let bad = |why: &str| WireError::BadToken { why: why.to_string() };
        let text = text.trim();
        if text.len() > PREFIX.len() + MAX_TOKEN_BYTES * 4 / 3 + 8 {
            return Err(bad("it is too long"));
        }
        let body = text.strip_prefix(PREFIX).ok_or_else(|| bad("it does not begin with `otseg1:`"))?;
        let bytes =
            BASE64URL_NOPAD.decode(body.as_bytes()).map_err(|e| bad(&format!("not base64url: {e}")))?;
        let Some((value, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(bad("it is cut short"));
        };
        if crc32c::crc32c(value) != u32::from_le_bytes(*crc) {
            return Err(bad("its checksum is wrong, so a character is missing or changed"));
        }
        let token: SegmentToken = codec::decode("segment token", value, MAX_TOKEN_BYTES)?;
        token.validate()?;
        Ok(token)
    }
}

impl fmt::Display for SegmentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_token() {
            Ok(text) => f.write_str(&text),
            Err(why) => write!(f, "(no token: {why})"),
        }
    }
}
