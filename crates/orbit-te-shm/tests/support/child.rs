//! Processes of their own at either end of a link: the test binary runs itself again. A binary that uses it has a test `child` that calls
//! [`run`], which does nothing unless the parent asked for it. A child ends with its parent's thread at the latest.

use super::raw::{Came, Raw};
use super::{Client, Owner, config};
use nix::sys::signal::Signal;
use orbit_te_memory::{Access, RemoteKey};
use orbit_te_shm::{SameHostAddress, ShmConfig, Way};
use orbit_te_transport::OpKind;
use orbit_te_wire::same_host::SameHost;
use orbit_te_wire::{Generation, RegionId};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::Duration;

const ROLE: &str = "ORBIT_TE_SHM_CHILD";
const WAY: &str = "ORBIT_TE_SHM_WAY";
const LENGTH: &str = "ORBIT_TE_SHM_LENGTH";
const ADDRESS: &str = "ORBIT_TE_SHM_ADDRESS";
const KEY: &str = "ORBIT_TE_SHM_KEY";
const USER: &str = "ORBIT_TE_SHM_USER";

/// What an owner fills its memory with, and an importer.
pub const OWNERS: u8 = 0x11;
pub const IMPORTERS: u8 = 0x22;

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).unwrap()).collect()
}

fn key_text(key: &RemoteKey) -> String {
    key.0.map(|word| word.to_string()).join(",")
}

fn key_of(text: &str) -> RemoteKey {
    let words: Vec<u64> = text.split(',').map(|word| word.parse().unwrap()).collect();
    RemoteKey(words.try_into().unwrap())
}

/// The child's side: never returns where the parent asked for a role.
pub fn run() {
    let Ok(role) = std::env::var(ROLE) else { return };
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
    let of = |name: &str| std::env::var(name).unwrap();
    let way = if of(WAY) == "kernel" { Way::Kernel } else { Way::Mapping };
    let length: usize = of(LENGTH).parse().unwrap();
    if let Ok(user) = std::env::var(USER) {
        nix::unistd::setuid(nix::unistd::Uid::from_raw(user.parse().unwrap())).unwrap();
        // Who changes his user can't be reached by the kernel's copies any more, unless he says so.
        nix::sys::prctl::set_dumpable(true).unwrap();
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
    }
    if role == "owner" {
        let owner = Owner::new(way, config());
        let region = owner.region(length, OWNERS, Access::SHARED);
        let address = to_hex(&owner.admit().encode().unwrap());
        println!("\nsays {address} {}", key_text(&owner.key(&region)));
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let address = SameHostAddress::decode(&from_hex(&of(ADDRESS))).unwrap();
    if role == "thief" {
        println!("\nsays {}", steal(&address, &key_of(&of(KEY))));
        std::process::exit(0);
    }
    let config = ShmConfig { chunk_bytes: u64::MAX, users: vec![0], ..config() };
    let (mut client, key) = (Client::new(way, config, &address, length, IMPORTERS), key_of(&of(KEY)));
    if role == "visitor" {
        client.until("let in, or not", Duration::from_secs(20), |c| c.ups > 0 || !c.fallen.is_empty());
        println!("\nsays {}", client.fallen.first().map_or("in", String::as_str));
        std::process::exit(0);
    }
    let first = client.carry(OpKind::Read, key, 0, length as u64);
    assert_eq!(first.result, Ok(()));
    println!("\nsays going");
    if role == "idle" {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    // Both directions at once; the owner sees to it that it ends.
    loop {
        for kind in [OpKind::Write, OpKind::Read] {
            client.op(kind, key, 0, length as u64);
        }
        client.until("copies end", Duration::from_secs(60), |client| client.done.len() == 2);
        client.done.clear();
    }
}

/// Tries to write through what it is given to read from; what the kernel says.
fn steal(address: &SameHostAddress, key: &RemoteKey) -> String {
    let (raw, _gates) = Raw::guest(address, Way::Mapping);
    let [region, generation, key, _] = key.0;
    let enter =
        SameHost::Enter { request: 1, region: RegionId(region), generation: Generation(generation), key };
    raw.say(&enter, &[]);
    let Came::Message(SameHost::Entered { .. }, Some(file)) = raw.hear() else { panic!("not let in") };
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    match std::fs::OpenOptions::new().write(true).open(again) {
        Ok(file) => {
            let wrote = std::os::unix::fs::FileExt::write_at(&file, b"mine now", 0);
            format!("opened, and wrote {wrote:?}")
        }
        Err(error) => format!("{:?}", nix::errno::Errno::from_raw(error.raw_os_error().unwrap())),
    }
}

/// What a child does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Importer {
    /// Copies without a pause.
    Copies,
    /// Has copied once, and is quiet.
    Idle,
}

/// A child process. Dropping it kills it.
pub struct Child {
    process: std::process::Child,
    /// What it said first.
    pub said: String,
}

impl Child {
    /// A process that owns memory; where it is met, and its key.
    pub fn owner(way: Way, length: usize) -> (Child, SameHostAddress, RemoteKey) {
        let child = Child::start("owner", way, length, &[]);
        let (address, key) = child.said.split_once(' ').unwrap();
        let met = (SameHostAddress::decode(&from_hex(address)).unwrap(), key_of(key));
        (child, met.0, met.1)
    }

    /// A process that copies from and to our memory, and has begun.
    pub fn importer(how: Importer, way: Way, length: usize, to: &SameHostAddress, key: &RemoteKey) -> Child {
        let role = if how == Importer::Idle { "idle" } else { "copies" };
        let address = (ADDRESS, to_hex(&to.encode().unwrap()));
        Child::start(role, way, length, &[address, (KEY, key_text(key))])
    }

    /// A process of another user that comes once, and says how it went.
    pub fn visitor(way: Way, to: &SameHostAddress, user: u32) -> Child {
        let address = (ADDRESS, to_hex(&to.encode().unwrap()));
        Child::start("visitor", way, 4096, &[address, (KEY, "0,0,0,0".into()), (USER, user.to_string())])
    }

    /// A process of another user that takes more than it was given, and says what came of it.
    pub fn thief(to: &SameHostAddress, key: &RemoteKey, user: u32) -> Child {
        let address = (ADDRESS, to_hex(&to.encode().unwrap()));
        let settings = [address, (KEY, key_text(key)), (USER, user.to_string())];
        Child::start("thief", Way::Mapping, 4096, &settings)
    }

    fn start(role: &str, way: Way, length: usize, settings: &[(&str, String)]) -> Child {
        let way = if way == Way::Kernel { "kernel" } else { "mapping" };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(WAY, way).env(LENGTH, length.to_string());
        command.envs(settings.iter().map(|(name, value)| (*name, value.as_str())));
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let said = output
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("says ").map(str::to_string))
            .expect("the child said nothing");
        Child { process, said }
    }

    fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.process.id() as i32)
    }

    /// Stops it; all of its threads stand still when this returns.
    pub fn stop(&self) {
        nix::sys::signal::kill(self.pid(), Signal::SIGSTOP).unwrap();
        let folder = format!("/proc/{}/task", self.pid());
        super::eventually("the child is stopped", Duration::from_secs(10), || {
            std::fs::read_dir(&folder).unwrap().map_while(Result::ok).all(|thread| {
                let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
            })
        });
    }

    pub fn go_on(&self) {
        nix::sys::signal::kill(self.pid(), Signal::SIGCONT).unwrap();
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(&mut self) {
        // It may be dead already, when a test failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
