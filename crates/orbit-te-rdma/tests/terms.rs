//! What offers and answers hold: two sides come to the same terms, and what does not fit is refused in words.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod planning;

use orbit_te_rdma::attributes::Quality;
use orbit_te_rdma::handshake::*;
use orbit_te_rdma::rails::{Across, Preferences};
use orbit_te_wire::Incarnation;
use orbit_te_wire::rdma::*;
use planning::*;
use proptest::collection::vec;
use proptest::prelude::*;

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

fn arrays(side: &Side, width: u32) -> Vec<QueueArray> {
    let queues = |rail: &Rail| {
        (0..width).map(|at| Queue { number: 100 * u32::from(rail.number) + at, psn: at }).collect()
    };
    side.rails.iter().map(|rail| QueueArray { rail: rail.number, queues: queues(rail) }).collect()
}

const PLAIN: Preferences = Preferences { gid_index: None, numa: None, across: Across::WhereNoneIsNear };
const QUALITY: Quality = Quality { service_level: 0, traffic_class: 0, hop_limit: 64, flow_label: 0 };

fn terms(side: &Side) -> Terms<'_> {
    Terms { side, preferences: &PLAIN, quality: &QUALITY, failed_attempts: 0 }
}

/// From offer to answer and back, through the bytes of both.
fn agree_on(ours: &Terms<'_>, theirs: &Terms<'_>) -> Result<(Vec<Meeting>, Vec<Meeting>), Unfit> {
    let stamp = Stamp::none(Incarnation(1));
    let sent = |body: Body| {
        let message = Message::new(0, stamp, stamp, body);
        Message::decode(&message.encode().unwrap()).unwrap().body
    };
    let offered = arrays(ours.side, 3);
    let Body::Offer(offer) = sent(Body::Offer(offer(ours, offered.clone()))) else { unreachable!() };
    let there = judge_offer(theirs, &offer)?;
    let queues = there.iter().map(|m| m.theirs.queues.clone()).collect();
    let Body::Answer(answer) = sent(Body::Answer(answer(theirs, &there, queues).unwrap())) else {
        unreachable!()
    };
    Ok((judge_answer(ours, &offered, &answer)?, there))
}

#[test]
fn both_sides_come_to_the_same_terms() {
    let one = side(vec![rail(0, &["v2 fe80::1", "v2 10.0.0.1"]), rail(3, &["v2 10.1.0.1"])]);
    let two = side(vec![rail(5, &["v2 10.1.0.2"]), rail(6, &["v2 10.0.0.2"]), rail(7, &["v1 fe80::9"])]);
    let (here, there) = agree_on(&terms(&one), &terms(&two)).unwrap();
    let rails = |all: &[Meeting]| all.iter().map(|m| (m.ours, m.theirs.rail)).collect::<Vec<_>>();
    assert_eq!(rails(&there), [(5, 3), (6, 0)]);
    assert_eq!(rails(&here), [(3, 5), (0, 6)]);
    assert_eq!(here[1].path.grh.unwrap().sgid_index, 1);
    assert_eq!(here[1].path.grh.unwrap().dgid, two.rails[1].gids[0].bytes);
    assert_eq!(there[1].path.grh.unwrap().dgid, one.rails[0].gids[1].bytes);
}

#[test]
fn the_next_attempt_takes_the_next_gids() {
    let gids = ["v2 fe80::1", "v2 10.0.0.1"];
    let (one, two) = (side(vec![rail(0, &gids)]), side(vec![rail(0, &["v2 fe80::2", "v2 10.0.0.2"])]));
    let check = |failed_attempts, want: u16| {
        let theirs = Terms { failed_attempts, ..terms(&two) };
        let (here, there) = agree_on(&terms(&one), &theirs).unwrap();
        assert_eq!((here[0].gids.local.index, there[0].gids.local.index), (want, want));
    };
    check(0, 1);
    check(1, 0);
    check(2, 1);
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let check = |ours: Vec<Rail>, theirs: Vec<Rail>, code: CloseCode, want: &str| {
        let (ours, theirs) = (side(ours), side(theirs));
        let why = agree_on(&terms(&ours), &terms(&theirs)).unwrap_err();
        assert_eq!(why.code, code, "{why}");
        assert!(why.words.contains(want) && why.words.len() <= MAX_WORDS_BYTES, "{why}");
    };
    let v4 = || rail(0, &["v2 10.0.0.1"]);
    check(vec![v4()], vec![], CloseCode::NoCommonRail, "no rail at all");
    check(vec![v4()], vec![rail(1, &["v2 2001:db8::1"])], CloseCode::NoCommonGid, "rail 0 with 1: the GIDs");
    check(vec![v4()], vec![ib_rail(1, 3, &["ib fe80::1"])], CloseCode::NoCommonRail, "InfiniBand");
    let ib = |lid| ib_rail(0, lid, &["ib fe80::1"]);
    check(vec![ib(0)], vec![ib(3)], CloseCode::Mismatch, "no address");
    // One rail without an address does not keep the others from meeting.
    let (ours, theirs) =
        (side(vec![ib(0), Rail { number: 1, ..ib(4) }]), side(vec![ib(3), Rail { number: 1, ..ib(5) }]));
    assert_eq!(agree_on(&terms(&ours), &terms(&theirs)).unwrap().0.len(), 1);
    let many = |word: &str| (0..16).map(|n| rail(n, &[word])).collect::<Vec<_>>();
    check(many("v2 10.0.0.1"), many("v1 10.0.0.2"), CloseCode::NoCommonGid, "rail 0 with 0");
}

