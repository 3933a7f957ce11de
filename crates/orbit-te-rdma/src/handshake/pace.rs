//! How long a handshake waits for what, and a connection with its clock. Rule: time is an argument; the same inputs at the same times
//! give the same actions.

use super::machine::{Action, Fault, Input, Machine};
use super::table::State;
use std::time::{Duration, Instant};

/// How long to wait for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How long an answer is waited for before the message is sent again. Doubles each time, up to eight times as long.
    pub resend: Duration,
    /// How long making and wiring QPs may take.
    pub work: Duration,
    /// The pause after a first failure. Doubles with each, up to `longest_pause`.
    pub pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// How much longer the side waits whose offer has no precedence, so that the other goes first.
    pub yielding: Duration,
    /// A connection that stood for so long has made up for the failures before it. A shorter one has not, so that one that comes and
    /// goes is not tried at full speed.
    pub settled: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            resend: Duration::from_millis(200),
            work: Duration::from_secs(10),
            pause: Duration::from_millis(20),
            longest_pause: Duration::from_secs(10),
            yielding: Duration::from_millis(20),
            settled: Duration::from_secs(10),
        }
    }
}

impl Pace {
    /// The pause after so many failures.
    pub fn pause(&self, failures: u8) -> Duration {
        match failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => {
                self.pause.saturating_mul(1 << u32::from(doublings).min(30)).min(self.longest_pause)
            }
        }
    }

    /// How long an answer is waited for when the message was sent so often.
    pub fn resend(&self, sends: u8) -> Duration {
        self.resend.saturating_mul(1 << u32::from(sends.saturating_sub(1)).min(3))
    }
}

/// A connection with its clock.
#[derive(Debug, Clone)]
pub struct Timed {
    machine: Machine,
    pace: Pace,
    due: Option<Instant>,
    up_since: Option<Instant>,
}

impl Timed {
    /// A connection that goes by this pace.
    pub fn new(machine: Machine, pace: Pace) -> Timed {
        Timed { machine, pace, due: None, up_since: None }
    }

    /// The connection.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// When [`Timed::tick`] has something to do; none: not before something else happens.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes an input, as [`Machine::take`] does.
    ///
    /// # Errors
    /// As [`Machine::take`].
    pub fn take(&mut self, input: Input, now: Instant, out: &mut Vec<Action>) -> Result<(), Fault> {
        if self.up_since.is_some_and(|since| now.saturating_duration_since(since) >= self.pace.settled) {
            self.machine.settle();
        }
        let before = (self.machine.state(), self.machine.ours());
        let taken = self.machine.take(input, out);
        let after = self.machine.state();
        let again = matches!(input, Input::Time | Input::LinkUp { .. } | Input::LinkLost);
        let moved = again || before != (after, self.machine.ours());
        if moved || self.due.is_none() {
            // A pause that is too long to be told is none that ends.
            self.due = self.machine.patience(&self.pace).and_then(|wait| now.checked_add(wait));
        }
        self.up_since = after.is_up().then(|| self.up_since.unwrap_or(now));
        taken
    }

    /// What it failed by may be over: failures are forgotten, and the pause ends now. Whether it was waiting for that.
    pub fn hurry(&mut self, now: Instant) -> bool {
        let waits = self.machine.state() == State::Waiting && self.due.is_some();
        if waits {
            self.machine.settle();
            self.due = Some(now);
        }
        waits
    }

    /// Tells the connection that its patience is over, if it is.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.due.is_some_and(|due| due <= now) {
            // Time is a legal input in every state.
            let _ = self.take(Input::Time, now, out);
        }
    }
}
