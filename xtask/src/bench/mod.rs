//! `cargo xtask bench`: the engine, plain sockets and other engines over loopback, in interleaved rounds, judged by ratios
//! within a round. [`rounds`] is the schedule, [`demand`] what is asked of the engine, [`worker`] what a process does.

mod demand;
mod engine;
mod inbox;
mod lists;
mod machine;
mod orbit;
mod pair;
mod peers;
mod plan;
mod promises;
mod quiet;
mod raw;
mod rdma;
mod report;
mod rounds;
mod same_host;
mod sample;
mod ucx;
mod usage;
mod worker;

use anyhow::{Context, bail};
use demand::{Facts, Verdict};
use plan::{POINTS, Point};
use promises::{PROMISES, Promise};
use sample::Summary;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The exit status of `--check` when a demand is not met.
const UNMET: i32 = 3;
const IDLE_SPAN: Duration = Duration::from_secs(2);

/// Arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Folder with other engines' workers and their setup.sh: measure them, and ucx_perftest, too.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Where the other engines are installed, once [default: orbit-te/peers in the user's cache folder].
    #[arg(long, value_name = "DIR", requires = "peers")]
    peers_root: Option<PathBuf>,
    /// Rounds of each point; lists, notifications, checksums and same-host have four times as many.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    reps: u16,
    /// Timed part of one repetition.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Block sizes and how many blocks make one submission, such as 4K:1,64K:128 [default: all that are judged].
    #[arg(long, value_delimiter = ',')]
    points: Vec<Point>,
    /// What is measured beside points [default: all, and none where points are named].
    #[arg(long, value_delimiter = ',')]
    promises: Vec<Promise>,
    /// Only these engines, such as raw,orbit-te,nixl,ucx_perftest; same-host is the series between processes of one host, rdma that over verbs in memory and in the lab's guest.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Seconds to wait, in all, for the machine to be quiet.
    #[arg(long, default_value_t = 300.0)]
    wait: f64,
    /// Folder for every sample (raw.jsonl), medians (results.jsonl), demands (demands.jsonl), the tables (table.txt) and
    /// what workers print (NAME.log).
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON lines: medians, then demands. The tables go to stderr.
    #[arg(long)]
    json: bool,
    /// Write the tables as markdown, with the machine and the revision.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Leave the micro-benchmarks of the crates out, which come first otherwise.
    #[arg(long)]
    no_micro: bool,
    /// Exit with status 3 unless every demand that was measured is met, and every one that needs no other engine was measured.
    #[arg(long)]
    check: bool,
}

/// Arguments of a worker.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    engine: EngineKind,
    #[arg(long)]
    role: engine::Role,
    /// Of its buffer.
    #[arg(long)]
    bytes: usize,
}

/// The engines of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EngineKind {
    /// Plain blocking sockets.
    Raw,
    /// This project's engine.
    OrbitTe,
    /// The same between processes of one host, with its baselines.
    SameHost,
}

/// The crates' own benches, with criterion: what a header, a check and a token cost. Their output goes to stderr.
fn micro() -> anyhow::Result<()> {
    let benches =
        [("orbit-te-wire", "frames"), ("orbit-te-memory", "admission"), ("orbit-te-rdma", "slices")];
    let names = benches.iter().flat_map(|(krate, bench)| ["--package", *krate, "--bench", *bench]);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command
        .arg("bench")
        .args(names)
        .args(["--features", "orbit-te-rdma/testing"])
        .args(["--", "--quick", "--noplot"])
        .stdout(io::stderr());
    let status = command.status().context("cargo bench")?;
    anyhow::ensure!(status.success(), "the micro-benchmarks failed: {status}");
    Ok(())
}

/// Serves one side of a pair until stdin ends.
pub(crate) fn run_worker(args: &WorkerArgs) -> anyhow::Result<()> {
    if args.engine == EngineKind::SameHost {
        return same_host::run_worker(args.role);
    }
    worker::run(args.engine, args.role, args.bytes)
}

/// Measures, prints, judges. Ends the process with a status of its own where `--check` finds a demand unmet.
pub(crate) fn run(args: BenchArgs) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        return run_optimized();
    }
    if !args.no_micro {
        micro()?;
    }
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("orbit-te-bench-{}", std::process::id())));
    std::fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let (records, verdicts, failures) = measure(&args, &out)?;

    let machine = machine::Machine::here(args.reps.into(), args.seconds);
    let text = report::plain(&machine, &records, &verdicts, &failures);
    std::fs::write(out.join("table.txt"), &text)?;
    lines(File::create(out.join("results.jsonl"))?, &records)?;
    lines(File::create(out.join("demands.jsonl"))?, &verdicts)?;
    if let Some(file) = &args.markdown {
        let text = report::markdown(&machine, &records, &verdicts, &failures);
        std::fs::write(file, text).with_context(|| file.display().to_string())?;
    }
    if args.json {
        eprintln!("{text}");
        lines(io::stdout().lock(), &records)?;
        lines(io::stdout().lock(), &verdicts)?;
    } else {
        println!("{text}");
    }
    eprintln!("bench: samples and logs are in {}", out.display());
    if let Some(r) = records.iter().find(|r| r.verified == Some(false)) {
        bail!("{} moved wrong bytes: {} of {} bytes", r.peer, r.op, r.block_bytes);
    }
    if args.check && verdicts.iter().any(Verdict::is_unmet) {
        std::process::exit(UNMET);
    }
    Ok(())
}

