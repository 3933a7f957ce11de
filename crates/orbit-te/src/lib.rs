//! OrbitTE: a transfer engine that moves bytes between the memories of processes and hosts.
//!
//! A process makes one [`Engine`]. The side that has something to offer registers memory and exposes it as a named segment; the
//! other side opens the segment by address or token and reads and writes it, one request or a [`Batch`] at a time. Each submission
//! gives a [`Transfer`], which is a plain future and can also be waited for by any thread.
//!
//! ```
//! use orbit_te::{Access, Engine, HostBuffer};
//! use std::time::Duration;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // One process exposes a mebibyte under a name. The token says where it is, and is its right of access.
//!     let target = Engine::builder().start()?;
//!     let memory = target.register(HostBuffer::new(1 << 20)?.into_backing(), Access::SHARED)?;
//!     let token = target.expose("pool", &memory)?.to_token()?;
//!
//!     // Another one (here, for the example's sake, the same) opens it, writes 4 KiB and reads them back.
//!     let engine = Engine::builder().no_listen().start()?;
//!     let pool = engine.open(&token).wait(Duration::from_secs(5))?;
//!     let ours = engine.register(HostBuffer::new(8192)?.into_backing(), Access::LOCAL)?;
//!     ours.write_at(0, &[7; 4096])?;
//!     pool.write(512, &ours.slice(0, 4096)?)?.wait()?;
//!     pool.read(512, &ours.slice(4096, 4096)?)?.wait()?;
//!
//!     let mut back = [0; 4096];
//!     ours.read_at(4096, &mut back)?;
//!     assert_eq!(back, [7; 4096]);
//!     Ok(())
//! }
//! ```
//!
//! # Words
//!
//! - A [`Region`] is registered memory, a [`Slice`] a counted range of it. Requests take slices, never borrowed buffers, and hold the
//!   memory until they are over, whatever becomes of the handles.
//! - A [`Segment`] is a peer's exposed region. It is opened by `HOST:PORT/NAME` or by its token ([`SegmentToken`]), and checked by its
//!   owner on every request. When the owner is gone, open it again.
//! - A [`Transfer`] ends exactly once, at the latest a little after its deadline. An error says whether bytes may still land.
//! - A [`Notification`] is a name and some bytes for a segment's owner, alone ([`Engine::notify`]) or bound to a batch
//!   ([`Batch::notify`]).
//!
//! # Threads
//!
//! An engine has threads of its own: for its transfers ([`Config::workers`]), for peers' requests ([`Config::serving_workers`]), one that
//! listens and one for control links. No call needs an async runtime, and all of them may come from inside one; [`Transfer`] and
//! [`Pending`] are plain futures. A thread that blocks in [`Transfer::wait`] carries its transfer out itself, which is the fastest way
//! for one small transfer after another. `docs/architecture.md` in the repository says which thread does what.
//!
//! # Trust
//!
//! There is no authentication and no encryption yet: whoever reaches the listening port may open segments by their names. The engine
//! therefore listens on the loopback interface unless [`EngineBuilder::trust_network`] says that the network is trusted.

#![deny(unsafe_code)]

mod admission;
mod announcer;
mod at_once;
mod batch;
mod builder;
mod catalogue;
mod clock;
mod command;
mod condition;
mod config;
mod control;
mod core;
mod counterparts;
mod cpus;
mod dead;
mod ending;
mod engine;
mod error;
mod features;
mod grants;
mod guard;
mod handover;
mod letters;
mod list;
mod mailbox;
#[cfg(all(test, any(orbit_loom, orbit_shuttle)))]
mod model;
mod notification;
mod peer;
mod pending;
mod place;
mod prepared;
mod pulse;
mod receipt;
mod region;
mod registration;
mod retention;
pub mod route;
mod router;
mod segment;
mod serving;
mod session;
mod shared;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
mod sleeper;
mod sync;
#[cfg(test)]
mod tests;
mod transfer;
mod warming;
mod worker;
mod world;

pub use batch::Batch;
pub use builder::EngineBuilder;
pub use catalogue::ErrorCode;
pub use condition::PeerCondition;
pub use config::Config;
pub use cpus::{CpuList, CpuListError};
pub use engine::Engine;
pub use error::{Error, TransferError};
pub use features::exports::*;
pub use grants::{ExposeOptions, GrantInfo};
pub use list::{Layout, ListError, ListFault, Side};
pub use notification::{Notification, Notifications};
pub use orbit_te_memory::{
    Access, Backing, ByteLimit, GrantId, HostBuffer, HostOptions, MemoryError, MemoryKind, OverLimit,
    PageSize, Registration, RegistrationError, RegistrationLimit, Sharing, Unlimited,
};
pub use orbit_te_shm::{ShmConfig, SocketFolder};
pub use orbit_te_tcp::TcpConfig;
pub use orbit_te_transport::{ErrorClass, Mismatch, OpError, OpErrorCode, OpKind, Priority};
pub use orbit_te_wire::{PeerId, RefusalCode, SegmentToken};
pub use pending::Pending;
pub use place::WorkerPlace;
pub use prepared::Prepared;
pub use receipt::{Landed, Receipt, RequestState, Requests, RouteBytes};
pub use region::{Region, Slice};
pub use retention::Retained;
pub use router::Attempt;
pub use segment::Segment;
pub use transfer::Transfer;
pub use warming::{Lanes, Warming};

/// The example of the crate's README, compiled and run with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
