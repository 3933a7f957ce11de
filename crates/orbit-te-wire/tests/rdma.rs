//! What two sides with RDMA devices say to each other: literal bytes, round trips, damage, limits, codes.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_wire::rdma::*;
use orbit_te_wire::{Generation, Incarnation, RegionId, WireError};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn stamp(incarnation: u64, attempt: u64) -> Stamp {
    Stamp { incarnation: Incarnation(incarnation), attempt }
}

fn message(body: Body) -> Message {
    Message::new(3, stamp(1, 2), stamp(4, 5), body)
}

fn gid(index: u16) -> Gid {
    Gid { index, bytes: [index as u8; 16], kind: GidKind::RoceV2 }
}

fn rail(number: u8) -> Rail {
    Rail {
        number,
        device: "rxe_a0".into(),
        guid: 7,
        port: 1,
        layer: LinkLayer::Ethernet,
        lid: 0,
        grh_required: false,
        gids: vec![gid(1)],
        mtu: Mtu::B1024,
        speed: 1,
        width: 2,
        p_key: 0xffff,
        reads_served: 16,
        reads_asked: 8,
        numa: Some(1),
    }
}

fn side(rails: Vec<Rail>) -> Side {
    let limits = SideLimits {
        send_depth: 128,
        receive_depth: 64,
        read_depth: 16,
        inline_bytes: 64,
        message_bytes: 1 << 20,
    };
    Side { features: Features::WRITE_WITH_IMM, limits, rails }
}

fn array(rail: u8, width: usize) -> QueueArray {
    QueueArray { rail, queues: vec![Queue { number: 17, psn: 1000 }; width] }
}

fn lane(offered: u8, rail: u8) -> Lane {
    Lane { offered, offered_gid: 1, answered_gid: 1, array: array(rail, 1) }
}

fn offer(rails: Vec<Rail>, arrays: Vec<QueueArray>) -> Body {
    Body::Offer(Offer { side: side(rails), arrays })
}

fn answer(rails: Vec<Rail>, lanes: Vec<Lane>) -> Body {
    Body::Answer(Answer { side: side(rails), lanes })
}

fn key_set(length: u64, rails: Vec<RailKeys>) -> KeySet {
    KeySet { length, access: 3, expires_ns: 7, rails }
}

fn keys(length: u64, base: u64, part_bytes: u64, count: usize) -> KeySet {
    key_set(length, vec![RailKeys { rail: 0, base, part_bytes, rkeys: vec![9; count] }])
}

const HEAD: &str = "0100 0300 0100000000000000 0200000000000000 0400000000000000 0500000000000000";

#[test]
fn messages_are_these_bytes() {
    let check = |body: Body, hex: &str| {
        let (message, bytes) = (message(body), unhex(&format!("{HEAD} {hex}")));
        assert_eq!(message.encode().unwrap(), bytes, "{message:?}");
        assert_eq!(Message::decode(&bytes), Ok(message));
    };
    let rail_hex = "00 0600000000000000 7278655f6130 0700000000000000 01 01000000 0000 00 \
                    0100000000000000 0100 01010101010101010101010101010101 02000000 02000000 0100 02 ffff 10 08 01 0100";
    let side_hex = format!("01000000 80000000 40000000 10 40000000 00001000 0100000000000000 {rail_hex}");
    let queues_hex = "00 0100000000000000 11000000 e8030000";
    check(
        offer(vec![rail(0)], vec![array(0, 1)]),
        &format!("00000000 {side_hex} 0100000000000000 {queues_hex}"),
    );
    check(
        answer(vec![rail(0)], vec![lane(2, 0)]),
        &format!("01000000 {side_hex} 0100000000000000 02 0100 0100 {queues_hex}"),
    );
    check(Body::Ready, "02000000");
    check(
        Body::Close { code: CloseCode::Gone, words: "bye".into() },
        "03000000 0300 0300000000000000 627965",
    );
    check(Body::Rails(side(vec![rail(0)])), &format!("04000000 {side_hex}"));
    let (region, generation) = (RegionId(1), Generation(2));
    check(
        Body::KeysWanted { request: 6, region, generation, key: 3 },
        "05000000 06000000 0100000000000000 0200000000000000 0300000000000000",
    );
    check(
        Body::Keys { request: 6, keys: keys(10, 4096, 8, 2) },
        "06000000 06000000 0a00000000000000 03000000 0700000000000000 0100000000000000 00 0010000000000000 0800000000000000 0200000000000000 \
         09000000 09000000",
    );
    check(Body::KeysRefused { request: 6, code: KeyRefusal::GrantEnded }, "07000000 06000000 0400");
    check(
        Body::Revoked { request: 6, region, generation, key: Some(3) },
        "08000000 06000000 0100000000000000 0200000000000000 01 0300000000000000",
    );
    check(
        Body::Revoked { request: 6, region, generation, key: None },
        "08000000 06000000 0100000000000000 0200000000000000 00",
    );
    check(Body::LetGo { request: 6 }, "09000000 06000000");
    check(Body::FenceWanted { request: 6 }, "0a000000 06000000");
    check(Body::Fenced { request: 6 }, "0b000000 06000000");
}

