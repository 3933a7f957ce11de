//! Transport keys as they stand inside of descriptors: no bytes make the decoder panic, and what decodes encodes to
//! bytes that decode equal.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::limits::MAX_HELLO_BYTES;
use orbit_te_wire::{TransportKey, codec};

fuzz_target!(|bytes: &[u8]| {
    let decode = |bytes| codec::decode::<TransportKey>("transport key", bytes, MAX_HELLO_BYTES);
    let Ok(key) = decode(bytes) else {
        return;
    };
    let again = codec::encode("transport key", &key, MAX_HELLO_BYTES).expect("what decodes encodes");
    assert_eq!(again, bytes, "a key has one spelling");
    assert_eq!(decode(&again), Ok(key));
});
