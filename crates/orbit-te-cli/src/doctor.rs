//! `orbit-te doctor`: checks of this host and of the way to a peer. Rule: it changes nothing; what files tell is a function of a
//! tree of files, and every line says what was found, why it matters and, where something should be done, what.

mod check;
mod devices;
mod kernel;
mod limits;
mod memory;
mod network;
mod peer;
mod probe;
mod rdma;
#[cfg(test)]
mod testing;
mod tree;

use crate::console;
use crate::failure::Failure;
use crate::routing::Meeting;
use check::{Finding, HEAD, State, Summary};
use clap::Args;
use peer::Peer;
use probe::Probe;
use std::path::PathBuf;
use tree::Tree;

/// Check this host, and the way to a peer.
///
/// Prints a line for each check: its state, its name, what was found and why it
/// matters; below warnings and failures what to do about them. The states:
///
///   ok      as it should be
///   note    worth knowing; for most nothing to be done
///   warn    it works, but slower, or less of it than could be
///   fail    it does not work
///   absent  this host has no such thing
///
/// Nothing is changed. It ends with exit code 0 when nothing failed, 4 when a
/// check of this host failed, 3 when the peer can't be reached or refuses, and 1
/// when a read of its segment failed.
///
/// With --peer HOST:PORT it says whether OrbitTE answers there and how soon.
/// With a segment (HOST:PORT/NAME or a token) it also tells which route bytes take
/// and why no other one, makes the lanes, and, if the segment may be read, tells
/// the median of 20 reads of up to 4 KiB. --no-same-host and --socket-folder are
/// for the peer.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Doctor {
    /// Whom to reach: HOST:PORT, HOST:PORT/NAME of a segment, or its token.
    #[arg(long, value_name = "ADDR[/NAME]", value_parser = Peer::parse)]
    peer: Option<Peer>,
    /// Check a saved description of another machine: DIR has copies of files of its /proc, /sys and /dev. DIR/probe.json may
    /// have what system calls answered there; without it they are not asked.
    #[arg(long, value_name = "DIR", conflicts_with = "peer")]
    root: Option<PathBuf>,
    #[command(flatten)]
    meeting: Meeting,
    /// Print JSON lines: name, state, found, why and remedy of each check, then how many there are of each state.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Doctor {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let (tree, probe) = match &self.root {
            None => (Tree::of_this_host(), Probe::of_this_host()),
            Some(root) => {
                let tree = Tree::saved(root)?;
                let probe = Probe::saved(&tree);
                (tree, probe)
            }
        };
        let mut findings = host(&tree, &probe);
        if !self.json {
            console::say(HEAD)?;
        }
        self.print(&findings)?;
        let failed: Vec<&str> = findings.iter().filter(|f| f.state == State::Fail).map(|f| f.name).collect();
        let mut failure = (!failed.is_empty()).then(|| {
            Failure::Local(format!(
                "this host fails checks ({}); their lines say what to do",
                failed.join(", ")
            ))
        });
        if let Some(peer) = &self.peer {
            let learnt = peer.checks(&self.meeting);
            self.print(&learnt.findings)?;
            findings.extend(learnt.findings);
            // What this host lacks may be why the peer can't be reached.
            failure = failure.or(learnt.failure);
        }
        let summary = Summary::of(&findings);
        console::say(if self.json { summary.json() } else { summary.to_string() })?;
        failure.map_or(Ok(()), Err)
    }

    fn print(&self, findings: &[Finding]) -> Result<(), Failure> {
        findings.iter().try_for_each(|f| console::say(if self.json { f.json() } else { f.to_string() }))
    }
}

/// All checks of a host.
fn host(tree: &Tree, probe: &Probe) -> Vec<Finding> {
    let mut findings = kernel::checks(tree);
    findings.extend(limits::checks(tree, probe));
    findings.extend(memory::checks(tree, probe));
    findings.extend(network::checks(tree));
    findings.extend(rdma::checks(tree, probe));
    findings.extend(devices::checks(tree));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_an_answer_to_every_check() {
        let findings = host(&Tree::of_this_host(), &Probe::of_this_host());
        for finding in &findings {
            assert!(!finding.found.is_empty() && !finding.why.is_empty(), "{finding:?}");
            let needed = matches!(finding.state, State::Warn | State::Fail);
            assert!(!needed || finding.remedy.is_some(), "{finding:?}");
            assert!(finding.to_string().lines().all(|l| l.chars().count() <= 100), "{finding}");
        }
        assert!(findings.len() >= 25, "{}", findings.len());
    }

    #[test]
    fn an_empty_tree_is_no_panic() {
        let (_folder, tree) = testing::tree(&[]);
        for finding in host(&tree, &Probe::saved(&tree)) {
            assert!(
                matches!(finding.state, State::Warn | State::Note | State::Absent | State::Ok),
                "{finding}"
            );
        }
    }
}