#[test]
fn an_answer_to_another_offer_is_refused() {
    let (one, two) =
        (side(vec![rail(0, &["v2 10.0.0.1", "v2 fe80::1"])]), side(vec![rail(1, &["v2 10.0.0.2"])]));
    let offered = arrays(&one, 2);
    let good = {
        let meetings = judge_offer(&terms(&two), &offer(&terms(&one), offered.clone())).unwrap();
        let queues = vec![offered[0].queues.clone()];
        assert!(answer(&terms(&two), &meetings, vec![]).is_err());
        assert!(answer(&terms(&two), &meetings, vec![vec![]]).is_err());
        answer(&terms(&two), &meetings, queues).unwrap()
    };
    let check = |change: fn(&mut Answer), want: Option<(CloseCode, &str)>| {
        let mut answer = good.clone();
        change(&mut answer);
        let judged = judge_answer(&terms(&one), &offered, &answer).map(drop);
        assert_eq!(judged.as_ref().err().map(|why| why.code), want.map(|(code, _)| code));
        let words = judged.err().map(|why| why.words).unwrap_or_default();
        assert!(words.contains(want.map_or("", |(_, words)| words)), "{words}");
    };
    check(|_| {}, None);
    check(|a| a.lanes.clear(), Some((CloseCode::Protocol, "no lanes")));
    check(|a| a.lanes[0].offered = 1, Some((CloseCode::Protocol, "not offered")));
    check(|a| a.lanes[0].array.rail = 4, Some((CloseCode::Protocol, "not offered")));
    check(|a| a.lanes[0].array.queues.truncate(1), Some((CloseCode::Protocol, "as many QPs")));
    check(|a| a.lanes[0].offered_gid = 1, Some((CloseCode::NoCommonGid, "can't meet")));
    check(|a| a.lanes[0].answered_gid = 9, Some((CloseCode::NoCommonGid, "can't meet")));
    check(
        |a| a.side.rails[0].gids = vec![gid(0, "v2 2001:db8::1")],
        Some((CloseCode::NoCommonGid, "in common")),
    );
}

proptest! {
    #[test]
    fn whatever_is_answered_is_taken(
        here in vec((0..3u8, 0..3u8, 0..5usize), 1..5), there in vec((0..3u8, 0..3u8, 0..5usize), 1..5), failed in 0..4usize
    ) {
        let side_of = |rails: &[(u8, u8, usize)], host: u8| {
            let rails = rails.iter().enumerate().map(|(at, (net, kind, mtu))| {
                let host = host + at as u8;
                let words = match kind {
                    0 => vec![format!("v2 10.0.{net}.{host}"), format!("v2 fe80::{host:x}")],
                    1 => vec![format!("v2 2001:db8:{net}::{host:x}")],
                    _ => vec![format!("v1 fe80::{host:x}"), format!("v2 10.0.{net}.{host}")],
                };
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                Rail { mtu: Mtu::ALL[*mtu], ..rail(at as u8, &words) }
            });
            side(rails.collect())
        };
        let (one, two) = (side_of(&here, 1), side_of(&there, 101));
        let theirs = Terms { failed_attempts: failed, ..terms(&two) };
        match agree_on(&terms(&one), &theirs) {
            Ok((ours, theirs)) => {
                prop_assert_eq!(ours.len(), theirs.len());
                for (o, t) in ours.iter().zip(&theirs) {
                    prop_assert_eq!((o.ours, o.theirs.rail), (t.theirs.rail, t.ours));
                    prop_assert_eq!((o.gids.local, o.gids.remote), (t.gids.remote, t.gids.local));
                    prop_assert_eq!((o.agreed.mtu, o.agreed.reads_asked), (t.agreed.mtu, t.agreed.reads_served));
                }
            }
            Err(why) => prop_assert!(matches!(why.code, CloseCode::NoCommonRail | CloseCode::NoCommonGid), "{}", why),
        }
    }
}
