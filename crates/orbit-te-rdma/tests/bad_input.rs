//! What cannot work, and is said so: names of nothing, a GID index that nobody has, no device, memory that may not be locked. Each error names
//! what was asked for, what there is, and what to do.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod sides;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use orbit_te_memory::{Access, Domain, HostBuffer, Registration, Registry};
use orbit_te_rdma::fake::{Carrier, DeviceId, DeviceSpec, FakeFabric, When};
use orbit_te_rdma::{Adapters, Errno, RdmaConfig, RdmaDomain, Verb};
use orbit_te_transport::{OpErrorCode, OpKind, RemoteSpan};
use sides::{Sides, quick, two_hosts};
use std::sync::Arc;

/// A host with two devices, of which the second has no IPv4 address.
fn two_devices() -> (FakeFabric, DeviceId, DeviceId) {
    let fabric = FakeFabric::new(1);
    let one = fabric.add_device(DeviceSpec::roce("mlx5_0", [10, 0, 0, 1]));
    let two = fabric.add_device(DeviceSpec::roce("mlx5_1", [10, 0, 1, 1]));
    fabric.set_gid(two, 1, 3, None);
    (fabric, one, two)
}

fn opened(fabric: &FakeFabric, config: RdmaConfig) -> Result<Arc<Adapters>, String> {
    Adapters::open(&fabric.verbs(0), &config).map_err(|error| error.to_string())
}

fn named(names: &[&str]) -> RdmaConfig {
    RdmaConfig { devices: names.iter().map(|name| name.to_string()).collect(), ..RdmaConfig::default() }
}

#[track_caller]
fn check(fabric: &FakeFabric, config: RdmaConfig, words: &[&str]) {
    let error = opened(fabric, config).unwrap_err();
    words.iter().for_each(|word| assert!(error.contains(word), "`{word}` is not in `{error}`"));
}

#[test]
fn names_of_nothing_are_errors_that_say_what_there_is() {
    let (fabric, ..) = two_devices();
    check(&fabric, named(&["mlx5_7"]), &["no RDMA device `mlx5_7`", "there are mlx5_0, mlx5_1"]);
    check(&fabric, named(&["mlx5_0", "mlx5_7"]), &["`mlx5_7`"]);
    check(&fabric, named(&["mlx5_0:2"]), &["no RDMA device `mlx5_0:2`", "there is mlx5_0:1"]);
    check(&fabric, named(&["mlx5_0:one"]), &["`mlx5_0:one` is no name of a device", "write `mlx5_0`"]);
    check(&fabric, named(&[""]), &["`` is no name of a device"]);
    assert_eq!(opened(&fabric, named(&["mlx5_1:1"])).unwrap().all().len(), 1);
}

#[test]
fn without_a_device_there_is_no_rail() {
    check(
        &FakeFabric::new(1),
        RdmaConfig::default(),
        &["no port of an RDMA device can be used: there is no device"],
    );
    check(&FakeFabric::new(1), named(&["mlx5_0"]), &["no RDMA device `mlx5_0`; there is none"]);
    let (fabric, ..) = two_devices();
    fabric.fail(Verb::OpenDevice, When::Always, Errno::EACCES);
    let both = ["ibv_open_device (mlx5_0) failed: EACCES: Permission denied", "ibv_open_device (mlx5_1)"];
    check(&fabric, RdmaConfig::default(), &both);
}

#[test]
fn a_device_that_does_not_open_is_left_out_with_its_reason() {
    let (fabric, ..) = two_devices();
    fabric.fail(Verb::OpenDevice, When::Nth(1), Errno::EACCES);
    let adapters = opened(&fabric, RdmaConfig::default()).unwrap();
    assert_eq!(adapters.all().iter().map(|rail| rail.device()).collect::<Vec<_>>(), ["mlx5_1"]);
    assert!(adapters.refused()[0].contains("ibv_open_device (mlx5_0)"), "{:?}", adapters.refused());
}

