//! A worker as the conductor holds it: a process that is started again and again under one number. Rule: it dies with its
//! handle, and what a life had counted is kept.

use super::protocol::{Order, Report};
use super::tally::Tally;
use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// What a worker said, with its place among the workers and its life; none: its stdout has ended.
pub(super) struct Heard {
    pub(super) place: usize,
    pub(super) life: u64,
    pub(super) report: Option<Report>,
}

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Stopped,
    /// Killed or ended as it was told.
    Down,
}

/// One worker, over all its lives.
pub(super) struct Child {
    pub(super) name: String,
    pub(super) life: u64,
    pub(super) state: State,
    /// Whether this life has said that it has started.
    pub(super) is_ready: bool,
    /// All that earlier lives had counted, and the last report of this one.
    pub(super) before: Tally,
    pub(super) now: Tally,
    pub(super) last_heard: Instant,
    place: usize,
    args: Vec<String>,
    process: Process,
    stdin: Option<ChildStdin>,
    to: Sender<Heard>,
}

impl Child {
    /// Starts the first life. The arguments are those of every life.
    pub(super) fn start(
        place: usize,
        name: String,
        args: Vec<String>,
        to: Sender<Heard>,
    ) -> anyhow::Result<Child> {
        let (process, stdin) = spawn(place, 0, &args, &to)?;
        Ok(Child {
            name,
            life: 0,
            state: State::Running,
            is_ready: false,
            before: Tally::default(),
            now: Tally::default(),
            last_heard: Instant::now(),
            place,
            args,
            process,
            stdin: Some(stdin),
            to,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has started and has not been stopped or killed.
    pub(super) fn is_up(&self) -> bool {
        self.state == State::Running && self.is_ready
    }

    /// Tells it something. One that is gone is not told; its end is noticed elsewhere.
    pub(super) fn tell(&mut self, order: &Order) {
        if let (Some(stdin), Ok(line)) = (&mut self.stdin, serde_json::to_string(order)) {
            let _ = writeln!(stdin, "{line}");
        }
    }

    /// Ends it at once, and all that it does.
    pub(super) fn kill(&mut self) -> std::io::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        (self.state, self.is_ready, self.stdin) = (State::Down, false, None);
        Ok(())
    }

    /// Starts the next life.
    pub(super) fn restart(&mut self) -> anyhow::Result<()> {
        self.life += 1;
        self.before.add(&std::mem::take(&mut self.now));
        let (process, stdin) = spawn(self.place, self.life, &self.args, &self.to)?;
        (self.process, self.stdin, self.state) = (process, Some(stdin), State::Running);
        self.last_heard = Instant::now();
        Ok(())
    }

    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.pid() as i32), Signal::SIGSTOP)?;
        self.state = State::Stopped;
        Ok(())
    }

    pub(super) fn go_on(&mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.pid() as i32), Signal::SIGCONT)?;
        (self.state, self.last_heard) = (State::Running, Instant::now());
        Ok(())
    }

    /// Waits for the end that it was told; none when it has not ended in time, and is killed.
    pub(super) fn ended_within(&mut self, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
        let until = Instant::now() + limit;
        self.stdin = None;
        while Instant::now() < until {
            if let Some(status) = self.process.try_wait()? {
                self.state = State::Down;
                return Ok(Some(status));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill()?;
        Ok(None)
    }

    /// How it ended, when it was to go on.
    pub(super) fn post_mortem(&mut self) -> String {
        match self.process.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // One that has ended can't be killed, and need not be.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(
    place: usize,
    life: u64,
    args: &[String],
    to: &Sender<Heard>,
) -> anyhow::Result<(Process, ChildStdin)> {
    // This very program, also when its file was replaced by a newer build meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg("soak-worker").args(args).args(["--life", &life.to_string()]);
    let mut process =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("a worker process")?;
    let (stdin, stdout) =
        process.stdin.take().zip(process.stdout.take()).context("a worker without pipes")?;
    let to = to.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // A line that was cut by a kill is no report.
            let Ok(report) = serde_json::from_str(&line) else { continue };
            if to.send(Heard { place, life, report: Some(report) }).is_err() {
                return;
            }
        }
        let _ = to.send(Heard { place, life, report: None });
    });
    Ok((process, stdin))
}
