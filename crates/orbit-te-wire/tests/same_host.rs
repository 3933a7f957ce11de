//! What two processes of one host say to each other, and how they learn of each other's addresses: literal bytes, round trips, damage, limits.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_wire::limits::MAX_CONTROL_BYTES;
use orbit_te_wire::same_host::*;
use orbit_te_wire::{Control, Generation, RegionId, SessionId, Status, TransportAddress, WireError};
use proptest::collection::vec;
use proptest::prelude::*;

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn check(message: SameHost, hex: &str) {
    let bytes = unhex(hex);
    assert_eq!(message.encode().unwrap(), bytes, "{message:?}");
    assert_eq!(SameHost::decode(&bytes), Ok(message));
}

/// Worked out by hand from the tables in `docs/protocol.md`.
#[test]
fn messages_are_these_bytes() {
    check(
        SameHost::Knock { version: 1, session: SessionId(1), ask: 2, way: Way::Kernel },
        "00000000 0100 01000000000000000000000000000000 02000000000000000000000000000000 01000000",
    );
    check(
        SameHost::Welcome { answer: 3, gates: 512, proof_address: 0x7f00_0000_1000 },
        "01000000 03000000000000000000000000000000 00020000 00100000007f0000",
    );
    check(SameHost::Farewell { reason: "done".into() }, "02000000 0400000000000000 646f6e65");
    check(
        SameHost::Enter {
            request: 7,
            region: RegionId(1),
            generation: Generation(2),
            key: 0x1122_3344_5566_7788,
        },
        "03000000 07000000 0100000000000000 0200000000000000 8877665544332211",
    );
    check(
        SameHost::Entered { request: 7, gate: 3, begin: 4096, length: 8192, access: 7, expires_ns: 0 },
        "04000000 07000000 03000000 0010000000000000 0020000000000000 07000000 0000000000000000",
    );
    check(
        SameHost::Refused { request: 7, why: NoEntry::admission(Status::GrantEnded) },
        "05000000 07000000 00000000 0a00",
    );
    check(SameHost::Refused { request: 7, why: NoEntry::NotShareable }, "05000000 07000000 01000000");
    check(SameHost::Refused { request: 7, why: NoEntry::PartOfBuffer }, "05000000 07000000 02000000");
    check(SameHost::Refused { request: 7, why: NoEntry::Full }, "05000000 07000000 03000000");
    check(SameHost::Refused { request: 7, why: NoEntry::System(24) }, "05000000 07000000 04000000 18000000");
    check(SameHost::Left { gate: 3 }, "06000000 03000000");
}

#[test]
fn an_address_is_these_bytes() {
    let address = SameHostAddress {
        places: vec![Place::Abstract(b"ot".to_vec()), Place::Path(b"/a".to_vec())],
        session: SessionId(1),
        ask: 2,
        answer: 3,
    };
    let bytes = unhex(
        "0200000000000000 00000000 0200000000000000 6f74 01000000 0200000000000000 2f61 \
         01000000000000000000000000000000 02000000000000000000000000000000 03000000000000000000000000000000",
    );
    assert_eq!(address.encode().unwrap(), bytes);
    assert_eq!(SameHostAddress::decode(&bytes), Ok(address));
}

#[test]
fn addresses_are_asked_for_by_these_bytes() {
    let check = |message: Control, hex: &str| {
        let bytes = unhex(hex);
        assert_eq!(message.encode(MAX_CONTROL_BYTES).unwrap(), bytes);
        assert_eq!(Control::decode_body(&bytes[4..]), Ok(message));
    };
    check(Control::Addresses { request: 5 }, "0c000000 07000000 0500000000000000");
    let shm = TransportAddress { transport: "shm".into(), bytes: vec![1, 2] };
    check(
        Control::AddressesAre { request: 5, addresses: vec![shm] },
        "29000000 08000000 0500000000000000 0100000000000000 0300000000000000 73686d 0200000000000000 0102",
    );
}

