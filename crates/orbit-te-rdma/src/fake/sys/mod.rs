//! The unsafe part of the verbs in memory: objects by pointer, chains of WRs, descriptors, and the copy. Rule: everything that decides is
//! outside of here, in safe code.

#![allow(unsafe_code)]

mod fd;
mod raw;
mod table;
mod wr;

pub(super) use fd::EventFd;
pub(super) use raw::{Mapping, RawBox, copy, fill};
pub(super) use table::FakeVerbs;
