//! Answers to hellos, prelude and body: no bytes make the decoders panic, and what decodes encodes to bytes that
//! decode equal, a long reason apart, which is cut.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::HelloReply;
use orbit_te_wire::hello::PRELUDE_BYTES;
use orbit_te_wire::limits::MAX_HELLO_BYTES;

fuzz_target!(|bytes: &[u8]| {
    let Some((prelude, body)) = bytes.split_first_chunk::<PRELUDE_BYTES>() else {
        return;
    };
    if let Ok(prelude) = HelloReply::decode_prelude(prelude) {
        assert!(prelude.version_min <= prelude.version_max);
        assert!(prelude.body_bytes as usize <= MAX_HELLO_BYTES);
    }
    let Ok(reply) = HelloReply::decode_body(body) else {
        return;
    };
    let again = reply.encode().expect("what decodes encodes");
    let (prelude, again) = again.split_first_chunk().expect("an answer begins with its prelude");
    let prelude = HelloReply::decode_prelude(prelude).expect("our own prelude decodes");
    assert_eq!(prelude.body_bytes as usize, again.len());
    match (HelloReply::decode_body(again), reply) {
        (Ok(HelloReply::Refused { reason: cut }), HelloReply::Refused { reason }) => {
            assert!(reason.starts_with(&cut) && (cut.len() > 1020 || cut == reason));
        }
        (decoded, reply) => {
            assert_eq!(again, body, "an answer has one spelling");
            assert_eq!(decoded, Ok(reply));
        }
    }
});
