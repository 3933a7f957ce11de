//! `cargo xtask lab run`: one command in a guest. Rule: its output, exit code and files come back as if it had run here.

use super::boot::{Lab, Plan, last_words};
use super::image::{Carried, Task, file_at, program_at};
use super::kernel::Choice;
use super::kit::Named;
use super::machine::{Hardware, Machine};
use super::topology::Topology;
use super::transcript::{Ended, Event};
use crate::process::{program, succeed};
use anyhow::{bail, ensure};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The command was ended at its limit.
const AT_LIMIT: u8 = 124;
/// There is no exit code: the guest ended before its command, or there was no guest.
pub(super) const NO_CODE: u8 = 125;

/// Arguments of `cargo xtask lab run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[arg(long, value_enum, default_value = "stable")]
    kernel: Choice,
    /// How the guest is connected.
    #[arg(long, value_enum, default_value = "rails")]
    topo: Topology,
    /// Processors of a guest.
    #[arg(long, default_value_t = Hardware::USUAL.processors)]
    smp: u32,
    /// Memory of a guest in MiB.
    #[arg(long, default_value_t = Hardware::USUAL.memory_mib)]
    mem: u32,
    /// The rails' MTU. With 4200, RDMA's is 4096.
    #[arg(long, default_value_t = Hardware::USUAL.mtu)]
    mtu: u32,
    /// A program of the host that the guest gets, with the libraries it needs.
    #[arg(long, value_name = "PATH", value_parser = |text: &str| program_at(Path::new(text)))]
    bin: Vec<Named>,
    /// A file or a folder of the host that the guest gets.
    #[arg(long, value_name = "SOURCE:DESTINATION", value_parser = file_at)]
    file: Vec<Named>,
    /// What the second guest of `two-vm` runs [default: the same as the first].
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,
    /// Seconds after which the command is ended.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// Where the files go that the guest leaves in /out, with the kernel's log and the console.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// A line for bash. Its words are joined by spaces.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

impl RunArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        ensure!(
            self.peer.is_none() || self.topo == Topology::TwoVm,
            "--peer is for the second guest of `--topo two-vm`"
        );
        let command = self.command.join(" ");
        let task = |script: &str| {
            vec![Task { script: script.to_string(), limit: Duration::from_secs(self.timeout) }]
        };
        let commands = [&command, self.peer.as_ref().unwrap_or(&command)];
        let tasks = self.topo.hosts().iter().zip(commands).map(|(_, command)| task(command)).collect();
        let hardware = Hardware { processors: self.smp, memory_mib: self.mem, mtu: self.mtu };
        let carried = Carried { programs: self.bin.clone(), files: self.file.clone() };
        Ok(Plan { topology: self.topo, hardware, tasks, carried })
    }
}

/// Runs it, and ends as the command did.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    let lab = Lab::obtain(args.kernel)?;
    let hosts = plan.topology.hosts();
    let mut printer = Printer { names: hosts.len() > 1, lines: vec![Vec::new(); hosts.len()] };
    let mut ends = vec![Ended::Never; hosts.len()];
    let machines = lab.boot(&plan, |place, event| {
        match event {
            Event::Output(bytes) => printer.print(hosts[place].name, place, &bytes)?,
            Event::End(_, ended) => {
                printer.finish(hosts[place].name, place)?;
                ends[place] = ended;
            }
            Event::Ready | Event::Begin(_) | Event::Over => {}
        }
        Ok(())
    })?;
    let mut code = 0;
    for ((host, machine), ended) in hosts.iter().zip(&machines).zip(ends) {
        if let Some(out) = &args.out {
            let out = if hosts.len() > 1 { out.join(host.name) } else { out.clone() };
            save(machine, &out)?;
        }
        let own = match ended {
            Ended::Code(code) => code,
            Ended::AtLimit => {
                eprintln!("lab: the command was ended after {} s", args.timeout);
                AT_LIMIT
            }
            Ended::Never => {
                eprintln!("lab: the guest gave no exit code; {}", last_words(machine)?.trim_end());
                NO_CODE
            }
        };
        code = if code == 0 { own } else { code };
    }
    Ok(ExitCode::from(code))
}

