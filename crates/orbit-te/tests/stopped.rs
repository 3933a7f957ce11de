//! What the planner does about a peer that stops after one transfer: the route that has been taken needs nothing more of the peer, another
//! one would wait for it.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use nix::sys::signal::Signal;
use orbit_te::{Access, Batch, Engine};
use std::time::Duration;
use support::child::Target;
use support::*;

const SIZE: usize = 1 << 20;

/// What the first use of a region costs says nothing about its route.
#[test]
fn a_peer_that_stops_after_one_transfer() {
    let _dog = watchdog("a_peer_that_stops_after_one_transfer", Duration::from_secs(120));
    for round in 0..12 {
        let (target, engine) = (Target::start(SIZE), Engine::builder().no_listen().start().unwrap());
        let segment = target.open(&engine);
        let local = region(&engine, &pattern_bytes(round, 0, SIZE), Access::LOCAL);
        let write = || {
            let mut batch = Batch::new();
            batch.write(&segment, 0, &local.whole()).deadline(Duration::from_secs(2));
            engine.submit(batch).unwrap().wait()
        };
        write().unwrap();
        target.signal(Signal::SIGSTOP);
        for again in 0..40 {
            let result = write();
            assert!(result.is_ok(), "round {round}, write {again}: {result:?} {}", report(&engine, &segment));
        }
        target.signal(Signal::SIGCONT);
        let back = region(&engine, &vec![0; SIZE], Access::LOCAL);
        segment.read(0, &back.whole()).unwrap().wait().unwrap();
        assert!(contents(&back) == contents(&local), "round {round}: wrong bytes");
    }
}

/// Not a test of this process: the target of the other.
#[test]
fn child_target() {
    support::child::run();
}
