//! What a peer looked like when a transfer to it was not done in time. Rule: judged once, from signs that the system gave at that
//! moment; words and numbers say what was seen, and nothing follows from it: the peer is used again as before.

use orbit_te_transport::Signs;
use std::fmt;
use std::time::Duration;

/// Less silence than this may be a busy machine.
const SILENCE: Duration = Duration::from_millis(100);

/// What a peer looked like at the deadline of a transfer: [`crate::TransferError::Deadline`] has it where something is known. It is of
/// the peer of the first request that was not done, and it is judged anew each time: nothing marks a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerCondition {
    /// It answers, or makes room for more bytes, and was too slow for this deadline.
    Slow {
        /// Bytes of the transfer that are known to be in place.
        bytes: u64,
        /// How long ago it last did, at most.
        quiet_for: Duration,
    },
    /// Its host acknowledges what it gets, and its process neither takes nor answers anything: it is stopped, hangs, or gets no CPU.
    Stalled {
        /// For how long there was no sign of it.
        silent_for: Duration,
    },
    /// Its host acknowledges nothing, although there was time for it: the host or the path to it is gone, and the connection stands half
    /// open.
    Unreachable {
        /// For how long nothing was acknowledged.
        unacknowledged_for: Duration,
    },
}

/// In less time nothing follows from a host's making room: what it had no memory for at first is sent again after a fifth of a second,
/// and what it takes then looks like more.
const ROOM_TELLS: Duration = Duration::from_secs(1);

impl PeerCondition {
    /// What these signs mean at the end of so long a transfer, and that the peer was heard so long ago on its control link. Half of the
    /// time without a word is silence.
    pub(crate) fn judge(signs: Signs, control: Option<Duration>, time: Duration) -> Option<PeerCondition> {
        let long = time / 2;
        let slow = |quiet_for| Some(PeerCondition::Slow { bytes: 0, quiet_for });
        // What was silent before the transfer began says nothing about it.
        let lost = signs.unacknowledged_for.map(|lost| lost.min(time));
        let quiet = signs.quiet_for.map(|quiet| quiet.min(time));
        match (quiet, lost) {
            // Also beside a lane whose packets are lost: that is what a crowded path does.
            (Some(quiet), _) if quiet < long => return slow(quiet),
            (_, Some(lost)) if lost >= long => {
                return Some(PeerCondition::Unreachable { unacknowledged_for: lost });
            }
            _ => {}
        }
        let silent_for = quiet?.min(control.unwrap_or(time));
        let took = signs.took_ago.filter(|took| time >= ROOM_TELLS && *took < long / 2);
        match took {
            _ if silent_for < long => slow(silent_for),
            Some(took) => slow(took),
            None => (silent_for >= SILENCE).then_some(PeerCondition::Stalled { silent_for }),
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
                "the peer is slow: {bytes} bytes are in place, and its last sign was {} ms before",
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

    /// Unacknowledged, without a byte, without room, and without a word, each for so many milliseconds of a thousand.
    fn check(row: [Option<u64>; 4], wanted: Option<PeerCondition>) {
        let [unacknowledged_for, quiet_for, took_ago, control] = row.map(|since| since.map(ms));
        let signs = Signs { unacknowledged_for, quiet_for, took_ago };
        assert_eq!(PeerCondition::judge(signs, control, ms(1000)), wanted, "{row:?}");
    }

    #[test]
    fn signs_are_judged() {
        let slow = |quiet| Some(PeerCondition::Slow { bytes: 0, quiet_for: ms(quiet) });
        let stalled = |silent| Some(PeerCondition::Stalled { silent_for: ms(silent) });
        let gone = |lost| Some(PeerCondition::Unreachable { unacknowledged_for: ms(lost) });
        let no = None;
        check([no, no, no, no], None);
        check([no, Some(0), no, no], slow(0));
        check([no, Some(499), no, Some(900)], slow(499));
        check([no, Some(500), no, no], stalled(500));
        check([no, Some(60_000), no, Some(70_000)], stalled(1000));
        // No lane has anything to say, and the control link does: nothing is explained by that.
        check([no, no, no, Some(3)], None);
        // It moves nothing, and its process answers.
        check([no, Some(60_000), no, Some(3)], slow(3));
        check([no, Some(60_000), no, Some(500)], stalled(500));
        check([Some(500), Some(700), no, no], gone(500));
        check([Some(500), no, no, no], gone(500));
        check([Some(60_000), Some(60_000), no, Some(700)], gone(1000));
        // Its lanes are lost, and another connection is not.
        check([Some(800), Some(800), no, Some(3)], gone(800));
        // Lost packets beside lanes that move, and one on a lane whose peer is stopped.
        check([Some(210), Some(3), no, no], slow(3));
        check([Some(900), Some(3), no, no], slow(3));
        check([Some(210), Some(900), no, no], stalled(900));
        check([Some(400), no, no, no], None);
        // It makes room for a write, and has said nothing yet.
        check([no, Some(60_000), Some(249), Some(900)], slow(249));
        check([no, Some(60_000), Some(250), Some(900)], stalled(900));
        check([no, Some(30), Some(200), no], slow(30));
    }

    /// In a short time room means nothing, and neither does a short silence.
    #[test]
    fn short_times_tell_less() {
        let signs = |quiet| Signs { quiet_for: Some(ms(quiet)), took_ago: Some(ms(1)), ..Signs::default() };
        let stalled = |silent| Some(PeerCondition::Stalled { silent_for: ms(silent) });
        assert_eq!(PeerCondition::judge(signs(900), None, ms(900)), stalled(900));
        assert_eq!(PeerCondition::judge(signs(99), None, ms(150)), None);
        assert_eq!(PeerCondition::judge(signs(100), None, ms(150)), stalled(100));
    }

    #[test]
    fn bytes_are_known_at_the_end() {
        let slow = PeerCondition::Slow { bytes: 0, quiet_for: ms(1) };
        assert_eq!(slow.at_the_end(7), PeerCondition::Slow { bytes: 7, quiet_for: ms(1) });
        let stalled = PeerCondition::Stalled { silent_for: ms(1) };
        assert_eq!(stalled.at_the_end(7), stalled);
    }
}
