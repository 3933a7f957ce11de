//! Where a transport and its queues are to lie. Rule: queues are made on the CPUs of the worker, whichever thread drives it just then, so that
//! the kernel gives them memory at the worker's NUMA node; rails of that node are tried first, and others are as good where those don't reach.

use crate::adapter::Adapters;
use crate::rails::Preferences;
use crate::transport::RdmaTransport;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use orbit_te_wire::rdma::Rail;

/// The CPUs and the NUMA node of a worker. By default anywhere: no CPU and no rail comes before another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Placement {
    cpus: Option<CpuSet>,
    node: Option<u16>,
}

impl Placement {
    /// On these CPUs, by the kernel's numbers, of which none: on any; those over 1,023 are left out. `node`: the NUMA node whose rails come first.
    pub fn new(cpus: &[usize], node: Option<u16>) -> Placement {
        let mut set = CpuSet::new();
        let known = cpus.iter().filter(|cpu| set.set(**cpu).is_ok()).count();
        Placement { cpus: (known > 0).then_some(set), node }
    }

    /// The NUMA node whose rails come first.
    pub fn node(&self) -> Option<u16> {
        self.node
    }

    /// Rails in the order in which they are tried: those of the node first, and otherwise as they are numbered.
    pub fn order(&self, rails: &[Rail]) -> Vec<u8> {
        let is_near = |rail: &&Rail| self.node.is_some() && rail.numa == self.node;
        let near = rails.iter().filter(is_near);
        near.chain(rails.iter().filter(|rail| !is_near(rail))).map(|rail| rail.number).collect()
    }

    /// Has the calling thread run on the worker's CPUs until what this gives is dropped. A thread that may not stays where it is.
    #[must_use]
    pub(crate) fn visit(&self) -> Visit {
        let this = Pid::from_raw(0);
        let Some(there) = &self.cpus else { return Visit { home: None } };
        let Ok(home) = sched_getaffinity(this) else { return Visit { home: None } };
        // The worker's own thread is there already.
        let moved = home != *there && sched_setaffinity(this, there).is_ok();
        Visit { home: moved.then_some(home) }
    }
}

/// A thread on the CPUs of a worker; back on its own when this is dropped.
#[derive(Debug)]
pub(crate) struct Visit {
    home: Option<CpuSet>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            if let Err(errno) = sched_setaffinity(Pid::from_raw(0), home) {
                tracing::warn!(%errno, "a thread can't go back to its CPUs");
            }
        }
    }
}

impl RdmaTransport {
    /// The same transport, for a worker that is placed so. To be called before links are made.
    #[must_use]
    pub fn placed(mut self, placement: Placement) -> RdmaTransport {
        self.placement = placement;
        self
    }

    /// How rails are paired by the settings and the worker's place.
    pub(crate) fn preferences(&self) -> Preferences {
        Preferences { numa: self.placement.node, ..self.config.preferences() }
    }
}

impl Adapters {
    /// The names of rails with the NUMA nodes of their devices, as far as they have one, by the rails' numbers.
    pub fn nodes(&self) -> Vec<(String, Option<u16>)> {
        let name = |device: &str, port: u8| format!("{device}:{port}");
        let node = |node: Option<u32>| node.and_then(|node| u16::try_from(node).ok());
        let all = self.all().iter();
        all.map(|rail| (name(rail.device(), rail.port()), node(rail.pd.context().numa_node()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mine() -> CpuSet {
        sched_getaffinity(Pid::from_raw(0)).unwrap()
    }

    fn cpus(set: &CpuSet) -> Vec<usize> {
        (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
    }

    #[test]
    fn a_visit_moves_a_thread_and_brings_it_back() {
        let home = mine();
        let last = *cpus(&home).last().unwrap();
        let check = |placement: Placement, there: &[usize]| {
            let visit = placement.visit();
            assert_eq!(cpus(&mine()), there);
            drop(visit);
            assert_eq!(mine(), home);
        };
        check(Placement::new(&[last], None), &[last]);
        check(Placement::default(), &cpus(&home));
        // A number that no CPU has: the thread stays.
        check(Placement::new(&[usize::MAX], None), &cpus(&home));
        check(Placement::new(&[CpuSet::count() - 1], None), &cpus(&home));
    }

    #[test]
    fn a_visit_ends_with_a_panic() {
        let home = mine();
        let last = *cpus(&home).last().unwrap();
        let panicked = std::panic::catch_unwind(|| {
            let _visit = Placement::new(&[last], None).visit();
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(mine(), home);
    }
}
