//! The calls of verbs. Rule: everything here is thin: raw pointers in, an errno out; who owns what is for [`crate::handle`].

#![allow(unsafe_code)]

mod chain;
mod extended;
mod letterbox;
mod os;
mod shims;
mod system;
mod verbs;

pub(crate) use chain::{CHAIN, Chain, Opcode, RANGES};
pub use ibverbs_sys as ffi;
pub(crate) use letterbox::{CQES, Letterbox, Parcel, SENDS};
pub(crate) use os::{memlock_limit, set_nonblocking};
pub use system::SystemVerbs;
pub use verbs::Verbs;

/// The bytes of a GID.
pub fn gid_bytes(gid: &ffi::ibv_gid) -> [u8; 16] {
    // SAFETY: all fields of the union are plain bytes, and all patterns of them are valid.
    unsafe { gid.raw }
}
