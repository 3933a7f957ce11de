//! Which CPUs a worker runs on. Rule: a list means what the kernel's own lists mean; one that can't be had is refused with the numbers that can't, and
//! never cut down in silence.

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;
use thiserror::Error;

/// The calling thread.
const THIS: Pid = Pid::from_raw(0);

/// A list of CPUs by the kernel's numbers, written as the kernel writes them: `0-3,8`. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CpuList(BTreeSet<usize>);

/// Why a text is no list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CpuListError {
    /// It is not made of numbers and ranges.
    #[error("`{text}` is no list of CPUs: write numbers and ranges with commas between them, such as 0-3,8")]
    Malformed {
        /// What is there instead.
        text: String,
    },
    /// A range that ends before it begins.
    #[error("the range {first}-{last} of CPUs ends before it begins")]
    Backwards {
        /// Its first number.
        first: usize,
        /// Its last.
        last: usize,
    },
    /// A number over all that are known.
    #[error("CPU {cpu} is over the highest number that is known, {highest}")]
    TooHigh {
        /// The number.
        cpu: usize,
        /// The highest.
        highest: usize,
    },
}

impl CpuList {
    /// The numbers, in rising order.
    pub fn cpus(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// Those of this list that another one does not have; none when it has them all.
    fn without(&self, others: &CpuList) -> Option<CpuList> {
        let rest: BTreeSet<usize> = self.0.difference(&others.0).copied().collect();
        (!rest.is_empty()).then_some(CpuList(rest))
    }

    /// What a set of the kernel's has; none for an empty one.
    fn of_set(set: &CpuSet) -> Option<CpuList> {
        let all: BTreeSet<usize> =
            (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect();
        (!all.is_empty()).then_some(CpuList(all))
    }

    fn to_set(&self) -> CpuSet {
        let mut set = CpuSet::new();
        for cpu in &self.0 {
            // Reading a list lets no number in that a set has no place for.
            let _ = set.set(*cpu);
        }
        set
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<CpuList, CpuListError> {
        let malformed = || CpuListError::Malformed { text: text.to_string() };
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse::<usize>().ok().filter(|_| digits).ok_or_else(malformed)
        };
        let mut all = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            let highest = CpuSet::count() - 1;
            if last > highest {
                return Err(CpuListError::TooHigh { cpu: last, highest });
            }
            if first > last {
                return Err(CpuListError::Backwards { first, last });
            }
            all.extend(first..=last);
        }
        Ok(CpuList(all))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.cpus().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

/// Why a thread can't run on the CPUs of a list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum CantPin {
    #[error("there is no CPU {missing}; there {}", one_or_many(.there))]
    Unknown { missing: CpuList, there: CpuList },
    #[error("this process may not use CPU {refused}; it may use {allowed}")]
    Refused { refused: CpuList, allowed: CpuList },
    #[error("the system does not let a thread choose its CPUs: {0}")]
    System(Errno),
}

fn one_or_many(list: &CpuList) -> String {
    if list.0.len() == 1 { format!("is {list}") } else { format!("are {list}") }
}

/// Has the calling thread run on the CPUs of a list, and on no others, until it ends.
///
/// # Errors
/// [`CantPin`]; the thread's CPUs may have changed all the same.
pub(crate) fn pin(list: &CpuList, sysfs: &Path) -> Result<(), CantPin> {
    let there = online(sysfs);
    if let Some(there) = &there {
        judge(list, there, there)?;
    }
    // What the thread may use is told by asking for all there are: the kernel leaves out what is forbidden by a cpuset. Where the thread ran before
    // says nothing of that.
    let all = there.as_ref().unwrap_or(list);
    let allowed = set(all)?.unwrap_or_else(|| all.clone());
    judge(list, there.as_ref().unwrap_or(list), &allowed)?;
    let now = set(list)?.unwrap_or_else(|| list.clone());
    // The cpuset may have changed between the two.
    judge(list, list, &now)
}

/// Asks for these CPUs; those that the thread has now.
fn set(list: &CpuList) -> Result<Option<CpuList>, CantPin> {
    match sched_setaffinity(THIS, &list.to_set()) {
        Ok(()) => {}
        // None of them.
        Err(Errno::EINVAL) => {
            let now = sched_getaffinity(THIS).map_err(CantPin::System)?;
            let allowed = CpuList::of_set(&now).ok_or(CantPin::System(Errno::EINVAL))?;
            return Err(CantPin::Refused { refused: list.clone(), allowed });
        }
        Err(errno) => return Err(CantPin::System(errno)),
    }
    Ok(CpuList::of_set(&sched_getaffinity(THIS).map_err(CantPin::System)?))
}

/// Whether all of a list are there, and may be used.
fn judge(list: &CpuList, there: &CpuList, allowed: &CpuList) -> Result<(), CantPin> {
    if let Some(missing) = list.without(there) {
        return Err(CantPin::Unknown { missing, there: there.clone() });
    }
    match list.without(allowed) {
        Some(refused) => Err(CantPin::Refused { refused, allowed: allowed.clone() }),
        None => Ok(()),
    }
}

/// The CPUs that there are and that run; none where the system does not say.
fn online(sysfs: &Path) -> Option<CpuList> {
    fs::read_to_string(sysfs.join("devices/system/cpu/online")).ok()?.parse().ok()
}

/// The NUMA node that all CPUs of a list are at; none where they are at several, or the system does not say.
pub(crate) fn node_of(list: &CpuList, sysfs: &Path) -> Option<u16> {
    let folders = fs::read_dir(sysfs.join("devices/system/node")).ok()?;
    folders.flatten().find_map(|folder| {
        let name = folder.file_name();
        let node = name.to_str()?.strip_prefix("node")?.parse().ok()?;
        let cpus: CpuList = fs::read_to_string(folder.path().join("cpulist")).ok()?.parse().ok()?;
        list.without(&cpus).is_none().then_some(node)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CpuList {
        text.parse().unwrap()
    }

    #[test]
    fn lists_are_read_and_shown_as_the_kernel_does() {
        let check = |text: &str, cpus: &[usize], shown: &str| {
            let list = list(text);
            assert_eq!(list.cpus().collect::<Vec<_>>(), cpus, "{text}");
            assert_eq!(list.to_string(), shown, "{text}");
            assert_eq!(CpuList::of_set(&list.to_set()), Some(list), "{text}");
        };
        check("0", &[0], "0");
        check("0-3,8", &[0, 1, 2, 3, 8], "0-3,8");
        check("8,1,0", &[0, 1, 8], "0-1,8");
        check("2,2-3,3", &[2, 3], "2-3");
        check("5-5\n", &[5], "5");
        check("1023", &[1023], "1023");
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let malformed = |text: &str| CpuListError::Malformed { text: text.to_string() };
        let check = |text: &str, want: CpuListError| assert_eq!(text.parse::<CpuList>(), Err(want), "{text}");
        for text in ["", ",", "1,", "a", "-1", "1-", "0-1-2", "+1", "1 2", "0x1", "99999999999999999999"] {
            check(text, malformed(text));
        }
        check("3-1", CpuListError::Backwards { first: 3, last: 1 });
        check("1024", CpuListError::TooHigh { cpu: 1024, highest: 1023 });
        check("0-99999999", CpuListError::TooHigh { cpu: 99_999_999, highest: 1023 });
    }

    #[test]
    fn those_that_cant_be_had_are_named() {
        let check = |wanted: &str, there: &str, allowed: &str, want: Option<&str>| {
            let said = judge(&list(wanted), &list(there), &list(allowed)).err().map(|why| why.to_string());
            assert_eq!(said.as_deref(), want, "{wanted} of {there}, {allowed} allowed");
        };
        check("0-1", "0-3", "0-3", None);
        check("0,7,9", "0-3", "0-3", Some("there is no CPU 7,9; there are 0-3"));
        check("1", "0", "0", Some("there is no CPU 1; there is 0"));
        check("1-3", "0-3", "0-1", Some("this process may not use CPU 2-3; it may use 0-1"));
    }

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_list_is_at_a_node_when_all_of_it_is() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "devices/system/node/node0/cpulist", "0-3,8-11\n");
        write(root, "devices/system/node/node1/cpulist", "4-7,12-15\n");
        // A node of memory alone, and what is no node.
        write(root, "devices/system/node/node2/cpulist", "\n");
        write(root, "devices/system/node/online", "0-2\n");
        let check = |cpus: &str, want: Option<u16>| assert_eq!(node_of(&list(cpus), root), want, "{cpus}");
        check("0", Some(0));
        check("0-3,9", Some(0));
        check("12", Some(1));
        check("3-4", None);
        check("16", None);
        assert_eq!(node_of(&list("0"), Path::new("nowhere")), None);
    }

    #[test]
    fn a_thread_is_pinned_or_told_why_not() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mine = CpuList::of_set(&sched_getaffinity(THIS).unwrap()).unwrap();
        let last = list(&mine.cpus().last().unwrap().to_string());
        let check = |cpus: &CpuList, sysfs: &Path, want: Result<&CpuList, &str>| {
            // A thread of its own: it is pinned for good.
            let done = std::thread::scope(|scope| {
                let pinned = || pin(cpus, sysfs).map(|()| CpuList::of_set(&sched_getaffinity(THIS).unwrap()));
                scope.spawn(pinned).join().unwrap()
            });
            match (done, want) {
                (Ok(now), Ok(want)) => assert_eq!(now.as_ref(), Some(want), "{cpus}"),
                (Err(why), Err(want)) => assert!(why.to_string().contains(want), "{cpus}: {why}"),
                (done, want) => panic!("{cpus}: {done:?}, not {want:?}"),
            }
        };
        let sys = Path::new("/sys");
        check(&last, sys, Ok(&last));
        check(&mine, sys, Ok(&mine));
        check(&list("1023"), sys, Err("no CPU 1023"));
        check(&list("0,1022-1023"), sys, Err("no CPU 1022-1023"));
        // Without a word of the system about its CPUs, the kernel's refusal is what there is.
        check(&last, root, Ok(&last));
        check(&list("1023"), root, Err("may not use CPU 1023; it may use"));
        // A CPU that is said to be there, but that the kernel does not give.
        write(root, "devices/system/cpu/online", "0-1023\n");
        check(&last, root, Ok(&last));
        check(&list("1023"), root, Err("may not use CPU 1023; it may use"));
        check(&list(&format!("{last},1023")), root, Err("may not use CPU 1023; it may use"));
    }
}
