//! Memory: what bounds it, what its pages are, and how it is spread. Rule: a function of the tree and of the probe.

use super::check::{Finding, State, size};
use super::limits::told;
use super::probe::{Asked, Memfd, Probe, Room};
use super::tree::{Miss, Tree, number, shown};
use std::path::{Component, Path};

const MOUNTS: &str = "proc/mounts";
const NOEXEC: &str = "proc/sys/vm/memfd_noexec";
const MEMINFO: &str = "proc/meminfo";
const OVERCOMMIT: &str = "proc/sys/vm/overcommit_memory";
const NODES: &str = "sys/devices/system/node";
const RECLAIM: &str = "proc/sys/vm/zone_reclaim_mode";
const CGROUP: &str = "proc/self/cgroup";
/// The hierarchy of version 2 of cgroups, and that of memory in version 1.
const UNIFIED: &str = "sys/fs/cgroup";
const FIRST: &str = "sys/fs/cgroup/memory";
/// A limit so large is how the first version of cgroups says that there is none.
const NO_LIMIT: u64 = 1 << 60;
/// A group with less has room for few buffers.
const SMALL_GROUP: u64 = 1 << 30;
/// An engine without buffers has 15 MiB resident; less than this leaves nothing for them.
const LEAST_GROUP: u64 = 16 << 20;

pub(crate) fn checks(tree: &Tree, probe: &Probe) -> Vec<Finding> {
    let mut found = vec![
        cgroup(tree),
        memfd(tree, &probe.memfd),
        dev_shm(tree, &probe.dev_shm),
        transparent(tree),
        transparent_shared(tree),
        hugetlb(tree),
        overcommit(tree),
    ];
    found.extend(numa(tree));
    found
}

fn cgroup(tree: &Tree) -> Finding {
    const NAME: &str = "cgroup-memory";
    const WHY: &str = "buffers, memfds and socket memory count";
    let groups = match tree.text(CGROUP) {
        Ok(text) => text,
        Err(Miss::Absent) => String::new(),
        Err(miss) => return Finding::missed(NAME, CGROUP, &miss, WHY),
    };
    let (mut least, mut seen, mut trouble) = (None, false, None);
    for path in limit_files(&groups) {
        match tree.text(&path).and_then(|text| if text == "max" { Ok(NO_LIMIT) } else { number(&text) }) {
            Ok(limit) => {
                seen = true;
                if limit < NO_LIMIT {
                    least = Some(least.map_or(limit, |l: u64| l.min(limit)));
                }
            }
            Err(Miss::Absent) => {}
            Err(miss) => trouble = trouble.or(Some((path, miss))),
        }
    }
    if let (None, Some((path, miss))) = (least, trouble) {
        return Finding::missed(NAME, &path, &miss, WHY);
    }
    let remedy = "raise the limit: MemoryMax= of a systemd unit, --memory of a container";
    match least {
        None if seen => Finding::new(NAME, State::Ok, "no limit", WHY),
        None => Finding::new(NAME, State::Absent, "no memory cgroup is visible", WHY),
        Some(limit) => {
            let state = match limit {
                _ if limit < LEAST_GROUP => State::Fail,
                _ if limit < SMALL_GROUP => State::Warn,
                _ => State::Note,
            };
            Finding::new(NAME, state, format!("limit {}", size(limit)), WHY).remedy(remedy)
        }
    }
}

/// Where this process's limits may stand, by both versions of cgroups: its group's, and those above it.
fn limit_files(groups: &str) -> Vec<String> {
    let groups: Vec<(&str, &str)> = groups.lines().filter_map(group).collect();
    let both = [(UNIFIED, ""), (FIRST, "")];
    let groups = if groups.is_empty() { &both[..] } else { &groups };
    groups.iter().flat_map(|(root, group)| files_up(root, group)).collect()
}

/// Where a line of `/proc/self/cgroup` says that a limit of memory may stand: a hierarchy's folder, and the group in it.
fn group(line: &str) -> Option<(&'static str, &str)> {
    let mut fields = line.splitn(3, ':');
    match (fields.next()?, fields.next()?, fields.next()?) {
        ("0", "", group) => Some((UNIFIED, group)),
        (_, controllers, group) => controllers.split(',').any(|c| c == "memory").then_some((FIRST, group)),
    }
}

