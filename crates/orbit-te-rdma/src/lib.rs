//! OrbitTE over RDMA verbs.
//!
//! From the bottom up:
//!
//! 1. [`sys`]: the table of verbs ([`sys::Verbs`]), filled by libibverbs at run time ([`sys::SystemVerbs`]) or in memory by the module
//!    `fake` (feature `testing`). A machine without libibverbs, or without a device, gives an [`Unavailable`] that says why.
//! 2. [`handle`]: owners of what the verbs make. A child holds its parent; what can't be destroyed is retained, and listed.
//! 3. [`completion`] and [`token`]: what a completion says, and of which work request.

#![deny(unsafe_code)]

// What is planned and agreed on: pure, no device.
pub mod attributes;
pub mod gid;
pub mod handshake;
pub mod rails;
pub mod reaction;
pub mod status;

pub mod access;
pub mod completion;
pub mod device;
pub mod error;
#[cfg(feature = "testing")]
pub mod fake;
pub mod handle;
pub mod sys;
pub mod sysfs;
pub mod token;
pub mod verb;

pub use access::MrAccess;
pub use completion::{Completion, Done, Failed, Wc};
pub use device::{
    DeviceInfo, DeviceLimits, GidEntry, GidKind, LinkLayer, Mtu, NodeType, PortInfo, PortState,
};
pub use error::{Errno, Unavailable, VerbsError};
pub use status::WcStatus;
pub use token::WrToken;
pub use verb::Verb;

pub mod adapter;
mod carrying;
pub mod config;
mod connecting;
mod cut;
pub mod domain;
mod entry;
mod guest;
mod hearing;
mod lane;
mod link;
mod local;
mod memory;
mod notices;
mod ops;
mod rail_queue;
mod reacting;
mod send_queue;
pub mod target;
pub mod transport;

pub use adapter::{Adapters, NoRails};
pub use config::{Completions, RdmaConfig};
pub use domain::RdmaDomain;
pub use target::RdmaTarget;
pub use transport::RdmaTransport;
