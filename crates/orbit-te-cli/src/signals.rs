//! Signals that end a command. Rule: they are blocked before any thread starts and then waited for, so no code runs in a handler.

use crate::failure::Failure;
use nix::sys::signal::{SigSet, Signal};
use std::path::PathBuf;

/// SIGINT and SIGTERM, blocked for this thread and all that it starts from now on.
#[derive(Clone, Copy)]
pub(crate) struct Ending(SigSet);

impl Ending {
    pub(crate) fn block() -> Result<Ending, Failure> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.add(Signal::SIGTERM);
        set.thread_block().map_err(|e| Failure::local("blocking signals", e))?;
        Ok(Ending(set))
    }

    /// Sleeps until one of them comes.
    pub(crate) fn wait(self) -> Result<Signal, Failure> {
        self.0.wait().map_err(|e| Failure::local("waiting for a signal", e))
    }

    /// Removes a file and ends the process when one of them comes.
    pub(crate) fn remove_and_exit(self, path: PathBuf) -> Result<(), Failure> {
        let wait = move || {
            if let Ok(signal) = self.wait() {
                let _ = std::fs::remove_file(&path);
                std::process::exit(128 + signal as i32);
            }
        };
        let thread = std::thread::Builder::new().name("signals".to_string()).spawn(wait);
        thread.map(|_| ()).map_err(|e| Failure::local("a thread for signals", e))
    }
}
