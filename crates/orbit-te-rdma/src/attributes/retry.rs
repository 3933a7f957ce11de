//! How often and how long a QP tries before it gives up. Rule: the sum of all tries stays within the time that it is given, and a count
//! or a timeout that means for ever is never chosen.

use std::time::Duration;

/// How long a sender waits before it tries again where no receive was posted, by the number that the InfiniBand specification has for
/// it (table 46 in volume 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MinRnrTimer(u8);

/// The times in units of 10 microseconds, by number. Number zero is the longest.
const RNR_TIMES: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

impl MinRnrTimer {
    /// The longest that is at most `wait`; the shortest, of 10 microseconds, where none is.
    pub fn within(wait: Duration) -> MinRnrTimer {
        let longest = (1..32u8).rev().find(|number| MinRnrTimer(*number).time() <= wait);
        let longest = if MinRnrTimer(0).time() <= wait { Some(0) } else { longest };
        MinRnrTimer(longest.unwrap_or(1))
    }

    /// The number that verbs have for it.
    pub fn number(self) -> u8 {
        self.0
    }

    /// How long it is.
    pub fn time(self) -> Duration {
        Duration::from_micros(10 * u64::from(RNR_TIMES[usize::from(self.0 & 31)]))
    }
}

/// How often and how long a QP tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The time for an acknowledgement, as an exponent: 4.096 µs times 2 to the power of it. Never 0, which is for ever.
    pub timeout: u8,
    /// How often it tries again after that time. Never 7, which is for ever on some devices.
    pub count: u8,
    /// How often it tries again where the peer has no receive posted. Never 7, which is for ever.
    pub rnr_count: u8,
    /// How long the peer is asked to wait each time.
    pub min_rnr_timer: MinRnrTimer,
}

impl Retry {
    /// The shortest time for an acknowledgement that is asked for, 4.2 ms: shorter ones are below the timers of some devices and of
    /// Soft-RoCE.
    pub const LEAST_TIMEOUT: u8 = 10;
    /// The longest, 8.6 s.
    pub const MOST_TIMEOUT: u8 = 21;
    /// The most tries after the first.
    pub const MOST_COUNT: u8 = 6;

    /// How long all tries take together, if no acknowledgement comes: `(count + 1) * 4.096 µs * 2^timeout`. Devices round up a little.
    pub fn budget(&self) -> Duration {
        let one = 4096u64 << u32::from(self.timeout.min(31));
        Duration::from_nanos(one * (u64::from(self.count) + 1))
    }

    /// How long a peer without receives is waited for.
    pub fn rnr_budget(&self) -> Duration {
        self.min_rnr_timer.time() * (u32::from(self.rnr_count) + 1)
    }

    /// The least that can be asked for: a try and another.
    pub const fn least() -> Retry {
        Retry { timeout: Retry::LEAST_TIMEOUT, count: 1, rnr_count: 1, min_rnr_timer: MinRnrTimer(1) }
    }
}

/// The longest that stays within `share`, which is the part of a transfer's deadline that a QP may take to give up: at least two
/// thirds of it, up to the longest that is ever asked for, which is 60 seconds. Among those of about one length the one with most
/// tries. [`Retry::least`] where the share is shorter than that takes: then the transfer's own deadline comes first.
pub fn retry_for(share: Duration) -> Retry {
    let all = (Retry::LEAST_TIMEOUT..=Retry::MOST_TIMEOUT).flat_map(|timeout| {
        (1..=Retry::MOST_COUNT).map(move |count| Retry { timeout, count, ..Retry::least() })
    });
    let within = all.filter(|retry| retry.budget() <= share);
    let best = within.max_by_key(|retry| (retry.budget(), retry.count)).unwrap_or(Retry::least());
    let rnr_count = Retry::MOST_COUNT;
    // Receives are posted again within microseconds where the peer lives at all: longer pauses than 10 ms only lose time.
    let each = (share / (u32::from(rnr_count) + 1)).min(Duration::from_millis(10));
    Retry { rnr_count, min_rnr_timer: MinRnrTimer::within(each), ..best }
}
