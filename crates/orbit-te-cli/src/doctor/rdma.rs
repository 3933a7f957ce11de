//! RDMA: whether the engine can use it, and the ports and addresses of the kernel's devices. Rule: whether it can be used is the probe's
//! word; what there is, the tree's.

use super::check::{Finding, State};
use super::limits::told;
use super::probe::{Asked, Missing, Probe, Verbs};
use super::tree::{Miss, Tree, number, shown};
use std::net::Ipv6Addr;

const INFINIBAND: &str = "sys/class/infiniband";
/// GIDs that a line shows.
const MOST_GIDS: usize = 4;

/// The names of the devices that the kernel has.
pub(crate) fn devices(tree: &Tree) -> Result<Vec<String>, Miss> {
    match tree.names(INFINIBAND) {
        Err(Miss::Absent) => Ok(Vec::new()),
        other => other,
    }
}

pub(crate) fn checks(tree: &Tree, probe: &Probe) -> Vec<Finding> {
    let devices = devices(tree);
    let some = devices.as_ref().is_ok_and(|devices| !devices.is_empty());
    let mut found = vec![usable(&probe.rdma, some)];
    match devices {
        Ok(devices) => {
            let ports: Vec<Port> = devices.iter().flat_map(|device| ports(tree, device)).collect();
            let any_active = ports.iter().any(Port::is_active);
            found.extend(ports.iter().flat_map(|port| port.findings(tree, any_active)));
        }
        Err(miss) => found.push(Finding::missed("rdma-port", INFINIBAND, &miss, PORTS)),
    }
    found
}

fn usable(asked: &Asked<Verbs>, devices: bool) -> Finding {
    const NAME: &str = "rdma";
    const WHY: &str = "for routes by RDMA; the others work without";
    let Missing { cause, remedy } = match told(NAME, asked, WHY) {
        Ok(Verbs::Usable) => {
            return Finding::new(NAME, State::Ok, "libibverbs has a device that may be opened", WHY);
        }
        Ok(Verbs::Unavailable(missing)) => missing,
        Err(_) if *asked == Asked::Not && !devices => {
            return Finding::new(NAME, State::Absent, "no device", WHY);
        }
        Err(finding) => return finding,
    };
    let (cause, remedy) = (shown_words(cause), shown_words(remedy));
    let found = format!("rdma: unavailable, because {cause}");
    match devices {
        // There is something that could be used.
        true => Finding::new(NAME, State::Warn, found, WHY).remedy(remedy),
        // A line of this state has no remedy below it.
        false => Finding::new(NAME, State::Absent, format!("{found}; {remedy}"), WHY).remedy(remedy),
    }
}

/// The words of the loader and of the system, without what a terminal would obey.
fn shown_words(words: &str) -> String {
    words.split_whitespace().map(shown).collect::<Vec<_>>().join(" ")
}

const PORTS: &str = "each port that is ACTIVE is a rail";
const GIDS: &str = "addresses of a rail; those of RoCE v2 with an IP address go farthest";

/// A port, or a device that shows none.
struct Port {
    device: String,
    /// Its folder; or why there are no ports.
    folder: Result<String, String>,
    port: String,
    state: String,
    layer: String,
    rate: String,
}

fn ports(tree: &Tree, device: &str) -> Vec<Port> {
    let folder = format!("{INFINIBAND}/{device}/ports");
    let without = |why: String| {
        let (port, state, layer, rate) = Default::default();
        vec![Port { device: shown(device), folder: Err(why), port, state, layer, rate }]
    };
    let ports = match tree.names(&folder) {
        Ok(ports) if !ports.is_empty() => ports,
        Ok(_) | Err(Miss::Absent) => return without("it has no ports".to_string()),
        Err(Miss::Unreadable(why)) => return without(format!("its ports: {why}")),
    };
    let about = |port: &String| {
        let folder = format!("{folder}/{port}");
        let word = |file: &str| match tree.text(&format!("{folder}/{file}")) {
            Ok(text) => shown(&text),
            Err(Miss::Absent) => format!("no {file}"),
            Err(Miss::Unreadable(why)) => format!("{file}: {why}"),
        };
        // As in `4: ACTIVE`.
        let state = word("state");
        let state =
            state.split_once(": ").filter(|(n, _)| number(n).is_ok()).map_or(state.as_str(), |(_, s)| s);
        let (state, layer, rate) = (state.to_string(), word("link_layer"), word("rate"));
        Port { device: shown(device), folder: Ok(folder), port: shown(port), state, layer, rate }
    };
    ports.iter().map(about).collect()
}

impl Port {
    fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    fn is_ethernet(&self) -> bool {
        self.layer == "Ethernet"
    }

