//! The routes there are, and sets of them. Rule: a number and a name mean the same route in every build, whether it has it or not.

use std::fmt;

/// The most routes that an engine can have.
pub const MAX_ROUTES: usize = 8;

/// In the order of their numbers.
const NAMES: [&str; 7] = ["shm", "process_vm", "tcp", "rdma", "cuda_ipc", "gds", "io_uring"];

/// A route: one way of moving bytes. Its number is below [`MAX_ROUTES`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteId(u8);

impl RouteId {
    /// The peer's shared memory, mapped here and copied by whoever asks.
    pub const SHM: RouteId = RouteId(0);
    /// `process_vm_readv` and `process_vm_writev`.
    pub const PROCESS_VM: RouteId = RouteId(1);
    /// TCP.
    pub const TCP: RouteId = RouteId(2);
    /// RDMA.
    pub const RDMA: RouteId = RouteId(3);
    /// Memory of a GPU that another process of the host has opened to this one.
    pub const CUDA_IPC: RouteId = RouteId(4);
    /// GPUDirect Storage.
    pub const GDS: RouteId = RouteId(5);
    /// Files by io_uring.
    pub const IO_URING: RouteId = RouteId(6);

    /// All routes that any build knows, by number.
    pub fn all() -> impl Iterator<Item = RouteId> {
        (0..NAMES.len() as u8).map(RouteId)
    }

    /// The route of a name, as in a policy and in [`orbit_te_transport::Capabilities::name`].
    pub fn named(name: &str) -> Option<RouteId> {
        NAMES.iter().position(|known| *known == name).map(|at| RouteId(at as u8))
    }

    /// The name.
    pub fn name(self) -> &'static str {
        NAMES[self.index()]
    }

    /// Its number, which is below [`MAX_ROUTES`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Debug for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of routes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RouteSet(u16);

impl RouteSet {
    /// No route.
    pub const NONE: RouteSet = RouteSet(0);
    /// Every route.
    pub const ALL: RouteSet = RouteSet((1 << MAX_ROUTES) - 1);

    /// Adds a route.
    pub fn insert(&mut self, route: RouteId) {
        self.0 |= 1 << route.0;
    }

    /// Takes a route out.
    pub fn remove(&mut self, route: RouteId) {
        self.0 &= !(1 << route.0);
    }

    /// The set with this route as well.
    #[must_use]
    pub fn with(mut self, route: RouteId) -> RouteSet {
        self.insert(route);
        self
    }

    /// Whether it has this route.
    pub fn contains(self, route: RouteId) -> bool {
        self.0 & (1 << route.0) != 0
    }

    /// Whether it has no route.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many routes it has.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Its routes, by number.
    pub fn iter(self) -> RouteSetIter {
        RouteSetIter(self.0)
    }
}

impl FromIterator<RouteId> for RouteSet {
    fn from_iter<T: IntoIterator<Item = RouteId>>(routes: T) -> RouteSet {
        routes.into_iter().fold(RouteSet::NONE, RouteSet::with)
    }
}

impl fmt::Debug for RouteSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.iter().filter(|route| route.index() < NAMES.len());
        f.debug_set().entries(known).finish()
    }
}

/// The routes of a set, by number.
#[derive(Debug, Clone)]
pub struct RouteSetIter(u16);

impl Iterator for RouteSetIter {
    type Item = RouteId;

    fn next(&mut self) -> Option<RouteId> {
        let at = self.0.trailing_zeros();
        if at >= NAMES.len() as u32 {
            return None;
        }
        self.0 &= self.0 - 1;
        Some(RouteId(at as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_belong_together() {
        for (number, route) in RouteId::all().enumerate() {
            assert_eq!((route.index(), RouteId::named(route.name())), (number, Some(route)));
        }
        assert!(NAMES.len() <= MAX_ROUTES);
        assert_eq!((RouteId::IO_URING.name(), RouteId::named("TCP")), ("io_uring", None));
    }

    #[test]
    fn a_set_has_what_was_put_in() {
        let mut set: RouteSet = [RouteId::TCP, RouteId::SHM].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [RouteId::SHM, RouteId::TCP]);
        assert_eq!((set.len(), set.is_empty(), set.contains(RouteId::RDMA)), (2, false, false));
        set.remove(RouteId::SHM);
        set.remove(RouteId::TCP);
        assert_eq!(set, RouteSet::NONE);
        assert_eq!(RouteSet::ALL.iter().count(), NAMES.len());
        assert!(RouteId::all().all(|route| RouteSet::ALL.contains(route)));
    }
}
