//! What a command says: lines on stdout, a progress bar and the log on stderr. Rule: stdout carries results only, so that it can be
//! piped; a bar appears only on a terminal.

use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use tracing_subscriber::EnvFilter;

/// Prints a line to stdout at once.
pub(crate) fn say(line: impl Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| Failure::local("stdout", e))
}

/// Prints a line of advice to stderr; nothing depends on it.
pub(crate) fn note(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "orbit-te: {line}");
}

/// A bar over so many bytes, cleared when it is dropped.
pub(crate) fn bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    let template = "{msg:8} {bar:32} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Starts the log on stderr at this level, raised by `-v`, unless `RUST_LOG` says otherwise.
pub(crate) fn start_log(base: usize, verbose: u8) {
    const LEVELS: [&str; 4] = ["warn", "info", "debug", "trace"];
    let level = LEVELS[(base + usize::from(verbose)).min(LEVELS.len() - 1)];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
}
