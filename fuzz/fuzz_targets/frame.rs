//! Frame headers: no bytes make the decoder panic, and a header that decodes has no second spelling. Half of the
//! inputs get a true checksum, since a fuzzer can't guess one.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::{FRAME_BYTES, Frame, WireError};

fuzz_target!(|bytes: &[u8]| {
    let Some((header, rest)) = bytes.split_first_chunk::<FRAME_BYTES>() else {
        return;
    };
    check(header);
    if rest.is_empty() {
        check(&sealed(header));
    }
});

fn check(header: &[u8; FRAME_BYTES]) {
    let Ok(frame) = Frame::decode(header) else {
        return;
    };
    assert_eq!(frame.encode(), *header);
    assert!(frame.payload_bytes() == 0 || frame.payload_bytes() == frame.length);
}

/// The header with the checksum that the decoder says it computed.
fn sealed(header: &[u8; FRAME_BYTES]) -> [u8; FRAME_BYTES] {
    let mut header = *header;
    if let Err(WireError::HeaderChecksum { computed, .. }) = Frame::decode(&header) {
        header[FRAME_BYTES - 4..].copy_from_slice(&computed.to_le_bytes());
    }
    header
}
