//! Agreement on terms from a prelude and a hello that a peer chose: nothing panics, and what is agreed is within what
//! both sides said.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::hello::{PRELUDE_BYTES, VERSION_MAX, VERSION_MIN};
use orbit_te_wire::{Features, Hello, Limits, negotiate};

fuzz_target!(|bytes: &[u8]| {
    let Some((prelude, body)) = bytes.split_first_chunk::<PRELUDE_BYTES>() else {
        return;
    };
    let (Ok(prelude), Ok(hello)) = (Hello::decode_prelude(prelude), Hello::decode_body(body)) else {
        return;
    };
    let ours = Limits::default();
    let Ok(terms) = negotiate::terms(&prelude, &hello, &ours) else {
        return;
    };
    assert!((VERSION_MIN..=VERSION_MAX).contains(&terms.version));
    assert!((prelude.version_min..=prelude.version_max).contains(&terms.version));
    assert!(Features::OURS.contains(terms.features) && hello.features.contains(terms.features));
    assert!(terms.limits.unworkable().is_none());
    for limits in [ours, hello.limits] {
        assert_eq!(terms.limits.agree(&limits), terms.limits, "no agreed limit is over a side's own");
    }
});
