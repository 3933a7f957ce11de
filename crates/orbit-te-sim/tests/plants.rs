//! A planted fault of each class, and the checker that catches it: a checker that finds nothing might be one that can't.

use orbit_te_sim::{Checker, Faults, Options, Plant, RdmaFaults, run};

fn caught(plant: Plant) -> &'static [Checker] {
    match plant {
        Plant::DoubleCompletion => &[Checker::ExactlyOnce],
        Plant::LostLease => &[Checker::Leases],
        Plant::EarlyCompletion => &[Checker::Touch],
        Plant::DroppedNotification | Plant::DoubleNotification => &[Checker::Notifications],
        // What never completes also stays in the count of what a transport holds.
        Plant::LeakedTransfer => &[Checker::Ends, Checker::Queues],
        Plant::ShutDownTooSoon => &[Checker::Ends],
        Plant::WrongByte | Plant::MisplacedPiece | Plant::GrantGoesOn => &[Checker::Bytes],
        Plant::DamagePasses | Plant::OtherRange => &[Checker::Damage],
        Plant::OverfullQueue => &[Checker::Queues],
        Plant::LostEngine => &[Checker::Left],
        Plant::FencedAnyhow => &[Checker::Bytes],
    }
}

fn check(plant: Plant) {
    let faults = match plant {
        Plant::DamagePasses | Plant::OtherRange => Faults { damage: 0.1, ..Faults::NONE },
        Plant::ShutDownTooSoon => Faults { shutdowns: 2.0, delay_us: 20_000, ..Faults::NONE },
        // Writes that land late, where nobody can be asked about them.
        Plant::FencedAnyhow => {
            let rdma =
                RdmaFaults { strays: 1.0, stray_us: 400_000, slow_us: 500, queues: 8.0, ..RdmaFaults::NONE };
            Faults { half_open: 0.5, stalls: 2.0, stall_ms: 1_500, rdma, ..Faults::NONE }
        }
        _ => Faults::NONE,
    };
    let rdma = Some(plant == Plant::FencedAnyhow);
    let options = Options { faults: Some(faults), plant: Some(plant), rdma };
    // Not every seed comes to the place where a plant breaks something.
    let found = (0..60).find_map(|seed| run(seed, &options).violations.first().cloned());
    let found = found.unwrap_or_else(|| panic!("{plant:?} was not caught"));
    assert!(caught(plant).contains(&found.checker), "{plant:?}: {found}");
}

#[test]
fn each_plant_is_caught_by_its_checker() {
    Plant::ALL.into_iter().for_each(check);
}
