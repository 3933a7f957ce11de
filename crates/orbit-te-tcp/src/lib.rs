//! OrbitTE over TCP.
//!
//! [`TcpTransport`] implements the contract of `orbit-te-transport`: it keeps a few connections (lanes) to each peer, has many
//! requests in flight on each, splits large ops over them, sends header and payload by one system call and receives straight into
//! the registered memory. [`Listener`] takes connections; [`TcpDomain`] makes memory reachable.
//!
//! The crate can be used alone: `examples/two_processes.rs` moves verified bytes between two processes with nothing above it.

#![deny(unsafe_code)]

pub mod address;
mod body;
mod cancelling;
mod checksum;
pub mod config;
mod conn;
pub mod domain;
mod error;
mod initiator;
mod lane;
mod link;
pub mod listener;
pub mod net;
mod opening;
mod ops;
mod outbox;
mod pump;
mod signs;
mod socket;
mod sys;
mod target;
mod target_list;
mod target_notification;
pub mod transport;

pub use address::TcpAddress;
pub use config::{Identity, TcpConfig};
pub use domain::TcpDomain;
pub use listener::{Incoming, Listener};
pub use net::Os;
pub use transport::TcpTransport;
