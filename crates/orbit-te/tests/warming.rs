//! Lanes that are opened ahead: all of them, some, none, and what ends the wait.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{Access, Config, Engine, Error, Lanes, Region, Segment, TcpConfig};
use std::time::{Duration, Instant};
use support::proxy::{Others, Proxy};
use support::{SOON, contents, eventually, pattern_bytes, region, watchdog};

const SIZE: usize = 4 << 20;
const LANES: usize = 4;

struct Scene {
    segment: Segment,
    engine: Engine,
    proxy: Proxy,
    _remote: Region,
    target: Engine,
}

/// A target behind a middle-man who lets the control link and so many lanes through.
fn scene(lanes: usize, others: Others, tcp: TcpConfig) -> Scene {
    let target = Engine::builder().start().unwrap();
    let remote = region(&target, &vec![0; SIZE], Access::SHARED);
    target.expose("pool", &remote).unwrap();
    let proxy = Proxy::start(target.address().unwrap(), 1 + lanes, others);
    let engine = Engine::builder().config(Config { listen: None, tcp, ..Config::default() }).start().unwrap();
    let segment = engine.open(&format!("{}/pool", proxy.at)).wait(SOON).unwrap();
    Scene { segment, engine, proxy, _remote: remote, target }
}

fn quick() -> TcpConfig {
    TcpConfig { unreachable_after: Duration::from_millis(300), ..TcpConfig::default() }
}

/// After warming, transfers of all sizes find their lanes: nobody connects any more.
#[test]
fn a_warm_peer_needs_no_new_lane() {
    let _dog = watchdog("a_warm_peer_needs_no_new_lane", Duration::from_secs(60));
    let scene = scene(LANES, Others::TurnedAway, TcpConfig::default());
    let warming = scene.segment.warm(SOON);
    let lanes = warming.wait().unwrap();
    assert_eq!(lanes, Lanes { up: LANES as u32, wanted: LANES as u32 });
    assert_eq!(scene.proxy.accepted(), 1 + LANES);
    let there = region(&scene.engine, &pattern_bytes(3, 0, SIZE), Access::LOCAL);
    let back = region(&scene.engine, &vec![0; SIZE], Access::LOCAL);
    scene.segment.write(0, &there.whole()).unwrap().wait().unwrap();
    scene.segment.read(0, &back.whole()).unwrap().wait().unwrap();
    assert!(contents(&there) == contents(&back));
    // Again, when all is there.
    assert!(scene.segment.warm(Duration::ZERO).wait().unwrap().all_up());
    assert_eq!(scene.proxy.accepted(), 1 + LANES, "a lane was opened by a transfer");
}

/// Progress is told as it comes, to a thread and to a future, and the end of it.
#[test]
fn progress_is_watched() {
    let _dog = watchdog("progress_is_watched", Duration::from_secs(60));
    let scene = scene(2, Others::TurnedAway, TcpConfig::default());
    let mut warming = scene.segment.warm(SOON);
    let mut seen = Vec::new();
    while warming.lanes().up < 2 {
        seen.extend(warming.changed_for(SOON));
    }
    // Those that are missing are tried again and again.
    eventually("missing lanes are tried again", SOON, || scene.proxy.accepted() > 1 + LANES);
    assert_eq!(warming.lanes(), Lanes { up: 2, wanted: 4 });
    scene.proxy.let_through(1 + LANES);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        while let Some(lanes) = warming.changed().await {
            seen.push(lanes);
        }
        assert!(warming.await.unwrap().all_up());
    });
    assert!(seen.windows(2).all(|pair| pair[0].up < pair[1].up), "{seen:?}");
    assert!(seen.last().unwrap().all_up(), "{seen:?}");
}

/// At the limit some lanes are better than none, and it is said how many.
#[test]
fn some_lanes_at_the_limit() {
    let _dog = watchdog("some_lanes_at_the_limit", Duration::from_secs(60));
    let scene = scene(1, Others::TurnedAway, quick());
    let (began, limit) = (Instant::now(), Duration::from_millis(700));
    let lanes = scene.segment.warm(limit).wait().unwrap();
    assert_eq!((lanes, lanes.all_up()), (Lanes { up: 1, wanted: 4 }, false));
    assert!(began.elapsed() >= limit, "{:?}", began.elapsed());
}

fn check_none(others: Others, limit: Duration, took: std::ops::Range<u64>, cause: &[&str]) {
    let scene = scene(0, others, quick());
    let began = Instant::now();
    let error = scene.segment.warm(limit).wait().unwrap_err();
    let ms = began.elapsed().as_millis() as u64;
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let said = error.to_string();
    assert!(cause.iter().any(|word| said.contains(word)), "no cause in `{said}`");
    assert!(took.contains(&ms), "after {ms} ms: {said}");
}

/// Without any lane there is an error that names the cause: as soon as transfers would have one, or at the limit.
#[test]
fn no_lane_at_all() {
    let _dog = watchdog("no_lane_at_all", Duration::from_secs(60));
    let closed = ["closed", "reset", "broke", "ended"];
    check_none(Others::TurnedAway, SOON, 100..10_000, &closed);
    check_none(Others::TurnedAway, Duration::from_millis(50), 50..1_000, &closed);
    // Connections stand, and nobody says hello on them.
    check_none(Others::Held, Duration::from_millis(400), 400..1_400, &["stalled"]);
}

/// The end of the peer, of its session and of the engine end it too; a dropped handle does no harm.
#[test]
fn ends_of_others() {
    let _dog = watchdog("ends_of_others", Duration::from_secs(60));
    let scene_of = || scene(0, Others::Held, TcpConfig::default());
    let scene = scene_of();
    drop(scene.segment.warm(SOON));
    let warming = scene.segment.warm(SOON);
    scene.target.shutdown();
    let error = warming.wait().unwrap_err();
    assert!(matches!(error, Error::PeerGone { .. }), "{error:?}");
    assert!(error.to_string().contains("closed the session"), "{error}");
    let error = scene.segment.warm(SOON).wait().unwrap_err();
    assert!(matches!(error, Error::PeerGone { .. }), "{error:?}");

    let scene = scene_of();
    let mut warming = scene.segment.warm(SOON);
    scene.engine.shutdown();
    assert_eq!(std::iter::from_fn(|| warming.changed_for(SOON)).map(|lanes| lanes.up).sum::<u32>(), 0);
    let error = warming.wait().unwrap_err();
    assert!(matches!(error, Error::Closed), "{error:?}");
    assert!(matches!(scene.segment.warm(SOON).wait(), Err(Error::Closed)));
}
