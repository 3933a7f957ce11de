//! A network namespace for a child process, and a cable into it that can be pulled. It is gone when the cable is dropped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Waits until the cable is there, and then becomes the program.
const WAITS: &str = "echo ready; read line; exec \"$0\" \"$@\"";

/// The two ends of a cable, in a network that no other test of this machine uses now, but for a chance that can be neglected.
pub struct Ends {
    pub outer: String,
    pub inner: String,
}

impl Ends {
    pub fn new() -> Ends {
        static CABLES: AtomicU32 = AtomicU32::new(0);
        let network = std::process::id().wrapping_mul(8) + CABLES.fetch_add(1, Ordering::Relaxed);
        // Addresses for measurements, RFC 2544; four to a network.
        let (high, low) = (network / 64 % 256, network % 64 * 4);
        Ends { outer: format!("198.19.{high}.{}", low + 1), inner: format!("198.19.{high}.{}", low + 2) }
    }
}

/// The cable into the namespace of a process.
pub struct Cable {
    pid: String,
    outer: String,
}

/// Wraps a command, which has pipes for input and output, so that it runs in a namespace of its own behind a cable.
pub fn start(program: &Command, ends: &Ends) -> Result<(Child, Cable), String> {
    start_in(program, ends, &["--net"])
}

/// The same in the namespaces of these options of `unshare`, that of the network among them.
pub fn start_in(program: &Command, ends: &Ends, namespaces: &[&str]) -> Result<(Child, Cable), String> {
    run(Command::new("ip").args(["link", "show"]))?;
    let mut wrapped = Command::new("unshare");
    wrapped.args(namespaces).args(["sh", "-c", WAITS]).arg(program.get_program()).args(program.get_args());
    wrapped.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    wrapped.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = wrapped.spawn().map_err(|e| format!("no `unshare`: {e}"))?;
    let cable = wire(&mut child, ends);
    if cable.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    Ok((child, cable?))
}

fn wire(child: &mut Child, ends: &Ends) -> Result<Cable, String> {
    let mut ready = String::new();
    let output = child.stdout.as_mut().ok_or("no output")?;
    // One byte at a time: what follows belongs to somebody else.
    let read = BufReader::with_capacity(1, output).read_line(&mut ready);
    if read.is_err() || ready.trim() != "ready" {
        return Err("network namespaces are not permitted here".to_string());
    }
    let (pid, outer) = (child.id().to_string(), format!("otc{}", child.id()));
    ip(&["link", "add", &outer, "type", "veth", "peer", "name", "inner", "netns", &pid])?;
    ip(&["address", "add", &format!("{}/30", ends.outer), "dev", &outer])?;
    ip(&["link", "set", &outer, "up"])?;
    let cable = Cable { pid, outer };
    cable.inside(&["address", "add", &format!("{}/30", ends.inner), "dev", "inner"])?;
    cable.inside(&["link", "set", "lo", "up"])?;
    cable.inside(&["link", "set", "inner", "up"])?;
    child.stdin.as_mut().ok_or("no input")?.write_all(b"\n").map_err(|e| e.to_string())?;
    Ok(cable)
}

impl Cable {
    /// Some hundred kilobytes a second each way, or as it comes.
    pub fn throttle(&self, yes: bool) -> Result<(), String> {
        let change: &[&str] = match yes {
            true => &[
                "replace", "dev", "inner", "root", "tbf", "rate", "8mbit", "burst", "16kb", "latency",
                "200ms",
            ],
            false => &["del", "dev", "inner", "root"],
        };
        let outer = change.iter().map(|word| if *word == "inner" { self.outer.as_str() } else { word });
        run(Command::new("tc").arg("qdisc").args(outer))?;
        run(Command::new("nsenter").args(["--target", &self.pid, "--net", "tc", "qdisc"]).args(change))
    }

    /// The far end goes down, or comes back. Neither side is told.
    pub fn plug(&self, yes: bool) {
        self.inside(&["link", "set", "inner", if yes { "up" } else { "down" }]).unwrap();
    }

    fn inside(&self, args: &[&str]) -> Result<(), String> {
        run(Command::new("nsenter").args(["--target", &self.pid, "--net", "ip"]).args(args))
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // Connections that wait for acknowledgements would keep the namespace, and with it the cable, for minutes.
        let _ = ip(&["link", "delete", &self.outer]);
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
