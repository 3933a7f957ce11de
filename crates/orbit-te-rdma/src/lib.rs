//! OrbitTE over RDMA verbs.

#![deny(unsafe_code)]

// What is planned and agreed on: pure, no device.
pub mod attributes;
pub mod gid;
pub mod handshake;
pub mod rails;
pub mod reaction;
pub mod split;
pub mod status;
