//! Test binaries of the workspace, built for a guest.

use super::cases::TestBinary;
use crate::process::{cargo, expect_success, line_of};
use anyhow::Context;
use std::path::PathBuf;
use std::process::Stdio;

/// Builds it, and says where it is.
pub(super) fn build(binary: TestBinary) -> anyhow::Result<PathBuf> {
    let mut build = cargo();
    build.args(["test", "--no-run", "--quiet", "--message-format", "json"]).args(binary.build);
    let output = build.stderr(Stdio::inherit()).output().context("cargo could not be started")?;
    expect_success(&line_of(&build), output.status)?;
    let path = executable_in(&String::from_utf8_lossy(&output.stdout));
    path.with_context(|| format!("`{}` built no test binary, or several", line_of(&build)))
}

/// The one test binary in cargo's messages.
fn executable_in(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let tests = messages.filter(|message| message["profile"]["test"] == true);
    let mut paths = tests.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    paths.next().filter(|_| paths.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_binary_is_the_one_made_for_testing() {
        let library = r#"{"reason":"compiler-artifact","profile":{"test":false},"executable":null}"#;
        let program = r#"{"reason":"compiler-artifact","profile":{"test":false},"executable":"p/x"}"#;
        let test = r#"{"reason":"compiler-artifact","profile":{"test":true},"executable":"t/x-1"}"#;
        let end = r#"{"reason":"build-finished","success":true}"#;
        let found = |lines: &[&str]| executable_in(&lines.join("\n"));
        assert_eq!(found(&[library, program, test, end]).as_deref(), Some(Path::new("t/x-1")));
        assert_eq!(found(&[library, program, end]), None);
        assert_eq!(found(&[test, test]), None);
    }
}
