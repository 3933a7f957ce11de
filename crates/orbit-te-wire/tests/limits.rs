//! The limits of single fields, row by row: one byte at the limit passes, one over it is refused with the field's name.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_wire::control::LENGTH_BYTES;
use orbit_te_wire::hello::PRELUDE_BYTES;
use orbit_te_wire::limits::*;
use orbit_te_wire::*;

fn key(name_bytes: usize, key_bytes: usize) -> TransportKey {
    TransportKey { transport: "t".repeat(name_bytes), bytes: vec![7; key_bytes] }
}

fn descriptor() -> RegionDescriptor {
    RegionDescriptor {
        region: RegionId(1),
        generation: Generation(1),
        base_offset: 0,
        length: 1,
        kind: MemoryKind::Host,
        access: Access::SHARED,
        keys: Vec::new(),
    }
}

fn token() -> SegmentToken {
    SegmentToken {
        peer: PeerId(1),
        incarnation: Incarnation(1),
        addresses: vec!["127.0.0.1:1".parse().unwrap()],
        name: String::new(),
        descriptor: descriptor(),
    }
}

fn too_long(what: &'static str, got: u64, limit: u64) -> Result<(), WireError> {
    Err(WireError::TooLong { what, got, limit })
}

#[test]
fn descriptors() {
    let check = |descriptor: RegionDescriptor, want| assert_eq!(descriptor.validate(), want);
    let range = |base_offset, length| RegionDescriptor { base_offset, length, ..descriptor() };
    let keys = |keys| RegionDescriptor { keys, ..descriptor() };
    check(range(0, 1), Ok(()));
    check(range(0, u64::MAX), Ok(()));
    check(range(u64::MAX - 1, 1), Ok(()));
    check(range(0, 0), Err(WireError::Invalid { what: "a region descriptor has length zero" }));
    let overflow = Err(WireError::Invalid { what: "a region descriptor's range overflows" });
    check(range(u64::MAX, 1), overflow.clone());
    check(range(1, u64::MAX), overflow);
    check(keys(vec![key(64, 1024); 16]), Ok(()));
    check(keys(vec![key(0, 0); 17]), Err(WireError::TooMany { what: "transport keys", got: 17, limit: 16 }));
    check(keys(vec![key(1, 1), key(65, 1)]), too_long("transport name", 65, 64));
    check(keys(vec![key(1, 1025)]), too_long("transport key", 1025, 1024));
}

#[test]
fn a_descriptors_key_is_found_by_its_transport() {
    let keys = vec![key(1, 1), key(2, 2), key(2, 3)];
    let descriptor = RegionDescriptor { keys, ..descriptor() };
    assert_eq!(descriptor.key("t"), Some(&[7][..]));
    assert_eq!(descriptor.key("tt"), Some(&[7, 7][..]), "the first of a name counts");
    assert_eq!(descriptor.key("rdma"), None);
}

#[test]
fn access_rights() {
    let check = |access: Access, remote| assert_eq!(access.is_remote(), remote, "{access:?}");
    check(Access::empty(), false);
    check(Access::LOCAL, false);
    check(Access::REMOTE_READ, true);
    check(Access::REMOTE_WRITE, true);
    check(Access::SHARED, true);
    check(Access::SHARED_READ, true);
}

/// Encoding refuses what decoding would refuse, so that a mistake shows on the side that made it.
#[test]
fn control_messages() {
    let check = |message: Control, want: Result<(), WireError>| {
        assert_eq!(message.encode(MAX_CONTROL_BYTES).map(drop), want, "encoding");
        let body = codec::encode("test", &message, MAX_CONTROL_BYTES).unwrap();
        assert_eq!(Control::decode_body(&body).map(drop).is_ok(), want.is_ok(), "decoding");
    };
    let name = |n| "n".repeat(n);
    let open = |n| Control::OpenSegment { request: 1, name: name(n) };
    check(open(255), Ok(()));
    check(open(256), too_long("segment name", 256, 255));
    let refused = |n| Control::Refused { request: 1, code: RefusalCode::OverLimit, reason: name(n) };
    check(refused(4096), Ok(()));
    check(refused(4097), too_long("reason", 4097, 4096));
    let goodbye = |n| Control::Goodbye { reason: name(n) };
    check(goodbye(4096), Ok(()));
    check(goodbye(4097), too_long("reason", 4097, 4096));
    let transport = |n, bytes| Control::Transport { transport: name(n), bytes: vec![0; bytes] };
    check(transport(64, 65_536), Ok(()));
    check(transport(65, 0), too_long("transport name", 65, 64));
    check(transport(0, 65_537), too_long("transport message", 65_537, 65_536));
    let segment = |length, keys| Control::Segment {
        request: 1,
        descriptor: RegionDescriptor { length, keys, ..descriptor() },
    };
    check(segment(1, vec![key(64, 1024); 16]), Ok(()));
    check(segment(1, vec![key(1, 1025)]), too_long("transport key", 1025, 1024));
    check(segment(0, Vec::new()), Err(WireError::Invalid { what: "a region descriptor has length zero" }));
}

