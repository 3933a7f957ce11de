//! Region descriptors as they stand inside of messages and tokens: no bytes make the decoder or the check of the
//! fields panic, and what decodes encodes to bytes that decode equal.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::limits::{MAX_CONTROL_BYTES, MAX_TRANSPORT_KEY_BYTES};
use orbit_te_wire::{RegionDescriptor, codec};

fuzz_target!(|bytes: &[u8]| {
    let decode = |bytes| codec::decode::<RegionDescriptor>("descriptor", bytes, MAX_CONTROL_BYTES);
    let Ok(descriptor) = decode(bytes) else {
        return;
    };
    if descriptor.validate().is_ok() {
        assert!(descriptor.length > 0);
        assert!(descriptor.base_offset.checked_add(descriptor.length).is_some());
        assert!(descriptor.keys.iter().all(|key| key.bytes.len() <= MAX_TRANSPORT_KEY_BYTES));
    }
    let again = codec::encode("descriptor", &descriptor, MAX_CONTROL_BYTES).expect("what decodes encodes");
    assert_eq!(again, bytes, "a descriptor has one spelling");
    assert_eq!(decode(&again), Ok(descriptor));
});
