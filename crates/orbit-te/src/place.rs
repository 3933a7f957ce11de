//! Where workers run: the CPUs of each, and the NUMA node that follows from them. Rule: a worker's thread goes to its CPUs before anything of its
//! transports is made.

use crate::config::Config;
use crate::cpus::{CpuList, node_of, pin};
use crate::error::Error;
use std::path::Path;

/// Where the system tells of its CPUs.
const SYSFS: &str = "/sys";

/// Where a worker of an engine runs ([`crate::Engine::worker_places`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerPlace {
    /// The CPUs that its thread keeps to; none: it runs wherever the thread that started the engine might.
    pub cpus: Option<CpuList>,
    /// The NUMA node of these CPUs; none where they are at several, the system does not say, or the worker keeps to none.
    pub node: Option<u16>,
    /// The RDMA rails at this node, as `DEVICE:PORT`, which this worker tries before others.
    pub near: Vec<String>,
}

/// The CPUs of a worker, of which there are as many lists as workers, or one for all, or none.
pub(crate) fn of_worker(config: &Config, worker: usize) -> Option<&CpuList> {
    match config.worker_cpus.as_slice() {
        [one] => Some(one),
        all => all.get(worker),
    }
}

/// Has the calling thread, which is that of a worker, keep to these CPUs; where it is then.
///
/// # Errors
/// [`Error::Config`], which names the CPUs that can't be had.
pub(crate) fn settle(cpus: Option<CpuList>) -> Result<WorkerPlace, Error> {
    let Some(cpus) = cpus else { return Ok(WorkerPlace::default()) };
    let sysfs = Path::new(SYSFS);
    pin(&cpus, sysfs).map_err(|why| Error::Config(format!("a worker can't run on CPUs {cpus}: {why}")))?;
    let node = node_of(&cpus, sysfs);
    Ok(WorkerPlace { cpus: Some(cpus), node, near: Vec::new() })
}
