//! Golden vectors: the literal bytes of every value that crosses the wire. Rule: the bytes were worked out apart from
//! this crate, are never made at run time, and change only with the protocol's version; `docs/protocol.md` explains
//! them field by field. Spaces in the hex separate fields.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_wire::hello::{PRELUDE_BYTES, Prelude};
use orbit_te_wire::limits::{MAX_CONTROL_BYTES, MAX_HELLO_BYTES};
use orbit_te_wire::*;
use std::fmt::Debug;
use std::path::Path;

const KEY: u64 = 0x1122_3344_5566_7788;
/// The features of the first implementation: vectors stay as they are when others are added.
const FIRST: Features = Features::NOTIFICATIONS.union(Features::LANE_FENCE);
const PEER: PeerId = PeerId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
const OTHER_PEER: PeerId = PeerId(0xffee_ddcc_bbaa_9988_7766_5544_3322_1100);
const INCARNATION: Incarnation = Incarnation(0x0123_4567_89ab_cdef);
const SESSION: SessionId = SessionId(0x0f1e_2d3c_4b5a_6978_8796_a5b4_c3d2_e1f0);
const BLANK: Frame = Frame {
    op: FrameOp::Read,
    status: Status::Ok,
    id: 0,
    region: RegionId(42),
    generation: Generation(3),
    key: 0,
    offset: 0,
    length: 0,
    payload_crc: 0,
    trailer: false,
};

/// A name, a value, and its bytes as hex.
struct Row<T> {
    name: &'static str,
    value: T,
    hex: &'static str,
}

fn row<T>(name: &'static str, value: T, hex: &'static str) -> Row<T> {
    Row { name, value, hex }
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    data_encoding::HEXLOWER.decode(&digits).unwrap()
}

/// Each value encodes to its bytes, and its bytes decode to the value.
fn check<T: PartialEq + Debug>(
    rows: Vec<Row<T>>,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, WireError>,
) {
    for Row { name, value, hex } in rows {
        let bytes = unhex(hex);
        assert_eq!(encode(&value), bytes, "{name}: encoding");
        assert_eq!(decode(&bytes).as_ref(), Ok(&value), "{name}: decoding");
    }
}

fn split_prelude(bytes: &[u8]) -> (&[u8; PRELUDE_BYTES], &[u8]) {
    bytes.split_first_chunk().unwrap()
}

fn addresses() -> Vec<std::net::SocketAddr> {
    vec!["127.0.0.1:7531".parse().unwrap(), "[2001:db8::1]:7532".parse().unwrap()]
}

fn tcp_key() -> TransportKey {
    TransportKey { transport: "tcp".into(), bytes: KEY.to_le_bytes().to_vec() }
}

fn host_descriptor() -> RegionDescriptor {
    RegionDescriptor {
        region: RegionId(42),
        generation: Generation(3),
        base_offset: 0,
        length: 1 << 20,
        kind: MemoryKind::Host,
        access: Access::SHARED,
        keys: vec![tcp_key()],
    }
}

fn hellos() -> Vec<Row<Hello>> {
    let control = Hello {
        role: Role::Control,
        peer: PEER,
        incarnation: INCARNATION,
        features: FIRST,
        limits: Limits::default(),
        auth: AuthSlot::default(),
    };
    let limits = Limits {
        control_bytes: 4096,
        payload_bytes: 65_536,
        lane_requests: 1,
        session_lanes: 2,
        notification_bytes: 512,
    };
    let lane = Hello {
        role: Role::Lane { session: SESSION, lane: 7 },
        features: Features::NOTIFICATIONS,
        limits,
        auth: AuthSlot { method: 1, data: vec![0xa1, 0xb2, 0xc3] },
        ..control
    };
    vec![
        row(
            "hello_control",
            control,
            "4f524249545445 3f 0100 0100 46000000 00000000 ffeeddccbbaa99887766554433221100 \
             efcdab8967452301 0300000000000000 00001000 0000004000000000 80000000 40000000 00000100 0000 \
             0000000000000000",
        ),
        row(
            "hello_lane",
            lane,
            "4f524249545445 3f 0100 0100 5d000000 01000000 f0e1d2c3b4a5968778695a4b3c2d1e0f 07000000 \
             ffeeddccbbaa99887766554433221100 efcdab8967452301 0100000000000000 00100000 0000010000000000 \
             01000000 02000000 00020000 0100 0300000000000000 a1b2c3",
        ),
    ]
}

