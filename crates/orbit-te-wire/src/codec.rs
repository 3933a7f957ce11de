//! How serialized values become bytes: bincode 1.3.3, fixed-width little-endian integers, no bytes left over, and a
//! limit on what a decode may read. Rule: nothing else in the workspace calls bincode.

use crate::error::WireError;
use bincode::Options;
use serde::{Serialize, de::DeserializeOwned};

fn options(limit: usize) -> impl Options {
    bincode::DefaultOptions::new().with_fixint_encoding().with_little_endian().with_limit(limit as u64)
}

/// The bytes of `value`, or an error when they would be more than `limit`.
pub fn encode<T: Serialize>(what: &'static str, value: &T, limit: usize) -> Result<Vec<u8>, WireError> {
    options(limit).serialize(value).map_err(|e| undecodable(what, &e))
}

/// The value in `bytes`. Refuses more than `limit` bytes, bytes left over, and lengths inside that reach past the end;
/// what it allocates is bounded by `limit` times the largest element's size.
pub fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8], limit: usize) -> Result<T, WireError> {
    if bytes.len() > limit {
        return Err(WireError::TooLong { what, got: bytes.len() as u64, limit: limit as u64 });
    }
    options(limit).deserialize(bytes).map_err(|e| undecodable(what, &e))
}

fn undecodable(what: &'static str, why: &bincode::Error) -> WireError {
    WireError::Undecodable { what, why: why.to_string() }
}
