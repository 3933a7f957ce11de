//! A network namespace of the run's own, and the link into it. Rule: it belongs to a process, and is gone with it; nothing
//! has to be cleaned up.

use super::protocol::{Order, Report};
use super::worker::{orders, say};
use crate::process::{capture, program};
use anyhow::Context;
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;

/// Moves the calling process into the namespace of another one. Before it starts any thread.
pub(super) fn join(pid: u32) -> anyhow::Result<()> {
    let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
    setns(namespace, CloneFlags::CLONE_NEWNET).context("joining a network namespace")
}

/// Keeps a namespace until stdin ends.
pub(super) fn hold() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("a network namespace needs CAP_SYS_ADMIN")?;
    say(&Report::Ready)?;
    for order in orders() {
        if let Order::Wire { address } = order? {
            ip(&["address", "add", &address, "dev", "inner"])?;
            ip(&["link", "set", "inner", "up"])?;
            ip(&["link", "set", "lo", "up"])?;
            say(&Report::Ready)?;
        }
    }
    Ok(())
}

/// The outer end of a link into a namespace.
pub(super) struct Link {
    name: String,
}

impl Link {
    /// Makes a link into the namespace of a process, with this address at the outer end.
    pub(super) fn new(pid: u32, address: &str) -> anyhow::Result<Link> {
        let (name, pid) = (format!("orbit{}", pid % 1_000_000), pid.to_string());
        ip(&["link", "add", &name, "type", "veth", "peer", "name", "inner", "netns", &pid])?;
        let link = Link { name };
        ip(&["address", "add", address, "dev", &link.name])?;
        link.set_up(true)?;
        Ok(link)
    }

    pub(super) fn set_up(&self, up: bool) -> anyhow::Result<()> {
        ip(&["link", "set", &self.name, if up { "up" } else { "down" }])
    }

    /// Delays and loses packets, or stops that; an error where the kernel has no netem.
    pub(super) fn impair(&self, yes: bool) -> anyhow::Result<()> {
        let mut tc = program("tc");
        tc.args(["qdisc", if yes { "replace" } else { "del" }, "dev", &self.name, "root"]);
        if yes {
            tc.args(["netem", "delay", "10ms", "5ms", "loss", "1%"]);
        }
        capture(&mut tc).map(drop)
    }
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    capture(program("ip").args(args)).map(drop)
}
