//! OrbitTE's memory: who owns bytes, who may touch them, and when they may be freed.
//!
//! - A [`Backing`] is memory and whatever keeps it alive: owned ([`HostBuffer`]) or lent by the caller with a handle.
//! - A [`Region`] is a backing that was registered: it has a number, access rights, a key and a generation.
//! - A [`Slice`] is a counted range of a region; requests carry slices, never borrowed buffers.
//! - A [`Lease`] is held by everybody who may touch a region's bytes right now. Retiring a region waits for leases,
//!   and a backing is dropped only after the last slice and the last lease.
//! - A [`Hold`] stands for a peer that reaches a region by itself; a withdrawal recalls it and waits for it too.
//! - The [`Registry`] is where a target looks a region up and checks a peer's request before a byte moves.
//! - A [`Grant`] is a peer's right to a region: it has an owner, a generation and an expiry, and can be revoked alone.
//! - A [`Domain`] is what a transport needs to make a region reachable.
//!
//! While a region exists its bytes are reached by copies ([`Region::read_at`], [`Region::write_at`]) and by raw
//! pointers only: a peer may write them at any moment, so no Rust reference to them is ever made.

#![deny(unsafe_code)]

pub mod backing;
pub mod domain;
pub mod error;
pub mod grant;
pub mod hold;
pub mod host;
pub mod lease;
pub mod limit;
#[cfg(all(test, any(orbit_loom, orbit_shuttle)))]
mod model;
pub mod region;
pub mod registration;
pub mod registry;
mod sync;
mod sys;

pub use backing::Backing;
pub use domain::{Domain, KindSet, LocalKey, LocalSpan, RemoteKey};
pub use error::MemoryError;
pub use grant::{Grant, GrantId, GrantTerms, Grants, Holder};
pub use hold::{Hold, Recall, Recalled};
pub use host::{HostBuffer, HostOptions, PageSize, Sharing};
pub use lease::Lease;
pub use limit::{ByteLimit, OverLimit, RegistrationLimit, Unlimited};
pub use orbit_te_wire::{Access, Generation, MemoryKind, RegionId};
pub use region::{Region, Slice, WeakRegion};
pub use registration::{Registered, Registration, RegistrationError};
pub use registry::{AdmitError, RegionTable, Registry, Request};
pub use sys::copy_out;
