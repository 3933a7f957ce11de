//! A pair of worker processes. Rule: a pair at rest is stopped, since engines that poll cost a core each; and no process
//! outlives its pair.

use super::engine::ListCosts;
use super::plan::{Case, Form};
use super::quiet::Load;
use super::sample::Sample;
use anyhow::{Context, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

const REPLY_MAX: Duration = Duration::from_secs(90);
/// Before the bytes are looked at: some engines' writes complete at the sender.
const SETTLE: Duration = Duration::from_millis(20);
/// Timed submissions of a repetition, at least, however slow.
const SUBMISSIONS_MIN: usize = 3;

/// How a kind of worker is started.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) name: String,
    pub(super) transport: String,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(&'static str, &'static str)>,
}

/// One side: its process group, so that whatever it starts is stopped with it.
struct Process {
    child: Child,
    stdin: ChildStdin,
    replies: Receiver<std::io::Result<String>>,
    hello: Value,
}

impl Process {
    fn start(launch: &Launch, role: &str, log: File) -> anyhow::Result<Process> {
        let mut child = Command::new(&launch.program)
            .args(&launch.args)
            .args(["--role", role])
            .envs(launch.env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("{} can't be started", launch.program.display()))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = stdin.zip(stdout).context("a child without pipes")?;
        let (to, replies) = sync_channel(1);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                if to.send(line).is_err() {
                    break;
                }
            }
        });
        let mut process = Process { child, stdin, replies, hello: Value::Null };
        process.hello = process.reply()?;
        Ok(process)
    }

    fn reply(&mut self) -> anyhow::Result<Value> {
        let line = match self.replies.recv_timeout(REPLY_MAX) {
            Ok(line) => line?,
            Err(RecvTimeoutError::Timeout) => bail!("no reply within {} s", REPLY_MAX.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("the worker ended"),
        };
        let reply: Value = serde_json::from_str(&line).with_context(|| format!("reply {line:?}"))?;
        match reply.get("error") {
            Some(error) => bail!("{}", error.as_str().unwrap_or("an error without words")),
            None => Ok(reply),
        }
    }

    fn tell(&mut self, command: Value) -> anyhow::Result<()> {
        writeln!(self.stdin, "{command}").context("the worker takes no commands")
    }

    fn ask(&mut self, command: Value) -> anyhow::Result<Value> {
        self.tell(command)?;
        self.reply()
    }

    fn ask_number(&mut self, command: &str, field: &str) -> anyhow::Result<f64> {
        number(&self.ask(json!({ "cmd": command }))?, field)
    }

    fn signal(&self, signal: Signal) {
        // It fails only when the group is gone, and then the next command says so.
        let _ = killpg(Pid::from_raw(self.child.id() as i32), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        self.signal(Signal::SIGCONT);
        let _ = self.child.wait();
    }
}

pub(super) fn number(reply: &Value, field: &str) -> anyhow::Result<f64> {
    reply[field].as_f64().with_context(|| format!("no {field} in the reply {reply}"))
}

/// A target and an initiator of one engine, connected.
pub(super) struct Pair {
    pub(super) launch: Launch,
    logs: PathBuf,
    target: Process,
    initiator: Process,
    seed: u64,
}

impl Pair {
    /// Starts both processes; what they print to stderr goes to a file in `logs`.
    pub(super) fn start(launch: Launch, logs: &Path) -> anyhow::Result<Pair> {
        let log =
            File::options().create(true).append(true).open(logs.join(format!("{}.log", launch.name)))?;
        let mut target = Process::start(&launch, "target", log.try_clone()?).context("target")?;
        let mut initiator = Process::start(&launch, "initiator", log).context("initiator")?;
        initiator.tell(json!({ "cmd": "connect", "endpoint": target.hello["endpoint"] }))?;
        if target.hello["both"] == true {
            target.ask(json!({ "cmd": "connect", "endpoint": initiator.hello["endpoint"] }))?;
        }
        initiator.reply().context("connect")?;
        let pair = Pair { launch, logs: logs.into(), target, initiator, seed: 1 };
        pair.signal(Signal::SIGSTOP);
        Ok(pair)
    }

    /// A fresh pair instead of this one.
    pub(super) fn restart(&mut self) -> anyhow::Result<()> {
        *self = Pair::start(self.launch.clone(), &self.logs)?;
        Ok(())
    }

    /// Whether it can keep several submissions in flight.
    pub(super) fn has_depth(&self) -> bool {
        self.initiator.hello["depth"] == true
    }

    fn signal(&self, signal: Signal) {
        self.target.signal(signal);
        self.initiator.signal(signal);
    }

    fn awake<T>(&mut self, f: impl FnOnce(&mut Pair) -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.signal(Signal::SIGCONT);
        let result = f(self);
        self.signal(Signal::SIGSTOP);
        result
    }

    /// One repetition: fills, clears, runs for `seconds`, and looks at every byte that was to move.
    pub(super) fn measure(&mut self, case: Case, seconds: f64) -> anyhow::Result<Sample> {
        self.awake(|pair| pair.repetition(case, seconds))
    }

    fn repetition(&mut self, case: Case, seconds: f64) -> anyhow::Result<Sample> {
        self.seed =
            self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) >> 1;
        let Case { op, block, batch, depth, hot, form, checksum } = case;
        let seed = self.seed;
        // Notifications bring their own bytes.
        let span = if form == Form::Notification { 0 } else { case.plan().span() };
        let mut prepare = json!({ "cmd": "prepare", "op": op, "block": block, "batch": batch });
        let mut check = json!({ "cmd": "check", "seed": seed, "block": block, "batch": batch });
        if !case.is_plain() {
            prepare = json!(case);
            prepare["cmd"] = "prepare".into();
            check["hot"] = hot.into();
            check["form"] = json!(form);
        }
        let (source, sink) = self.sides(case);
        source.ask(json!({ "cmd": "fill", "seed": seed, "span": span })).context("fill")?;
        sink.ask(json!({ "cmd": "clear", "span": span })).context("clear")?;
        self.initiator.ask(prepare).context("prepare")?;
        let before = self.target.ask_number("cpu", "cpu_s")?;
        let load = Load::now()?;
        let run = self.initiator.ask(json!({ "cmd": "run", "min_s": seconds, "min_n": SUBMISSIONS_MIN }));
        let run = run.context("run")?;
        let load = load.since()?;
        let cpu = self.target.ask_number("cpu", "cpu_s")? - before + number(&run, "cpu_s")?;
        std::thread::sleep(SETTLE);
        check["submissions"] = run["submissions"].clone();
        let (_, sink) = self.sides(case);
        let verified = sink.ask(check).context("check")?["verified"].as_bool();
        let gib = case.submission_gib();
        Ok(Sample {
            peer: self.launch.name.clone(),
            version: self.version().into(),
            transport: self.launch.transport.clone(),
            op,
            block_bytes: block,
            batch,
            depth,
            hot,
            form,
            checksum,
            round: 0,
            gib_per_s: number(&run, "timed")? * gib / number(&run, "wall_s")?,
            p50_us: run["p50_us"].as_f64(),
            p99_us: run["p99_us"].as_f64(),
            cpu_s_per_gib: Some(cpu / (number(&run, "submissions")? * gib)),
            costs: ListCosts { build_ns: run["build_ns"].as_f64(), post_ms: run["post_ms"].as_f64() },
            verified,
            noise: load.without(cpu),
        })
    }

    /// Has the initiator do something of its own: its answer, the CPU seconds of the target meanwhile, and those of the whole machine.
    pub(super) fn instruct(&mut self, command: Value) -> anyhow::Result<(Value, f64, Load)> {
        self.awake(|pair| {
            let before = pair.target.ask_number("cpu", "cpu_s")?;
            let load = Load::now()?;
            let answer = pair.initiator.ask(command)?;
            let load = load.since()?;
            Ok((answer, pair.target.ask_number("cpu", "cpu_s")? - before, load))
        })
    }

    /// What the initiator calls its version.
    pub(super) fn version(&self) -> &str {
        self.initiator.hello["version"].as_str().unwrap_or("unknown")
    }

    /// Where bytes come from, and where they go.
    fn sides(&mut self, case: Case) -> (&mut Process, &mut Process) {
        match case.op {
            super::plan::Op::Write => (&mut self.initiator, &mut self.target),
            super::plan::Op::Read => (&mut self.target, &mut self.initiator),
        }
    }

    /// The CPU seconds that both processes use in `span` with nothing to do.
    pub(super) fn idle_cpu_s(&mut self, span: Duration) -> anyhow::Result<f64> {
        self.awake(|pair| {
            // What the wake-up itself costs is over by then.
            std::thread::sleep(Duration::from_millis(500));
            let before =
                pair.target.ask_number("cpu", "cpu_s")? + pair.initiator.ask_number("cpu", "cpu_s")?;
            std::thread::sleep(span);
            let after =
                pair.target.ask_number("cpu", "cpu_s")? + pair.initiator.ask_number("cpu", "cpu_s")?;
            Ok(after - before)
        })
    }

    /// The most bytes that a process of the pair ever had resident beside its buffer: (target, initiator).
    pub(super) fn beside_bytes(&mut self) -> anyhow::Result<(f64, f64)> {
        self.awake(|pair| {
            let target = pair.target.ask_number("memory", "beside_bytes")?;
            Ok((target, pair.initiator.ask_number("memory", "beside_bytes")?))
        })
    }
}