#[test]
fn limits() {
    let addresses = |count, name, bytes| Control::AddressesAre {
        request: 1,
        addresses: vec![TransportAddress { transport: "t".repeat(name), bytes: vec![0; bytes] }; count],
    };
    let check = |message: Control, good: bool| {
        assert_eq!(message.encode(MAX_CONTROL_BYTES).is_ok(), good, "encoding");
        let body = orbit_te_wire::codec::encode("test", &message, MAX_CONTROL_BYTES).unwrap();
        assert_eq!(Control::decode_body(&body).is_ok(), good, "decoding");
    };
    check(addresses(16, 64, 4096), true);
    check(addresses(17, 1, 1), false);
    check(addresses(1, 65, 1), false);
    check(addresses(1, 1, 4097), false);
    let farewell = |bytes: usize| SameHost::Farewell { reason: "r".repeat(bytes) };
    assert!(farewell(MAX_BYTES - 12).encode().is_ok());
    assert!(matches!(farewell(MAX_BYTES - 11).encode(), Err(WireError::TooLong { .. })));
    let places = |count| SameHostAddress {
        places: vec![Place::Path(vec![1]); count],
        session: SessionId(1),
        ask: 0,
        answer: 0,
    };
    let decoded = |count| SameHostAddress::decode(&places(count).encode().unwrap());
    assert!(decoded(MAX_PLACES).is_ok() && decoded(MAX_PLACES + 1).is_err());
}

fn message() -> impl Strategy<Value = SameHost> {
    let no_entry = prop_oneof![
        any::<u16>().prop_map(NoEntry::Admission),
        Just(NoEntry::NotShareable),
        Just(NoEntry::PartOfBuffer),
        Just(NoEntry::Full),
        any::<i32>().prop_map(NoEntry::System),
    ];
    let way = prop_oneof![Just(Way::Mapping), Just(Way::Kernel)];
    prop_oneof![
        (any::<u16>(), any::<u128>(), any::<u128>(), way).prop_map(|(version, session, ask, way)| {
            SameHost::Knock { version, session: SessionId(session), ask, way }
        }),
        (any::<u128>(), any::<u32>(), any::<u64>())
            .prop_map(|(answer, gates, proof_address)| SameHost::Welcome { answer, gates, proof_address }),
        "\\PC{0,200}".prop_map(|reason| SameHost::Farewell { reason }),
        any::<(u32, u64, u64, u64)>().prop_map(|(request, region, generation, key)| SameHost::Enter {
            request,
            region: RegionId(region),
            generation: Generation(generation),
            key,
        }),
        any::<(u32, u32, u64, u64, u32, u64)>().prop_map(
            |(request, gate, begin, length, access, expires_ns)| SameHost::Entered {
                request,
                gate,
                begin,
                length,
                access,
                expires_ns,
            }
        ),
        (any::<u32>(), no_entry).prop_map(|(request, why)| SameHost::Refused { request, why }),
        any::<u32>().prop_map(|gate| SameHost::Left { gate }),
    ]
}

proptest! {
    #[test]
    fn messages_round_trip(value in message(), cut: prop::sample::Index) {
        let bytes = value.encode().unwrap();
        prop_assert!(bytes.len() <= MAX_BYTES);
        prop_assert_eq!(SameHost::decode(&bytes), Ok(value));
        prop_assert!(SameHost::decode(&bytes[..cut.index(bytes.len())]).is_err(), "cut");
        let longer = [bytes, vec![0]].concat();
        prop_assert!(SameHost::decode(&longer).is_err(), "a byte is left over");
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(message) = SameHost::decode(&bytes) {
            prop_assert_eq!(message.encode().unwrap(), bytes.clone(), "one spelling");
        }
        if let Ok(address) = SameHostAddress::decode(&bytes) {
            prop_assert_eq!(address.encode().unwrap(), bytes, "one spelling");
        }
    }
}
