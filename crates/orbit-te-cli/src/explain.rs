//! `orbit-te explain`: which route bytes to a segment would take, and why no other one. Rule: nothing is moved; a description of another
//! machine is planned from by the same planner, and by nothing that this machine is.

mod answer;

use crate::console;
use crate::failure::Failure;
use crate::place;
use crate::routing::{self, Routing};
use crate::size::{Size, nonzero};
use answer::Answer;
use clap::Args;
use orbit_te::route::{Description, Memory};
use orbit_te::{Access, Engine, MemoryKind, OpKind, Segment};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the answer of the engine may take.
const LIMIT: Duration = Duration::from_secs(10);
/// What is asked about when no size is given.
const USUAL: u64 = 1 << 20;
/// No description is longer.
const MOST_BYTES: u64 = 1 << 20;

/// Tell which route bytes would take to a segment or from it, and why no other one.
///
/// For each direction: the route, what it is expected to take and at which rate, and for every other route the reason why it is not taken
/// (code, name, words) and the remedy; docs/routes.md lists them. The segment is opened; no byte of it moves.
///
/// With --save what the planner was told is written to a file, which --description reads here or elsewhere, without a network: so the
/// routes of another machine can be looked into.
///
/// Ends with exit code 1 when no route, or not the one that is demanded, can be taken.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The segment: HOST:PORT/NAME or a token.
    #[arg(long, value_name = "ADDR/NAME", required_unless_present = "description")]
    to: Option<String>,
    /// Plan from a description that --save has written.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["to", "save"])]
    description: Option<PathBuf>,
    /// Write what the planner was told, as JSON.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// The memory at this side.
    #[arg(long, value_name = "KIND", default_value = "host", value_parser = memory)]
    from: Memory,
    /// How much one request moves. Default: 1MiB, or all of a shorter segment.
    #[arg(long, value_name = "SIZE", value_parser = nonzero)]
    bytes: Option<Size>,
    /// Reads only. Default: both directions, as far as they are permitted.
    #[arg(long)]
    read: bool,
    /// Writes only.
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    routing: Routing,
    /// Print a JSON line for each direction.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A kind of memory, as a clap value parser.
fn memory(word: &str) -> Result<Memory, String> {
    let all = [Memory::Host, Memory::PinnedHost, Memory::Device, Memory::File];
    let known = || all.map(answer::name).join(", ");
    all.into_iter()
        .find(|kind| answer::name(*kind) == word)
        .ok_or_else(|| format!("write one of {}", known()))
}

impl Explain {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if let Some(path) = &self.description {
            return self.tell(&self.saved(path)?, None);
        }
        let text = self.to.as_deref().unwrap_or_default();
        place::check(text)?;
        let engine = self.routing.apply(Engine::builder().no_listen())?.start()?;
        let segment = place::open(&engine, text, Access::empty())?;
        let description = segment.describe().wait(LIMIT)?;
        if let Some(path) = &self.save {
            std::fs::write(path, description.to_json() + "\n")
                .map_err(|e| Failure::local(format_args!("can't write `{}`", path.display()), e))?;
        }
        self.tell(&description, Some(&segment))
    }

    /// What was saved, with the policy that is asked for.
    fn saved(&self, path: &Path) -> Result<Description, Failure> {
        let text = routing::read(path, MOST_BYTES)?;
        let mut description = Description::parse(&text, Instant::now())
            .map_err(|why| Failure::Usage(format!("`{}`: {why}", path.display())))?;
        if let Some(policy) = self.routing.policy()? {
            description.policy = policy;
        }
        Ok(description)
    }

    /// The answers, by the engine that has the segment open, or from what it was told.
    fn tell(&self, description: &Description, segment: Option<&Segment>) -> Result<(), Failure> {
        let bytes = self.bytes.map_or(description.bytes.min(USUAL), |size| size.0);
        if bytes > description.bytes {
            return Err(Failure::Usage(format!(
                "segment `{}` has {} bytes, fewer than the {bytes} asked about",
                description.segment.escape_debug(),
                description.bytes
            )));
        }
        let kinds = self.kinds(description)?;
        if !self.json {
            console::say(answer::head(description))?;
        }
        let mut failure = None;
        for kind in kinds {
            let local = MemoryKind::from(self.from);
            let plan = match segment.filter(|_| local == MemoryKind::Host) {
                Some(segment) => segment.explain(kind, bytes, self.routing.route).wait(LIMIT)?,
                None => description.plan(kind, bytes, local, self.routing.route),
            };
            let answer = Answer::new(description, kind, bytes, self.from, &plan);
            console::say(if self.json { answer.json() } else { answer.to_string() })?;
            if let Err(refusal) = plan.route {
                let mut words = format!("{}: {refusal}", answer.op);
                let remedy = refusal.reason().remedy();
                if !remedy.starts_with("none is needed") {
                    words.push_str(&format!("; {remedy}"));
                }
                failure = failure.or(Some(Failure::Transfer(words)));
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// The directions that are asked for and permitted.
    fn kinds(&self, description: &Description) -> Result<Vec<OpKind>, Failure> {
        let both = self.read == self.write;
        let rows = [
            (OpKind::Write, self.write, description.may_write, "written"),
            (OpKind::Read, self.read, description.may_read, "read"),
        ];
        let name = description.segment.escape_debug();
        let refused = |verb: &str| {
            Failure::Peer(format!(
                "segment `{name}` may not be {verb}; its owner serves it without that right"
            ))
        };
        if let Some((_, _, _, verb)) = rows.iter().find(|(_, asked, may, _)| *asked && !both && !may) {
            return Err(refused(verb));
        }
        let kinds: Vec<OpKind> =
            rows.into_iter().filter(|(_, asked, may, _)| (both || *asked) && *may).map(|row| row.0).collect();
        if kinds.is_empty() { Err(refused("read or written")) } else { Ok(kinds) }
    }
}
