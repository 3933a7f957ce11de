//! Waiting for a quiet machine. Other work ruins pollers most: measure when the machine is idle, and again if it did not
//! stay so. Rule: the waiting of a whole run is bounded, and no one measurement takes much of it.

use super::sample::Sample;
use nix::unistd::{SysconfVar, sysconf};
use std::time::{Duration, Instant};

/// The share of the machine that others may use.
const NOISE_MAX: f64 = 0.1;
const LOOK: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(500);
const TRIES: usize = 3;
/// Of all the waiting of a run, what one wait may take.
const SHARE: u32 = 20;

/// What was measured while others may have used the machine.
pub(super) trait Disturbed {
    /// The share of the machine that they used.
    fn noise(&self) -> f64;

    /// The same, with at least so much.
    fn at_least(self, noise: f64) -> Self;
}

impl Disturbed for Sample {
    fn noise(&self) -> f64 {
        self.noise
    }

    fn at_least(self, noise: f64) -> Sample {
        Sample { noise: self.noise.max(noise), ..self }
    }
}

/// A round: as disturbed as the worst of it.
impl Disturbed for Vec<Sample> {
    fn noise(&self) -> f64 {
        self.iter().map(|sample| sample.noise).fold(0.0, f64::max)
    }

    fn at_least(self, noise: f64) -> Vec<Sample> {
        self.into_iter().map(|sample| sample.at_least(noise)).collect()
    }
}

pub(super) struct Quiet {
    left: Duration,
    once: Duration,
}

impl Quiet {
    /// Waits no longer than `budget` in all.
    pub(super) fn new(budget: Duration) -> Quiet {
        Quiet { left: budget, once: budget / SHARE }
    }

    /// Measures, and again if the machine was busy; gives the least disturbed result.
    pub(super) fn measure<T: Disturbed>(
        &mut self,
        mut f: impl FnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let mut best: Option<T> = None;
        for _ in 1..TRIES {
            let sample = self.attempt(&mut f)?;
            let done = sample.noise() <= NOISE_MAX || self.left.is_zero();
            if best.as_ref().is_none_or(|b| sample.noise() < b.noise()) {
                best = Some(sample);
            }
            if let Some(sample) = best.take_if(|_| done) {
                return Ok(sample);
            }
        }
        let last = self.attempt(&mut f)?;
        Ok(best.filter(|b| b.noise() < last.noise()).unwrap_or(last))
    }

    fn attempt<T: Disturbed>(&mut self, f: &mut impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let before = self.wait()?;
        let sample = f()?;
        Ok(sample.at_least(before.max(noise()?)))
    }

    fn wait(&mut self) -> anyhow::Result<f64> {
        let start = Instant::now();
        let mut found = noise()?;
        let first = start.elapsed();
        while found > NOISE_MAX && start.elapsed() < self.once.min(self.left) {
            std::thread::sleep(PAUSE);
            found = noise()?;
        }
        self.left = self.left.saturating_sub(start.elapsed().saturating_sub(first));
        Ok(found)
    }
}

/// The share of all cores' time that was not idle, over a short look.
fn noise() -> anyhow::Result<f64> {
    let load = Load::now()?;
    std::thread::sleep(LOOK);
    Ok(load.since()?.without(0.0))
}

/// Seconds of all cores: since boot, or over a span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    all: f64,
    idle: f64,
}

impl Load {
    /// Since boot.
    pub(super) fn now() -> anyhow::Result<Load> {
        let hertz = sysconf(SysconfVar::CLK_TCK)?.unwrap_or(100) as f64;
        Ok(Load::parse(&std::fs::read_to_string("/proc/stat")?, hertz))
    }

    fn parse(stat: &str, hertz: f64) -> Load {
        let first = stat.lines().next().unwrap_or_default();
        // The two fields after these, guests, are counted in them already.
        let ticks = first.split_whitespace().skip(1).take(8).filter_map(|t| t.parse::<f64>().ok());
        let seconds: Vec<f64> = ticks.map(|t| t / hertz).collect();
        Load { all: seconds.iter().sum(), idle: seconds.iter().skip(3).take(2).sum() }
    }

    /// From `self` until now.
    pub(super) fn since(self) -> anyhow::Result<Load> {
        let now = Load::now()?;
        Ok(Load { all: now.all - self.all, idle: now.idle - self.idle })
    }

    /// The share of the machine that was used, beside `own_s` CPU seconds.
    pub(super) fn without(self, own_s: f64) -> f64 {
        ((self.all - self.idle - own_s) / self.all.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Load;

    #[test]
    fn guests_are_not_counted_twice() {
        let load = Load::parse("cpu  100 200 300 4000 5000 600 700 800 900 1000\ncpu0 1", 100.0);
        assert_eq!(load, Load { all: 117.0, idle: 90.0 });
        assert_eq!(Load::parse("", 100.0).without(0.0), 0.0);
    }

    #[test]
    fn ones_own_work_is_no_noise() {
        let load = Load { all: 10.0, idle: 4.0 };
        assert_eq!((load.without(1.0), load.without(6.0), load.without(7.0)), (0.5, 0.0, 0.0));
    }
}
