//! Verbs in memory: devices, ports and a network between them, which do what real ones do and fail as real ones fail, in an order that a seed
//! repeats. Rule: what a real device checks is checked here; what a program must not do is refused and remembered
//! ([`FakeFabric::violations`]).
//!
//! ```
//! use orbit_te_rdma::fake::{DeviceSpec, FakeFabric};
//! use orbit_te_rdma::handle::Context;
//!
//! let fabric = FakeFabric::new(1);
//! fabric.add_device(DeviceSpec::roce("mlx5_0", [10, 0, 0, 1]));
//! let context = Context::open(&fabric.verbs(0), "mlx5_0")?;
//! let pd = context.alloc_pd()?;
//! assert_eq!(fabric.counts().pds, 1);
//! drop((pd, context));
//! assert!(fabric.counts().is_empty());
//! # Ok::<(), orbit_te_rdma::VerbsError>(())
//! ```

mod carry;
mod cqes;
mod events;
mod fabric;
mod inject;
mod local;
mod machine;
mod memory;
mod objects;
mod plan;
mod post;
mod queue;
mod reach;
mod rng;
mod spec;
mod state;
mod stray;
mod sys;
mod virtual_time;

pub use fabric::{Clock, Counts, FakeFabric, Mode};
pub use inject::Carrier;
pub use plan::{Call, CqeFault, Met, When, Where};
pub use spec::{DeviceId, DeviceSpec, GidSpec, Limits, PortSpec};
pub use virtual_time::{Touch, Watcher};