fn replies() -> Vec<Row<HelloReply>> {
    let accepted = HelloReply::Accepted {
        version: 1,
        peer: OTHER_PEER,
        incarnation: Incarnation(0xfedc_ba98_7654_3210),
        session: SESSION,
        features: FIRST,
        limits: Limits::default(),
        auth: AuthSlot::default(),
    };
    let refused = HelloReply::Refused { reason: "no: größer".into() };
    vec![
        row(
            "accepted",
            accepted,
            "4f524249545445 21 0100 0100 58000000 00000000 0100 00112233445566778899aabbccddeeff \
             1032547698badcfe f0e1d2c3b4a5968778695a4b3c2d1e0f 0300000000000000 00001000 0000004000000000 \
             80000000 40000000 00000100 0000 0000000000000000",
        ),
        row(
            "refused",
            refused,
            "4f524249545445 21 0100 0100 18000000 01000000 0c00000000000000 6e6f3a206772c3b6c39f6572",
        ),
    ]
}

fn asked(op: FrameOp, id: u64, offset: u64, length: u64, payload_crc: u32) -> Frame {
    Frame { op, id, offset, length, payload_crc, key: KEY, ..BLANK }
}

fn answered(op: FrameOp, status: Status, id: u64, offset: u64, length: u64) -> Frame {
    Frame { op, status, id, offset, length, ..BLANK }
}

