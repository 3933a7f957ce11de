//! What an op and a piece of a list cost over verbs in memory, beside the same WRs posted raw. `cargo xtask bench` runs it: `count` for an
//! instruction counter, `time` for itself. Without arguments each form runs once.

#![allow(clippy::unwrap_used)] // Helpers of benches are tests.

mod stage;

use stage::{BATCH, Engine, PIECES, Raw};
use std::time::Instant;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["count", who, what, rounds] => count(who, what, rounds.parse().unwrap()),
        ["time", rounds] => time(rounds.parse().unwrap()),
        _ => {
            for (who, what) in [("engine", "batch"), ("raw", "batch"), ("engine", "list"), ("raw", "list")] {
                count(who, what, 1);
            }
        }
    }
}

/// Does so many rounds, and nothing more that depends on their number.
fn count(who: &str, what: &str, rounds: usize) {
    match (who, what) {
        ("engine", "batch") => repeat(rounds, Engine::new(), Engine::batch),
        ("engine", "list") => repeat(rounds, Engine::new(), Engine::list),
        ("raw", "batch") => repeat(rounds, Raw::new(), Raw::batch),
        ("raw", "list") => repeat(rounds, Raw::new(), Raw::list),
        _ => panic!("{who} {what}: there is no such thing to count"),
    }
}

fn repeat<T>(rounds: usize, mut stage: T, round: impl Fn(&mut T)) {
    (0..rounds).for_each(|_| round(&mut stage));
}

/// Prints nanoseconds for each op and for each piece, the engine's and the raw ones by turns: of each the least of several spans, which is what it
/// takes where nothing else wants the processor.
fn time(rounds: usize) {
    const SPANS: usize = 15;
    const BATCHES: usize = 500;
    let (mut engine, mut raw) = (Engine::new(), Raw::new());
    let (ops, pieces, raw_pieces) = (BATCHES * BATCH, PIECES, PIECES / BATCH * BATCH);
    // The first round warms both up.
    for round in 0..=rounds {
        let mut least = [f64::INFINITY; 4];
        for _ in 0..SPANS {
            let spans = [
                ns(ops, || (0..BATCHES).for_each(|_| engine.batch())),
                ns(ops, || (0..BATCHES).for_each(|_| raw.batch())),
                ns(pieces, || engine.list()),
                ns(raw_pieces, || raw.list()),
            ];
            least.iter_mut().zip(spans).for_each(|(least, span)| *least = least.min(span));
        }
        if round > 0 {
            let [op, raw_op, piece, raw_piece] = least;
            println!(
                "{{\"op_ns\":{op:.2},\"raw_op_ns\":{raw_op:.2},\"piece_ns\":{piece:.2},\"raw_piece_ns\":{raw_piece:.2}}}"
            );
        }
    }
}

fn ns(count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}
