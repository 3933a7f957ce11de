//! Transfers that are cancelled or dropped at random moments, and memory that is used again at once: no foreign byte comes in or goes
//! out. `ORBIT_TE_CANCELS` says how many (default 4,000; the whole proof is 100,000).

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te::{Access, Batch, Landed, Region, RequestState, Transfer, TransferError};
use std::time::Duration;
use support::{Pair, Random, SOON, eventually, pair, region, watchdog};

/// Between and around the slots of both sides; nothing ever writes here.
const GUARD: u8 = 0xa5;
const GAP: u64 = 64;
const SLOTS: u64 = 8;

/// One request's place at both sides.
struct Slot {
    at: u64,
    length: u64,
}

/// The bytes that a slot may hold in a round: those of either side before the transfer.
fn side(round: u64, remote: bool) -> u8 {
    // Never the guard, and never that of the rounds around it.
    1 + (round % 60) as u8 * 2 + u8::from(remote)
}

fn fill(memory: &Region, slots: &[Slot], byte: u8) {
    slots.iter().for_each(|slot| memory.write_at(slot.at, &vec![byte; slot.length as usize]).unwrap());
}

/// Only the guards, and in the slots only these bytes.
fn check(memory: &Region, slots: &[Slot], allowed: impl Fn(usize) -> Vec<u8>, what: &str) {
    let bytes = support::contents(memory);
    let mut from = 0;
    for (k, slot) in slots.iter().enumerate() {
        let (at, end) = (slot.at as usize, (slot.at + slot.length) as usize);
        assert!(bytes[from..at] == [GUARD; GAP as usize], "{what}: a guard before slot {k} has changed");
        let allowed = allowed(k);
        // One comparison where it can be: that is what a test of so many rounds can afford.
        let is_plain = allowed.len() == 1 && bytes[at..end] == vec![allowed[0]; end - at];
        let stranger = (!is_plain).then(|| bytes[at..end].iter().find(|b| !allowed.contains(b))).flatten();
        assert!(stranger.is_none(), "{what}: slot {k} has {stranger:?}, which is none of {allowed:?}");
        from = end;
    }
    assert!(bytes[from..].iter().all(|b| *b == GUARD), "{what}: the last guard has changed");
}

struct Field {
    pair: Pair,
    local: Region,
    slots: Vec<Slot>,
}

fn field(random: &mut Random) -> Field {
    let mut at = GAP;
    let slots: Vec<Slot> = (0..SLOTS)
        .map(|_| {
            let length = [1, 17, 512, 4096, 30_000][random.below(5) as usize];
            let slot = Slot { at, length };
            at += length + GAP;
            slot
        })
        .collect();
    let pair = pair(at as usize);
    let local = region(&pair.engine, &vec![GUARD; at as usize], Access::LOCAL);
    pair.remote.write_at(0, &vec![GUARD; at as usize]).unwrap();
    Field { pair, local, slots }
}

impl Field {
    /// A batch over all slots, one way.
    fn submit(&self, writes: bool) -> Transfer {
        let mut batch = Batch::with_capacity(self.slots.len());
        for slot in &self.slots {
            let slice = self.local.slice(slot.at, slot.length).unwrap();
            match writes {
                true => batch.write(&self.pair.segment, slot.at, &slice),
                false => batch.read(&self.pair.segment, slot.at, &slice),
            };
        }
        self.pair.engine.submit(batch).unwrap()
    }

    /// One transfer that is given up at some moment. Afterwards its memory is used for something else at once.
    fn round(&self, round: u64, random: &mut Random) {
        let writes = random.below(2) == 0;
        let (ours, theirs) = (side(round, false), side(round, true));
        fill(&self.local, &self.slots, ours);
        fill(&self.pair.remote, &self.slots, theirs);
        let transfer = self.submit(writes);
        match random.below(4) {
            0 => {}
            1 => (0..random.below(2000)).for_each(|_| std::hint::spin_loop()),
            2 => drop(transfer.wait_for(Duration::from_micros(random.below(150)))),
            _ => _ = transfer.is_done(),
        }
        if random.below(8) == 0 {
            // Only the handle goes; the leases tell when the memory is free again.
            drop(transfer);
            eventually("the leases are given back", SOON, || self.local.leases() == 0);
            let what = format!("round {round}, dropped");
            check(&self.local, &self.slots, |_| vec![if writes { ours } else { theirs }], &what);
            check(&self.pair.remote, &self.slots, |_| vec![if writes { ours } else { theirs }], &what);
            return;
        }
        transfer.cancel();
        match transfer.wait() {
            Ok(_) | Err(TransferError::Cancelled { fenced: true, .. }) => {}
            Err(other) => panic!("round {round}: {other:?}"),
        }
        assert_eq!(self.local.leases(), 0);
        // Used for something else at once: what comes late would be seen, here or there.
        fill(&self.local, &self.slots, 0xee);
        let records = transfer.requests();
        let at_target = |k: usize| match records.get(k) {
            _ if !writes => vec![theirs],
            Some(RequestState::Done { .. }) => vec![ours],
            Some(RequestState::Cancelled { landed: Landed::Nothing, fenced: true }) => vec![theirs],
            Some(RequestState::Cancelled { fenced: true, .. }) => vec![ours, theirs],
            state => panic!("round {round}: {state:?}"),
        };
        let what = format!("round {round}, cancelled, writes: {writes}");
        check(&self.pair.remote, &self.slots, at_target, &what);
        check(&self.local, &self.slots, |_| vec![0xee], &what);
    }
}

#[test]
fn no_foreign_byte() {
    let _dog = watchdog("no_foreign_byte", Duration::from_secs(900));
    let all: u64 = std::env::var("ORBIT_TE_CANCELS").ok().and_then(|n| n.parse().ok()).unwrap_or(4000);
    let seed = std::env::var("ORBIT_TE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(20_261);
    println!("ORBIT_TE_SEED={seed} ORBIT_TE_CANCELS={all}");
    let mut random = Random(seed);
    let mut done = 0;
    while done < all {
        let field = field(&mut random);
        for _ in 0..500.min(all - done) {
            field.round(done, &mut random);
            done += 1;
        }
        // A late byte of the last round has had its time.
        std::thread::sleep(Duration::from_millis(20));
        check(&field.local, &field.slots, |_| (0..=255).filter(|b| *b != GUARD).collect(), "in the end");
    }
}
