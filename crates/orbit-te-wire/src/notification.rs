//! A notification as it travels behind the header of a [`crate::FrameOp::Notify`]. Rule: one byte with the length of the name, the name,
//! and then whatever the application said; so it is never empty.

use crate::error::WireError;
use crate::limits::{MAX_NAME_BYTES, MAX_NOTIFICATION_BYTES};

/// The most bytes that a notification has as it travels.
pub const MAX_BYTES: usize = 1 + MAX_NAME_BYTES + MAX_NOTIFICATION_BYTES;

/// The bytes of a notification.
///
/// # Errors
/// [`WireError::TooLong`] for a name of more than 255 bytes or a payload of more than 64 KiB.
pub fn encode(name: &str, payload: &[u8]) -> Result<Vec<u8>, WireError> {
    let too_long =
        |what, got: usize, limit: usize| WireError::TooLong { what, got: got as u64, limit: limit as u64 };
    let length = u8::try_from(name.len());
    let length = length.map_err(|_| too_long("notification name", name.len(), MAX_NAME_BYTES))?;
    if payload.len() > MAX_NOTIFICATION_BYTES {
        return Err(too_long("notification", payload.len(), MAX_NOTIFICATION_BYTES));
    }
    let mut bytes = Vec::with_capacity(1 + name.len() + payload.len());
    bytes.push(length);
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// The name and the payload in the bytes of a notification.
///
/// # Errors
/// [`WireError::Invalid`] where the name is cut short or no text, [`WireError::TooLong`] as [`encode`].
pub fn decode(bytes: &[u8]) -> Result<(&str, &[u8]), WireError> {
    let cut = WireError::Invalid { what: "a notification ends within its name" };
    let Some((length, rest)) = bytes.split_first() else { return Err(cut) };
    let Some((name, payload)) = rest.split_at_checked(usize::from(*length)) else { return Err(cut) };
    let name = std::str::from_utf8(name)
        .map_err(|_| WireError::Invalid { what: "the name of a notification is no UTF-8" })?;
    if payload.len() > MAX_NOTIFICATION_BYTES {
        let (got, limit) = (payload.len() as u64, MAX_NOTIFICATION_BYTES as u64);
        return Err(WireError::TooLong { what: "notification", got, limit });
    }
    Ok((name, payload))
}