fn frames() -> Vec<Row<Frame>> {
    let fence = Frame { id: 10, region: RegionId(7), generation: Generation(0), ..BLANK };
    let notify = Frame { id: 12, region: RegionId(3), generation: Generation(0), length: 7, ..BLANK };
    vec![
        row(
            "write",
            asked(FrameOp::Write, 0x0102_0304_0506_0708, 0x1000, 0x1_0000, 0xe306_9283),
            "4f54 01 00 0000 0000 0807060504030201 2a00000000000000 0300000000000000 8877665544332211 \
             0010000000000000 0000010000000000 839206e3 1902d7e8",
        ),
        row(
            "write_done",
            answered(FrameOp::WriteDone, Status::Ok, 0x0102_0304_0506_0708, 0x1000, 0x1_0000),
            "4f54 02 00 0000 0000 0807060504030201 2a00000000000000 0300000000000000 0000000000000000 \
             0010000000000000 0000010000000000 00000000 5060c1fa",
        ),
        row(
            "write_refused",
            answered(FrameOp::WriteDone, Status::StaleGeneration, 0x0102_0304_0506_0708, 0x1000, 0x1_0000),
            "4f54 02 00 0200 0000 0807060504030201 2a00000000000000 0300000000000000 0000000000000000 \
             0010000000000000 0000010000000000 00000000 51adb8c3",
        ),
        row(
            "read",
            asked(FrameOp::Read, 9, 511, 513, 0),
            "4f54 03 00 0000 0000 0900000000000000 2a00000000000000 0300000000000000 8877665544332211 \
             ff01000000000000 0102000000000000 00000000 81c9ab1a",
        ),
        row(
            "read_done",
            Frame { payload_crc: 0xdead_beef, ..answered(FrameOp::ReadDone, Status::Ok, 9, 511, 513) },
            "4f54 04 00 0000 0000 0900000000000000 2a00000000000000 0300000000000000 0000000000000000 \
             ff01000000000000 0102000000000000 efbeadde f032ecc2",
        ),
        row(
            "read_refused",
            answered(FrameOp::ReadDone, Status::OutOfRange, 9, 511, 513),
            "4f54 04 00 0300 0000 0900000000000000 2a00000000000000 0300000000000000 0000000000000000 \
             ff01000000000000 0102000000000000 00000000 1d3f466c",
        ),
        row(
            "read_grant_ended",
            answered(FrameOp::ReadDone, Status::GrantEnded, 9, 511, 513),
            "4f54 04 00 0a00 0000 0900000000000000 2a00000000000000 0300000000000000 0000000000000000 \
             ff01000000000000 0102000000000000 00000000 e1d6eb17",
        ),
        row(
            "write_with_trailer",
            Frame { trailer: true, ..asked(FrameOp::Write, 9, 511, 513, 0) },
            "4f54 01 01 0000 0000 0900000000000000 2a00000000000000 0300000000000000 8877665544332211 \
             ff01000000000000 0102000000000000 00000000 ff7f850c",
        ),
        row(
            "read_done_with_trailer",
            Frame { trailer: true, ..answered(FrameOp::ReadDone, Status::Ok, 9, 511, 513) },
            "4f54 04 01 0000 0000 0900000000000000 2a00000000000000 0300000000000000 0000000000000000 \
             ff01000000000000 0102000000000000 00000000 83525cb2",
        ),
        row(
            "write_damaged",
            asked(FrameOp::Write, 9, 511, 513, 0).damaged(0xe306_9283, 0xdead_beef),
            "4f54 02 00 0900 0000 0900000000000000 2a00000000000000 0300000000000000 efbeadde00000000 \
             ff01000000000000 0102000000000000 839206e3 a9d271bd",
        ),
        row(
            "fence",
            Frame { op: FrameOp::Fence, ..fence },
            "4f54 05 00 0000 0000 0a00000000000000 0700000000000000 0000000000000000 0000000000000000 \
             0000000000000000 0000000000000000 00000000 9380713c",
        ),
        row(
            "fence_done",
            Frame { op: FrameOp::FenceDone, ..fence },
            "4f54 06 00 0000 0000 0a00000000000000 0700000000000000 0000000000000000 0000000000000000 \
             0000000000000000 0000000000000000 00000000 7e9503e6",
        ),
        row(
            "write_list",
            asked(FrameOp::WriteList, 10, 3, 1025, 0),
            "4f54 07 00 0000 0000 0a00000000000000 2a00000000000000 0300000000000000 8877665544332211 \
             0300000000000000 0104000000000000 00000000 908f9836",
        ),
        row(
            "write_list_refused",
            answered(FrameOp::WriteDone, Status::Overlap, 10, 3, 1025).about_piece(2),
            "4f54 02 00 0c00 0000 0a00000000000000 2a00000000000000 0300000000000000 0000000000000000 \
             0200000000000000 0104000000000000 00000000 57fb1628",
        ),
        row(
            "read_list",
            asked(FrameOp::ReadList, 11, 3, 1025, 0),
            "4f54 08 00 0000 0000 0b00000000000000 2a00000000000000 0300000000000000 8877665544332211 \
             0300000000000000 0104000000000000 00000000 70a2782f",
        ),
        row(
            "read_list_refused",
            answered(FrameOp::ReadDone, Status::OutOfRange, 11, 3, 1025).about_piece(1),
            "4f54 04 00 0300 0000 0b00000000000000 2a00000000000000 0300000000000000 0000000000000000 \
             0100000000000000 0104000000000000 00000000 eef49354",
        ),
        row(
            "notify",
            Frame { op: FrameOp::Notify, status: Status::Ok, ..notify },
            "4f54 09 00 0000 0000 0c00000000000000 0300000000000000 0000000000000000 0000000000000000 \
             0000000000000000 0700000000000000 00000000 4626229e",
        ),
        row(
            "notify_done",
            Frame { op: FrameOp::NotifyDone, status: Status::Ok, ..notify },
            "4f54 0a 00 0000 0000 0c00000000000000 0300000000000000 0000000000000000 0000000000000000 \
             0000000000000000 0700000000000000 00000000 ab335044",
        ),
        row(
            "notify_refused",
            Frame { op: FrameOp::NotifyDone, status: Status::QueueFull, ..notify },
            "4f54 0a 00 0b00 0000 0c00000000000000 0300000000000000 0000000000000000 0000000000000000 \
             0000000000000000 0700000000000000 00000000 56178406",
        ),
    ]
}

