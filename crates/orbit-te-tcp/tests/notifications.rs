//! Notifications on a lane: what a mailbox says is answered, what is none closes the lane, one that drips holds nobody up, and one whose
//! lane breaks may be sent again.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod support;

use orbit_te_memory::{LocalKey, LocalSpan};
use orbit_te_tcp::{Identity, TcpAddress, TcpConfig, TcpTransport};
use orbit_te_transport::{LinkId, Mailbox, Notice, OpErrorCode, Progress, Token, Transport, Undelivered};
use orbit_te_wire::{Frame, FrameOp, Generation, Limits, RegionId, SessionId, Status, notification};
use std::io::Write;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use support::peer::{RawLane, SESSION};
use support::target::Target;
use support::{eventually, watchdog};

type Delivered = (SessionId, u64, String, Vec<u8>);

/// Keeps all that comes, and answers by the name.
#[derive(Default)]
struct Kept(Mutex<Vec<Delivered>>);

impl Mailbox for Kept {
    fn deliver(
        &self,
        session: SessionId,
        number: u64,
        name: &str,
        payload: &[u8],
    ) -> Result<(), Undelivered> {
        self.0.lock().unwrap().push((session, number, name.to_string(), payload.to_vec()));
        match name {
            "full" => Err(Undelivered::QueueFull),
            "deaf" => Err(Undelivered::NobodyListens),
            "closing" => Err(Undelivered::ShuttingDown),
            _ => Ok(()),
        }
    }
}

fn target(limits: Limits) -> (Target, Arc<Kept>) {
    let kept = Arc::new(Kept::default());
    let config = TcpConfig { limits, ..TcpConfig::default() };
    (Target::delivering("127.0.0.1:0", config, Some(kept.clone())), kept)
}

fn notify(id: u64, number: u64, length: u64) -> Frame {
    let (op, status, region, generation) = (FrameOp::Notify, Status::Ok, RegionId(number), Generation(0));
    Frame { op, status, id, region, generation, key: 0, offset: 0, length, payload_crc: 0, trailer: false }
}

#[test]
fn the_mailbox_answers() {
    let _dog = watchdog("the_mailbox_answers", Duration::from_secs(60));
    let (target, kept) = target(Limits::default());
    let mut lane = RawLane::open(target.at, SESSION, 1);
    let mut id = 10;
    let mut check = |name: &str, payload: &[u8], status| {
        id += 1;
        let bytes = notification::encode(name, payload).unwrap();
        lane.send(&notify(id, 1000 + id, bytes.len() as u64), &bytes);
        let answer = lane.answer();
        assert_eq!((answer.op, answer.id, answer.region), (FrameOp::NotifyDone, id, RegionId(1000 + id)));
        assert_eq!(answer.status, status, "{name}");
        let got = kept.0.lock().unwrap().pop();
        assert_eq!(got, Some((SESSION, 1000 + id, name.to_string(), payload.to_vec())));
    };
    check("n", &[1, 2, 3], Status::Ok);
    check("", &[], Status::Ok);
    check(&"n".repeat(255), &vec![7; 65_536], Status::Ok);
    check("full", &[1], Status::QueueFull);
    check("deaf", &[1], Status::NobodyListens);
    check("closing", &[1], Status::ShuttingDown);
    check("n", &[4], Status::Ok);
}

#[test]
fn nobody_listens() {
    let _dog = watchdog("nobody_listens", Duration::from_secs(60));
    let target = Target::local();
    let mut lane = RawLane::open(target.at, SESSION, 1);
    lane.send(&notify(1, 1, 1), &[0]);
    assert_eq!(lane.answer().status, Status::NobodyListens);
}

