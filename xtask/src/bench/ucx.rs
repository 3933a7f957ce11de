//! `ucx_perftest` over TCP: streams one hot buffer with many requests in flight. It checks no bytes, and a put of its
//! completes at the sender.

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
    binary: PathBuf,
    libraries: Option<PathBuf>,
    version: String,
    /// Iterations that take the time wanted, found by a trial.
    iterations: BTreeMap<Case, u64>,
}

impl Ucx {
    /// The one installed under `root`, or else the system's.
    pub(super) fn find(root: &Path) -> anyhow::Result<Ucx> {
        let wheel = std::fs::read_dir(root.join("ucx/lib")).ok().and_then(|entries| {
            let package = |e: std::fs::DirEntry| e.path().join("site-packages/libucx");
            entries.flatten().map(package).find(|p| p.join("bin/ucx_perftest").exists())
        });
        let (binary, libraries) = match wheel {
            Some(package) => (package.join("bin/ucx_perftest"), Some(package.join("lib"))),
            None => (PathBuf::from("ucx_perftest"), None),
        };
        let mut ucx = Ucx { binary, libraries, version: String::new(), iterations: BTreeMap::new() };
        let info =
            ucx.command(&ucx.binary.with_file_name("ucx_info")).arg("-v").output().context("ucx_info")?;
        let info = String::from_utf8_lossy(&info.stdout).into_owned();
        let line = info.lines().find(|line| line.contains("ersion")).context("ucx_info names no version")?;
        ucx.version = line.split_whitespace().last().unwrap_or_default().into();
        Ok(ucx)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let env = [("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];
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
                let trial = self.once(case, (256 * MIB / case.block).clamp(10, 2000) as u64)?;
                let n = ((seconds * trial * GIB / case.block as f64) as u64).clamp(10, 200_000);
                self.iterations.insert(case, n);
                n
            }
        };
        Ok(Sample {
            peer: "ucx_perftest".into(),
            version: self.version.clone(),
            transport: "ucx:tcp".into(),
            op: case.op,
            block_bytes: case.block,
            batch: case.batch,
            depth: case.depth,
            hot: case.hot,
            form: case.form,
            checksum: case.checksum,
            round: 0,
            gib_per_s: self.once(case, iterations)?,
            p50_us: None,
            p99_us: None,
            cpu_s_per_gib: None,
            costs: ListCosts::default(),
            verified: None,
            // Its own share is not known apart.
            noise: 0.0,
        })
    }

    /// Throughput in GiB/s.
    fn once(&self, case: Case, iterations: u64) -> anyhow::Result<f64> {
        // Two pollers: each on its own core, or the scheduler may keep both on one for a whole run.
        let (first, last) = outer_cores()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port().to_string();
        let server =
            self.command(&self.binary).args(["-p", &port, "-c", &first]).stdout(Stdio::null()).spawn();
        let mut server = Ended(server.with_context(|| self.binary.display().to_string())?);
        std::thread::sleep(SERVER_START);
        let test = match case.op {
            Op::Write => "ucp_put_bw",
            Op::Read => "ucp_get",
        };
        let (block, n, warm) =
            (case.block.to_string(), iterations.to_string(), (iterations / 20).max(2).to_string());
        let depth = case.depth.to_string();
        let client = self
            .command(&self.binary)
            .args(["127.0.0.1", "-p", &port, "-t", test, "-s", &block, "-n", &n, "-w", &warm])
            .args(["-R", "50", "-f", "-v", "-c", &last, "-O", &depth])
            .spawn()?;
        let mut client = Ended(client);
        client.wait(CLIENT_MAX)?;
        // A server that stays has nothing to add, and is ended.
        let _ = server.wait(SERVER_MAX);
        let mut text = String::new();
        client.0.stdout.take().context("no output")?.read_to_string(&mut text)?;
        rate(&text).with_context(|| format!("ucx_perftest printed no result: {text:?}"))
    }
}

/// From the last line of numbers: iterations, percentile, average and overall latency, average and overall MiB/s, …
fn rate(text: &str) -> Option<f64> {
    let is_result = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    let line = text.lines().rfind(is_result)?;
    Some(line.split(',').nth(5)?.trim().parse::<f64>().ok()? / 1024.0)
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
    #[test]
    fn the_overall_rate_is_the_sixth_number() {
        let text = "warning: x\n100,1.0,2.0,3.0,900.0,1024.0,7,8\n200,1.0,2.0,3.0,900.0,2048.0,7,8\n";
        assert_eq!(super::rate(text), Some(2.0));
        assert_eq!(super::rate("error\n"), None);
    }
}
