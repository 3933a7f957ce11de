//! What a transport's test supplies to the suite: two ends of the transport, and a way to hurt the links between them.
//! Rule: a pair only carries out; all driving, all waiting and all checking is the harness's.
//!
//! It checks nothing itself.

use crate::op::LinkId;
use crate::testing::letters::Letters;
use crate::transport::Transport;
use orbit_te_memory::{Domain, Registry};
use orbit_te_wire::RegionDescriptor;
use std::sync::Arc;
use std::time::Duration;

/// The memory half of one end: the regions, and the domain that makes them reachable.
#[derive(Clone)]
pub struct Side {
    /// The regions of that end.
    pub registry: Arc<Registry>,
    /// The domain of that end's transport.
    pub domain: Arc<dyn Domain>,
}

/// An initiator and one or two targets, all in this process, all driven by the thread that runs the row.
///
/// Each row gets a fresh pair. Dropping a pair ends both sides.
pub trait Pair {
    /// The transport under test: the one that ops are submitted to.
    fn initiator(&mut self) -> &mut dyn Transport;

    /// The initiator's memory.
    fn here(&self) -> Side;

    /// The target's memory.
    fn target(&self) -> Side;

    /// Begins a fresh link from the initiator to the target, by [`Transport::connect`]. Does not poll the initiator, and
    /// need not wait until the link is up.
    fn connect(&mut self) -> LinkId;

    /// Lets every target make progress once, without blocking. Does not touch the initiator, except by
    /// [`Transport::deliver`]: so the counterparts' answers to what was carried to them ([`Pair::carry`]) reach it. They are in order, and
    /// not given to it by `carry` itself, since the initiator is not to hear an answer while it still speaks. What it says to them is the
    /// pair's to look at: the links of answers that it does not take are closed, which the harness sees by their ops.
    fn pump(&mut self);

    /// Makes this link fail abruptly, as if its cables had been cut, from any state; for a moment only, so that trying
    /// again succeeds. Other links stay as they are. Does not poll the initiator.
    fn break_link(&mut self, link: LinkId);

    /// Whether the pair has somebody on the way who does damage: [`Pair::damage_next`].
    fn can_damage(&self) -> bool {
        false
    }

    /// Changes one byte of the next verified payload on its way, whichever way it goes; asked for only where
    /// [`Pair::can_damage`] says yes. Does not poll the initiator.
    fn damage_next(&mut self) {
        panic!("this pair says that it can damage bytes, so it must implement `damage_next`")
    }

    /// Where the target hands in notifications; none where it does not.
    fn letters(&self) -> Option<Arc<Letters>> {
        None
    }

    /// The memory of a second target that shares nothing with the first; none, and rows use a second link instead.
    fn second_target(&self) -> Option<Side> {
        None
    }

    /// As [`Pair::connect`], to the second target; asked for only where [`Pair::second_target`] gives one.
    fn connect_second(&mut self) -> LinkId {
        panic!("this pair has a second target, so it must implement `connect_second`")
    }

    /// Begins a link to an address at which nobody answers; none where the transport knows no such thing.
    fn connect_unreachable(&mut self) -> Option<LinkId> {
        None
    }

    /// Carries the bytes of an [`Event::Control`](crate::Event::Control) of the initiator to the counterpart at the target
    /// ([`Counterpart::deliver`](crate::Counterpart::deliver)). Keeps what that answers for the next [`Pair::pump`].
    fn carry(&mut self, _link: LinkId, _bytes: Vec<u8>) {
        panic!("this transport sends control bytes, so its pair must implement `carry`")
    }

    /// The same description with a key that the owner never gave out. Override it where turning all bits over gives no
    /// wrong key.
    fn forge(&self, descriptor: &RegionDescriptor) -> RegionDescriptor {
        let mut forged = descriptor.clone();
        for key in &mut forged.keys {
            key.bytes.iter_mut().for_each(|b| *b = !*b);
        }
        forged
    }

    /// How long a row waits for something that must come, before it fails with a report.
    fn limit(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// How long a row watches for something that must not come.
    fn quiet(&self) -> Duration {
        Duration::from_millis(30)
    }
}
