//! The reference as a pair for the suite: one initiator, two targets. Rule: the initiator may be wrapped, the targets stay
//! as they are.
//!
//! It checks nothing.

use crate::op::LinkId;
use crate::testing::memory::must;
use crate::testing::pair::{Pair, Side};
use crate::testing::reference::target::Cable;
use crate::testing::reference::{HELLO, Reference, ReferenceDomain, ReferenceOptions, WELCOME};
use crate::transport::Transport;
use orbit_te_memory::Registry;
use orbit_te_wire::PeerId;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NOBODY: u8 = 200;

/// An initiator and two targets in this process.
pub struct ReferencePair {
    initiator: Box<dyn Transport>,
    cable: Arc<Cable>,
    here: Side,
    targets: Vec<Side>,
    options: ReferenceOptions,
    /// Links that have said hello and were not answered.
    asked: Vec<LinkId>,
    /// As [`Pair::limit`].
    pub limit: Duration,
    /// As [`Pair::quiet`].
    pub quiet: Duration,
}

impl ReferencePair {
    /// A pair of the reference itself.
    pub fn new(options: ReferenceOptions) -> ReferencePair {
        ReferencePair::wrapped(options, |reference, _| Box::new(reference))
    }

    /// A pair whose initiator is what `wrap` makes of the reference and the first target's registry.
    pub fn wrapped(
        options: ReferenceOptions,
        wrap: impl FnOnce(Reference, Arc<Registry>) -> Box<dyn Transport>,
    ) -> ReferencePair {
        let (asleep, wake) = must("make a socket pair", UnixStream::pair());
        must("make it non-blocking", asleep.set_nonblocking(true));
        must("make it non-blocking", wake.set_nonblocking(true));
        let side = || Side { registry: Registry::new(), domain: Arc::new(ReferenceDomain::default()) };
        let targets = vec![side(), side()];
        let cable = Arc::new(Cable::new(targets.len(), wake));
        let reference = Reference::new(options, cable.clone(), asleep);
        let initiator = wrap(reference, targets[0].registry.clone());
        let (limit, quiet) = (Duration::from_secs(20), Duration::from_millis(10));
        ReferencePair { initiator, cable, here: side(), targets, options, asked: Vec::new(), limit, quiet }
    }

    fn connect_to(&mut self, target: u8) -> LinkId {
        let link = self.initiator.connect(PeerId(u128::from(target)), &[target], Instant::now());
        must("connect the reference", link)
    }
}

impl Pair for ReferencePair {
    fn initiator(&mut self) -> &mut dyn Transport {
        &mut *self.initiator
    }

    fn here(&self) -> Side {
        self.here.clone()
    }

    fn target(&self) -> Side {
        self.targets[0].clone()
    }

    fn connect(&mut self) -> LinkId {
        self.connect_to(0)
    }

    fn pump(&mut self) {
        for (number, side) in self.targets.iter().enumerate() {
            self.cable.serve(number, &side.registry, self.options.step_bytes);
        }
        for link in self.asked.drain(..) {
            // Nothing to check: a link that is gone does not take it, and is not to.
            let _ = self.initiator.deliver(link, WELCOME, Instant::now());
        }
    }

    fn carry(&mut self, link: LinkId, bytes: Vec<u8>) {
        assert_eq!(bytes, HELLO, "what the reference says");
        self.asked.push(link);
    }

    fn break_link(&mut self, link: LinkId) {
        self.cable.cut(link);
    }

    fn can_damage(&self) -> bool {
        true
    }

    fn damage_next(&mut self) {
        self.cable.damage_next();
    }

    fn second_target(&self) -> Option<Side> {
        Some(self.targets[1].clone())
    }

    fn connect_second(&mut self) -> LinkId {
        self.connect_to(1)
    }

    fn connect_unreachable(&mut self) -> Option<LinkId> {
        Some(self.connect_to(NOBODY))
    }

    fn limit(&self) -> Duration {
        self.limit
    }

    fn quiet(&self) -> Duration {
        self.quiet
    }
}
