//! The networks that a guest can have. Their addresses, and how a rail is broken and mended, stand in `guest/topology.sh`.

/// How guests are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Topology {
    /// One guest without Soft-RoCE devices.
    None,
    /// One guest with two rails, and both ends of each.
    Rails,
    /// Two guests with two rails between them.
    TwoVm,
}

impl Topology {
    /// As it is written on the command line and in the guest.
    pub(super) fn name(self) -> &'static str {
        match self {
            Topology::None => "none",
            Topology::Rails => "rails",
            Topology::TwoVm => "two-vm",
        }
    }

    /// The guests.
    pub(super) fn hosts(self) -> &'static [Host] {
        match self {
            Topology::None | Topology::Rails => &[Host { name: "both", address: LOCAL, peer: LOCAL }],
            Topology::TwoVm => &[
                Host { name: "a", address: "10.8.0.1", peer: "10.8.0.2" },
                Host { name: "b", address: "10.8.0.2", peer: "10.8.0.1" },
            ],
        }
    }

    /// The last digits of the cables between two guests.
    pub(super) fn cables(self) -> &'static [u8] {
        match self {
            Topology::None | Topology::Rails => &[],
            Topology::TwoVm => &[0, 1, 9],
        }
    }
}

const LOCAL: &str = "127.0.0.1";

/// One guest of a topology.
pub(super) struct Host {
    /// `LAB_HOST`.
    pub(super) name: &'static str,
    /// Where it takes connections that are no rail.
    pub(super) address: &'static str,
    /// Where the other end takes them.
    pub(super) peer: &'static str,
}
