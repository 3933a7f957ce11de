//! OrbitTE between processes of one host.
//!
//! The side that reads or writes does all the work: it maps the peer's memory once and copies ([`Way::Mapping`]), or has the kernel copy
//! between the two processes ([`Way::Kernel`]). The other side's CPU takes no part in it, once it has let its peer in:
//!
//! 1. A [`Door`] listens on a Unix socket, and announces where over the control link, with two numbers that prove who meets there.
//! 2. A [`ShmTransport`] connects, and is let in to one region after another. Each region gets a *gate*, in a page that both sides have
//!    mapped: whoever copies passes it, and the owner closes it. So memory is withdrawn without asking the peer, and as soon as nobody is
//!    inside.
//! 3. Mapped memory is a sealed file in memory: no peer can cut it short under a copy, and its pages live until the last process has
//!    unmapped them.
//!
//! It can be used without the facade: the conformance test shows how.

#![deny(unsafe_code)]

pub mod config;
mod copier;
mod counterpart;
pub mod domain;
pub mod door;
mod entry;
mod hear;
mod link;
mod mover;
mod ops;
mod places;
mod sys;
pub mod transport;

pub use config::{ShmConfig, SocketFolder};
pub use domain::{Obstacle, ShmDomain};
pub use door::Door;
pub use orbit_te_wire::same_host::{NoEntry, SameHostAddress, Way};
pub use transport::ShmTransport;
