//! Faults of memory and of the other side: memory that is taken away under a transfer, and a server that lies.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te_memory::{Access, Backing, Region, Registry};
use orbit_te_tcp::TcpConfig;
use orbit_te_transport::{OpErrorCode, OpKind, Transport, Verify};
use orbit_te_wire::{
    AuthSlot, FRAME_BYTES, Features, Frame, FrameOp, HelloReply, Incarnation, Limits, PeerId, Status,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use support::initiator::Initiator;
use support::peer::{RawLane, SESSION};
use support::proxy::Proxy;
use support::target::Target;
use support::{eventually, pattern_bytes, watchdog};

const LEN: usize = 1 << 20;
const KEPT: usize = 256 * 1024;

struct Mapped(usize);

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `cut_short`, and its region is gone.
        unsafe { libc::munmap(self.0 as *mut libc::c_void, LEN) };
    }
}

/// A region over a file that was cut short after it was mapped: the bytes from `kept` on can't be touched.
fn cut_short(registry: &Registry, access: Access, kept: usize) -> Region {
    // SAFETY: plain calls with valid arguments, whose answers are checked.
    let at = unsafe {
        let fd = libc::memfd_create(c"cut-short".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        assert_eq!(libc::ftruncate(fd, LEN as i64), 0);
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), LEN, both, libc::MAP_SHARED, fd, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::ftruncate(fd, kept as i64), 0);
        libc::close(fd);
        at
    };
    let base = NonNull::new(at.cast()).unwrap();
    // SAFETY: the range is mapped until the owner is dropped. Not all of it is backed, which is what is tested: only the
    // kernel touches it, and answers with an error.
    let backing = unsafe { Backing::external(base, LEN, Mapped(at as usize)) };
    registry.register(backing.unwrap(), access).unwrap()
}

/// A write into a served file that was cut short: told as such, the lane goes on, and nothing waits for a deadline.
#[test]
fn the_target_cannot_touch_its_memory() {
    let _dog = watchdog("the_target_cannot_touch_its_memory", Duration::from_secs(60));
    for length in [KEPT + 1, KEPT + 65_536, LEN] {
        let target = Target::local();
        let region = cut_short(&target.registry, Access::SHARED, KEPT);
        let good = target.region(64, Access::SHARED, |_| 0);
        let mut lane = RawLane::open(target.at, SESSION, 1);
        lane.stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(lane.write(&region, 0, &vec![7; length]), Status::MemoryFault, "{length} bytes");
        assert_eq!(lane.write(&good, 0, b"next"), Status::Ok);
        assert_eq!(lane.write(&region, 0, &vec![7; KEPT]), Status::Ok, "the part that is there");
        target.registry.retire(&region, Duration::from_secs(5)).unwrap();
    }
}

/// A read of a served file that was cut short ends, and other lanes go on.
#[test]
fn the_target_cannot_read_its_memory() {
    let _dog = watchdog("the_target_cannot_read_its_memory", Duration::from_secs(60));
    let target = Target::local();
    let region = cut_short(&target.registry, Access::SHARED, KEPT);
    let mut initiator = Initiator::new(TcpConfig::default());
    let link = initiator.connect(target.me.peer, target.at, SESSION);
    let local = initiator.region(&vec![0; LEN]);
    let token = initiator.begin(OpKind::Read, link, &local, &region, 0);
    let completion = initiator.wait(token, Duration::from_secs(10));
    assert!(completion.result.is_err(), "{completion:?}");
    let small = initiator.region(&[0; 64]);
    let token = initiator.begin(OpKind::Read, link, &small, &region, 0);
    assert_eq!(initiator.wait(token, Duration::from_secs(10)).result, Ok(()));
    target.registry.retire(&region, Duration::from_secs(5)).unwrap();
}

/// Our own memory can't be touched: the op ends with an error of its own, and the link serves the next. What is verified is read by this
/// side as well, before the kernel does at its end and after it elsewhere: memory gone there ends no process.
#[test]
fn the_initiator_cannot_touch_its_memory() {
    let _dog = watchdog("the_initiator_cannot_touch_its_memory", Duration::from_secs(120));
    for verify in [Verify::Off, Verify::OnVanishing] {
        for kept in [KEPT, LEN - 64 * 1024, LEN - 8 * 1024, 4096, 0] {
            check_own_memory_gone(verify, kept);
        }
    }
}

