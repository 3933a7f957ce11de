//! Lanes cut by an intermediary in the middle of large writes, and the example with two processes.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te_memory::Access;
use orbit_te_tcp::TcpConfig;
use orbit_te_transport::{Event, Mismatch, OpErrorCode, OpKind, Verify};
use orbit_te_wire::Limits;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::initiator::Initiator;
use support::peer::SESSION;
use support::proxy::Proxy;
use support::target::Target;
use support::{pattern_bytes, watchdog};

const SOON: Duration = Duration::from_secs(20);
const PIECE: usize = 1 << 20;
const PIECES: usize = 24;

#[test]
fn the_example_runs() {
    let _dog = watchdog("the_example_runs", Duration::from_secs(300));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "orbit-te-tcp", "--example", "two_processes", "--", "8"]);
    // Flags of the build that this test belongs to (a sanitizer's) do not fit the one that it starts.
    for flags in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        command.env_remove(flags);
    }
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("verified: 8388608 bytes"), "{said}");
}

/// One of four lanes is cut: only ops with a part on it fail, and they are fenced; the others succeed; the lane comes back.
#[test]
fn one_lane_is_cut() {
    let _dog = watchdog("one_lane_is_cut", Duration::from_secs(90));
    let target = Target::local();
    let region = target.region(PIECE * PIECES, Access::SHARED, |_| 0);
    let proxy = Proxy::start(target.at);
    let mut initiator = Initiator::new(TcpConfig::default());
    let link = initiator.connect(target.me.peer, proxy.at, SESSION);
    initiator.poll_until("all lanes are up", SOON, |_| target.lanes() == 4);

    let locals: Vec<_> = (0..PIECES).map(|k| initiator.region(&pattern_bytes(k as u64, 0, PIECE))).collect();
    let write = |initiator: &mut Initiator, k: usize| {
        initiator.begin(OpKind::Write, link, &locals[k], &region, (k * PIECE) as u64)
    };
    let tokens: Vec<u64> = (0..PIECES).map(|k| write(&mut initiator, k)).collect();
    let pipe = proxy.pipes().remove(0);
    initiator.poll_until("bytes are under way", SOON, |_| pipe.forward.load(Ordering::Acquire) > 200_000);
    pipe.cut();
    let mut failed = Vec::new();
    for (k, token) in tokens.iter().enumerate() {
        let completion = initiator.wait(*token, SOON);
        match completion.result {
            Ok(()) => check_piece(&region, k),
            // Fenced: the other lanes asked the target, and it answered.
            Err(error) => {
                assert_eq!(error.code, OpErrorCode::LinkBroken, "op {k}");
                failed.push(k);
            }
        }
    }
    // A lane has at most its window and one piece more.
    assert!((1..=6).contains(&failed.len()), "failed: {failed:?}");
    let down = initiator.events.iter().any(|e| matches!(e, Event::LinkDown { .. }));
    assert!(!down, "one lane of four is not the link: {:?}", initiator.events);
    initiator.poll_until("the lane is back", SOON, |_| target.lanes() == 4);
    for k in failed {
        let token = write(&mut initiator, k);
        assert_eq!(initiator.wait(token, SOON).result, Ok(()), "op {k} again");
        check_piece(&region, k);
    }
    assert_eq!(region.leases(), 0);
}

fn check_piece(region: &orbit_te_memory::Region, k: usize) {
    let mut bytes = vec![0; PIECE];
    region.read_at((k * PIECE) as u64, &mut bytes).unwrap();
    assert!(bytes == pattern_bytes(k as u64, 0, PIECE), "the bytes of op {k} are wrong");
}

