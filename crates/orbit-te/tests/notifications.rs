//! Notifications: alone and bound to a transfer, in order, bounded, and never before the bytes.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use futures_core::Stream;
use orbit_te::{Access, Batch, Config, Engine, Error, RefusalCode, TransferError};
use std::pin::Pin;
use std::time::{Duration, Instant};
use support::{SOON, contents, pair, pattern_bytes, region, watchdog};

#[test]
fn alone_and_in_order() {
    let _dog = watchdog("alone_and_in_order", Duration::from_secs(60));
    let pair = pair(64);
    let mut inbox = pair.target.notifications().unwrap();
    assert!(pair.target.notifications().is_none(), "one receiver an engine");
    assert!(inbox.try_recv().is_none());
    for k in 0..200u32 {
        let name = format!("step {k}");
        pair.engine.notify(&pair.segment, &name, &k.to_le_bytes()).wait(SOON).unwrap();
    }
    for k in 0..200u32 {
        let got = inbox.recv_for(SOON).unwrap();
        assert_eq!((got.name, got.peer), (format!("step {k}"), pair.engine.peer_id()));
        assert_eq!(got.payload, k.to_le_bytes());
    }
    let empty = pair.engine.notify(&pair.segment, "", &[]);
    empty.wait(SOON).unwrap();
    assert!(inbox.recv_for(SOON).unwrap().payload.is_empty());
    let large = vec![7; 64 * 1024];
    pair.engine.notify(&pair.segment, &"n".repeat(255), &large).wait(SOON).unwrap();
    assert_eq!(inbox.recv_for(SOON).unwrap().payload, large);
    assert!(pair.engine.notify(&pair.segment, &"n".repeat(256), &[]).wait(SOON).is_err());
    assert!(pair.engine.notify(&pair.segment, "n", &vec![0; 64 * 1024 + 1]).wait(SOON).is_err());
    assert!(inbox.recv_for(Duration::from_millis(20)).is_none());
}

/// As a stream: each once, in order, and its end when nothing can come any more.
#[test]
fn as_a_stream() {
    let _dog = watchdog("as_a_stream", Duration::from_secs(60));
    let pair = pair(64);
    let mut inbox = pair.target.notifications().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut next = async || {
            let next = std::future::poll_fn(|context| Pin::new(&mut inbox).poll_next(context));
            tokio::time::timeout(SOON, next).await.expect("nobody woke the stream")
        };
        for k in 0..100u8 {
            let answer = pair.engine.notify(&pair.segment, "n", &[k]);
            assert_eq!(next().await.unwrap().payload, [k]);
            answer.await.unwrap();
        }
        pair.target.shutdown();
        assert_eq!(next().await, None);
    });
}

/// Whoever takes the notification finds the bytes that it speaks of, whatever they were before.
#[test]
fn the_bytes_come_first() {
    let _dog = watchdog("the_bytes_come_first", Duration::from_secs(60));
    const LENGTH: usize = 300_000;
    let pair = pair(LENGTH);
    let mut inbox = pair.target.notifications().unwrap();
    let remote = pair.remote.clone();
    let (seen, looked) = std::sync::mpsc::channel();
    let looker = std::thread::spawn(move || {
        for k in 0..100u64 {
            let got = inbox.recv_for(SOON).unwrap();
            assert_eq!(got.payload, k.to_le_bytes(), "out of order");
            assert!(
                contents(&remote) == pattern_bytes(k, 0, LENGTH),
                "round {k}: the bytes are not there yet"
            );
            seen.send(()).unwrap();
        }
    });
    for k in 0..100u64 {
        let local = region(&pair.engine, &pattern_bytes(k, 0, LENGTH), Access::LOCAL);
        let mut batch = Batch::new();
        for at in (0..LENGTH as u64).step_by(10_000) {
            batch.write(&pair.segment, at, &local.slice(at, 10_000).unwrap());
        }
        batch.notify(&pair.segment, "round", &k.to_le_bytes());
        let receipt = pair.engine.submit(batch).unwrap().wait().unwrap();
        assert_eq!((receipt.bytes, receipt.requests), (LENGTH as u64, 30));
        // The next round overwrites the bytes.
        looked.recv_timeout(SOON).unwrap();
    }
    looker.join().unwrap();
}

