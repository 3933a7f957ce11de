//! Regions and slices: ranges, copies, rights and descriptors.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

use orbit_te_memory::{
    Access, Backing, HostBuffer, LocalKey, LocalSpan, MemoryError, MemoryKind, Region, Registry, Slice,
};
use orbit_te_wire::TransportKey;
use proptest::prelude::*;
use std::ptr::NonNull;
use std::sync::Arc;

fn region(len: usize, access: Access) -> Region {
    Registry::new().register(HostBuffer::new(len).unwrap().into_backing(), access).unwrap()
}

/// What an error is about, without its numbers.
fn word<T: std::fmt::Debug>(result: Result<T, MemoryError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(MemoryError::ZeroLength { .. }) => "zero",
        Err(MemoryError::OutOfRange { .. }) => "range",
        Err(MemoryError::Refused { .. }) => "refused",
        Err(MemoryError::Retired { .. }) => "retired",
        Err(other) => panic!("{other}"),
    }
}

/// Every way to name a range answers alike; `register_range` names one of a backing, the others one of a region.
#[test]
fn ranges_of_100_bytes() {
    let registry = Registry::new();
    let backing = Arc::new(Backing::from(HostBuffer::new(100).unwrap()));
    let region = registry.register(backing.clone(), Access::LOCAL).unwrap();
    let whole = region.whole();
    let check = |offset: u64, length: u64, want: &str| {
        let registered = registry.register_range(backing.clone(), offset, length, Access::LOCAL);
        assert_eq!(word(registered), want, "region of {length} at {offset}");
        assert_eq!(word(region.slice(offset, length)), want, "slice of {length} at {offset}");
        assert_eq!(word(whole.slice(offset, length)), want, "slice of a slice of {length} at {offset}");
        if length <= 200 {
            let mut bytes = vec![0; length as usize];
            assert_eq!(word(region.read_at(offset, &mut bytes)), want, "read of {length} at {offset}");
            assert_eq!(word(region.write_at(offset, &bytes)), want, "write of {length} at {offset}");
        }
    };
    check(0, 100, "ok");
    check(0, 1, "ok");
    check(99, 1, "ok");
    check(0, 0, "zero");
    check(100, 0, "zero");
    check(0, 101, "range");
    check(99, 2, "range");
    check(100, 1, "range");
    check(101, 1, "range");
    check(u64::MAX, 1, "range");
    check(1, u64::MAX, "range");
    check(u64::MAX, u64::MAX, "range");
}

#[test]
fn a_slice_of_a_slice_stays_inside() {
    let region = region(100, Access::LOCAL);
    let slice = region.slice(10, 20).unwrap();
    let check = |offset, length, want: Result<(u64, u64), &str>| {
        let part = slice.slice(offset, length);
        match want {
            Ok(range) => assert_eq!(part.map(|p: Slice| (p.offset(), p.len())).ok(), Some(range)),
            Err(want) => assert_eq!(word(part), want),
        }
    };
    check(0, 20, Ok((10, 20)));
    check(19, 1, Ok((29, 1)));
    check(5, 0, Err("zero"));
    check(0, 21, Err("range"));
    check(20, 1, Err("range"));
    check(u64::MAX, 2, Err("range"));
}

#[test]
fn an_error_names_the_range_and_the_size() {
    let why = region(100, Access::LOCAL).slice(90, 11).unwrap_err().to_string();
    assert!(why.contains("90") && why.contains("11") && why.contains("100 bytes"), "{why}");
}

#[test]
fn spans_are_addresses_in_the_backing() {
    let backing = Arc::new(Backing::from(HostBuffer::new(100).unwrap()));
    let base = backing.base().as_ptr() as u64;
    let region = Registry::new().register_range(backing, 10, 50, Access::LOCAL).unwrap();
    assert_eq!(region.as_ptr().as_ptr() as u64, base + 10);
    let span = region.slice(5, 7).unwrap().span(LocalKey(9));
    assert_eq!(span, LocalSpan { address: base + 15, length: 7, key: LocalKey(9) });
}

#[test]
fn memory_of_a_device_has_addresses_but_no_copies() {
    let base = NonNull::new(std::ptr::without_provenance_mut(1 << 40)).unwrap();
    // SAFETY: the address stands for memory of a device and is never dereferenced.
    let backing = unsafe { Backing::external_kind(base, 64, MemoryKind::Device { ordinal: 0 }, ()) }.unwrap();
    let region = Registry::new().register_range(backing, 16, 32, Access::SHARED).unwrap();
    assert_eq!(word(region.read_at(0, &mut [0])), "refused");
    assert_eq!(word(region.write_at(0, &[0])), "refused");
    assert_eq!(region.slice(8, 8).unwrap().span(LocalKey(0)).address, (1 << 40) + 24);
}

