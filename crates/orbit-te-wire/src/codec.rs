//! How serialized values become bytes: bincode 1.3.3, fixed-width little-endian integers, no bytes left over, and a
//! limit on what a decode may read. Rule: nothing else in the workspace calls bincode.

use crate::error::WireError;
use bincode::{ErrorKind, Options};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

fn unlimited() -> impl Options {
    bincode::DefaultOptions::new().with_fixint_encoding().with_little_endian()
}

/// The bytes of `value`, or an error when they would be more than `limit`.
pub fn encode<T: Serialize>(what: &'static str, value: &T, limit: usize) -> Result<Vec<u8>, WireError> {
    unlimited().with_limit(limit as u64).serialize(value).map_err(|why| match *why {
        ErrorKind::SizeLimit => {
            let got = unlimited().serialized_size(value).unwrap_or(u64::MAX);
            WireError::TooLong { what, got, limit: limit as u64 }
        }
        other => WireError::Unencodable { what, why: other.to_string() },
    })
}

/// The value in `bytes`. Refuses more than `limit` bytes, bytes left over, and lengths inside that reach past the end;
/// the value's own byte strings and lists are allocated only once their length is known to be there or within its
/// limit.
pub fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8], limit: usize) -> Result<T, WireError> {
    if bytes.len() > limit {
        return Err(WireError::TooLong { what, got: bytes.len() as u64, limit: limit as u64 });
    }
    unlimited()
        .with_limit(limit as u64)
        .deserialize(bytes)
        .map_err(|e| WireError::Undecodable { what, why: e.to_string() })
}

/// A field of bytes (`#[serde(with = "codec::bytes")]`). The layout is that of any list, but the bytes are copied in
/// one piece, and a length that is not there allocates nothing.
pub mod bytes {
    use super::*;

    /// Writes their number and the bytes.
    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    /// Takes as many bytes as are announced, if they are there.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        from.deserialize_byte_buf(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }

        fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
            Ok(bytes)
        }
    }
}

/// A list of at most `MOST` elements (`#[serde(deserialize_with = "codec::list::<MOST, _, _>")]`): a longer one is
/// refused by its length, before its first element is read.
pub fn list<'de, const MOST: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct List<const MOST: usize, T>(PhantomData<T>);

    impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for List<MOST, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MOST}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let announced = elements.size_hint().unwrap_or(0);
            if announced > MOST {
                return Err(A::Error::invalid_length(announced, &self));
            }
            let mut list = Vec::with_capacity(announced);
            while let Some(element) = elements.next_element()? {
                if list.len() == MOST {
                    return Err(A::Error::invalid_length(MOST + 1, &self));
                }
                list.push(element);
            }
            Ok(list)
        }
    }

    from.deserialize_seq(List::<MOST, T>(PhantomData))
}
