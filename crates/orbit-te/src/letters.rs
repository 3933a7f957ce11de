//! Letters: bytes from one transport to its counterpart at the peer, over the control link. Rule: what a peer sends waits in bounded room,
//! and whoever sends more loses his session; what is said here is written or refused at once, and nobody waits for it.

use crate::clock;
use crate::command::Command;
use crate::guard;
use crate::route::{RouteId, RouteSet};
use crate::session::Session;
use crate::shared::Shared;
use crate::worker::Worker;
use orbit_te_transport::{LinkId, Say, TransportError};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Letters of one session that wait for a worker, and their bytes. What transports say to each other is little: more is a peer's fault.
const MOST_WAITING: usize = 256;
const MOST_WAITING_BYTES: usize = 1 << 20;
/// The pause of a session whose worker has no room for commands.
const PAUSE: Duration = Duration::from_millis(1);

/// Speaks to the peer of a session in the name of a transport.
pub(crate) struct Voice {
    /// Whose end ends it.
    session: Weak<Session>,
    transport: &'static str,
}

impl Voice {
    pub(crate) fn new(session: &Arc<Session>, transport: &'static str) -> Voice {
        Voice { session: Arc::downgrade(session), transport }
    }
}

impl Say for Voice {
    fn say(&self, bytes: Vec<u8>) -> bool {
        self.session.upgrade().is_some_and(|session| session.say(self.transport, bytes))
    }
}

/// To whom the letters of a session's peer go.
pub(crate) enum Addressee {
    /// To counterparts: the peer opened the session, and its transports speak.
    Counterparts,
    /// To the transports that reach the peer: this side opened the session.
    Worker { worker: Arc<Worker>, link: LinkId, routes: RouteSet, waiting: Arc<Waiting> },
}

/// What of a session waits for its worker.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    letters: AtomicUsize,
    bytes: AtomicUsize,
}

impl Waiting {
    /// A letter's place, or none where too much waits. One thread puts them in.
    fn take_in(self: &Arc<Self>, bytes: Vec<u8>) -> Option<Letter> {
        let letters = self.letters.load(Ordering::Acquire);
        let before = self.bytes.load(Ordering::Acquire);
        if letters >= MOST_WAITING || before + bytes.len() > MOST_WAITING_BYTES {
            return None;
        }
        self.letters.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_add(bytes.len(), Ordering::AcqRel);
        Some(Letter { bytes, waiting: self.clone() })
    }
}

/// A letter on its way to a transport of ours; it has its place until it is dropped.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) bytes: Vec<u8>,
    waiting: Arc<Waiting>,
}

impl Drop for Letter {
    fn drop(&mut self) {
        self.waiting.letters.fetch_sub(1, Ordering::AcqRel);
        self.waiting.bytes.fetch_sub(self.bytes.len(), Ordering::AcqRel);
    }
}

/// What a session does not listen to any more.
#[derive(Debug, Default)]
pub(crate) struct Deafness {
    /// A bit for each counterpart whose use has ended.
    counterparts: AtomicU64,
    /// Letters for transports that are not here.
    unknown: AtomicU64,
}

impl Deafness {
    /// Whether this counterpart is not to be used in this session any more.
    pub(crate) fn is_deaf(&self, at: usize) -> bool {
        self.counterparts.load(Ordering::Acquire) & bit(at) != 0
    }

    /// How many letters were for nobody.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }
}

fn bit(at: usize) -> u64 {
    1u64.checked_shl(at as u32).unwrap_or(0)
}

/// Takes a letter of the session's peer; the cause, if it ends the session.
pub(crate) async fn take(
    session: &Session,
    to: &Addressee,
    shared: &Weak<Shared>,
    (transport, bytes): (&str, Vec<u8>),
) -> Option<String> {
    let Addressee::Worker { worker, link, routes, waiting } = to else {
        shared.upgrade()?.deliver(session, transport, &bytes);
        return None;
    };
    let Some(route) = RouteId::named(transport).filter(|route| routes.contains(*route)) else {
        unknown(session, transport);
        return None;
    };
    let Some(letter) = waiting.take_in(bytes) else {
        return Some(format!(
            "its transports say more than is taken: {MOST_WAITING} messages or {MOST_WAITING_BYTES} bytes of them wait"
        ));
    };
    let mut command = Command::Deliver { link: *link, route, letter };
    // The thread has other sessions to see to, so it does not wait here; this one is read on when there is room.
    while let Err(back) = worker.submit(command) {
        command = back;
        worker.attend();
        tokio::time::sleep(PAUSE).await;
    }
    worker.attend();
    None
}

/// A letter for nobody: a newer peer may have transports that this side does not know.
fn unknown(session: &Session, transport: &str) {
    if session.deafness.unknown.fetch_add(1, Ordering::Relaxed) == 0 {
        let (peer, session) = (session.peer, session.id);
        tracing::warn!(%peer, %session, transport, "bytes for a transport that is not here are ignored");
    }
}

impl Shared {
    /// Gives a letter to the counterpart of the transport that sent it. One that does not take it is not used in this session any more.
    fn deliver(&self, session: &Session, transport: &str, bytes: &[u8]) {
        let mut all = self.counterparts.iter().enumerate();
        let Some((at, counterpart)) = all.find(|(_, one)| one.names().contains(&transport)) else {
            return unknown(session, transport);
        };
        if session.deafness.is_deaf(at) {
            return;
        }
        // A panic is its own: the session goes on without it.
        let answer = guard::caught(|| counterpart.deliver(session.id, bytes, clock::now()));
        let failed = |reason| Err(TransportError::RefusedByPeer(reason));
        if let Err(error) = answer.unwrap_or_else(failed) {
            session.deafness.counterparts.fetch_or(bit(at), Ordering::AcqRel);
            counterpart.drop_session(session.id);
            let (peer, session) = (session.peer, session.id);
            tracing::warn!(%peer, %session, transport, %error, "a peer's transport is not listened to any more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_WAITING, MOST_WAITING_BYTES, Waiting};
    use std::sync::Arc;

    #[test]
    fn what_waits_is_bounded_in_number_and_bytes() {
        let waiting = Arc::<Waiting>::default();
        let mut kept: Vec<_> = (0..MOST_WAITING).map_while(|_| waiting.take_in(vec![0; 8])).collect();
        assert_eq!(kept.len(), MOST_WAITING);
        assert!(waiting.take_in(Vec::new()).is_none());
        kept.pop();
        assert!(waiting.take_in(vec![0; MOST_WAITING_BYTES]).is_none());
        let rest = MOST_WAITING_BYTES - 8 * kept.len();
        assert!(waiting.take_in(vec![0; rest + 1]).is_none());
        let last = waiting.take_in(vec![0; rest]);
        assert!(last.is_some());
        drop((kept, last));
        assert!(waiting.take_in(vec![0; MOST_WAITING_BYTES]).is_some(), "all of it is free again");
    }
}
