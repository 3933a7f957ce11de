//! The conformance suite of the transport contract: rows that every transport passes. Rule: a row knows the contract and
//! nothing of the transport under it.
//!
//! A transport's tests implement [`Pair`] once and call [`conformance_tests!`](crate::conformance_tests) with a function
//! that makes one; each row becomes a test of its own. A row that does not apply, by what the transport declares, says so
//! aloud ([`suite::run`]). The [`mod@reference`] transport shows that the suite can be passed, and the plants in
//! [`faulty`] that it can be failed.
//!
//! ```ignore
//! struct TcpPair { initiator: Tcp, target: Tcp, found: Progress, /* sides, addresses */ }
//!
//! impl Pair for TcpPair {
//!     fn initiator(&mut self) -> &mut dyn Transport { &mut self.initiator }
//!     fn here(&self) -> Side { self.here.clone() }
//!     fn target(&self) -> Side { self.there.clone() }
//!     fn connect(&mut self) -> LinkId {
//!         self.initiator.connect(self.peer, &self.address, Instant::now()).expect("connect")
//!     }
//!     fn pump(&mut self) {
//!         self.found.clear();
//!         self.target.poll(Instant::now(), 64, &mut self.found);
//!     }
//!     fn break_link(&mut self, link: LinkId) { /* shut its sockets down */ }
//! }
//!
//! orbit_te_transport::conformance_tests!(TcpPair::new);
//! ```
//!
//! What no row checks: that nothing is allocated per op after warm-up (a counting allocator belongs to the test binary),
//! speed, and memory other than the host's.

pub mod drive;
pub mod faulty;

pub mod harness;
pub mod ledger;
pub mod letters;
pub mod memory;
mod outcome;
pub mod pair;
pub mod pattern;
pub mod reference;
pub mod rows;
pub mod suite;
mod sys;

pub use harness::{Harness, Mem, Spot};
pub use ledger::Part;
pub use letters::Letters;
pub use pair::{Pair, Side};
pub use suite::{Need, Row, Verdict, run, suite};
