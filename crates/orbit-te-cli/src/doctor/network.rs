//! TCP's settings and the network interfaces. Rule: a function of the tree alone.

use super::check::{Finding, State, size};
use super::tree::{Miss, Tree, number, shown};

const CONGESTION: &str = "proc/sys/net/ipv4/tcp_congestion_control";
const BACKLOG: &str = "proc/sys/net/core/somaxconn";
const INTERFACES: &str = "sys/class/net";
/// Loopback's packets are so large; `docs/tuning.md` says what smaller buffers cost.
const LEAST_SOCKET_BUFFER: u64 = 64 << 10;
/// A connection's buffer should grow to what a lane has in flight.
const SMALL_GROWTH: u64 = 1 << 20;
/// More interfaces than this are counted, not listed.
const MOST_INTERFACES: usize = 16;
/// What Ethernet has; overlays of clouds and containers have a little less.
const SMALL_MTU: u64 = 1500;
/// What every path of IPv6 must take.
const LEAST_MTU: u64 = 1280;

pub(crate) fn checks(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![
        congestion(tree),
        cap(tree, "socket-rmem-max", "proc/sys/net/core/rmem_max", "net.core.rmem_max"),
        cap(tree, "socket-wmem-max", "proc/sys/net/core/wmem_max", "net.core.wmem_max"),
        growth(tree, "tcp-rmem", "proc/sys/net/ipv4/tcp_rmem", "net.ipv4.tcp_rmem"),
        growth(tree, "tcp-wmem", "proc/sys/net/ipv4/tcp_wmem", "net.ipv4.tcp_wmem"),
        backlog(tree),
    ];
    found.extend(interfaces(tree));
    found
}

fn congestion(tree: &Tree) -> Finding {
    const NAME: &str = "tcp-congestion";
    const WHY: &str = "how fast lanes grow on far or lossy paths";
    match tree.text(CONGESTION) {
        Ok(word) if matches!(word.as_str(), "cubic" | "bbr" | "dctcp") => {
            Finding::new(NAME, State::Ok, word, WHY)
        }
        Ok(word) if word == "reno" => Finding::new(NAME, State::Warn, "reno", WHY)
            .remedy("sysctl net.ipv4.tcp_congestion_control=cubic"),
        Ok(word) => Finding::new(NAME, State::Note, shown(&word), WHY),
        Err(miss) => Finding::missed(NAME, CONGESTION, &miss, WHY),
    }
}

fn cap(tree: &Tree, name: &'static str, path: &str, setting: &str) -> Finding {
    const WHY: &str = "caps socket_buffer_bytes where that is set";
    match tree.number(path) {
        Ok(bytes) if bytes < LEAST_SOCKET_BUFFER => Finding::new(name, State::Warn, size(bytes), WHY)
            .remedy(format!("sysctl {setting}=16777216, or leave the socket buffers to the kernel")),
        Ok(bytes) => Finding::new(name, State::Ok, size(bytes), WHY),
        // Network namespaces of older kernels do not show it.
        Err(miss) => Finding::missed(name, path, &miss, WHY),
    }
}

fn growth(tree: &Tree, name: &'static str, path: &str, setting: &str) -> Finding {
    const WHY: &str = "how far a lane's buffer grows";
    let values = tree.text(path).and_then(|text| {
        let values = text.split_whitespace().map(number).collect::<Result<Vec<u64>, _>>()?;
        <[u64; 3]>::try_from(values)
            .map_err(|_| Miss::Unreadable(format!("`{}` are not three numbers", shown(&text))))
    });
    match values {
        Ok([least, first, most]) => {
            let found = format!("{} to {}, at first {}", size(least), size(most), size(first));
            if most >= SMALL_GROWTH {
                return Finding::new(name, State::Ok, found, WHY);
            }
            Finding::new(name, State::Warn, found, WHY)
                .remedy(format!("sysctl {setting}=\"4096 131072 33554432\", the path's bandwidth times its round trip at least"))
        }
        Err(miss) => Finding::missed(name, path, &miss, WHY),
    }
}

fn backlog(tree: &Tree) -> Finding {
    const NAME: &str = "somaxconn";
    const WHY: &str = "for many peers that come at once";
    match tree.number(BACKLOG) {
        Ok(many) if many >= 1024 => Finding::new(NAME, State::Ok, many.to_string(), WHY),
        Ok(few) => {
            let state = if few < 128 { State::Warn } else { State::Note };
            Finding::new(NAME, state, few.to_string(), WHY).remedy("sysctl net.core.somaxconn=4096")
        }
        Err(miss) => Finding::missed(NAME, BACKLOG, &miss, WHY),
    }
}

