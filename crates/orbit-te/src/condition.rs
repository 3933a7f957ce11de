//! What a peer looked like when a transfer to it was not done in time. Rule: judged once, from signs that the system gave at that
//! moment; words and numbers say what was seen, and nothing follows from it: the peer is used again as before.

use orbit_te_transport::Signs;
use std::fmt;
use std::time::Duration;

/// What a peer looked like at the deadline of a transfer: [`crate::TransferError::Deadline`] has it where something is known. It is of
/// the peer of the first request that was not done, and it is judged anew each time: nothing marks a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerCondition {
    /// Bytes moved until shortly before: it answers, or makes room for more, and was too slow for this deadline.
    Slow {
        /// Bytes of the transfer that are known to be in place.
        bytes: u64,
        /// For how long nothing had moved, at most.
        quiet_for: Duration,
    },
    /// Its host acknowledges what it gets, and its process neither takes nor answers anything: it is stopped, hangs, or gets no CPU.
    Stalled {
        /// For how long nothing had moved.
        silent_for: Duration,
    },
    /// Its host acknowledges nothing, although it was asked again: the host or the path to it is gone, and the connection stands half
    /// open.
    Unreachable {
        /// For how long nothing was acknowledged.
        unacknowledged_for: Duration,
    },
}

impl PeerCondition {
    /// What these signs mean at the end of so long a transfer. Half of its time without a byte from the peer, and a quarter without
    /// room for more, is silence.
    pub(crate) fn judge(signs: Signs, time: Duration) -> Option<PeerCondition> {
        let long = time / 2;
        // What was silent before the transfer began says nothing about it.
        let lost = signs.unacknowledged_for.map(|lost| lost.min(time));
        let quiet = signs.quiet_for.map(|quiet| quiet.min(time));
        let heard = quiet.filter(|quiet| *quiet < long);
        let took = signs.took_ago.filter(|took| *took < long / 2);
        let moved = [heard, took].into_iter().flatten().min();
        match (lost, moved) {
            // Also beside a lane whose packets are lost: that is what a crowded path does.
            (_, Some(quiet_for)) => Some(PeerCondition::Slow { bytes: 0, quiet_for }),
            (Some(lost), _) if lost >= long => Some(PeerCondition::Unreachable { unacknowledged_for: lost }),
            _ => quiet.map(|silent_for| PeerCondition::Stalled { silent_for }),
        }
    }

    /// The same, with the bytes that are known to be in place when all of the transfer is over.
    pub(crate) fn at_the_end(mut self, in_place: u64) -> PeerCondition {
        if let PeerCondition::Slow { bytes, .. } = &mut self {
            *bytes = in_place;
        }
        self
    }
}

impl fmt::Display for PeerCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerCondition::Slow { bytes, quiet_for } => write!(
                f,
                "the peer is slow: {bytes} bytes are in place, and it was last heard {} ms before",
                quiet_for.as_millis()
            ),
            PeerCondition::Stalled { silent_for } => write!(
                f,
                "the peer is stalled: its host acknowledges, but its process took and answered nothing for {} ms; is it stopped?",
                silent_for.as_millis()
            ),
            PeerCondition::Unreachable { unacknowledged_for } => write!(
                f,
                "the peer is out of reach: its host acknowledged nothing for {} ms; is it, or the path to it, gone?",
                unacknowledged_for.as_millis()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn check(unacknowledged: Option<u64>, quiet: Option<u64>, wanted: Option<PeerCondition>) {
        check_took(unacknowledged, quiet, None, wanted);
    }

    fn check_took(
        unacknowledged: Option<u64>,
        quiet: Option<u64>,
        took: Option<u64>,
        wanted: Option<PeerCondition>,
    ) {
        let signs = Signs {
            unacknowledged_for: unacknowledged.map(ms),
            quiet_for: quiet.map(ms),
            took_ago: took.map(ms),
        };
        assert_eq!(PeerCondition::judge(signs, ms(1000)), wanted, "{signs:?}");
    }

    #[test]
    fn signs_are_judged() {
        let slow = |quiet| Some(PeerCondition::Slow { bytes: 0, quiet_for: ms(quiet) });
        let stalled = |silent| Some(PeerCondition::Stalled { silent_for: ms(silent) });
        let gone = |lost| Some(PeerCondition::Unreachable { unacknowledged_for: ms(lost) });
        check(None, None, None);
        check(None, Some(0), slow(0));
        check(None, Some(499), slow(499));
        check(None, Some(500), stalled(500));
        check(None, Some(60_000), stalled(1000));
        check(Some(500), Some(700), gone(500));
        check(Some(500), None, gone(500));
        check(Some(60_000), Some(60_000), gone(1000));
        // Lost packets beside lanes that move, and one on a lane whose peer is stopped.
        check(Some(210), Some(3), slow(3));
        check(Some(900), Some(3), slow(3));
        check(Some(210), Some(900), stalled(900));
        check(Some(400), None, None);
        // It makes room for a write, and has not answered yet.
        check_took(None, Some(60_000), Some(249), slow(249));
        check_took(None, Some(60_000), Some(250), stalled(1000));
        check_took(None, Some(30), Some(200), slow(30));
    }

    #[test]
    fn bytes_are_known_at_the_end() {
        let slow = PeerCondition::Slow { bytes: 0, quiet_for: ms(1) };
        assert_eq!(slow.at_the_end(7), PeerCondition::Slow { bytes: 7, quiet_for: ms(1) });
        let stalled = PeerCondition::Stalled { silent_for: ms(1) };
        assert_eq!(stalled.at_the_end(7), stalled);
    }
}