/// Read-only memory is registered with rights to read alone, and then no safe call writes it.
#[test]
fn writing_needs_a_right_to_write() {
    let check = |access, want| assert_eq!(word(region(8, access).write_at(0, &[1])), want, "{access:?}");
    check(Access::LOCAL, "ok");
    check(Access::SHARED, "ok");
    check(Access::REMOTE_WRITE, "ok");
    check(Access::REMOTE_READ, "refused");
    check(Access::empty(), "refused");
}

#[test]
fn a_descriptor_says_what_the_region_is() {
    let registry = Registry::new();
    let region = registry.register(Backing::from_vec(vec![0; 100]).unwrap(), Access::SHARED_READ).unwrap();
    let keys = vec![TransportKey { transport: "tcp".into(), bytes: vec![1] }];
    let descriptor = region.describe(keys.clone());
    assert_eq!(descriptor.validate(), Ok(()));
    assert_eq!((descriptor.region, descriptor.generation), (region.id(), region.generation()));
    assert_eq!((descriptor.base_offset, descriptor.length), (0, 100));
    assert_eq!((descriptor.kind, descriptor.access), (MemoryKind::Host, Access::SHARED_READ));
    assert_eq!(descriptor.keys, keys);
    let renewed = registry.renew(&region).unwrap();
    assert!(renewed > descriptor.generation);
    assert_eq!(region.describe(Vec::new()).generation, renewed);
}

#[test]
fn numbers_and_keys_are_a_regions_own() {
    let registry = Registry::new();
    let backing = Arc::new(Backing::from(HostBuffer::new(8).unwrap()));
    let mut seen = std::collections::HashSet::new();
    for _ in 0..50 {
        let region = registry.register(backing.clone(), Access::SHARED).unwrap();
        assert!(seen.insert((region.id().0, 0)) && seen.insert((region.key(), 1)));
        registry.retire(&region, std::time::Duration::ZERO).unwrap();
    }
    assert!(registry.is_empty());
}

/// Two regions over one backing: each writes its own range, and both see a range that they share.
#[test]
fn two_regions_over_one_backing() {
    let registry = Registry::new();
    let backing = Arc::new(Backing::from(HostBuffer::new(100).unwrap()));
    let left = registry.register_range(backing.clone(), 0, 60, Access::SHARED).unwrap();
    let right = registry.register_range(backing.clone(), 40, 60, Access::SHARED_READ).unwrap();
    assert_ne!((left.id(), left.key()), (right.id(), right.key()));
    left.write_at(40, &[7; 20]).unwrap();
    let mut seen = [0; 60];
    right.read_at(0, &mut seen).unwrap();
    assert_eq!((&seen[..20], &seen[20..]), (&[7; 20][..], &[0; 40][..]));
    let lease = left.lease().unwrap();
    registry.retire(&right, std::time::Duration::ZERO).unwrap();
    drop(lease);
    left.write_at(59, &[9]).unwrap();
    assert_eq!(word(right.read_at(0, &mut seen)), "retired");
}

proptest! {
    /// A region behaves as a vector of bytes does, whatever is written where.
    #[test]
    fn copies_at_random_offsets(
        len in 1usize..3000,
        start in 0usize..100,
        writes in prop::collection::vec((0usize..3200, prop::collection::vec(any::<u8>(), 0..300)), 0..20),
    ) {
        let backing = HostBuffer::new(start + len + 50).unwrap().into_backing();
        let registry = Registry::new();
        let region = registry.register_range(backing, start as u64, len as u64, Access::LOCAL).unwrap();
        let around = registry.register(region.backing().clone(), Access::LOCAL).unwrap();
        let mut model = vec![0u8; len];
        for (offset, bytes) in writes {
            let done = region.write_at(offset as u64, &bytes);
            match model.get_mut(offset..offset + bytes.len()) {
                Some(range) if !bytes.is_empty() => {
                    prop_assert!(done.is_ok());
                    range.copy_from_slice(&bytes);
                    let mut back = vec![0; bytes.len()];
                    region.read_at(offset as u64, &mut back).unwrap();
                    prop_assert_eq!(back, bytes);
                }
                _ => prop_assert!(done.is_err()),
            }
        }
        let mut all = vec![1; start + len + 50];
        around.read_at(0, &mut all).unwrap();
        prop_assert_eq!(&all[start..start + len], &model[..]);
        prop_assert!(all[..start].iter().chain(&all[start + len..]).all(|b| *b == 0), "nothing around it");
    }

    #[test]
    fn a_slice_is_inside_or_refused(len in 1u64..10_000, offset: u64, length: u64, near: bool) {
        let (offset, length) = if near { (offset % (len + 2), length % (len + 2)) } else { (offset, length) };
        let inside = length > 0 && offset.checked_add(length).is_some_and(|end| end <= len);
        let region = region(len as usize, Access::LOCAL);
        prop_assert_eq!(region.slice(offset, length).is_ok(), inside);
        prop_assert_eq!(region.whole().slice(offset, length).is_ok(), inside);
    }
}
