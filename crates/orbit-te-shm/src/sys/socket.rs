//! Unix sockets that keep the bounds of messages and carry descriptors. Rule: nothing here blocks.

use nix::errno::Errno;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials, accept4,
    getsockopt, listen, sendmsg, socket,
};
use orbit_te_wire::same_host::{MAX_BYTES, Place};
use std::ffi::OsStr;
use std::io::{self, IoSlice};
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
        let (bytes, cut, mut fds) = match self.receive_all(into) {
            Ok(got) => got,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => return Ok(Received::Nothing),
                // Told once, when the other end closed with something unread; what it said before is still there.
                Some(libc::ECONNRESET) => match self.receive_all(into) {
                    Ok(got) => got,
                    Err(_) => return Ok(Received::End),
                },
                Some(libc::EPIPE) => return Ok(Received::End),
                _ => return Err(error),
            },
        };
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

    /// What `recvmsg` gives: how many bytes, whether anything was cut off, and every descriptor that came, also of what was cut off.
    fn receive_all(&self, into: &mut [u8; MAX_BYTES]) -> io::Result<(usize, bool, Vec<OwnedFd>)> {
        // Room for two, aligned as the kernel's headers are: whoever sends more loses the rest, and is refused.
        let mut beside = [0u64; 4];
        let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: a message header is numbers and pointers, for which zeros are good values.
        let mut head: libc::msghdr = unsafe { std::mem::zeroed() };
        (head.msg_iov, head.msg_iovlen) = (&mut part, 1);
        head.msg_control = beside.as_mut_ptr().cast();
        // SAFETY: computes a number from a number.
        head.msg_controllen = unsafe { libc::CMSG_SPACE(2 * size_of::<RawFd>() as u32) } as _;
        // SAFETY: all that the header names lives until the end of this function, and is as long as it says.
        let got = unsafe {
            libc::recvmsg(self.fd.as_raw_fd(), &mut head, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)
        };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut fds = Vec::new();
        // SAFETY: the kernel has filled the header and `beside`, which these walk along; each descriptor that it names it has just put
        // into this process, and nobody else knows it.
        unsafe {
            let mut at = libc::CMSG_FIRSTHDR(&head);
            while let Some(message) = at.as_ref() {
                if (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let bytes = message.cmsg_len - libc::CMSG_LEN(0) as usize;
                    let first = libc::CMSG_DATA(at).cast::<RawFd>();
                    let all = (0..bytes / size_of::<RawFd>()).map(|place| first.add(place).read_unaligned());
                    fds.extend(all.map(|fd| OwnedFd::from_raw_fd(fd)));
                }
                at = libc::CMSG_NXTHDR(&head, at);
            }
        }
        let cut = head.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0;
        Ok((got as usize, cut, fds))
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
