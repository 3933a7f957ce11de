//! What a route was measured to need, by direction and size. Rule: only service time counts, from when the transport began with an op
//! until its end; one odd op moves nothing much, the first of all included, several in a row do. Nothing is allocated.
//!
//! A [`Prior`] says what is expected of the route before anything is known. What is learnt is the factor by which it is off, for each
//! direction and class of sizes: so ops of different sizes in one class teach the same thing.

mod saved;

use super::id::RouteId;
use super::policy::{Floor, FloorAction};
use orbit_te_transport::OpKind;
use std::time::{Duration, Instant};

pub(super) use saved::{RawCell, RawPrior};

/// How many classes of sizes there are.
pub const CLASSES: usize = 9;

/// The largest op of the first class, as a power of two.
const FIRST_CLASS_BITS: u32 = 12;

/// A mean is taken over about so many ops.
const MEMORY: u16 = 8;
/// An op counts as at most so many times the mean.
const MOST_TIMES_THE_MEAN: f32 = 4.0;
/// An op that is off by more than this is odd, and counts little until the next ones are off on the same side.
const ODD: f32 = 2.0;
/// What an odd op counts for: the first, the second and so on, on the same side.
const ODD_WEIGHTS: [f32; 4] = [1.0 / 64.0, 1.0 / 16.0, 1.0 / 4.0, 1.0 / 2.0];
/// Odd ops that follow each other more closely count as one.
const ODD_STEP: Duration = Duration::from_micros(200);
/// So many slow ones in a row are no chance.
const REALLY: usize = 3;
/// What a probe counts for that is much faster than what was known, which is old.
const PROBE_WEIGHT: f32 = 0.75;
/// What one of the first ops counts for that is much faster than those before it.
const FIRST_WEIGHT: f32 = 0.75;
/// A class of which nothing but one op is known is probed again after twice as long, and so on by twos.
const FIRST_PROBE: Duration = Duration::from_millis(1);
/// A floor is judged by at least so many ops.
const FLOOR_SAMPLES: u32 = 8;

/// A class of sizes: up to 4 KiB, up to 16 KiB and so on by fours; the last has all from over 64 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SizeClass(u8);

impl SizeClass {
    /// The class of a size.
    pub fn of(bytes: u64) -> SizeClass {
        let bits = u64::BITS - bytes.saturating_sub(1).leading_zeros();
        let class = bits.saturating_sub(FIRST_CLASS_BITS).div_ceil(2);
        SizeClass(class.min(CLASSES as u32 - 1) as u8)
    }

    /// All classes, the smallest first.
    pub fn all() -> impl Iterator<Item = SizeClass> {
        (0..CLASSES as u8).map(SizeClass)
    }

    /// Its number, which is below [`CLASSES`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The largest size in it; all sizes for the last one.
    pub fn most_bytes(self) -> u64 {
        if self.index() == CLASSES - 1 { u64::MAX } else { 1 << (FIRST_CLASS_BITS + 2 * u32::from(self.0)) }
    }
}

/// What is expected of a route that has not been measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prior {
    /// The fixed part of an op.
    pub latency: Duration,
    /// Bytes a second. Not zero.
    pub bytes_per_second: u64,
    /// What each piece of a list costs besides.
    pub per_piece: Duration,
}

impl Prior {
    /// What is expected of a route on hardware of our day; conservative, so that measuring rather improves it.
    pub fn of(route: RouteId, same_host: bool) -> Prior {
        let prior = |latency_ns, bytes_per_second, piece_ns| Prior {
            latency: Duration::from_nanos(latency_ns),
            bytes_per_second,
            per_piece: Duration::from_nanos(piece_ns),
        };
        match (route, same_host) {
            (RouteId::SHM, _) => prior(1_000, 6_000_000_000, 50),
            (RouteId::PROCESS_VM, _) => prior(3_000, 5_000_000_000, 100),
            (RouteId::RDMA, _) => prior(10_000, 10_000_000_000, 150),
            (RouteId::CUDA_IPC, _) => prior(15_000, 20_000_000_000, 500),
            (RouteId::GDS, _) => prior(100_000, 4_000_000_000, 1_000),
            (RouteId::IO_URING, _) => prior(80_000, 2_000_000_000, 1_000),
            (_, true) => prior(20_000, 2_500_000_000, 100),
            (_, false) => prior(60_000, 1_200_000_000, 100),
        }
    }
}

