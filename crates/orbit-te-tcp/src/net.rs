//! What the transport needs of a network: connections, their readiness, and bytes by address. Rule: nothing here blocks or reads
//! a clock, so that the same transport runs over the operating system ([`Os`]) and over a network in memory.

#![allow(unsafe_code)]

use crate::config::TcpConfig;
pub use crate::sys::{IoRange, Os, signs};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::RawFd;
use std::time::Duration;

/// What has happened to a registered stream since its last event. An event is told once; what it said holds until a call
/// answers [`io::ErrorKind::WouldBlock`] or moves less than it might have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ready {
    /// Bytes, or the end of the stream, may be there.
    pub readable: bool,
    /// There may be room for bytes; the first such event of a stream that connects tells that it has ended, one way or the other.
    pub writable: bool,
    /// The peer sends no more.
    pub read_closed: bool,
    /// The stream has failed; the next call says how.
    pub failed: bool,
}

/// What a stream knows of its other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamSigns {
    /// For how long the other end's host has acknowledged nothing, if something was sent, and an answer is overdue.
    /// [`Duration::MAX`] for a stream that has never stood.
    pub unacknowledged_for: Option<Duration>,
    /// How long ago the other end's host acknowledged something, if that was all that was sent, or was just now.
    pub acknowledged: Option<Duration>,
    /// How long ago bytes came.
    pub received: Duration,
    /// At most so long ago the other end made room for more bytes; none while old ones are sent again.
    pub took: Option<Duration>,
    /// Whether bytes wait in this side's kernel for room at the other end.
    pub waits: bool,
}

/// Makes streams and tells when they are ready. Belongs to one transport.
pub trait Net: Send {
    /// Its connections.
    type Stream: Stream;

    /// Begins to connect, and sets the stream up for lane traffic.
    ///
    /// # Errors
    /// What the network says at once. A connection that fails later says so by [`Stream::connected`].
    fn connect(&mut self, to: SocketAddr, config: &TcpConfig) -> io::Result<Self::Stream>;

    /// Sets a stream that a listener has taken up for lane traffic.
    ///
    /// # Errors
    /// When the stream can't be used for it.
    fn adopt(&mut self, stream: &Self::Stream, from: SocketAddr, config: &TcpConfig) -> io::Result<()>;

    /// Events of this stream are told under this slot from now on, beginning with what is ready already.
    ///
    /// # Errors
    /// When the network has no room for it.
    fn register(&mut self, stream: &mut Self::Stream, slot: usize) -> io::Result<()>;

    /// Tells no more events of this stream. Called directly before it is dropped.
    fn deregister(&mut self, stream: &mut Self::Stream);

    /// Gives out what has become ready, without waiting.
    fn take_ready(&mut self, each: impl FnMut(usize, Ready));

    /// Readable while [`Net::take_ready`] would give something out; none if nobody can sleep on this network.
    fn descriptor(&self) -> Option<RawFd>;

    /// A number for a new lane, which nobody guesses and no lane of the session had before, but for a chance that can be
    /// neglected.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    fn lane_number(&mut self) -> io::Result<u32>;
}

/// A connection: never blocks; dropping it closes it, and nothing is sent from it or received by it afterwards.
pub trait Stream: Read + Write + Send {
    /// Sends from the ranges in order; how many bytes were taken.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is no room; `EFAULT` for a range that can't be read; otherwise the stream is broken.
    ///
    /// # Safety
    /// Every range is readable for the length of the call, or its memory is such that the kernel answers `EFAULT`; ranges over a
    /// region are covered by a lease.
    unsafe fn send(&mut self, ranges: &mut [IoRange]) -> io::Result<usize>;

    /// Receives into the ranges in order; how many bytes came, where zero means that the peer has closed.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is nothing; `EFAULT` for a range that can't be written; otherwise the stream is
    /// broken.
    ///
    /// # Safety
    /// Every range is writable for the length of the call, or its memory is such that the kernel answers `EFAULT`; ranges over a
    /// region are covered by a lease.
    unsafe fn receive(&mut self, ranges: &mut [IoRange]) -> io::Result<usize>;

    /// Asks that the stream is called readable only when so many bytes have come, or it has ended. Advice: a network may ignore it.
    ///
    /// # Errors
    /// When the advice was not taken.
    fn set_low_water(&mut self, bytes: u32) -> io::Result<()>;

    /// Whether the stream stands; false while it connects.
    ///
    /// # Errors
    /// Why it could not be connected.
    fn connected(&mut self) -> io::Result<bool>;

    /// What is known of the other end; none where the network can't tell. May ask the system.
    fn signs(&self) -> Option<StreamSigns>;

    /// Ends one direction or both.
    ///
    /// # Errors
    /// When the stream has failed already.
    fn shutdown(&mut self, how: Shutdown) -> io::Result<()>;
}
