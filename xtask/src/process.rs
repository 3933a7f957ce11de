//! Other programs: how they are started from the workspace's root, and how their output is shown and read. Rule: what a
//! person would want to see goes to the terminal while it happens.

use anyhow::{Context, bail};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The root of the workspace: where `cargo run` found this package, one level up.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let here = PathBuf::from(here);
    here.parent().map(Path::to_path_buf).unwrap_or(here)
}

/// A program, started from the workspace's root.
pub(crate) fn program(name: impl Into<OsString>) -> Command {
    let mut command = Command::new(name.into());
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// The cargo that runs us, started from the workspace's root.
pub(crate) fn cargo() -> Command {
    program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Whether a program is there and answers with success. Its output is thrown away.
pub(crate) fn answers(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Runs to the end with the terminal as output; an error unless it succeeds.
pub(crate) fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let line = line_of(command);
    let status = command.status().with_context(|| format!("`{line}` could not be started"))?;
    expect_success(&line, status)
}

/// Runs to the end and gives what it printed on stdout; an error unless it succeeds, with the last of its stderr.
pub(crate) fn capture(command: &mut Command) -> anyhow::Result<String> {
    let line = line_of(command);
    let output = command.output().with_context(|| format!("`{line}` could not be started"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` {}: {}", ended(output.status), last_line(&stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end; each line of stdout and stderr goes to `look` at once, in the order in which they were written.
pub(crate) fn read_lines(command: &Command, mut look: impl FnMut(&str)) -> anyhow::Result<ExitStatus> {
    let line = line_of(command);
    // One pipe for both streams, so that a heading on one of them comes before its results on the other.
    let mut joined = Command::new("sh");
    joined.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => joined.env(key, value),
            None => joined.env_remove(key),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        joined.current_dir(dir);
    }
    joined.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = joined.spawn().with_context(|| format!("`{line}` could not be started"))?;
    let stdout = child.stdout.take().context("the pipe from a child is missing")?;
    let mut reader = BufReader::new(stdout);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        look(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
    Ok(child.wait()?)
}

/// Runs to the end or until the limit, without output; the reason if it did not succeed.
pub(crate) fn quietly_within(command: &mut Command, limit: Duration) -> Result<(), String> {
    let line = line_of(command);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("`{line}` could not be started: {error}"))?;
    match wait_within(&mut child, limit) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => {
            let mut said = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                // What it said is a courtesy: without it the reason is shorter, not wrong.
                std::io::Read::read_to_string(&mut stderr, &mut said).ok();
            }
            Err(format!("`{line}` {}: {}", ended(status), last_line(&said)))
        }
        Ok(None) => Err(format!("`{line}` took over {} s", limit.as_secs())),
        Err(error) => Err(format!("`{line}`: {error}")),
    }
}

fn wait_within(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An error with the command's line unless the status is success.
pub(crate) fn expect_success(line: &str, status: ExitStatus) -> anyhow::Result<()> {
    if !status.success() {
        bail!("`{line}` {}", ended(status));
    }
    Ok(())
}

/// The command as a person would type it, with the program's name alone.
pub(crate) fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut line = program.to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("ended with {code}"),
        None => format!("ended by {status}"),
    }
}

fn last_line(text: &str) -> &str {
    text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_the_order_of_both_streams() {
        let mut command = program("sh");
        command.args(["-c", "echo one >&2; echo two; echo three >&2; exit 3"]);
        let mut lines = Vec::new();
        let status = read_lines(&command, |line| lines.push(line.to_string())).unwrap();
        assert_eq!(lines, ["one", "two", "three"]);
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_failure_names_the_command_and_what_it_said() {
        let error = capture(program("sh").args(["-c", "echo why >&2; exit 4"])).unwrap_err().to_string();
        assert_eq!(error, "`sh -c echo why >&2; exit 4` ended with 4: why");
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let reason = quietly_within(program("sleep").arg("60"), Duration::from_millis(100)).unwrap_err();
        assert_eq!(reason, "`sleep 60` took over 0 s");
    }
}
