//! The parent's side of the second process. Rule: no question waits longer than the deadline, and when the process has died, that is
//! the first cause of whatever failed.

use crate::failure::Failure;
use crate::pattern::Span;
use crate::routing::Meeting;
use crate::target::{self, Answer, Ask};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// How long a process that has just died, or is told to end, may take to be seen as ended.
const GRACE: Duration = Duration::from_secs(1);

/// The second process.
pub(crate) struct Child {
    process: std::process::Child,
    /// None once it was told to end.
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
    deadline: Duration,
    pub(crate) token: String,
}

impl Child {
    /// Starts one that serves so many bytes.
    pub(crate) fn start(bytes: u64, deadline: Duration, meeting: &Meeting) -> Result<Child, Failure> {
        meeting.check_all()?;
        let failed = |e| Failure::local("can't start the target process", e);
        let mut process = Command::new(std::env::current_exe().map_err(failed)?)
            .args(["demo-target", "--bytes", &bytes.to_string(), "--parent", &std::process::id().to_string()])
            .args(meeting.words())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stdin = process.stdin.take();
        let (sender, answers) = sync_channel(4);
        if let Some(stdout) = process.stdout.take() {
            std::thread::spawn(move || {
                // Ends with the process, or with the receiver.
                let _ = BufReader::new(stdout)
                    .lines()
                    .map_while(Result::ok)
                    .try_for_each(|line| sender.send(line));
            });
        }
        let mut child = Child { process, stdin, answers, deadline, token: String::new() };
        match child.hear("start")? {
            Answer::Ready { token } => child.token = token,
            other => return Err(unexpected(&other)),
        }
        Ok(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// CPU time of both processes, in seconds.
    pub(crate) fn cpu_of_both(&mut self) -> Result<f64, Failure> {
        match self.ask(&Ask::Cpu, "tell its CPU time")? {
            Answer::Cpu { seconds } => Ok(seconds + target::cpu_seconds()?),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn fill(&mut self, span: Span) -> Result<(), Failure> {
        match self.ask(&Ask::Fill(span), "fill its memory")? {
            Answer::Filled => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Has every byte of the span compared over there; where the first wrong one is.
    pub(crate) fn check(&mut self, span: Span) -> Result<Option<u64>, Failure> {
        match self.ask(&Ask::Check(span), "check its memory")? {
            Answer::Checked { wrong } => Ok(wrong),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&mut self, ask: &Ask, what: &str) -> Result<Answer, Failure> {
        let line = serde_json::to_string(ask).map_err(|e| Failure::local("a question", e))?;
        let sent = self.stdin.as_mut().is_some_and(|pipe| writeln!(pipe, "{line}").is_ok());
        if sent { self.hear(what) } else { Err(self.ended_while(what)) }
    }

    fn hear(&mut self, what: &str) -> Result<Answer, Failure> {
        match self.answers.recv_timeout(self.deadline) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Answer::Failed { why }) => {
                    Err(Failure::Transfer(format!("the target process could not {what}: {why}")))
                }
                Ok(answer) => Ok(answer),
                Err(error) => {
                    Err(Failure::Transfer(format!("the target process's answer `{line}`: {error}")))
                }
            },
            Err(RecvTimeoutError::Timeout) => Err(Failure::Transfer(format!(
                "the target process (pid {}) did not {what} within {:?}",
                self.pid(),
                self.deadline
            ))),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended_while(what)),
        }
    }

    fn ended_while(&mut self, what: &str) -> Failure {
        let end = self.ended(GRACE).map_or_else(|| "closed its pipe".to_string(), describe);
        Failure::Transfer(format!("the target process (pid {}) {end} before it could {what}", self.pid()))
    }

    /// The failure, with the process's end before it if that is what caused it.
    pub(crate) fn blame(&mut self, failure: Failure) -> Failure {
        // A transfer can fail a moment before the process is seen as dead.
        match self.ended(GRACE / 5) {
            Some(status) => failure.while_doing(format_args!(
                "the target process (pid {}) {}",
                self.pid(),
                describe(status)
            )),
            None => failure,
        }
    }

    fn ended(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            match self.process.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                other => return other.ok().flatten(),
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.stdin = None;
        if self.ended(GRACE).is_none() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(0)) => "ended".to_string(),
        (None, code) => format!("failed with exit code {}", code.unwrap_or_default()),
    }
}

fn unexpected(answer: &Answer) -> Failure {
    Failure::Transfer(format!("the target process answered something else: {answer:?}"))
}
