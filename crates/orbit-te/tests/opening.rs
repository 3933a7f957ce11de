//! Opening segments: by address and token, and every way in which it is refused.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{Access, Config, Engine, Error, RefusalCode, SegmentToken, TransferError};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use support::{SOON, contents, pair, region, watchdog};

fn start() -> Engine {
    Engine::builder().start().unwrap()
}

fn exposed(engine: &Engine, name: &str, length: usize) -> (orbit_te::Region, SegmentToken) {
    let region = region(engine, &vec![0; length], Access::SHARED);
    let token = engine.expose(name, &region).unwrap();
    (region, token)
}

#[test]
fn by_address_and_by_token() {
    let _dog = watchdog("by_address_and_by_token", Duration::from_secs(60));
    let (target, engine) = (start(), Engine::builder().no_listen().start().unwrap());
    let (remote, token) = exposed(&target, "a/b c", 4096);
    let local = region(&engine, &[7; 4096], Access::LOCAL);
    let by_address = format!("{}/a/b c", target.address().unwrap());
    for text in [by_address, token.to_token().unwrap(), format!("  {token}\n")] {
        let segment = engine.open(&text).wait(SOON).unwrap();
        assert_eq!((segment.name(), segment.len()), ("a/b c", 4096));
        assert_eq!((segment.peer(), segment.address()), (target.peer_id(), target.address().unwrap()));
        remote.write_at(0, &[0; 4096]).unwrap();
        assert_eq!(segment.write(0, &local.whole()).unwrap().wait().unwrap().bytes, 4096);
        assert_eq!(contents(&remote), [7; 4096]);
    }
    // An engine's own segment, through its own door.
    let own = target.open(&token.to_token().unwrap()).wait(SOON).unwrap();
    let at_target = region(&target, &[1; 4096], Access::LOCAL);
    own.read(0, &at_target.whole()).unwrap().wait().unwrap();
    assert_eq!(contents(&at_target), [7; 4096]);
}

#[test]
fn over_ipv6() {
    let _dog = watchdog("over_ipv6", Duration::from_secs(60));
    if TcpListener::bind("[::1]:0").is_err() {
        return support::skipped("over_ipv6: no IPv6 loopback here");
    }
    let target = Engine::builder().listen("[::1]:0".parse().unwrap()).start().unwrap();
    let (remote, token) = exposed(&target, "pool", 100_000);
    let engine = start();
    let local = region(&engine, &[9; 100_000], Access::LOCAL);
    for text in [format!("{}/pool", target.address().unwrap()), token.to_token().unwrap()] {
        let segment = engine.open(&text).wait(SOON).unwrap();
        segment.write(0, &local.whole()).unwrap().wait().unwrap();
        assert_eq!(contents(&remote), contents(&local));
    }
}

/// What an address is answered with.
fn check(engine: &Engine, text: &str, what: &str, fits: impl Fn(&Error) -> bool) {
    let started = Instant::now();
    match engine.open(text).wait(SOON) {
        Ok(_) => panic!("`{text}` was opened"),
        Err(error) => {
            assert!(fits(&error), "`{text}`: {error:?}");
            let said = error.to_string();
            assert!(said.contains(what), "`{text}`: `{said}` does not say `{what}`");
        }
    }
    assert!(started.elapsed() < Duration::from_secs(10), "`{text}` took {:?}", started.elapsed());
}