#[test]
fn an_address_and_a_region_key_are_these_bytes() {
    let address =
        Address { version: 1, incarnation: Incarnation(5), features: Features::MEMORY_WINDOWS, rails: 2 };
    let bytes = unhex("0100 0500000000000000 02000000 02");
    assert_eq!(address.encode().unwrap(), bytes);
    assert_eq!(Address::decode(&bytes), Ok(address));
    assert!(Address { rails: 17, ..address }.encode().is_err());

    let key = RegionKey::new(3, None);
    let bytes = unhex("0100 0300000000000000 00");
    assert_eq!(key.encode().unwrap(), bytes);
    assert_eq!(RegionKey::decode(&bytes), Ok(key));
    let whole = |rails: u8| {
        let one = |rail| RailKeys { rail, base: 0, part_bytes: 64, rkeys: vec![1] };
        RegionKey::new(3, Some(key_set(64, (0..rails).map(one).collect())))
    };
    let bytes = whole(16).encode().unwrap();
    assert_eq!(RegionKey::decode(&bytes), Ok(whole(16)), "a key on every rail has room in a descriptor");
    let large = RegionKey::new(3, Some(keys(512, 0, 1, 512)));
    assert!(matches!(large.encode(), Err(WireError::TooLong { .. })), "these have to be asked for");
}

#[test]
fn another_version_is_refused_before_all_else() {
    for version in [0u16, 2, u16::MAX] {
        let why = Err(WireError::Unknown { what: "version of the RDMA messages", value: version.into() });
        let bytes = version.to_le_bytes();
        assert_eq!(Message::decode(&bytes).map(drop), why);
        assert_eq!(Address::decode(&bytes).map(drop), why);
        assert_eq!(RegionKey::decode(&bytes).map(drop), why);
        assert_eq!(Message { version, ..message(Body::Ready) }.encode().map(drop), why);
    }
    assert!(matches!(Message::decode(&[]), Err(WireError::Truncated { .. })));
    assert!(matches!(Message::decode(&[1]), Err(WireError::Truncated { .. })));
}

