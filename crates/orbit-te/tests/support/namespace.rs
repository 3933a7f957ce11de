//! A network namespace for a child process, and a cable into it that can be pulled. It is gone with the process; nothing has to be
//! cleaned up.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

const OUTER: &str = "198.19.77.1/30";
const INNER: &str = "198.19.77.2/30";
/// Where a child in the namespace listens.
pub const LISTEN: &str = "198.19.77.2:0";
/// Waits until the cable is there, and then becomes the program.
const WAITS: &str = "echo ready; read line; exec \"$0\" \"$@\"";

/// The cable into the namespace of a process.
pub struct Cable {
    pid: String,
}

/// Wraps a command, which has pipes for input and output, so that it runs in a namespace of its own behind a cable.
pub fn start(program: &Command) -> Result<(Child, Cable), String> {
    run(Command::new("ip").args(["link", "show"]))?;
    let mut wrapped = Command::new("unshare");
    wrapped.args(["--net", "sh", "-c", WAITS]).arg(program.get_program()).args(program.get_args());
    wrapped.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    wrapped.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = wrapped.spawn().map_err(|e| format!("no `unshare`: {e}"))?;
    let cable = wire(&mut child);
    if cable.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    Ok((child, cable?))
}

fn wire(child: &mut Child) -> Result<Cable, String> {
    let mut ready = String::new();
    let output = child.stdout.as_mut().ok_or("no output")?;
    // One byte at a time: what follows belongs to somebody else.
    let read = BufReader::with_capacity(1, output).read_line(&mut ready);
    if read.is_err() || ready.trim() != "ready" {
        return Err("network namespaces are not permitted here".to_string());
    }
    let (pid, outer) = (child.id().to_string(), format!("otc{}", child.id()));
    ip(&["link", "add", &outer, "type", "veth", "peer", "name", "inner", "netns", &pid])?;
    ip(&["address", "add", OUTER, "dev", &outer])?;
    ip(&["link", "set", &outer, "up"])?;
    let cable = Cable { pid };
    cable.inside(&["address", "add", INNER, "dev", "inner"])?;
    cable.inside(&["link", "set", "lo", "up"])?;
    cable.inside(&["link", "set", "inner", "up"])?;
    child.stdin.as_mut().ok_or("no input")?.write_all(b"\n").map_err(|e| e.to_string())?;
    Ok(cable)
}

impl Cable {
    /// The far end goes down, or comes back. Neither side is told.
    pub fn plug(&self, yes: bool) {
        self.inside(&["link", "set", "inner", if yes { "up" } else { "down" }]).unwrap();
    }

    fn inside(&self, args: &[&str]) -> Result<(), String> {
        run(Command::new("nsenter").args(["--target", &self.pid, "--net", "ip"]).args(args))
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    run(Command::new("ip").args(args))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
