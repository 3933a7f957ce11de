//! What a worker asks of an engine under test. Rule: everything that may allocate, resolve or register happens in
//! [`Engine::prepare`] or before; the other calls are inside the timed loop.

use super::plan::Case;
use serde::Serialize;
use serde_json::Value;

/// What a list costs beside its transfers; none for what is no list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct ListCosts {
    /// Building it, for each piece.
    pub(super) build_ns: Option<f64>,
    /// Posting it again, at worst: how long the call held the caller's thread.
    pub(super) post_ms: Option<f64>,
}

/// Which side of a pair a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    /// Exposes its buffer and serves.
    Target,
    /// Submits.
    Initiator,
}

/// An engine with one registered buffer.
pub(super) trait Engine {
    /// What the records say.
    fn version(&self) -> String;

    /// How the other side reaches this one; handed to its [`Engine::connect`] as it is.
    fn endpoint(&self) -> anyhow::Result<Value>;

    /// Makes ready to reach the peer's buffer. Called at the initiator, once.
    fn connect(&mut self, endpoint: &Value) -> anyhow::Result<()>;

    /// Puts bytes into this side's buffer.
    fn store(&mut self, offset: usize, bytes: &[u8]) -> anyhow::Result<()>;

    /// Takes bytes out of this side's buffer.
    fn load(&mut self, offset: usize, into: &mut [u8]) -> anyhow::Result<()>;

    /// Makes ready for submissions of the case's plan, of which up to its depth will be in flight.
    fn prepare(&mut self, case: &Case) -> anyhow::Result<()>;

    /// Moves the blocks of one submission and returns when they are in place.
    fn submit(&mut self, slot: usize) -> anyhow::Result<()>;

    /// Whether [`Engine::begin`] and [`Engine::finish`] work.
    fn has_depth(&self) -> bool {
        false
    }

    /// Starts a submission of one block and returns at once.
    fn begin(&mut self, _slot: usize) -> anyhow::Result<()> {
        anyhow::bail!("this engine has one submission in flight")
    }

    /// Returns when the submission that was begun first, of those not yet finished, is in place.
    fn finish(&mut self) -> anyhow::Result<()> {
        anyhow::bail!("this engine has one submission in flight")
    }

    /// What the list cost that was prepared last.
    fn list_costs(&self) -> ListCosts {
        ListCosts::default()
    }

    /// How many notifications the application has taken since this was asked last; an error when one was lost, changed or out
    /// of order.
    fn notifications_taken(&mut self) -> anyhow::Result<usize> {
        anyhow::bail!("this engine has no notifications")
    }
}
