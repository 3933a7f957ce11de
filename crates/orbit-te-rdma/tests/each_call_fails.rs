//! Each call of verbs that a transport and its target make fails once, in turn, in each of several ways. Whatever fails: every op ends, what is
//! reported complete is right, nothing is freed under a device, what can't be freed is listed, and in the end nothing is left.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)]

mod sides;

use orbit_te_memory::Access;
use orbit_te_rdma::fake::{FakeFabric, When};
use orbit_te_rdma::handle::Retention;
use orbit_te_rdma::{Errno, Verb};
use orbit_te_transport::{OpKind, RemoteSpan, Transport};
use sides::{Memory, Sides, quick, two_hosts};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const BYTES: u64 = 200_000;

/// Connects, reads, writes, loses the connection, connects again, writes again, and withdraws. How many ops succeeded; an error where a side
/// could not be made at all.
fn scenario(
    fabric: &FakeFabric,
    lists: &mut Vec<Arc<Retention>>,
    notices: &mut usize,
) -> Result<usize, String> {
    let config = orbit_te_rdma::RdmaConfig { chunk_bytes: 30_000, send_depth: 4, ..quick() };
    let mut sides = Sides::with_letters(fabric, &config)?;
    lists.extend(sides.retentions());
    let ours = sides.here.region(BYTES as usize, 7, Access::LOCAL)?;
    let theirs = sides.there.region(BYTES as usize, 9, Access::SHARED)?;
    let key = sides.there.key(&theirs.0, theirs.0.key()).map_err(|error| error.to_string())?;
    let link = sides.connect();
    let mut good = 0;
    for round in 0..3u64 {
        let at = round * 60_000;
        let write = sides.op(OpKind::Write, link, &ours, at, RemoteSpan { offset: at, key }, 60_000);
        if sides.end(write).result.is_ok() {
            good += 1;
            assert_eq!(
                Memory::contents(&theirs.0, at, 60_000),
                vec![7; 60_000],
                "what was reported is there"
            );
        }
        let read = sides.op(OpKind::Read, link, &ours, BYTES - 1000, RemoteSpan { offset: at, key }, 1000);
        if sides.end(read).result.is_ok() {
            good += 1;
            let there = Memory::contents(&theirs.0, at, 1000);
            assert_eq!(Memory::contents(&ours.0, BYTES - 1000, 1000), there, "what was reported is here");
        }
        // A notice, where there is a way for it.
        let number = 2 * round + 1;
        let bytes = orbit_te_wire::notification::encode("round", &[number as u8]).unwrap();
        if let Some(notice) = sides.notice(link, number, &bytes) {
            let ended = sides.end(notice).result;
            let taken = sides.letters.taken().iter().filter(|letter| letter.number == number).count();
            assert!(taken <= 1 && (ended.is_err() || taken == 1), "a notice: {ended:?}, taken {taken} times");
            *notices += usize::from(ended.is_ok());
        }
        // Another one, which the end of the connection may meet.
        let late = sides.notice(link, number + 1, &bytes);
        if round == 0 {
            sides.target.disconnect(sides.session(link), std::time::Instant::now());
            // So that it is known here before the next op begins.
            (0..20).for_each(|_| _ = sides.step());
        }
        if let Some(late) = late {
            sides.end(late);
        }
    }
    // It may have to wait for what can't be taken back; then it is kept.
    let withdrawn = sides.retire(&theirs.0, Duration::from_millis(500));
    if withdrawn.is_ok() {
        let _ = sides.there.domains[0].deregister(&theirs.0, theirs.1);
    }
    sides.transport.close(std::time::Instant::now());
    sides.until("all ops have ended", |sides| sides.transport.is_drained());
    Ok(good)
}

fn run(fabric: &FakeFabric, what: &str) -> Option<usize> {
    two_hosts(fabric);
    let mut lists = Vec::new();
    let mut notices = 0;
    let outcome = scenario(fabric, &mut lists, &mut notices);
    assert!(what != "nothing fails" || notices == 3, "{notices} notices have come");
    // What could not be freed at once was kept with its parents; now it can be.
    fabric.heal();
    lists.iter().for_each(|list| drop(list.sweep()));
    lists.iter().for_each(|list| drop(list.sweep()));
    assert_eq!(fabric.violations(), Vec::<String>::new(), "{what}");
    assert!(fabric.counts().is_empty(), "{what}: left behind: {:?}", fabric.counts());
    match outcome {
        Ok(good) => Some(good),
        Err(error) => {
            assert!(!error.is_empty());
            None
        }
    }
}

#[test]
fn whatever_call_fails_nothing_is_lost_and_nothing_is_left() {
    let fabric = FakeFabric::new(1);
    fabric.record(true);
    assert_eq!(run(&fabric, "nothing fails"), Some(6));
    let calls = fabric.calls();
    let mut count: BTreeMap<Verb, u64> = BTreeMap::new();
    calls.iter().for_each(|call| *count.entry(call.verb).or_default() += 1);
    println!("calls of one run, each of which fails once:");
    count.iter().for_each(|(verb, count)| println!("{count:>5} {verb}"));
    let mut table: BTreeMap<Verb, [usize; 3]> = BTreeMap::new();
    for (verb, calls) in count {
        // What is asked again and again: a few of them stand for all.
        let often = matches!(
            verb,
            Verb::PollCq | Verb::GetAsyncEvent | Verb::QueryPort | Verb::QueryGidTable | Verb::QueryPkey
        );
        let calls = if often { calls.min(6) } else { calls.min(40) };
        for nth in 1..=calls {
            for errno in [Errno::ENOMEM, Errno::EBUSY, Errno::EIO, Errno::EAGAIN] {
                let fabric = FakeFabric::new(nth);
                fabric.fail(verb, When::Nth(nth), errno);
                let row = table.entry(verb).or_default();
                match run(&fabric, &format!("{verb}, call {nth}, {errno:?}")) {
                    None => row[0] += 1,
                    Some(6) => row[1] += 1,
                    Some(_) => row[2] += 1,
                }
            }
        }
    }
    println!("runs that ended: not begun, all ops good, some ops failed");
    for (verb, row) in table {
        println!("{:>5} {:>5} {:>5} {verb}", row[0], row[1], row[2]);
    }
}
