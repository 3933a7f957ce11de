//! What may go wrong, and how often. Rule: every fault of the simulation is an option here.

use fastrand::Rng;

/// The faults of a run. Probabilities are from 0 to 1; times are virtual.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// That a send or a receive moves less than it might.
    pub partial: f64,
    /// That a connection is reset at some time.
    pub reset: f64,
    /// That a connection falls silent at some time, and neither side is told before its keep-alive runs out.
    pub half_open: f64,
    /// That a connection is slow: a hundredth of the others' bandwidth.
    pub slow: f64,
    /// Added to the delay of each connection, at most, in µs; lanes differ, so what goes over them is reordered.
    pub delay_us: u64,
    /// Added to the delay of each segment, at most, in µs.
    pub jitter_us: u64,
    /// That a control message is sent twice.
    pub duplicate: f64,
    /// That a send or a receive of a payload that is verified changes one of its bytes.
    pub damage: f64,
    /// That registering memory is refused.
    pub refuse_registration: f64,
    /// Stalls of a process, expected in a second.
    pub stalls: f64,
    /// How long a stall lasts, at most, in ms.
    pub stall_ms: u64,
    /// Cuts of all connections between a process and those of its host, expected in a second.
    pub cuts: f64,
    /// Crashes of a process, expected in a second; half of them silent, as when a host loses its power.
    pub crashes: f64,
    /// Shutdowns of an engine in good order, expected in a second; another life comes later, as after a crash.
    pub shutdowns: f64,
    /// Those of RDMA devices.
    pub rdma: RdmaFaults,
}

/// The faults of RDMA devices and of the network between them. Rates are expected in a second, at all devices together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RdmaFaults {
    /// How much later a CQE comes, at most, in µs.
    pub late_us: u64,
    /// That a CQE never comes.
    pub lost: f64,
    /// How much longer a WR takes, at most, in µs.
    pub slow_us: u64,
    /// That something can't be made, registered or brought into a state.
    pub refused: f64,
    /// That something can't be destroyed or deregistered now.
    pub unfreed: f64,
    /// That a post takes only a part of its chain, or nothing.
    pub short_posts: f64,
    /// That WRITEs of a QP that fails land all the same.
    pub strays: f64,
    /// How much later they land, at most, in µs.
    pub stray_us: u64,
    /// QPs and CQs that break, and flush storms.
    pub queues: f64,
    /// Ports that lose their carrier, or all packets, or those to one other port, for a while.
    pub ports: f64,
    /// Addresses that go and come back.
    pub addresses: f64,
    /// Devices that break or are removed; the process goes on without.
    pub devices: f64,
}

impl RdmaFaults {
    /// Nothing goes wrong.
    pub const NONE: RdmaFaults = RdmaFaults {
        late_us: 0,
        lost: 0.0,
        slow_us: 0,
        refused: 0.0,
        unfreed: 0.0,
        short_posts: 0.0,
        strays: 0.0,
        stray_us: 0,
        queues: 0.0,
        ports: 0.0,
        addresses: 0.0,
        devices: 0.0,
    };

    /// A random subset, as [`Faults::swarm`].
    pub fn swarm(rng: &mut Rng) -> RdmaFaults {
        let mut some = |most: f64| if rng.bool() { rng.f64() * most } else { 0.0 };
        RdmaFaults {
            late_us: some(30_000.0) as u64,
            lost: some(0.06),
            slow_us: some(2_000.0) as u64,
            refused: some(0.2),
            unfreed: some(0.4),
            short_posts: some(0.3),
            strays: some(1.0),
            stray_us: some(60_000.0) as u64,
            queues: some(6.0),
            ports: some(3.0),
            addresses: some(2.0),
            devices: some(0.7),
        }
    }
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Faults = Faults {
        partial: 0.0,
        reset: 0.0,
        half_open: 0.0,
        slow: 0.0,
        delay_us: 0,
        jitter_us: 0,
        duplicate: 0.0,
        damage: 0.0,
        refuse_registration: 0.0,
        stalls: 0.0,
        stall_ms: 0,
        cuts: 0.0,
        crashes: 0.0,
        shutdowns: 0.0,
        rdma: RdmaFaults::NONE,
    };

    /// A random subset of all faults but those of RDMA, each with a random weight. Runs with few faults get far; runs with many find combinations.
    pub fn swarm(rng: &mut Rng) -> Faults {
        let mut some = |most: f64| if rng.bool() { rng.f64() * most } else { 0.0 };
        Faults {
            partial: some(0.7),
            reset: some(0.5),
            half_open: some(0.3),
            slow: some(0.4),
            delay_us: some(20_000.0) as u64,
            jitter_us: some(5_000.0) as u64,
            duplicate: some(0.3),
            damage: some(0.1),
            refuse_registration: some(0.3),
            stalls: some(2.0),
            stall_ms: 20 + some(3_000.0) as u64,
            crashes: some(1.0),
            shutdowns: some(0.7),
            cuts: some(4.0),
            rdma: RdmaFaults::NONE,
        }
    }
}
