//! Why a route is not taken, or was left. Rule: a code and a name are never reused, and `docs/routes.md` says the same, which a test
//! holds.

use super::id::RouteId;
use orbit_te_transport::OpKind;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a route is not taken for an op, or was left. Small and `Copy`; the words have the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Switched off by the configuration.
    Disabled,
    /// This build, or this engine, has no such route.
    NotBuilt,
    /// A name that no version knows.
    UnknownRoute,
    /// The peer is on another host.
    OtherHost,
    /// The peer's process is in another namespace of the same host, so that what names memory there means nothing here.
    OtherNamespace,
    /// The peer does not offer it.
    NotOffered,
    /// The peer's process is of another user.
    OtherUser {
        /// Our user id.
        ours: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The kernel forbids it, or does not have it.
    KernelRefuses {
        /// The system's error number.
        errno: i32,
    },
    /// The peer's memory was not made to be shared.
    NotShared,
    /// The region is a part of a larger buffer, and sharing that would show what lies beside it.
    PartOfBuffer,
    /// Peers may only write the region, and this route can't give them that alone.
    WriteOnly,
    /// It does not reach this kind of memory at this side.
    LocalMemory,
    /// It does not reach this kind of memory at the peer.
    RemoteMemory,
    /// It does not do this kind of op.
    KindUnsupported {
        /// Which kind.
        kind: OpKind,
    },
    /// It can't verify bytes end to end.
    NoChecksums,
    /// It takes contiguous ops only.
    NoLists,
    /// It takes fewer pieces in one op.
    TooManyPieces {
        /// The most it takes.
        most: u32,
    },
    /// It takes fewer bytes in one op of this form.
    TooLarge {
        /// The most it takes, in KiB.
        most_kib: u32,
    },
    /// Its link is still being made.
    Linking,
    /// Its link is down.
    LinkDown,
    /// It rests after a failure.
    Resting {
        /// How long it still does.
        left_us: u32,
    },
    /// It has failed for this op already.
    FailedBefore,
    /// It is expected to take longer.
    Slower {
        /// What it is expected to take.
        expected_us: u32,
        /// What the chosen one is.
        chosen_us: u32,
    },
    /// It is expected to be faster, but not by enough to leave the one that is used or preferred.
    TooLittleGain {
        /// What it is expected to take.
        expected_us: u32,
        /// What the chosen one is.
        chosen_us: u32,
    },
    /// It stands back for one op, by which another route is measured again.
    Probing {
        /// The other route.
        route: RouteId,
    },
    /// A rule of the policy does not have it.
    Rule {
        /// The rule's number, from 1.
        rule: u16,
    },
    /// Another route was demanded.
    Demanded {
        /// Which.
        route: RouteId,
    },
    /// The op has been tried as often as it may.
    AttemptsSpent {
        /// How often that is.
        attempts: u32,
    },
    /// It runs below the floor that the policy sets.
    BelowFloor {
        /// What it gives, in percent of what is expected of it.
        percent: u16,
    },
}

/// What the catalogue has of one reason.
struct Row {
    code: u16,
    name: &'static str,
    what: &'static str,
    remedy: &'static str,
}

const NONE: &str = "none is needed";
const LARGER: &str = "divide the request, or have another route for it";

impl Reason {
    /// One of each, by code. The values are zeros.
    pub const ALL: [Reason; 29] = [
        Reason::Disabled,
        Reason::NotBuilt,
        Reason::UnknownRoute,
        Reason::OtherHost,
        Reason::OtherNamespace,
        Reason::NotOffered,
        Reason::OtherUser { ours: 0, theirs: 0 },
        Reason::KernelRefuses { errno: 0 },
        Reason::NotShared,
        Reason::PartOfBuffer,
        Reason::WriteOnly,
        Reason::LocalMemory,
        Reason::RemoteMemory,
        Reason::KindUnsupported { kind: OpKind::Read },
        Reason::NoChecksums,
        Reason::NoLists,
        Reason::TooManyPieces { most: 0 },
        Reason::TooLarge { most_kib: 0 },
        Reason::Linking,
        Reason::LinkDown,
        Reason::Resting { left_us: 0 },
        Reason::FailedBefore,
        Reason::Slower { expected_us: 0, chosen_us: 0 },
        Reason::TooLittleGain { expected_us: 0, chosen_us: 0 },
        Reason::Probing { route: RouteId::SHM },
        Reason::Rule { rule: 0 },
        Reason::Demanded { route: RouteId::SHM },
        Reason::AttemptsSpent { attempts: 0 },
        Reason::BelowFloor { percent: 0 },
    ];

    /// Its code: from 1, without a gap. Never reused.
    pub fn code(self) -> u16 {
        self.row().code
    }