/// What is known of one class in one direction.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// The mean of what an op took, divided by what the prior says of it.
    factor: f32,
    /// The mean distance of an op from that mean.
    spread: f32,
    samples: u32,
    /// Odd ops in a row: above zero those that were slow, below those that were fast.
    odd: i8,
    /// When the last odd op was counted.
    odd_at: Option<Instant>,
    /// A probe is under way.
    probing: bool,
    /// When it was last observed, or a probe of it began.
    touched: Option<Instant>,
}

impl Cell {
    /// Takes in one op.
    fn learn(&mut self, factor: f32, now: Instant) {
        let probed = std::mem::take(&mut self.probing);
        self.touched = Some(now);
        if self.samples == 0 && self.odd == 0 && factor > ODD {
            // It may have been interrupted. Whatever the next one takes is believed.
            self.odd = 1;
            return;
        }
        if self.samples == 0 {
            (self.factor, self.spread, self.odd, self.samples) = (factor, 0.0, 0, 1);
            return;
        }
        let fast = factor * ODD < self.factor;
        let slow = factor > self.factor * ODD;
        self.odd = match (slow, fast) {
            (true, _) => self.odd.max(0).saturating_add(1),
            (_, true) => self.odd.min(0).saturating_sub(1),
            _ => 0,
        };
        let odd = usize::from(self.odd.unsigned_abs());
        let few = self.samples < u32::from(MEMORY);
        let is_told = fast && (probed || few);
        if odd > 1 && !few && !is_told && self.odd_at.is_some_and(|at| now < at + ODD_STEP) {
            // One disturbance makes many short ops odd. It counts as one of them.
            self.odd -= self.odd.signum();
            return;
        }
        self.odd_at = Some(now);
        if slow && odd == REALLY {
            // It has become another route, of which little is known.
            self.samples = self.samples.min(u32::from(MEMORY) / 2);
        }
        let weight = if fast && probed {
            PROBE_WEIGHT
        } else if fast && few {
            // The first op of all often pays for pages and connections.
            FIRST_WEIGHT
        } else if odd > 0 && !few {
            ODD_WEIGHTS[odd.min(ODD_WEIGHTS.len()) - 1]
        } else {
            1.0 / (self.samples + 1).min(u32::from(MEMORY)) as f32
        };
        let off = factor.min(self.factor * MOST_TIMES_THE_MEAN) - self.factor;
        self.factor += weight * off;
        self.spread += weight * (off.abs() - self.spread);
        self.samples = self.samples.saturating_add(1);
    }
}

/// What one route to one peer was measured to need. Fixed in size, about a kilobyte.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    latency_ns: f32,
    ns_per_byte: f32,
    ns_per_piece: f32,
    cells: [[Cell; CLASSES]; 2],
}

impl Rates {
    /// Nothing measured yet.
    pub fn new(prior: Prior) -> Rates {
        Rates {
            latency_ns: prior.latency.as_nanos() as f32,
            ns_per_byte: (1e9 / prior.bytes_per_second.max(1) as f64) as f32,
            ns_per_piece: prior.per_piece.as_nanos() as f32,
            cells: Default::default(),
        }
    }

    /// Takes in one op that succeeded: what it took since the transport began with it. Zero or one piece is a contiguous op.
    /// The first of a class says nothing yet if it took much longer than the prior expects.
    pub fn observe(&mut self, kind: OpKind, bytes: u64, pieces: u32, service: Duration, now: Instant) {
        let factor = service.as_nanos() as f32 / self.prior_ns(bytes, pieces);
        // A clock that stood still says nothing, but must not make the route free for ever.
        let factor = factor.max(1e-4);
        self.cells[kind as usize][SizeClass::of(bytes).index()].learn(factor, now);
    }