/// What is no notification closes the lane, and nothing is delivered; other lanes go on, and so does who drips.
#[test]
fn what_is_none() {
    let _dog = watchdog("what_is_none", Duration::from_secs(60));
    let limits = Limits { notification_bytes: 100, ..Limits::default() };
    let (target, kept) = target(limits);
    let mut drips = RawLane::open(target.at, SESSION, 1000);
    drips.send(&notify(1, 7, 3), &[1]);
    let mut number = 0;
    let mut check = |what: &str, length: u64, bytes: &[u8]| {
        number += 1;
        let mut lane = RawLane::open(target.at, SESSION, number);
        // The target may close before it has taken all of it.
        let _ = lane.stream.write_all(&[&notify(1, 1, length).encode()[..], bytes].concat());
        assert!(lane.is_closed(), "{what}: the lane is still open");
        assert_eq!(kept.0.lock().unwrap().len(), 0, "{what}");
    };
    check("no bytes", 0, &[]);
    check("over what was agreed", 1 + 255 + 101, &[0; 357]);
    check("the longest there is", u64::MAX, &[0; 100]);
    check("a cut name", 2, &[2, b'n']);
    check("a name that is no text", 2, &[1, 0xff]);
    for byte in [b"n", b"x"] {
        std::thread::sleep(Duration::from_millis(20));
        drips.stream.write_all(byte).unwrap();
    }
    assert_eq!(drips.answer().status, Status::Ok);
    assert_eq!(kept.0.lock().unwrap().pop(), Some((SESSION, 7, "n".to_string(), vec![b'x'])));
}

/// One that is under way when its lane ends is broken, and its number can be sent again; one for no link, of no length, or over the
/// limit ends at once.
#[test]
fn sent_by_a_transport() {
    let _dog = watchdog("sent_by_a_transport", Duration::from_secs(60));
    let (target, kept) = target(Limits::default());
    let registry = orbit_te_memory::Registry::new();
    let config = TcpConfig { lanes: 1, chunk_bytes: 16, ..TcpConfig::default() };
    let mut transport = TcpTransport::new(config, Identity::random().unwrap(), &registry).unwrap();
    let address = TcpAddress { addresses: vec![target.at], session: SESSION }.encode().unwrap();
    let link = transport.connect(target.me.peer, &address, Instant::now()).unwrap();
    let mut progress = Progress::with_capacity(8);
    // Longer than a part of an op is: it goes whole.
    let bytes = notification::encode("n", &[9; 5000]).unwrap();
    let mut send = |token: u64, link: LinkId, length: u64| {
        let span = LocalSpan { address: bytes.as_ptr() as u64, length, key: LocalKey::default() };
        let notice = Notice { link, token: Token(token), number: token, bytes: span };
        // SAFETY: the bytes live until the end of the test, and each completion is waited for.
        assert!(unsafe { transport.notify(&notice, Instant::now()) });
        let began = Instant::now();
        while progress.completions.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(20), "it does not end");
            transport.poll(Instant::now(), 8, &mut progress);
        }
        let completion = progress.completions.pop().unwrap();
        assert_eq!(completion.token, Token(token));
        completion.result.map_err(|error| error.code)
    };
    let whole = bytes.len() as u64;
    assert_eq!(send(1, link, whole), Ok(()));
    assert_eq!(send(2, link, 0), Err(OpErrorCode::BadLength));
    assert_eq!(send(3, link, 1 + 255 + 65_536 + 1), Err(OpErrorCode::BadLength));
    let strange = LinkId { slot: 9, generation: 9 };
    assert_eq!(send(4, strange, whole), Err(OpErrorCode::NoLink));
    // Not all of it is text: the target closes the lane, and says nothing.
    let broken = send(5, link, 1);
    assert!(matches!(broken, Err(OpErrorCode::LinkBroken | OpErrorCode::LinkBrokenUnfenced)), "{broken:?}");
    assert_eq!(send(5, link, whole), Ok(()));
    let numbers: Vec<u64> = kept.0.lock().unwrap().iter().map(|(_, number, ..)| *number).collect();
    assert_eq!(numbers, [1, 5]);
    eventually("the lane", Duration::from_secs(5), || target.lanes() == 1);
}