/// Runs a script in a guest with two rails and these programs; what it printed, if it succeeded.
pub(crate) fn collect(
    programs: &[PathBuf],
    memory_mib: u32,
    script: &str,
    limit: Duration,
) -> anyhow::Result<String> {
    let lab = Lab::obtain(Choice::Stable)?;
    let programs = programs.iter().map(|path| program_at(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let plan = Plan {
        topology: Topology::Rails,
        hardware: Hardware { memory_mib, ..Hardware::USUAL },
        tasks: vec![vec![Task { script: script.to_string(), limit }]],
        carried: Carried { programs, files: Vec::new() },
    };
    let (mut said, mut ended) = (Vec::new(), Ended::Never);
    let machines = lab.boot(&plan, |_, event| {
        match event {
            Event::Output(bytes) => said.extend(bytes),
            Event::End(_, how) => ended = how,
            Event::Ready | Event::Begin(_) | Event::Over => {}
        }
        Ok(())
    })?;
    let said = String::from_utf8_lossy(&said).into_owned();
    match (ended, machines.first()) {
        (Ended::Code(0), _) => Ok(said),
        (Ended::Never, Some(machine)) => bail!("the guest gave no exit code; {}", last_words(machine)?),
        (ended, _) => bail!("the guest's script {ended}: {}", said.lines().last().unwrap_or_default()),
    }
}

/// Brings a guest's files into a folder.
fn save(machine: &Machine, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("console.txt"), machine.console()?)?;
    let files = machine.files()?;
    if files.metadata()?.len() > 0 {
        succeed(
            program("tar").args(["-x", "--no-same-owner", "-C"]).arg(folder.canonicalize()?).stdin(files),
        )?;
    }
    Ok(())
}

/// Prints as it comes; where there are two guests whole lines, with their names.
struct Printer {
    names: bool,
    lines: Vec<Vec<u8>>,
}

impl Printer {
    fn print(&mut self, name: &str, place: usize, bytes: &[u8]) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        if !self.names {
            out.write_all(bytes)?;
            return out.flush();
        }
        let line = &mut self.lines[place];
        line.extend_from_slice(bytes);
        while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            let whole: Vec<u8> = line.drain(..=end).collect();
            out.write_all(name.as_bytes())?;
            out.write_all(b"| ")?;
            out.write_all(&whole)?;
        }
        out.flush()
    }

    /// Prints a last line without an end.
    fn finish(&mut self, name: &str, place: usize) -> std::io::Result<()> {
        if self.lines[place].is_empty() { Ok(()) } else { self.print(name, place, b"\n") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn plan(line: &str) -> anyhow::Result<Plan> {
        Line::try_parse_from(line.split(' '))?.run.plan()
    }

    #[test]
    fn a_line_becomes_a_plan() {
        let one = plan("run --smp 4 --timeout 7 -- echo --bin").unwrap();
        assert_eq!((one.topology, one.hardware.processors, one.hardware.mtu), (Topology::Rails, 4, 4200));
        assert_eq!((one.tasks[0][0].script.as_str(), one.tasks[0][0].limit.as_secs()), ("echo --bin", 7));
        assert_eq!(one.tasks.len(), 1);
        let two = plan("run --topo two-vm --peer true -- false").unwrap();
        assert_eq!((two.tasks[0][0].script.as_str(), two.tasks[1][0].script.as_str()), ("false", "true"));
        let same = plan("run --topo two-vm -- false").unwrap();
        assert_eq!(same.tasks[1][0].script, "false");
    }

    #[test]
    fn senseless_lines_are_refused() {
        for line in [
            "run",
            "run echo",
            "run --peer x -- y",
            "run --topo ring -- x",
            "run --file x:y -- z",
            "run --bin /none -- z",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
    }
}
