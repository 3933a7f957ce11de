//! What `cargo xtask lab test` shows: a table. A case is a script for bash with `set -e`, and has what is in `guest/library.sh`; in
//! `two-vm` both guests run it. Cases of one topology share a boot, and run in the order in which they stand here.

use super::topology::Topology::{self, None, Rails, TwoVm};
use super::transcript::Ended;

/// One case.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) topology: Topology,
    pub(super) name: &'static str,
    pub(super) script: &'static str,
    /// A test binary that the script needs.
    pub(super) binary: Option<TestBinary>,
    /// Files of the repository that it needs: where they are in the guest, and here.
    pub(super) brings: &'static [(&'static str, &'static str)],
    /// The seconds after which it is ended.
    pub(super) limit: u64,
    /// How it is to end, in every guest.
    pub(super) ends: Ended,
    /// What the guest's `/out` has in the end.
    pub(super) leaves: &'static [(&'static str, &'static str)],
}

/// A test binary of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TestBinary {
    /// What it is called in the guest.
    pub(super) name: &'static str,
    /// What `cargo test` is told, so that it builds this one.
    pub(super) build: &'static [&'static str],
}

/// A script that is to succeed.
const fn shows(topology: Topology, name: &'static str, script: &'static str) -> Case {
    Case {
        topology,
        name,
        script,
        binary: Option::None,
        brings: &[],
        limit: 30,
        ends: Ended::Code(0),
        leaves: &[],
    }
}

/// A script that is to end so, soon.
const fn ends(name: &'static str, script: &'static str, ends: Ended) -> Case {
    Case { ends, limit: 2, ..shows(None, name, script) }
}

/// The engine between two processes: crates/orbit-te/tests/rdma, by the functions of its `lab.sh`.
const fn engine(topology: Topology, name: &'static str, limit: u64, script: &'static str) -> Case {
    Case {
        limit,
        binary: Some(TestBinary {
            name: "engine",
            build: &["--package", "orbit-te", "--all-features", "--test", "rdma"],
        }),
        brings: &[("/tmp/engine.sh", "crates/orbit-te/tests/rdma/lab.sh")],
        ..shows(topology, name, script)
    }
}