/// The file of the limit in a group and in each above it.
fn files_up(root: &str, group: &str) -> Vec<String> {
    let file = if root == UNIFIED { "memory.max" } else { "memory.limit_in_bytes" };
    // A group may be named relative to another namespace's (`/../x`), where it can't be found from here.
    let parts = Path::new(group).components().filter_map(|part| match part {
        Component::Normal(part) => part.to_str(),
        _ => None,
    });
    let parts: Vec<&str> = parts.collect();
    let folder = |depth| parts[..depth].iter().map(|part| format!("{part}/")).collect::<String>();
    (0..=parts.len()).rev().map(|depth| format!("{root}/{}{file}", folder(depth))).collect()
}

fn memfd(tree: &Tree, asked: &Asked<Memfd>) -> Finding {
    const NAME: &str = "memfd";
    const WHY: &str = "for memory shared within a host";
    let noexec = match tree.number(NOEXEC) {
        Ok(mode) => format!(" (vm.memfd_noexec={mode})"),
        Err(Miss::Absent) => String::new(),
        Err(Miss::Unreadable(why)) => format!(" (vm.memfd_noexec: {why})"),
    };
    match asked {
        Asked::Told(Memfd::NoexecSeal) => {
            Finding::new(NAME, State::Ok, format!("sealable, never executable{noexec}"), WHY)
        }
        Asked::Told(Memfd::Sealable) => {
            Finding::new(NAME, State::Ok, format!("sealable, not MFD_NOEXEC_SEAL{noexec}"), WHY)
        }
        Asked::Refused(words) => Finding::new(NAME, State::Warn, format!("refused: {words}{noexec}"), WHY)
            .remedy("have the seccomp filter or the security module permit memfd_create; TCP works without"),
        Asked::Not => match told(NAME, asked, WHY) {
            Ok(_) => Finding::new(NAME, State::Ok, "", WHY),
            Err(finding) => Finding { found: format!("{}{noexec}", finding.found), ..finding },
        },
    }
}

fn dev_shm(tree: &Tree, asked: &Asked<Room>) -> Finding {
    const NAME: &str = "dev-shm";
    const WHY: &str = "not needed: memfds count in the cgroup";
    let mounts = match tree.text(MOUNTS) {
        Ok(text) => text,
        Err(miss) => return Finding::missed_always(NAME, MOUNTS, &miss, WHY),
    };
    // The last mount covers those before it.
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let Some(mount) = mounts.rfind(|fields| fields.get(1) == Some(&"/dev/shm")) else {
        return Finding::new(NAME, State::Absent, "nothing is mounted there", WHY);
    };
    let Some(kind) = mount.get(2).map(|kind| shown(kind)) else {
        let miss = Miss::Unreadable("its line of /dev/shm is cut short".to_string());
        return Finding::missed(NAME, MOUNTS, &miss, WHY);
    };
    let found = match (asked, mount.get(3).and_then(|options| size_option(options))) {
        (Asked::Told(Room { size: whole, free }), _) => {
            format!("{kind} of {}, {} free", size(*whole), size(*free))
        }
        (_, Some(bytes)) => format!("{kind} of {}", size(bytes)),
        (Asked::Refused(words), None) => format!("{kind} of unknown size: {}", shown(words)),
        (Asked::Not, None) => format!("{kind} of its default size"),
    };
    Finding::new(NAME, State::Note, found, WHY)
}

/// The bytes of a tmpfs's option `size=65536k`.
fn size_option(options: &str) -> Option<u64> {
    let text = options.split(',').find_map(|option| option.strip_prefix("size="))?;
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'k') => (&text[..at], 10),
        (at, 'm') => (&text[..at], 20),
        (at, 'g') => (&text[..at], 30),
        _ => (text, 0),
    };
    number(digits).ok()?.checked_mul(1 << shift)
}

/// The word in brackets of `always [madvise] never`.
fn chosen(tree: &Tree, path: &str) -> Result<String, Miss> {
    let text = tree.text(path)?;
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| shown(word));
    word.ok_or_else(|| Miss::Unreadable(format!("`{}` marks no choice", shown(&text))))
}

fn transparent(tree: &Tree) -> Finding {
    const NAME: &str = "huge-pages";
    const WHY: &str = "PageSize::Huge asks for them";
    const PATH: &str = "sys/kernel/mm/transparent_hugepage/enabled";
    match chosen(tree, PATH) {
        Ok(word) if word == "never" => Finding::new(NAME, State::Warn, "transparent: never", WHY)
            .remedy(format!("echo madvise > /{PATH}, else buffers get plain pages")),
        Ok(word) => Finding::new(NAME, State::Ok, format!("transparent: {word}"), WHY),
        Err(miss) => Finding::missed(NAME, PATH, &miss, WHY),
    }
}