    /// What an op is expected to take.
    pub fn expected(&self, kind: OpKind, bytes: u64, pieces: u32) -> Duration {
        Duration::from_nanos(self.expected_ns(kind, bytes, pieces) as u64)
    }

    /// What an op was expected to take before anything was measured.
    pub fn prior(&self, bytes: u64, pieces: u32) -> Duration {
        Duration::from_nanos(self.prior_ns(bytes, pieces) as u64)
    }

    /// How far ops of this class lie from their mean, as a share of it.
    pub fn spread(&self, kind: OpKind, class: SizeClass) -> f32 {
        let cell = &self.cells[kind as usize][class.index()];
        if cell.samples == 0 { 0.0 } else { cell.spread / cell.factor }
    }

    /// How many ops of this class were observed.
    pub fn samples(&self, kind: OpKind, class: SizeClass) -> u32 {
        self.cells[kind as usize][class.index()].samples
    }

    /// How long ago the last op was observed or probed; none if never.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        let last = self.cells.iter().flatten().filter_map(|cell| cell.touched).max()?;
        Some(now.saturating_duration_since(last))
    }

    /// The direction and class that has waited longest for a probe, of those that were measured before and not for so long.
    pub fn due_probe(&self, now: Instant, interval: Duration) -> Option<(OpKind, SizeClass)> {
        let kinds = [OpKind::Read, OpKind::Write];
        let all = kinds.into_iter().flat_map(|kind| SizeClass::all().map(move |class| (kind, class)));
        let due = all.filter(|(kind, class)| {
            self.samples(*kind, *class) > 0 && self.is_due(*kind, *class, now, interval).is_some()
        });
        due.min_by_key(|(kind, class)| self.cells[*kind as usize][class.index()].touched)
    }

    /// Whether a probe of a class is due: it was neither measured nor probed for so long. Tells how many intervals ago that was, at
    /// most 1,000; zero if never. While little is known it is due sooner. An interval of zero makes nothing due.
    pub fn is_due(&self, kind: OpKind, class: SizeClass, now: Instant, interval: Duration) -> Option<u32> {
        if interval.is_zero() {
            return None;
        }
        let cell = &self.cells[kind as usize][class.index()];
        let Some(touched) = cell.touched else { return Some(0) };
        let age = now.saturating_duration_since(touched);
        (age >= interval.min(FIRST_PROBE * 2u32.pow(cell.samples.min(20))))
            .then(|| (age.as_secs_f32() / interval.as_secs_f32()).min(1000.0) as u32)
    }

    /// Notes that an op of this size has begun which probes the route, so that no other does for an interval.
    pub fn note_probe(&mut self, kind: OpKind, bytes: u64, now: Instant) {
        let cell = &mut self.cells[kind as usize][SizeClass::of(bytes).index()];
        (cell.probing, cell.touched) = (true, Some(now));
    }

    /// Whether ops of this class give what is expected of the route.
    pub fn floor(&self, kind: OpKind, bytes: u64, floor: Option<Floor>) -> Verdict {
        let cell = &self.cells[kind as usize][SizeClass::of(bytes).index()];
        let Some(floor) = floor.filter(|_| cell.samples >= FLOOR_SAMPLES) else { return Verdict::Fine };
        let share = 1.0 / cell.factor;
        match floor.action {
            _ if cell.factor * floor.share <= 1.0 => Verdict::Fine,
            FloorAction::Warn => Verdict::Warn { share },
            FloorAction::Refuse => Verdict::Refuse { share },
        }
    }

    pub(super) fn expected_ns(&self, kind: OpKind, bytes: u64, pieces: u32) -> f32 {
        self.prior_ns(bytes, pieces) * self.factor(kind, SizeClass::of(bytes))
    }

    /// What so many bytes take that are under way already.
    pub(super) fn load_ns(&self, kind: OpKind, bytes: u64) -> f32 {
        if bytes == 0 {
            0.0
        } else {
            bytes as f32 * self.ns_per_byte * self.factor(kind, SizeClass::of(bytes))
        }
    }

    pub(super) fn prior_ns(&self, bytes: u64, pieces: u32) -> f32 {
        // At least a nanosecond, so that it can be divided by.
        (self.latency_ns
            + bytes as f32 * self.ns_per_byte
            + pieces.saturating_sub(1) as f32 * self.ns_per_piece)
            .max(1.0)
    }

    /// The factor of a class; that of the nearest measured one if it was not measured itself, and of two as near their middle.
    fn factor(&self, kind: OpKind, class: SizeClass) -> f32 {
        let (cells, at) = (&self.cells[kind as usize], class.index());
        if cells[at].samples > 0 {
            return cells[at].factor;
        }
        for distance in 1..CLASSES {
            let known = |at: Option<usize>| {
                at.and_then(|at| cells.get(at)).filter(|cell| cell.samples > 0).map(|cell| cell.factor)
            };
            match (known(at.checked_sub(distance)), known(at.checked_add(distance))) {
                (Some(below), Some(above)) => return (below * above).sqrt(),
                (Some(one), None) | (None, Some(one)) => return one,
                (None, None) => {}
            }
        }
        1.0
    }
}

