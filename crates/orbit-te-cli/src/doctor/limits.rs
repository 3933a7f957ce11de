//! The limits that the system puts on this process. Rule: the limits are the probe's; the tree only tells what they matter for.

use super::check::{Finding, State, size};
use super::probe::{Asked, Limit, Probe};
use super::rdma;
use super::tree::Tree;
use orbit_te::{Config, TcpConfig};

/// Descriptors that an engine and a program around it have beside those of peers.
const OWN_FILES: u64 = 24;
/// `demo` is refused lanes with 20, and works with 32.
const FEWEST_FILES: u64 = 32;
/// What most systems grant; fewer was meant to be few.
const USUAL_FILES: u64 = 1024;
/// `demo` of 1 MiB works in 40 MiB and not in 30; this leaves little for buffers.
const LEAST_ADDRESSES: u64 = 48 << 20;

/// What the kernel tells of this process: its capabilities, and whether they are those of the host.
const STATUS: &str = "proc/self/status";
const UID_MAP: &str = "proc/self/uid_map";
const CAP_IPC_LOCK: u64 = 1 << 14;

pub(crate) fn checks(tree: &Tree, probe: &Probe) -> Vec<Finding> {
    vec![
        open_files(&probe.open_files),
        locked_memory(tree, &probe.locked_memory),
        address_space(&probe.address_space),
    ]
}

/// A limit that was told, or the finding that says why not.
pub(crate) fn told<'a, T>(
    name: &'static str,
    asked: &'a Asked<T>,
    why: &'static str,
) -> Result<&'a T, Finding> {
    match asked {
        Asked::Told(answer) => Ok(answer),
        Asked::Not => {
            let found = "not asked: a saved tree has no answers of system calls";
            Err(Finding::new(name, State::Note, found, why))
        }
        Asked::Refused(words) => Err(Finding::new(name, State::Warn, format!("not told: {words}"), why)
            .remedy("see what keeps the system from answering: a seccomp filter, or a damaged saved tree")),
    }
}

fn words(limit: &Limit, show: impl Fn(u64) -> String) -> String {
    let bound = |value: Option<u64>| value.map_or_else(|| "unlimited".to_string(), &show);
    match limit.soft == limit.hard {
        true => bound(limit.soft),
        false => format!("{} (hard limit {})", bound(limit.soft), bound(limit.hard)),
    }
}

fn open_files(asked: &Asked<Limit>) -> Finding {
    const NAME: &str = "open-files";
    const WHY: &str = "each peer needs one and one for each lane";
    let limit = match told(NAME, asked, WHY) {
        Ok(limit) => limit,
        Err(finding) => return finding,
    };
    let each = u64::from(TcpConfig::default().lanes) + 1;
    let wanted = OWN_FILES + Config::default().peers as u64 * each;
    let Some(soft) = limit.soft else { return Finding::new(NAME, State::Ok, "unlimited", WHY) };
    let peers = soft.saturating_sub(OWN_FILES) / each;
    let found = format!("{}: room for about {peers} peers", words(limit, |n| n.to_string()));
    let state = match soft {
        _ if soft < FEWEST_FILES => State::Fail,
        _ if soft < USUAL_FILES => State::Warn,
        _ if soft < wanted => State::Note,
        _ => return Finding::new(NAME, State::Ok, words(limit, |n| n.to_string()), WHY),
    };
    let how = match limit.hard {
        Some(hard) if hard < wanted.min(65_536) => format!("have root raise the hard limit of {hard}"),
        _ => "`ulimit -n 65536` before the program starts".to_string(),
    };
    Finding::new(NAME, state, found, WHY)
        .remedy(format!("{how} (LimitNOFILE= of a systemd unit, --ulimit nofile= of a container)"))
}

fn locked_memory(tree: &Tree, asked: &Asked<Limit>) -> Finding {
    const NAME: &str = "locked-memory";
    const WHY: &str = "RDMA locks all memory that is registered";
    let limit = match told(NAME, asked, WHY) {
        Ok(limit) => limit,
        Err(finding) => return finding,
    };
    let found = words(limit, size);
    let Some(soft) = limit.soft else { return Finding::new(NAME, State::Ok, found, WHY) };
    if locks_without_limit(tree) {
        return Finding::new(NAME, State::Ok, format!("{found}, which CAP_IPC_LOCK lifts"), WHY);
    }
    let state = match rdma::devices(tree) {
        Ok(devices) if !devices.is_empty() => State::Warn,
        _ => State::Note,
    };
    Finding::new(NAME, state, found, WHY).remedy(format!(
        "to register more than {} for RDMA: `ulimit -l unlimited` (LimitMEMLOCK=infinity of a systemd unit, --ulimit memlock=-1 of a \
         container)",
        size(soft)
    ))
}