/// What stands behind `notify` in [`frames`]: the name `step`, and two bytes.
const NOTIFICATION: &str = "04 73746570 00ff";

#[test]
fn a_notification() {
    let bytes = notification::encode("step", &[0, 0xff]).unwrap();
    assert_eq!(bytes, unhex(NOTIFICATION));
    assert_eq!(notification::decode(&bytes), Ok(("step", &[0, 0xff][..])));
}

/// The table of the lists in [`frames`]: three pieces of a region of 1 MiB.
const TABLE: &str = "0000000000000000 0100000000000000 ff01000000000000 0002000000000000 \
                     00fe0f0000000000 0002000000000000";

fn table() -> [Piece; 3] {
    [Piece::new(0, 1), Piece::new(511, 512), Piece::new((1 << 20) - 512, 512)]
}

fn controls() -> Vec<Row<Control>> {
    vec![
        row("ping", Control::Ping { request: 1 }, "0c000000 00000000 0100000000000000"),
        row("pong", Control::Pong { request: 1 }, "0c000000 01000000 0100000000000000"),
        row(
            "open",
            Control::OpenSegment { request: 2, name: "weights".into() },
            "1b000000 02000000 0200000000000000 0700000000000000 77656967687473",
        ),
        row(
            "segment",
            Control::Segment { request: 2, descriptor: host_descriptor() },
            "57000000 03000000 0200000000000000 2a00000000000000 0300000000000000 0000000000000000 \
             0000100000000000 00000000 07000000 0100000000000000 0300000000000000 746370 0800000000000000 \
             8877665544332211",
        ),
        row(
            "refused",
            Control::Refused {
                request: 2,
                code: RefusalCode::UnknownSegment,
                reason: "no such segment".into(),
            },
            "27000000 04000000 0200000000000000 00000000 0f00000000000000 6e6f2073756368207365676d656e74",
        ),
        row(
            "transport",
            Control::Transport { transport: "rdma".into(), bytes: vec![1, 2, 3] },
            "1b000000 05000000 0400000000000000 72646d61 0300000000000000 010203",
        ),
        row(
            "goodbye",
            Control::Goodbye { reason: "done".into() },
            "10000000 06000000 0400000000000000 646f6e65",
        ),
    ]
}

fn descriptors() -> Vec<Row<RegionDescriptor>> {
    let blank = RegionDescriptor { generation: Generation(1), keys: Vec::new(), ..host_descriptor() };
    let pinned = RegionDescriptor {
        region: RegionId(2),
        length: 8,
        kind: MemoryKind::PinnedHost,
        access: Access::LOCAL,
        ..blank.clone()
    };
    let device = RegionDescriptor {
        region: RegionId(1),
        base_offset: 4096,
        length: 1,
        kind: MemoryKind::Device { ordinal: 5 },
        access: Access::SHARED_READ,
        keys: vec![tcp_key(), TransportKey { transport: "rdma".into(), bytes: Vec::new() }],
        ..blank
    };
    let file = RegionDescriptor {
        region: RegionId(3),
        length: 513,
        kind: MemoryKind::File,
        access: Access::SHARED_READ,
        ..blank
    };
    vec![
        row(
            "host",
            host_descriptor(),
            "2a00000000000000 0300000000000000 0000000000000000 0000100000000000 00000000 07000000 \
             0100000000000000 0300000000000000 746370 0800000000000000 8877665544332211",
        ),
        row(
            "pinned_host",
            pinned,
            "0200000000000000 0100000000000000 0000000000000000 0800000000000000 01000000 01000000 \
             0000000000000000",
        ),
        row(
            "device",
            device,
            "0100000000000000 0100000000000000 0010000000000000 0100000000000000 02000000 05000000 \
             03000000 0200000000000000 0300000000000000 746370 0800000000000000 8877665544332211 \
             0400000000000000 72646d61 0000000000000000",
        ),
        row(
            "file",
            file,
            "0300000000000000 0100000000000000 0000000000000000 0102000000000000 03000000 03000000 \
             0000000000000000",
        ),
    ]
}

