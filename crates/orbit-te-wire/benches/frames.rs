//! What the wire costs per request: a header made, a header read, and the control link's larger values.

#![allow(missing_docs)] // The macros of the harness make public items.

use criterion::{Criterion, criterion_group, criterion_main};
use orbit_te_wire::{
    Access, Control, Frame, FrameOp, Generation, Incarnation, MemoryKind, PeerId, RegionDescriptor, RegionId,
    SegmentToken, Status, TransportKey,
};
use std::hint::black_box;

fn frame() -> Frame {
    Frame {
        op: FrameOp::Write,
        status: Status::Ok,
        id: 7,
        region: RegionId(3),
        generation: Generation(2),
        key: 0x1234_5678_9abc_def0,
        offset: 1 << 30,
        length: 1 << 20,
        payload_crc: 0,
        trailer: false,
    }
}

fn token() -> SegmentToken {
    let key = TransportKey { transport: "tcp".into(), bytes: vec![7; 8] };
    SegmentToken {
        peer: PeerId(1),
        incarnation: Incarnation(2),
        addresses: vec![([127, 0, 0, 1], 4000).into()],
        name: "pool".into(),
        descriptor: RegionDescriptor {
            region: RegionId(3),
            generation: Generation(2),
            base_offset: 0,
            length: 1 << 30,
            kind: MemoryKind::Host,
            access: Access::SHARED,
            keys: vec![key],
        },
    }
}

fn wire(c: &mut Criterion) {
    let (frame, token) = (frame(), token());
    c.bench_function("frame: encode", |b| b.iter(|| black_box(&frame).encode()));
    let header = frame.encode();
    c.bench_function("frame: decode", |b| b.iter(|| Frame::decode(black_box(&header))));
    let segment = Control::Segment { request: 1, descriptor: token.descriptor.clone() };
    c.bench_function("control segment: encode", |b| b.iter(|| black_box(&segment).encode(1 << 20)));
    if let Ok(bytes) = segment.encode(1 << 20) {
        c.bench_function("control segment: decode", |b| {
            b.iter(|| Control::decode_body(black_box(&bytes[4..])))
        });
    }
    if let Ok(text) = token.to_token() {
        c.bench_function("token: parse", |b| b.iter(|| black_box(text.as_str()).parse::<SegmentToken>()));
    }
}

criterion_group!(benches, wire);
criterion_main!(benches);
