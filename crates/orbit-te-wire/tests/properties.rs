//! Properties of every decoder, over random values and random bytes: what is encoded decodes equal, what is damaged,
//! cut or longer than it says is refused, and no bytes make a decoder panic or allocate beyond its limits.

mod strategies;

use orbit_te_wire::hello::PRELUDE_BYTES;
use orbit_te_wire::limits::{MAX_CONTROL_BYTES, MAX_HELLO_BYTES, MAX_TOKEN_BYTES};
use orbit_te_wire::*;
use proptest::collection::vec;
use proptest::prelude::*;
use strategies::*;

/// Decodes a hello as it arrives: prelude, then exactly the body it announces.
fn hello(bytes: &[u8]) -> Option<Hello> {
    let (prelude, body) = bytes.split_first_chunk()?;
    let prelude = Hello::decode_prelude(prelude).ok()?;
    (prelude.body_bytes as usize == body.len()).then_some(())?;
    Hello::decode_body(body).ok()
}

fn reply(bytes: &[u8]) -> Option<HelloReply> {
    let (prelude, body) = bytes.split_first_chunk()?;
    let prelude = HelloReply::decode_prelude(prelude).ok()?;
    (prelude.body_bytes as usize == body.len()).then_some(())?;
    HelloReply::decode_body(body).ok()
}

fn framed_control(bytes: &[u8]) -> Option<Control> {
    let (length, body) = bytes.split_first_chunk()?;
    (Control::decode_length(*length, MAX_CONTROL_BYTES).ok()? == body.len()).then_some(())?;
    Control::decode_body(body).ok()
}

fn descriptor(bytes: &[u8]) -> Option<RegionDescriptor> {
    codec::decode("descriptor", bytes, MAX_CONTROL_BYTES).ok()
}

fn transport_key(bytes: &[u8]) -> Option<TransportKey> {
    codec::decode("transport key", bytes, MAX_HELLO_BYTES).ok()
}

