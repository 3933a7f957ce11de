//! The ways in which bytes get from one process of a host to another, as contenders. Rule: the name says whose way it is; records and
//! demands know it by that name.

use orbit_te::route::RouteId;
use serde::{Deserialize, Serialize};

/// A contender inside of our pair of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    /// The C library's copy between two buffers of one process.
    Memcpy,
    /// The kernel's call for copying between two processes, alone.
    Call,
    /// The engine, by the mapped memory of the peer.
    Shm,
    /// The engine, by the kernel's call.
    ProcessVm,
    /// The engine, over the loopback interface.
    Tcp,
    /// The engine, by the route that it chooses, through the calls for one request.
    Chosen,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Memcpy => "memcpy",
            Way::Call => "process_vm call",
            Way::Shm => "orbit-te shm",
            Way::ProcessVm => "orbit-te process_vm",
            Way::Tcp => "orbit-te tcp",
            Way::Chosen => "orbit-te chosen",
        }
    }

    /// What the records say it goes over.
    pub(super) fn transport(self) -> &'static str {
        match self {
            Way::Memcpy => "one process",
            Way::Call | Way::ProcessVm => "process_vm",
            Way::Shm | Way::Chosen => "shm",
            Way::Tcp => "tcp",
        }
    }

    /// The route that is demanded of the engine.
    pub(super) fn demand(self) -> Option<RouteId> {
        match self {
            Way::Shm => Some(RouteId::SHM),
            Way::ProcessVm => Some(RouteId::PROCESS_VM),
            Way::Tcp => Some(RouteId::TCP),
            Way::Memcpy | Way::Call | Way::Chosen => None,
        }
    }

    /// Whether its bytes are in memory of the target's that nobody can map.
    pub(super) fn is_plain(self) -> bool {
        matches!(self, Way::Call | Way::ProcessVm)
    }
}
