//! What two sides with RDMA devices say, and the keys of their regions: no bytes make the decoders panic, and what is accepted has one
//! spelling.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::rdma::{Address, Message, RegionKey};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(message.encode().expect("what decodes encodes"), bytes);
    }
    if let Ok(address) = Address::decode(bytes) {
        assert_eq!(address.encode().expect("what decodes encodes"), bytes);
    }
    if let Ok(key) = RegionKey::decode(bytes) {
        assert_eq!(key.encode().expect("what decodes encodes"), bytes);
    }
});
