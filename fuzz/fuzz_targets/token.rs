//! Printable segment tokens: no text makes the parser panic, and what parses prints as text that parses equal. Inputs
//! are tried as text, and as the bytes inside of a token whose prefix, base64 and checksum are right, since a fuzzer
//! can't guess those.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::limits::MAX_TOKEN_BYTES;
use orbit_te_wire::{SegmentToken, codec};

fuzz_target!(|bytes: &[u8]| {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    if let Ok(token) = text.parse::<SegmentToken>() {
        assert_eq!(check(&token), text.trim(), "a token has one spelling");
    }
    if let Ok(token) = codec::decode::<SegmentToken>("token", bytes, MAX_TOKEN_BYTES) {
        match token.validate() {
            Ok(()) => drop(check(&token)),
            Err(_) => assert!(token.to_token().is_err()),
        }
    }
});

fn check(token: &SegmentToken) -> String {
    let text = token.to_token().expect("a valid token prints");
    assert_eq!(text.parse().as_ref(), Ok(token));
    text
}
