//! The system calls of this crate that take raw memory. Rule: bytes of a region go to and come from the kernel by address;
//! no Rust reference to them is made.

#![allow(unsafe_code)]

mod ahead;
mod fold;
mod io;
mod os;
mod sum;

pub(crate) use ahead::fetch_ahead;
pub use io::IoRange;
pub(crate) use io::is_readable;
pub use os::{Os, signs};
pub(crate) use sum::Summing;