/// The end of a transfer with a notification is not held up by how its end is waited for.
#[test]
fn a_bound_notification_is_prompt() {
    let _dog = watchdog("a_bound_notification_is_prompt", Duration::from_secs(60));
    let pair = pair(64);
    let mut inbox = pair.target.notifications().unwrap();
    let local = region(&pair.engine, &[1; 64], Access::LOCAL);
    let mut times: Vec<Duration> = (0..50)
        .map(|_| {
            let mut batch = Batch::new();
            batch.write(&pair.segment, 0, &local.whole()).notify(&pair.segment, "n", &[]);
            let started = Instant::now();
            pair.engine.submit(batch).unwrap().wait().unwrap();
            let took = started.elapsed();
            inbox.recv_for(SOON).unwrap();
            took
        })
        .collect();
    times.sort();
    assert!(times[25] < Duration::from_millis(20), "median {:?}, worst {:?}", times[25], times[49]);
}

/// Two threads that wait for one transfer are both told.
#[test]
fn two_who_wait() {
    let _dog = watchdog("two_who_wait", Duration::from_secs(60));
    let pair = pair(64);
    let local = region(&pair.engine, &[1; 64], Access::LOCAL);
    for _ in 0..50 {
        let mut batch = Batch::new();
        batch.write(&pair.segment, 0, &local.whole()).notify(&pair.segment, "n", &[]);
        let transfer = pair.engine.submit(batch).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| transfer.wait().unwrap());
            }
        });
    }
}

#[test]
fn a_full_queue_refuses() {
    let _dog = watchdog("a_full_queue_refuses", Duration::from_secs(60));
    let config = Config { queued_notifications: 4, ..Config::default() };
    let target = Engine::builder().config(config).start().unwrap();
    let remote = region(&target, &[0; 64], Access::SHARED);
    let token = target.expose("pool", &remote).unwrap();
    let engine = Engine::builder().start().unwrap();
    let segment = engine.open(&token.to_token().unwrap()).wait(SOON).unwrap();
    for k in 0..4 {
        engine.notify(&segment, "n", &[k]).wait(SOON).unwrap();
    }
    let full = engine.notify(&segment, "n", &[4]).wait(SOON);
    assert!(matches!(full, Err(Error::Refused { code: Some(RefusalCode::QueueFull), .. })), "{full:?}");
    // A transfer says that its bytes are in place all the same.
    let local = region(&engine, &[9; 64], Access::LOCAL);
    let mut batch = Batch::new();
    batch.write(&segment, 0, &local.whole()).notify(&segment, "n", &[5]);
    let error = engine.submit(batch).unwrap().wait().unwrap_err();
    assert!(matches!(&error, TransferError::Notification(why) if why.contains("full")), "{error:?}");
    assert_eq!(contents(&remote), [9; 64]);
    // Room again.
    let mut inbox = target.notifications().unwrap();
    assert_eq!(inbox.try_recv().unwrap().payload, [0]);
    engine.notify(&segment, "n", &[6]).wait(SOON).unwrap();
    let rest: Vec<u8> = std::iter::from_fn(|| inbox.try_recv()).map(|n| n.payload[0]).collect();
    assert_eq!(rest, [1, 2, 3, 6], "a refused one came all the same");
    // A failed transfer sends none.
    target.retire(&remote, SOON).unwrap();
    let mut batch = Batch::new();
    batch.write(&segment, 0, &local.whole()).notify(&segment, "n", &[7]);
    assert!(engine.submit(batch).unwrap().wait().is_err());
    assert!(inbox.recv_for(Duration::from_millis(50)).is_none());
}

/// Both sides notify each other at once, many at a time: nobody waits for ever.
#[test]
fn both_ways_at_once() {
    let _dog = watchdog("both_ways_at_once", Duration::from_secs(90));
    let (a, b) = (Engine::builder().start().unwrap(), Engine::builder().start().unwrap());
    let memories = [region(&a, &[0; 64], Access::SHARED), region(&b, &[0; 64], Access::SHARED)];
    let to_a = a.expose("a", &memories[0]).unwrap().to_token().unwrap();
    let to_b = b.expose("b", &memories[1]).unwrap().to_token().unwrap();
    let seg_b = a.open(&to_b).wait(SOON).unwrap();
    let seg_a = b.open(&to_a).wait(SOON).unwrap();
    let payload = vec![3; 60_000];
    let mut pending = Vec::new();
    for _ in 0..300 {
        pending.push(a.notify(&seg_b, "x", &payload));
        pending.push(b.notify(&seg_a, "x", &payload));
    }
    for answer in pending {
        answer.wait(SOON).unwrap();
    }
}
