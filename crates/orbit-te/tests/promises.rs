//! What a transfer promises: a record for each request, a receipt for every end, cancels that say what landed, an event, priorities.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use orbit_te::{
    Access, Batch, Config, Landed, OpErrorCode, Priority, Receipt, RequestState, TcpConfig, Transfer,
    TransferError,
};
use std::time::{Duration, Instant};
use support::child::Target;
use support::{Random, SOON, contents, eventually, pair, pair_with, region, watchdog};

#[test]
fn child_target() {
    support::child::run();
}

/// What must hold of every receipt, whatever became of the transfer.
fn check_receipt(receipt: &Receipt, bytes: u64) {
    assert_eq!(receipt.bytes, bytes);
    assert_eq!(receipt.requests, receipt.records.len());
    assert_eq!(receipt.elapsed, receipt.ended - receipt.submitted);
    if let Some(begun) = receipt.begun {
        assert!(receipt.submitted <= begun && begun <= receipt.ended, "{receipt:?}");
    }
    assert!(receipt.records.iter().all(|state| state.is_over()), "{receipt:?}");
    let in_place = |state: RequestState| match state {
        RequestState::Done { bytes } | RequestState::Failed { bytes, .. } => bytes,
        _ => 0,
    };
    assert!(receipt.records.iter().map(in_place).sum::<u64>() <= bytes);
    assert_eq!(receipt.records.iter().count(), receipt.requests, "one record for each request");
}

/// One of many fails; each says how it ended, and the receipt is there all the same.
#[test]
fn each_request_has_its_end() {
    let _dog = watchdog("each_request_has_its_end", Duration::from_secs(60));
    let pair = pair(1000);
    let withdrawn = region(&pair.target, &[0; 100], Access::SHARED);
    let token = pair.target.expose("withdrawn", &withdrawn).unwrap().to_token().unwrap();
    let other = pair.engine.open(&token).wait(SOON).unwrap();
    pair.target.retire(&withdrawn, SOON).unwrap();
    let local = region(&pair.engine, &[7; 1000], Access::LOCAL);
    let mut batch = Batch::new();
    for k in 0..100u64 {
        let to = if k % 10 == 3 { &other } else { &pair.segment };
        batch.write(to, k % 10, &local.slice(k, 1 + k % 3).unwrap());
    }
    let transfer = pair.engine.submit(batch).unwrap();
    let error = transfer.wait().unwrap_err();
    assert!(matches!(error, TransferError::Request { request, .. } if request % 10 == 3), "{error:?}");
    let mut sum = 0;
    for (k, state) in transfer.requests().iter().enumerate() {
        match state {
            RequestState::Done { bytes } if k % 10 != 3 => {
                assert_eq!(bytes, 1 + k as u64 % 3);
                sum += bytes;
            }
            RequestState::Failed { bytes: 0, error, landed: Landed::Nothing, .. } if k % 10 == 3 => {
                assert_eq!(error.code, OpErrorCode::UnknownRegion);
            }
            state => panic!("request {k}: {state:?}"),
        }
    }
    let receipt = transfer.receipt().unwrap();
    check_receipt(&receipt, sum);
    assert_eq!((receipt.landed, receipt.fenced), (Landed::Partly, true));
    assert_eq!(receipt.error, Some(error));
    assert!(receipt.begun.is_some());
    assert_eq!(transfer.requests().get(100), None);
    let well = pair.segment.write(0, &local.whole()).unwrap();
    let receipt = well.wait().unwrap();
    check_receipt(&receipt, 1000);
    assert_eq!((receipt.landed, receipt.error), (Landed::Whole, None));
}

