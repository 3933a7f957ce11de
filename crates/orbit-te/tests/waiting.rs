//! Every way to wait for a transfer, alone and mixed: nobody waits for ever, and nobody waits long without a reason.

mod support;

use orbit_te::{Access, Config, Receipt, Region, Transfer, TransferError};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use support::{Pair, contents, pair, pair_with, pattern_bytes, region, watchdog};

const BLOCK: u64 = 4096;

/// A hand-written executor: one future, one flag.
struct Flag {
    woken: Mutex<bool>,
    change: Condvar,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.change.notify_one();
    }
}

fn run<F: Future + Unpin>(mut future: F) -> F::Output {
    let flag = Arc::new(Flag { woken: Mutex::new(false), change: Condvar::new() });
    let waker = Waker::from(flag.clone());
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut woken = flag.woken.lock().unwrap();
        while !*woken {
            let (guard, late) = flag.change.wait_timeout(woken, Duration::from_secs(20)).unwrap();
            assert!(!late.timed_out(), "nobody woke the future");
            woken = guard;
        }
        *woken = false;
    }
}

fn block(pair: &Pair, local: &Region, k: u64) -> Transfer {
    pair.segment.write(k * BLOCK, &local.slice(k * BLOCK, BLOCK).unwrap()).unwrap()
}

fn is_whole(result: Result<Receipt, TransferError>) {
    assert_eq!(result.unwrap().bytes, BLOCK);
}

/// Writes 200 blocks, each waited for as `wait` does it.
fn check(wait: impl Fn(Transfer)) {
    let pair = pair(200 * BLOCK as usize);
    let local = region(&pair.engine, &pattern_bytes(5, 0, 200 * BLOCK as usize), Access::LOCAL);
    for k in 0..200 {
        wait(block(&pair, &local, k));
    }
    assert!(contents(&pair.remote) == contents(&local));
}

#[test]
fn one_at_a_time() {
    let _dog = watchdog("one_at_a_time", Duration::from_secs(60));
    check(|transfer| is_whole(transfer.wait()));
    check(|transfer| is_whole(run(transfer)));
    let current = tokio::runtime::Builder::new_current_thread().build().unwrap();
    check(|transfer| is_whole(current.block_on(transfer)));
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    check(|transfer| is_whole(several.block_on(async move { tokio::spawn(transfer).await.unwrap() })));
    // By asking again and again.
    check(|transfer| {
        let until = Instant::now() + Duration::from_secs(20);
        while transfer.try_result().is_none() {
            assert!(Instant::now() < until, "nobody drives a transfer that is asked for");
            std::thread::sleep(Duration::from_micros(200));
        }
        is_whole(transfer.try_result().unwrap());
    });
}

/// Many at once on a runtime of either flavour, with blocking waits of other threads between them.
#[test]
fn many_mixed() {
    let _dog = watchdog("many_mixed", Duration::from_secs(90));
    const EACH: u64 = 300;
    let pair = Arc::new(pair(4 * EACH as usize * BLOCK as usize));
    let local = region(&pair.engine, &pattern_bytes(6, 0, 4 * EACH as usize * BLOCK as usize), Access::LOCAL);
    std::thread::scope(|scope| {
        let (pair, local) = (&pair, &local);
        scope.spawn(move || (0..EACH).for_each(|k| is_whole(block(pair, local, k).wait())));
        scope.spawn(move || (EACH..2 * EACH).for_each(|k| is_whole(run(block(pair, local, k)))));
        scope.spawn(move || {
            let current = tokio::runtime::Builder::new_current_thread().build().unwrap();
            current.block_on(async {
                for group in (2 * EACH..3 * EACH).collect::<Vec<_>>().chunks(10) {
                    let transfers: Vec<_> = group.iter().map(|k| block(pair, local, *k)).collect();
                    for transfer in transfers {
                        is_whole(transfer.await);
                    }
                }
            });
        });
        scope.spawn(move || {
            let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
            several.block_on(async {
                let tasks: Vec<_> =
                    (3 * EACH..4 * EACH).map(|k| tokio::spawn(block(pair, local, k))).collect();
                for task in tasks {
                    is_whole(task.await.unwrap());
                }
            });
        });
    });
    assert!(contents(&pair.remote) == contents(&local));
    assert_eq!((local.leases(), pair.remote.leases()), (0, 0));
}

