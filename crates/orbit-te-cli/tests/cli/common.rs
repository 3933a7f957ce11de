//! Running `orbit-te`. Rule: nothing here waits without a limit, and no process outlives its test.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// What a process said, as it says it.
type Said = Arc<Mutex<String>>;

/// A running `orbit-te`.
pub(crate) struct Running {
    child: Child,
    pub(crate) out: Said,
    pub(crate) err: Said,
    readers: Vec<JoinHandle<()>>,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// Asserts this exit code and, beside the log, exactly one line of words, which has all of these in it.
    #[track_caller]
    pub(crate) fn says(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let lines: Vec<&str> = self.err.lines().filter(|l| !l.contains(" INFO ")).collect();
        assert_eq!(lines.len(), 1, "{self:?}");
        assert!(lines[0].starts_with("orbit-te: "), "{self:?}");
        for word in words {
            assert!(lines[0].contains(word), "`{word}` is not in {self:?}");
        }
    }

    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }
}

fn collect(pipe: impl Read + Send + 'static) -> (Said, JoinHandle<()>) {
    let said = Said::default();
    let into = said.clone();
    let reader = thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
            into.lock().expect("lock").push_str(&line);
            line.clear();
        }
    });
    (said, reader)
}

pub(crate) fn start<S: AsRef<std::ffi::OsStr>>(words: &[S]) -> Running {
    let mut child = Command::new(env!("CARGO_BIN_EXE_orbit-te"))
        .args(words)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let (out, one) = collect(child.stdout.take().expect("stdout"));
    let (err, two) = collect(child.stderr.take().expect("stderr"));
    Running { child, out, err, readers: vec![one, two] }
}

/// Runs it to its end.
pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(words: &[S]) -> Ended {
    start(words).end(LIMIT)
}

/// Waits until something is there.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < limit, "{what} did not come");
        thread::sleep(Duration::from_millis(5));
    }
}

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the process is there");
    }

    /// Waits until these words stand on stderr; the line they are in.
    #[track_caller]
    pub(crate) fn hear(&self, words: &str) -> String {
        until(words, || {
            let said = self.err.lock().expect("lock");
            said.lines().find(|l| l.contains(words)).map(str::to_string)
        })
    }

    #[track_caller]
    pub(crate) fn end(mut self, limit: Duration) -> Ended {
        let late = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            assert!(
                Instant::now() < late,
                "still running after {limit:?}: {}",
                self.err.lock().expect("lock")
            );
            thread::sleep(Duration::from_millis(5));
        };
        for reader in self.readers.drain(..) {
            reader.join().expect("reader");
        }
        let said = |s: &Said| s.lock().expect("lock").clone();
        Ended { code: status.code(), out: said(&self.out), err: said(&self.err) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `serve`.
pub(crate) struct Served {
    pub(crate) process: Running,
    /// HOST:PORT
    pub(crate) address: String,
    /// HOST:PORT/NAME
    pub(crate) segment: String,
    pub(crate) token: String,
}

/// Serves what these words say under the name `seg`.
#[track_caller]
pub(crate) fn serve(words: &[&str]) -> Served {
    let process = start(&[&["serve", "--listen", "127.0.0.1:0", "--name", "seg"], words].concat());
    let line =
        until("the line of `serve`", || process.out.lock().expect("lock").lines().next().map(str::to_string));
    let parts: Vec<&str> = line.split(' ').collect();
    assert_eq!((parts.len(), parts[0]), (5, "serving"), "{line}");
    let (segment, token) = (parts[1].to_string(), parts[4].to_string());
    let address = segment.split_once('/').expect("a name").0.to_string();
    Served { process, address, segment, token }
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// A file of random-looking bytes.
pub(crate) fn file(folder: &Path, name: &str, bytes: usize) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, noise(bytes)).expect("a file");
    path
}

/// A file of zeroes that takes no room.
pub(crate) fn sparse(folder: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = folder.join(name);
    std::fs::File::create(&path).and_then(|f| f.set_len(bytes)).expect("a file");
    path
}

/// Random-looking bytes, others for every length.
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = bytes as u64 | 1;
    let mut words = Vec::with_capacity(bytes + 8);
    while words.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend_from_slice(&state.to_le_bytes());
    }
    words.truncate(bytes);
    words
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a printable path")
}

/// Names in a folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Says that a check could not be made here, so that it is counted.
pub(crate) fn skipped(what: &str) {
    println!("skipped: {what}");
    if let Some(path) = std::env::var_os("ORBIT_TE_SKIP_FILE") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut f| writeln!(f, "orbit-te-cli: {what}")).expect("the file for skips");
    }
}

/// Set to anything, this makes the expected words anew from what the program says; look at them before they are committed.
const BLESS: &str = "ORBIT_TE_BLESS";

/// Compares what the program says with the words that are expected, byte for byte.
#[track_caller]
pub(crate) fn machine_words(expected: &Path, said: &str) {
    let said = said.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(expected, &said).expect("the expected words");
    }
    let words = std::fs::read_to_string(expected).expect("the expected words");
    let differs = words.lines().zip(said.lines()).find(|(a, b)| a != b);
    assert!(words == said, "{}: first difference {differs:?}; {BLESS}=1 writes it anew", expected.display());
}
