//! OrbitTE over RDMA verbs: host memory of peers, read and written by the devices of both sides, without the CPU of the side that is reached.
//!
//! From the bottom up:
//!
//! 1. [`sys`], the table of verbs ([`sys::Verbs`]): filled by libibverbs at run time ([`sys::SystemVerbs`]), or in memory by the module `fake`
//!    (feature `testing`). A machine without libibverbs, or without a device, gives an [`Unavailable`] that says why. What verbs say by number
//!    has a name here once: [`device`], [`access`], [`status`], [`completion`], [`error`].
//! 2. [`handle`], owners of what the verbs make: a child holds its parents; what can't be destroyed is retained with its memory, and listed. The
//!    steps of a QP and the events of a device are plain values there; [`reaction`] says what is done about each event, and why.
//! 3. What is planned, without a device: how far GIDs reach ([`gid`]), which rail of ours meets which of the peer's ([`rails`]), and what
//!    follows from both sides' limits for registrations and QPs ([`attributes`]).
//! 4. [`adapter`], the rails of this side: ports of open devices, shared by all below and above. What verbs say is translated there to what peers
//!    are told. Events are taken there, and told to all who use the rails as notices; each transport and target does what follows for its own.
//! 5. Memory: a region is registered on every rail, in parts where devices take no more, for as long as it is a region ([`domain`]). Its keys
//!    are given to a peer only when it asks for them and shows what it was shown.
//! 6. [`handshake`], how two sides come to QPs that are wired to each other: a table of states, and the terms of offers and answers. It knows
//!    neither QPs nor clocks; its messages travel by the control link of the engine.
//! 7. [`transport`], the side that reads and writes: ops to links, links to lanes (QPs), and WRs cut from ops. An op completes when none of its
//!    WRs can touch memory any more: by its CQE, or because its QP is gone.
//! 8. [`target`], the side that is reached: QPs for each peer that asks, and the keys it has. Memory is held until the peer has let go of it, its
//!    keys are dead, or its QPs are gone.
//!
//! A link uses one rail at a time, by as many QPs as [`RdmaConfig::width`] says; each attempt takes the next rail that is up. A device that is
//! lost ([`reaction::Reaction::DropDevice`]) is left alone until the process ends.

#![deny(unsafe_code)]

// 1. The table of verbs, and what verbs say.
pub mod access;
pub mod completion;
pub mod device;
pub mod error;
#[cfg(feature = "testing")]
pub mod fake;
pub mod status;
pub mod sys;
pub mod sysfs;
pub mod verb;

// 2. Owners, and what their devices tell.
pub mod handle;
pub mod reaction;

// 3. What is planned.
pub mod attributes;
pub mod gid;
pub mod rails;

// 4. The rails of this side.
pub mod adapter;
pub mod config;
mod notices;

// 5. Memory.
pub mod domain;
mod local;
mod memory;

// 6. The handshake.
pub mod handshake;

// 7. The side that reads and writes.
mod announcing;
mod carrying;
mod connecting;
mod cut;
mod entry;
mod hearing;
mod lane;
mod link;
mod ops;
pub mod placement;
mod rail_queue;
mod reacting;
mod send_queue;
mod straight;
pub mod transport;

// 8. The side that is reached.
mod guest;
mod postbox;
pub mod target;

pub use access::MrAccess;
pub use adapter::{Adapters, NoRails};
pub use completion::{Completion, Done, Failed, Wc};
pub use config::{Completions, RdmaConfig};
pub use device::{
    DeviceInfo, DeviceLimits, GidEntry, GidKind, LinkLayer, Mtu, NodeType, PortInfo, PortState,
};
pub use domain::RdmaDomain;
pub use error::{Errno, Unavailable, VerbsError};
pub use placement::Placement;
pub use status::WcStatus;
pub use target::RdmaTarget;
pub use transport::RdmaTransport;
pub use verb::Verb;
