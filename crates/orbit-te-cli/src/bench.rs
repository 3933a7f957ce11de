//! `orbit-te bench`: throughput, latency and CPU of chosen points. Rule: every number that is printed is defined in the long help
//! below, and one that was not measured is null.

mod load;
mod plan;
mod stage;

use crate::console;
use crate::failure::Failure;
use crate::record::Record;
use crate::routing::Routing;
use crate::size::{Size, nonzero};
use clap::{Args, ValueEnum};
use orbit_te::TcpConfig;
use plan::Plan;
use stage::Stage;

/// Measure reads and writes.
///
/// Each point (an op and a block size) is warmed up, then repeated for
/// --seconds. Without --peer a second process of this program is the target.
/// Both sides have buffers of 128 MiB, more where the submissions of all
/// threads need it, and the blocks walk through them, so that they are cold in
/// the caches. With --peer, writes and --verify overwrite the segment's bytes.
///
/// A submission is one block, or --batch blocks submitted together, each
/// followed by a gap of its own size on both sides. Every thread keeps --depth
/// submissions under way and waits for them in order.
///
/// The numbers, in the table and in JSON lines:
///
///   op             write: our bytes into the segment; read: its bytes to us
///   block_bytes    length of a block
///   batch, depth, threads, lanes
///                  as given by the options
///   gib_per_s      GiB (2^30 bytes) of blocks moved per second of wall time,
///                  from the first submission to the last answer, all threads
///                  together; making and checking bytes is not included
///   p50_us, p99_us, min_us, max_us
///                  microseconds of one submission, from the call that submits
///                  to the return of the call that waits; percentiles by
///                  nearest rank. With a depth over 1 that includes the time
///                  behind earlier submissions. Of more than 400,000 a second,
///                  or 4 million in all, the later ones are not in them
///   cpu_s_per_gib  CPU seconds, user and system, of all threads, per GiB
///                  moved, over the same time as gib_per_s
///   cpu_of         both: of this process and the target together; initiator:
///                  of this process alone, as with --peer the other side's
///                  time is not known here
///   verified       true: after the time was up, every byte that had been moved
///                  was compared with what was sent, by the side that received
///                  it (with --peer, by reading it back); null, in the table
///                  `-`: not compared. A wrong byte ends the run with exit
///                  code 1 and no line for its point
///   bytes, seconds, submissions
///                  what gib_per_s was computed from: bytes moved, wall time,
///                  and how many submissions that took
///   buffer_bytes   the part of each side's buffer that the blocks walk through
///   peer, version, transport
///                  `orbit-te`, its version, the same as route
///   route          the route that moved most of the bytes; routes has the
///                  bytes of each, retries how often requests were tried again
///   why, not_taken why that route was taken and each other one was not, where
///                  it was asked (`demo`)
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Bench {
    /// A segment to measure with: HOST:PORT/NAME or a token. Default: a process of our own.
    #[arg(long, value_name = "SEGMENT")]
    peer: Option<String>,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "write,read")]
    op: Vec<OpName>,
    /// Block sizes.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "4KiB,64KiB,1MiB,16MiB,64MiB", value_parser = nonzero)]
    block: Vec<Size>,
    /// Blocks in a submission.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: u32,
    /// Submissions that each thread keeps under way.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Threads that submit and wait.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Seconds for each point; fractions are fine.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Compare all moved bytes after each point.
    #[arg(long)]
    verify: bool,
    /// Print JSON lines instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
    /// TCP connections to the target.
    #[arg(long, value_name = "N", default_value_t = TcpConfig::default().lanes, value_parser = clap::value_parser!(u32).range(1..=64))]
    lanes: u32,
    #[command(flatten)]
    routing: Routing,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OpName {
    /// Our bytes into the segment.
    Write,
    /// The segment's bytes to us.
    Read,
}

impl OpName {
    pub(crate) fn word(self) -> &'static str {
        if self == OpName::Write { "write" } else { "read" }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 86_400.0 => Ok(s),
        _ => Err("write seconds over 0, at most 86400".to_string()),
    }
}

impl Bench {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let points = self.op.iter().flat_map(|op| self.block.iter().map(|block| (*op, block.0)));
        let points: Vec<(OpName, u64)> = points.collect();
        let shape = |op, block, buffer| {
            Plan::new(op, block, self.batch as usize, self.depth as usize, self.threads as usize, buffer)
        };
        let own = points.iter().map(|(op, block)| shape(*op, *block, None)).collect::<Result<Vec<_>, _>>()?;
        let needed = own.iter().map(Plan::total).max().unwrap_or(1);
        let mut stage = match &self.peer {
            None => Stage::with_child(needed, self.lanes, &self.routing)?,
            Some(peer) => Stage::with_peer(peer, &self.op, needed, self.lanes, &self.routing)?,
        };
        if !self.json {
            console::say(format_args!(
                "orbit-te {}, {} lanes, {} thread(s), CPU of {}",
                env!("CARGO_PKG_VERSION"),
                self.lanes,
                self.threads,
                if self.peer.is_some() { "this process alone" } else { "both processes" }
            ))?;
            console::say(format_args!("{}  route", Record::HEAD))?;
        }
        for (op, block) in points {
            let plan = shape(op, block, Some(stage.buffer_bytes()))?;
            let record = stage.measure(&plan, self.seconds, self.verify, self.lanes)?;
            let route = record.route.unwrap_or("none");
            let row = || format!("{:<8}  {route}", record.row());
            console::say(if self.json { record.json() } else { row() })?;
        }
        Ok(())
    }
}
