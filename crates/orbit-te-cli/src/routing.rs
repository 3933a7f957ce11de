//! The options about routes, which every command takes that moves bytes. Rule: an option means the same in all of them; what is wrong with
//! a policy is said before anybody is called.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use orbit_te::route::{Policy, RouteId};
use orbit_te::{
    Batch, Completions, CpuList, Engine, EngineBuilder, Error, RdmaConfig, RdmaUse, Segment, ShmConfig,
    Slice, SocketFolder, Transfer,
};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// No policy that somebody wrote is longer.
const MOST_POLICY_BYTES: u64 = 1 << 20;

/// How processes of this host are met.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Meeting {
    /// Reach processes of this host over TCP as well, as if they were on another one.
    #[arg(long)]
    pub(crate) no_same_host: bool,
    /// A folder that is there, in which processes of this host meet by sockets; who serves names it, and both sides see it under this path.
    /// For containers that share it and no network namespace. Default: a folder of this user.
    #[arg(long, value_name = "DIR", conflicts_with = "no_same_host")]
    pub(crate) socket_folder: Option<PathBuf>,
    /// Use this RDMA device, by name or as NAME:PORT; may be given several times, and is an error where it can't be used. Default: all there are.
    #[arg(long, value_name = "NAME")]
    rdma_device: Vec<String>,
    /// Use this index of the RDMA devices' GID tables; an error where none has it. Default: the best address.
    #[arg(long, value_name = "N")]
    rdma_gid_index: Option<u16>,
    /// How completions of RDMA are learnt of. Default: adaptive.
    #[arg(long, value_enum, value_name = "HOW")]
    rdma_completions: Option<Learning>,
    /// Use no RDMA device.
    #[arg(long, conflicts_with_all = ["rdma_device", "rdma_gid_index", "rdma_completions"])]
    no_rdma: bool,
    /// Keep this process's worker to these CPUs, such as 0-3,8; RDMA devices of their NUMA node are tried first. Default: any CPU.
    #[arg(long, value_name = "LIST")]
    worker_cpus: Option<CpuList>,
}

/// How completions are learnt of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Learning {
    /// Look again and again, on a CPU that is busy meanwhile.
    Polling,
    /// Be told by the device.
    Events,
    /// Look for a moment, then be told.
    Adaptive,
}

impl Learning {
    fn word(self) -> &'static str {
        match self {
            Learning::Polling => "polling",
            Learning::Events => "events",
            Learning::Adaptive => "adaptive",
        }
    }
}

impl From<Learning> for Completions {
    fn from(how: Learning) -> Completions {
        match how {
            Learning::Polling => Completions::Polling,
            Learning::Events => Completions::Events,
            Learning::Adaptive => Completions::Adaptive,
        }
    }
}

impl Meeting {
    /// Refuses a folder that is not there.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &self.socket_folder {
            Some(folder) if !folder.is_dir() => {
                Err(Failure::Local(format!("`{}` is no folder to meet in; make it first", folder.display())))
            }
            _ => Ok(()),
        }
    }

    /// Also refuses RDMA that is demanded and can't be had: before anything else is begun, so that nothing else is blamed.
    pub(crate) fn check_all(&self) -> Result<(), Failure> {
        self.check()?;
        match self.rdma() {
            demanded @ RdmaUse::Required(_) => Ok(demanded.check()?),
            RdmaUse::Off | RdmaUse::WherePossible(_) => Ok(()),
        }
    }

    pub(crate) fn apply(&self, builder: EngineBuilder) -> Result<EngineBuilder, Failure> {
        self.check()?;
        let builder = builder.rdma(self.rdma()).worker_cpus(self.worker_cpus.iter().cloned().collect());
        Ok(match &self.socket_folder {
            Some(folder) => {
                let folder = SocketFolder::At(folder.clone());
                builder.shm(Some(ShmConfig { folder, ..ShmConfig::default() }))
            }
            None if self.no_same_host => builder.shm(None),
            None => builder,
        })
    }

    /// How RDMA is used.
    fn rdma(&self) -> RdmaUse {
        let config = RdmaConfig {
            devices: self.rdma_device.clone(),
            gid_index: self.rdma_gid_index,
            completions: self.rdma_completions.map(Completions::from).unwrap_or_default(),
            ..RdmaConfig::default()
        };
        // Who says what is to be used wants to hear that it can't be.
        let demanded = !self.rdma_device.is_empty() || self.rdma_gid_index.is_some();
        match (self.no_rdma, demanded) {
            (true, _) => RdmaUse::Off,
            (false, false) => RdmaUse::WherePossible(config),
            (false, true) => RdmaUse::Required(config),
        }
    }

    /// The same as words, for a process of our own. Its worker moves nothing, and needs no CPUs.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if self.no_same_host {
            words.push("--no-same-host".into());
        }
        if let Some(folder) = &self.socket_folder {
            words.extend(["--socket-folder".into(), folder.into()]);
        }
        for device in &self.rdma_device {
            words.extend(["--rdma-device".into(), device.into()]);
        }
        if let Some(index) = self.rdma_gid_index {
            words.extend(["--rdma-gid-index".into(), index.to_string().into()]);
        }
        if let Some(how) = self.rdma_completions {
            words.extend(["--rdma-completions".into(), how.word().into()]);
        }
        if self.no_rdma {
            words.push("--no-rdma".into());
        }
        words
    }
}

