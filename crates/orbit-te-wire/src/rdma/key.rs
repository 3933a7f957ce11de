//! By which keys a region is reached over RDMA. Rule: a region is cut at the same places on a rail from its begin to its end, so that
//! one division finds the key of an offset.

use crate::codec;
use crate::error::WireError;
use crate::rdma::rail::{all_differ, at_most};
use crate::rdma::{MAX_PARTS, MAX_RAILS, MAX_REGION_KEY_BYTES, known_version, version_of};
use serde::{Deserialize, Serialize};

/// The keys of one region on one rail of its owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RailKeys {
    /// The owner's rail.
    pub rail: u8,
    /// The address of the region's first byte, as work requests name it.
    pub base: u64,
    /// How many bytes one key reaches, from the region's first byte on; the last may reach fewer.
    pub part_bytes: u64,
    /// The keys in order, one for each part; between 1 and [`MAX_PARTS`].
    #[serde(deserialize_with = "codec::list::<MAX_PARTS, _, _>")]
    pub rkeys: Vec<u32>,
}

impl RailKeys {
    /// The key for the byte at `offset` from the region's begin, and how many bytes from there on it reaches, in a region of `length`
    /// bytes. None past the end.
    pub fn at(&self, offset: u64, length: u64) -> Option<(u32, u64)> {
        if offset >= length || self.part_bytes == 0 {
            return None;
        }
        let part = offset / self.part_bytes;
        let rkey = *self.rkeys.get(usize::try_from(part).ok()?)?;
        let left_of_part = self.part_bytes - offset % self.part_bytes;
        Some((rkey, left_of_part.min(length - offset)))
    }
}

/// The keys of a region, on each rail that it is registered on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeySet {
    /// How long the region is, in bytes.
    pub length: u64,
    /// What may be done by them: the bits of [`crate::Access`].
    pub access: u32,
    /// So long they may be used, in nanoseconds; zero: as long as they are not revoked.
    pub expires_ns: u64,
    /// One for each rail; at most [`MAX_RAILS`].
    #[serde(deserialize_with = "codec::list::<MAX_RAILS, _, _>")]
    pub rails: Vec<RailKeys>,
}

impl KeySet {
    /// The keys on a rail of the owner.
    pub fn rail(&self, number: u8) -> Option<&RailKeys> {
        self.rails.iter().find(|rail| rail.rail == number)
    }

    pub(super) fn validate(&self) -> Result<(), WireError> {
        let invalid = |what| Err(WireError::Invalid { what });
        if self.length == 0 {
            return invalid("the keys are of a region of length zero");
        }
        at_most("rails", self.rails.len(), MAX_RAILS)?;
        for keys in &self.rails {
            if usize::from(keys.rail) >= MAX_RAILS {
                return Err(WireError::Unknown { what: "number of a rail", value: keys.rail.into() });
            }
            at_most("keys of a rail", keys.rkeys.len(), MAX_PARTS)?;
            if keys.base.checked_add(self.length).is_none() {
                return invalid("a region's range of addresses overflows");
            }
            if keys.part_bytes == 0 {
                return invalid("a key reaches no bytes");
            }
            if self.length.div_ceil(keys.part_bytes) != keys.rkeys.len() as u64 {
                return invalid("the keys of a rail are not as many as its parts");
            }
        }
        all_differ("two lists of keys are of one rail", self.rails.iter().map(|keys| keys.rail.into()))
    }
}

/// The key of a region as it stands in the region's descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RegionKey {
    /// [`super::VERSION`].
    pub version: u16,
    /// What the owner's registry is shown: the region's own key or that of a grant.
    pub key: u64,
    /// The keys themselves, where the owner gives them away with the descriptor; none means that they are asked for
    /// ([`super::Body::KeysWanted`]).
    pub keys: Option<KeySet>,
}

impl RegionKey {
    /// A key of this version.
    pub fn new(key: u64, keys: Option<KeySet>) -> RegionKey {
        RegionKey { version: super::VERSION, key, keys }
    }

    /// The key's bytes.
    ///
    /// # Errors
    /// [`WireError`] for what [`RegionKey::decode`] would refuse; [`WireError::TooLong`] says that the keys have to be asked for.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        self.validate()?;
        codec::encode("RDMA region key", self, MAX_REGION_KEY_BYTES)
    }

    /// The key in these bytes.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<RegionKey, WireError> {
        version_of(bytes)?;
        let key: RegionKey = codec::decode("RDMA region key", bytes, MAX_REGION_KEY_BYTES)?;
        key.validate()?;
        Ok(key)
    }

    fn validate(&self) -> Result<(), WireError> {
        known_version(self.version)?;
        self.keys.as_ref().map_or(Ok(()), KeySet::validate)
    }
}