#[test]
fn a_gid_index_that_nobody_has_is_an_error_and_one_that_some_lack_leaves_them_out() {
    let (fabric, one, two) = two_devices();
    let at = |index| RdmaConfig { gid_index: Some(index), ..RdmaConfig::default() };
    let words = ["wrong GID index: 9 is demanded, mlx5_0 port 1 has [0, 1, 2, 3]", "`ibv_devinfo -v`"];
    check(&fabric, at(9), &words);
    check(&fabric, at(300), &["wrong GID index: 300"]);
    let some = opened(&fabric, at(3)).unwrap();
    assert_eq!(some.refused(), ["wrong GID index: 3 is demanded, mlx5_1 port 1 has [0, 1, 2]"]);
    assert_eq!(some.side().rails.iter().map(|rail| rail.device.as_str()).collect::<Vec<_>>(), ["mlx5_0"]);
    assert_eq!(some.side().rails[0].gids.iter().map(|gid| gid.index).collect::<Vec<_>>(), [3]);
    // A port that is down may have it when it is up.
    fabric.carrier_down(one, 1, Carrier::Flushed);
    fabric.carrier_down(two, 1, Carrier::Flushed);
    assert!(opened(&fabric, at(9)).unwrap().side().rails.is_empty());
}

/// What becomes of registering where the device says that nothing more may be locked.
fn registered(domain: &RdmaDomain) -> Result<Vec<u8>, String> {
    let domains: Vec<Arc<dyn Domain>> = vec![Arc::new(domain.clone())];
    let entry = Registration::new(HostBuffer::new(1 << 16).unwrap().into_backing(), Access::SHARED);
    let registry = Registry::new();
    let done = registry.register_all(&[entry], &domains).map_err(|error| error.to_string())?;
    Ok(domain.remote_key(&done[0].0, 7))
}

#[test]
fn memory_that_may_not_be_locked_is_refused_with_the_limit_or_left_to_other_routes() {
    // Where there is a limit the error says it; so this process has one.
    let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
    let limit = hard.min(48 << 10);
    setrlimit(Resource::RLIMIT_MEMLOCK, limit, hard).unwrap();
    let (fabric, ..) = two_devices();
    let adapters = opened(&fabric, RdmaConfig::default()).unwrap();
    fabric.fail(Verb::RegMr, When::Always, Errno::ENOMEM);
    let said = registered(&RdmaDomain::new(adapters.clone())).unwrap_err();
    let may_lock = format!("this process may lock {limit} bytes of memory, and 65536 more were asked for");
    for part in [
        "ibv_reg_mr (mlx5_0: 65536 bytes",
        "ENOMEM",
        &may_lock,
        "`ulimit -l unlimited`",
        "LimitMEMLOCK=infinity",
    ] {
        assert!(said.contains(part), "`{part}` is not in `{said}`");
    }
    let lenient = RdmaDomain::where_possible(adapters);
    assert_eq!(registered(&lenient), Ok(Vec::new()), "a peer is told that it can't be reached by rdma");
    fabric.heal();
    assert_eq!(registered(&lenient), Ok(7u64.to_le_bytes().to_vec()));
}

#[test]
fn memory_of_this_side_that_is_not_registered_ends_its_ops_alone() {
    let fabric = FakeFabric::new(1);
    two_hosts(&fabric);
    let mut sides = Sides::new(&fabric, &quick()).unwrap();
    let (left_out, ours) =
        (sides.here.region(64, 1, Access::LOCAL).unwrap(), sides.here.region(64, 2, Access::LOCAL).unwrap());
    let theirs = sides.there.region(64, 3, Access::SHARED).unwrap().0;
    sides.here.domain.deregister(&left_out.0, left_out.1).unwrap();
    let link = sides.connect();
    let remote = RemoteSpan { offset: 0, key: sides.there.key(&theirs, theirs.key()).unwrap() };
    let refused = sides.op(OpKind::Write, link, &left_out, 0, remote, 64);
    let good = sides.op(OpKind::Write, link, &ours, 0, remote, 64);
    assert_eq!(sides.end(refused).result.unwrap_err().code, OpErrorCode::Unsupported);
    assert_eq!(sides.end(good).result, Ok(()));
    assert_eq!((sides::Memory::contents(&theirs, 0, 64), sides.fallen.len()), (vec![2; 64], 0));
}
