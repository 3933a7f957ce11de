//! What was chosen last for a segment of a peer. Rule: a change is told once, when it happens; what one op does for itself (a probe, a
//! retry, a demand) is no change.

use super::id::RouteId;
use super::plan::Plan;
use super::rates::{CLASSES, SizeClass};
use super::reason::Reason;
use orbit_te_transport::OpKind;

/// The route of a direction and class of sizes changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The one that was left; none when this is the first choice.
    pub from: Option<RouteId>,
    /// The one that is taken now.
    pub to: RouteId,
    /// Why the one before was left; none when this is the first choice.
    pub reason: Option<Reason>,
}

/// The routes that were chosen last for one segment of one peer, by direction and class of sizes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choices([[Option<RouteId>; CLASSES]; 2]);

impl Choices {
    /// The one that was chosen last for ops like this.
    pub fn last(&self, kind: OpKind, bytes: u64) -> Option<RouteId> {
        self.0[kind as usize][SizeClass::of(bytes).index()]
    }

    /// Takes in a plan, and tells of a change. A refusal is none: the next choice is compared with the one before it.
    pub fn note(&mut self, kind: OpKind, bytes: u64, plan: &Plan) -> Option<Change> {
        let to = plan.route.ok().filter(|_| !plan.why.is_passing())?;
        let place = &mut self.0[kind as usize][SizeClass::of(bytes).index()];
        let from = place.replace(to);
        if from == Some(to) {
            return None;
        }
        let left = |from| plan.others.of(from).unwrap_or(Reason::NotBuilt);
        Some(Change { from, to, reason: from.map(left) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Causes, Refusal, Why};
    use super::*;
    use std::time::Duration;

    fn plan(route: RouteId, why: Why, other: RouteId) -> Plan {
        let mut others = Causes::default();
        others.set(0, other, Reason::LinkDown);
        Plan { route: Ok(route), expected: Duration::ZERO, chunk_bytes: 0, why, others }
    }

    #[test]
    fn a_change_is_told_once() {
        let (shm, tcp) = (RouteId::SHM, RouteId::TCP);
        let mut choices = Choices::default();
        let first = choices.note(OpKind::Read, 100, &plan(shm, Why::Fastest, tcp));
        assert_eq!(first, Some(Change { from: None, to: shm, reason: None }));
        assert_eq!(choices.note(OpKind::Read, 200, &plan(shm, Why::Preferred, tcp)), None);
        for passing in [Why::Probe, Why::Retry, Why::Spilled, Why::Demanded] {
            assert_eq!(choices.note(OpKind::Read, 100, &plan(tcp, passing, shm)), None);
            assert_eq!(choices.last(OpKind::Read, 100), Some(shm));
        }
        let left = choices.note(OpKind::Read, 100, &plan(tcp, Why::OnlyOne, shm));
        assert_eq!(left, Some(Change { from: Some(shm), to: tcp, reason: Some(Reason::LinkDown) }));
        assert_eq!(choices.note(OpKind::Read, 100, &plan(tcp, Why::OnlyOne, shm)), None);
        assert_eq!(choices.last(OpKind::Write, 100), None);
        assert_eq!(choices.last(OpKind::Read, 1 << 20), None);
    }

    #[test]
    fn a_refusal_and_a_route_that_is_gone() {
        let (shm, tcp) = (RouteId::SHM, RouteId::TCP);
        let mut choices = Choices::default();
        choices.note(OpKind::Read, 1, &plan(RouteId::RDMA, Why::OnlyOne, tcp));
        let refused = Plan {
            route: Err(Refusal { demanded: None, causes: Causes::default() }),
            ..plan(shm, Why::OnlyOne, tcp)
        };
        assert_eq!(choices.note(OpKind::Read, 1, &refused), None);
        let change = choices.note(OpKind::Read, 1, &plan(shm, Why::OnlyOne, tcp)).unwrap();
        assert_eq!((change.from, change.reason), (Some(RouteId::RDMA), Some(Reason::NotBuilt)));
    }
}