    /// Its short name. Never changed.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What it means in general; its own words have the values.
    pub fn what(self) -> &'static str {
        self.row().what
    }

    /// What to do to have the route taken.
    pub fn remedy(self) -> &'static str {
        self.row().remedy
    }

    fn row(self) -> Row {
        let row = |code, name, what, remedy| Row { code, name, what, remedy };
        match self {
            Reason::Disabled => {
                row(1, "disabled", "the configuration switches it off", "switch it on in the configuration")
            }
            Reason::NotBuilt => row(
                2,
                "not-built",
                "this engine has no such route",
                "take a build, a configuration and a host that have it (`orbit-te doctor` tells what this one lacks), or demand another route",
            ),
            Reason::UnknownRoute => {
                row(3, "unknown-route", "no version knows a route of this name", "correct the name")
            }
            Reason::OtherHost => row(
                4,
                "other-host",
                "the peer is on another host",
                "none is needed if it is; containers of one host meet in a socket folder that both see",
            ),
            Reason::OtherNamespace => row(
                5,
                "other-namespace",
                "the peer's process is in another namespace of the same host",
                "let both containers share the namespace (processes, or /dev/shm and sockets)",
            ),
            Reason::NotOffered => row(
                6,
                "not-offered",
                "the peer does not offer it for this segment",
                "switch it on at the peer; use the same version at both sides",
            ),
            Reason::OtherUser { .. } => row(
                7,
                "other-user",
                "the peer's process is of another user",
                "run both processes as one user",
            ),
            Reason::KernelRefuses { .. } => row(
                8,
                "kernel-refuses",
                "the kernel forbids it, or does not have it",
                "see the error: kernel.yama.ptrace_scope, seccomp profile, capabilities of the container",
            ),
            Reason::NotShared => row(
                9,
                "memory-not-shared",
                "the peer's memory was not made to be shared",
                "have the peer make its memory by the engine (`HostBuffer`), for sharing",
            ),
            Reason::PartOfBuffer => row(
                10,
                "part-of-buffer",
                "the region is a part of a larger buffer, whose rest sharing would show",
                "have the peer register the whole buffer, or give the region one of its own",
            ),
            Reason::WriteOnly => row(
                11,
                "write-only",
                "peers may only write the region, and this route would let them read it",
                "register the region with the right to read as well",
            ),
            Reason::LocalMemory => {
                row(12, "local-memory", "it does not reach this kind of memory at this side", NONE)
            }
            Reason::RemoteMemory => {
                row(13, "remote-memory", "it does not reach this kind of memory at the peer", NONE)
            }
            Reason::KindUnsupported { .. } => {
                row(14, "kind-unsupported", "it does not do this kind of op", NONE)
            }
            Reason::NoChecksums => row(
                15,
                "no-checksums",
                "it can't verify bytes end to end",
                "leave verifying off where the route needs none",
            ),
            Reason::NoLists => {
                row(16, "no-lists", "it takes contiguous ops only", "post the pieces one by one")
            }
            Reason::TooManyPieces { .. } => {
                row(17, "too-many-pieces", "it takes fewer pieces in one op", LARGER)
            }
            Reason::TooLarge { .. } => {
                row(18, "too-large", "it takes fewer bytes in one op of this form", LARGER)
            }
            Reason::Linking => row(
                19,
                "linking",
                "its link is still being made",
                "wait for `Segment::warm` before the first op",
            ),
            Reason::LinkDown => row(
                20,
                "link-down",
                "its link is down",
                "none is needed if it comes back by itself; otherwise look at the log for the cause",
            ),
            Reason::Resting { .. } => row(
                21,
                "resting",
                "it rests after a failure",
                "none is needed; look at the log for what failed, if it comes back",
            ),
            Reason::FailedBefore => row(
                22,
                "failed-before",
                "it has failed for this op already",
                "look at the log for what failed",
            ),
            Reason::Slower { .. } => row(
                23,
                "slower",
                "it is expected to take longer than the one taken",
                "none is needed; demand it to have it all the same",
            ),
            Reason::TooLittleGain { .. } => row(
                24,
                "too-little-gain",
                "it is expected to be faster, but by less than `slow_factor`",
                "none is needed; lower `slow_factor` or name it first in a rule",
            ),
            Reason::Probing { .. } => row(
                25,
                "probing",
                "it stands back for one op, by which another route is measured again",
                "none is needed; set `probe_interval_ms` to 0 to have no probes",
            ),
            Reason::Rule { .. } => {
                row(26, "rule", "the rule of the policy that matches does not have it", "change the rule")
            }
            Reason::Demanded { .. } => {
                row(27, "demanded-other", "another route was demanded", "demand none, or this one")
            }
            Reason::AttemptsSpent { .. } => row(
                28,
                "attempts-spent",
                "the op has been tried as often as it may",
                "look at the log for what failed; raise `attempts`",
            ),
            Reason::BelowFloor { .. } => row(
                29,
                "below-floor",
                "it gives less than the share of what is expected of it that the policy asks for",
                "look for what slows the path; lower `floor`, or let it only warn",
            ),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::OtherUser { ours, theirs } => {
                write!(f, "the peer's process is of user {theirs}, this one of {ours}")
            }
            Reason::KernelRefuses { errno } => {
                write!(f, "the kernel refuses: {}", std::io::Error::from_raw_os_error(errno))
            }
            Reason::KindUnsupported { kind: OpKind::Read } => f.write_str("it does not read"),
            Reason::KindUnsupported { kind: OpKind::Write } => f.write_str("it does not write"),
            Reason::TooManyPieces { most } => write!(f, "it takes at most {most} pieces in one op"),
            Reason::TooLarge { most_kib } => {
                write!(f, "it takes at most {most_kib} KiB in one op of this form")
            }
            Reason::Resting { left_us } => {
                write!(f, "it rests after a failure for another {} ms", left_us.div_ceil(1000))
            }
            Reason::Slower { expected_us, chosen_us } => {
                write!(f, "it is expected to take {expected_us} µs, the one taken {chosen_us} µs")
            }
            Reason::TooLittleGain { expected_us, chosen_us } => write!(
                f,
                "it is expected to take {expected_us} µs, too little less than the {chosen_us} µs of the one taken"
            ),
            Reason::Probing { route } => write!(f, "it stands back for one op, which measures {route} again"),
            Reason::Rule { rule } => write!(f, "rule {rule} of the policy does not have it"),
            Reason::Demanded { route } => write!(f, "{route} was demanded"),
            Reason::AttemptsSpent { attempts } => {
                write!(f, "the op was tried {attempts} times, as often as it may")
            }
            Reason::BelowFloor { percent } => {
                write!(f, "it gives {percent}% of what is expected of it, below the policy's floor")
            }
            other => f.write_str(other.what()),
        }
    }
}

