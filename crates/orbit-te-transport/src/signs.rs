//! What a transport can say of a link when it is asked: its lanes, and whether the peer gives a sign of life. Rule: facts, not
//! verdicts; asked for when somebody waits for a link or explains a failure, never for each op.

use std::time::Duration;

/// The lanes of a link: what it moves bytes by (connections, queue pairs). A transport that has no such thing counts one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkLanes {
    /// Those that can move bytes now.
    pub up: u32,
    /// Those that the transport keeps wherever it can.
    pub wanted: u32,
    /// Whether none is up, and ops that wait for one are told so by now: they fail as
    /// [`OpErrorCode::Unreachable`](crate::OpErrorCode::Unreachable).
    pub unreachable: bool,
}

/// Signs of life that a peer gives on the lanes of a link on which something is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signs {
    /// For how long the peer's *host* has left sent bytes unacknowledged that it had time for: the shortest of all lanes.
    /// None while it acknowledges on any of them, and where the transport can't tell.
    pub unacknowledged_for: Option<Duration>,
    /// For how long no byte has come from the peer while something is under way: the shortest of all lanes. None when nothing is
    /// under way, and where the transport can't tell.
    pub quiet_for: Option<Duration>,
    /// At most so long ago the peer made room for more of what waits to be sent: the shortest of all lanes. None when nothing waits,
    /// since what its host buffers is no sign of its process.
    pub took_ago: Option<Duration>,
}

impl Signs {
    /// Adds what another lane says.
    pub fn add(&mut self, lane: Signs) {
        self.unacknowledged_for = least(self.unacknowledged_for, lane.unacknowledged_for);
        self.quiet_for = least(self.quiet_for, lane.quiet_for);
        self.took_ago = least(self.took_ago, lane.took_ago);
    }
}

fn least(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    [one, other].into_iter().flatten().min()
}
