//! What is to go wrong, and what was called. Rule: a plan is asked at each call only while there is something in it.

use super::rng::Rng;
use super::spec::DeviceId;
use super::stray::Strays;
use crate::error::Errno;
use crate::verb::Verb;
use std::time::Duration;

/// Which calls a fault hits, of those of its verb since it was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The n-th, counted from 1, and no other.
    Nth(u64),
    /// So many of a million, as the seed has it.
    Share(u32),
    /// The first so many.
    First(u64),
    /// All.
    Always,
}

/// A call that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// What was called.
    pub verb: Verb,
    /// The number of the object it was called for, among its kind; of its parent, where it makes one.
    pub object: u32,
    /// Whether it was made to fail.
    pub failed: Option<Errno>,
}

/// The QPs that a fault of completions hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// All.
    Everywhere,
    /// Those of a device.
    Device(DeviceId),
    /// One, by its device and number.
    Qp(DeviceId, u32),
}

/// What happens to CQEs. Work is done in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CqeFault {
    /// They come later by a time between these, by the fabric's clock; those of one QP stay in order.
    Late(Duration, Duration),
    /// So many of a million never come.
    Lost(u32),
}

/// How much of what was planned has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Met {
    /// Calls that were refused, or could not free what they were to free.
    pub calls: u64,
    /// Posts that took less than all of their chain.
    pub short_posts: u64,
    /// CQEs that came later.
    pub late: u64,
    /// CQEs that never came.
    pub lost: u64,
    /// WRITEs that landed after their QP had failed.
    pub strays: u64,
}

struct Rule {
    /// `None` is any.
    verb: Option<Verb>,
    when: When,
    errno: Errno,
    seen: u64,
}

struct ShortPost {
    when: When,
    taken: u32,
    errno: Errno,
    seen: u64,
}

#[derive(Default)]
pub(super) struct Plan {
    /// Whether calls must ask at all.
    pub(super) active: bool,
    rules: Vec<Rule>,
    short: Vec<ShortPost>,
    pub(super) cqes: Vec<(Where, CqeFault)>,
    pub(super) strays: Option<Strays>,
    pub(super) met: Met,
    recording: bool,
    calls: Vec<Call>,
}

impl When {
    fn hits(self, seen: u64, rng: &mut Rng) -> bool {
        match self {
            When::Nth(n) => seen == n,
            When::Share(share) => rng.happens(share),
            When::First(n) => seen <= n,
            When::Always => true,
        }
    }
}

impl Plan {
    pub(super) fn fail(&mut self, verb: Option<Verb>, when: When, errno: Errno) {
        self.rules.push(Rule { verb, when, errno, seen: 0 });
        self.active = true;
    }

    pub(super) fn short_posts(&mut self, when: When, taken: u32, errno: Errno) {
        self.short.push(ShortPost { when, taken, errno, seen: 0 });
        self.active = true;
    }

    /// Nothing goes wrong any more; recording goes on.
    pub(super) fn heal(&mut self) {
        self.rules.clear();
        self.short.clear();
        self.cqes.clear();
        self.strays = None;
        self.active = self.recording;
    }

    pub(super) fn record(&mut self, on: bool) {
        self.recording = on;
        self.active = on || !self.rules.is_empty() || !self.short.is_empty();
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Counts a call, and says whether it is to fail.
    #[cold]
    pub(super) fn ask(&mut self, verb: Verb, object: u32, rng: &mut Rng) -> Result<(), Errno> {
        let mut failed = None;
        for rule in self.rules.iter_mut().filter(|rule| rule.verb.is_none_or(|ruled| ruled == verb)) {
            rule.seen += 1;
            if failed.is_none() && rule.when.hits(rule.seen, rng) {
                failed = Some(rule.errno);
            }
        }
        self.met.calls += u64::from(failed.is_some());
        if self.recording {
            self.calls.push(Call { verb, object, failed });
        }
        failed.map_or(Ok(()), Err)
    }

    /// How many WRs a post takes before it fails, if it is to.
    #[cold]
    pub(super) fn ask_short(&mut self, rng: &mut Rng) -> Option<(u32, Errno)> {
        let mut short = None;
        for rule in &mut self.short {
            rule.seen += 1;
            if short.is_none() && rule.when.hits(rule.seen, rng) {
                short = Some((rule.taken, rule.errno));
            }
        }
        self.met.short_posts += u64::from(short.is_some());
        short
    }
}
