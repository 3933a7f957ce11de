//! OrbitTE: a transfer engine that moves bytes between the memories of processes and hosts.
//!
//! A process makes one [`Engine`]. The side that has something to offer registers memory and exposes it as a named segment; the
//! other side opens the segment by address or token and reads and writes it, one request or a [`Batch`] at a time. Each submission
//! gives a [`Transfer`], which is a plain future and can also be waited for by any thread.
//!
//! Beside the threads of its callers an engine has worker threads for its own transfers, serving threads that answer peers, one that
//! listens, and one for the control plane with a runtime of its own; `docs/architecture.md` in the repository says who does what.
//!
//! ```
//! use orbit_te::{Access, Engine, HostBuffer};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // One process exposes a mebibyte.
//! let target = Engine::builder().start()?;
//! let memory = target.register(HostBuffer::new(1 << 20)?.into_backing(), Access::SHARED)?;
//! let token = target.expose("pool", &memory)?;
//!
//! // Another one (here, for the example's sake, the same) writes into it and reads it back.
//! let engine = Engine::builder().no_listen().start()?;
//! let segment = engine.open(&token.to_token()?).wait(Duration::from_secs(5))?;
//! let mut buffer = HostBuffer::new(8192)?;
//! buffer.as_mut_slice()[..4096].fill(7);
//! let local = engine.register(buffer.into_backing(), Access::LOCAL)?;
//! segment.write(512, &local.slice(0, 4096)?)?.wait()?;
//! segment.read(512, &local.slice(4096, 4096)?)?.wait()?;
//!
//! let mut back = [0u8; 4096];
//! local.read_at(4096, &mut back)?;
//! assert_eq!(back, [7u8; 4096]);
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod batch;
mod config;
mod control;
mod core;
mod engine;
mod error;
mod notification;
mod peer;
mod pending;
mod region;
mod segment;
mod serving;
mod session;
mod sleeper;
mod transfer;
mod worker;

pub use batch::Batch;
pub use config::Config;
pub use engine::{Engine, EngineBuilder};
pub use error::{Error, TransferError};
pub use notification::{Notification, Notifications};
pub use orbit_te_memory::{Access, Backing, HostBuffer, HostOptions, MemoryError, MemoryKind, PageSize};
pub use orbit_te_tcp::TcpConfig;
pub use orbit_te_transport::{ErrorClass, OpError, OpErrorCode};
pub use orbit_te_wire::{PeerId, RefusalCode, SegmentToken};
pub use pending::Pending;
pub use region::{Region, Slice};
pub use segment::Segment;
pub use transfer::{Receipt, Transfer};

/// The example of the crate's README, compiled and run with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