fn transparent_shared(tree: &Tree) -> Finding {
    const NAME: &str = "huge-pages-shmem";
    const WHY: &str = "for pages of shared memory";
    const PATH: &str = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    match chosen(tree, PATH) {
        Ok(word) if matches!(word.as_str(), "never" | "deny") => {
            Finding::new(NAME, State::Note, format!("transparent: {word}"), WHY)
                .remedy(format!("echo advise > /{PATH}"))
        }
        Ok(word) => Finding::new(NAME, State::Ok, format!("transparent: {word}"), WHY),
        Err(miss) => Finding::missed(NAME, PATH, &miss, WHY),
    }
}

/// A value of `/proc/meminfo`, where `HugePages_Total:  8` is a count and `Hugepagesize: 2048 kB` are bytes.
fn meminfo(text: &str, key: &str) -> Option<Result<u64, Miss>> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim();
    Some(match value.strip_suffix("kB") {
        None => number(value),
        Some(kib) => number(kib.trim()).map(|kib| kib.saturating_mul(1024)),
    })
}

fn hugetlb(tree: &Tree) -> Finding {
    const NAME: &str = "hugetlb";
    const WHY: &str = "not used by this version";
    let text = match tree.text(MEMINFO) {
        Ok(text) => text,
        Err(miss) => return Finding::missed_always(NAME, MEMINFO, &miss, WHY),
    };
    let value = |key| meminfo(&text, key).unwrap_or(Ok(0));
    match (value("HugePages_Total"), value("HugePages_Free"), value("Hugepagesize")) {
        (Ok(0), ..) => Finding::new(NAME, State::Absent, "no huge pages are reserved", WHY),
        (Ok(total), Ok(free), Ok(each)) => {
            let found = format!("{total} pages of {} are reserved, {free} free", size(each));
            Finding::new(NAME, State::Note, found, WHY)
                .remedy("sysctl vm.nr_hugepages=0 gives them back where nobody else uses them")
        }
        (Err(miss), ..) | (_, Err(miss), _) | (_, _, Err(miss)) => Finding::missed(NAME, MEMINFO, &miss, WHY),
    }
}

fn overcommit(tree: &Tree) -> Finding {
    const NAME: &str = "overcommit";
    const WHY: &str = "whether memory that nobody touches counts";
    match tree.number(OVERCOMMIT) {
        Ok(0) => Finding::new(NAME, State::Ok, "0: by estimate", WHY),
        Ok(1) => Finding::new(NAME, State::Ok, "1: never refused", WHY),
        Ok(2) => Finding::new(NAME, State::Warn, "2: every mapped byte counts against CommitLimit", WHY)
            .remedy("sysctl vm.overcommit_memory=0, or a larger vm.overcommit_ratio"),
        Ok(other) => {
            let miss = Miss::Unreadable(format!("{other} is no setting that is known"));
            Finding::missed(NAME, OVERCOMMIT, &miss, WHY)
        }
        Err(miss) => Finding::missed_always(NAME, OVERCOMMIT, &miss, WHY),
    }
}

fn numa(tree: &Tree) -> Vec<Finding> {
    const NAME: &str = "numa";
    const WHY: &str = "nothing is bound to nodes by this version";
    let nodes = match tree.names(NODES) {
        Ok(names) => {
            names.iter().filter(|n| n.strip_prefix("node").is_some_and(|n| number(n).is_ok())).count()
        }
        Err(miss) => return vec![Finding::missed(NAME, NODES, &miss, WHY)],
    };
    let numa = match nodes {
        0 => Finding::new(NAME, State::Absent, format!("/{NODES} lists no node"), WHY),
        1 => Finding::new(NAME, State::Ok, "1 node", WHY),
        _ => Finding::new(NAME, State::Note, format!("{nodes} nodes"), WHY).remedy(
            "start the program under `numactl --cpunodebind=N --membind=N`, N the network card's node",
        ),
    };
    vec![numa, reclaim(tree, nodes)]
}

