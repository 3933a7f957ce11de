//! The system calls and raw copies of this crate. Rule: everything here is small enough to be proven by reading.

#![allow(unsafe_code)]

mod copy;
mod mapping;

pub(crate) use copy::copy_in;
pub use copy::copy_out;
pub(crate) use mapping::{Mapping, shared_pages_may_be_huge};