/// A lane is cut and can't come back: the others are asked for the fence all the same.
#[test]
fn one_lane_is_cut_for_good() {
    let _dog = watchdog("one_lane_is_cut_for_good", Duration::from_secs(90));
    for _ in 0..5 {
        let target = Target::local();
        let region = target.region(PIECE * 8, Access::SHARED, |_| 0);
        let proxy = Proxy::start(target.at);
        let mut initiator = Initiator::new(TcpConfig { lanes: 2, ..TcpConfig::default() });
        let link = initiator.connect(target.me.peer, proxy.at, SESSION);
        initiator.poll_until("all lanes are up", SOON, |_| target.lanes() == 2);
        let local = initiator.region(&pattern_bytes(1, 0, PIECE));
        let tokens: Vec<u64> =
            (0..8).map(|k| initiator.begin(OpKind::Write, link, &local, &region, k * PIECE as u64)).collect();
        let pipe = proxy.pipes().remove(0);
        initiator.poll_until("bytes are under way", SOON, |_| pipe.forward.load(Ordering::Acquire) > 100_000);
        proxy.turn_away(true);
        pipe.cut();
        let started = Instant::now();
        for token in tokens {
            let completion = initiator.wait(token, SOON);
            let code = completion.result.map_err(|e| e.code);
            assert!(matches!(code, Ok(()) | Err(OpErrorCode::LinkBroken)), "{completion:?}");
        }
        assert!(started.elapsed() < Duration::from_secs(5), "the fences took {:?}", started.elapsed());
    }
}

/// All lanes are cut and turned away for a while: tried again with growing pauses, reported, and up again afterwards.
#[test]
fn pauses_grow() {
    let _dog = watchdog("pauses_grow", Duration::from_secs(90));
    let target = Target::local();
    let region = target.region(64, Access::SHARED, |_| 0);
    let proxy = Proxy::start(target.at);
    let mut initiator = Initiator::new(TcpConfig::default());
    let link = initiator.connect(target.me.peer, proxy.at, SESSION);
    initiator.poll_until("all lanes are up", SOON, |_| target.lanes() == 4);
    proxy.turn_away(true);
    proxy.pipes().iter().for_each(|p| p.cut());
    let before = proxy.accepted();
    let until = Instant::now() + Duration::from_secs(3);
    initiator.poll_until("three seconds are over", SOON, |_| Instant::now() >= until);
    let tries = proxy.accepted() - before;
    assert!((4..=60).contains(&tries), "{tries} tries in three seconds");
    assert!(initiator.events.iter().any(|e| matches!(e, Event::LinkDown { .. })));
    // Without a lane for so long, an op is told at once what is wrong.
    let local = initiator.region(b"hello");
    let token = initiator.begin(OpKind::Write, link, &local, &region, 0);
    let code = initiator.wait(token, SOON).result.map_err(|e| e.code);
    assert_eq!(code, Err(OpErrorCode::Unreachable));
    proxy.turn_away(false);
    initiator.events.clear();
    let up = |i: &Initiator| i.events.iter().any(|e| matches!(e, Event::LinkUp { .. }));
    initiator.poll_until("all lanes are up again", SOON, |i| up(i) && target.lanes() == 4);
    let token = initiator.begin(OpKind::Write, link, &local, &region, 0);
    assert_eq!(initiator.wait(token, SOON).result, Ok(()));
}

/// A target that permits fewer lanes than we would make is not asked for the others without end.
#[test]
fn fewer_lanes_than_wanted() {
    let _dog = watchdog("fewer_lanes_than_wanted", Duration::from_secs(90));
    let limits = Limits { session_lanes: 1, ..Limits::default() };
    let target = Target::start("127.0.0.1:0", TcpConfig { limits, ..TcpConfig::default() });
    let region = target.region(64, Access::SHARED, |_| 0);
    let mut initiator = Initiator::new(TcpConfig::default());
    let link = initiator.connect(target.me.peer, target.at, SESSION);
    let until = Instant::now() + Duration::from_secs(3);
    initiator.poll_until("three seconds are over", SOON, |_| Instant::now() >= until);
    let offered = target.seen.offered.load(Ordering::Acquire);
    assert!(offered <= 60, "{offered} lanes were offered in three seconds");
    let local = initiator.region(b"hello");
    let token = initiator.begin(OpKind::Write, link, &local, &region, 0);
    assert_eq!(initiator.wait(token, SOON).result, Ok(()));
}