type Found = (Vec<Summary>, Vec<Verdict>, Vec<String>);

fn measure(args: &BenchArgs, out: &Path) -> anyhow::Result<Found> {
    // Series of their own need none of the pairs over TCP.
    let is_series = |name: &String| [same_host::NAME, rdma::NAME].contains(&name.as_str());
    let series_only = !args.only.is_empty() && args.only.iter().all(is_series);
    let (mut samples, mut verdicts, mut failures) =
        if series_only { Found::default() } else { measure_points(args, out)? };
    if same_host::is_wanted(&args.only) && (!args.only.is_empty() || names_nothing(args)) {
        let (more, judged, failed) = same_host::measure(args, out)?;
        samples.extend(more);
        verdicts.extend(judged);
        failures.extend(failed);
    }
    if rdma::is_wanted(&args.only) && (!args.only.is_empty() || names_nothing(args)) {
        let (more, judged, failed) = rdma::measure(args, out)?;
        samples.extend(more);
        verdicts.extend(judged);
        failures.extend(failed);
    }
    Ok((samples, verdicts, failures))
}

/// Whether everything is measured, since nothing was named.
fn names_nothing(args: &BenchArgs) -> bool {
    args.points.is_empty() && args.promises.is_empty()
}

fn measure_points(args: &BenchArgs, out: &Path) -> anyhow::Result<Found> {
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|n| n == name);
    let mut launches = Vec::new();
    for name in peers::OWN.into_iter().filter(|name| wanted(name)) {
        launches.push(peers::own(name, plan::BUFFER_BYTES)?);
    }
    let (mut failures, mut ucx) = (Vec::new(), None);
    if let Some(scripts) = &args.peers {
        let scripts = scripts.canonicalize().with_context(|| scripts.display().to_string())?;
        let root = args.peers_root.clone().map_or_else(peers::default_root, Ok)?;
        peers::install(&scripts, &root)?;
        launches.extend(peers::others(&scripts, &root).into_iter().filter(|l| wanted(&l.name)));
        if wanted(demand::UCX) {
            match ucx::Ucx::find(&root) {
                Ok(found) => ucx = Some(found),
                Err(e) => failures.push(format!("ucx_perftest: {e:#}")),
            }
        }
    }
    let mut pairs = Vec::new();
    for launch in launches {
        let name = launch.name.clone();
        match pair::Pair::start(launch, out) {
            Ok(pair) => pairs.push(pair),
            Err(e) => failures.push(format!("{name} did not start: {e:#}; its log is in {}", out.display())),
        }
    }
    for failure in &failures {
        eprintln!("bench: failed: {failure}");
    }
    let (points, promises) = wanted_cases(args);
    let mut raw = File::create(out.join("raw.jsonl"))?;
    let quiet = quiet::Quiet::new(Duration::try_from_secs_f64(args.wait)?);
    let mut rounds = rounds::Rounds {
        pairs,
        pool: None,
        ucx,
        quiet,
        seconds: args.seconds,
        raw: &mut raw,
        samples: Vec::new(),
        count: 0,
        failures,
    };
    rounds.run(&points, args.reps.into())?;
    for promise in &promises {
        if *promise == Promise::Lists && wanted(demand::OURS) {
            rounds.pool = Some(pair::Pair::start(peers::own(demand::OURS, lists::POOL_BYTES)?, out)?);
        }
        rounds.promise(*promise, args.reps.into())?;
        rounds.pool = None;
    }
    let facts = facts(&mut rounds)?;
    let mut verdicts = demand::judge(&rounds.samples, &points, facts);
    verdicts.extend(promises.iter().flat_map(|promise| promise.judge(&rounds.samples)));
    Ok((sample::summarize(&rounds.samples), verdicts, rounds.failures))
}

/// The points and promises that are measured.
fn wanted_cases(args: &BenchArgs) -> (Vec<Point>, Vec<Promise>) {
    match (&*args.points, &*args.promises) {
        ([], []) => (POINTS.to_vec(), PROMISES.to_vec()),
        (points, promises) => (points.to_vec(), promises.to_vec()),
    }
}

/// What is asked of our pair after all rounds, so that its memory has seen every size.
fn facts(rounds: &mut rounds::Rounds<'_>) -> anyhow::Result<Facts> {
    let Some(pair) = rounds.pairs.iter_mut().find(|p| p.launch.name == demand::OURS) else {
        return Ok(Facts::default());
    };
    let (target, initiator) = pair.beside_bytes()?;
    Ok(Facts { beside_bytes: Some(target.max(initiator)), idle_cpu_s: Some(pair.idle_cpu_s(IDLE_SPAN)?) })
}

fn lines<T: serde::Serialize>(mut to: impl Write, records: &[T]) -> anyhow::Result<()> {
    for record in records {
        writeln!(to, "{}", serde_json::to_string(record)?)?;
    }
    Ok(())
}

/// The same command again from a build with optimizations: nothing else is worth measuring.
fn run_optimized() -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command
        .args(["run", "--quiet", "--release", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1));
    eprintln!("bench: building with optimizations");
    Err(command.exec()).context("cargo can't be started")
}