/// Which routes are taken.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Routing {
    /// Which routes may be taken, and how they are chosen: a file as docs/routes.md says. Default: the fastest.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Demand a route: shm, process_vm, rdma, tcp. Where it can't be taken, that is a failure.
    #[arg(long, value_name = "NAME", value_parser = named)]
    pub(crate) route: Option<RouteId>,
    #[command(flatten)]
    meeting: Meeting,
}

impl Routing {
    pub(crate) fn apply(&self, builder: EngineBuilder) -> Result<EngineBuilder, Failure> {
        let builder = self.meeting.apply(builder)?;
        Ok(match self.policy()? {
            Some(policy) => builder.policy(policy),
            None => builder,
        })
    }

    pub(crate) fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    /// The policy of the file, if one is named.
    pub(crate) fn policy(&self) -> Result<Option<Policy>, Failure> {
        let Some(path) = &self.policy else { return Ok(None) };
        let text = read(path, MOST_POLICY_BYTES)?;
        let wrong = |why: &dyn std::fmt::Display| {
            // The reader of TOML draws a picture of several lines.
            let line = why.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            Failure::Usage(format!("`{}`: {line}", path.display()))
        };
        Policy::parse(&text).map(Some).map_err(|why| wrong(&why))
    }
}

/// The text of a file of at most so many bytes.
pub(crate) fn read(path: &Path, most: u64) -> Result<String, Failure> {
    let failed =
        |e: &dyn std::fmt::Display| Failure::local(format_args!("can't read `{}`", path.display()), e);
    let length = std::fs::metadata(path).map_err(|e| failed(&e))?.len();
    if length > most {
        return Err(failed(&format_args!("it has {length} bytes, over {most}")));
    }
    std::fs::read_to_string(path).map_err(|e| failed(&e))
}

/// A route by its name, as a clap value parser.
pub(crate) fn named(name: &str) -> Result<RouteId, String> {
    RouteId::named(name).ok_or_else(|| {
        let known: Vec<&str> = RouteId::all().map(RouteId::name).collect();
        format!("no route is called `{name}`; there are {}", known.join(", "))
    })
}

/// An engine, and the route that is demanded of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) demand: Option<RouteId>,
}

impl Way<'_> {
    pub(crate) fn write(&self, to: &Segment, offset: u64, from: &Slice) -> Result<Transfer, Error> {
        let mut batch = Batch::with_capacity(1);
        batch.write(to, offset, from);
        self.submit(batch)
    }

    pub(crate) fn read(&self, from: &Segment, offset: u64, into: &Slice) -> Result<Transfer, Error> {
        let mut batch = Batch::with_capacity(1);
        batch.read(from, offset, into);
        self.submit(batch)
    }

    pub(crate) fn submit(&self, mut batch: Batch) -> Result<Transfer, Error> {
        if let Some(route) = self.demand {
            batch.route(route);
        }
        self.engine.submit(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        meeting: Meeting,
    }

    fn meeting(words: &[&str]) -> Meeting {
        Words::try_parse_from(std::iter::once(&"orbit-te").chain(words)).unwrap().meeting
    }

    #[test]
    fn completions_are_as_named() {
        let check = |words: &[&str], want: Completions| {
            let meeting = meeting(words);
            let (RdmaUse::WherePossible(config) | RdmaUse::Required(config)) = meeting.rdma() else {
                panic!("{words:?}: off");
            };
            assert_eq!(config.completions, want, "{words:?}");
            // A process of our own is told the same.
            assert_eq!(meeting.words(), words.iter().map(OsString::from).collect::<Vec<_>>());
        };
        check(&[], Completions::Adaptive);
        check(&["--rdma-completions", "polling"], Completions::Polling);
        check(&["--rdma-completions", "events"], Completions::Events);
        check(&["--rdma-device", "mlx5_0", "--rdma-completions", "adaptive"], Completions::Adaptive);
    }

    #[test]
    fn cpus_are_for_this_process_alone() {
        let meeting = meeting(&["--worker-cpus", "0-1,3"]);
        assert_eq!(meeting.worker_cpus.as_ref().map(CpuList::to_string).as_deref(), Some("0-1,3"));
        assert!(meeting.words().is_empty());
    }
}
