//! Blocks of a long transfer on their way: what `put` and `get` share. Rule: memory is bounded however long the file is; several
//! blocks are under way while another is copied.

use crate::console;
use crate::failure::Failure;
use crate::record::gib;
use crate::routing::Routing;
use crate::taken::Taken;
use orbit_te::{Access, Engine, HostBuffer, Region, Segment, Slice, Transfer};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Bytes of one request.
pub(crate) const BLOCK: u64 = 16 << 20;
/// Blocks that have memory: under way, being filled or being emptied.
const SLOTS: u64 = 4;
/// Bytes copied, and checksummed, at a time: small enough to stay in a core's cache.
pub(crate) const PIECE: usize = 256 * 1024;
/// The name of the notification by which the serving side learns of a finished `put` or `get`.
pub(crate) const DONE: &str = "orbit-te.done";

/// A block's place in the whole.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// Its distance from where the transfer begins.
    pub(crate) at: u64,
    pub(crate) length: u64,
    /// Where its memory begins in the staging region.
    pub(crate) memory: u64,
}

/// Memory for some blocks, and those under way in order.
pub(crate) struct Stream {
    pub(crate) region: Region,
    total: u64,
    slots: u64,
    next: u64,
    flying: VecDeque<(Block, Transfer)>,
    pub(crate) taken: Taken,
}

impl Stream {
    pub(crate) fn new(engine: &Engine, total: u64) -> Result<Stream, Failure> {
        let slots = total.div_ceil(BLOCK).clamp(1, SLOTS);
        let memory = HostBuffer::new((slots * BLOCK).min(total) as usize)?;
        let region = engine.register(memory.into_backing(), Access::LOCAL)?;
        Ok(Stream {
            region,
            total,
            slots,
            next: 0,
            flying: VecDeque::with_capacity(slots as usize),
            taken: Taken::default(),
        })
    }

    /// Whether the oldest block must end before another can begin.
    pub(crate) fn is_full(&self) -> bool {
        self.flying.len() as u64 == self.slots
    }

    /// The next block, while there is one.
    pub(crate) fn next_block(&self) -> Option<Block> {
        let at = self.next * BLOCK;
        let length = BLOCK.min(self.total.checked_sub(at).filter(|left| *left > 0)?);
        Some(Block { at, length, memory: self.next % self.slots * BLOCK })
    }

    /// Begins the next block's transfer by `start`.
    pub(crate) fn launch(
        &mut self,
        block: Block,
        start: impl FnOnce(&Slice) -> Result<Transfer, orbit_te::Error>,
    ) -> Result<(), Failure> {
        let slice = self.region.slice(block.memory, block.length)?;
        let mut transfer = start(&slice).map_err(|e| self.at(block, e.into()))?;
        let_run(&mut transfer);
        self.flying.push_back((block, transfer));
        self.next += 1;
        Ok(())
    }

    /// Waits for the oldest block; none when none is under way.
    pub(crate) fn land(&mut self) -> Result<Option<Block>, Failure> {
        let Some((block, transfer)) = self.flying.pop_front() else { return Ok(None) };
        let receipt = transfer.wait().map_err(|e| self.at(block, e.into()))?;
        self.taken.add(&receipt);
        Ok(Some(block))
    }

    fn at(&self, block: Block, failure: Failure) -> Failure {
        let end = block.at + block.length;
        failure.while_doing(format_args!("bytes {}..{end} of {}", block.at, self.total))
    }
}

/// Tells the engine that nobody will wait for this transfer just yet, so that its own thread carries it out meanwhile.
fn let_run(transfer: &mut Transfer) {
    let _ = Future::poll(Pin::new(transfer), &mut Context::from_waker(Waker::noop()));
}

/// The last line of a `put` or a `get`, for the user and for the log of the serving side.
pub(crate) struct Summary {
    pub(crate) verb: &'static str,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
    pub(crate) crc: u32,
    pub(crate) started: Instant,
    pub(crate) taken: Taken,
}

impl Summary {
    pub(crate) fn report(&self, engine: &Engine, segment: &Segment) -> Result<(), Failure> {
        let Summary { verb, bytes, offset, crc, started, taken } = self;
        let seconds = started.elapsed().as_secs_f64();
        let text =
            format!("{verb} {bytes} bytes at offset {offset} of `{}`, crc32c {crc:08x}", segment.name());
        // For the log there only: the bytes are in place whether it is taken or not.
        if let Err(error) = engine.notify(segment, DONE, text.as_bytes()).wait(Duration::from_secs(1)) {
            tracing::debug!(%error, "the serving side did not take the notice");
        }
        let routes: Vec<&str> = taken.shares().iter().map(|share| share.route).collect();
        let (rate, routes) = (gib(*bytes) / seconds.max(1e-9), routes.join(" and "));
        console::say(format_args!("{text}, {seconds:.2} s, {rate:.2} GiB/s by {routes}"))
    }
}

/// An engine that reaches others only.
pub(crate) fn engine(deadline_s: u64, routing: &Routing) -> Result<Engine, Failure> {
    let builder = Engine::builder().no_listen().deadline(Duration::from_secs(deadline_s));
    Ok(routing.apply(builder)?.start()?)
}
