//! Whole engines on a network in memory, in virtual time, with faults that a seed decides. Rule: a run is a function of its seed
//! and its options; nothing of it asks the operating system for time, randomness or a connection.
//!
//! [`run`] simulates two to four processes. Each is the real engine without its threads: the same `Shared`, batches, transfers,
//! sessions, registry, core and transports, stepped by turns; RDMA is the real transport over devices in memory. What they do to each other's memory, and what happens to them,
//! is drawn from the seed; checkers watch ([`check`]).

#![deny(unsafe_code)]

mod app;
pub mod check;
pub mod faults;
mod host;
mod model;
mod net;
pub mod plant;
mod rdma;
mod sim;
mod sys;
mod trace;
mod watch;

pub use app::Counts;
pub use check::{Checker, Violation};
pub use faults::{Faults, RdmaFaults};
pub use plant::Plant;
pub use rdma::{Met, RDMA_FAULTS};
pub use sim::{Options, Outcome, run};
