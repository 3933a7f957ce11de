//! Owners of what verbs make: context → PD → MR, MW, SRQ; context → channel → CQ; all of them → QP. Rule: a child holds its parents, so
//! nothing is freed before what was made from it; what can't be freed is retained with its parents and its memory, and listed, and tried
//! again by [`Retention::sweep`]. Dropping never panics.

mod channel;
mod context;
mod cq;
mod event;
mod mr;
mod mw;
mod owner;
mod pd;
mod qp;
mod retention;
mod srq;
mod steps;

pub use channel::Channel;
pub use context::Context;
pub use cq::Cq;
pub use event::{About, AsyncEvent, AsyncKind};
pub use mr::Mr;
pub use mw::Mw;
pub use pd::Pd;
pub use qp::{Qp, QpDestroyed, QpState};
pub use retention::{NotFreed, ObjectKind, Retained, Retention, Swept, Ticket};
pub use srq::Srq;
pub use steps::{Address, Grh, InitStep, QpCaps, RtrStep, RtsStep};