/// What is said of bytes after a cancel is what the receiving side finds.
#[test]
fn a_cancel_says_what_landed() {
    let _dog = watchdog("a_cancel_says_what_landed", Duration::from_secs(60));
    const SIZE: usize = 1 << 20;
    const REQUESTS: u64 = 48;
    let pair = pair(REQUESTS as usize * SIZE);
    let mut random = Random(77);
    let mut seen = [0; 3];
    for round in 1..30u8 {
        let local = region(&pair.engine, &vec![round; SIZE], Access::LOCAL);
        pair.remote.write_at(0, &vec![0; REQUESTS as usize * SIZE]).unwrap();
        let mut batch = Batch::new();
        for k in 0..REQUESTS {
            batch.write(&pair.segment, k * SIZE as u64, &local.whole());
        }
        let transfer = pair.engine.submit(batch).unwrap();
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        transfer.cancel();
        let result = transfer.wait();
        let receipt = transfer.receipt().unwrap();
        check_receipt(&receipt, receipt.bytes);
        assert!(receipt.fenced, "the peer is well");
        if let Err(error) = result {
            assert_eq!(error, TransferError::Cancelled { landed: receipt.landed, fenced: true });
        }
        let there = contents(&pair.remote);
        for (k, state) in receipt.records.iter().enumerate() {
            let bytes = &there[k * SIZE..][..SIZE];
            let landed = match state {
                RequestState::Done { .. } => Landed::Whole,
                RequestState::Cancelled { landed, fenced: true } => landed,
                state => panic!("request {k}: {state:?}"),
            };
            seen[landed as usize] += 1;
            match landed {
                Landed::Nothing => {
                    assert!(bytes == vec![0; SIZE], "round {round}, request {k}: bytes landed")
                }
                Landed::Whole => {
                    assert!(bytes == vec![round; SIZE], "round {round}, request {k}: bytes are missing")
                }
                Landed::Partly => {}
            }
        }
    }
    println!("nothing {}, partly {}, whole {}", seen[0], seen[1], seen[2]);
    assert!(seen[0] > 0 && seen[2] > 0, "{seen:?}");
}

/// A transfer whose bytes are in place at one peer and that waits for its notification to another, which does not answer.
#[test]
fn a_notification_can_be_given_up() {
    let _dog = watchdog("a_notification_can_be_given_up", Duration::from_secs(60));
    let pair = pair(4096);
    let other = Target::start(4096);
    let deaf = other.open(&pair.engine);
    let local = region(&pair.engine, &[5; 4096], Access::LOCAL);
    pair.engine.notify(&deaf, "n", &[]).wait(SOON).unwrap();
    other.signal(Signal::SIGSTOP);
    let submit = |deadline| {
        let mut batch = Batch::new();
        batch.write(&pair.segment, 0, &local.whole()).notify(&deaf, "n", &[]).deadline(deadline);
        let transfer = pair.engine.submit(batch).unwrap();
        let began = Instant::now();
        while !transfer.requests().iter().all(|state| state.is_over()) {
            assert!(began.elapsed() < SOON, "the bytes wait for the notification");
            std::thread::yield_now();
        }
        transfer
    };
    // The second waits behind the first one, and was not sent.
    let cancelled = [submit(SOON), submit(SOON)];
    for transfer in &cancelled {
        transfer.cancel();
    }
    for transfer in cancelled {
        let error = transfer.wait_for(SOON).expect("a cancelled transfer does not end").unwrap_err();
        assert_eq!(error, TransferError::Cancelled { landed: Landed::Whole, fenced: true });
    }
    let late = submit(Duration::from_millis(100)).wait().unwrap_err();
    assert!(matches!(&late, TransferError::Notification(why) if why.contains("100ms")), "{late:?}");
    assert_eq!(local.leases(), 0);
    other.signal(Signal::SIGCONT);
    // What comes next is numbered higher, and is taken.
    pair.engine.notify(&deaf, "n", &[]).wait(SOON).unwrap();
}

fn is_readable(transfer: &Transfer, limit: Duration) -> bool {
    let fd = transfer.fd().unwrap();
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(limit).unwrap();
    poll(&mut fds, limit).unwrap() > 0
}

/// The event is silent before the end, and readable ever after, whenever it was asked for.
#[test]
fn an_event_for_the_end() {
    let _dog = watchdog("an_event_for_the_end", Duration::from_secs(60));
    let pair = pair(1 << 20);
    let local = region(&pair.engine, &vec![3; 1 << 20], Access::LOCAL);
    for _ in 0..50 {
        let transfer = pair.segment.write(0, &local.whole()).unwrap();
        assert!(is_readable(&transfer, SOON), "nobody tells of the end");
        assert!(transfer.is_done() && is_readable(&transfer, Duration::ZERO));
        transfer.wait().unwrap();
    }
    let done = pair.segment.write(0, &local.whole()).unwrap();
    done.wait().unwrap();
    assert!(is_readable(&done, Duration::ZERO));
    let silent = Target::start(1 << 20);
    let segment = silent.open(&pair.engine);
    silent.signal(nix::sys::signal::Signal::SIGSTOP);
    let mut batch = Batch::new();
    batch.read(&segment, 0, &local.whole()).deadline(Duration::from_millis(300));
    let transfer = pair.engine.submit(batch).unwrap();
    assert!(!is_readable(&transfer, Duration::from_millis(50)));
    assert!(matches!(transfer.requests().get(0), Some(RequestState::UnderWay)));
    assert!(is_readable(&transfer, SOON));
    let error = transfer.wait().unwrap_err();
    assert!(
        matches!(error, TransferError::Deadline { fenced: true, landed: Landed::Nothing, .. }),
        "{error:?}"
    );
}