fn token() -> SegmentToken {
    SegmentToken {
        peer: PEER,
        incarnation: INCARNATION,
        addresses: addresses(),
        name: "weights".into(),
        descriptor: host_descriptor(),
    }
}

const TOKEN: &str = "otseg1:\
     _-7dzLuqmYh3ZlVEMyIRAO_Nq4lnRSMBAgAAAAAAAAAAAAAAfwAAAWsdAQAAACABDbgAAAAAAAAAAAAAAAFsHQcAAA\
     AAAAAAd2VpZ2h0cyoAAAAAAAAAAwAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAcAAAABAAAAAAAAAAMAAAAAAAAA\
     dGNwCAAAAAAAAACId2ZVRDMiEWIRxPQ";

const TCP_KEY: &str = "0300000000000000 746370 0800000000000000 8877665544332211";

#[test]
fn hello() {
    check(hellos(), |h| h.encode().unwrap(), |b| Hello::decode_body(split_prelude(b).1));
}

#[test]
fn hello_reply() {
    check(replies(), |r| r.encode().unwrap(), |b| HelloReply::decode_body(split_prelude(b).1));
}

#[test]
fn prelude() {
    let ours = unhex("4f524249545445 3f 0100 0100 46000000");
    let (ours, _) = split_prelude(&ours);
    let want = Prelude { version_min: 1, version_max: 1, body_bytes: 70 };
    assert_eq!(Hello::decode_prelude(ours), Ok(want));
    let later = unhex("4f524249545445 21 0200 0a01 00100000");
    let (later, _) = split_prelude(&later);
    let want = Prelude { version_min: 2, version_max: 266, body_bytes: 4096 };
    assert_eq!(HelloReply::decode_prelude(later), Ok(want));
}

#[test]
fn frame() {
    check(frames(), |f| f.encode().to_vec(), |b| Frame::decode(b.try_into().unwrap()));
}

#[test]
fn control() {
    let decode = |bytes: &[u8]| {
        let (length, body) = bytes.split_first_chunk().unwrap();
        assert_eq!(Control::decode_length(*length, MAX_CONTROL_BYTES), Ok(body.len()));
        Control::decode_body(body)
    };
    check(controls(), |c| c.encode(MAX_CONTROL_BYTES).unwrap(), decode);
}

#[test]
fn descriptor() {
    check(
        descriptors(),
        |d| codec::encode("descriptor", d, MAX_HELLO_BYTES).unwrap(),
        |b| codec::decode("descriptor", b, MAX_HELLO_BYTES),
    );
}

#[test]
fn transport_key() {
    check(
        vec![row("tcp", tcp_key(), TCP_KEY)],
        |k| codec::encode("transport key", k, MAX_HELLO_BYTES).unwrap(),
        |b| codec::decode("transport key", b, MAX_HELLO_BYTES),
    );
}

#[test]
fn segment_token() {
    assert_eq!(token().to_token().unwrap(), TOKEN);
    assert_eq!(token().to_string(), TOKEN);
    assert_eq!(TOKEN.parse(), Ok(token()));
    assert_eq!(format!("  {TOKEN}\n").parse(), Ok(token()), "white space around a token is no part of it");
}

#[test]
fn list_table() {
    let bytes = unhex(TABLE);
    let found: Vec<Piece> =
        bytes.chunks_exact(PIECE_BYTES).map(|entry| Piece::from_bytes(entry.try_into().unwrap())).collect();
    assert_eq!(found, table());
    assert_eq!(table().map(Piece::to_bytes).concat(), bytes);
    let values: Vec<_> = found.iter().map(|piece| (piece.offset(), piece.length())).collect();
    assert_eq!(values, [(0, 1), (511, 512), (1_048_064, 512)]);
    assert_eq!(check_pieces(&found, 1 << 20, 1025, true), Ok(()));
}

