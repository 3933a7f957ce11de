//! Which rail a worker takes: that of its own NUMA node first, and another one where that does not reach.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod sides;

use orbit_te_memory::Access;
use orbit_te_rdma::fake::{Carrier, DeviceId, DeviceSpec, FakeFabric};
use orbit_te_rdma::{Placement, RdmaConfig, RdmaTransport};
use orbit_te_transport::{OpKind, RemoteSpan};
use orbit_te_wire::Incarnation;
use sides::*;

/// Two devices at each host, all of which reach each other; those of the host that asks at these nodes.
fn two_devices(fabric: &FakeFabric, nodes: [Option<u32>; 2]) -> [DeviceId; 2] {
    let ours = [0, 1].map(|at: u8| {
        let spec = DeviceSpec::roce(&format!("mlx5_{at}"), [10, 0, 0, at + 1]);
        fabric.add_device(DeviceSpec { numa_node: nodes[usize::from(at)], ..spec })
    });
    for at in 0..2u8 {
        fabric.add_device(DeviceSpec::roce(&format!("mlx5_{at}"), [10, 0, 0, at + 11]).on_host(1));
    }
    ours
}

/// Which of the two devices has QPs after a transfer by a worker at this node; `down`: the one that carries nothing.
fn check(nodes: [Option<u32>; 2], worker: Option<u16>, down: Option<usize>, want: usize) {
    let fabric = FakeFabric::new(11);
    let ours = two_devices(&fabric, nodes);
    let config = RdmaConfig { completions: orbit_te_rdma::Completions::Events, ..quick() };
    let mut sides = Sides::new(&fabric, &config).unwrap();
    let transport = RdmaTransport::new(&sides.here.domain, Incarnation(1)).unwrap();
    sides.transport = transport.placed(Placement::new(&[], worker));
    if let Some(down) = down {
        fabric.carrier_down(ours[down], 1, Carrier::Retried);
    }
    let here = sides.here.region(4096, 1, Access::LOCAL).unwrap();
    let there = sides.there.region(4096, 2, Access::SHARED).unwrap();
    let link = sides.connect();
    let key = sides.there.key(&there.0, there.0.key()).unwrap();
    let token = sides.op(OpKind::Write, link, &here, 0, RemoteSpan { key, offset: 0 }, 4096);
    let done = sides.end(token);
    assert!(done.result.is_ok(), "{nodes:?} {worker:?} {down:?}: {done:?}");
    let used = ours.map(|device| !fabric.qps(device).is_empty());
    let mut wanted = [false; 2];
    wanted[want] = true;
    assert_eq!(used, wanted, "{nodes:?} {worker:?} {down:?}");
    assert_eq!(Memory::contents(&there.0, 0, 4096), vec![1; 4096]);
}

#[test]
fn the_rail_of_the_workers_node_comes_first() {
    let two = [Some(0), Some(1)];
    check(two, None, None, 0);
    check(two, Some(0), None, 0);
    check(two, Some(1), None, 1);
    // No rail is at the node: the first of all.
    check(two, Some(7), None, 0);
    check([None, None], Some(0), None, 0);
    check([None, Some(0)], Some(0), None, 1);
    // The near one carries nothing: the far one does.
    check(two, Some(1), Some(1), 0);
    check(two, Some(0), Some(0), 1);
}

#[test]
fn rails_are_named_with_their_nodes() {
    let fabric = FakeFabric::new(12);
    two_devices(&fabric, [Some(1), None]);
    let memory = Memory::new(&fabric, 0, &quick()).unwrap();
    let want = [("mlx5_0:1".to_string(), Some(1)), ("mlx5_1:1".to_string(), None)];
    assert_eq!(memory.domain.adapters().nodes(), want);
}
