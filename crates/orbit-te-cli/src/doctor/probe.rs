//! What only system calls can tell. Rule: asked once, of this host; for a saved tree they are what was saved with it, or not asked.

use super::tree::{Miss, Tree, shown};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use serde::Deserialize;

/// The file of a saved tree that may hold the answers.
const SAVED: &str = "probe.json";
/// `MFD_NOEXEC_SEAL` of Linux 6.3; nix has no name for it.
const NOEXEC_SEAL: MFdFlags = MFdFlags::from_bits_retain(0x8);

/// The answer to one call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Asked<T> {
    /// It is another machine's.
    #[default]
    Not,
    /// The system's words.
    Refused(String),
    Told(T),
}

/// A limit of this process; none is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limit {
    /// What is in force.
    pub(crate) soft: Option<u64>,
    /// What the process may raise it to.
    pub(crate) hard: Option<u64>,
}

/// A file system's room in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Room {
    pub(crate) size: u64,
    pub(crate) free: u64,
}

/// How a memfd could be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Memfd {
    /// Sealable and never executable.
    NoexecSeal,
    /// Sealable; the kernel does not know the other.
    Sealable,
}

/// What the engine finds of RDMA.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verbs {
    /// The library, and a device that may be opened.
    Usable,
    /// Not all of it.
    Unavailable(Missing),
}

/// What is missing for RDMA.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Missing {
    pub(crate) cause: String,
    pub(crate) remedy: String,
}

/// All answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Probe {
    pub(crate) open_files: Asked<Limit>,
    pub(crate) locked_memory: Asked<Limit>,
    pub(crate) address_space: Asked<Limit>,
    pub(crate) memfd: Asked<Memfd>,
    /// Of `/dev/shm`.
    pub(crate) dev_shm: Asked<Room>,
    pub(crate) rdma: Asked<Verbs>,
}

impl<T> Asked<T> {
    fn from(answer: nix::Result<T>) -> Asked<T> {
        answer.map_or_else(|errno| Asked::Refused(errno.to_string()), Asked::Told)
    }
}

impl Probe {
    /// Asks this host.
    pub(crate) fn of_this_host() -> Probe {
        Probe {
            open_files: limit(Resource::RLIMIT_NOFILE),
            locked_memory: limit(Resource::RLIMIT_MEMLOCK),
            address_space: limit(Resource::RLIMIT_AS),
            memfd: Asked::from(memfd()),
            dev_shm: Asked::from(room("/dev/shm")),
            rdma: Asked::Told(verbs()),
        }
    }

    /// What was saved with a tree.
    pub(crate) fn saved(tree: &Tree) -> Probe {
        let refused = |why: String| Probe {
            open_files: Asked::Refused(why.clone()),
            locked_memory: Asked::Refused(why.clone()),
            address_space: Asked::Refused(why.clone()),
            memfd: Asked::Refused(why.clone()),
            dev_shm: Asked::Refused(why.clone()),
            rdma: Asked::Refused(why),
        };
        match tree.text(SAVED) {
            Ok(text) => serde_json::from_str(&text)
                .unwrap_or_else(|error| refused(format!("{SAVED}: {}", shown(&error.to_string())))),
            Err(Miss::Absent) => Probe::default(),
            Err(Miss::Unreadable(why)) => refused(format!("{SAVED}: {why}")),
        }
    }
}

fn limit(resource: Resource) -> Asked<Limit> {
    let bound = |value| (value != RLIM_INFINITY).then_some(value);
    Asked::from(getrlimit(resource).map(|(soft, hard)| Limit { soft: bound(soft), hard: bound(hard) }))
}

/// Makes one, which is gone at once.
fn memfd() -> nix::Result<Memfd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    match memfd_create(c"orbit-te-doctor", flags | NOEXEC_SEAL) {
        Ok(_) => Ok(Memfd::NoexecSeal),
        // An older kernel does not know the flag.
        Err(Errno::EINVAL) => memfd_create(c"orbit-te-doctor", flags).map(|_| Memfd::Sealable),
        Err(errno) => Err(errno),
    }
}

fn verbs() -> Verbs {
    match orbit_te::rdma_here() {
        Ok(()) => Verbs::Usable,
        Err(why) => Verbs::Unavailable(Missing { cause: why.cause(), remedy: why.remedy() }),
    }
}

fn room(path: &str) -> nix::Result<Room> {
    let about = statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(about.fragment_size());
    Ok(Room { size: bytes(about.blocks()), free: bytes(about.blocks_available()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_answers() {
        let probe = Probe::of_this_host();
        assert!(matches!(probe.open_files, Asked::Told(Limit { soft: None | Some(1..), .. })), "{probe:?}");
        assert!(!matches!(probe.memfd, Asked::Not));
        assert!(matches!(probe.rdma, Asked::Told(_)));
    }

    #[test]
    fn answers_are_saved_as_json() {
        let text = r#"{"open-files":{"told":{"soft":48,"hard":null}},"memfd":{"told":"noexec-seal"},"dev-shm":{"refused":"EACCES"},
            "rdma":{"told":{"unavailable":{"cause":"no RDMA device","remedy":"get one"}}}}"#;
        let probe: Probe = serde_json::from_str(text).unwrap();
        assert_eq!(probe.open_files, Asked::Told(Limit { soft: Some(48), hard: None }));
        assert_eq!(probe.memfd, Asked::Told(Memfd::NoexecSeal));
        assert_eq!(probe.dev_shm, Asked::Refused("EACCES".to_string()));
        assert_eq!(probe.address_space, Asked::Not);
        let missing = Missing { cause: "no RDMA device".to_string(), remedy: "get one".to_string() };
        assert_eq!(probe.rdma, Asked::Told(Verbs::Unavailable(missing)));
        assert!(serde_json::from_str::<Probe>(r#"{"open_files":{}}"#).is_err());
    }
}
