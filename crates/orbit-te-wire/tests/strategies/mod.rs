//! Random values within their limits, for the property tests.

use orbit_te_wire::limits::{MAX_ADDRESSES, MAX_TRANSPORT_KEYS};
use orbit_te_wire::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::SocketAddr;

pub(crate) fn status() -> impl Strategy<Value = Status> {
    prop::sample::select(vec![
        Status::Ok,
        Status::UnknownRegion,
        Status::StaleGeneration,
        Status::OutOfRange,
        Status::AccessDenied,
        Status::BadKey,
        Status::BadLength,
        Status::ShuttingDown,
        Status::MemoryFault,
        Status::Checksum,
        Status::GrantEnded,
        Status::QueueFull,
        Status::Overlap,
        Status::NobodyListens,
    ])
}

fn op_and_status() -> impl Strategy<Value = (FrameOp, Status)> {
    let request = prop::sample::select(vec![
        FrameOp::Write,
        FrameOp::Read,
        FrameOp::Fence,
        FrameOp::WriteList,
        FrameOp::ReadList,
        FrameOp::Notify,
    ]);
    let answer = prop::sample::select(vec![
        FrameOp::WriteDone,
        FrameOp::ReadDone,
        FrameOp::FenceDone,
        FrameOp::NotifyDone,
    ]);
    prop_oneof![(request, Just(Status::Ok)), (answer, status())]
}

pub(crate) fn frame() -> impl Strategy<Value = Frame> {
    (op_and_status(), any::<[u64; 6]>(), any::<(u32, bool)>()).prop_map(
        |((op, status), words, (payload_crc, flag))| {
            let reads = matches!(op, FrameOp::Read | FrameOp::ReadList)
                || (op, status) == (FrameOp::ReadDone, Status::Ok);
            let trailer = flag && (reads || matches!(op, FrameOp::Write | FrameOp::WriteList));
            let [id, region, generation, key, offset, length] = words;
            let (region, generation) = (RegionId(region), Generation(generation));
            Frame { op, status, id, region, generation, key, offset, length, payload_crc, trailer }
        },
    )
}

/// Limits that can be worked with.
pub(crate) fn limits() -> impl Strategy<Value = Limits> {
    (1024u32.., 1u64.., 1u32.., 1u32.., any::<u32>()).prop_map(
        |(control_bytes, payload_bytes, lane_requests, session_lanes, notification_bytes)| Limits {
            control_bytes,
            payload_bytes,
            lane_requests,
            session_lanes,
            notification_bytes,
        },
    )
}

fn auth() -> impl Strategy<Value = AuthSlot> {
    (any::<u16>(), vec(any::<u8>(), 0..=1024)).prop_map(|(method, data)| AuthSlot { method, data })
}

fn features() -> impl Strategy<Value = Features> {
    any::<u64>().prop_map(Features::from_bits_retain)
}

fn role() -> impl Strategy<Value = Role> {
    let lane =
        any::<(u128, u32)>().prop_map(|(session, lane)| Role::Lane { session: SessionId(session), lane });
    prop_oneof![Just(Role::Control), lane]
}

pub(crate) fn hello_value() -> impl Strategy<Value = Hello> {
    (role(), any::<(u128, u64)>(), features(), limits(), auth()).prop_map(
        |(role, (peer, incarnation), features, limits, auth)| Hello {
            role,
            peer: PeerId(peer),
            incarnation: Incarnation(incarnation),
            features,
            limits,
            auth,
        },
    )
}

pub(crate) fn reply_value() -> impl Strategy<Value = HelloReply> {
    let accepted = (any::<(u16, u128, u64, u128)>(), features(), limits(), auth()).prop_map(
        |((version, peer, incarnation, session), features, limits, auth)| HelloReply::Accepted {
            version,
            peer: PeerId(peer),
            incarnation: Incarnation(incarnation),
            session: SessionId(session),
            features,
            limits,
            auth,
        },
    );
    let refused = "\\PC{0,250}".prop_map(|reason| HelloReply::Refused { reason });
    prop_oneof![accepted, refused]
}

