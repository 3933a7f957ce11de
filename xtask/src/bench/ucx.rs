//! `ucx_perftest`: moves one hot buffer, over TCP or within this host. It checks no bytes, and a put of its completes at the sender; a
//! latency of puts is half of one to and fro.

use super::engine::ListCosts;
use super::plan::{Case, GIB, MIB, Op};
use super::sample::Sample;
use anyhow::{Context, bail};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CLIENT_MAX: Duration = Duration::from_secs(40);
const SERVER_MAX: Duration = Duration::from_secs(3);
const SERVER_START: Duration = Duration::from_millis(100);

pub(super) struct Ucx {
    /// What the records say: who it is, and over what.
    name: &'static str,
    transport: &'static str,
    /// The transports that UCX may use.
    tls: &'static str,
    binary: PathBuf,
    libraries: Option<PathBuf>,
    version: String,
    /// Iterations that take the time wanted, found by a trial.
    iterations: BTreeMap<Case, u64>,
}

impl Ucx {
    /// The one installed under `root`, or else the system's, over TCP.
    pub(super) fn find(root: &Path) -> anyhow::Result<Ucx> {
        Ucx::over(root, ("ucx_perftest", "ucx:tcp"), "tcp")
    }

    /// The same over other transports.
    pub(super) fn over(
        root: &Path,
        (name, transport): (&'static str, &'static str),
        tls: &'static str,
    ) -> anyhow::Result<Ucx> {
        let wheel = std::fs::read_dir(root.join("ucx/lib")).ok().and_then(|entries| {
            let package = |e: std::fs::DirEntry| e.path().join("site-packages/libucx");
            entries.flatten().map(package).find(|p| p.join("bin/ucx_perftest").exists())
        });
        let (binary, libraries) = match wheel {
            Some(package) => (package.join("bin/ucx_perftest"), Some(package.join("lib"))),
            None => (PathBuf::from("ucx_perftest"), None),
        };
        let mut ucx = Ucx {
            name,
            transport,
            tls,
            binary,
            libraries,
            version: String::new(),
            iterations: BTreeMap::new(),
        };
        let info =
            ucx.command(&ucx.binary.with_file_name("ucx_info")).arg("-v").output().context("ucx_info")?;
        let info = String::from_utf8_lossy(&info.stdout).into_owned();
        let line = info.lines().find(|line| line.contains("ersion")).context("ucx_info names no version")?;
        ucx.version = line.split_whitespace().last().unwrap_or_default().into();
        Ok(ucx)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let env = [("UCX_TLS", self.tls), ("UCX_NET_DEVICES", "lo"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];
        command.envs(env).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }

    pub(super) fn measure(&mut self, case: Case, seconds: f64) -> anyhow::Result<Sample> {
        let iterations = match self.iterations.get(&case) {
            Some(n) => *n,
            None => {
                let trial = self.once(case, (256 * MIB / case.block).clamp(10, 2000) as u64)?.gib_per_s;
                let n = ((seconds * trial * GIB / case.block as f64) as u64).clamp(10, 200_000);
                self.iterations.insert(case, n);
                n
            }
        };
        let Found { median_us, gib_per_s } = self.once(case, iterations)?;
        Ok(Sample {
            peer: self.name.into(),
            version: self.version.clone(),
            transport: self.transport.into(),
            op: case.op,
            block_bytes: case.block,
            batch: case.batch,
            depth: case.depth,
            hot: case.hot,
            form: case.form,
            checksum: case.checksum,
            round: 0,
            gib_per_s,
            // With many in flight it is no time of one.
            p50_us: Some(median_us).filter(|_| case.depth == 1),
            p99_us: None,
            cpu_s_per_gib: None,
            costs: ListCosts::default(),
            verified: None,
            // Its own share is not known apart.
            noise: 0.0,
        })
    }

    /// One run, and another when its server was not there yet, as on a busy machine.
    fn once(&self, case: Case, iterations: u64) -> anyhow::Result<Found> {
        let slow = |times: u32| self.attempt(case, iterations, SERVER_START * times);
        slow(1).or_else(|_| slow(3)).or_else(|_| slow(9))
    }

    fn attempt(&self, case: Case, iterations: u64, start: Duration) -> anyhow::Result<Found> {
        // Two pollers: each on its own core, or the scheduler may keep both on one for a whole run.
        let (first, last) = outer_cores()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port().to_string();
        let server =
            self.command(&self.binary).args(["-p", &port, "-c", &first]).stdout(Stdio::null()).spawn();
        let mut server = Ended(server.with_context(|| self.binary.display().to_string())?);
        std::thread::sleep(start);
        let test = match case.op {
            // One at a time and small: only to and fro says when the bytes are there.
            Op::Write if case.depth == 1 && case.block < MIB => "ucp_put_lat",
            Op::Write => "ucp_put_bw",
            Op::Read => "ucp_get",
        };
        let (block, n, warm) =
            (case.block.to_string(), iterations.to_string(), (iterations / 20).max(2).to_string());
        let depth = case.depth.to_string();
        let depth: &[&str] = if test.ends_with("_lat") { &[] } else { &["-O", &depth] };
        let client = self
            .command(&self.binary)
            .args(["127.0.0.1", "-p", &port, "-t", test, "-s", &block, "-n", &n, "-w", &warm])
            .args(["-R", "50", "-f", "-v", "-c", &last])
            .args(depth)
            .spawn()?;
        let mut client = Ended(client);
        client.wait(CLIENT_MAX)?;
        // A server that stays has nothing to add, and is ended.
        let _ = server.wait(SERVER_MAX);
        let mut text = String::new();
        client.0.stdout.take().context("no output")?.read_to_string(&mut text)?;
        found(&text).with_context(|| format!("ucx_perftest printed no result: {text:?}"))
    }
}

/// What one run says.
#[derive(Debug, PartialEq)]
struct Found {
    median_us: f64,
    gib_per_s: f64,
}

/// From the last line of numbers: iterations, percentile, average and overall latency, average and overall MiB/s, …
fn found(text: &str) -> Option<Found> {
    let is_result = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    let line = text.lines().rfind(is_result)?;
    let number = |at| line.split(',').nth(at)?.trim().parse::<f64>().ok();
    Some(Found { median_us: number(1)?, gib_per_s: number(5)? / 1024.0 })
}

/// The first and the last core that this process may use.
fn outer_cores() -> anyhow::Result<(String, String)> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    let mut cores = (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false));
    let first = cores.next().context("no core to run on")?;
    Ok((first.to_string(), cores.next_back().unwrap_or(first).to_string()))
}

/// A child that is ended with its owner.
struct Ended(Child);

impl Ended {
    fn wait(&mut self, limit: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + limit;
        while self.0.try_wait()?.is_none() {
            if Instant::now() > end {
                bail!("ucx_perftest did not end within {} s", limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, found};

    #[test]
    fn the_median_is_the_second_number_and_the_overall_rate_the_sixth() {
        let text = "warning: x\n100,1.0,2.0,3.0,900.0,1024.0,7,8\n200,1.5,2.0,3.0,900.0,2048.0,7,8\n";
        assert_eq!(found(text), Some(Found { median_us: 1.5, gib_per_s: 2.0 }));
        assert_eq!(found("error\n"), None);
    }
}