/// Eight threads that wait for small transfers on one worker.
#[test]
fn eight_threads_on_one_worker() {
    let _dog = watchdog("eight_threads_on_one_worker", Duration::from_secs(90));
    const THREADS: u64 = 8;
    const OPS: u64 = 2000;
    const SIZE: u64 = 64;
    let pair = pair((THREADS * OPS * SIZE) as usize);
    let all = pattern_bytes(8, 0, (THREADS * OPS * SIZE) as usize);
    let local = region(&pair.engine, &all, Access::LOCAL);
    let (ended, slowest) = (AtomicUsize::new(0), Mutex::new(Duration::ZERO));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pair, local, ended, slowest) = (&pair, &local, &ended, &slowest);
            scope.spawn(move || {
                let mut worst = Duration::ZERO;
                for op in 0..OPS {
                    let at = (thread * OPS + op) * SIZE;
                    let began = Instant::now();
                    let transfer = pair.segment.write(at, &local.slice(at, SIZE).unwrap()).unwrap();
                    assert_eq!(transfer.wait().unwrap().bytes, SIZE);
                    worst = worst.max(began.elapsed());
                    ended.fetch_add(1, Ordering::AcqRel);
                }
                let mut slowest = slowest.lock().unwrap();
                *slowest = worst.max(*slowest);
            });
        }
    });
    assert_eq!(ended.load(Ordering::Acquire) as u64, THREADS * OPS);
    assert!(contents(&pair.remote) == all);
    let took = started.elapsed();
    println!("16,000 ops took {took:?}, the slowest {:?}", slowest.lock().unwrap());
    assert!(took < Duration::from_secs(40), "{took:?}");
}

/// The median of some times.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A future that nobody drives completes promptly: after a long idle time, and right after others were driven.
#[test]
fn undriven_transfers_are_prompt() {
    let _dog = watchdog("undriven_transfers_are_prompt", Duration::from_secs(60));
    for spin_us in [0, 50] {
        let pair = pair_with(64 * BLOCK as usize, Config { spin_us, ..Config::default() });
        let local = region(&pair.engine, &pattern_bytes(5, 0, 64 * BLOCK as usize), Access::LOCAL);
        let timed = |after: &dyn Fn()| {
            let one = |k| {
                after();
                let started = Instant::now();
                is_whole(run(block(&pair, &local, k)));
                started.elapsed()
            };
            median((0..15).map(one).collect())
        };
        let idle = timed(&|| std::thread::sleep(Duration::from_millis(60)));
        assert!(idle < Duration::from_millis(20), "after an idle time: {idle:?}, spin {spin_us}");
        let driven = timed(&|| (0..20).for_each(|k| is_whole(block(&pair, &local, k).wait())));
        assert!(driven < Duration::from_millis(20), "after driven ones: {driven:?}, spin {spin_us}");
        // Nobody even polls: only the handle is dropped.
        let dropped = timed(&|| {
            is_whole(block(&pair, &local, 0).wait());
            drop(block(&pair, &local, 1));
        });
        assert!(dropped < Duration::from_millis(20), "after dropped ones: {dropped:?}, spin {spin_us}");
    }
}

/// A blocking wait is not held up by another thread's that ends first.
#[test]
fn waits_are_prompt_side_by_side() {
    let _dog = watchdog("waits_are_prompt_side_by_side", Duration::from_secs(60));
    let pair = pair(64 * BLOCK as usize);
    let local = region(&pair.engine, &pattern_bytes(5, 0, 64 * BLOCK as usize), Access::LOCAL);
    std::thread::scope(|scope| {
        let (pair, local) = (&pair, &local);
        let threads: Vec<_> = (0..3u64)
            .map(|thread| {
                scope.spawn(move || {
                    let one = |k: u64| {
                        let started = Instant::now();
                        is_whole(block(pair, local, (k * 3 + thread) % 64).wait());
                        started.elapsed()
                    };
                    let mut times: Vec<Duration> = (0..400u64).map(one).collect();
                    times.sort();
                    times[380]
                })
            })
            .collect();
        for thread in threads {
            let late = thread.join().unwrap();
            assert!(late < Duration::from_millis(30), "one wait in twenty takes {late:?}");
        }
    });
}
