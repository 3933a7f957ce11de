//! Buffers and backings: what can be had, what is refused, and when an owner is dropped.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_memory::{
    Access, Backing, HostBuffer, HostOptions, MemoryError, MemoryKind, PageSize, Registry,
};
use proptest::prelude::*;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: usize = 1024 * 1024;

fn options(pages: PageSize, prefault_threads: usize) -> HostOptions {
    HostOptions { pages, prefault_threads, ..HostOptions::default() }
}

/// A buffer is as long as was asked, zeroed to its last byte, and writable to its last byte.
fn check(len: usize, pages: PageSize, prefault_threads: usize) {
    let mut buffer = HostBuffer::with_options(len, options(pages, prefault_threads)).unwrap();
    assert_eq!(buffer.len(), len);
    assert!(buffer.as_slice().iter().all(|byte| *byte == 0), "{len} bytes, {pages:?}");
    if pages == PageSize::Huge {
        assert_eq!(buffer.as_slice().as_ptr().addr() % (2 * MIB), 0, "{len} bytes");
    }
    buffer.as_mut_slice()[0] = 1;
    buffer.as_mut_slice()[len - 1] = 2;
    let backing = buffer.into_backing();
    assert_eq!((backing.len(), backing.kind(), backing.is_host()), (len, MemoryKind::Host, true));
    let region = Registry::new().register(backing, Access::LOCAL).unwrap();
    let mut last = [0];
    region.read_at(len as u64 - 1, &mut last).unwrap();
    assert_eq!(last, [2], "what was filled in before stays there as a backing");
}

#[test]
fn buffers() {
    for pages in [PageSize::Plain, PageSize::Huge] {
        for len in [1, 511, 4095, 4096, 4097, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1] {
            for threads in [0, 1, 4] {
                check(len, pages, threads);
            }
        }
    }
}

/// Long enough that several threads have a share each, the last one a short one.
#[test]
fn prefaulting_with_several_threads() {
    for pages in [PageSize::Plain, PageSize::Huge] {
        check(65 * MIB + 1, pages, 3);
    }
}

#[test]
fn more_threads_than_shares_are_not_started() {
    check(4096, PageSize::Plain, usize::MAX);
}

#[test]
fn length_zero_is_refused() {
    for pages in [PageSize::Plain, PageSize::Huge] {
        let refused = HostBuffer::with_options(0, options(pages, 2));
        assert!(matches!(refused, Err(MemoryError::ZeroLength { .. })), "{refused:?}");
    }
    assert!(matches!(HostBuffer::new(0), Err(MemoryError::ZeroLength { .. })));
    assert!(matches!(Backing::from_vec(Vec::new()), Err(MemoryError::ZeroLength { .. })));
    // SAFETY: nothing is named by a length of zero.
    let external = unsafe { Backing::external(NonNull::dangling(), 0, ()) };
    assert!(matches!(external, Err(MemoryError::ZeroLength { .. })));
}

#[test]
fn an_absurd_length_is_no_memory_and_no_panic() {
    for pages in [PageSize::Plain, PageSize::Huge] {
        for len in [usize::MAX, usize::MAX - 4096, usize::MAX - 2 * MIB, usize::MAX / 2, 1 << 60] {
            let refused = HostBuffer::with_options(len, options(pages, 2));
            let Err(MemoryError::NoMemory { length, .. }) = refused else {
                panic!("{len} bytes: {refused:?}");
            };
            assert_eq!(length, len as u64);
        }
    }
}

#[test]
fn a_backing_from_a_vector_has_its_bytes() {
    let region = Registry::new().register(Backing::from_vec(vec![1, 2, 3]).unwrap(), Access::LOCAL).unwrap();
    let mut bytes = [0; 3];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3]);
}

/// Bytes and a flag that tells when they were freed.
struct Owner {
    _bytes: Box<[u8]>,
    freed: Arc<AtomicBool>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.freed.store(true, Ordering::Release);
    }
}

fn external(len: usize) -> (Backing, Arc<AtomicBool>) {
    let mut bytes = vec![0u8; len].into_boxed_slice();
    let base = NonNull::from(&mut bytes[0]);
    let freed = Arc::new(AtomicBool::new(false));
    let owner = Owner { _bytes: bytes, freed: freed.clone() };
    // SAFETY: the box is valid and writable until the owner, which holds it, is dropped, and nobody else reaches it.
    (unsafe { Backing::external(base, len, owner) }.unwrap(), freed)
}

#[test]
fn an_owner_is_dropped_with_a_backing_that_was_never_registered() {
    let (backing, freed) = external(8);
    assert!(!freed.load(Ordering::Acquire));
    drop(backing);
    assert!(freed.load(Ordering::Acquire));
}

/// The owner outlives each handle in turn: the registry, the region, the slice, the lease.
#[test]
fn an_owner_is_dropped_after_the_last_handle() {
    let registry = Registry::new();
    let (backing, freed) = external(8);
    let freed = || freed.load(Ordering::Acquire);
    let region = registry.register(backing, Access::SHARED).unwrap();
    let slice = region.slice(2, 4).unwrap();
    let part = slice.slice(1, 1).unwrap();
    let lease = region.lease().unwrap();
    assert!(registry.retire(&region, Duration::ZERO).is_err(), "there is a lease");
    drop(registry);
    assert!(!freed(), "a region holds it");
    drop((region, slice));
    assert!(!freed(), "a part of a slice holds it");
    drop(part);
    assert!(!freed(), "a lease holds it");
    drop(lease);
    assert!(freed());
}

#[test]
fn a_slice_holds_a_retired_regions_memory() {
    let registry = Registry::new();
    let (backing, freed) = external(8);
    let region = registry.register(backing, Access::SHARED).unwrap();
    let slice = region.whole();
    registry.retire(&region, Duration::ZERO).unwrap();
    drop(region);
    assert!(!freed.load(Ordering::Acquire));
    assert!(slice.region().lease().is_err(), "but is no right to touch it");
    drop(slice);
    assert!(freed.load(Ordering::Acquire));
}

#[test]
fn a_shared_backing_is_dropped_with_its_last_region() {
    let registry = Registry::new();
    let (backing, freed) = external(8);
    let backing = Arc::new(backing);
    let regions =
        [(0, 4), (4, 4)].map(|(at, len)| registry.register_range(backing.clone(), at, len, Access::SHARED));
    drop(backing);
    for region in regions {
        assert!(!freed.load(Ordering::Acquire));
        registry.retire(&region.unwrap(), Duration::ZERO).unwrap();
    }
    assert!(freed.load(Ordering::Acquire));
}

#[test]
fn the_kind_of_external_memory_is_kept() {
    for kind in
        [MemoryKind::Host, MemoryKind::PinnedHost, MemoryKind::Device { ordinal: 3 }, MemoryKind::File]
    {
        let base = NonNull::new(std::ptr::without_provenance_mut(1 << 40)).unwrap();
        // SAFETY: the address stands for memory of a device and is never dereferenced.
        let backing = unsafe { Backing::external_kind(base, 64, kind, ()) }.unwrap();
        let host = matches!(kind, MemoryKind::Host | MemoryKind::PinnedHost);
        assert_eq!((backing.kind(), backing.is_host(), backing.base()), (kind, host, base));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn buffers_of_any_length(len in 1usize..5 * MIB, huge: bool, threads in 0usize..5) {
        let pages = if huge { PageSize::Huge } else { PageSize::Plain };
        check(len, pages, threads);
    }
}
