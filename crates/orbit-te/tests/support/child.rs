//! A target in a process of its own, or one that opens a segment: the test binary runs itself again. A binary that uses it has a test `child_target` that calls
//! [`run`], which does nothing unless the parent asked for it.

use super::namespace::{self, Cable, Ends};
use nix::sys::signal::Signal;
use orbit_te::{Access, Backing, Config, Engine, HostBuffer, Segment};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const BYTES: &str = "ORBIT_TE_TEST_CHILD_BYTES";
const OPEN: &str = "ORBIT_TE_TEST_CHILD_OPEN";
const LISTEN: &str = "ORBIT_TE_TEST_CHILD_LISTEN";

/// The child's side: exposes so many bytes as `pool` until its standard input ends.
pub fn run() {
    if let Ok(address) = std::env::var(OPEN) {
        let engine = Engine::builder().no_listen().start().unwrap();
        let _segment = engine.open(&address).wait(super::SOON).unwrap();
        println!("\ntoken of another");
        let _ = std::io::stdin().read(&mut [0; 1]);
        std::process::exit(0);
    }
    let Ok(bytes) = std::env::var(BYTES) else { return };
    let mut config = Config::default();
    if let Ok(at) = std::env::var(LISTEN) {
        config.listen = Some(at.parse().unwrap());
        // A namespace of the tests' own is trusted.
        config.trust_network = true;
    }
    let engine = Engine::builder().config(config).start().unwrap();
    let bytes: usize = bytes.parse().unwrap();
    let owned = || HostBuffer::new(bytes).unwrap().into_backing();
    // One that is used first and one that is used late, of its engine; and one that is the process's own.
    let others = [("late", owned()), ("own", Backing::from_vec(vec![0; bytes]).unwrap())];
    let others = others.map(|(name, backing)| (name, engine.register(backing, Access::SHARED).unwrap()));
    others.iter().for_each(|(name, region)| drop(engine.expose(name, region).unwrap()));
    let region = engine.register(owned(), Access::SHARED).unwrap();
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
        let bytes = (BYTES, bytes.to_string());
        Target::spawn([bytes].into_iter().chain(listen.map(|at| (LISTEN, at))))
    }

    /// A child that opens a segment of somebody else's, and has none itself.
    pub fn opener(address: &str) -> Target {
        Target::spawn([(OPEN, address.to_string())])
    }

    /// A target behind a cable that can be pulled, or why there can be none here.
    pub fn start_behind_cable(bytes: usize) -> Result<(Target, Cable), String> {
        let ends = Ends::new();
        let settings = [(BYTES, bytes.to_string()), (LISTEN, format!("{}:0", ends.inner))];
        let (child, cable) = namespace::start(&Target::command(settings), &ends)?;
        Ok((Target::started(child), cable))
    }

    fn spawn(settings: impl IntoIterator<Item = (&'static str, String)>) -> Target {
        Target::started(Target::command(settings).spawn().unwrap())
    }

    fn command(settings: impl IntoIterator<Item = (&'static str, String)>) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_target", "--nocapture", "--test-threads=1"]);
        command.envs(settings).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn started(mut child: Child) -> Target {
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

    /// Another segment of the child whose `pool` this is: `late`, or `own`, which is memory of the process's own.
    pub fn open_other(&self, pool: &Segment, engine: &Engine, name: &str) -> Segment {
        engine.open(&format!("{}/{name}", pool.address())).wait(Duration::from_secs(20)).unwrap()
    }

    /// Sends a signal; a stop has taken place when this returns.
    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), signal).unwrap();
        if signal == Signal::SIGSTOP {
            super::eventually("the child is stopped", Duration::from_secs(10), || {
                let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
                threads.map_while(Result::ok).all(|thread| {
                    let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                    stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
                })
            });
        }
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