fn reclaim(tree: &Tree, nodes: usize) -> Finding {
    const NAME: &str = "zone-reclaim";
    const WHY: &str = "a full node stalls where it is on";
    match tree.number(RECLAIM) {
        Ok(0) => Finding::new(NAME, State::Ok, "off", WHY),
        Ok(mode) if nodes < 2 => Finding::new(NAME, State::Ok, format!("{mode}, with one node"), WHY),
        Ok(mode) => Finding::new(NAME, State::Warn, format!("on ({mode})"), WHY)
            .remedy("sysctl vm.zone_reclaim_mode=0"),
        Err(miss) => Finding::missed(NAME, RECLAIM, &miss, WHY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::tree;

    #[test]
    fn the_least_limit_of_all_groups_above_counts() {
        type Files<'a> = &'a [(&'a str, &'a str)];
        let rows: [(Files<'_>, State, &str); 8] = [
            (&[("sys/fs/cgroup/memory.max", "max")], State::Ok, "no limit"),
            (&[("sys/fs/cgroup/memory.max", "4294967296\n")], State::Note, "limit 4 GiB"),
            (
                &[
                    (CGROUP, "0::/a/b"),
                    ("sys/fs/cgroup/a/b/memory.max", "2147483648"),
                    ("sys/fs/cgroup/a/memory.max", "536870912"),
                ],
                State::Warn,
                "limit 512 MiB",
            ),
            (
                &[
                    (CGROUP, "4:cpu,memory:/a\n0::/"),
                    ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712"),
                ],
                State::Ok,
                "no limit",
            ),
            (&[("sys/fs/cgroup/memory.max", "1048576")], State::Fail, "limit 1 MiB"),
            (&[(CGROUP, "0::/../../x"), ("sys/fs/cgroup/memory.max", "max")], State::Ok, "no limit"),
            (
                &[("sys/fs/cgroup/memory.max", "-1")],
                State::Warn,
                "/sys/fs/cgroup/memory.max: `-1` is no number",
            ),
            (&[(CGROUP, "9:cpu:/")], State::Absent, "no memory cgroup is visible"),
        ];
        for (files, state, found) in rows {
            let (_folder, tree) = tree(files);
            let finding = cgroup(&tree);
            assert_eq!((finding.state, finding.found.as_str()), (state, found), "{files:?}");
        }
    }

    #[test]
    fn sizes_of_mounts() {
        for (options, bytes) in [
            ("rw,size=65536k,mode=1777", Some(64 << 20)),
            ("size=64m", Some(64 << 20)),
            ("size=1g", Some(1 << 30)),
            ("size=4096", Some(4096)),
            ("rw", None),
            ("size=", None),
            ("size=50%", None),
            ("size=18446744073709551615k", None),
        ] {
            assert_eq!(size_option(options), bytes, "{options}");
        }
    }

    #[test]
    fn dev_shm_is_never_a_warning_where_it_can_be_read() {
        let mounts = "proc /proc proc rw 0 0\ntmpfs /dev/shm tmpfs rw,size=65536k 0 0";
        let (_folder, tree) = tree(&[(MOUNTS, mounts)]);
        let room = Asked::Told(Room { size: 64 << 20, free: 1 << 20 });
        for (asked, found) in [
            (Asked::Not, "tmpfs of 64 MiB"),
            (room, "tmpfs of 64 MiB, 1 MiB free"),
            (Asked::Refused("EACCES".to_string()), "tmpfs of 64 MiB"),
        ] {
            let finding = dev_shm(&tree, &asked);
            assert_eq!((finding.state, finding.found.as_str()), (State::Note, found));
        }
    }

    #[test]
    fn memfds_that_are_refused_are_told_with_the_setting() {
        let (_folder, tree) = tree(&[(NOEXEC, "2")]);
        let finding = memfd(&tree, &Asked::Refused("EACCES".to_string()));
        assert_eq!(
            (finding.state, finding.found.as_str()),
            (State::Warn, "refused: EACCES (vm.memfd_noexec=2)")
        );
        assert_eq!(memfd(&tree, &Asked::Told(Memfd::Sealable)).state, State::Ok);
        assert_eq!(memfd(&tree, &Asked::Not).state, State::Note);
    }

    #[test]
    fn zone_reclaim_matters_with_several_nodes() {
        let (_folder, tree) = tree(&[(RECLAIM, "1")]);
        assert_eq!(reclaim(&tree, 1).state, State::Ok);
        assert_eq!(reclaim(&tree, 2).state, State::Warn);
    }

    #[test]
    fn values_of_meminfo() {
        let text = "HugePages_Total:      16\nHugepagesize:       2048 kB\nBad: x kB\n";
        assert_eq!(meminfo(text, "HugePages_Total"), Some(Ok(16)));
        assert_eq!(meminfo(text, "Hugepagesize"), Some(Ok(2 << 20)));
        assert!(matches!(meminfo(text, "Bad"), Some(Err(Miss::Unreadable(_)))));
        assert_eq!(meminfo(text, "HugePages"), None);
    }
}
