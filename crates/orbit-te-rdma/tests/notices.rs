//! Notices at the edges: who has a way for them and who has none, what is no notice, and who is woken by one.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod sides;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use orbit_te_memory::Access;
use orbit_te_rdma::fake::{DeviceSpec, FakeFabric, Limits, Mode};
use orbit_te_rdma::{Completions, RdmaConfig};
use orbit_te_transport::{Arm, Counterpart, LinkId, OpErrorCode, OpKind, RemoteSpan, Transport, Undelivered};
use orbit_te_wire::notification;
use sides::*;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

fn fabric(inline: u32) -> FakeFabric {
    let fabric = FakeFabric::new(5);
    for host in 0..2u8 {
        let spec = DeviceSpec::roce("mlx5_0", [10, 0, 0, host + 1]).on_host(host.into());
        let limits = Limits { max_inline: inline, ..spec.limits };
        fabric.add_device(DeviceSpec { limits, ..spec });
    }
    fabric
}

fn note(size: usize) -> Vec<u8> {
    notification::encode("n", &vec![7; size]).unwrap()
}

/// Writes, so that the link is up, and is seen to work.
fn write(sides: &mut Sides, link: LinkId) {
    let here = sides.here.region(100, 1, Access::LOCAL).unwrap();
    let there = sides.there.region(100, 2, Access::SHARED).unwrap();
    let key = sides.there.key(&there.0, there.0.key()).unwrap();
    let token = sides.op(OpKind::Write, link, &here, 0, RemoteSpan { key, offset: 0 }, 100);
    assert_eq!(sides.end(token).result, Ok(()));
    assert_eq!(Memory::contents(&there.0, 0, 100), [1; 100]);
}

/// The longest payload, of some, that is taken and comes; none where none does.
fn longest(sides: &mut Sides, link: LinkId) -> Option<usize> {
    let mut longest = None;
    for (number, size) in (1..).zip([0, 20, 54, 55, 118, 119, 200, 246, 247, 300]) {
        if let Some(token) = sides.notice(link, number, &note(size)) {
            assert_eq!(sides.end(token).result, Ok(()), "{size} bytes");
            assert_eq!(sides.letters.taken().last().unwrap().payload, vec![7; size]);
            longest = Some(size);
        }
    }
    longest
}

#[test]
fn what_devices_take_inside_of_a_request_is_the_limit() {
    let check = |inline: u32, want: Option<usize>| {
        let fabric = fabric(inline);
        let mut sides = Sides::with_letters(&fabric, &quick()).unwrap();
        let link = sides.connect();
        write(&mut sides, link);
        assert_eq!(longest(&mut sides, link), want, "{inline} bytes inside");
        write(&mut sides, link);
        assert_eq!(fabric.violations(), Vec::<String>::new());
    };
    // Eight bytes of number, one of length, one of name.
    check(256, Some(246));
    check(255, Some(118));
    check(64, Some(54));
    check(63, None);
    check(0, None);
}

#[test]
fn both_sides_must_want_them() {
    let check = |here: bool, there: bool, mailbox: bool, want: bool| {
        let fabric = fabric(256);
        let config = |notifications| RdmaConfig { notifications, ..quick() };
        let mut sides = match mailbox {
            true => Sides::with_letters(&fabric, &config(there)).unwrap(),
            false => Sides::new(&fabric, &config(there)).unwrap(),
        };
        let other = Sides::new(&fabric, &config(here)).unwrap();
        (sides.here, sides.transport) = (other.here, other.transport);
        let link = sides.connect();
        write(&mut sides, link);
        assert_eq!(longest(&mut sides, link).is_some(), want, "{here} {there} {mailbox}");
    };
    check(true, true, true, true);
    check(false, true, true, false);
    check(true, false, true, false);
    check(true, true, false, false);
}

