//! A driver: several hands that read and write the memory of all targets, cancel, drop and retire on the way. Rule: it
//! begins, recovers and ends as the conductor says; what a hand does is the hand's own.

use super::hand::{Hand, Hands};
use super::protocol::{HANDS, Offer, Order, Report};
use super::tally::Tally;
use super::worker::{Backings, CALM, WorkerArgs, config, orders, report_tally, say};
use orbit_te::Engine;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) fn run(args: &WorkerArgs) -> anyhow::Result<()> {
    let engine = Engine::builder().config(config(args.number)).no_listen().start()?;
    let tally = Arc::new(Mutex::new(Tally::default()));
    let hands = Arc::new(Hands {
        engine: engine.clone(),
        driver: args.number as u64,
        life: args.life,
        offers: Mutex::new(Vec::new()),
        tally: tally.clone(),
        plant: args.plant,
    });
    let mut backings = Backings::default();
    let mut ready = (0..HANDS)
        .map(|number| Hand::new(hands.clone(), number, args.seed, &mut backings))
        .collect::<anyhow::Result<Vec<_>>>()?;
    report_tally(&tally);
    say(&Report::Ready)?;

    let stop = Arc::new(AtomicBool::new(false));
    let mut working: Vec<JoinHandle<Hand>> = Vec::new();
    for order in orders() {
        match order? {
            Order::Peer(offer) => note(&mut hands.offers.lock(), offer),
            Order::Work => {
                for mut hand in ready.drain(..) {
                    let stop = stop.clone();
                    working.push(std::thread::spawn(move || {
                        while !stop.load(Ordering::Acquire) {
                            hand.step();
                        }
                        hand
                    }));
                }
            }
            Order::Recover => {
                stop.store(true, Ordering::Release);
                ready.extend(rest(&mut working, &tally));
                let unreached = ready.first_mut().map_or_else(
                    || vec!["no hand of this driver came back".to_string()],
                    |hand| hand.reach_all(CALM),
                );
                say(&Report::Recovered { unreached })?;
            }
            Order::Drain | Order::Quit => break,
            Order::Recycle | Order::Revoke | Order::Wire { .. } => {}
        }
    }
    stop.store(true, Ordering::Release);
    ready.extend(rest(&mut working, &tally));
    let leases = ready.into_iter().map(Hand::end).sum();
    say(&Report::Drained { leases, backings: backings.left(), tally: tally.lock().clone() })?;
    // The engine stays until it is told to quit, so that what it holds can be looked at.
    for order in orders() {
        if matches!(order?, Order::Quit) {
            break;
        }
    }
    engine.shutdown();
    Ok(())
}

/// Keeps the newest offer of each target.
fn note(offers: &mut Vec<Option<Offer>>, offer: Offer) {
    if offers.len() <= offer.target {
        offers.resize(offer.target + 1, None);
    }
    let at = offer.target;
    offers[at] = Some(offer);
}

/// The hands once they have put down what they had in hand; one that does not is a hang, and left behind.
fn rest(working: &mut Vec<JoinHandle<Hand>>, tally: &Mutex<Tally>) -> Vec<Hand> {
    let until = Instant::now() + CALM;
    while working.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut rested = Vec::new();
    for thread in working.drain(..) {
        if !thread.is_finished() {
            tally.lock().hang("a hand that does not come back".to_string());
        } else if let Ok(hand) = thread.join() {
            rested.push(hand);
        } else {
            tally.lock().hang("a hand that panicked".to_string());
        }
    }
    rested
}