#[test]
fn bad_addresses() {
    let _dog = watchdog("bad_addresses", Duration::from_secs(120));
    let (target, engine) = (start(), start());
    let (_region, token) = exposed(&target, "pool", 64);
    let at = target.address().unwrap();
    let token = token.to_token().unwrap();
    let bad = |e: &Error| matches!(e, Error::BadAddress { .. });
    let wire = |e: &Error| matches!(e, Error::Wire(_));
    check(&engine, "", "no `/`", bad);
    check(&engine, "127.0.0.1:80", "no `/`", bad);
    check(&engine, "127.0.0.1/pool", "port is missing", bad);
    check(&engine, "127.0.0.1:/pool", "port is no number", bad);
    check(&engine, "127.0.0.1:x/pool", "port is no number", bad);
    check(&engine, "127.0.0.1:65536/pool", "port is no number", bad);
    check(&engine, "127.0.0.1:-1/pool", "port is no number", bad);
    check(&engine, &format!("{at}/"), "name is empty", bad);
    check(&engine, &format!("{at}/{}", "n".repeat(256)), "255 bytes", bad);
    check(&engine, "otseg1:", "cut short", wire);
    check(&engine, &token[..token.len() - 1], "", wire);
    check(&engine, &token.replace("otseg1", "otseg2"), "otseg1", wire);
    check(&engine, &format!("{token}A"), "", wire);
    check(&engine, "no.such.host.invalid:9/pool", "no.such.host.invalid", |e| {
        matches!(e, Error::Unreachable { .. })
    });
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    check(&engine, &format!("{free}/pool"), "refused", |e| matches!(e, Error::Unreachable { .. }));
    check(&engine, &format!("{at}/other"), "no segment is named `other`", |e| {
        matches!(e, Error::Refused { code: Some(RefusalCode::UnknownSegment), .. })
    });
    // Something else listens there: closes at once, or speaks another language.
    let closes = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = closes.local_addr().unwrap();
    std::thread::spawn(move || closes.incoming().for_each(drop));
    check(&engine, &format!("{there}/pool"), "no hello came back", |e| {
        matches!(e, Error::Unreachable { .. })
    });
    let speaks = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = speaks.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in speaks.incoming() {
            let mut stream = stream.unwrap();
            std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    check(&engine, &format!("{there}/pool"), "not an OrbitTE connection", wire);
    // None of it has harmed the engine.
    assert!(engine.open(&token).wait(SOON).is_ok());
}

/// A host that takes connections and says nothing costs its own caller the time limit, and nobody else anything.
#[test]
fn a_silent_host_delays_nobody_else() {
    let _dog = watchdog("a_silent_host_delays_nobody_else", Duration::from_secs(60));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = silent.local_addr().unwrap();
    let target = start();
    let (_region, token) = exposed(&target, "pool", 64);
    let control_timeout = Duration::from_secs(2);
    let config = Config { control_timeout, ..Config::default() };
    let engine = Engine::builder().config(config).start().unwrap();
    let stuck: Vec<_> = (0..3).map(|_| engine.open(&format!("{there}/pool"))).collect();
    std::thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    engine.open(&token.to_token().unwrap()).wait(SOON).unwrap();
    let took = started.elapsed();
    assert!(took < Duration::from_secs(1), "another peer's segment took {took:?}");
    for pending in stuck {
        let error = pending.wait(SOON).err();
        assert!(matches!(error, Some(Error::Unreachable { .. } | Error::TimedOut { .. })), "{error:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(6), "callers of one silent host queue up");
}

#[test]
fn refused_starts_and_names() {
    let _dog = watchdog("refused_starts_and_names", Duration::from_secs(60));
    let target = start();
    let in_use = Engine::builder().listen(target.address().unwrap()).start();
    assert!(matches!(in_use, Err(Error::Transport(_))), "{in_use:?}");
    let open: SocketAddr = "0.0.0.0:0".parse().unwrap();
    assert!(matches!(Engine::builder().listen(open).start(), Err(Error::Untrusted(at)) if at == open));
    let trusted = Engine::builder().listen(open).trust_network(true).start().unwrap();
    assert!(!trusted.address().unwrap().ip().is_unspecified(), "an address that nobody can reach");
    for config in [
        Config { workers: 0, ..Config::default() },
        Config { serving_workers: 0, ..Config::default() },
        Config { heartbeat: Duration::ZERO, ..Config::default() },
    ] {
        assert!(matches!(Engine::builder().config(config).start(), Err(Error::Config(_))));
    }
    let (memory, _) = exposed(&target, "pool", 64);
    assert!(matches!(target.expose("pool", &memory), Err(Error::NameTaken(name)) if name == "pool"));
    for name in ["", "a@b", "a\nb", &"n".repeat(256)] {
        assert!(matches!(target.expose(name, &memory), Err(Error::BadName { .. })), "{name}");
    }
    let private = region(&target, &[0; 64], Access::LOCAL);
    assert!(matches!(target.expose("private", &private), Err(Error::Config(_))));
    assert!(target.withdraw("pool") && !target.withdraw("pool"));
    target.expose("pool", &memory).unwrap();
    let deaf = Engine::builder().no_listen().start().unwrap();
    let memory = region(&deaf, &[0; 64], Access::SHARED);
    assert!(matches!(deaf.expose("pool", &memory), Err(Error::Config(_))));
}

/// An engine that took the place of another, at the same address: tokens of the old one say so, and addresses just work.
#[test]
fn a_restarted_owner() {
    let _dog = watchdog("a_restarted_owner", Duration::from_secs(60));
    let first = start();
    let at = first.address().unwrap();
    let (_region, old) = exposed(&first, "pool", 64);
    let engine = start();
    let segment = engine.open(&old.to_token().unwrap()).wait(SOON).unwrap();
    let local = region(&engine, &[1; 64], Access::LOCAL);
    segment.write(0, &local.whole()).unwrap().wait().unwrap();
    let was = first.peer_id();
    first.shutdown();
    drop(first);
    let second = Engine::builder().listen(at).start().unwrap();
    let (remote, new) = exposed(&second, "pool", 64);
    support::eventually(
        "the old peer is gone",
        SOON,
        || matches!(segment.write(0, &local.whole()), Err(Error::PeerGone { peer, .. }) if peer == was),
    );
    match engine.open(&old.to_token().unwrap()).wait(SOON) {
        Err(Error::OtherPeer { expected, found }) => {
            assert_eq!((expected, found), (was, second.peer_id()));
        }
        other => panic!("{other:?}"),
    }
    for text in [new.to_token().unwrap(), format!("{at}/pool")] {
        let segment = engine.open(&text).wait(SOON).unwrap();
        segment.write(0, &local.whole()).unwrap().wait().unwrap();
        assert_eq!(contents(&remote), [1; 64]);
    }
}

/// Requests that can't be done are refused before anything moves.
#[test]
fn requests_that_do_not_fit() {
    let _dog = watchdog("requests_that_do_not_fit", Duration::from_secs(60));
    let pair = pair(100);
    let local = region(&pair.engine, &[5; 200], Access::LOCAL);
    let remote_only = region(&pair.engine, &[5; 10], Access::REMOTE_READ);
    let bad = |offset: u64, length: u64| {
        let slice = local.slice(0, length).unwrap();
        let error = pair.segment.write(offset, &slice).err();
        assert!(matches!(error, Some(Error::BadRequest { index: 0, .. })), "{offset}+{length}: {error:?}");
    };
    for (offset, length) in [(0, 101), (100, 1), (99, 2), (u64::MAX, 1), (u64::MAX - 10, 20)] {
        bad(offset, length);
    }
    assert!(pair.segment.write(0, &remote_only.whole()).is_err(), "memory without local access");
    assert!(local.slice(0, 0).is_err() && local.slice(200, 1).is_err() && local.slice(u64::MAX, 2).is_err());
    assert_eq!(contents(&pair.remote), [0; 100]);
    // What the owner permits is checked on both sides.
    let read_only = region(&pair.target, &[3; 10], Access::SHARED_READ);
    let mut token = pair.target.expose("read-only", &read_only).unwrap();
    let segment = pair.engine.open(&token.to_token().unwrap()).wait(SOON).unwrap();
    let ten = local.slice(0, 10).unwrap();
    assert!(matches!(segment.write(0, &ten), Err(Error::BadRequest { .. })));
    token.descriptor.access = Access::SHARED;
    let segment = pair.engine.open(&token.to_token().unwrap()).wait(SOON).unwrap();
    let error = segment.write(0, &ten).unwrap().wait().unwrap_err();
    assert_eq!(error.op_code(), Some(orbit_te::OpErrorCode::AccessDenied));
    assert!(matches!(error, TransferError::Request { request: 0, .. }));
    assert_eq!(contents(&read_only), [3; 10]);
}