#[test]
fn notifications() {
    let name = |n| "n".repeat(n);
    let encoded = |n, payload: usize| notification::encode(&name(n), &vec![7; payload]);
    assert_eq!(encoded(255, 65_536).map(|bytes| bytes.len()), Ok(notification::MAX_BYTES));
    assert_eq!(encoded(256, 0).map(drop), too_long("notification name", 256, 255));
    assert_eq!(encoded(0, 65_537).map(drop), too_long("notification", 65_537, 65_536));
    let decoded = |bytes: &[u8]| notification::decode(bytes).map(drop);
    let cut = Err(WireError::Invalid { what: "a notification ends within its name" });
    assert_eq!(decoded(&[]), cut);
    assert_eq!(decoded(&[2, b'n']), cut);
    assert_eq!(
        decoded(&[1, 0xff]),
        Err(WireError::Invalid { what: "the name of a notification is no UTF-8" })
    );
    assert_eq!(decoded(&[0; 65_537]), Ok(()));
    assert_eq!(decoded(&[0; 65_538]), too_long("notification", 65_537, 65_536));
}

#[test]
fn a_control_message_over_the_agreed_limit_is_refused() {
    let message = Control::Goodbye { reason: "r".repeat(1100) };
    assert_eq!(message.encode(1112).map(|b| b.len()), Ok(LENGTH_BYTES + 1112));
    assert_eq!(message.encode(1111).map(drop), too_long("control message", 1112, 1111));
    let check = |length: u32, limit, want| {
        assert_eq!(Control::decode_length(length.to_le_bytes(), limit), want);
    };
    let over = |got, limit| Err(WireError::TooLong { what: "control message", got, limit });
    check(0, 1024, Err(WireError::Invalid { what: "a control message has length zero" }));
    check(1, 1024, Ok(1));
    check(1024, 1024, Ok(1024));
    check(1025, 1024, over(1025, 1024));
    check(MAX_CONTROL_BYTES as u32, usize::MAX, Ok(MAX_CONTROL_BYTES));
    check(MAX_CONTROL_BYTES as u32 + 1, usize::MAX, over(1 << 20 | 1, 1 << 20));
    check(u32::MAX, usize::MAX, over(u32::MAX.into(), 1 << 20));
}

#[test]
fn a_control_body_over_the_limit_is_refused_unread() {
    let body = vec![0; MAX_CONTROL_BYTES + 1];
    assert_eq!(Control::decode_body(&body).map(drop), too_long("control message", 1 << 20 | 1, 1 << 20));
}

#[test]
fn preludes() {
    let good = *b"ORBITTE?\x01\0\x01\0\0\x10\0\0";
    let check = |change: fn(&mut [u8; PRELUDE_BYTES]), want: Option<WireError>| {
        let mut bytes = good;
        change(&mut bytes);
        assert_eq!(Hello::decode_prelude(&bytes).err(), want);
    };
    check(|_| {}, None);
    check(|b| b[12..].fill(0), None);
    check(|b| (b[8], b[10]) = (7, 9), None);
    let magic = |found: &str| Some(WireError::BadMagic { found: found.to_string() });
    check(|b| b[..8].copy_from_slice(b"GET / HT"), magic("`GET / HT`"));
    check(|b| b[0] = 0xff, magic("`\\xffRBITTE?`"));
    check(|b| b[7] = b'!', magic("`ORBITTE!`"));
    check(|b| b[12] = 1, Some(WireError::TooLong { what: "hello", got: 4097, limit: 4096 }));
    check(
        |b| b[12..].fill(255),
        Some(WireError::TooLong { what: "hello", got: u32::MAX.into(), limit: 4096 }),
    );
    let versions = WireError::Invalid { what: "the hello's lowest version is over its highest" };
    check(|b| b[8] = 2, Some(versions));
}