/// The same over IPv6.
#[test]
fn over_ipv6() {
    let _dog = watchdog("over_ipv6", Duration::from_secs(60));
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return support::skipped("over_ipv6: no IPv6 loopback here");
    }
    let target = Target::start("[::1]:0", TcpConfig::default());
    let region = target.region(PIECE, Access::SHARED, |_| 0);
    let mut initiator = Initiator::new(TcpConfig::default());
    let link = initiator.connect(target.me.peer, target.at, SESSION);
    let local = initiator.region(&pattern_bytes(0, 0, PIECE));
    let token = initiator.begin(OpKind::Write, link, &local, &region, 0);
    assert_eq!(initiator.wait(token, SOON).result, Ok(()));
    check_piece(&region, 0);
}

/// One bit is changed on the way, in either direction: without the option wrong bytes arrive as a success, with it the request fails
/// and tells the range and both sums.
#[test]
fn a_changed_bit_is_found() {
    const LENGTH: usize = 40_000;
    let _dog = watchdog("a_changed_bit_is_found", Duration::from_secs(60));
    let target = Target::local();
    let proxy = Proxy::start(target.at);
    let config = TcpConfig { lanes: 1, chunk_bytes: 30_000, ..TcpConfig::default() };
    let mut initiator = Initiator::new(config);
    let link = initiator.connect(target.me.peer, proxy.at, SESSION);
    initiator.poll_until("the lane is up", SOON, |_| target.lanes() == 1);
    let sent = pattern_bytes(5, 0, LENGTH);
    for kind in [OpKind::Write, OpKind::Read] {
        for verify in [Verify::Off, Verify::On, Verify::OnVanishing] {
            for damage in [false, true] {
                let what = format!("{kind:?} {verify:?} damage {damage}");
                let (from, into) = match kind {
                    OpKind::Write => (sent.clone(), vec![0; LENGTH]),
                    OpKind::Read => (vec![0; LENGTH], sent.clone()),
                };
                let region = target.region(LENGTH, Access::SHARED, |at| into[at as usize]);
                let local = initiator.region(&from);
                initiator.verify = verify;
                if damage {
                    proxy.flip(kind == OpKind::Write);
                }
                let token = initiator.begin(kind, link, &local, &region, 0);
                let completion = initiator.wait(token, SOON);
                let mut came = vec![0; LENGTH];
                let receiver = if kind == OpKind::Write { &region } else { &local };
                receiver.read_at(0, &mut came).unwrap();
                let wrong = (0..LENGTH).filter(|at| came[*at] != sent[*at]).count();
                assert_eq!(wrong, usize::from(damage), "{what}");
                if !damage || verify == Verify::Off {
                    assert_eq!(completion.result, Ok(()), "{what}");
                    continue;
                }
                let error = completion.result.unwrap_err();
                assert_eq!(error.code, OpErrorCode::Checksum, "{what}");
                let Mismatch { offset, length, expected, found } = error.mismatch.unwrap();
                assert!([(0, 30_000), (30_000, 10_000)].contains(&(offset, length)), "{what}: {error}");
                let range = offset as usize..(offset + length) as usize;
                assert_eq!(expected, crc32c::crc32c(&sent[range.clone()]), "{what}");
                assert_eq!(found, crc32c::crc32c(&came[range]), "{what}");
                let words = error.to_string();
                assert!(
                    words.contains(&format!("{expected:08x}")) && words.contains(&format!("{found:08x}"))
                );
                assert!(completion.touched, "{what}");
                assert_eq!(region.leases(), 0, "{what}");
            }
        }
    }
}