    fn findings(&self, tree: &Tree, any_active: bool) -> Vec<Finding> {
        const NAME: &str = "rdma-port";
        let Port { device, port, state, layer, rate, .. } = self;
        let folder = match &self.folder {
            Ok(folder) => folder,
            Err(why) => return vec![Finding::new(NAME, State::Note, format!("{device}: {why}"), PORTS)],
        };
        let found = format!("{device} port {port}: {state}, {layer}, {rate}");
        if self.is_active() {
            return vec![Finding::new(NAME, State::Ok, found, PORTS), self.gids(tree, folder)];
        }
        // One of several may be down on purpose.
        let how = if any_active { State::Note } else { State::Warn };
        vec![Finding::new(NAME, how, found, PORTS).remedy(match (state.as_str(), self.is_ethernet()) {
            ("INIT" | "ARMED", false) => "start a subnet manager for its fabric (opensm)",
            (_, true) => {
                "`ip link set NAME up` for its interface (`rdma link` names it), and see to the cable"
            }
            (_, false) => "see to the cable, and to the port at the other end",
        })]
    }

    fn gids(&self, tree: &Tree, folder: &str) -> Finding {
        const NAME: &str = "rdma-gids";
        let named = format!("{} port {}", self.device, self.port);
        let places = match tree.names(&format!("{folder}/gids")) {
            Ok(places) => places,
            Err(Miss::Absent) => {
                return Finding::new(NAME, State::Note, format!("{named}: its GIDs are not shown"), GIDS);
            }
            Err(Miss::Unreadable(why)) => {
                return Finding::new(NAME, State::Note, format!("{named}: its GIDs: {why}"), GIDS);
            }
        };
        let mut all: Vec<Gid> = places.iter().filter_map(|place| self.gid(tree, folder, place)).collect();
        all.sort_by_key(|gid| gid.reach);
        let reach = all.first().map(|best| best.reach);
        let mut words: Vec<String> = all.iter().take(MOST_GIDS).map(|gid| gid.words.clone()).collect();
        if all.len() > MOST_GIDS {
            words.push(format!("and {} more", all.len() - MOST_GIDS));
        }
        let found = match words.is_empty() {
            true => format!("{named}: none that can be used"),
            false => format!("{named}: {}", words.join(", ")),
        };
        let address = "give its interface an address (`ip addr add`; `rdma link` names it)";
        match reach {
            Some(Reach::Far | Reach::Fabric) => Finding::new(NAME, State::Ok, found, GIDS),
            Some(_) => Finding::new(NAME, State::Note, found, GIDS).remedy(address),
            None if self.is_ethernet() => Finding::new(NAME, State::Warn, found, GIDS).remedy(address),
            None => Finding::new(NAME, State::Warn, found, GIDS).remedy("see to the subnet manager"),
        }
    }

    /// What is at a place of the table; none where it is empty, or nothing can be sent to it.
    fn gid(&self, tree: &Tree, folder: &str, place: &str) -> Option<Gid> {
        let index = number(place).ok()?;
        let address: Ipv6Addr = tree.text(&format!("{folder}/gids/{place}")).ok()?.parse().ok()?;
        let v4 = address.to_ipv4_mapped();
        let halved = v4.is_none() && address.octets()[8..] == [0; 8];
        if address.is_unspecified() || address.is_multicast() || halved {
            return None;
        }
        let kind = match self.is_ethernet() {
            false => "InfiniBand",
            // The kernel's words for the kinds: `IB/RoCE v1` and `RoCE v2`.
            true => match tree.text(&format!("{folder}/gid_attrs/types/{place}")).ok()?.as_str() {
                "RoCE v2" => "RoCE v2",
                _ => "RoCE v1",
            },
        };
        let loopback = v4.is_some_and(|v4| v4.is_loopback()) || address.is_loopback();
        let link_local = v4.is_some_and(|v4| v4.is_link_local()) || address.is_unicast_link_local();
        let reach = match kind {
            "InfiniBand" => Reach::Fabric,
            "RoCE v1" => Reach::Segment,
            _ if loopback => Reach::Loopback,
            _ if link_local => Reach::Link,
            _ => Reach::Far,
        };
        let address = v4.map_or_else(|| address.to_string(), |v4| v4.to_string());
        Some(Gid { reach, words: format!("{index} is {address} ({kind})") })
    }
}

struct Gid {
    reach: Reach,
    words: String,
}