/// Whether the process has the capability that lifts the limit, in the host's own user namespace.
fn locks_without_limit(tree: &Tree) -> bool {
    let of_host = tree.text(UID_MAP).is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    let status = tree.text(STATUS).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    of_host && bits.is_some_and(|bits| bits & CAP_IPC_LOCK != 0)
}

fn address_space(asked: &Asked<Limit>) -> Finding {
    const NAME: &str = "address-space";
    const WHY: &str = "mapped memory counts, touched or not";
    let limit = match told(NAME, asked, WHY) {
        Ok(limit) => limit,
        Err(finding) => return finding,
    };
    let found = words(limit, size);
    let state = match limit.soft {
        None => return Finding::new(NAME, State::Ok, found, WHY),
        Some(soft) if soft < LEAST_ADDRESSES => State::Fail,
        Some(_) => State::Warn,
    };
    Finding::new(NAME, state, found, WHY)
        .remedy("`ulimit -v unlimited`; bound memory by a cgroup, which counts what is touched")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::tree;

    fn limit(soft: u64, hard: u64) -> Asked<Limit> {
        let bound = |n| (n != u64::MAX).then_some(n);
        Asked::Told(Limit { soft: bound(soft), hard: bound(hard) })
    }

    #[test]
    fn open_files_are_counted_in_peers() {
        for (soft, state) in [
            (0, State::Fail),
            (31, State::Fail),
            (32, State::Warn),
            (1023, State::Warn),
            (1024, State::Note),
            (20_503, State::Note),
            (20_504, State::Ok),
            (u64::MAX, State::Ok),
        ] {
            assert_eq!(open_files(&limit(soft, u64::MAX)).state, state, "{soft}");
        }
        let usual = open_files(&limit(1024, 1_048_576));
        assert_eq!(usual.found, "1024 (hard limit 1048576): room for about 200 peers");
        assert!(usual.remedy.unwrap().starts_with("`ulimit -n"));
        assert!(open_files(&limit(256, 256)).remedy.unwrap().starts_with("have root raise"));
    }

    #[test]
    fn locked_memory_matters_where_there_is_rdma() {
        let check = |files: &[(&str, &str)], soft: u64, state| {
            let (_folder, tree) = tree(files);
            let finding = locked_memory(&tree, &limit(soft, soft));
            assert_eq!(finding.state, state, "{files:?} {soft}");
            finding
        };
        let device = ("sys/class/infiniband/mlx5_0/node_guid", "0");
        let (host, guest) = ((UID_MAP, "0 0 4294967295"), (UID_MAP, "0 1000 1"));
        let (may, may_not) = ((STATUS, "Name:\ta\nCapEff:\t000001ffffffffff"), (STATUS, "CapEff:\t0"));
        check(&[], 8 << 20, State::Note);
        check(&[], u64::MAX, State::Ok);
        check(&[device], u64::MAX, State::Ok);
        let low = check(&[device, host, may_not], 8 << 20, State::Warn);
        assert_eq!(low.found, "8 MiB");
        assert!(
            low.remedy.unwrap().starts_with("to register more than 8 MiB for RDMA: `ulimit -l unlimited`")
        );
        check(&[device, guest, may], 8 << 20, State::Warn);
        let lifted = check(&[device, host, may], 8 << 20, State::Ok);
        assert_eq!(lifted.found, "8 MiB, which CAP_IPC_LOCK lifts");
    }

    #[test]
    fn a_bound_address_space_is_told() {
        assert_eq!(address_space(&limit(u64::MAX, u64::MAX)).state, State::Ok);
        assert_eq!(address_space(&limit(64 << 30, 64 << 30)).state, State::Warn);
        assert_eq!(address_space(&limit(32 << 20, 32 << 20)).state, State::Fail);
    }

    #[test]
    fn what_was_not_asked_or_not_told_says_so() {
        assert_eq!(address_space(&Asked::Not).state, State::Note);
        let refused = open_files(&Asked::Refused("EPERM".to_string()));
        assert_eq!((refused.state, refused.found.as_str()), (State::Warn, "not told: EPERM"));
    }
}