fn interfaces(tree: &Tree) -> Vec<Finding> {
    const NAME: &str = "interface";
    const WHY: &str = "larger packets cost less CPU";
    let names = match tree.names(INTERFACES) {
        Ok(names) => names,
        Err(miss) => return vec![Finding::missed(NAME, INTERFACES, &miss, WHY)],
    };
    // Bonding keeps a file of its own among the interfaces.
    let mut names: Vec<String> = names.into_iter().filter(|name| name != "bonding_masters").collect();
    if names.is_empty() {
        return vec![Finding::new(NAME, State::Absent, "there is none", WHY)];
    }
    let left = names.len().saturating_sub(MOST_INTERFACES);
    names.truncate(MOST_INTERFACES);
    let mut found: Vec<Finding> = names.iter().map(|name| interface(tree, name)).collect();
    if left > 0 {
        found.push(Finding::new(NAME, State::Note, format!("{left} more are not listed"), WHY));
    }
    found
}

fn interface(tree: &Tree, name: &str) -> Finding {
    const NAME: &str = "interface";
    const WHY: &str = "larger packets cost less CPU";
    let path = |file: &str| format!("{INTERFACES}/{name}/{file}");
    let state = match tree.text(&path("operstate")) {
        Ok(state) => state,
        Err(miss) => return Finding::missed_always(NAME, &path("operstate"), &miss, WHY),
    };
    let mtu = match tree.number(&path("mtu")) {
        Ok(mtu) => mtu,
        Err(miss) => return Finding::missed_always(NAME, &path("mtu"), &miss, WHY),
    };
    let (name, up) = (shown(name), matches!(state.as_str(), "up" | "unknown"));
    let found = format!("{name}: {}, mtu {mtu} bytes", shown(&state));
    let larger = format!("ip link set {name} mtu 1500, or 9000 where the whole path takes it");
    match mtu {
        _ if !up => Finding::new(NAME, State::Note, found, WHY).remedy(format!("ip link set {name} up")),
        SMALL_MTU.. => Finding::new(NAME, State::Ok, found, WHY),
        LEAST_MTU.. => Finding::new(NAME, State::Note, found, WHY).remedy(larger),
        _ => Finding::new(NAME, State::Warn, found, WHY).remedy(larger),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::tree;

    #[test]
    fn buffers_are_judged_by_how_far_they_grow() {
        let path = "proc/sys/net/ipv4/tcp_rmem";
        for (text, state, found) in [
            ("4096\t131072\t6291456", State::Ok, "4 KiB to 6 MiB, at first 128 KiB"),
            ("4096 16384 65536", State::Warn, "4 KiB to 64 KiB, at first 16 KiB"),
            ("4096 16384", State::Warn, "/proc/sys/net/ipv4/tcp_rmem: `4096 16384` are not three numbers"),
            ("a b c", State::Warn, "/proc/sys/net/ipv4/tcp_rmem: `a` is no number"),
        ] {
            let (_folder, tree) = tree(&[(path, text)]);
            let finding = growth(&tree, "tcp-rmem", path, "net.ipv4.tcp_rmem");
            assert_eq!((finding.state, finding.found.as_str()), (state, found));
        }
    }

    #[test]
    fn caps_and_backlogs() {
        let path = "proc/sys/net/core/rmem_max";
        for (value, state) in [("212992", State::Ok), ("65535", State::Warn), ("", State::Warn)] {
            let (_folder, tree) = tree(&[(path, value)]);
            assert_eq!(cap(&tree, "socket-rmem-max", path, "net.core.rmem_max").state, state, "{value}");
        }
        for (value, state) in [("4096", State::Ok), ("128", State::Note), ("16", State::Warn)] {
            let (_folder, tree) = tree(&[(BACKLOG, value)]);
            assert_eq!(backlog(&tree).state, state, "{value}");
        }
    }

    #[test]
    fn interfaces_are_listed_in_order_and_not_without_end() {
        let names: Vec<String> = (0..20).map(|n| format!("veth{n}")).collect();
        let files: Vec<(String, &str)> = names
            .iter()
            .flat_map(|n| {
                [(format!("{INTERFACES}/{n}/operstate"), "up"), (format!("{INTERFACES}/{n}/mtu"), "1500")]
            })
            .chain([(format!("{INTERFACES}/bonding_masters"), "")])
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (_folder, tree) = tree(&files);
        let found = interfaces(&tree);
        assert_eq!(found.len(), MOST_INTERFACES + 1);
        assert_eq!(found[2].found, "veth2: up, mtu 1500 bytes");
        assert_eq!(found[MOST_INTERFACES].found, "4 more are not listed");
    }

    #[test]
    fn an_interface_that_is_down_or_small() {
        for (state, mtu, verdict) in [
            ("up", "9000", State::Ok),
            ("unknown", "65536", State::Ok),
            ("down", "1500", State::Note),
            ("up", "1400", State::Note),
            ("up", "576", State::Warn),
        ] {
            let (_folder, tree) = tree(&[("sys/class/net/e/operstate", state), ("sys/class/net/e/mtu", mtu)]);
            assert_eq!(interface(&tree, "e").state, verdict, "{state} {mtu}");
        }
    }
}