/// Encoding refuses what decoding would refuse, so that a mistake shows on the side that made it.
#[test]
fn limits() {
    let check = |body: Body, want: Option<&str>| {
        let message = message(body);
        let encoded = message.encode().map(drop).map_err(|why| why.to_string());
        let bytes = orbit_te_wire::codec::encode("test", &message, 1 << 20).unwrap();
        assert_eq!(Message::decode(&bytes).is_ok(), want.is_none(), "{want:?}");
        match want {
            None => assert_eq!(encoded, Ok(())),
            Some(want) => {
                let why = encoded.unwrap_err();
                assert!(why.contains(want), "{why} / {want}");
            }
        }
    };
    let rails = |count: u8| (0..count).map(rail).collect::<Vec<_>>();
    let full_rail =
        |number| Rail { device: "d".repeat(64), gids: (0..16).map(gid).collect(), ..rail(number) };
    let full: Vec<Rail> = (0..16).map(full_rail).collect();
    check(offer(full.clone(), (0..16).map(|rail| array(rail, 64)).collect()), None);
    check(answer(full, (0..16).map(|rail| lane(rail, rail)).collect()), None);
    check(offer(rails(1), vec![]), Some("an offer has no QPs"));
    check(offer(rails(1), vec![array(0, 0)]), Some("an array has no QP"));
    check(offer(rails(1), vec![array(0, 65)]), Some("65 QPs of an array"));
    check(offer(rails(1), vec![array(1, 1)]), Some("a rail that it does not name"));
    check(offer(rails(1), vec![array(16, 1)]), Some("a rail that can't be"));
    check(offer(rails(1), vec![array(0, 1), array(0, 1)]), Some("two arrays of an offer are of one rail"));
    let wide = |number, psn| QueueArray { rail: 0, queues: vec![Queue { number, psn }] };
    check(offer(rails(1), vec![wide(MAX_24_BITS, MAX_24_BITS)]), None);
    check(offer(rails(1), vec![wide(1 << 24, 0)]), Some("24 bits"));
    check(offer(rails(1), vec![wide(0, 1 << 24)]), Some("24 bits"));
    check(answer(rails(1), vec![]), Some("an answer has no lanes"));
    check(answer(rails(1), vec![lane(0, 1)]), Some("a rail that it does not name"));
    check(answer(rails(1), vec![Lane { answered_gid: 9, ..lane(0, 0) }]), Some("a GID that its rail"));
    check(answer(rails(2), vec![lane(0, 0), lane(0, 1)]), Some("one rail of the offer"));
    check(answer(rails(2), vec![lane(0, 0), lane(1, 0)]), Some("two lanes have one rail"));
    check(Body::Rails(side(vec![])), None);
    check(Body::Rails(side(vec![rail(16)])), Some("number of a rail 16"));
    check(Body::Rails(side(vec![rail(1), rail(1)])), Some("two rails have one number"));
    let one = |change: fn(&mut Rail)| {
        let mut rail = rail(0);
        change(&mut rail);
        Body::Rails(side(vec![rail]))
    };
    check(one(|r| r.device = "d".repeat(64)), None);
    check(one(|r| r.device = "d".repeat(65)), Some("device name of 65 bytes"));
    check(one(|r| r.device = String::new()), Some("no name"));
    check(one(|r| r.port = 0), Some("port is zero"));
    check(one(|r| r.gids = vec![]), Some("no GID"));
    check(one(|r| r.gids = (0..17).map(gid).collect()), Some("17 GIDs"));
    check(one(|r| r.gids = vec![gid(3), gid(3)]), Some("one index"));
    let limited = |change: fn(&mut SideLimits)| {
        let mut side = side(vec![rail(0)]);
        change(&mut side.limits);
        Body::Rails(side)
    };
    check(limited(|l| l.send_depth = 0), Some("work requests on a QP is zero"));
    check(limited(|l| l.message_bytes = 0), Some("bytes in a work request is zero"));
    let closed = |bytes| Body::Close { code: CloseCode::Gone, words: "w".repeat(bytes) };
    check(closed(512), None);
    check(closed(513), Some("words of a close of 513 bytes"));
    let given = |keys| Body::Keys { request: 1, keys };
    check(given(keys(512, 0, 1, 512)), None);
    check(given(keys(513, 0, 1, 513)), Some("513 keys of a rail"));
    check(given(keys(u64::MAX, 0, u64::MAX, 1)), None);
    check(given(keys(u64::MAX, 1, u64::MAX, 1)), Some("overflows"));
    check(given(keys(0, 0, 1, 0)), Some("length zero"));
    check(given(keys(1, 0, 0, 1)), Some("reaches no bytes"));
    check(given(keys(9, 0, 8, 1)), Some("not as many as its parts"));
    check(given(keys(8, 0, 8, 2)), Some("not as many as its parts"));
    let twice = key_set(8, [keys(8, 0, 8, 1).rails, keys(8, 0, 8, 1).rails].concat());
    check(given(twice), Some("of one rail"));
    let many = |rail: u8| RailKeys { rail, base: 0, part_bytes: 1, rkeys: vec![1; 512] };
    check(given(key_set(512, (0..16).map(many).collect())), None);
}

#[test]
fn channels_are_pairs_of_rails() {
    for (lower, higher) in (0..16).flat_map(|lower| (0..16).map(move |higher| (lower, higher))) {
        let number = channel(lower, higher).unwrap();
        assert_eq!(rails_of(number), Some((lower, higher)));
        assert!(Message { channel: number, ..message(Body::Ready) }.encode().is_ok());
    }
    assert_eq!((channel(16, 0), channel(0, 16), rails_of(0), rails_of(257)), (None, None, None, None));
    assert!(Message { channel: 257, ..message(Body::Ready) }.encode().is_err());
    assert!(Message { channel: 0, ..message(Body::Ready) }.encode().is_ok());
}

