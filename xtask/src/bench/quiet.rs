//! Waiting for a quiet machine. Other work ruins pollers most: measure when the machine is idle, and again if it did not
//! stay so. Rule: the waiting of a whole run is bounded.

use std::time::{Duration, Instant};

/// The share of the machine that others may use.
const BUSY_MAX: f64 = 0.1;
const LOOK: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(500);
const TRIES: usize = 3;

pub(super) struct Quiet {
    left: Duration,
}

impl Quiet {
    /// Waits no longer than `budget` in all.
    pub(super) fn new(budget: Duration) -> Quiet {
        Quiet { left: budget }
    }

    /// Measures, and again if the machine was busy; gives the last result and how busy the machine was around it.
    pub(super) fn measure<T>(
        &mut self,
        mut f: impl FnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, f64)> {
        let mut tries = 1;
        loop {
            let before = self.wait()?;
            let result = f()?;
            let noise = before.max(busy()?);
            if noise <= BUSY_MAX || tries == TRIES || self.left.is_zero() {
                return Ok((result, noise));
            }
            tries += 1;
        }
    }

    fn wait(&mut self) -> anyhow::Result<f64> {
        let mut noise = busy()?;
        while noise > BUSY_MAX && !self.left.is_zero() {
            let start = Instant::now();
            std::thread::sleep(PAUSE);
            noise = busy()?;
            self.left = self.left.saturating_sub(start.elapsed());
        }
        Ok(noise)
    }
}

/// The share of all cores' time that was not idle, over a short look.
fn busy() -> anyhow::Result<f64> {
    let before = cpu_ticks()?;
    std::thread::sleep(LOOK);
    let after = cpu_ticks()?;
    let all = after.0.saturating_sub(before.0).max(1);
    Ok(1.0 - after.1.saturating_sub(before.1) as f64 / all as f64)
}

/// Ticks of all cores since boot: all, and idle ones.
fn cpu_ticks() -> anyhow::Result<(u64, u64)> {
    Ok(parse_ticks(&std::fs::read_to_string("/proc/stat")?))
}

fn parse_ticks(stat: &str) -> (u64, u64) {
    let first = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = first.split_whitespace().skip(1).take(8).filter_map(|t| t.parse().ok()).collect();
    (ticks.iter().sum(), ticks.iter().skip(3).take(2).sum())
}

#[cfg(test)]
mod tests {
    #[test]
    fn guests_are_not_counted_twice() {
        assert_eq!(super::parse_ticks("cpu  1 2 3 40 50 6 7 8 9 10\ncpu0 1"), (117, 90));
        assert_eq!(super::parse_ticks(""), (0, 0));
    }
}
