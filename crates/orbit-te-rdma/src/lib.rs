//! OrbitTE over RDMA verbs.

#![deny(unsafe_code)]