/// Whether a route gives what is expected of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// It does, or too little is known.
    Fine,
    /// It does not, which should be told.
    Warn {
        /// What it gives, of what is expected.
        share: f32,
    },
    /// It does not, and should not be taken.
    Refuse {
        /// What it gives, of what is expected.
        share: f32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: Prior = Prior {
        latency: Duration::from_micros(10),
        bytes_per_second: 1_000_000_000,
        per_piece: Duration::from_nanos(100),
    };

    #[test]
    fn classes_go_by_fours() {
        let rows = [
            (0, 0),
            (1, 0),
            (4096, 0),
            (4097, 1),
            (16384, 1),
            (16385, 2),
            (1 << 20, 4),
            ((64 << 20) - 1, 7),
            (64 << 20, 7),
            ((64 << 20) + 1, 8),
            (u64::MAX, 8),
        ];
        for (bytes, class) in rows {
            assert_eq!(SizeClass::of(bytes).index(), class, "{bytes} bytes");
        }
        for class in SizeClass::all() {
            assert_eq!(SizeClass::of(class.most_bytes()), class);
        }
    }

    #[test]
    fn the_prior_holds_until_something_is_known() {
        let rates = Rates::new(PRIOR);
        assert_eq!(rates.expected(OpKind::Read, 1_000_000, 1).as_micros(), 1010);
        assert_eq!(rates.expected(OpKind::Read, 1_000_000, 11).as_micros(), 1011);
        assert_eq!((rates.age(Instant::now()), rates.spread(OpKind::Read, SizeClass::of(1))), (None, 0.0));
    }

    /// Something that is much slower than expected is believed the second time.
    fn learn(rates: &mut Rates, bytes: u64, service: Duration, now: Instant) {
        let before = rates.expected(OpKind::Read, bytes, 1);
        rates.observe(OpKind::Read, bytes, 1, service, now);
        assert_eq!(rates.expected(OpKind::Read, bytes, 1), before, "after one op");
        rates.observe(OpKind::Read, bytes, 1, service, now);
    }

    #[test]
    fn neighbours_stand_in() {
        let (mut rates, now) = (Rates::new(PRIOR), Instant::now());
        let four_times = rates.prior(1 << 20, 1) * 4;
        learn(&mut rates, 1 << 20, four_times, now);
        let times = |rates: &Rates, bytes| {
            rates.expected(OpKind::Read, bytes, 1).as_secs_f64() / rates.prior(bytes, 1).as_secs_f64()
        };
        assert!((times(&rates, 64) - 4.0).abs() < 0.01);
        assert_eq!(
            rates.expected(OpKind::Write, 64, 1),
            rates.prior(64, 1),
            "the other direction knows nothing"
        );
        // Two classes away on either side: the geometric middle.
        rates.observe(OpKind::Read, 1 << 24, 1, rates.prior(1 << 24, 1), now);
        assert!((times(&rates, 1 << 22) - 2.0).abs() < 0.01);
    }

    #[test]
    fn probes_are_due_once_an_interval() {
        let (mut rates, start) = (Rates::new(PRIOR), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(rates.due_probe(start, second), None, "what was never used is not idle");
        for _ in 0..12 {
            rates.observe(OpKind::Read, 100, 1, rates.prior(100, 1), start);
            rates.observe(OpKind::Write, 1 << 20, 1, rates.prior(1 << 20, 1), start + second / 2);
        }
        assert_eq!(rates.due_probe(start + second / 2, second), None);
        assert_eq!(rates.due_probe(start + second, second), Some((OpKind::Read, SizeClass::of(100))));
        rates.note_probe(OpKind::Read, 100, start + second);
        let later = start + second * 3 / 2;
        assert_eq!(rates.due_probe(later, second), Some((OpKind::Write, SizeClass::of(1 << 20))));
        assert_eq!(rates.due_probe(later, Duration::ZERO), None, "switched off");
        assert_eq!(rates.is_due(OpKind::Read, SizeClass::of(100), start + 5 * second, second), Some(4));
        assert_eq!(rates.age(later), Some(second / 2));
    }

    /// Of what little is known, a probe comes sooner: a route that began badly is not left for long.
    #[test]
    fn the_less_is_known_the_sooner_a_probe_is_due() {
        let (mut rates, now) = (Rates::new(PRIOR), Instant::now());
        let due = |rates: &Rates| {
            let after = |ms: &u64| now + Duration::from_millis(*ms);
            (0..5000).find(|ms| {
                rates.is_due(OpKind::Read, SizeClass::of(100), after(ms), Duration::from_secs(1)).is_some()
            })
        };
        assert_eq!(due(&rates), Some(0));
        for wanted in [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000] {
            rates.observe(OpKind::Read, 100, 1, rates.prior(100, 1), now);
            assert_eq!(due(&rates), Some(wanted));
        }
    }

    #[test]
    fn a_fast_probe_counts_for_much() {
        let (mut rates, now) = (Rates::new(PRIOR), Instant::now());
        (0..30).for_each(|_| rates.observe(OpKind::Read, 4096, 1, Duration::from_millis(1), now));
        let mut ops = 0;
        while rates.expected(OpKind::Read, 4096, 1) > Duration::from_micros(65) {
            rates.note_probe(OpKind::Read, 4096, now);
            rates.observe(OpKind::Read, 4096, 1, Duration::from_micros(50), now);
            ops += 1;
        }
        assert!(ops <= 4, "{ops} probes for a route that is twenty times as fast as it was");
    }

    #[test]
    fn a_floor_is_judged_by_several_ops() {
        let (mut rates, now) = (Rates::new(PRIOR), Instant::now());
        let floor = |action| Some(Floor { share: 0.3, action });
        // The first one is not believed.
        for _ in 0..=FLOOR_SAMPLES {
            assert_eq!(rates.floor(OpKind::Read, 4096, floor(FloorAction::Refuse)), Verdict::Fine);
            rates.observe(OpKind::Read, 4096, 1, rates.prior(4096, 1) * 5, now);
        }
        let share = |verdict| match verdict {
            Verdict::Warn { share } | Verdict::Refuse { share } => (share * 100.0).round() as u32,
            Verdict::Fine => 0,
        };
        assert_eq!(share(rates.floor(OpKind::Read, 4096, floor(FloorAction::Warn))), 20);
        assert!(matches!(
            rates.floor(OpKind::Read, 4096, floor(FloorAction::Refuse)),
            Verdict::Refuse { .. }
        ));
        assert_eq!(rates.floor(OpKind::Read, 4096, None), Verdict::Fine);
        assert_eq!(rates.floor(OpKind::Write, 4096, floor(FloorAction::Refuse)), Verdict::Fine);
    }
}
