//! The listening side: takes connections and reads their first message. Rule: a stranger costs a bounded number of bytes for
//! a bounded time, and delays nobody else.

use crate::config::TcpConfig;
use crate::net::Stream;
use crate::opening::{Expect, OpeningError, OpeningReader};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use orbit_te_transport::TransportError;
use orbit_te_wire::negotiate::{self, Terms};
use orbit_te_wire::{Hello, HelloReply, Limits, WireError};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
/// Connections whose first message has not come; the oldest makes room for a new one.
const MAX_PENDING: usize = 256;
/// How long a first message may take.
const OPENING_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the system has no descriptor for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection whose hello was read and whose terms are agreed, and that still waits for its answer.
#[derive(Debug)]
pub struct Incoming<S = TcpStream> {
    /// The connection, non-blocking.
    pub stream: S,
    /// Where it comes from.
    pub from: SocketAddr,
    /// What it said.
    pub hello: Hello,
    /// What was agreed.
    pub terms: Terms,
}

impl<S: Stream> Incoming<S> {
    /// Refuses it with words for the other side.
    pub fn refuse(mut self, reason: &str) {
        tracing::debug!(from = %self.from, reason, "connection refused");
        refuse(&mut self.stream, reason);
    }
}

struct Pending {
    stream: TcpStream,
    from: SocketAddr,
    reader: OpeningReader,
    since: Instant,
}

/// A listening port for control links and data lanes alike.
pub struct Listener {
    poll: Poll,
    events: Events,
    listener: TcpListener,
    waker: Arc<Waker>,
    limits: Limits,
    pending: Vec<Option<Pending>>,
    accept_at: Option<Instant>,
}

impl Listener {
    /// Listens at an address; port 0 takes a free one.
    ///
    /// # Errors
    /// [`TransportError::Io`] when the address is in use or can't be had.
    pub fn bind(address: SocketAddr, config: &TcpConfig) -> Result<Listener, TransportError> {
        let io = |source| TransportError::Io { what: format!("listening at {address}"), source };
        let poll = Poll::new().map_err(io)?;
        let mut listener = TcpListener::bind(address).map_err(io)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(io)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(io)?);
        let pending = (0..MAX_PENDING).map(|_| None).collect();
        let limits = config.limits;
        Ok(Listener {
            poll,
            events: Events::with_capacity(128),
            listener,
            waker,
            limits,
            pending,
            accept_at: None,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// [`TransportError::Io`].
    pub fn address(&self) -> Result<SocketAddr, TransportError> {
        let io = |source| TransportError::Io { what: "the listening address".into(), source };
        self.listener.local_addr().map_err(io)
    }

    /// Ends a [`Listener::accept`] that sleeps in another thread.
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// Waits at most `limit` and adds the connections that have said hello to `into`. May return earlier with none.
    ///
    /// # Errors
    /// [`TransportError::Io`] when the system's event queue fails; single connections that fail are logged.
    pub fn accept(&mut self, limit: Duration, into: &mut Vec<Incoming>) -> Result<(), TransportError> {
        let now = Instant::now();
        let next =
            self.pending.iter().flatten().map(|p| p.since + OPENING_TIMEOUT).chain(self.accept_at).min();
        let sleep = next.map_or(limit, |at| at.saturating_duration_since(now).min(limit));
        match self.poll.poll(&mut self.events, Some(sleep)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(source) => return Err(TransportError::Io { what: "waiting for connections".into(), source }),
        }
        let now = Instant::now();
        let slots: Vec<usize> = self.events.iter().map(|e| e.token().0).collect();
        for slot in slots {
            match Token(slot) {
                LISTENER => self.take(now, into),
                WAKER => {}
                _ => self.read(slot, into),
            }
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.take(now, into);
        }
        for slot in 0..self.pending.len() {
            if self.pending[slot].as_ref().is_some_and(|p| p.since + OPENING_TIMEOUT <= now) {
                self.drop_pending(slot, "its first message took too long");
            }
        }
        Ok(())
    }

    fn take(&mut self, now: Instant, into: &mut Vec<Incoming>) {
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => self.admit(stream, from, now, into),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "no connection can be taken now; trying again soon");
                    self.accept_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream, from: SocketAddr, now: Instant, into: &mut Vec<Incoming>) {
        let free = self.pending.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            let by_age = |&slot: &usize| self.pending[slot].as_ref().map(|p| p.since);
            let oldest = (0..MAX_PENDING).min_by_key(by_age).unwrap_or(0);
            self.drop_pending(oldest, "too many connections wait for their first message");
            oldest
        });
        if let Err(error) = self.poll.registry().register(&mut stream, Token(slot), Interest::READABLE) {
            tracing::warn!(%from, %error, "connection dropped");
            return;
        }
        self.pending[slot] =
            Some(Pending { stream, from, reader: OpeningReader::new(Expect::Hello), since: now });
        self.read(slot, into);
    }

    fn read(&mut self, slot: usize, into: &mut Vec<Incoming>) {
        let Some(pending) = self.pending.get_mut(slot).and_then(Option::as_mut) else { return };
        let (prelude, hello) = match pending.reader.read(&mut pending.stream) {
            Ok(None) => return,
            Ok(Some((prelude, body))) => match Hello::decode_body(body) {
                Ok(hello) => (prelude, hello),
                // A body of another version need not decode; say what is wrong with the version first.
                Err(error) => {
                    let error = negotiate::version(&prelude).err().unwrap_or(error);
                    return self.refuse_pending(slot, &error);
                }
            },
            Err(OpeningError::Wire(error)) => return self.refuse_pending(slot, &error),
            Err(OpeningError::Closed) => {
                return self.drop_pending(slot, "it was closed before its first message");
            }
            Err(OpeningError::Io(error)) => return self.drop_pending(slot, &error.to_string()),
        };
        match negotiate::terms(&prelude, &hello, &self.limits) {
            Err(error) => self.refuse_pending(slot, &error),
            Ok(terms) => {
                if let Some(Pending { mut stream, from, .. }) = self.pending[slot].take() {
                    match self.poll.registry().deregister(&mut stream) {
                        Ok(()) => into.push(Incoming { stream, from, hello, terms }),
                        Err(error) => tracing::warn!(%from, %error, "connection dropped"),
                    }
                }
            }
        }
    }

    fn refuse_pending(&mut self, slot: usize, error: &WireError) {
        if let Some(Pending { mut stream, from, .. }) = self.pending[slot].take() {
            tracing::warn!(%from, %error, "connection refused");
            // A stranger that does not speak the protocol gets no answer it could take for its own.
            if !matches!(error, WireError::BadMagic { .. }) {
                refuse(&mut stream, &error.to_string());
            }
        }
    }

    fn drop_pending(&mut self, slot: usize, reason: &str) {
        if let Some(pending) = self.pending[slot].take() {
            tracing::debug!(from = %pending.from, reason, "connection dropped");
        }
    }
}

/// Says no, as far as the socket takes it at once.
pub(crate) fn refuse(stream: &mut impl Stream, reason: &str) {
    let reply = HelloReply::Refused { reason: reason.to_string() };
    if let Ok(bytes) = reply.encode() {
        // The connection is dropped either way; a peer that does not read its answer loses only the words.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
}
