//! The side that is reached: exposes memory, looks at what was written when it is told to, and says what it found in memory of its own.

use crate::bytes::Bytes;
use crate::settings::Settings;
use orbit_te::{Access, Engine, HostBuffer, Region};
use std::time::Duration;

/// Segments of which each peer has a grant of its own.
pub const GRANTS: usize = 64;
pub const GRANT_BYTES: usize = 1 << 16;

/// Until it is told to end.
pub fn run(settings: &Settings) {
    let engine = settings.engine(Some(&settings.at));
    let bytes = Bytes::new();
    let pool = expose(&engine, "pool", settings.bytes);
    let verdict = expose(&engine, "verdict", 16);
    let _grants: Vec<Region> =
        (0..GRANTS).map(|at| expose(&engine, &format!("grant-{at}"), GRANT_BYTES)).collect();
    let mut inbox = engine.notifications().unwrap();
    let (mut right, mut wrong) = (0u64, 0u64);
    let mut expected = 0;
    println!("there");
    loop {
        let Some(notification) = inbox.recv_for(Duration::from_secs(600)) else { continue };
        let word = |at: usize| {
            let bytes = notification.payload.get(at * 8..at * 8 + 8).unwrap();
            u64::from_le_bytes(bytes.try_into().unwrap())
        };
        let good = match notification.name.as_str() {
            "written" => bytes.are(&pool, (word(1), word(2) as usize), word(0)),
            "count" => {
                expected += 1;
                word(0) == expected
            }
            "begin" => {
                (right, wrong, expected) = (0, 0, 0);
                true
            }
            "end" => break,
            other => panic!("unknown: {other}"),
        };
        if good {
            right += 1;
        } else {
            wrong += 1;
            println!("wrong: {notification:?}");
        }
        verdict.write_at(8, &wrong.to_le_bytes()).unwrap();
        verdict.write_at(0, &right.to_le_bytes()).unwrap();
    }
    engine.shutdown();
    assert!(engine.retained().is_empty(), "{:?}", engine.retained());
}

fn expose(engine: &Engine, name: &str, bytes: usize) -> Region {
    let region = engine.register(HostBuffer::new(bytes).unwrap().into_backing(), Access::SHARED).unwrap();
    engine.expose(name, &region).unwrap();
    region
}