/// A value survives its bytes; any cut of them, and bytes behind them, are refused.
fn check<T: PartialEq + std::fmt::Debug>(
    value: &T,
    bytes: &[u8],
    cut: prop::sample::Index,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Result<(), TestCaseError> {
    let decoded = decode(bytes);
    prop_assert_eq!(decoded.as_ref(), Some(value));
    prop_assert_eq!(decode(&bytes[..cut.index(bytes.len())]), None, "cut short");
    prop_assert_eq!(decode(&[bytes, &[0]].concat()), None, "a byte too many");
    Ok(())
}

/// The same for a body without its own length in front, where the decoder alone tells.
fn check_body<T: PartialEq + std::fmt::Debug>(
    body: &[u8],
    cut: prop::sample::Index,
    decode: impl Fn(&[u8]) -> Result<T, WireError>,
) -> Result<(), TestCaseError> {
    prop_assert!(decode(body).is_ok());
    prop_assert!(decode(&body[..cut.index(body.len())]).is_err(), "cut short");
    prop_assert!(decode(&[body, &[0]].concat()).is_err(), "a byte too many");
    Ok(())
}

proptest! {
    #[test]
    fn frames_round_trip(frame in frame()) {
        prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn a_frame_with_a_changed_byte_is_refused(frame in frame(), at in 0..FRAME_BYTES, change in 1u8..) {
        let mut bytes = frame.encode();
        bytes[at] ^= change;
        prop_assert!(Frame::decode(&bytes).is_err());
    }

    #[test]
    fn a_frames_payload_is_its_length_or_nothing(frame in frame()) {
        let carries = match frame.op {
            FrameOp::Write | FrameOp::WriteList | FrameOp::Notify => true,
            FrameOp::ReadDone => frame.status == Status::Ok,
            _ => false,
        };
        prop_assert_eq!(frame.payload_bytes(), if carries { frame.length } else { 0 });
        let listed = matches!(frame.op, FrameOp::WriteList | FrameOp::ReadList);
        prop_assert_eq!(frame.pieces(), if listed { frame.offset } else { 0 });
    }

    #[test]
    fn an_answer_keeps_what_was_asked(asked in frame(), status in status()) {
        let answer = asked.answer(FrameOp::ReadDone, status);
        prop_assert_eq!((answer.id, answer.region, answer.offset), (asked.id, asked.region, asked.offset));
        prop_assert_eq!((answer.length, answer.status), (asked.length, status));
        prop_assert_eq!((answer.key, answer.payload_crc), (0, 0), "a key is not sent back");
    }

    #[test]
    fn notifications_round_trip(name in "\\PC{0,60}", payload in vec(any::<u8>(), 0..600), cut: prop::sample::Index) {
        let bytes = notification::encode(&name, &payload).unwrap();
        prop_assert_eq!(notification::decode(&bytes), Ok((name.as_str(), payload.as_slice())));
        // Cut, it is shorter or refused; never something else.
        match notification::decode(&bytes[..cut.index(bytes.len())]) {
            Ok((found, rest)) => prop_assert!(found == name && payload.starts_with(rest)),
            Err(_) => prop_assert!(cut.index(bytes.len()) <= name.len()),
        }
    }

    #[test]
    fn any_bytes_are_a_notification_or_refused(bytes in vec(any::<u8>(), 0..600)) {
        if let Ok((name, payload)) = notification::decode(&bytes) {
            prop_assert_eq!(notification::encode(name, payload).unwrap(), bytes);
        }
    }

    #[test]
    fn hellos_round_trip(value in hello_value(), cut: prop::sample::Index) {
        let bytes = value.encode().unwrap();
        check(&value, &bytes, cut, hello)?;
        check_body(&bytes[PRELUDE_BYTES..], cut, Hello::decode_body)?;
    }

    #[test]
    fn replies_round_trip(value in reply_value(), cut: prop::sample::Index) {
        let bytes = value.encode().unwrap();
        check(&value, &bytes, cut, reply)?;
        check_body(&bytes[PRELUDE_BYTES..], cut, HelloReply::decode_body)?;
    }

    #[test]
    fn a_hello_is_no_reply_and_a_reply_no_hello(asked in hello_value(), answer in reply_value()) {
        prop_assert_eq!(reply(&asked.encode().unwrap()), None);
        prop_assert_eq!(hello(&answer.encode().unwrap()), None);
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character(reason in "\\PC{0,2000}") {
        let bytes = HelloReply::Refused { reason: reason.clone() }.encode().unwrap();
        let Some(HelloReply::Refused { reason: cut }) = reply(&bytes) else {
            return Err(TestCaseError::fail("a refusal decodes as a refusal"));
        };
        prop_assert!(reason.starts_with(&cut) && cut.len() <= 1024);
        prop_assert!(cut == reason || cut.len() > 1020);
    }

    #[test]
    fn controls_round_trip(value in control_value(), cut: prop::sample::Index) {
        let bytes = value.encode(MAX_CONTROL_BYTES).unwrap();
        check(&value, &bytes, cut, framed_control)?;
        check_body(&bytes[control::LENGTH_BYTES..], cut, Control::decode_body)?;
    }

    #[test]
    fn descriptors_round_trip(value in descriptor_value(), cut: prop::sample::Index) {
        let bytes = codec::encode("descriptor", &value, MAX_CONTROL_BYTES).unwrap();
        prop_assert_eq!(value.validate(), Ok(()));
        check(&value, &bytes, cut, descriptor)?;
    }

    #[test]
    fn transport_keys_round_trip(value in key_value(), cut: prop::sample::Index) {
        let bytes = codec::encode("transport key", &value, MAX_HELLO_BYTES).unwrap();
        check(&value, &bytes, cut, transport_key)?;
    }

    #[test]
    fn tokens_round_trip(value in token_value()) {
        let text = value.to_token().unwrap();
        prop_assert!(text.bytes().all(|b| b.is_ascii_graphic()), "one printable word");
        prop_assert_eq!(text.parse(), Ok(value));
    }

    #[test]
    fn a_token_with_a_changed_missing_or_added_character_is_refused(
        value in token_value(),
        at: prop::sample::Index,
        other in "[A-Za-z0-9_:-]",
    ) {
        let text = value.to_token().unwrap();
        let at = at.index(text.len());
        let (before, after) = (&text[..at], &text[at + 1..]);
        let changed = format!("{before}{other}{after}");
        prop_assert!(changed == text || changed.parse::<SegmentToken>().is_err(), "changed");
        prop_assert!(format!("{before}{after}").parse::<SegmentToken>().is_err(), "missing");
        prop_assert!(format!("{text}{other}").parse::<SegmentToken>().is_err(), "added");
        prop_assert!(before.parse::<SegmentToken>().is_err(), "cut short");
    }

    #[test]
    fn arbitrary_bytes_panic_nowhere(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        if let Some((header, _)) = bytes.split_first_chunk::<FRAME_BYTES>() {
            let _ = Frame::decode(header);
        }
        if let Some((prelude, body)) = bytes.split_first_chunk::<PRELUDE_BYTES>() {
            let _ = (Hello::decode_prelude(prelude), Hello::decode_body(body));
            let _ = (HelloReply::decode_prelude(prelude), HelloReply::decode_body(body));
        }
        let _ = Control::decode_body(&bytes);
        let _ = (descriptor(&bytes), transport_key(&bytes));
        let _ = codec::decode::<SegmentToken>("token", &bytes, MAX_TOKEN_BYTES);
        let _ = String::from_utf8_lossy(&bytes).parse::<SegmentToken>();
    }

    /// Bytes that are nearly right reach further into a decoder than random ones.
    #[test]
    fn a_changed_byte_panics_nowhere(
        asked in hello_value(),
        answer in reply_value(),
        message in control_value(),
        at: prop::sample::Index,
        change in 1u8..,
    ) {
        let spoilt = |mut body: Vec<u8>| {
            let at = at.index(body.len());
            body[at] ^= change;
            body
        };
        let body = spoilt(asked.encode().unwrap().split_off(PRELUDE_BYTES));
        prop_assert_ne!(Hello::decode_body(&body), Ok(asked));
        let body = spoilt(answer.encode().unwrap().split_off(PRELUDE_BYTES));
        prop_assert_ne!(HelloReply::decode_body(&body), Ok(answer));
        let body = spoilt(message.encode(MAX_CONTROL_BYTES).unwrap().split_off(control::LENGTH_BYTES));
        prop_assert_ne!(Control::decode_body(&body), Ok(message));
    }
}
