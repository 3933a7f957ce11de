//! How long a route to a peer rests after failures. Rule: failures of one moment are one failure; a success halves the pause instead of
//! erasing it, and at most once in the time of a pause.

use super::policy::Settings;
use super::reason::Reason;
use std::time::{Duration, Instant};

/// How one route to one peer has been lately.
#[derive(Debug, Clone, Copy)]
pub struct Health {
    first: Duration,
    most: Duration,
    /// How long the next failure makes it rest.
    pause: Duration,
    /// Failures since the last success, those of one moment counted once.
    failures: u32,
    until: Option<Instant>,
    /// Until then a success halves nothing more.
    proven: Option<Instant>,
    last: Option<Reason>,
}

impl Health {
    /// Nothing has failed yet.
    pub fn new(settings: &Settings) -> Health {
        let first = settings.rest.min(settings.most_rest);
        let most = settings.most_rest;
        Health { first, most, pause: first, failures: 0, until: None, proven: None, last: None }
    }

    /// An op or the link failed, and the route is to blame. While it rests this is what is left of the same failure, and prolongs
    /// nothing. Tells until when it rests.
    pub fn failed(&mut self, now: Instant, reason: Reason) -> Instant {
        self.last = Some(reason);
        if let Some(until) = self.resting_until(now) {
            return until;
        }
        let until = now + self.pause;
        self.failures = self.failures.saturating_add(1);
        self.pause = (self.pause * 2).min(self.most);
        (self.until, self.proven) = (Some(until), None);
        until
    }

    /// An op succeeded. One that began before the failure and ends in the rest proves nothing.
    pub fn succeeded(&mut self, now: Instant) {
        if self.failures == 0 && self.pause == self.first {
            return;
        }
        if self.resting_until(now).is_some() || self.proven.is_some_and(|until| now < until) {
            return;
        }
        (self.failures, self.until) = (0, None);
        self.pause = (self.pause / 2).max(self.first);
        self.proven = Some(now + self.pause);
    }

    /// Until when it rests; none if it does not.
    pub fn resting_until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| now < *until)
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How long the next failure makes it rest.
    pub fn next_pause(&self) -> Duration {
        self.pause
    }

    /// Why it failed last.
    pub fn last_reason(&self) -> Option<Reason> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        Health::new(&Settings::default())
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let (mut health, mut now) = (health(), Instant::now());
        for wanted in [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000] {
            let until = health.failed(now, Reason::LinkDown);
            assert_eq!(until - now, ms(wanted));
            now = until;
            assert_eq!(health.resting_until(now), None);
        }
        assert_eq!((health.failures(), health.last_reason()), (11, Some(Reason::LinkDown)));
    }

    #[test]
    fn failures_of_one_moment_are_one() {
        let (mut health, now) = (health(), Instant::now());
        let until = health.failed(now, Reason::LinkDown);
        (0..100).for_each(|at| assert_eq!(health.failed(now + ms(at) / 2, Reason::LinkDown), until));
        assert_eq!((health.failures(), health.next_pause()), (1, ms(200)));
    }

    #[test]
    fn a_success_halves_and_many_at_once_do_no_more() {
        let (mut health, mut now) = (health(), Instant::now());
        for _ in 0..4 {
            now = health.failed(now, Reason::LinkDown);
        }
        health.succeeded(now - ms(1));
        assert_eq!((health.next_pause(), health.failures()), (ms(1600), 4), "it rests still");
        (0..100).for_each(|_| health.succeeded(now));
        assert_eq!((health.next_pause(), health.failures()), (ms(800), 0));
        health.succeeded(now + ms(799));
        assert_eq!(health.next_pause(), ms(800));
        health.succeeded(now + ms(800));
        assert_eq!(health.next_pause(), ms(400));
        assert_eq!(health.failed(now + ms(801), Reason::LinkDown), now + ms(801 + 400));
    }

    #[test]
    fn a_route_that_never_failed_is_not_touched_by_successes() {
        let (mut health, now) = (health(), Instant::now());
        health.succeeded(now);
        assert_eq!(
            (health.next_pause(), health.resting_until(now), health.last_reason()),
            (ms(100), None, None)
        );
    }
}