#[test]
fn detached_ones_go_on() {
    let _dog = watchdog("detached_ones_go_on", Duration::from_secs(60));
    let pair = pair(1 << 20);
    let local = region(&pair.engine, &vec![3; 1 << 20], Access::LOCAL);
    pair.segment.write(0, &local.whole()).unwrap().detach();
    eventually("its lease is given back", SOON, || local.leases() == 0);
    assert!(contents(&pair.remote) == contents(&local));
}

/// A small urgent transfer overtakes a large one that has begun; the large one ends well.
#[test]
fn urgent_ones_overtake() {
    let _dog = watchdog("urgent_ones_overtake", Duration::from_secs(90));
    let tcp = TcpConfig { lanes: 1, ..TcpConfig::default() };
    const LARGE: usize = 256 << 20;
    let pair = pair_with(LARGE, Config { tcp, ..Config::default() });
    let local = region(&pair.engine, &vec![1; LARGE], Access::LOCAL);
    let mut overtook = 0;
    for _ in 0..5 {
        let mut large = Batch::new();
        large.write(&pair.segment, 0, &local.whole()).priority(Priority::Low);
        let large = pair.engine.submit(large).unwrap();
        let mut small = Batch::new();
        small.read(&pair.segment, 0, &local.slice(0, 64).unwrap()).priority(Priority::High);
        let small = pair.engine.submit(small).unwrap();
        let small = small.wait().unwrap();
        let large = large.wait().unwrap();
        overtook += u32::from(small.ended < large.ended && small.elapsed < large.elapsed / 2);
    }
    assert!(overtook >= 4, "{overtook} of 5 overtook");
}

/// A patient transfer ends although urgent ones never stop.
#[test]
fn patient_ones_end_under_a_flood() {
    let _dog = watchdog("patient_ones_end_under_a_flood", Duration::from_secs(90));
    const SIZE: u64 = 1 << 20;
    let tcp = TcpConfig { lanes: 1, ..TcpConfig::default() };
    let pair = pair_with(8 * SIZE as usize, Config { tcp, ..Config::default() });
    let local = region(&pair.engine, &vec![1; 8 * SIZE as usize], Access::LOCAL);
    let flood = || {
        let mut batch = Batch::new();
        (0..8).for_each(|k| _ = batch.write(&pair.segment, k * SIZE, &local.slice(k * SIZE, SIZE).unwrap()));
        batch.priority(Priority::High);
        pair.engine.submit(batch).unwrap()
    };
    let mut urgent: std::collections::VecDeque<_> = (0..16).map(|_| flood()).collect();
    let mut patient = Batch::new();
    patient.read(&pair.segment, 0, &local.slice(0, SIZE).unwrap()).priority(Priority::Low);
    let patient = pair.engine.submit(patient).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let mut rounds = 0;
    while !patient.is_done() {
        assert!(Instant::now() < until, "it starves");
        urgent.push_back(flood());
        urgent.pop_front().unwrap().wait().unwrap();
        rounds += 1;
    }
    patient.wait().unwrap();
    println!("it took {rounds} rounds of the flood");
    assert!(rounds < 50, "{rounds}");
}

/// Four threads that never spin: nobody sleeps through what another one left.
#[test]
fn waits_without_spinning_are_prompt() {
    let _dog = watchdog("waits_without_spinning_are_prompt", Duration::from_secs(60));
    let pair = pair_with(64 * 4096, Config { spin_us: 0, ..Config::default() });
    let local = region(&pair.engine, &vec![1; 64 * 4096], Access::LOCAL);
    // The machine itself holds a thread up now and then: the rule must show in one of some runs.
    let one = |k: u64| {
        let started = Instant::now();
        pair.segment.write(k * 4096, &local.slice(k * 4096, 4096).unwrap()).unwrap().wait().unwrap();
        started.elapsed()
    };
    let slowest_of_one = || (0..400u64).map(|k| one(k % 64)).max().unwrap();
    let run = || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(slowest_of_one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
        })
    };
    let slowest: Vec<Duration> = (0..6).map(|_| run()).collect();
    println!("the slowest waits: {slowest:?}");
    assert!(slowest.iter().min().unwrap() < &Duration::from_millis(30), "{slowest:?}");
}
