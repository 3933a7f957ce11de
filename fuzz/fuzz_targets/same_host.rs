//! What processes of one host say, and the addresses at which they meet: no bytes make the decoders panic, and what is accepted has one
//! spelling.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::same_host::{SameHost, SameHostAddress};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = SameHost::decode(bytes) {
        assert_eq!(message.encode().expect("what decodes encodes"), bytes);
    }
    if let Ok(address) = SameHostAddress::decode(bytes) {
        assert_eq!(address.encode().expect("what decodes encodes"), bytes);
    }
});