#[test]
fn codes_are_stable_and_in_words() {
    let check = |all: Vec<(u16, String)>, back: fn(u16) -> u16| {
        for (at, (number, words)) in all.iter().enumerate() {
            assert_eq!(usize::from(*number), at + 1, "{words}");
            assert_eq!(back(*number), *number);
            assert!(words.contains("; "), "a remedy: {words}");
        }
        assert_eq!(back(9999), 9999, "an unknown number is kept");
    };
    check(CloseCode::ALL.iter().map(|c| (c.number(), c.to_string())).collect(), |n| {
        CloseCode::from(n).number()
    });
    check(KeyRefusal::ALL.iter().map(|c| (c.number(), c.to_string())).collect(), |n| {
        KeyRefusal::from(n).number()
    });
    assert_eq!(CloseCode::from(9999), CloseCode::Other(9999));
    assert!(CloseCode::Other(9999).to_string().contains("(9999)"));
    assert!(CloseCode::Gone.may_pass() && !CloseCode::Version.may_pass() && !CloseCode::Other(1).may_pass());
}

#[test]
fn a_key_is_found_by_one_division() {
    let keys = RailKeys { rail: 0, base: 1 << 20, part_bytes: 10, rkeys: vec![70, 71, 72] };
    let check = |offset, want| assert_eq!(keys.at(offset, 25), want, "{offset}");
    check(0, Some((70, 10)));
    check(9, Some((70, 1)));
    check(10, Some((71, 10)));
    check(24, Some((72, 1)));
    check(25, None);
    check(u64::MAX, None);
}

#[test]
fn mtus_have_the_numbers_of_verbs() {
    for (at, bytes) in [256, 512, 1024, 2048, 4096].into_iter().enumerate() {
        let mtu = Mtu::ALL[at];
        assert_eq!((mtu.bytes(), mtu.number()), (bytes, at as u32 + 1));
        assert_eq!(Mtu::from_number(mtu.number()), Some(mtu));
    }
    assert_eq!((Mtu::from_number(0), Mtu::from_number(6)), (None, None));
}

fn any_gids() -> impl Strategy<Value = Vec<Gid>> {
    let kind = prop_oneof![Just(GidKind::InfiniBand), Just(GidKind::RoceV1), Just(GidKind::RoceV2)];
    vec((any::<[u8; 16]>(), kind), 1..=MAX_GIDS).prop_map(|gids| {
        let one = |(at, (bytes, kind))| Gid { index: at as u16 * 3, bytes, kind };
        gids.into_iter().enumerate().map(one).collect()
    })
}

fn any_rail(number: u8) -> impl Strategy<Value = Rail> {
    let layer = prop_oneof![Just(LinkLayer::InfiniBand), Just(LinkLayer::Ethernet)];
    let numbers = any::<(u64, u16, bool, u16, u8, u16, u8, u8)>();
    ("[a-z0-9_]{1,20}", 1..=u8::MAX, layer, any_gids(), 0usize..5, numbers, option::of(any::<u16>()))
        .prop_map(move |(device, port, layer, gids, mtu, numbers, numa)| {
            let (guid, lid, grh_required, speed, width, p_key, reads_served, reads_asked) = numbers;
            let mtu = Mtu::ALL[mtu];
            Rail {
                number,
                device,
                guid,
                port,
                layer,
                lid,
                grh_required,
                gids,
                mtu,
                speed,
                width,
                p_key,
                reads_served,
                reads_asked,
                numa,
            }
        })
}

fn any_side() -> impl Strategy<Value = Side> {
    let limits = (1..=u32::MAX, any::<u32>(), any::<u8>(), any::<u32>(), 1..=u32::MAX).prop_map(
        |(send_depth, receive_depth, read_depth, inline_bytes, message_bytes)| SideLimits {
            send_depth,
            receive_depth,
            read_depth,
            inline_bytes,
            message_bytes,
        },
    );
    let rails = (1..=4u8).prop_flat_map(|count| (0..count).map(any_rail).collect::<Vec<_>>());
    (any::<u32>(), limits, rails).prop_map(|(features, limits, rails)| Side {
        features: Features::from_bits_retain(features),
        limits,
        rails,
    })
}

