//! The second process of `demo` and `bench`: serves memory, fills it, and checks what was written to it. Rule: it does what is asked
//! on its stdin, one JSON value a line, answers on stdout, and ends with its parent whatever happens.

use crate::console;
use crate::failure::Failure;
use crate::pattern::{Pattern, Span};
use crate::routing::Meeting;
use crate::size::{Size, nonzero};
use clap::Args;
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use orbit_te::{Access, Engine, HostBuffer, HostOptions, Region};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Serves memory to the parent process; started by `demo` and `bench`.
#[derive(Debug, Args)]
pub(crate) struct DemoTarget {
    #[arg(long, value_parser = nonzero)]
    bytes: Size,
    /// The process to end with.
    #[arg(long)]
    parent: i32,
    #[command(flatten)]
    meeting: Meeting,
}

/// What the parent asks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// The CPU time used so far.
    Cpu,
    Fill(Span),
    Check(Span),
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The first line.
    Ready {
        token: String,
    },
    Cpu {
        seconds: f64,
    },
    Filled,
    Checked {
        /// Where the first wrong byte is, if one is.
        wrong: Option<u64>,
    },
    /// It could not do that.
    Failed {
        why: String,
    },
}

/// CPU time of this process, user and system, all threads.
pub(crate) fn cpu_seconds() -> Result<f64, Failure> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_err(|e| Failure::local("the clock of CPU time", e))?;
    Ok(Duration::from(time).as_secs_f64())
}

/// Zeroed memory whose pages exist already, so that no transfer pays for making them.
pub(crate) fn memory(bytes: u64) -> Result<HostBuffer, Failure> {
    Ok(HostBuffer::with_options(
        bytes as usize,
        HostOptions { prefault_threads: 1, ..HostOptions::default() },
    )?)
}

impl DemoTarget {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
            .map_err(|e| Failure::local("asking to end with the parent", e))?;
        if nix::unistd::getppid().as_raw() != self.parent {
            return Err(Failure::Local("the process that started this one is gone".to_string()));
        }
        let engine = self.meeting.apply(Engine::builder())?.start()?;
        let region = engine.register(memory(self.bytes.0)?.into_backing(), Access::SHARED)?;
        let token = engine.expose("target", &region)?.to_token().map_err(orbit_te::Error::from)?;
        let pattern = Pattern::new();
        answer(&Answer::Ready { token })?;
        // A parent that goes away closes the pipe.
        for line in std::io::stdin().lines() {
            let line = line.map_err(|e| Failure::local("stdin", e))?;
            answer(
                &obey(&line, &pattern, &region).unwrap_or_else(|why| Answer::Failed { why: why.to_string() }),
            )?;
        }
        Ok(())
    }
}

fn obey(line: &str, pattern: &Pattern, region: &Region) -> Result<Answer, Failure> {
    let ask = serde_json::from_str(line).map_err(|e| Failure::local("a question", e))?;
    Ok(match ask {
        Ask::Cpu => Answer::Cpu { seconds: cpu_seconds()? },
        Ask::Fill(span) => {
            pattern.fill(region, &span)?;
            Answer::Filled
        }
        Ask::Check(span) => Answer::Checked { wrong: pattern.check(region, &span)? },
    })
}

fn answer(answer: &Answer) -> Result<(), Failure> {
    console::say(serde_json::to_string(answer).map_err(|e| Failure::local("an answer", e))?)
}
