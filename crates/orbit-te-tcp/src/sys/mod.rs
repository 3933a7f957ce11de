//! The system calls of this crate that take raw memory. Rule: bytes of a region go to and come from the kernel by address;
//! no Rust reference to them is made.

#![allow(unsafe_code)]

mod io;

pub(crate) use io::{IoRange, is_readable, receive, send, set_low_water};
