//! Unix sockets that keep the bounds of messages and carry descriptors. Rule: nothing here blocks.

use nix::errno::Errno;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    UnixCredentials, accept4, getsockopt, listen, recvmsg, sendmsg, socket,
};
use orbit_te_wire::same_host::{MAX_BYTES, Place};
use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
}

/// What a receive found.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, its length, and the descriptor beside it.
    Message(usize, Option<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The other end is closed, or was shut down.
    End,
}

fn address(place: &Place) -> io::Result<UnixAddr> {
    Ok(match place {
        Place::Abstract(name) => UnixAddr::new_abstract(name)?,
        Place::Path(path) => UnixAddr::new(Path::new(OsStr::from_bytes(path)))?,
    })
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// A listening socket at this place.
pub(crate) fn bind(place: &Place) -> io::Result<OwnedFd> {
    let fd = new_socket()?;
    nix::sys::socket::bind(fd.as_raw_fd(), &address(place)?)?;
    listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(fd)
}

/// A connection to this place; it stands at once or not at all.
pub(crate) fn connect(place: &Place) -> io::Result<Socket> {
    let fd = new_socket()?;
    nix::sys::socket::connect(fd.as_raw_fd(), &address(place)?)?;
    Ok(Socket { fd })
}

impl Socket {
    /// A connection that waits at a listening socket; none when none does.
    pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<Socket>> {
        match accept4(listener, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
            Ok(fd) => Ok(Some(Socket { fd })),
            Err(Errno::EAGAIN | Errno::ECONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Who made the other end: his process as this one sees it, which is 0 where it does not, his user and his group.
    pub(crate) fn credentials(&self) -> io::Result<UnixCredentials> {
        Ok(getsockopt(&self.fd, PeerCredentials)?)
    }

    /// A descriptor of the process that made the other end, which tells when it has ended; none before Linux 6.5.
    pub(crate) fn process(&self) -> Option<OwnedFd> {
        getsockopt(&self.fd, PeerPidfd).ok()
    }

    /// Sends a message, with a descriptor beside it. The kernel holds some hundreds of them; when it takes no more, that is an error.
    pub(crate) fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let fds: Vec<RawFd> = fd.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let beside = if fds.is_empty() { &rights[..0] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(self.fd.as_raw_fd(), &[IoSlice::new(bytes)], beside, flags, None)?;
        Ok(())
    }

    /// Receives one message.
    pub(crate) fn receive(&self, into: &mut [u8; MAX_BYTES]) -> io::Result<Received> {
        // Room for two: whoever sends more loses the rest, and is refused below.
        let mut beside = nix::cmsg_space!([RawFd; 2]);
        let mut parts = [IoSliceMut::new(into)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let got = match recvmsg::<()>(self.fd.as_raw_fd(), &mut parts, Some(&mut beside), flags) {
            Ok(got) => got,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Received::Nothing),
            Err(Errno::ECONNRESET | Errno::EPIPE) => return Ok(Received::End),
            Err(error) => return Err(error.into()),
        };
        let (bytes, cut) = (got.bytes, got.flags.intersects(MsgFlags::MSG_CTRUNC | MsgFlags::MSG_TRUNC));
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in got.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = message {
                // SAFETY: the kernel has just put these descriptors into this process, and nobody else knows them.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        if cut {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message or its descriptor was cut off; are descriptors used up?",
            ));
        }
        if bytes == 0 {
            return Ok(Received::End);
        }
        if fds.len() > 1 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "more than one descriptor beside a message",
            ));
        }
        Ok(Received::Message(bytes, fds.pop()))
    }

    /// Sends no more; the other end reads an end. What it sends is still received.
    pub(crate) fn finish(&self) {
        // It may be closed already.
        let _ = nix::sys::socket::shutdown(self.fd.as_raw_fd(), nix::sys::socket::Shutdown::Write);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
