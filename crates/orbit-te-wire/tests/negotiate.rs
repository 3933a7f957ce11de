//! What two sides agree on, row by row: versions, limits, features, the authentication slot.

use orbit_te_wire::hello::Prelude;
use orbit_te_wire::negotiate::{Terms, terms, version};
use orbit_te_wire::*;

fn prelude(version_min: u16, version_max: u16) -> Prelude {
    Prelude { version_min, version_max, body_bytes: 0 }
}

fn hello() -> Hello {
    Hello {
        role: Role::Control,
        peer: PeerId(1),
        incarnation: Incarnation(2),
        features: Features::OURS,
        limits: Limits::default(),
        auth: AuthSlot::default(),
    }
}

fn agree(hello: &Hello, ours: &Limits) -> Result<Terms, WireError> {
    terms(&prelude(1, 1), hello, ours)
}

#[test]
fn versions() {
    let check = |theirs: (u16, u16), want: Option<u16>| {
        let agreed = version(&prelude(theirs.0, theirs.1));
        assert_eq!(agreed.clone().ok(), want, "they speak {theirs:?}");
        if want.is_none() {
            let (theirs_min, theirs_max) = theirs;
            let why = WireError::VersionMismatch { ours_min: 1, ours_max: 1, theirs_min, theirs_max };
            assert_eq!(agreed, Err(why));
        }
    };
    check((1, 1), Some(1));
    check((0, 1), Some(1));
    check((1, 2), Some(1));
    check((0, u16::MAX), Some(1));
    check((0, 0), None);
    check((2, 2), None);
    check((2, u16::MAX), None);
}

#[test]
fn a_version_mismatch_names_both_sides() {
    let why = terms(&prelude(2, 5), &hello(), &Limits::default()).unwrap_err().to_string();
    assert!(why.contains("we speak 1 to 1, the peer speaks 2 to 5"), "{why}");
}

#[test]
fn each_limit_is_the_smaller_one() {
    let small = Limits {
        control_bytes: 1024,
        payload_bytes: 1,
        lane_requests: 1,
        session_lanes: 1,
        notification_bytes: 0,
    };
    let large = Limits::default();
    let theirs = |limits| Hello { limits, ..hello() };
    assert_eq!(agree(&theirs(small), &large).map(|t| t.limits), Ok(small), "theirs are smaller");
    assert_eq!(agree(&theirs(large), &small).map(|t| t.limits), Ok(small), "ours are smaller");
    assert_eq!(agree(&theirs(large), &large).map(|t| t.limits), Ok(large));
    let mixed = Limits { control_bytes: 2048, session_lanes: u32::MAX, ..large };
    let want = Limits { control_bytes: 2048, ..large };
    assert_eq!(agree(&theirs(mixed), &large).map(|t| t.limits), Ok(want));
}

#[test]
fn nothing_is_agreed_beyond_what_can_be_kept() {
    let boundless = Limits {
        control_bytes: u32::MAX,
        payload_bytes: u64::MAX,
        lane_requests: u32::MAX,
        session_lanes: u32::MAX,
        notification_bytes: u32::MAX,
    };
    let agreed = agree(&Hello { limits: boundless, ..hello() }, &boundless).map(|t| t.limits);
    assert_eq!(agreed, Ok(Limits::MOST));
}

#[test]
fn limits_too_small_to_work_with_are_refused_whoever_set_them() {
    let fine = Limits::default();
    let check = |limits: Limits, word: &str| {
        for (theirs, ours) in [(limits, fine), (fine, limits)] {
            let why = agree(&Hello { limits: theirs, ..hello() }, &ours).unwrap_err();
            assert!(matches!(why, WireError::Invalid { .. }), "{why:?}");
            assert!(why.to_string().contains(word), "{why}");
        }
    };
    check(Limits { control_bytes: 1023, ..fine }, "control-message limit is under 1024");
    check(Limits { payload_bytes: 0, ..fine }, "payload limit is zero");
    check(Limits { lane_requests: 0, ..fine }, "requests on a lane is zero");
    check(Limits { session_lanes: 0, ..fine }, "lanes in a session is zero");
}

