//! Measurements: samples, the record that is printed as a JSON line, and the table. Rule: a number means the same in `demo`, in
//! `bench` and in every tool that writes these records; the long help of `bench` defines each.

use crate::size::Size;
use crate::taken::Share;
use crate::verdict::NotTaken;
use serde::Serialize;
use std::time::Duration;

/// One measured point.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Record {
    pub(crate) peer: &'static str,
    pub(crate) version: &'static str,
    pub(crate) transport: &'static str,
    pub(crate) op: &'static str,
    pub(crate) block_bytes: u64,
    pub(crate) batch: usize,
    pub(crate) gib_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) cpu_s_per_gib: f64,
    /// True: every byte was compared and right. Null: not compared.
    pub(crate) verified: Option<bool>,
    pub(crate) depth: usize,
    pub(crate) threads: usize,
    pub(crate) lanes: u32,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) submissions: u64,
    pub(crate) min_us: f64,
    pub(crate) max_us: f64,
    pub(crate) buffer_bytes: u64,
    /// Whose CPU time is counted: `both` processes, or the `initiator` alone.
    pub(crate) cpu_of: &'static str,
    /// The route that moved most of the bytes.
    pub(crate) route: Option<&'static str>,
    /// What each route moved.
    pub(crate) routes: Vec<Share>,
    /// How often requests were tried again.
    pub(crate) retries: u64,
    /// Why that route was taken; null where it was not asked.
    pub(crate) why: Option<&'static str>,
    /// Why the others were not.
    pub(crate) not_taken: Option<Vec<NotTaken>>,
}

impl Record {
    /// A column head for [`Record::row`].
    pub(crate) const HEAD: &'static str =
        "op     block      batch  depth    GiB/s     p50 µs     p99 µs  CPU s/GiB  verified";

    /// Its line of the table.
    pub(crate) fn row(&self) -> String {
        let verified = match self.verified {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        };
        format!(
            "{:<5}  {:<9} {:>6} {:>6} {:>8.2} {:>10.1} {:>10.1} {:>10.3}  {verified}",
            self.op,
            Size(self.block_bytes),
            self.batch,
            self.depth,
            self.gib_per_s,
            self.p50_us,
            self.p99_us,
            self.cpu_s_per_gib
        )
    }

    /// Its JSON line.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

/// Durations of submissions, in nanoseconds. The room is made before the clock runs.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    nanos: Vec<u64>,
}

impl Samples {
    pub(crate) fn with_capacity(count: usize) -> Samples {
        Samples { nanos: Vec::with_capacity(count) }
    }

    /// Keeps a sample while there is room.
    pub(crate) fn add(&mut self, took: Duration) {
        if self.nanos.len() < self.nanos.capacity() {
            self.nanos.push(took.as_nanos() as u64);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.nanos.clear();
    }

    /// Takes over another thread's samples; called when the clock has stopped.
    pub(crate) fn append(&mut self, other: &Samples) {
        self.nanos.extend_from_slice(&other.nanos);
    }

    /// Minimum, median, 99th percentile and maximum in microseconds.
    pub(crate) fn summary(&mut self) -> [f64; 4] {
        self.nanos.sort_unstable();
        let at = |rank: usize| self.nanos.get(rank).map_or(0.0, |n| *n as f64 / 1e3);
        let count = self.nanos.len();
        [at(0), at(nearest_rank(count, 50)), at(nearest_rank(count, 99)), at(count.saturating_sub(1))]
    }
}

/// The index of a percentile in sorted samples by nearest rank: the smallest that at least so many percent do not exceed.
fn nearest_rank(count: usize, percent: usize) -> usize {
    (count * percent).div_ceil(100).saturating_sub(1)
}

/// Rates of so many bytes.
pub(crate) fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        for (count, percent, index) in
            [(1, 50, 0), (2, 50, 0), (3, 50, 1), (100, 50, 49), (100, 99, 98), (101, 99, 99), (64, 99, 63)]
        {
            assert_eq!(nearest_rank(count, percent), index, "{percent} % of {count}");
        }
        assert_eq!(nearest_rank(0, 50), 0);
        assert_eq!(Samples::default().summary(), [0.0; 4]);
    }

    #[test]
    fn samples_beyond_the_room_are_dropped() {
        let mut samples = Samples { nanos: Vec::with_capacity(2) };
        let room = samples.nanos.capacity();
        for n in 0..room + 5 {
            samples.add(Duration::from_micros(n as u64));
        }
        assert_eq!(samples.nanos.len(), room);
    }
}