/// How far packets to a GID go, the farthest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Fabric,
    Far,
    Link,
    Segment,
    Loopback,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::tree;

    fn of(files: &[(&str, &str)], rdma: Asked<Verbs>) -> Vec<Finding> {
        let (_folder, tree) = tree(files);
        checks(&tree, &Probe { rdma, ..Probe::default() })
    }

    /// Two ports: the files of the first, below its folder, and the state of the second.
    fn port(files: &[(&str, &str)], second: &str) -> Vec<Finding> {
        let folder = |at: usize| format!("{INFINIBAND}/mlx5_0/ports/{at}");
        let mut all = vec![
            (format!("{}/link_layer", folder(1)), "Ethernet"),
            (format!("{}/rate", folder(1)), "100 Gb/sec (4X EDR)"),
            (format!("{}/link_layer", folder(2)), "InfiniBand"),
            (format!("{}/state", folder(2)), second),
        ];
        all.extend(files.iter().map(|(path, text)| (format!("{}/{path}", folder(1)), *text)));
        let all: Vec<(&str, &str)> = all.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        of(&all, Asked::Told(Verbs::Usable))
    }

    #[track_caller]
    fn check(finding: &Finding, state: State, found: &str, remedy: &str) {
        assert_eq!((finding.state, finding.found.as_str()), (state, found));
        let said = finding.remedy.as_deref().unwrap_or_default();
        assert!(said.contains(remedy) && said.is_empty() == remedy.is_empty(), "{finding:?}");
    }

    #[test]
    fn a_host_without_devices_says_why() {
        let missing = Missing { cause: "libibverbs is not there".to_string(), remedy: "get it".to_string() };
        let found = of(&[], Asked::Told(Verbs::Unavailable(missing.clone())));
        assert_eq!(found.len(), 1);
        let words = "rdma: unavailable, because libibverbs is not there; get it";
        check(&found[0], State::Absent, words, "get it");
        // Its line has cause and remedy.
        assert!(found[0].to_string().contains(words), "{}", found[0]);
        let device = [("sys/class/infiniband/mlx5_0/node_guid", "0")];
        let found = of(&device, Asked::Told(Verbs::Unavailable(missing)));
        check(&found[0], State::Warn, "rdma: unavailable, because libibverbs is not there", "get it");
        check(&found[1], State::Note, "mlx5_0: it has no ports", "");
        check(&of(&[], Asked::Not)[0], State::Absent, "no device", "");
        assert_eq!(of(&device, Asked::Not)[0].state, State::Note);
        assert_eq!(of(&[], Asked::Refused("EPERM".to_string()))[0].state, State::Warn);
    }

    #[test]
    fn ports_have_their_state_and_what_to_do() {
        let found = port(&[("state", "4: ACTIVE\n")], "1: DOWN\n");
        check(&found[0], State::Ok, "libibverbs has a device that may be opened", "");
        check(&found[1], State::Ok, "mlx5_0 port 1: ACTIVE, Ethernet, 100 Gb/sec (4X EDR)", "");
        check(&found[2], State::Note, "mlx5_0 port 1: its GIDs are not shown", "");
        check(&found[3], State::Note, "mlx5_0 port 2: DOWN, InfiniBand, no rate", "cable");
        // None is up.
        let found = port(&[("state", "1: DOWN")], "2: INIT");
        let words = "mlx5_0 port 1: DOWN, Ethernet, 100 Gb/sec (4X EDR)";
        check(&found[1], State::Warn, words, "ip link set");
        check(&found[2], State::Warn, "mlx5_0 port 2: INIT, InfiniBand, no rate", "subnet manager");
        let found = port(&[("state", "\n")], "4: ACTIVE");
        let words = "mlx5_0 port 1: state: it is empty, Ethernet, 100 Gb/sec (4X EDR)";
        check(&found[1], State::Note, words, "ip link set");
    }

    #[test]
    fn gids_are_told_by_how_far_they_go() {
        let gids = |all: &[(&str, &str)]| {
            let mut files = vec![("state".to_string(), "4: ACTIVE")];
            for (at, (gid, kind)) in all.iter().enumerate() {
                files.push((format!("gids/{at}"), *gid));
                files.push((format!("gid_attrs/types/{at}"), *kind));
            }
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
            port(&files, "4: ACTIVE").remove(2)
        };
        let (v1, v2) = ("IB/RoCE v1", "RoCE v2");
        let link = "fe80:0000:0000:0000:0202:c9ff:fe21:a2b3";
        let v4 = "0000:0000:0000:0000:0000:ffff:0a09:0001";
        let none = "0000:0000:0000:0000:0000:0000:0000:0000";
        let far = gids(&[(link, v1), (link, v2), (v4, v1), (v4, v2), (none, v1)]);
        let words = "mlx5_0 port 1: 3 is 10.9.0.1 (RoCE v2), 1 is fe80::202:c9ff:fe21:a2b3 (RoCE v2), \
                     0 is fe80::202:c9ff:fe21:a2b3 (RoCE v1), 2 is 10.9.0.1 (RoCE v1)";
        check(&far, State::Ok, words, "");
        let near = gids(&[(link, v2)]);
        check(&near, State::Note, "mlx5_0 port 1: 0 is fe80::202:c9ff:fe21:a2b3 (RoCE v2)", "ip addr add");
        let nothing = gids(&[(none, v2), ("nonsense", v2)]);
        check(&nothing, State::Warn, "mlx5_0 port 1: none that can be used", "ip addr add");
        let many =
            gids(&[("fd00::1", v2), ("fd00::2", v2), ("fd00::3", v2), ("fd00::4", v2), ("fd00::5", v2)]);
        assert!(many.found.ends_with("3 is fd00::4 (RoCE v2), and 1 more"), "{many:?}");
    }

    #[test]
    fn gids_of_infiniband_have_one_kind() {
        let found = of(
            &[
                ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
                ("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand"),
                ("sys/class/infiniband/mlx5_0/ports/1/gids/0", "fe80::b859:9f03:00d5:1a2b"),
            ],
            Asked::Told(Verbs::Usable),
        );
        check(&found[2], State::Ok, "mlx5_0 port 1: 0 is fe80::b859:9f03:d5:1a2b (InfiniBand)", "");
    }
}