fn any_queues() -> impl Strategy<Value = Vec<Queue>> {
    let queue = (0..=MAX_24_BITS, 0..=MAX_24_BITS).prop_map(|(number, psn)| Queue { number, psn });
    vec(queue, 1..=MAX_WIDTH)
}

fn any_keys() -> impl Strategy<Value = KeySet> {
    (1..=MAX_PARTS as u64, 1..1u64 << 30, 0..1u64 << 40, any::<u32>(), 1..=16u8).prop_map(
        |(parts, part_bytes, base, rkey, rails)| {
            let one = |rail| RailKeys { rail, base, part_bytes, rkeys: vec![rkey; parts as usize] };
            key_set(parts * part_bytes, (0..rails).map(one).collect())
        },
    )
}

fn any_body() -> impl Strategy<Value = Body> {
    let ids = any::<(u32, u64, u64, u64)>();
    prop_oneof![
        (any_side(), any_queues()).prop_map(|(side, queues)| {
            let arrays =
                side.rails.iter().map(|r| QueueArray { rail: r.number, queues: queues.clone() }).collect();
            Body::Offer(Offer { side, arrays })
        }),
        (any_side(), any_queues(), any::<u16>()).prop_map(|(side, queues, offered_gid)| {
            let one = |rail: &Rail| Lane {
                offered: 15 - rail.number,
                offered_gid,
                answered_gid: rail.gids[0].index,
                array: QueueArray { rail: rail.number, queues: queues.clone() },
            };
            let lanes = side.rails.iter().map(one).collect();
            Body::Answer(Answer { side, lanes })
        }),
        Just(Body::Ready),
        (any::<u16>(), "\\PC{0,100}")
            .prop_map(|(code, words)| Body::Close { code: CloseCode::from(code), words }),
        any_side().prop_map(Body::Rails),
        ids.prop_map(|(request, region, generation, key)| Body::KeysWanted {
            request,
            region: RegionId(region),
            generation: Generation(generation),
            key
        }),
        (any::<u32>(), any_keys()).prop_map(|(request, keys)| Body::Keys { request, keys }),
        any::<(u32, u16)>()
            .prop_map(|(request, code)| Body::KeysRefused { request, code: KeyRefusal::from(code) }),
        (ids, any::<bool>()).prop_map(|((request, region, generation, key), some)| Body::Revoked {
            request,
            region: RegionId(region),
            generation: Generation(generation),
            key: some.then_some(key)
        }),
        any::<u32>().prop_map(|request| Body::LetGo { request }),
        any::<u32>().prop_map(|request| Body::FenceWanted { request }),
        any::<u32>().prop_map(|request| Body::Fenced { request }),
    ]
}

proptest! {
    #[test]
    fn messages_round_trip(
        body in any_body(), channel in 0..=256u16, stamps: (u64, u64, u64, u64), cut: prop::sample::Index
    ) {
        let message = Message::new(channel, stamp(stamps.0, stamps.1), stamp(stamps.2, stamps.3), body);
        let bytes = message.encode().unwrap();
        prop_assert!(bytes.len() <= MAX_BYTES);
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
        prop_assert!(Message::decode(&bytes[..cut.index(bytes.len())]).is_err(), "cut");
        prop_assert!(Message::decode(&[bytes, vec![0]].concat()).is_err(), "a byte is left over");
    }

    #[test]
    fn a_damaged_message_is_refused_or_has_one_spelling(
        body in any_body(), at: prop::sample::Index, change in 1u8..
    ) {
        let mut bytes = message(body).encode().unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode().unwrap(), bytes);
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(tail in vec(any::<u8>(), 0..200), kind in 0u32..12) {
        let framed = [unhex(HEAD), kind.to_le_bytes().to_vec(), tail.clone()].concat();
        for bytes in [tail.clone(), framed, [vec![1, 0], tail].concat()] {
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(message.encode().unwrap(), bytes.clone());
            }
            if let Ok(address) = Address::decode(&bytes) {
                prop_assert_eq!(address.encode().unwrap(), bytes.clone());
            }
            if let Ok(key) = RegionKey::decode(&bytes) {
                prop_assert_eq!(key.encode().unwrap(), bytes);
            }
        }
    }
}