/// The cases, those of one topology beside each other.
pub(super) const CASES: &[Case] = &[
    ends("code-0", "exit 0", Ended::Code(0)),
    ends("code-1", "exit 1", Ended::Code(1)),
    ends("code-7", "exit 7", Ended::Code(7)),
    ends("code-255", "exit 255", Ended::Code(255)),
    ends("killed", "kill -KILL $$", Ended::Code(137)),
    ends("hangs", "sleep 1000 & sleep 1000", Ended::AtLimit),
    shows(None, "nothing-left-of-it", "! ps | grep '[s]leep 1000'"),
    Case {
        brings: &[("/tmp/in/manifest", "Cargo.toml"), ("/tmp/guest", "xtask/src/lab/guest")],
        ..shows(None, "files-in", "grep workspace /tmp/in/manifest; cmp /tmp/guest/init.sh /init")
    },
    Case {
        leaves: &[("a/text", "from the guest\n"), ("empty", "")],
        ..shows(None, "files-out", "mkdir /out/a; echo from the guest > /out/a/text; : > /out/empty")
    },
    Case {
        binary: Some(TestBinary {
            name: "limits",
            build: &["--package", "orbit-te-wire", "--test", "limits"],
        }),
        ..shows(None, "test-binary", "limits")
    },
    shows(Rails, "ports", "for port in rxe_a0 rxe_b0 rxe_a1 rxe_b1; do port_is $port ACTIVE; done"),
    shows(Rails, "write-rail-0-ipv4", "measure ib_write_bw 0 4 65536 200"),
    shows(Rails, "write-rail-0-ipv6", "measure ib_write_bw 0 6 65536 200"),
    shows(Rails, "read-rail-0-ipv4", "measure ib_read_bw 0 4 65536 200"),
    shows(Rails, "read-rail-0-ipv6", "measure ib_read_bw 0 6 65536 200"),
    shows(Rails, "write-rail-1-ipv4", "measure ib_write_bw 1 4 65536 200"),
    shows(Rails, "read-rail-1-ipv6", "measure ib_read_bw 1 6 65536 200"),
    shows(Rails, "latency", "measure ib_write_lat 0 4 8 200"),
    shows(
        Rails,
        "carrier",
        "ip link set pa0 down; await port_is rxe_a0 DOWN; port_is rxe_b0 ACTIVE
         ip link set pa0 up; await port_is rxe_a0 ACTIVE
         measure ib_write_bw 0 4 65536 200",
    ),
    shows(
        Rails,
        "down-and-mended",
        "ip link set a0 down; await port_is rxe_a0 DOWN
         ip link set a0 up; await port_is rxe_a0 ACTIVE; mend_rail 0
         measure ib_write_bw 0 4 65536 200; measure ib_write_bw 0 6 65536 200",
    ),
    shows(
        Rails,
        "losses",
        "tc qdisc add dev pb0 root netem loss 1%
         measure ib_write_bw 0 4 65536 200
         tc -s qdisc show dev pb0 | grep 'dropped [1-9]'
         tc qdisc del dev pb0 root",
    ),
    Case {
        binary: Some(TestBinary {
            name: "real_devices",
            build: &["--package", "orbit-te-rdma", "--all-features", "--test", "real_devices"],
        }),
        ..shows(Rails, "handles", "ORBIT_TE_RDMA_DEVICES=rxe_a0,rxe_b0 real_devices --nocapture")
    },
    engine(Rails, "moves-ipv4-polling", 120, ". /tmp/engine.sh; moves 0 4 polling $((16 << 20))"),
    engine(Rails, "moves-ipv6-events", 120, ". /tmp/engine.sh; moves 1 6 events $((16 << 20))"),
    engine(Rails, "moves-256-mib", 240, ". /tmp/engine.sh; moves 0 6 adaptive $((256 << 20))"),
    // What happens to the rail, how it is mended, and what is to come of it.
    engine(
        Rails,
        "black-hole",
        120,
        ". /tmp/engine.sh
         faults 'tc qdisc add dev pb0 root netem loss 100%; sleep 2' 'tc qdisc del dev pb0 root' --must-move-over",
    ),
    engine(
        Rails,
        "black-hole-no-other-route",
        120,
        ". /tmp/engine.sh
         faults 'tc qdisc add dev pb0 root netem loss 100%; sleep 3' 'tc qdisc del dev pb0 root' --demand --must-fail \\
           --cause 'did not acknowledge'",
    ),
    engine(
        Rails,
        "remote-carrier-lost",
        120,
        ". /tmp/engine.sh; faults 'ip link set pb0 down; sleep 2' 'ip link set pb0 up' --must-move-over",
    ),
    engine(
        Rails,
        "local-carrier-lost",
        120,
        ". /tmp/engine.sh; faults 'ip link set pa0 down; sleep 2' 'ip link set pa0 up' --must-move-over",
    ),
    engine(
        Rails,
        "local-interface-down",
        120,
        ". /tmp/engine.sh; faults 'ip link set a0 down; sleep 2' 'ip link set a0 up; mend_rail 0' --must-move-over",
    ),
    engine(
        Rails,
        "carrier-flaps",
        120,
        ". /tmp/engine.sh
         faults 'ip link set pa0 down; sleep 0.15; ip link set pa0 up' 'sleep 1' --demand --cause rdma:",
    ),
    engine(
        Rails,
        "interface-flaps",
        120,
        ". /tmp/engine.sh
         faults 'ip link set a0 down; sleep 0.2; ip link set a0 up; mend_rail 0' 'sleep 1' --demand \\
           --cause rdma:",
    ),
    engine(
        Rails,
        "packets-lost",
        120,
        ". /tmp/engine.sh
         faults 'tc qdisc add dev pb0 root netem loss 1%; sleep 3' 'dropped pb0' --demand",
    ),
    engine(
        Rails,
        "packets-lost-at-the-sender",
        120,
        ". /tmp/engine.sh
         faults 'tc qdisc add dev a0 root netem loss 1%; sleep 3' 'dropped a0' --demand --cause rdma",
    ),
    engine(
        Rails,
        "address-gone",
        120,
        ". /tmp/engine.sh; faults 'ip addr del 10.9.0.1/24 dev a0; sleep 2' 'mend_rail 0' --must-move-over",
    ),
    engine(Rails, "owner-stopped", 120, ". /tmp/engine.sh; faults 'kill -STOP $OWNER; sleep 2' 'kill -CONT $OWNER' --demand"),
    engine(
        Rails,
        "owner-killed",
        120,
        ". /tmp/engine.sh
         faults 'kill -KILL $OWNER; wait $OWNER || true; sleep 1' 'owner 0 4 adaptive $((16 << 20))' --restarts --must-fail \\
           --cause 'a data lane' --cause 'is gone'",
    ),
    engine(Rails, "user-killed", 120, ". /tmp/engine.sh; killed_users 5"),
    engine(
        Rails,
        "device-taken-away",
        120,
        ". /tmp/engine.sh
         faults 'rdma link del rxe_a0 & sleep 1' : --demand --gone rxe_a0
         wait; rdma link add rxe_a0 type rxe netdev a0; await port_is rxe_a0 ACTIVE",
    ),
    // The last of its boot, since nothing comes after it, and of one from which no file is wanted.
    Case { ends: Ended::Never, ..shows(Rails, "switched-off", "poweroff -f; sleep 1000") },
    shows(TwoVm, "control", "ping -c 1 $LAB_PEER"),
    shows(TwoVm, "write-rail-0-ipv4", "measure ib_write_bw 0 4 65536 100"),
    shows(TwoVm, "write-rail-1-ipv6", "measure ib_write_bw 1 6 65536 100"),
    shows(TwoVm, "read-rail-1-ipv4", "measure ib_read_bw 1 4 65536 100"),
    engine(TwoVm, "moves-ipv4-events", 240, ". /tmp/engine.sh; moves 0 4 events $((5 << 20))"),
    engine(TwoVm, "moves-ipv6-polling", 240, ". /tmp/engine.sh; moves 1 6 polling $((5 << 20))"),
];
