//! One process of the pair: answers commands, one JSON object a line, until stdin ends. The target owns memory of two kinds and serves;
//! the initiator makes all submissions, those of the baselines too.

use super::super::engine::Role;
use super::super::plan::Case;
use super::super::usage;
use super::initiator::Initiator;
use super::walk::BYTES;
use super::way::Way;
use anyhow::{Context, bail};
use orbit_te::{Access, Engine, HostBuffer, HostOptions, PageSize, Sharing};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

#[derive(Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
enum Command {
    Connect { endpoint: Endpoint },
    Run { way: Way, case: Case, min_s: f64 },
    Cpu,
}

/// How the initiator reaches the target's memory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Endpoint {
    /// Of memory that the engine made, which can be mapped.
    pub(super) owned: String,
    /// Of memory of the process's own.
    pub(super) plain: String,
    pub(super) process: i32,
    /// Where the latter is, for the bare call.
    pub(super) plain_address: usize,
}

/// A buffer of pages of 4 KiB, all there already.
pub(super) fn buffer(sharing: Sharing) -> anyhow::Result<HostBuffer> {
    let options = HostOptions { pages: PageSize::Plain, prefault_threads: 1, sharing };
    Ok(HostBuffer::with_options(BYTES, options)?)
}

/// Serves one side on stdin and stdout.
pub(crate) fn run(role: Role) -> anyhow::Result<()> {
    match role {
        Role::Target => {
            let engine = Engine::builder().start()?;
            let plain = buffer(Sharing::Never)?;
            let plain_address = plain.as_slice().as_ptr().addr();
            let owned = engine.register(buffer(Sharing::Always)?.into_backing(), Access::SHARED)?;
            let plain = engine.register(plain.into_backing(), Access::SHARED)?;
            let endpoint = Endpoint {
                owned: engine.expose("owned", &owned)?.to_token()?,
                plain: engine.expose("plain", &plain)?.to_token()?,
                process: std::process::id() as i32,
                plain_address,
            };
            serve(json!(endpoint), |command| match command {
                Command::Cpu => Ok(json!({ "cpu_s": usage::cpu_seconds()? })),
                Command::Connect { .. } | Command::Run { .. } => bail!("the target only serves"),
            })
        }
        Role::Initiator => {
            let mut initiator = None;
            serve(Value::Null, |command| match command {
                Command::Connect { endpoint } => {
                    initiator = Some(Initiator::new(endpoint)?);
                    Ok(json!({ "ok": true }))
                }
                Command::Run { way, case, min_s } => {
                    let initiator = initiator.as_mut().context("not connected")?;
                    initiator.run(way, &case, Duration::try_from_secs_f64(min_s)?)
                }
                Command::Cpu => Ok(json!({ "cpu_s": usage::cpu_seconds()? })),
            })
        }
    }
}

fn serve(endpoint: Value, mut answer: impl FnMut(Command) -> anyhow::Result<Value>) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut say = |reply: Value| -> std::io::Result<()> {
        writeln!(out, "{reply}")?;
        out.flush()
    };
    say(json!({ "ready": true, "version": env!("CARGO_PKG_VERSION"), "endpoint": endpoint }))?;
    for line in std::io::stdin().lines() {
        let command: Command = serde_json::from_str(&line?).context("a command that is none")?;
        say(answer(command).unwrap_or_else(|e| json!({ "error": format!("{e:#}") })))?;
    }
    Ok(())
}