fn check_own_memory_gone(verify: Verify, kept: usize) {
    let target = Target::local();
    let region = target.region(LEN, Access::SHARED, |_| 9);
    let mut initiator = Initiator::new(TcpConfig { lanes: 1, ..TcpConfig::default() });
    let link = initiator.connect(target.me.peer, target.at, SESSION);
    let bad = cut_short(&initiator.registry, Access::LOCAL, kept);
    let good = initiator.region(&pattern_bytes(3, 0, 1000));
    initiator.verify = verify;
    for kind in [OpKind::Read, OpKind::Write] {
        let what = format!("{kind:?}, {verify:?}, {kept} bytes are kept");
        let token = initiator.begin(kind, link, &bad, &region, 0);
        let completion = initiator.wait(token, Duration::from_secs(10));
        let code = completion.result.map_err(|e| e.code);
        match kind {
            OpKind::Read => assert_eq!(code, Err(OpErrorCode::LocalMemoryFault), "{what}"),
            // The lane is broken in the middle of the payload, and the target has fenced it.
            OpKind::Write => assert_eq!(code, Err(OpErrorCode::LinkBroken), "{what}"),
        }
        // Of less, the kernel may take nothing, and then nothing came to the target.
        assert!(completion.touched || kept < KEPT, "{what}");
        eventually("no request is left at the target", Duration::from_secs(5), || region.leases() == 0);
        let token = initiator.begin(OpKind::Write, link, &good, &region, 0);
        assert_eq!(initiator.wait(token, Duration::from_secs(10)).result, Ok(()), "{what}");
        let mut came = vec![0; 1000];
        region.read_at(0, &mut came).unwrap();
        assert!(came == pattern_bytes(3, 0, 1000), "{what}");
    }
}

/// A server that takes each lane, agrees to these limits, and then does as it likes.
fn server(limits: Limits, talk: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut said = [0; 512];
            let _ = stream.read(&mut said);
            let accepted = HelloReply::Accepted {
                version: 1,
                peer: PeerId(5),
                incarnation: Incarnation(1),
                session: SESSION,
                features: Features::OURS,
                limits,
                auth: AuthSlot::default(),
            };
            let _ = stream.write_all(&accepted.encode().unwrap());
            let talk = talk.clone();
            std::thread::spawn(move || talk(stream));
        }
    });
    at
}

/// A server that calls a write done when it has taken its header alone. The op is not told to be: the rest of it is still to be sent
/// from memory that would be the user's again.
#[test]
fn a_server_that_answers_too_soon() {
    const BYTES: usize = 64 << 20;
    let _dog = watchdog("a_server_that_answers_too_soon", Duration::from_secs(60));
    let limits = Limits { payload_bytes: BYTES as u64, ..Limits::default() };
    let config = TcpConfig {
        lanes: 1,
        chunk_bytes: BYTES as u64,
        limits,
        fence_timeout: Duration::from_millis(100),
        ..TcpConfig::default()
    };
    let theirs = Target::local().region(BYTES, Access::SHARED, |_| 0);
    for list in [false, true] {
        let at = server(limits, |mut stream| {
            let mut header = [0; FRAME_BYTES];
            let Ok(()) = stream.read_exact(&mut header) else { return };
            let request = Frame::decode(&header).unwrap();
            if request.op != FrameOp::Fence {
                let _ = stream.write_all(&request.answer(FrameOp::WriteDone, Status::Ok).encode());
            }
            std::thread::sleep(Duration::from_secs(30));
        });
        let mut initiator = Initiator::new(config);
        let link = initiator.connect(PeerId(5), at, SESSION);
        let local = initiator.region(&vec![1; BYTES]);
        let token = if list {
            let half = BYTES as u64 / 2;
            initiator.begin_list(OpKind::Write, link, &local, &theirs, &[(0, half), (half, half)])
        } else {
            initiator.begin(OpKind::Write, link, &local, &theirs, 0)
        };
        let completion = initiator.wait(token, Duration::from_secs(10));
        // It was asked for a fence as well, and did not answer.
        let code = completion.result.map_err(|e| e.code);
        assert_eq!(code, Err(OpErrorCode::LinkBrokenUnfenced), "list: {list}");
        assert!(completion.touched, "list: {list}");
    }
}

