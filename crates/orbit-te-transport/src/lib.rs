//! OrbitTE's transport contract: what every way of moving bytes promises, and nothing about any one of them.
//!
//! A transport has two halves. Its [`Domain`](orbit_te_memory::Domain) makes memory reachable, on any thread and
//! possibly slowly. Its [`Transport`] moves bytes: it belongs to one worker, never blocks, takes small ops and says how
//! many it accepted. Where peers need more of it than a listener that hands on connections, it has a [`Counterpart`] for them. The promises are written down at [`Transport`]; the feature `testing` has the suite that checks
//! them on every transport.

#![deny(unsafe_code)]

pub mod capability;
pub mod counterpart;
pub mod error;
pub mod mailbox;
pub mod op;
pub mod priority;
pub mod progress;
pub mod signs;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;

pub use capability::Capabilities;
pub use counterpart::{Counterpart, Say};
pub use error::{Barrier, ErrorClass, Mismatch, OpError, OpErrorCode, TransportError};
pub use mailbox::{Mailbox, Notice, Undelivered};
pub use op::{LinkId, Op, OpKind, Pieces, RemoteSpan, Token, Verify};
pub use priority::{Priority, PriorityQueue};
pub use progress::{Arm, Completion, Event, Progress, Undone};
pub use signs::{LinkLanes, Signs};
pub use transport::Transport;