#[test]
fn only_so_many_peers_have_a_way_and_one_that_leaves_makes_room() {
    let fabric = fabric(256);
    let config = RdmaConfig { notice_peers: 1, ..quick() };
    let mut sides = Sides::with_letters(&fabric, &config).unwrap();
    let (first, second) = (sides.connect(), sides.connect());
    write(&mut sides, first);
    write(&mut sides, second);
    let has = |sides: &mut Sides, link| {
        let token = sides.notice(link, 1, &note(1));
        token.map(|token| sides.end(token).result).is_some_and(|result| result.is_ok())
    };
    let ways = [has(&mut sides, first), has(&mut sides, second)];
    assert!(ways[0] != ways[1], "one of two has a way: {ways:?}");
    let (with, without) = if ways[0] { (first, second) } else { (second, first) };
    sides.transport.disconnect(with, Instant::now());
    // The other one connects anew, and has it now.
    let ups = sides.ups;
    for _ in 0..100 {
        sides.step();
    }
    let session = sides.session(without);
    sides.target.disconnect(session, Instant::now());
    sides.until("it is up again", |sides| sides.ups > ups);
    assert!(has(&mut sides, without));
    assert_eq!(fabric.violations(), Vec::<String>::new());
}

#[test]
fn what_is_no_notice_ends_its_connection_alone() {
    let fabric = fabric(256);
    let mut sides = Sides::with_letters(&fabric, &quick()).unwrap();
    let good = sides.connect();
    write(&mut sides, good);
    // A name that is longer than all there is, and one that is no text.
    for bytes in [&[200, 1, 2][..], &[2, 0xff, 0xfe]] {
        let bad = sides.connect();
        write(&mut sides, bad);
        let token = sides.notice(bad, 1, bytes).unwrap();
        let ended = sides.end(token).result.unwrap_err().code;
        assert_eq!(ended, OpErrorCode::LinkBroken);
        let token = sides.notice(good, 1, &note(1)).unwrap();
        assert_eq!(sides.end(token).result, Ok(()));
    }
    assert_eq!(sides.letters.taken().len(), 1);
    assert_eq!(fabric.violations(), Vec::<String>::new());
}

fn is_readable(arm: Arm, limit: Duration) -> bool {
    let Arm::Sleep { fd: Some(fd), .. } = arm else { return true };
    // SAFETY: the descriptor is open as long as its owner lives, which is longer than this call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(limit).unwrap()).unwrap() > 0
}

/// Both sides sleep, and each is woken by what the other says: neither a notice nor its answer waits for a timer.
#[test]
fn notices_and_answers_wake_who_sleeps() {
    let fabric = fabric(256);
    // So that devices move on while nobody polls.
    fabric.set_mode(Mode::AtPost);
    let config = RdmaConfig { completions: Completions::Events, ..quick() };
    let mut sides = Sides::with_letters(&fabric, &config).unwrap();
    let link = sides.connect();
    write(&mut sides, link);
    for number in 1..20u64 {
        if number == 10 {
            sides.letters.refuse(Some(Undelivered::QueueFull));
        }
        let settled = Instant::now() + LIMIT;
        let sleep = loop {
            while sides.step() {}
            let arm = sides.target.arm(Instant::now()).unwrap();
            if matches!(arm, Arm::Sleep { .. }) && !is_readable(arm, Duration::ZERO) {
                break arm;
            }
            assert!(Instant::now() < settled, "the target does not come to rest");
        };
        let token = sides.notice(link, number, &note(3)).unwrap();
        assert!(is_readable(sleep, LIMIT), "the target is not woken by notice {number}");
        // The initiator alone: what it was told of the sending. Then it sleeps as well.
        while sides.poll() {}
        let arm = sides.transport.arm(Instant::now());
        assert!(sides.done.is_empty());
        sides.serve();
        assert!(is_readable(arm, LIMIT), "the initiator is not woken by the answer to {number}");
        assert_eq!(sides.end(token).result.is_ok(), number < 10);
    }
    assert_eq!(sides.letters.taken().len(), 9);
}
