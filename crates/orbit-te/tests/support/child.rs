//! A target in a process of its own: the test binary runs itself again. A binary that uses it has a test `child_target` that calls
//! [`run`], which does nothing unless the parent asked for it.

use orbit_te::{Access, Config, Engine, HostBuffer, Segment};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const BYTES: &str = "ORBIT_TE_TEST_CHILD_BYTES";
const LISTEN: &str = "ORBIT_TE_TEST_CHILD_LISTEN";

/// The child's side: exposes so many bytes as `pool` until its standard input ends.
pub fn run() {
    let Ok(bytes) = std::env::var(BYTES) else { return };
    let mut config = Config::default();
    if let Ok(at) = std::env::var(LISTEN) {
        config.listen = Some(at.parse().unwrap());
    }
    let engine = Engine::builder().config(config).start().unwrap();
    let buffer = HostBuffer::new(bytes.parse().unwrap()).unwrap();
    let region = engine.register(buffer.into_backing(), Access::SHARED).unwrap();
    println!("\ntoken {}", engine.expose("pool", &region).unwrap());
    let _ = std::io::stdin().read(&mut [0; 1]);
    std::process::exit(0);
}

/// The parent's side. Dropping it kills the child.
pub struct Target {
    child: Child,
    pub token: String,
}

impl Target {
    pub fn start(bytes: usize) -> Target {
        Target::start_at(bytes, None)
    }

    pub fn start_at(bytes: usize, listen: Option<String>) -> Target {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_target", "--nocapture", "--test-threads=1"]);
        command.env(BYTES, bytes.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(at) = listen {
            command.env(LISTEN, at);
        }
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let token = output
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("token ").map(str::to_string))
            .expect("the child gave no token");
        Target { child, token }
    }

    pub fn open(&self, engine: &Engine) -> Segment {
        engine.open(&self.token).wait(Duration::from_secs(20)).unwrap()
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.kill();
    }
}