/// The numbers of refusal codes and statuses, one by one: each is somebody's `match` at the other side.
#[test]
fn numbers() {
    let codes = [
        RefusalCode::UnknownSegment,
        RefusalCode::QueueFull,
        RefusalCode::ShuttingDown,
        RefusalCode::Unsupported,
        RefusalCode::OverLimit,
    ];
    for (number, code) in (0u32..).zip(codes) {
        let bytes = codec::encode("code", &code, 4).unwrap();
        assert_eq!(bytes, number.to_le_bytes(), "{code:?}");
    }
    let statuses = [
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
    ];
    for (number, status) in (0u16..).zip(statuses) {
        let bytes = Frame { op: FrameOp::ReadDone, status, ..BLANK }.encode();
        assert_eq!(bytes[4..6], number.to_le_bytes(), "{status:?}");
        assert_eq!(Frame::decode(&bytes).map(|f| f.status), Ok(status));
    }
}

/// The examples in `docs/protocol.md` are these vectors: each block whose lines begin with pairs of hex digits.
#[test]
fn the_document_shows_these_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
    let document = std::fs::read_to_string(path).unwrap();
    let pair = |word: &&str| word.len() == 2 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let hex = |line: &str| line.split(' ').take_while(pair).collect::<String>();
    let blocks = document.split("```text").skip(1).filter_map(|rest| rest.split("```").next());
    let shown: Vec<Vec<u8>> = blocks
        .map(|block| unhex(&block.lines().map(hex).collect::<String>()))
        .filter(|bytes| !bytes.is_empty())
        .collect();
    let bytes = |hex| unhex(hex);
    let named = |name| controls().into_iter().find(|row| row.name == name).map(|row| bytes(row.hex)).unwrap();
    let list = frames().into_iter().find(|row| row.name == "write_list").unwrap().hex;
    let list = [bytes(list), bytes(TABLE)].concat();
    let notify = frames().into_iter().find(|row| row.name == "notify").unwrap().hex;
    let notify = [bytes(notify), bytes(NOTIFICATION)].concat();
    assert_eq!(shown, [bytes(hellos()[0].hex), named("open"), list, notify, bytes(descriptors()[0].hex)]);
}

/// Writes the first inputs of the fuzz targets: the vectors above, one a file.
#[test]
fn write_fuzz_seeds() {
    // Writes into the repository, so only when it is asked to: after a vector was added.
    if std::env::var_os("ORBIT_TE_WRITE_SEEDS").is_none() {
        return;
    }
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let write = |target: &str, name: &str, bytes: Vec<u8>| {
        let folder = seeds.join(target);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), bytes).unwrap();
    };
    for row in frames() {
        write("frame", row.name, unhex(row.hex));
    }
    for row in hellos() {
        write("hello", row.name, unhex(row.hex));
        write("negotiate", row.name, unhex(row.hex));
    }
    for row in replies() {
        write("hello_reply", row.name, unhex(row.hex));
    }
    for row in controls() {
        write("control", row.name, unhex(row.hex));
    }
    for row in descriptors() {
        write("descriptor", row.name, unhex(row.hex));
    }
    // Before a table stand what it is checked against: the region's bytes, the request's length, and whether it is a write.
    for (name, write_list, length) in [("write", 1u8, 1025u64), ("read", 0, 1025), ("lying", 1, 1026)] {
        let ahead = [&(1u64 << 20).to_le_bytes()[..], &length.to_le_bytes(), &[write_list]].concat();
        write("pieces", name, [ahead, unhex(TABLE)].concat());
    }
    write("notification", "step", unhex(NOTIFICATION));
    write("transport_key", "tcp", unhex(TCP_KEY));
    write("token", "token", TOKEN.into());
}