/// A server whose answer claims limits beyond all memory costs us none of it.
#[test]
fn a_server_with_boundless_limits() {
    let _dog = watchdog("a_server_with_boundless_limits", Duration::from_secs(60));
    let huge = Limits {
        control_bytes: u32::MAX,
        payload_bytes: u64::MAX,
        lane_requests: u32::MAX,
        session_lanes: u32::MAX,
        notification_bytes: u32::MAX,
    };
    let at = server(huge, |mut stream| {
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let mut initiator = Initiator::new(TcpConfig::default());
    let link = initiator.connect(PeerId(5), at, SESSION);
    initiator.poll_until("the link is up", Duration::from_secs(10), |i| !i.events.is_empty());
    let resident = resident_bytes();
    assert!(resident < 512 << 20, "{resident} bytes are resident");
    initiator.transport.disconnect(link, Instant::now());
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// "For ever" is a time like any other.
#[test]
fn times_without_end() {
    let _dog = watchdog("times_without_end", Duration::from_secs(60));
    let ever = Duration::MAX;
    let config = TcpConfig {
        connect_timeout: ever,
        unreachable_after: ever,
        reconnect_pause: (ever, ever),
        cancel_grace: ever,
        fence_timeout: ever,
        keepalive: ever,
        ..TcpConfig::default()
    };
    let target = Target::start("127.0.0.1:0", config);
    let region = target.region(64, Access::SHARED, |_| 0);
    let mut initiator = Initiator::new(config);
    let link = initiator.connect(target.me.peer, target.at, SESSION);
    let local = initiator.region(b"for ever");
    let token = initiator.begin(OpKind::Write, link, &local, &region, 0);
    assert_eq!(initiator.wait(token, Duration::from_secs(10)).result, Ok(()));
    let token = initiator.begin(OpKind::Write, link, &local, &region, 0);
    let given_up = orbit_te_transport::Token(token);
    initiator.transport.cancel(given_up..=given_up, Instant::now());
    initiator.wait(token, Duration::from_secs(10));
    target.drop_session(SESSION);
    let down =
        |i: &Initiator| i.events.iter().any(|e| matches!(e, orbit_te_transport::Event::LinkDown { .. }));
    initiator.poll_until("the link is down", Duration::from_secs(10), down);
}

/// A process that was stopped while it made its lanes: its peer is not to blame, whatever is overdue when it goes on, and even if
/// the peer has given up the first attempt.
#[test]
fn stopped_while_making_lanes() {
    let (soon, late) = (Duration::from_millis(200), Duration::from_secs(2));
    check_stopped_while_making_lanes(soon, false);
    check_stopped_while_making_lanes(soon, true);
    // It goes on just after the time for a lane is over.
    check_stopped_while_making_lanes(late, false);
}

fn check_stopped_while_making_lanes(connect_timeout: Duration, given_up: bool) {
    let _dog = watchdog("stopped_while_making_lanes", Duration::from_secs(60));
    let target = Target::local();
    let remote = target.region(LEN, Access::SHARED, |at| at as u8);
    let unreachable_after = Duration::from_secs(1);
    let config = TcpConfig { connect_timeout, unreachable_after, ..TcpConfig::default() };
    let mut initiator = Initiator::new(config);
    let proxy = Proxy::start(target.at);
    proxy.turn_away(given_up);
    let link = initiator.connect(target.me.peer, proxy.at, SESSION);
    let local = initiator.region(&vec![0; LEN]);
    // Nobody polls it, as if the process were stopped. A timer of it is later than a second then.
    std::thread::sleep(connect_timeout.max(Duration::from_millis(1200)) + Duration::from_millis(300));
    proxy.turn_away(false);
    initiator.poll();
    let token = initiator.begin(OpKind::Read, link, &local, &remote, 0);
    let completion = initiator.wait(token, Duration::from_secs(10));
    assert_eq!((completion.result, completion.bytes), (Ok(()), LEN as u64));
}