/// How often each reason was given. Any thread may add.
#[derive(Debug)]
pub struct ReasonCounts([AtomicU64; Reason::ALL.len()]);

impl Default for ReasonCounts {
    fn default() -> ReasonCounts {
        ReasonCounts([const { AtomicU64::new(0) }; Reason::ALL.len()])
    }
}

impl ReasonCounts {
    /// Counts one.
    pub fn add(&self, reason: Reason) {
        // Codes begin at 1 and have no gap, which a test holds.
        self.0[usize::from(reason.code()) - 1].fetch_add(1, Ordering::Relaxed);
    }

    /// How often this reason was given, whatever its values.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[usize::from(reason.code()) - 1].load(Ordering::Relaxed)
    }

    /// The reasons that were given at least once, by code: the name, and how often.
    pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
        let all = Reason::ALL.iter().map(|reason| (reason.name(), self.get(*reason)));
        all.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_have_no_gap_and_names_are_unique() {
        for (at, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(usize::from(reason.code()), at + 1, "{reason:?}");
            assert!(reason.name().chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{reason:?}");
            assert!(!reason.to_string().is_empty() && !reason.remedy().is_empty());
        }
        assert_eq!(Reason::ALL.iter().map(|r| r.name()).collect::<BTreeSet<_>>().len(), Reason::ALL.len());
    }

    #[test]
    fn a_reason_is_small() {
        assert!(size_of::<Reason>() <= 12);
    }

    #[test]
    fn words_have_the_values() {
        let rows = [
            (Reason::OtherUser { ours: 7, theirs: 8 }, "the peer's process is of user 8, this one of 7"),
            (Reason::Resting { left_us: 1500 }, "it rests after a failure for another 2 ms"),
            (Reason::Demanded { route: RouteId::TCP }, "tcp was demanded"),
            (Reason::Rule { rule: 3 }, "rule 3 of the policy does not have it"),
            (Reason::LinkDown, "its link is down"),
        ];
        for (reason, words) in rows {
            assert_eq!(reason.to_string(), words);
        }
        assert!(Reason::KernelRefuses { errno: 1 }.to_string().contains("not permitted"));
    }

    #[test]
    fn what_is_counted_is_told() {
        let counts = ReasonCounts::default();
        counts.add(Reason::Slower { expected_us: 9, chosen_us: 1 });
        counts.add(Reason::Slower { expected_us: 8, chosen_us: 2 });
        counts.add(Reason::Disabled);
        assert_eq!(counts.snapshot(), [("disabled", 1), ("slower", 2)]);
        assert_eq!(counts.get(Reason::LinkDown), 0);
    }
}
