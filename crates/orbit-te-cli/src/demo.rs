//! `orbit-te demo`: bytes between two processes, every one checked by the side that received it. Rule: a route that is demanded is taken or
//! the reason is told; nothing stands in for it.

mod course;

use crate::child::Child;
use crate::console;
use crate::failure::Failure;
use crate::record::Record;
use crate::routing::{self, Meeting};
use crate::size::{Size, nonzero};
use crate::verdict::NotTaken;
use clap::Args;
use course::{Course, Outcome};
use orbit_te::OpKind;
use orbit_te::route::{Reason, RouteId};
use std::time::Duration;

/// What is written, checked, read back and checked before the next round: the size of each of the three buffers.
const LAP: u64 = 128 << 20;
/// Blocks under way at a time.
const DEPTH: usize = 2;
/// The routes of this version, for `--routes all`.
const ROUTES: [RouteId; 3] = [RouteId::SHM, RouteId::PROCESS_VM, RouteId::TCP];

/// Move bytes between two processes on this machine, and check every one.
///
/// Starts a second process, writes test bytes into its memory in blocks of 16 MiB, two at a time, has that process compare all of
/// them, reads them back into other memory and compares them here; this in rounds of 128 MiB, each with other bytes, until --bytes
/// have gone each way. Each process uses less than 300 MiB. The columns of the table are defined in `orbit-te bench --help`; the
/// clock stands while bytes are made and checked. Below the table stands which route each direction took, and why.
///
/// Ends with exit code 1 and the first cause when a byte is wrong, a transfer fails, a demanded route can't be taken or the second
/// process dies.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// How much to write, and to read.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = nonzero)]
    bytes: Size,
    /// Do it once over each of these routes, demanded by name (shm, process_vm, tcp), or over `all` of them. With `all` a route that
    /// can't be taken prints its reason; one that was named ends it with exit code 1.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = wanted)]
    routes: Vec<Wanted>,
    /// Print JSON lines instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds within which every transfer, and every answer of the second process, must come.
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,
    #[command(flatten)]
    meeting: Meeting,
    /// Print the second process's id to stderr when bytes begin to move.
    #[arg(long, hide = true)]
    show_target: bool,
}

/// A word of `--routes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    All,
    One(RouteId),
}

fn wanted(word: &str) -> Result<Wanted, String> {
    if word == "all" { Ok(Wanted::All) } else { routing::named(word).map(Wanted::One) }
}

/// A run over one route, or why there was none.
struct Run {
    route: RouteId,
    result: Result<[Outcome; 2], Reason>,
}

impl Demo {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let deadline = Duration::from_secs(self.deadline);
        let mut child = Child::start(self.bytes.0.min(LAP), deadline, &self.meeting)?;
        if self.show_target {
            console::note(format_args!("target process {}", child.pid()));
        }
        if self.routes.is_empty() {
            let result = self.course(&child).and_then(|course| course.run(&mut child, self.bytes.0, None));
            return self.report(&result.map_err(|failure| child.blame(failure))?);
        }
        let result = self.course(&child).and_then(|course| self.runs(&course, &mut child));
        self.compare(&result.map_err(|failure| child.blame(failure))?)
    }

    fn course(&self, child: &Child) -> Result<Course, Failure> {
        let lap = self.bytes.0.min(LAP);
        Course::new(&child.token, lap, Duration::from_secs(self.deadline), &self.meeting)
    }

    /// One run for each route that is wanted.
    fn runs(&self, course: &Course, child: &mut Child) -> Result<Vec<Run>, Failure> {
        let all = self.routes.contains(&Wanted::All);
        let named = self.routes.iter().filter_map(|wanted| match wanted {
            Wanted::One(route) => Some(*route),
            Wanted::All => None,
        });
        let mut wanted: Vec<RouteId> = if all { ROUTES.to_vec() } else { Vec::new() };
        for route in named {
            if !wanted.contains(&route) {
                wanted.push(route);
            }
        }
        // Before anything moves: a route that was named and can't be taken.
        let mut able = Vec::with_capacity(wanted.len());
        for route in wanted {
            let reason = self.obstacle(course, route)?;
            if let Some(reason) = reason.filter(|_| self.routes.contains(&Wanted::One(route))) {
                return Err(Failure::Transfer(format!(
                    "route {route} is demanded and can't be taken: {reason} [{}]; {}",
                    reason.name(),
                    reason.remedy()
                )));
            }
            able.push((route, reason));
        }
        if let Some((_, Some(reason))) = able.last().filter(|_| able.iter().all(|(_, why)| why.is_some())) {
            return Err(Failure::Transfer(format!("no route can be taken: {reason}; {}", reason.remedy())));
        }
        let mut runs = Vec::with_capacity(able.len());
        for (route, reason) in able {
            let result = match reason {
                None => Ok(course.run(child, self.bytes.0, Some(route))?),
                Some(reason) => Err(reason),
            };
            runs.push(Run { route, result });
        }
        Ok(runs)
    }

    /// Why a route can't be taken, in one direction or the other.
    fn obstacle(&self, course: &Course, route: RouteId) -> Result<Option<Reason>, Failure> {
        for kind in [OpKind::Write, OpKind::Read] {
            let reason = course.plan(kind, self.bytes.0, Some(route))?.route.err().map(|no| no.reason());
            if let Some(reason) = reason {
                let off = self.meeting.no_same_host && [RouteId::SHM, RouteId::PROCESS_VM].contains(&route);
                return Ok(Some(if off { Reason::Disabled } else { reason }));
            }
        }
        Ok(None)
    }

    fn report(&self, outcomes: &[Outcome; 2]) -> Result<(), Failure> {
        if self.json {
            return outcomes.iter().try_for_each(|outcome| console::say(outcome.record.json()));
        }
        console::say(Record::HEAD)?;
        outcomes.iter().try_for_each(|outcome| console::say(outcome.record.row()))?;
        for Outcome { record, route } in outcomes {
            console::say(format_args!("{} route: {route}", record.op))?;
        }
        self.end()
    }

    /// The runs beside each other.
    fn compare(&self, runs: &[Run]) -> Result<(), Failure> {
        if !self.json {
            console::say(format_args!("route       {}", Record::HEAD))?;
        }
        for Run { route, result } in runs {
            match result {
                Ok(outcomes) if self.json => {
                    outcomes.iter().try_for_each(|outcome| console::say(outcome.record.json()))?;
                }
                Ok(outcomes) => outcomes.iter().try_for_each(|outcome| {
                    console::say(format_args!("{:<10}  {}", route.name(), outcome.record.row()))
                })?,
                Err(reason) if self.json => console::say(refused(*route, *reason))?,
                Err(reason) => {
                    console::say(format_args!(
                        "{:<10}  not taken: {reason}; {}",
                        route.name(),
                        reason.remedy()
                    ))?;
                }
            }
        }
        if self.json { Ok(()) } else { self.end() }
    }

    fn end(&self) -> Result<(), Failure> {
        console::say(format_args!(
            "{} each way between two processes, every byte compared by the side that received it",
            self.bytes
        ))
    }
}

/// The line of JSON of a route that can't be taken.
fn refused(route: RouteId, reason: Reason) -> String {
    serde_json::json!({ "route": null, "not_taken": [NotTaken::new(route, reason)] }).to_string()
}