pub(crate) fn key_value() -> impl Strategy<Value = TransportKey> {
    let long = vec(any::<u8>(), 1024);
    ("[a-z]{0,64}", prop_oneof![9 => vec(any::<u8>(), 0..32), 1 => long])
        .prop_map(|(transport, bytes)| TransportKey { transport, bytes })
}

fn kind() -> impl Strategy<Value = MemoryKind> {
    prop_oneof![
        Just(MemoryKind::Host),
        Just(MemoryKind::PinnedHost),
        any::<u32>().prop_map(|ordinal| MemoryKind::Device { ordinal }),
        Just(MemoryKind::File),
    ]
}

fn descriptor_with(
    keys: impl Strategy<Value = Vec<TransportKey>>,
) -> impl Strategy<Value = RegionDescriptor> {
    let range = (0..=u64::MAX / 2, 1..=u64::MAX / 2);
    (any::<(u64, u64, u32)>(), range, kind(), keys).prop_map(
        |((region, generation, access), (base_offset, length), kind, keys)| RegionDescriptor {
            region: RegionId(region),
            generation: Generation(generation),
            base_offset,
            length,
            kind,
            access: Access::from_bits_retain(access),
            keys,
        },
    )
}

pub(crate) fn descriptor_value() -> impl Strategy<Value = RegionDescriptor> {
    descriptor_with(vec(key_value(), 0..=MAX_TRANSPORT_KEYS))
}

fn address() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        any::<([u8; 4], u16)>().prop_map(SocketAddr::from),
        any::<([u16; 8], u16)>().prop_map(SocketAddr::from),
    ]
}

/// Tokens have a limit of their own, which few keys keep.
pub(crate) fn token_value() -> impl Strategy<Value = SegmentToken> {
    let keys = vec(key_value(), 0..4);
    (any::<(u128, u64)>(), vec(address(), 1..=MAX_ADDRESSES), "\\PC{0,60}", descriptor_with(keys)).prop_map(
        |((peer, incarnation), addresses, name, descriptor)| SegmentToken {
            peer: PeerId(peer),
            incarnation: Incarnation(incarnation),
            addresses,
            name,
            descriptor,
        },
    )
}

fn code() -> impl Strategy<Value = RefusalCode> {
    prop::sample::select(vec![
        RefusalCode::UnknownSegment,
        RefusalCode::QueueFull,
        RefusalCode::ShuttingDown,
        RefusalCode::Unsupported,
        RefusalCode::OverLimit,
    ])
}

pub(crate) fn control_value() -> impl Strategy<Value = Control> {
    let name = || "\\PC{0,60}";
    let bytes = || vec(any::<u8>(), 0..600);
    let request = any::<u64>;
    prop_oneof![
        request().prop_map(|request| Control::Ping { request }),
        request().prop_map(|request| Control::Pong { request }),
        (request(), name()).prop_map(|(request, name)| Control::OpenSegment { request, name }),
        (request(), descriptor_value())
            .prop_map(|(request, descriptor)| Control::Segment { request, descriptor }),
        (request(), code(), "\\PC{0,1000}").prop_map(|(request, code, reason)| Control::Refused {
            request,
            code,
            reason
        }),
        ("[a-z]{0,64}", bytes()).prop_map(|(transport, bytes)| Control::Transport { transport, bytes }),
        "\\PC{0,1000}".prop_map(|reason| Control::Goodbye { reason }),
        request().prop_map(|request| Control::Addresses { request }),
        (request(), vec(("[a-z_]{0,64}", bytes()), 0..=3)).prop_map(|(request, addresses)| {
            let address = |(transport, bytes)| TransportAddress { transport, bytes };
            Control::AddressesAre { request, addresses: addresses.into_iter().map(address).collect() }
        }),
    ]
}
