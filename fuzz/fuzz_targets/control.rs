//! Control messages, length and body: no bytes make the decoders panic, and what decodes encodes to bytes that decode
//! equal.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::Control;
use orbit_te_wire::control::LENGTH_BYTES;
use orbit_te_wire::limits::MAX_CONTROL_BYTES;

fuzz_target!(|bytes: &[u8]| {
    let Some((length, body)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return;
    };
    for limit in [1024, MAX_CONTROL_BYTES, usize::MAX] {
        if let Ok(length) = Control::decode_length(*length, limit) {
            assert!((1..=limit.min(MAX_CONTROL_BYTES)).contains(&length));
        }
    }
    let Ok(message) = Control::decode_body(body) else {
        return;
    };
    let again = message.encode(MAX_CONTROL_BYTES).expect("what decodes encodes");
    let (length, again) = again.split_first_chunk().expect("a message begins with its length");
    assert_eq!(Control::decode_length(*length, MAX_CONTROL_BYTES), Ok(again.len()));
    assert_eq!(again, body, "a message has one spelling");
    assert_eq!(Control::decode_body(again), Ok(message));
});
