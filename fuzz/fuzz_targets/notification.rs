//! A notification as it travels: no bytes make it panic, and what is accepted has one spelling.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::notification;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((name, payload)) = notification::decode(bytes) {
        assert_eq!(notification::encode(name, payload).expect("it was accepted"), bytes);
    }
});
