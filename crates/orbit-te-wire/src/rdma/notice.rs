//! A notification as it goes over a QP, and its answer. Rule: each is one SEND with a word of immediate data, and no more of them are under way than
//! receives are posted.
//!
//! Where both sides have [`super::Features::NOTIFICATIONS`], the last QP of a connection's array is for this and for nothing else. The side that
//! offered sends notices; the word names each, as it likes. The other side hands each in and answers it by a SEND without bytes, whose word
//! has the name and what became of it. It posts the receive again before it answers, so that whoever counts answers finds a receive.

use crate::error::WireError;
use crate::frame::Status;

/// The most bytes of a notice: its number and the notification.
pub const MAX_NOTICE_BYTES: usize = 256;
/// Receives that are posted for notices, and so the most notices of one connection that have no answer yet.
pub const NOTICES: usize = 8;
/// The highest name of a notice: it shares its answer's word with the status.
pub const MAX_NOTICE_NAME: u32 = (1 << 24) - 1;
/// The number in front of the notification.
const NUMBER_BYTES: usize = 8;

/// Writes a notice: the number by which its receiver tells repetitions, and a [`crate::notification`]. How many bytes it has; none where
/// it has too many, or the notification none.
pub fn encode(number: u64, notification: &[u8], into: &mut [u8; MAX_NOTICE_BYTES]) -> Option<usize> {
    let (head, rest) = into.split_at_mut(NUMBER_BYTES);
    let rest = rest.get_mut(..notification.len()).filter(|rest| !rest.is_empty())?;
    head.copy_from_slice(&number.to_le_bytes());
    rest.copy_from_slice(notification);
    Some(NUMBER_BYTES + notification.len())
}

/// The number and the notification in the bytes of a notice.
///
/// # Errors
/// [`WireError::Truncated`] where there is no notification.
pub fn decode(bytes: &[u8]) -> Result<(u64, &[u8]), WireError> {
    match bytes.split_first_chunk::<NUMBER_BYTES>() {
        Some((number, rest)) if !rest.is_empty() => Ok((u64::from_le_bytes(*number), rest)),
        _ => {
            let need = NUMBER_BYTES as u64 + 1;
            Err(WireError::Truncated { what: "RDMA notice", got: bytes.len() as u64, need })
        }
    }
}

/// The word of an answer. Names over [`MAX_NOTICE_NAME`] are cut to it.
pub fn answer(name: u32, status: Status) -> u32 {
    (status as u32) << 24 | name & MAX_NOTICE_NAME
}

/// The name and the status in the word of an answer.
///
/// # Errors
/// [`WireError::Unknown`] for a status that there is not.
pub fn decode_answer(word: u32) -> Result<(u32, Status), WireError> {
    Ok((word & MAX_NOTICE_NAME, Status::from_u16((word >> 24) as u16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_comes_back_as_it_went() {
        let check = |number: u64, notification: &[u8], fits: bool| {
            let mut bytes = [0xff; MAX_NOTICE_BYTES];
            let length = encode(number, notification, &mut bytes);
            assert_eq!(length.is_some(), fits);
            if let Some(length) = length {
                assert_eq!(decode(&bytes[..length]).unwrap(), (number, notification));
            }
        };
        check(1, &[0], true);
        check(u64::MAX, &[7; 248], true);
        check(1, &[7; 249], false);
        check(1, &[], false);
        assert!(decode(&[1; 8]).is_err());
        assert!(decode(&[]).is_err());
    }

    #[test]
    fn an_answer_comes_back_as_it_went() {
        let check = |name: u32, status: Status, want: u32| {
            assert_eq!(decode_answer(answer(name, status)).unwrap(), (want, status));
        };
        check(0, Status::Ok, 0);
        check(MAX_NOTICE_NAME, Status::NobodyListens, MAX_NOTICE_NAME);
        check(u32::MAX, Status::QueueFull, MAX_NOTICE_NAME);
        assert!(decode_answer(0xff00_0001).is_err());
    }
}