#[test]
fn authentication_data() {
    let hello = |data: usize| Hello {
        role: Role::Control,
        peer: PeerId(1),
        incarnation: Incarnation(1),
        features: Features::OURS,
        limits: Limits::default(),
        auth: AuthSlot { method: 1, data: vec![0; data] },
    };
    let reply = |data: usize, limits: Limits| HelloReply::Accepted {
        version: 1,
        peer: PeerId(1),
        incarnation: Incarnation(1),
        session: SessionId(1),
        features: Features::OURS,
        limits,
        auth: AuthSlot { method: 1, data: vec![0; data] },
    };
    let over = too_long("authentication data", 1025, 1024);
    let body = |hello: &Hello| codec::encode("test", hello, MAX_HELLO_BYTES).unwrap();
    assert_eq!(hello(1024).encode().map(drop), Ok(()));
    assert_eq!(hello(1025).encode().map(drop), over);
    assert_eq!(Hello::decode_body(&body(&hello(1025))).map(drop), over);
    let fine = Limits::default();
    let body = |reply: &HelloReply| codec::encode("test", reply, MAX_HELLO_BYTES).unwrap();
    assert_eq!(reply(1024, fine).encode().map(drop), Ok(()));
    assert_eq!(reply(1025, fine).encode().map(drop), over);
    assert_eq!(HelloReply::decode_body(&body(&reply(1025, fine))).map(drop), over);
    let idle = reply(0, Limits { lane_requests: 0, ..fine });
    let why = Err(WireError::Invalid { what: "the limit of requests on a lane is zero" });
    assert_eq!(idle.encode().map(drop), why);
    assert_eq!(HelloReply::decode_body(&body(&idle)).map(drop), why);
}

#[test]
fn frames() {
    let read = Frame {
        op: FrameOp::Read,
        status: Status::Ok,
        id: 1,
        region: RegionId(1),
        generation: Generation(1),
        key: 1,
        offset: 0,
        length: 1,
        payload_crc: 0,
        trailer: false,
    };
    let check = |at: usize, byte: u8, want: WireError| {
        let mut bytes = read.encode();
        bytes[at] = byte;
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Frame::decode(&bytes), Err(want));
    };
    check(0, b'X', WireError::Unknown { what: "frame magic", value: 0x5458 });
    check(2, 0, WireError::Unknown { what: "frame op", value: 0 });
    check(2, 11, WireError::Unknown { what: "frame op", value: 11 });
    check(3, 2, WireError::Unknown { what: "frame flags", value: 2 });
    let done = Frame { op: FrameOp::WriteDone, trailer: true, ..read };
    let why = "a frame without a payload says that it has a trailer";
    assert_eq!(Frame::decode(&done.encode()), Err(WireError::Invalid { what: why }));
    check(4, 14, WireError::Unknown { what: "frame status", value: 14 });
    check(5, 1, WireError::Unknown { what: "frame status", value: 256 });
    check(4, 1, WireError::Invalid { what: "a request carries a status" });
    check(6, 1, WireError::Invalid { what: "a frame's reserved bytes are not zero" });
    check(7, 1, WireError::Invalid { what: "a frame's reserved bytes are not zero" });
    let mut bytes = read.encode();
    bytes[60] ^= 1;
    assert!(matches!(Frame::decode(&bytes), Err(WireError::HeaderChecksum { .. })));
}

#[test]
fn tokens() {
    let check = |token: SegmentToken, want: &str| {
        let why = token.to_token().unwrap_err().to_string();
        assert!(why.contains(want), "{why}");
        assert!(token.to_string().contains(want), "{token}");
    };
    let here = token().addresses[0];
    let keys = |n| RegionDescriptor { keys: vec![key(1, 1024); n], ..descriptor() };
    assert!(SegmentToken { addresses: vec![here; 16], ..token() }.to_token().is_ok());
    assert!(SegmentToken { name: "n".repeat(255), descriptor: keys(7), ..token() }.to_token().is_ok());
    check(SegmentToken { addresses: Vec::new(), ..token() }, "names no address");
    check(SegmentToken { addresses: vec![here; 17], ..token() }, "more than 16 addresses");
    check(SegmentToken { name: "n".repeat(256), ..token() }, "more than 255 bytes");
    check(SegmentToken { descriptor: keys(8), ..token() }, "over the limit of 8192");
}

#[test]
fn token_text() {
    let check = |text: &str, want: &str| {
        let why = text.parse::<SegmentToken>().unwrap_err().to_string();
        assert!(why.contains(want), "{text:?}: {why}");
    };
    let good = token().to_token().unwrap();
    check("", "does not begin with `otseg1:`");
    check("otseg2:AAAA", "does not begin with `otseg1:`");
    check(&good.to_uppercase(), "does not begin with `otseg1:`");
    check("otseg1:", "cut short");
    check("otseg1:AAAA", "cut short");
    check("otseg1:AAAAAA", "does not decode");
    check("otseg1:AAAAAAA", "checksum is wrong");
    check("otseg1:AAAAAAA=", "not base64url");
    check("otseg1:AAAA AAAA", "not base64url");
    check(&format!("otseg1:{}", "A".repeat(20_000)), "too long");
}
