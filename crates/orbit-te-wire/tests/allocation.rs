//! A length in a peer's bytes is only a claim: no decoder allocates for it more than its limits allow. The counting
//! allocator of this test binary shows the largest piece that was asked for.

use orbit_te_wire::limits::{MAX_HELLO_BYTES, MAX_TOKEN_BYTES};
use orbit_te_wire::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn note(bytes: usize) {
    // A thread that is ending has no cell any more, and nothing to count.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call is handed on to the system's allocator as it came; noting a number allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn largest_of(work: impl FnOnce()) -> usize {
    LARGEST.set(0);
    work();
    LARGEST.get()
}

/// `front`, then a length that claims `claim`, then a few bytes: refused, and for less than 2 KiB.
fn check<T>(what: &str, front: &[u8], claim: u64, decode: impl Fn(&[u8]) -> Result<T, WireError>) {
    let bytes = [front, &claim.to_le_bytes()[..], &[0; 64][..]].concat();
    let largest = largest_of(|| assert!(decode(&bytes).is_err(), "{what} of {claim}"));
    assert!(largest < 2048, "{what} of {claim}: {largest} bytes in one piece");
}

#[test]
fn claimed_lengths_allocate_nothing() {
    let descriptor = |bytes: &[u8]| codec::decode::<RegionDescriptor>("descriptor", bytes, MAX_HELLO_BYTES);
    let key = |bytes: &[u8]| codec::decode::<TransportKey>("key", bytes, MAX_HELLO_BYTES);
    let token = |bytes: &[u8]| codec::decode::<SegmentToken>("token", bytes, MAX_TOKEN_BYTES);
    let request = 1u64.to_le_bytes();
    let message = |number: u32, rest: &[&[u8]]| [&number.to_le_bytes()[..], &rest.concat()].concat();
    let empty = 0u64.to_le_bytes();
    for claim in [100, 4096, 65_536, 1 << 20, 1 << 32, 1 << 63, u64::MAX] {
        check("authentication data", &[&[0; 4 + 16 + 8 + 8][..], &[1; 24], &[0; 2]].concat(), claim, |b| {
            Hello::decode_body(b)
        });
        check("reason of a refusal", &[1, 0, 0, 0], claim, HelloReply::decode_body);
        check("segment name", &message(2, &[&request]), claim, Control::decode_body);
        check("keys of a segment", &message(3, &[&request, &[1; 32], &[0; 8]]), claim, Control::decode_body);
        check("reason", &message(4, &[&request, &[0; 4]]), claim, Control::decode_body);
        check("notification", &message(5, &[&request, &empty]), claim, Control::decode_body);
        check("transport message", &message(7, &[&empty]), claim, Control::decode_body);
        check("addresses of a reach", &message(8, &[]), claim, Control::decode_body);
        check("goodbye", &message(9, &[]), claim, Control::decode_body);
        check("keys of a descriptor", &[&[1; 32][..], &[0; 8]].concat(), claim, descriptor);
        check("transport name", &[], claim, key);
        check("transport key", &empty, claim, key);
        check("addresses of a token", &[0; 24], claim, token);
        let rdma = |number: u32, rest: &[u8]| [&[1, 0][..], &[0; 34], &number.to_le_bytes(), rest].concat();
        check("rails", &rdma(4, &[1; 21]), claim, rdma::Message::decode);
        check("words of a close", &rdma(3, &[0; 2]), claim, rdma::Message::decode);
        check("rails of a key set", &rdma(6, &[1; 12]), claim, rdma::Message::decode);
        check(
            "keys of a rail",
            &rdma(6, &[&[1; 12][..], &request, &[0; 17]].concat()),
            claim,
            rdma::Message::decode,
        );
        check("name of a token", &[&[0; 24][..], &empty].concat(), claim, token);
    }
}

#[test]
fn frames_allocate_nothing() {
    let frame = Frame {
        op: FrameOp::Write,
        status: Status::Ok,
        id: 1,
        region: RegionId(1),
        generation: Generation(1),
        key: 1,
        offset: 0,
        length: u64::MAX,
        payload_crc: 0,
        trailer: false,
    };
    let largest = largest_of(|| assert_eq!(Frame::decode(&frame.encode()), Ok(frame)));
    assert_eq!(largest, 0);
}
