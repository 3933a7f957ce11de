//! Either end of a connection, written by hand: it says what it likes. Rule: it waits for an answer, and never for ever.

use super::SOON;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    accept4, bind, connect, listen, recvmsg, sendmsg, socket,
};
use nix::unistd::ftruncate;
use orbit_te_shm::{SameHostAddress, Way};
use orbit_te_wire::SessionId;
use orbit_te_wire::same_host::{MAX_BYTES, Place, SameHost, VERSION};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// One end.
pub struct Raw(OwnedFd);

/// What came.
#[derive(Debug)]
pub enum Came {
    Message(SameHost, Option<OwnedFd>),
    /// The other end is closed.
    End,
}

fn abstract_name(place: &Place) -> UnixAddr {
    match place {
        Place::Abstract(name) => UnixAddr::new_abstract(name).unwrap(),
        Place::Path(_) => panic!("the tests meet by name"),
    }
}

fn new_socket() -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap()
}

impl Raw {
    /// At somebody's door, with nothing said.
    pub fn at(address: &SameHostAddress) -> Raw {
        let fd = new_socket();
        let until = Instant::now() + SOON;
        while let Err(error) = connect(fd.as_raw_fd(), &abstract_name(&address.places[0])) {
            // So many wait there already.
            assert!(error == nix::errno::Errno::EAGAIN && Instant::now() < until, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        Raw(fd)
    }

    /// Let in.
    pub fn guest(address: &SameHostAddress, way: Way) -> (Raw, OwnedFd) {
        let raw = Raw::at(address);
        raw.say(&knock(address, way), &[]);
        match raw.hear() {
            Came::Message(SameHost::Welcome { answer, .. }, Some(file)) => {
                assert_eq!(answer, address.answer);
                (raw, file)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn send(&self, bytes: &[u8], fds: &[RawFd]) -> nix::Result<usize> {
        let rights = [ControlMessage::ScmRights(fds)];
        let beside = if fds.is_empty() { &rights[..0] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(bytes)], beside, flags, None)
    }

    /// Says a message; the other end may have closed.
    pub fn say(&self, message: &SameHost, fds: &[RawFd]) {
        let _ = self.send(&message.encode().unwrap(), fds);
    }

    /// What comes next, within a limit.
    pub fn hear_within(&self, limit: Duration) -> Option<Came> {
        let until = Instant::now() + limit;
        loop {
            let mut bytes = [0; MAX_BYTES];
            let mut beside = nix::cmsg_space!([RawFd; 4]);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
            match recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut beside), flags) {
                Ok(got) => {
                    let mut fds = Vec::new();
                    for message in got.cmsgs().unwrap() {
                        if let ControlMessageOwned::ScmRights(raw) = message {
                            // SAFETY: the kernel has just made these descriptors, and nobody else knows them.
                            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
                        }
                    }
                    let count = got.bytes;
                    if count == 0 {
                        return Some(Came::End);
                    }
                    assert!(fds.len() < 2);
                    return Some(Came::Message(SameHost::decode(&bytes[..count]).unwrap(), fds.pop()));
                }
                Err(nix::errno::Errno::EAGAIN) if Instant::now() > until => return None,
                Err(nix::errno::Errno::EAGAIN) => std::thread::sleep(Duration::from_micros(100)),
                // Told once, when the other end closed with something unread; what it said before comes next.
                Err(nix::errno::Errno::ECONNRESET) => {}
                Err(_) => return Some(Came::End),
            }
        }
    }

    pub fn hear(&self) -> Came {
        self.hear_within(SOON).expect("an answer")
    }

    /// The words with which it is turned away, if there are any; the connection ends.
    pub fn farewell(&self) -> String {
        let mut words = String::new();
        loop {
            match self.hear() {
                Came::Message(SameHost::Farewell { reason }, None) => words = reason,
                Came::Message(..) => {}
                Came::End => return words,
            }
        }
    }
}

/// The knock of somebody who was told where.
pub fn knock(address: &SameHostAddress, way: Way) -> SameHost {
    SameHost::Knock { version: VERSION, session: address.session, ask: address.ask, way }
}

/// A door that is written by hand, for importers.
pub struct RawDoor {
    fd: OwnedFd,
    pub address: SameHostAddress,
}

impl RawDoor {
    pub fn new() -> RawDoor {
        static DOORS: AtomicU32 = AtomicU32::new(0);
        let number = DOORS.fetch_add(1, Ordering::Relaxed);
        let place = Place::Abstract(format!("orbit-te-raw-{}-{number}", std::process::id()).into_bytes());
        let fd = new_socket();
        bind(fd.as_raw_fd(), &abstract_name(&place)).unwrap();
        listen(&fd, Backlog::new(16).unwrap()).unwrap();
        let address = SameHostAddress { places: vec![place], session: SessionId(1), ask: 11, answer: 22 };
        RawDoor { fd, address }
    }

    /// Somebody who waits there.
    pub fn accept(&self) -> Option<Raw> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        accept4(&self.fd, flags).ok().map(Raw)
    }
}

/// A file in memory of so many bytes, with these seals.
pub fn memory_file(bytes: u64, seals: SealFlag) -> OwnedFd {
    let file = memfd_create("orbit-te-raw", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes as i64).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file
}

/// The seals of a file as an honest owner gives it.
pub const SEALED: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);
