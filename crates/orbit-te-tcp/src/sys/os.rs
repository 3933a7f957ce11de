//! The network of the operating system: mio's event queue, and socket calls by address. Rule: adds nothing to a socket call but
//! the call.

use super::io;
use super::io::IoRange;
use crate::config::TcpConfig;
use crate::net::{Net, Ready, Stream, StreamSigns};
use crate::socket;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{Error, ErrorKind, Result};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

/// Probes of a silent connection in a row that tell more than one lost packet.
const UNANSWERED_PROBES: u8 = 2;
/// Twice the round trip, and at least this: receivers may wait for 40 ms before they acknowledge, and machines are busy.
const ACKNOWLEDGED_MS: u32 = 200;
/// The kernel's number for a connection that is being made.
const SYN_SENT: u8 = 2;
/// Events taken from the kernel at once.
const EVENTS: usize = 256;

/// The network of the operating system.
#[derive(Debug)]
pub struct Os {
    poll: Poll,
    events: Events,
}

impl Os {
    /// An event queue of its own.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn new() -> Result<Os> {
        Ok(Os { poll: Poll::new()?, events: Events::with_capacity(EVENTS) })
    }
}

impl Net for Os {
    type Stream = TcpStream;

    fn connect(&mut self, to: SocketAddr, config: &TcpConfig) -> Result<TcpStream> {
        let stream = TcpStream::connect(to)?;
        socket::prepare(&stream, &to, config)?;
        Ok(stream)
    }

    fn adopt(&mut self, stream: &TcpStream, from: SocketAddr, config: &TcpConfig) -> Result<()> {
        socket::prepare(stream, &from, config)
    }

    fn register(&mut self, stream: &mut TcpStream, slot: usize) -> Result<()> {
        self.poll.registry().register(stream, Token(slot), Interest::READABLE | Interest::WRITABLE)
    }

    fn deregister(&mut self, stream: &mut TcpStream) {
        // A failure only leaves a dead entry, until the socket is closed.
        let _ = self.poll.registry().deregister(stream);
    }

    fn take_ready(&mut self, mut each: impl FnMut(usize, Ready)) {
        // An interrupted call found nothing; a failing one will fail again, and lanes then end by their deadlines.
        if self.poll.poll(&mut self.events, Some(Duration::ZERO)).is_err() {
            return;
        }
        for event in &self.events {
            let ready = Ready {
                readable: event.is_readable(),
                writable: event.is_writable(),
                read_closed: event.is_read_closed(),
                failed: event.is_error(),
            };
            each(event.token().0, ready);
        }
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.poll.as_raw_fd())
    }

    fn lane_number(&mut self) -> Result<u32> {
        getrandom::u32().map_err(Error::from)
    }
}

/// What the kernel knows of the other end of a TCP socket; none for other descriptors.
pub fn signs(socket: &impl AsFd) -> Option<StreamSigns> {
    let info = io::tcp_info(socket.as_fd().as_raw_fd()).ok()?;
    let ms = |value: u32| Duration::from_millis(u64::from(value));
    let again = info.tcpi_retransmits > 0;
    // A window that stays shut is probed as well, but those probes are answered.
    // Within this time a host that is there acknowledges what came.
    let due_ms = ACKNOWLEDGED_MS.max(info.tcpi_rtt / 500);
    let just_now = info.tcpi_last_ack_recv < due_ms;
    // Bytes that wait before a window which has room for them: they can't even leave this host.
    let all_acknowledged = info.tcpi_unacked == 0;
    let waits = info.tcpi_notsent_bytes > 0;
    let has_room = waits && all_acknowledged && info.tcpi_snd_wnd >= info.tcpi_snd_mss;
    let overdue = !just_now && info.tcpi_last_data_sent >= due_ms;
    let stuck = has_room && overdue;
    let unanswered =
        ((again || overdue) && !all_acknowledged) || info.tcpi_probes >= UNANSWERED_PROBES || stuck;
    // Bytes that the other end had no memory for are sent twice, which looks like more. It is told from that by its window, which has
    // been shut since then: it is looked at after a time that doubles.
    let shut_for = match info.tcpi_backoff {
        0 => Duration::ZERO,
        looks => Duration::from_micros(u64::from(info.tcpi_rto) << looks.min(16)),
    };
    let acknowledges =
        info.tcpi_state != SYN_SENT && !unanswered && ((all_acknowledged && !has_room) || just_now);
    Some(StreamSigns {
        unacknowledged_for: match info.tcpi_state {
            SYN_SENT => Some(Duration::MAX),
            _ => unanswered.then(|| ms(info.tcpi_last_ack_recv)),
        },
        acknowledged: acknowledges.then(|| ms(info.tcpi_last_ack_recv)),
        received: ms(info.tcpi_last_data_recv),
        took: (!again).then(|| ms(info.tcpi_last_data_sent) + shut_for),
        waits,
    })
}

impl Stream for TcpStream {
    unsafe fn send(&mut self, ranges: &mut [IoRange]) -> Result<usize> {
        // SAFETY: the caller's promise, handed on.
        unsafe { io::send(self.as_raw_fd(), ranges) }
    }

    unsafe fn receive(&mut self, ranges: &mut [IoRange]) -> Result<usize> {
        // SAFETY: the caller's promise, handed on.
        unsafe { io::receive(self.as_raw_fd(), ranges) }
    }

    fn set_low_water(&mut self, bytes: u32) -> Result<()> {
        io::set_low_water(self.as_raw_fd(), i32::try_from(bytes).unwrap_or(i32::MAX))
    }

    fn connected(&mut self) -> Result<bool> {
        if let Some(error) = self.take_error()? {
            return Err(error);
        }
        match self.peer_addr() {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotConnected => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn signs(&self) -> Option<StreamSigns> {
        signs(self)
    }

    fn shutdown(&mut self, how: Shutdown) -> Result<()> {
        TcpStream::shutdown(self, how)
    }
}
