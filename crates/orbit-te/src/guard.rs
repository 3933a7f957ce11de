//! Panics of code that is called from the engine's threads. Rule: whoever catches one says what it was, and goes on only with what
//! the panic can't have left half done.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs this; the words of its panic, if it does.
pub(crate) fn caught<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| words(&*panic))
}

/// Runs somebody else's code, whose panic is theirs: it is logged, and nothing of ours depends on it.
pub(crate) fn contain(what: &str, run: impl FnOnce()) {
    if let Err(panic) = caught(run) {
        tracing::error!(what, panic, "code of the application panicked");
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it panicked: {}", text.as_deref().unwrap_or("without words"))
}
