//! The processes and links of a run. Rule: the first target and the first driver are never killed, so that they can be
//! asked in the end what is left; all others may be.

use super::Plant;
use super::child::{Child, Heard};
use super::netns::Link;
use super::protocol::{Order, Report};
use super::proxy::Proxy;
use anyhow::Context;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

/// Targets behind a middle-man; the first of them is a survivor.
const BEHIND: usize = 3;
/// Those, and one that is reached directly. One more is in a namespace where that can be had.
const TARGETS: usize = BEHIND + 1;
const DRIVERS: usize = 3;

/// The processes and links.
pub(super) struct Stage {
    /// Targets first, then drivers.
    pub(super) children: Vec<Child>,
    pub(super) targets: usize,
    /// By target, as far as there are.
    pub(super) proxies: Vec<Proxy>,
    /// The link to the last target.
    pub(super) link: Option<Link>,
    /// Keeps the namespace; not one of those that work.
    _holder: Option<Child>,
    pub(super) skipped: Vec<String>,
}

impl Stage {
    /// Starts everything. The namespace first, since it may not be had.
    pub(super) fn set(seed: u64, plant: Option<Plant>, to: &Sender<Heard>) -> anyhow::Result<Stage> {
        let mut skipped = Vec::new();
        let namespace = match namespace() {
            Ok(found) => Some(found),
            Err(error) => {
                skipped.push(format!("soak in a network namespace: {error:#}"));
                None
            }
        };
        let (mut children, mut proxies) = (Vec::new(), Vec::new());
        let common = |role: &str, number: usize| {
            let seed = seed.to_string();
            let words = ["--role", role, "--number", &number.to_string(), "--seed", &seed];
            let mut args = words.map(str::to_string).to_vec();
            if let (Some(plant), 0) = (plant, number) {
                args.extend(["--plant".to_string(), plant_name(plant)]);
            }
            args
        };
        for number in 0..TARGETS {
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port(seed, number)?));
            let mut args = common("target", number);
            args.extend(["--listen".to_string(), at.to_string()]);
            if number < BEHIND {
                let proxy = Proxy::start(at)?;
                args.extend(["--advertise".to_string(), proxy.at.to_string()]);
                proxies.push(proxy);
            }
            let place = children.len();
            children.push(Child::start(place, format!("target {number}"), args, to.clone())?);
        }
        let (link, holder) = match namespace {
            Some((holder, link, at)) => {
                let number = children.len();
                let mut args = common("target", number);
                args.extend(["--listen".to_string(), at.to_string()]);
                args.extend(["--netns-of".to_string(), holder.pid().to_string()]);
                children.push(Child::start(number, format!("target {number}"), args, to.clone())?);
                if let Err(error) = link.impair(true).and_then(|()| link.impair(false)) {
                    skipped.push(format!("soak with netem: {error:#}"));
                }
                (Some(link), Some(holder))
            }
            None => (None, None),
        };
        let targets = children.len();
        for number in 0..DRIVERS {
            let (place, args) = (children.len(), common("driver", number));
            children.push(Child::start(place, format!("driver {number}"), args, to.clone())?);
        }
        Ok(Stage { children, targets, proxies, link, _holder: holder, skipped })
    }

    pub(super) fn is_target(&self, place: usize) -> bool {
        place < self.targets
    }

    /// Places of the two that are never killed.
    pub(super) fn survivors(&self) -> [usize; 2] {
        [0, self.targets]
    }

    /// Whether packets can be delayed and lost on the link.
    pub(super) fn has_netem(&self) -> bool {
        self.link.is_some() && !self.skipped.iter().any(|what| what.contains("netem"))
    }
}

/// A namespace, the link into it, and where a target listens inside.
fn namespace() -> anyhow::Result<(Child, Link, SocketAddr)> {
    let (to, from) = std::sync::mpsc::channel();
    let args = ["--role", "netns"].map(str::to_string).to_vec();
    let mut holder = Child::start(0, "namespace".to_string(), args, to)?;
    ready(&from).context("a network namespace can't be had (it needs root)")?;
    // A net for benchmarks, which no host is in; a part of it by the process, so that runs side by side do not meet.
    let (high, low) = ((holder.pid() / 64 % 256) as u8, (holder.pid() % 64 * 4) as u8);
    let address = |host: u8| Ipv4Addr::new(198, 19, high, low + host);
    let link = Link::new(holder.pid(), &format!("{}/30", address(1)))?;
    holder.tell(&Order::Wire { address: format!("{}/30", address(2)) });
    ready(&from).context("the inner end of the namespace's link")?;
    Ok((holder, link, SocketAddr::from((address(2), 7411))))
}

fn ready(from: &Receiver<Heard>) -> anyhow::Result<()> {
    match from.recv_timeout(Duration::from_secs(5))?.report {
        Some(Report::Ready) => Ok(()),
        _ => anyhow::bail!("its holder ended"),
    }
}

/// A port below those that the kernel gives to outgoing connections, so that it stays free while a target is down.
fn free_port(seed: u64, number: usize) -> anyhow::Result<u16> {
    let first = (seed ^ u64::from(std::process::id())) % 1000;
    (0..1000)
        .map(|step| 20_000 + ((first + step) % 1000) as u16 * 10 + number as u16)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no free port for a target")
}

fn plant_name(plant: Plant) -> String {
    use clap::ValueEnum;
    plant.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}
