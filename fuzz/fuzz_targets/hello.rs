//! Hellos, prelude and body: no bytes make the decoders panic, and what decodes encodes to bytes that decode equal.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::Hello;
use orbit_te_wire::hello::PRELUDE_BYTES;
use orbit_te_wire::limits::MAX_HELLO_BYTES;

fuzz_target!(|bytes: &[u8]| {
    let Some((prelude, body)) = bytes.split_first_chunk::<PRELUDE_BYTES>() else {
        return;
    };
    if let Ok(prelude) = Hello::decode_prelude(prelude) {
        assert!(prelude.version_min <= prelude.version_max);
        assert!(prelude.body_bytes as usize <= MAX_HELLO_BYTES);
    }
    let Ok(hello) = Hello::decode_body(body) else {
        return;
    };
    let again = hello.encode().expect("what decodes encodes");
    let (prelude, again) = again.split_first_chunk().expect("a hello begins with its prelude");
    let prelude = Hello::decode_prelude(prelude).expect("our own prelude decodes");
    assert_eq!(prelude.body_bytes as usize, again.len());
    assert_eq!(again, body, "a hello has one spelling");
    assert_eq!(Hello::decode_body(again), Ok(hello));
});
