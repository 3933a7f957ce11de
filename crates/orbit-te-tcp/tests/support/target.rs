//! A target: one thread that listens, and one that serves lanes and sleeps when there is nothing to do.

use orbit_te_memory::{Access, Backing, HostBuffer, Region, Registry};
use orbit_te_tcp::{Identity, Incoming, Listener, TcpConfig, TcpTransport};
use orbit_te_transport::{Arm, Mailbox, Progress, Transport};
use orbit_te_wire::SessionId;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the serving thread says about itself.
#[derive(Default)]
pub struct Seen {
    /// Its CPU time in nanoseconds.
    pub cpu_ns: AtomicU64,
    /// Lanes that it serves.
    pub lanes: AtomicUsize,
    /// Lanes that it was given, whether it took them or not.
    pub offered: AtomicUsize,
    /// Why it refused lanes.
    pub refusals: Mutex<Vec<String>>,
}

pub struct Target {
    pub registry: Arc<Registry>,
    pub me: Identity,
    pub at: SocketAddr,
    pub seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    doors: Sender<SessionId>,
    threads: Vec<JoinHandle<()>>,
}

impl Target {
    pub fn start(at: &str, config: TcpConfig) -> Target {
        Target::delivering(at, config, None)
    }

    /// One that hands notifications in there.
    pub fn delivering(at: &str, config: TcpConfig, mailbox: Option<Arc<dyn Mailbox>>) -> Target {
        let (registry, me) = (Registry::new(), Identity::random().unwrap());
        let listener = Listener::bind(at.parse().unwrap(), &config).unwrap();
        let at = listener.address().unwrap();
        let mut transport = TcpTransport::new(config, me, &registry).unwrap();
        if let Some(mailbox) = mailbox {
            transport.deliver_to(mailbox);
        }
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Seen::default()));
        let (lanes, inbox) = channel();
        let (doors, dropped) = channel();
        let (s1, s2, seen2) = (stop.clone(), stop.clone(), seen.clone());
        let threads = vec![
            std::thread::spawn(move || listen(listener, &lanes, &s1)),
            std::thread::spawn(move || serve(transport, &inbox, &dropped, &s2, &seen2)),
        ];
        Target { registry, me, at, seen, stop, doors, threads }
    }

    pub fn local() -> Target {
        Target::start("127.0.0.1:0", TcpConfig::default())
    }

    /// A region whose bytes are those of `fill`.
    pub fn region(&self, length: usize, access: Access, fill: impl Fn(u64) -> u8) -> Region {
        let mut buffer = HostBuffer::new(length).unwrap();
        for (at, byte) in buffer.as_mut_slice().iter_mut().enumerate() {
            *byte = fill(at as u64);
        }
        self.registry.register(Backing::from(buffer), access).unwrap()
    }

    /// Closes a session's lanes, as an engine does when the control link is gone.
    pub fn drop_session(&self, session: SessionId) {
        self.doors.send(session).unwrap();
    }

    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.seen.cpu_ns.load(Ordering::Acquire))
    }

    pub fn lanes(&self) -> usize {
        self.seen.lanes.load(Ordering::Acquire)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

fn listen(mut listener: Listener, lanes: &Sender<Incoming>, stop: &AtomicBool) {
    let mut incoming = Vec::new();
    while !stop.load(Ordering::Acquire) {
        listener.accept(Duration::from_millis(20), &mut incoming).unwrap();
        for lane in incoming.drain(..) {
            let _ = lanes.send(lane);
        }
    }
}

fn serve(
    mut transport: TcpTransport,
    inbox: &Receiver<Incoming>,
    dropped: &Receiver<SessionId>,
    stop: &AtomicBool,
    seen: &Seen,
) {
    let mut progress = Progress::with_capacity(16);
    while !stop.load(Ordering::Acquire) {
        for lane in inbox.try_iter() {
            seen.offered.fetch_add(1, Ordering::AcqRel);
            if let Err(error) = transport.adopt(lane) {
                seen.refusals.lock().unwrap().push(error.to_string());
            }
        }
        for session in dropped.try_iter() {
            transport.drop_session(session, Instant::now());
        }
        let busy = transport.poll(Instant::now(), 16, &mut progress);
        assert!(progress.is_empty(), "a target has no ops of its own");
        seen.lanes.store(transport.answering_lanes(), Ordering::Release);
        seen.cpu_ns.store(thread_cpu_ns(), Ordering::Release);
        if !busy {
            if let Arm::Sleep { fd: Some(fd), .. } = transport.arm(Instant::now()) {
                sleep_on(fd, 10);
            }
        }
    }
    transport.close(Instant::now());
    assert!(transport.is_drained());
}

/// Sleeps until the descriptor is readable, at most for so many milliseconds.
pub fn sleep_on(fd: i32, ms: i32) {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid `pollfd`, which outlives the call.
    unsafe { libc::poll(&mut poll, 1, ms) };
}

/// The CPU time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(rc, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