#[test]
fn features_are_those_of_both() {
    let check = |theirs: u64, want: Features| {
        let hello = Hello { features: Features::from_bits_retain(theirs), ..hello() };
        assert_eq!(agree(&hello, &Limits::default()).map(|t| t.features), Ok(want), "{theirs:#x}");
    };
    check(0, Features::empty());
    check(1, Features::NOTIFICATIONS);
    check(2, Features::LANE_FENCE);
    check(3, Features::NOTIFICATIONS | Features::LANE_FENCE);
    check(7, Features::OURS);
    check(u64::MAX, Features::OURS);
    check(1 << 63, Features::empty());
}

#[test]
fn only_authentication_method_0_without_data_is_known() {
    let check = |method: u16, data: &[u8], want: Result<(), WireError>| {
        let hello = Hello { auth: AuthSlot { method, data: data.to_vec() }, ..hello() };
        assert_eq!(agree(&hello, &Limits::default()).map(drop), want);
    };
    let unknown = |value| Err(WireError::Unknown { what: "authentication method", value });
    check(0, &[], Ok(()));
    check(0, &[1], Err(WireError::Invalid { what: "authentication method 0 carries data" }));
    check(1, &[], unknown(1));
    check(u16::MAX, &[1, 2], unknown(65_535));
}

mod answers {
    //! What the asking side makes of an answer.

    use orbit_te_wire::negotiate::{self, Accepted, Terms};
    use orbit_te_wire::{
        AuthSlot, Features, Hello, HelloReply, Incarnation, Limits, PeerId, Role, SessionId, WireError,
    };

    const SESSION: SessionId = SessionId(9);

    fn lane() -> Hello {
        Hello {
            role: Role::Lane { session: SESSION, lane: 1 },
            peer: PeerId(1),
            incarnation: Incarnation(2),
            features: Features::OURS,
            limits: Limits { lane_requests: 16, ..Limits::default() },
            auth: AuthSlot::default(),
        }
    }

    #[derive(Clone)]
    struct Answer {
        version: u16,
        session: SessionId,
        features: Features,
        limits: Limits,
        auth: AuthSlot,
    }

    fn fitting() -> Answer {
        let hello = lane();
        Answer {
            version: 1,
            session: SESSION,
            features: hello.features,
            limits: hello.limits,
            auth: hello.auth,
        }
    }

    fn check(change: impl Fn(&mut Answer), want: Result<(), &'static str>) {
        let mut answer = fitting();
        change(&mut answer);
        let Answer { version, session, features, limits, auth } = answer;
        let (peer, incarnation) = (PeerId(3), Incarnation(4));
        let reply = HelloReply::Accepted { version, peer, incarnation, session, features, limits, auth };
        let prelude = negotiate_prelude();
        let got = negotiate::answer(&prelude, reply, &lane());
        let terms = Terms { version, features, limits };
        let want = match want {
            Ok(()) => Ok(Ok(Accepted { peer, incarnation, session, terms })),
            Err(what) => Err(WireError::Invalid { what }),
        };
        assert_eq!(got, want);
    }

    fn negotiate_prelude() -> orbit_te_wire::hello::Prelude {
        orbit_te_wire::hello::Prelude { version_min: 1, version_max: 7, body_bytes: 0 }
    }

    #[test]
    fn an_answer_keeps_to_what_was_offered() {
        check(|_| (), Ok(()));
        check(|a| a.features = Features::empty(), Ok(()));
        check(|a| a.limits.lane_requests = 1, Ok(()));
        check(|a| a.version = 2, Err("the answer chose a protocol version that was not offered"));
        check(|a| a.version = 0, Err("the answer chose a protocol version that was not offered"));
        let more = Features::from_bits_retain(1 << 40);
        check(|a| a.features = more, Err("the answer chose features that were not offered"));
        check(|a| a.limits.lane_requests = 17, Err("the answer chose limits over those that were offered"));
        let auth = AuthSlot { method: 1, data: Vec::new() };
        check(
            move |a| a.auth = auth.clone(),
            Err("the answer chose an authentication method that was not offered"),
        );
        check(|a| a.session = SessionId(8), Err("the answer to a lane names another session"));
    }

    #[test]
    fn a_refusal_keeps_its_words() {
        let reply = HelloReply::Refused { reason: "no".into() };
        assert_eq!(negotiate::answer(&negotiate_prelude(), reply, &lane()), Ok(Err("no".to_string())));
    }
}
